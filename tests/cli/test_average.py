"""`tfm average`: the mean of checkpoints is a whole model; nothing is overwritten."""

from pathlib import Path
from typing import Any

import pytest


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_the_mean_of_checkpoints_translates(trial: Any, tfm: Any, tmp_path: Path) -> None:
    import torch

    one, two = trial.run / "step-00000002", trial.run / "step-00000004"
    named, last = tmp_path / "named", tmp_path / "last"
    result = tfm("average", one, two, "--out", named)
    assert (result.code, result.out) == (0, "")
    assert result.err == f"averaged step-00000002, step-00000004 into {named}\n"
    assert tfm("average", trial.run, "--last", 2, "--out", last, "--quiet").err == ""
    for name, mean in weights(named).items():
        assert torch.allclose(mean, (weights(one)[name] + weights(two)[name]) / 2, atol=1e-6)
        assert torch.equal(mean, weights(last)[name])
    assert tfm("translate", last, "ein hund").out == tfm("translate", named, "ein hund").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}/step-00000002", "--out", "new"], "one checkpoint has no average"),
        (["{run}", "--last", "3", "--out", "new"], "has 2 checkpoints, not 3"),
        (["{run}", "{run}", "--last", "2", "--out", "new"], "--last: takes one run folder"),
        (["{run}/step-00000002", "{words}", "--out", "new"], "{words}"),
        (["{run}/step-00000002", "none", "--out", "new"], "none: no such folder"),
        (["{run}", "--last", "2", "--out", "old"], "old: exists already"),
        (["{run}", "--last", "2", "--out", "file/new"], "file/new: cannot"),
    ],
)
def test_what_cannot_be_averaged_is_refused(
    arguments: list[str],
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    Path("file").write_text("")
    names = {"run": trial.run, "words": trial.words}
    refused = tfm("average", *(argument.format(**names) for argument in arguments)).refused()
    assert message.format(**names) in refused
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "old"]
