"""The catalogue of bad input, through the real entry point: exit code 2, one `error:` line, nothing written."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import WEIGHTS, find_model
from transformer_cli.training import dry_run, run, start


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Faulty corpora."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "good").write_text("ein hund\nzwei hund\n")
    (folder / "short").write_text("one dog\n")
    (folder / "latin").write_bytes(b"one dog\ngr\xfcn\n")
    (folder / "empty").write_text("")
    (folder / "table.tsv").write_text("de\tfr\nein\tun\n")
    (folder / "file").write_text("in the way of a folder\n")
    return folder


FAULTY_TRAINING = {
    "no such training file": (["data.train.source={data}/none"], ["none", "no such file"]),
    "unequal line counts": (["data.train={{source: {data}/good, target: {data}/short}}"], ["short", "line"]),
    "invalid UTF-8": (["data.train={{source: {data}/good, target: {data}/latin}}"], ["latin:2", "UTF-8"]),
    "invalid UTF-8 in validation": (["data.valid={{source: {data}/good, target: {data}/latin}}"], ["latin:2", "UTF-8"]),
    "empty corpus": (["data.train={{source: {data}/empty, target: {data}/empty}}"], ["empty"]),
    "missing column": (["data.train={{file: {data}/table.tsv}}"], ["table.tsv", "en"]),
    "unknown key": (["training.max_stepz=3"], ["training.max_stepz", "unknown key", "max_steps"]),
    "wrong type": (["training.max_steps=many"], ["training.max_steps", "integer", "many"]),
    "bad bound": (["training.label_smoothing=1.5"], ["training.label_smoothing", "less than 1", "1.5"]),
    "heads that do not divide": (["model.heads=3"], ["model.heads", "3 does not divide d_model = 16"]),
    "language that spaCy does not know": (
        ["vocabulary={{tokenizer: spacy, shared: false}}", "model.tie_embeddings=none", "data.source_language=qaa"],
        ["qaa", "spaCy", "de"],
    ),
}


@pytest.mark.parametrize("fault", FAULTY_TRAINING)
def test_training_refuses(fault: str, trial: Any, tfm: Any, data: Path, tmp_path: Path) -> None:
    overrides, words = FAULTY_TRAINING[fault]
    given = [part for override in overrides for part in ("--set", override.format(data=data))]
    before = files_of(tmp_path)
    said = tfm("train", trial.config, "--out", tmp_path / "run", "--device", "cpu", *given).refused()
    for word in words:
        assert word in said
    assert files_of(tmp_path) == before
    assert not (tmp_path / "run").exists()


FOUND_AT_ONCE = {
    "no such validation file": (["data.valid.source={data}/none"], ["data.valid.source: ", "none: no such file"]),
    "no such validation table": (["data.valid={{file: {data}/none.tsv}}"], ["data.valid.file: ", "no such file"]),
    "a folder as validation file": (["data.valid.target={data}"], ["is a folder"]),
    "unequal validation files": (["data.valid={{source: {data}/good, target: {data}/short}}"], ["short has 1 lines"]),
    "a name as source language": (["data.source_language=German"], ["data.source_language: 'German'", "German is de"]),
    "a name as target language": (
        ["data.target_language=Japanese"],
        ["'Japanese' is not a language code; Japanese is ja"],
    ),
}
FOUND_AT_ONCE_IN_TRAINING = {
    "no such alignments": (
        ["training.guided_attention={{prior: alignments, alignments: {data}/none}}"],
        ["training.guided_attention.alignments: ", "none: no such file"],
    ),
    "alignments of other text": (
        ["training.guided_attention={{prior: alignments, alignments: {data}/short}}"],
        ["short:1: ", "check that the file is of"],
    ),
    "no such vectors": (["training.source_vectors={data}/none"], ["training.source_vectors: ", "none: no such file"]),
    "no such model to start from": (["training.init_from={data}/none"], ["training.init_from: ", "no such folder"]),
}


@pytest.mark.parametrize("preset", ["null", "auto"])
@pytest.mark.parametrize("command", [["build-vocab"], ["train"], ["train", "--dry-run"]], ids=" ".join)
@pytest.mark.parametrize("fault", FOUND_AT_ONCE | FOUND_AT_ONCE_IN_TRAINING)
def test_what_can_be_seen_at_once_is_refused_before_anything_is_computed(
    fault: str, command: list[str], preset: str, trial: Any, tfm: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault in FOUND_AT_ONCE_IN_TRAINING and command == ["build-vocab"]:
        return  # it reads none of these

    def computes(*_: object, **__: object) -> None:
        raise AssertionError("the fault was there before this")

    for module, names in (
        (start, ("build_codecs", "measure_corpus")),
        (run, ("measure_corpus",)),
        (dry_run, ("measure_corpus",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, computes)
    overrides, words = (FOUND_AT_ONCE | FOUND_AT_ONCE_IN_TRAINING)[fault]
    given = [part for override in overrides for part in ("--set", override.format(data=data))]
    path = data.parent / "run"
    said = tfm(*command, trial.config, "--out", path, "--set", f"model.preset={preset}", *given).refused()
    for word in words:
        assert word in said
    assert not path.exists()


@pytest.mark.medium
def test_runs_of_before_keep_the_languages_that_they_have(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were begun when any word would do."""
    old = ["train", trial.config, "--out", tmp_path / "run", "--device", "cpu", "--quiet"]
    old += ["--set", "data.source_language=xx", "--set", "data.target_language=Elvish"]
    with monkeypatch.context() as before:
        before.setattr(start, "check_languages", lambda _: None)
        assert tfm(*old).code == 0
    for command in (["translate", "MODEL", "ein hund"], ["evaluate", "MODEL", "--source", trial.source]):
        command = [tmp_path / "run" if part == "MODEL" else part for part in command]
        command += ["--reference", trial.reference] if "evaluate" in command else []
        assert tfm(*command).code == 0
    assert tfm(*old, "--set", "training.max_steps=6").code == 0
    assert (tmp_path / "run" / "step-00000006").is_dir()
    from_it = [*old[:2], "--out", tmp_path / "new", *old[4:], "--set", f"training.init_from={tmp_path / 'run'}"]
    assert tfm(*from_it).code == 0
    assert "not a language code" in tfm(*old, "--fresh").refused()


