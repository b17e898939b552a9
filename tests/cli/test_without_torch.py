"""Where PyTorch and pyarrow are not installed, every command works or says in one line what it needs."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.core
import typer.main

from tests.cli.conftest import Trial
from transformer_cli.cli.app import app, main

NEEDED = "which is not installed; pip install 'transformer-cli[train]'\n"

# In a process of its own: the calls one after another, and of each its exit code, stdout and stderr.
RUNNER = """
import contextlib, io, json, sys
for package in ("torch", "pyarrow"):
    sys.modules[package] = None  # importing it raises ModuleNotFoundError
from transformer_cli.cli.app import main
outcomes = []
for arguments in json.loads(sys.argv[1]):
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    outcomes.append([code, *(stream.buffer.getvalue().decode() for stream in (out, err))])
print(json.dumps(outcomes))
"""


def without_torch(*calls: list[str]) -> list[tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, json.dumps(calls)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [tuple(outcome) for outcome in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture
def calls(trial: Trial, tmp_path: Path) -> dict[str, tuple[list[str], str]]:
    """A call of each command: its arguments, and what it needs (none: it works)."""
    run, config, out = str(trial.run), str(trial.config), str(tmp_path / "out")
    pair = ["--source", str(trial.source), "--target", str(trial.reference)]
    test_set = ["--source", str(trial.source), "--reference", str(trial.reference)]
    return {
        "init": ([f"{trial.folder}/train.de", f"{trial.folder}/train.en", "--out", str(tmp_path / "new")], ""),
        "doctor": ([config], ""),
        "build-vocab": ([config, "--out", out], ""),
        "demo": (["--out", out], "PyTorch"),
        "train": ([config, "--out", out], "PyTorch"),
        "import": ([str(tmp_path / "opus"), "--out", out], "PyTorch"),
        "average": ([run, "--last", "2", "--out", out], "PyTorch"),
        "distill": ([run, config, "--out", str(tmp_path / "distilled")], ""),
        "backtranslate": (
            [run, "--input", f"{trial.folder}/train.de", "--out", str(tmp_path / "made"), "--keep", "too_long"],
            "",
        ),
        "tune": ([config, "--out", out, "--vary", "model.dropout=0.1,0.2", "--budget", "9steps"], "PyTorch"),
        "translate": ([run, "ein hund"], ""),
        "align": ([run, *pair], ""),
        "evaluate": ([run, *test_set], ""),
        "compare": ([run, str(trial.words), *test_set], ""),
        "report": ([run, "-o", f"{out}.html"], ""),
        "score": ([run, *pair], ""),
        "calibrate": ([str(tmp_path / "calibrated")], ""),
        "inspect": ([run], "PyTorch"),
        "plot attention": ([run, "ein hund", "-o", f"{out}.png"], "PyTorch"),
        "plot positions": (["-o", f"{out}.positions.png"], ""),
        "plot mask": ([run, "ein hund", "-o", f"{out}.png"], "PyTorch"),
        "plot schedule": ([config, "-o", f"{out}.schedule.png"], ""),
        "plot training": ([str(tmp_path / "metrics"), "-o", f"{out}.training.png"], ""),
        "export": ([run, "--format", "ctranslate2", "--out", out], "PyTorch"),
    }


def names(command: object, path: str = "") -> list[str]:
    """The commands below a group, by the words that call them."""
    if not isinstance(command, typer.core.TyperGroup):
        return [path]
    return [name for word, inner in command.commands.items() for name in names(inner, f"{path} {word}".strip())]


@pytest.mark.medium
def test_every_command_works_or_names_what_it_needs(
    trial: Trial, calls: dict[str, tuple[list[str], str]], tmp_path: Path
) -> None:
    serving = "serve"  # which does not end by itself; see tests/serve/test_server.py
    assert sorted([*calls, serving]) == sorted(names(typer.main.get_command(app)))
    shutil.copytree(trial.run, tmp_path / "calibrated")
    long = tmp_path / "long"
    for path, name in ((trial.source, "de"), (trial.reference, "en")):
        long.with_suffix(f".{name}").write_text(path.read_text() * 5)
    calls["calibrate"][0].extend(["--source", f"{long}.de", "--reference", f"{long}.en"])
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    before = {path.name for path in tmp_path.iterdir()}
    needy = {name: call for name, call in calls.items() if call[1]}
    found = without_torch(*([*name.split(), *arguments] for name, (arguments, _) in needy.items()))
    for (name, (_, package)), outcome in zip(needy.items(), found, strict=True):
        assert outcome == (2, "", f"error: tfm {name} needs {package}, {NEEDED}")
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing was written"
    working = {name: call for name, call in calls.items() if not call[1]}
    found = without_torch(*([*name.split(), *arguments] for name, (arguments, _) in working.items()))
    for name, (code, _, err) in zip(working, found, strict=True):
        assert code == 0, (name, err)


def test_it_says_what_torch_is_wanted_for(trial: Trial) -> None:
    run = str(trial.run)
    wishes = {
        "engine torch": ["--engine", "torch"],
        "engine torch (sampling)": ["--sample"],
        "engine torch (words that must or must not appear)": ["--require", "dog"],
        "engine torch (2 models)": ["--with", run],
    }
    found = without_torch(*(["translate", run, "ein hund", *wish] for wish in wishes.values()))
    for what, outcome in zip(wishes, found, strict=True):
        assert outcome == (2, "", f"error: {what} needs PyTorch, {NEEDED}")


@pytest.mark.medium
def test_an_empty_cache_and_one_that_cannot_be_written(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    call = ["translate", str(trial.run), "ein hund"]
    first, again = without_torch(call, call)
    assert (first[0], first[1]) == (again[0], again[1])
    assert "engine: ctranslate2 (float32); converted from step-00000004, cached in" in first[2]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "file" / "below"))
    ((code, out, err),) = without_torch(call)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "set TFM_CACHE to a folder with room, or install PyTorch for engine torch: pip install" in err


@pytest.mark.medium
def test_a_pytorch_that_cannot_be_imported_says_why(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for arguments in (["inspect", str(trial.run)], ["translate", str(trial.run), "ein", "--engine", "torch"]):
        code = f"import sys; from transformer_cli.cli.app import main; sys.exit(main({arguments!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        who = "tfm inspect" if arguments[0] == "inspect" else "engine torch"
        assert done.returncode == 2
        assert done.stderr == (
            f"error: {who} needs PyTorch, which cannot be imported (libcudart.so.12: cannot open shared object file); "
            "install it again\n"
        )


def test_an_error_inside_torch_is_not_taken_for_a_missing_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    from transformer_cli.storage import run_folder

    monkeypatch.setattr(run_folder, "find_model", lambda _: torch.zeros(2) @ torch.zeros(3))
    assert main(["inspect", "model"]) == 1
    assert capfd.readouterr().err.startswith("error: internal: RuntimeError")
