"""`tfm export`: what each format needs is checked first; a folder appears whole or not at all."""

import re
from pathlib import Path
from typing import Any

import pytest


def test_the_model_alone_is_a_model(trial: Any, tfm: Any, tmp_path: Path) -> None:
    out = tmp_path / "below" / "out"
    result = tfm("export", trial.run, "--format", "safetensors", "--out", out)
    assert (result.code, result.out, result.err) == (0, "", f"exported step-00000004 to {out}\n")
    assert tfm("translate", out, "ein hund").out == tfm("translate", trial.run, "ein hund").out
    assert tfm("export", out, "--format", "safetensors", "--out", f"{out}.2", "--no-verify", "--quiet").err == ""


def test_the_help_of_the_option_names_every_format(tfm: Any) -> None:
    shown = tfm("export", "--help").out.split("--format FORMAT")[1].split("--out DIR")[0]
    assert re.findall(r"\w+", shown.partition("[")[0]) == [
        *("ctranslate2", "argos", "onnx", "huggingface", "or", "safetensors")
    ]


@pytest.mark.medium
def test_a_marian_model_is_verified(trial: Any, tfm: Any, tmp_path: Path) -> None:
    result = tfm("export", trial.run, "--format", "huggingface", "--out", tmp_path / "out")
    assert (result.code, result.out) == (0, "")
    verified, exported = result.err.splitlines()
    assert verified.startswith("verified with ")
    assert exported == f"exported step-00000004 to {tmp_path / 'out'}"


@pytest.mark.slow
def test_onnx_graphs_are_verified(trial: Any, tfm: Any, tmp_path: Path) -> None:
    for name in (trial.run, trial.words):
        result = tfm("export", name, "--format", "onnx", "--out", tmp_path / name.name)
        assert (result.code, result.out) == (0, "")
        assert result.err.startswith("verified with ")
        assert len(result.err.splitlines()) == 2


@pytest.mark.medium
def test_a_model_that_differs_is_told_and_not_kept(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_cli.export.verify.LARGEST_LOGIT_DIFFERENCE", 0.0)
    result = tfm("export", trial.run, "--format", "huggingface", "--out", tmp_path / "out")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert result.err.startswith("error: a logit of the exported model is off by ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--format", "safetensors", "--out", "old"], "old: exists already"),
        (["{run}", "--format", "safetensors", "--out", "file/new"], "file/new: cannot"),
        (["{run}", "--format", "safetensors", "--out", "new", "--sentences", "file"], "translates nothing"),
        (
            ["{run}", "--format", "onnx", "--out", "new", "--quantization", "int8"],
            "is for --format ctranslate2 and argos",
        ),
        (["{run}", "--format", "onnx", "--out", "new", "--sentences", "file", "--no-verify"], "exclude each other"),
        (["{run}", "--format", "onnx", "--out", "new", "--sentences", "file"], "file: holds no sentence"),
        (["{run}", "--format", "onnx", "--out", "new", "--sentences", "none"], "none: no such file"),
        (["{run}", "--format", "onnx", "--out", "new", "--shortlist", "9"], "--shortlist: is for --format ctranslate2"),
        (["{run}", "--format", "ctranslate2", "--out", "new", "--shortlist", "0"], "--shortlist"),
        (["{words}", "--format", "huggingface", "--out", "new"], "model.positions: learned: Marian"),
        (["none", "--format", "onnx", "--out", "new"], "none: no such folder"),
        (["{run}", "--format", "pickle", "--out", "new"], "--format"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    arguments: list[str], message: str, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    Path("file").write_text("")
    names = {"run": trial.run, "words": trial.words}
    refused = tfm("export", *(argument.format(**names) for argument in arguments)).refused()
    assert message in refused
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "old"]