def test_a_folder_that_cannot_be_made_is_refused(trial: Any, tfm: Any, data: Path) -> None:
    said = tfm("train", trial.config, "--out", data / "file" / "run").refused()
    assert "file" in said
    assert "--out" in said


def test_a_config_that_is_not_there_is_refused(tfm: Any, tmp_path: Path) -> None:
    assert "none.yaml" in tfm("train", tmp_path / "none.yaml").refused()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("command", ["train", "translate"])
def test_cuda_without_a_gpu_is_refused(command: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    arguments = [trial.config, "--out", tmp_path / "run"] if command == "train" else [trial.run, "ein hund"]
    said = tfm(command, *arguments, "--device", "cuda").refused()
    assert "'cuda'" in said
    assert "cpu" in said


def rewrite(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A change to the tensors themselves: the file stays well-formed, and its manifest is made anew."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return apply


def cut(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def flip(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-5] ^= 1
    (folder / WEIGHTS).write_bytes(content)


NAME = "encoder.layers.0.feed_forward.inner.weight"

DAMAGED_WEIGHTS: dict[str, tuple[Callable[[Path], None], bool, str]] = {
    "truncated": (cut, False, "does not match its manifest"),
    "truncated, manifest made anew": (cut, True, "cannot be read as a safetensors file"),
    "a flipped bit": (flip, False, "does not match its manifest"),
    "not there": (lambda folder: (folder / WEIGHTS).unlink(), False, WEIGHTS),
    "a missing tensor": (rewrite(lambda tensors: tensors.pop(NAME)), True, f"tensor {NAME} is missing"),
    "a misshapen tensor": (
        rewrite(lambda tensors: tensors.update({NAME: torch.zeros(3, 4)})),
        True,
        f"tensor {NAME} is [3, 4]",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED_WEIGHTS)
def test_damaged_weights_are_refused(damage: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    spoil, anew, message = DAMAGED_WEIGHTS[damage]
    model = tmp_path / "model"

    def copy(folder: Path) -> None:
        for path in find_model(trial.run).rglob("*"):
            if path.is_file() and path.name != "manifest.json":
                target = folder / path.relative_to(find_model(trial.run))
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(path.read_bytes())
        if anew:
            spoil(folder)

    publish(model, copy)
    if not anew:
        spoil(model)
    said = tfm("translate", model, "ein hund", "--engine", "torch").refused()
    assert message in said
    assert str(model) in said


def test_the_same_in_a_process_of_its_own(trial: Any, tmp_path: Path) -> None:
    """The in-process calls above stand for this one: `main`'s code is the exit code, and there is no traceback."""
    command = [sys.executable, "-m", "transformer_cli", "translate", str(tmp_path / "none"), "ein hund"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
