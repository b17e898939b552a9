"""The demo trains, judges and draws in one folder, goes on where it stopped, and writes over nothing."""

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_cli
from transformer_cli.cli.app import main
from transformer_cli.cli.demo import own_command, report
from transformer_cli.config import load_config
from transformer_cli.demo import run
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import evaluate, read_test_set
from transformer_cli.training.run import TrainingResult

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data" / "sample"
SMALL = {"d_model: 192": "d_model: 16", "d_ff: 512": "d_ff: 16", "size: 1500": "size: 400"}
SHORT = {"max_steps: 1200": "max_steps: 4", "warmup_steps: 150": "warmup_steps: 1", "_every: 300": "_every: 2"}


def write_little(folder: Path) -> None:
    """The beginning of each file of the sample corpus."""
    folder.mkdir(parents=True)
    for path in SAMPLE.glob("*.[de][en]"):
        lines = path.read_bytes().splitlines(keepends=True)
        (folder / path.name).write_bytes(b"".join(lines[:200] if path.stem == "train" else lines[:20]))


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of seconds: little text, a small model, few steps."""
    whole = run.config_text

    def shortened(folder: Path) -> str:
        text = whole(folder)
        for old, new in (SMALL | SHORT).items():
            assert old in text
            text = text.replace(old, new)
        return text

    monkeypatch.setattr(run, "config_text", shortened)
    monkeypatch.setattr(run, "write_corpus", write_little)


@pytest.mark.medium
@pytest.mark.usefixtures("little")
def test_the_demo_goes_from_nothing_to_a_judged_model_and_again_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    result = run.demo(folder, quiet=True)
    assert result.training.step == 4
    assert result.test.sentences == 20
    assert result.unseen.sentences == 20
    assert len(result.examples) == run.EXAMPLES
    assert [path.name for path in result.pictures] == ["training.png", "attention.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in result.pictures)
    weights = {path: path.stat().st_mtime_ns for path in (folder / "model").rglob("*.safetensors")}

    again = run.demo(folder, quiet=True)
    assert dataclasses.replace(again, training=result.training) == result
    assert {path: path.stat().st_mtime_ns for path in (folder / "model").rglob("*.safetensors")} == weights

    from transformer_cli import Translator

    translator = Translator.load(folder / "model")
    test = read_test_set(folder / "corpus" / "test.de", [folder / "corpus" / "test.en"])
    found = evaluate(translator, test.sources, test.references, metrics=["bleu"])
    assert found.scores[0].score == result.test.bleu
    shown = [(one.source, one.reference, one.translation) for one in result.examples]
    assert set(shown) <= set(zip(test.sources, test.references[0], found.translations, strict=True))


@pytest.mark.usefixtures("little")
def test_the_command_shows_scores_translations_places_and_what_to_type_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path / "here", monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path / "here"))
    assert main(["demo", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.count("source       ") == run.EXAMPLES
    for part in ("BLEU  ", "demo/model", "demo/training.png", "demo/attention.png", "tfm translate demo/model"):
        assert part in shown.out
    for line in shown.out.split("Now try:")[1].splitlines():
        assert line.strip() == "" or line.startswith("  tfm ")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand for a `tfm` that was called by its path in a folder of programs."""
    folder.mkdir(parents=True)
    program = folder / "tfm"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    return program


