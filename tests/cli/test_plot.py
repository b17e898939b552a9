"""`tfm plot`: every picture through the command, its name printed; what cannot be drawn is refused, nothing written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_cli.cli.app import main
from transformer_cli.cli.options import parse_numbers
from transformer_cli.cli.plot import app
from transformer_cli.errors import UserError

COMMANDS = ["attention", "positions", "mask", "schedule", "training"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def run(trial: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with metrics of its training."""
    folder: Path = tmp_path_factory.mktemp("plot") / "run"
    shutil.copytree(trial.run, folder)
    events = [{"step": step, "loss": 7.0 / step, "learning_rate": 1e-3} for step in (1, 2, 3, 4)]
    events += [{"step": step, "valid_loss": 6.0, "valid_bleu": 2.0 * step} for step in (2, 4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["attention", "{run}", "ein hund läuft ."], "attention-cross.png"),
        (["attention", "{words}", "ein hund", "--kind", "decoder", "--mean"], "attention-decoder.png"),
        (["attention", "{run}", "ein hund", "--target", "one dog", "--heads", "2", "-o", "a.svg"], "a.svg"),
        (["attention", "{run}", "ein hund", "--grid", "--heads", "1"], "attention-cross-heads.png"),
        (["attention", "{words}", "ein hund", "katze", "--entropy"], "attention-entropy.png"),
        (
            ["attention", "{run}", "--entropy", "-i", "{source}", "-n", "2", "--kind", "encoder"],
            "attention-entropy.png",
        ),
        (["positions", "--d-model", "8", "--length", "5"], "positions.png"),
        (["mask", "{run}"], "mask.png"),
        (["mask", "{run}", "one dog", "two dog cat", "--output", "m.PNG"], "m.PNG"),
        (["mask", "{words}", "--side", "source", "-i", "{source}", "-n", "2"], "mask.png"),
        (["schedule", "{config}", "--set", "training.max_steps=50"], "schedule.png"),
        (["training", "{run}", "-o", "t.svg"], "t.svg"),
    ],
)
def test_every_picture_is_written_and_named(
    arguments: list[str], name: str, run: Path, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"run": run, "words": trial.words, "config": trial.config, "source": trial.source}
    result = tfm("plot", *(argument.format(**places) for argument in arguments))
    # What an untrained model says may be in any script, and this machine's fonts may lack it.
    notes = [line for line in result.err.splitlines() if not line.startswith("note: no font here has")]
    assert (result.code, result.out, notes) == (0, f"{name}\n", [])
    content = (tmp_path / name).read_bytes()
    assert content.startswith(PNG) if name.lower().endswith(".png") else b"<svg " in content
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_options_reach_the_picture(run: Path, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """What is saved is the figure of this sentence's weights, of these heads, of this config."""
    saved: list[Any] = []

    def keep(figure: Any, path: Path) -> list[str]:
        saved.append(figure)
        return []

    monkeypatch.setattr("transformer_cli.plots.style.save", keep)
    out = ["-o", tmp_path / "a.png"]

    assert tfm("plot", "attention", run, "ein hund", "--kind", "encoder", "--heads", "2", *out).code == 0
    from transformer_cli import Translator
    from transformer_cli.inside.attention import attend

    attention = attend(Translator.load(run, "cpu", engine="torch"), "ein hund")
    np.testing.assert_allclose(saved[0].axes[0].images[0].get_array(), attention.encoder[0, 1])

    assert tfm("plot", "schedule", trial.config, "--set", "training.warmup_steps=3", "--steps", 9, *out).code == 0
    line = saved[1].axes[0].lines[0]
    assert line.get_label().startswith("config.yaml: noam, d_model 16, 3 warmup steps")
    assert list(line.get_xdata()) == [*range(1, 10)]

    assert tfm("plot", "mask", run, "-n", "2", *out).code == 0
    lines = trial.reference.read_text(encoding="utf-8").splitlines()[:2]
    labels = [label.get_text() for label in saved[2].axes[0].get_yticklabels()]
    assert "".join(labels).replace("▁", " ").replace("<pad>", "") == f"<s> {lines[0]}"


REFUSED = {
    "a layer that there is not": (["attention", "{run}", "ein", "--layers", "2"], "one layer, 1"),
    "a head that there is not": (["attention", "{run}", "ein", "--heads", "1-3"], "heads 1 to 2"),
    "no number": (["attention", "{run}", "ein", "--heads", "one"], "--heads 'one'"),
    "another kind": (["attention", "{run}", "ein", "--kind", "self"], "'encoder', 'decoder', 'cross'"),
    "no sentence": (["attention", "{run}"], "missing SENTENCE"),
    "two sentences": (["attention", "{run}", "ein", "hund"], "only --entropy takes several"),
    "a file for one map": (["attention", "{run}", "-i", "{source}"], "--input: belongs to --entropy"),
    "a sentence and a file": (["attention", "{run}", "ein", "--entropy", "-i", "{source}"], "exclude each other"),
    "a count of no file": (["attention", "{run}", "ein", "--entropy", "-n", "2"], "--count"),
    "entropy of a mean": (["attention", "{run}", "ein", "--entropy", "--mean"], "--mean and --entropy"),
    "a mean in a grid": (["attention", "{run}", "ein", "--grid", "--mean"], "--mean and --grid"),
    "entropy of a translation": (["attention", "{run}", "ein", "--entropy", "--target", "one"], "--target"),
    "a file without sentences": (["attention", "{run}", "--entropy", "-i", "empty"], "empty: has no sentence"),
    "a head that the grid has not": (["attention", "{run}", "ein", "--grid", "--heads", "3"], "heads 1 to 2"),
    "no words": (["attention", "{run}", " "], "no tokens"),
    "no words in the translation": (["attention", "{run}", "ein", "--target", ""], "target has no tokens"),
    "a sentence too long": (["attention", "{run}", "hund " * 30], "at most 24"),
    "no model": (["attention", "none", "ein"], "none: no such folder"),
    "another suffix": (["positions", "-o", "a.pdf"], "a.pdf: ends in .pdf"),
    "a folder": (["positions", "-o", "folder.png"], "folder.png: is a folder"),
    "no such folder": (["positions", "-o", "none/a.png"], "does not exist"),
    "an odd width": (["positions", "--d-model", "7"], "even number"),
    "no position": (["positions", "--length", "0"], "allowed: 1 to 2000"),
    "sentences and a file": (["mask", "{run}", "one", "-i", "{source}"], "exclude each other"),
    "sentences and a count": (["mask", "{run}", "one", "-n", "2"], "--count"),
    "another side": (["mask", "{run}", "--side", "both"], "'source', 'target'"),
    "an empty sentence": (["mask", "{run}", "one", " "], "no tokens"),
    "an empty file": (["mask", "{run}", "-i", "empty"], "empty: has no sentence"),
    "no file": (["mask", "{run}", "-i", "none"], "none: no such file"),
    "no config": (["schedule", "none.yaml"], "none.yaml: cannot read"),
    "a faulty value": (["schedule", "{config}", "--set", "training.warmup_steps=-1"], "training.warmup_steps"),
    "a run without metrics": (["training", "{words}"], "has no metrics.jsonl"),
    "a checkpoint": (["training", "{run}/step-00000004"], "give the run folder"),
    "no such command": (["atention", "{run}"], "Did you mean 'attention'?"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_cannot_be_drawn_is_refused(
    fault: str, run: Path, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder.png").mkdir()
    Path("empty").write_text("\n \n")
    arguments, message = REFUSED[fault]
    places = {"run": run, "words": trial.words, "config": trial.config, "source": trial.source}
    assert message in tfm("plot", *(argument.format(**places) for argument in arguments)).refused()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "folder.png"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tfm: Any, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "permission" in tfm("plot", "positions", "-o", tmp_path / "a.png").refused()


def test_numbers() -> None:
    assert parse_numbers(None, "--layers") is None
    assert parse_numbers("3", "--layers") == [3]
    assert parse_numbers("4,1 - 3,2", "--layers") == [4, 1, 2, 3]
    for text in ("", "1,", "-1", "1-", "3-1", "1.5", "²", "12345", "1-2-3"):
        with pytest.raises(UserError, match="--layers"):
            parse_numbers(text, "--layers")


def test_the_commands_tested_are_all_there_are() -> None:
    assert [command.name for command in app.registered_commands] == COMMANDS


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_help_fits_80_columns(command: list[str], monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plot", *command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Usage: tfm plot" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "..." not in shown.partition("Commands:")[2]
    if not command:
        assert main(["plot"]) == 0
        assert capsys.readouterr().out == shown


def test_help_imports_nothing_heavy_and_curves_need_no_torch(run: Path, trial: Any, tmp_path: Path) -> None:
    program = f"""
import os, sys
sys.modules["torch"] = None
from transformer_cli.cli.app import main
for command in [[], *([command] for command in {COMMANDS!r})]:
    main(["plot", *command, "--help"])
heavy = {{"matplotlib", "numpy", "pydantic", "yaml", "PIL"}} & set(sys.modules)
codes = [main(["plot", "training", {str(run)!r}]), main(["plot", "schedule", {str(trial.config)!r}])]
print("SEEN", sorted(heavy), codes, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == "SEEN [] [0, 0]\n"


@pytest.mark.medium
def test_through_the_real_entry_point_with_and_without_matplotlib(run: Path, tmp_path: Path) -> None:
    start = [sys.executable, "-m", "transformer_cli", "plot", "training", str(run)]
    done = subprocess.run(start, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "training.png\n", "")
    assert (tmp_path / "training.png").read_bytes().startswith(PNG)

    (tmp_path / "training.png").unlink()
    without = tmp_path / "without"
    without.mkdir()
    (without / "matplotlib.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(without), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(start, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "pip install 'transformer-cli[plots]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "training.png").exists()

    environment = {**os.environ, "MPLBACKEND": "unknown"}
    done = subprocess.run(start, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: matplotlib does not start: ")


def test_characters_that_no_font_has_are_one_note(run: Path, tfm: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from transformer_cli.plots import style as fonts

    monkeypatch.setattr(fonts, "_search", lambda characters: fonts.Fonts((fonts.BASE,), tuple(sorted(characters))))
    command = ["plot", "attention", run, "ein 中文 hund", "--mean", "-o", tmp_path / "a.png"]
    result = tfm(*command)
    assert (result.code, result.out) == (0, f"{tmp_path / 'a.png'}\n")
    assert result.err.startswith("note: no font here has 2 characters (中 文)")
    assert result.err.count("\n") == 1
    assert tfm(*command, "--quiet").err == ""


def test_masks_of_a_model_without_its_data_need_sentences(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """A model that was moved to another machine."""
    from transformer_cli.data import held_out

    def open_saved(*_: object) -> None:
        raise UserError("valid.de: no such file")

    monkeypatch.setattr(held_out, "open_saved", open_saved)
    said = tfm("plot", "mask", trial.run, "-o", tmp_path / "a.png").refused()
    assert said.startswith("error: valid.de: no such file; ")
    assert "--input" in said
    assert tfm("plot", "mask", trial.run, "one dog", "-o", tmp_path / "a.png").code == 0
