"""`tfm calibrate`: confidence is kept with the model, whole or not at all, and translations have it from then on."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from transformer_cli import Translator
from transformer_cli.decoding.translation import FILE
from transformer_cli.storage.publishing import MANIFEST, manifest_names, publish, verify


@pytest.fixture
def run(trial: Any, tmp_path: Path) -> Path:
    """A run folder that may be written to."""
    return Path(shutil.copytree(trial.run, tmp_path / "run"))


def known(trial: Any, count: int = 60) -> list[object]:
    """Options that name sentences with their translations."""
    paths = []
    for option, name in (("--source", "train.de"), ("--reference", "train.en")):
        path = trial.folder / f"{count}.{name}"
        lines = (trial.folder / name).read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:count]))
        paths += [option, path]
    return paths


def test_translations_have_a_confidence_from_then_on(trial: Any, tfm: Any, run: Path) -> None:
    folder = run / "step-00000004"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST}
    assert Translator.load(run, "cpu").translate_batch(["ein hund"])[0].confidence is None

    result = tfm("calibrate", run, *known(trial), "--json", "--quiet")
    assert result.code == 0
    figures = json.loads(result.out)
    assert (figures["sentences_fitted"], figures["sentences_measured"]) == (30, 30)
    kept = json.loads((folder / FILE).read_text())
    assert kept["error"] == figures["calibration_error"] < 1

    assert {path: path.read_bytes() for path in before} == before, "all else stays"
    verify(folder, manifest_names(folder))
    assert set(manifest_names(folder)) == {str(path.relative_to(folder)) for path in before} | {FILE}
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints.json", "step-00000002", "step-00000004"]
    for engine in ("torch", "ctranslate2"):
        translator = Translator.load(run, "cpu", engine=engine)
        for translation in translator.translate_batch(["ein hund", "zwei katze schläft", ""]):
            assert translation.confidence == translation.hypotheses[0].confidence
            assert translation.confidence is not None
            assert 0 <= translation.confidence <= 1
        assert translator.translate_batch([""])[0].confidence == 1, "nothing is surely nothing"


def test_to_calibrate_again_replaces_what_was_kept(trial: Any, tfm: Any, run: Path) -> None:
    assert tfm("calibrate", run, *known(trial)).code == 0
    result = tfm("calibrate", run / "step-00000004", *known(trial, 40))
    assert result.code == 0
    kept = json.loads((run / "step-00000004" / FILE).read_text())
    assert kept["sentences"] == 20
    assert result.out.split("\n")[0].split() == ["calibration", "error", f"{kept['error']:.4f}"]


def test_the_models_own_validation_set_is_the_default(trial: Any, tfm: Any, run: Path) -> None:
    assert "6 sentences are too few to calibrate with; give at least 20" in tfm("calibrate", run).refused()


def test_a_damaged_confidence_is_refused(trial: Any, tfm: Any, run: Path) -> None:
    assert tfm("calibrate", run, *known(trial)).code == 0
    path = run / "step-00000004" / FILE
    path.write_text(path.read_text().replace('"error": 0', '"error": 1'))
    assert f"{FILE}: does not match its manifest" in tfm("translate", run, "ein hund").refused()


@pytest.mark.parametrize("name", ["config.yaml", "training.json"])
def test_a_damaged_file_gets_no_new_manifest(trial: Any, tfm: Any, run: Path, name: str) -> None:
    folder = run / "step-00000004"

    def write(new: Path) -> None:
        shutil.copytree(folder, new, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))
        (new / "training.json").write_text("{}")

    publish(folder, write)
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert name in tfm("calibrate", run, *known(trial)).refused()
    assert not (folder / FILE).exists()
    if name == "training.json":
        (folder / name).unlink()
        assert tfm("calibrate", run, *known(trial)).code == 0, "whoever only translates may have removed it"
        assert name not in manifest_names(folder)


def test_what_cannot_be_kept_is_refused_before_the_work(
    trial: Any, tfm: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run / "step-00000004" / "vocab")
    assert "while you are in it" in tfm("calibrate", run, *known(trial)).refused()
    monkeypatch.chdir(run)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != run)
    assert "cannot be written" in tfm("calibrate", run / "step-00000004", *known(trial)).refused()


@pytest.mark.parametrize("given", [["--source", "a"], ["--reference", "a"]])
def test_source_and_reference_belong_together(trial: Any, tfm: Any, given: list[str]) -> None:
    assert "belong together" in tfm("calibrate", trial.run, *given).refused()