def test_what_to_type_next_is_the_tfm_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make demo` and `.venv/bin/tfm demo` do not put it on the PATH, where there may be none, or another."""
    monkeypatch.chdir(tmp_path)
    other = install(tmp_path / "other", monkeypatch)
    install(tmp_path / ".venv" / "bin", monkeypatch)
    for path in ("/no/such", str(other.parent)):
        monkeypatch.setenv("PATH", path)
        assert own_command() == ".venv/bin/tfm"
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "tfm").symlink_to(tmp_path / ".venv" / "bin" / "tfm")  # as pipx makes one
    for first in (tmp_path / ".venv" / "bin", tmp_path / "links"):
        monkeypatch.setenv("PATH", f"{first}:{other.parent}")
        assert own_command() == "tfm"
    monkeypatch.chdir(tmp_path / "other")
    monkeypatch.setenv("PATH", str(other.parent))
    assert own_command() == str(tmp_path / ".venv" / "bin" / "tfm")
    install(tmp_path / "a b", monkeypatch)
    assert own_command() == f"'{tmp_path}/a b/tfm'"
    # python -m transformer_cli: the tfm beside that Python, if there is one
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "transformer_cli" / "__main__.py")])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))
    assert own_command() == f"{tmp_path}/bare/python -m transformer_cli"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "other" / "python"))
    assert own_command() == "tfm"


def test_without_matplotlib_there_are_no_pictures_but_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("transformer_cli.plots")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(transformer_cli, "plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.ft2font", None)
    assert run.places_of_pictures(tmp_path) == []
    training = TrainingResult(tmp_path / "model", "", 1, None, None, 1.0)
    nothing = run.Scored(1, 0.0, "")
    lines = report(tmp_path, run.DemoResult(training, nothing, nothing, [], []))
    assert any("pip install 'transformer-cli[plots]'" in line for line in lines)


@pytest.mark.parametrize("name", ["demo", "with space", 'it\'s: a #1 ["x"]', "ümläut"])
def test_the_config_names_the_corpus_wherever_it_lies(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(run.config_text(tmp_path / name), encoding="utf-8")
    train = load_config(path).data.sources["data.train"]
    assert train.model_dump()["source"] == str(tmp_path / name / "corpus" / "train.de")


@pytest.mark.parametrize("entry", ["notes.txt", "config.yaml", "model"])
def test_a_folder_with_other_things_is_left_alone(entry: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / entry).write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="--out"):
        run.prepare(folder)
    assert [path.name for path in folder.iterdir()] == [entry]
    assert (folder / entry).read_text(encoding="utf-8") == "mine"


def test_a_corpus_that_was_half_written_is_completed(tmp_path: Path) -> None:
    """Each file is there whole or not at all; one of that name with another content is somebody else's."""
    corpus = tmp_path / "demo" / "corpus"
    corpus.mkdir(parents=True)
    (corpus / "train.de").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.de: is not the sample corpus's"):
        run.prepare(tmp_path / "demo")
    assert [path.read_text() for path in corpus.iterdir()] == ["mine"]
    shutil.copy(SAMPLE / "train.de", corpus)
    run.prepare(tmp_path / "demo")
    for path in SAMPLE.glob("*.[de][en]"):
        assert (corpus / path.name).read_bytes() == path.read_bytes()


def test_pictures_of_somebody_else_stay(tmp_path: Path) -> None:
    (tmp_path / "training.png").write_text("mine")
    with pytest.raises(UserError, match=r"training\.png: is there already"):
        run.places_of_pictures(tmp_path)


@pytest.mark.parametrize("place", ["file", "file/inner"])
def test_a_corpus_that_cannot_be_written_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.*: cannot write the sample corpus: .*; name another folder"):
        run.write_corpus(tmp_path / place)


def test_a_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    """What setuptools packs, by its own account: the demo's corpus too, where there is no repository."""
    code = "from setuptools import setup; setup()"
    build = [sys.executable, "-c", code, "--quiet", "build_py", "--build-lib", str(tmp_path / "lib")]
    egg = ["egg_info", "--egg-base", str(tmp_path)]
    subprocess.run([*build[:4], *egg, *build[4:]], cwd=ROOT, check=True, capture_output=True)
    packed, ours = (
        {path.relative_to(root).as_posix() for path in root.rglob("*.*") if path.is_file() and path.suffix != ".pyc"}
        for root in (tmp_path / "lib" / "transformer_cli", ROOT / "transformer_cli")
    )
    assert packed == ours
    assert {f"demo/corpus/{path.name}.gz" for path in SAMPLE.glob("*.[de][en]")} < packed


@pytest.mark.slow
def test_the_demo_learns_its_language(tmp_path: Path) -> None:
    result = run.demo(tmp_path / "demo", quiet=True)
    assert result.test.bleu >= 90
    assert result.unseen.sentences >= 200
    assert result.unseen.bleu >= 80
