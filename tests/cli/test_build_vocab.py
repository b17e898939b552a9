"""`tfm build-vocab`: a run folder with config and vocabulary, a table on stdout; bad data leaves nothing behind."""

from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import load_config
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.codec import Codecs


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


def test_a_folder_that_cannot_be_written_is_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "choose another with --out" in tfm("build-vocab", trial.config, "--out", tmp_path / "file/run").refused()
    assert "cannot" in tfm("build-vocab", trial.config, "--out", "/proc/run").refused()


def test_a_run_that_starts_from_a_model_has_none_to_build(trial: Any, tfm: Any, tmp_path: Path) -> None:
    start = f"training.init_from={trial.run}"
    said = tfm("build-vocab", trial.config, "--out", tmp_path / "run", "--set", start).refused()
    assert "training.init_from: a run has the vocabulary of the model that it starts from" in said
    assert not (tmp_path / "run").exists()
