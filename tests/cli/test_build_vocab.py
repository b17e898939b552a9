"""`tfm build-vocab`: a run folder with config and vocabulary, a table on stdout; bad data leaves nothing behind."""

from pathlib import Path
from typing import Any

import pytest

from tests.sampling import one_of_each
from transformer_cli.config import dump_config, load_config
from transformer_cli.data.corpora import open_split
from transformer_cli.data.encoded import encode_corpus
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import LOCK, RunFolder
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs
from transformer_cli.training import start


def test_writes_a_vocabulary_that_loads_and_prints_a_table(trial: Any, tfm: Any, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    override = "vocabulary={tokenizer: whitespace, min_freq: 2, shared: false}"
    tied = "model.tie_embeddings=decoder"
    result = tfm("build-vocab", trial.config, "--out", run.path, "--set", override, "--set", tied)
    assert result.code == 0
    config = load_config(run.config_path)
    assert (config.vocabulary.min_freq, config.vocabulary.size) == (2, 8000)
    codecs = Codecs.load(run.path, config)
    assert "hund" in codecs.source.vocabulary
    assert "dog" in codecs.target.vocabulary
    assert "dog" not in codecs.source.vocabulary
    header, *sides = result.out.splitlines()
    assert header.split()[0] == "vocabulary"
    assert [side.split()[:2] for side in sides] == [
        ["source", str(len(codecs.source.vocabulary))],
        ["target", str(len(codecs.target.vocabulary))],
    ]
    assert len({len(line) for line in result.out.splitlines()}) == 1  # columns stand under their headings
    assert result.err == f"wrote {run.config_path} and {run.vocab_path}\n"


def test_the_run_folder_defaults_to_the_configs_name(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tfm("build-vocab", trial.config, "--quiet").err == ""
    assert Path("checkpoints/config/config.yaml").is_file()
    assert {path.name for path in Path("checkpoints").iterdir()} == {"config"}


def test_a_vocabulary_is_never_lost(trial: Any, tfm: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    build = ["build-vocab", trial.config, "--out", run]
    assert tfm(*build).code == 0
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "give --fresh" in tfm(*build, "--set", "vocabulary.size=300").refused()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert tfm(*build, "--set", "vocabulary.size=300", "--fresh").code == 0
    assert load_config(run / "config.yaml").vocabulary.size == 300
    aside = {
        run / path.relative_to(tmp_path / "run.1"): path.read_bytes()
        for path in (tmp_path / "run.1").rglob("*")
        if path.is_file()
    }
    assert aside == before


def test_what_another_wrote_meanwhile_is_not_touched(
    trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = load_config(trial.config), tmp_path / "run"

    def slow_build(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(start, "build_codecs", build_codecs)
        start.build_vocabulary(config, run)  # another process does this while the first still counts
        return build_codecs(*arguments, **options)

    monkeypatch.setattr(start, "build_codecs", slow_build)
    with pytest.raises(UserError, match="started a run here meanwhile"):
        start.build_vocabulary(config, run)
    assert {path.name for path in run.iterdir()} == {"config.yaml", "origin.json", "vocab"}


def test_a_run_that_a_kill_left_without_its_vocabulary_is_held_and_gets_one(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run, held = load_config(trial.config), RunFolder(tmp_path / "run"), []
    run.create()
    run.config_path.write_text(dump_config(config), encoding="utf-8")

    def watched_build(*arguments: Any, **options: Any) -> Any:
        held.append((run.path / LOCK).exists())
        return build_codecs(*arguments, **options)

    monkeypatch.setattr(start, "build_codecs", watched_build)
    start.build_vocabulary(config, run.path)
    assert held == [True]
    verify(run.vocab_path)
    assert not (run.path / LOCK).exists()
    assert "give --fresh" in tfm("build-vocab", trial.config, "--out", run.path).refused()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train.source=none.de", "none.de: no such file"),
        ("data.train.source=short", "lines"),
        ("data.train.source=latin", "latin:2: is not valid UTF-8"),
        ("data.train={source: empty, target: empty}", "empty"),
        ("data.valid.target=short", "lines"),
        ("data.train={file: table.tsv}", "de"),
        ("vocabulary.sise=300", "vocabulary.sise: unknown key; did you mean vocabulary.size?"),
        ("vocabulary.size=2", "vocabulary.size"),
        ("vocabulary.size=many", "vocabulary.size"),
        ("model.heads=3", "does not divide d_model"),
        ("vocabulary={tokenizer: spacy}", "qaa"),
        ("training.max_steps", "write it as section.key=value"),
    ],
)
def test_bad_data_and_configs_are_refused_and_nothing_is_written(
    override: str,
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("a\n" * 5)
    Path("empty").write_bytes(b"")
    Path("latin").write_bytes(b"a\nfa\xe7ade\n" + b"a\n" * 58)
    Path("table.tsv").write_text("src\ttgt\na\tb\n")
    before = sorted(tmp_path.iterdir())
    more = ["--set", "data.source_language=qaa"] if "spacy" in override else []
    refused = tfm("build-vocab", trial.config, "--out", "run", "--set", override, *more).refused()
    assert message in refused
    assert sorted(tmp_path.iterdir()) == before


LONG = {"a word": "x" * 1_000_000, "words": "ein hund " * 111_111, "wide characters": "犬" * 333_333}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("line", "tokenizer"),
    one_of_each(
        [pytest.param(line, tokenizer) for line in LONG] for tokenizer in ("sentencepiece", "whitespace", "character")
    ),
)
def test_a_line_of_a_megabyte_is_no_harm(line: str, tokenizer: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    """It is counted and left out of training; the pairs beside it are as they were."""
    files = {language: tmp_path / f"train.{language}" for language in ("de", "en")}
    for language, path in files.items():
        text = (trial.folder / f"train.{language}").read_text(encoding="utf-8")
        path.write_text(text + LONG[line] + "\n", encoding="utf-8")
    change = ["--set", f"data.train={{source: {files['de']}, target: {files['en']}}}"]
    change += ["--set", f"vocabulary={{tokenizer: {tokenizer}, size: 300, algorithm: bpe}}", "--quiet"]
    done = tfm("build-vocab", trial.config, "--out", tmp_path / "run", *change)
    assert done.code == 0, done.err
    config = load_config(tmp_path / "run/config.yaml")
    codecs = Codecs.load(tmp_path / "run", config)
    corpus = encode_corpus(open_split(config.data, "train"), codecs, max_length=100, cache_folder=tmp_path)
    one_token = (line, tokenizer) in (("a word", "whitespace"), ("wide characters", "whitespace"))
    assert (len(corpus), corpus.left_out_long) == ((61, 0) if one_token else (60, 1))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("tokenizer", "size"),
    [("sentencepiece", 4000), pytest.param("character", 70_000, marks=pytest.mark.slow), ("character", 400)],
)
def test_65000_distinct_characters_are_no_harm(tokenizer: str, size: int, trial: Any, tfm: Any, tmp_path: Path) -> None:
    """What has no piece of its own is spelled in bytes, or is `<unk>`, and costs none of the others its own."""
    every = [chr(code) for code in range(0x21, 0x30000) if chr(code).isprintable() and chr(code).strip()][:65_000]
    assert len(every) == 65_000
    lines = ["".join(every[start : start + 20]) for start in range(0, len(every), 20)]
    text = "".join(f"{line}\n" for line in lines)
    times = 2600 if tokenizer == "sentencepiece" else 20  # 98 % and more of the text
    for language in ("de", "en"):
        common = (trial.folder / f"train.{language}").read_text(encoding="utf-8")
        (tmp_path / f"train.{language}").write_text(common * times + text, encoding="utf-8")
    change = ["--set", f"data.train={{source: {tmp_path}/train.de, target: {tmp_path}/train.en}}", "--quiet"]
    change += ["--set", f"vocabulary={{tokenizer: {tokenizer}, size: {size}, algorithm: bpe}}"]
    change += ["--set", "vocabulary.character_coverage=0.98"] * (tokenizer == "sentencepiece")
    done = tfm("build-vocab", trial.config, "--out", tmp_path / "run", *change)
    assert done.code == 0, done.err
    codec = Codecs.load(tmp_path / "run", load_config(tmp_path / "run/config.yaml")).source
    exact = sum(codec.decode(codec.encode(line)) == line for line in lines)
    assert exact < 30 if size == 400 else exact == len(lines)
    assert codec.decode(codec.encode("ein hund sieht die maus .")) == "ein hund sieht die maus ."


def test_a_folder_that_cannot_be_written_is_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "choose another with --out" in tfm("build-vocab", trial.config, "--out", tmp_path / "file/run").refused()
    assert "cannot" in tfm("build-vocab", trial.config, "--out", "/proc/run").refused()


def test_a_run_that_starts_from_a_model_has_none_to_build(trial: Any, tfm: Any, tmp_path: Path) -> None:
    start = f"training.init_from={trial.run}"
    said = tfm("build-vocab", trial.config, "--out", tmp_path / "run", "--set", start).refused()
    assert "training.init_from: a run has the vocabulary of the model that it starts from" in said
    assert not (tmp_path / "run").exists()
