"""What is somebody else's is never deleted, renamed or replaced, whatever its name; what is read is no output."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environment import unmeasured
from transformer_cli.cli.options import files_named
from transformer_cli.config import load_config
from transformer_cli.storage.holding import MARK, MARKED
from transformer_cli.storage.run_folder import RunFolder, find_model

TFM = [sys.executable, "-m", "transformer_cli"]
STEPS = ["--set", "training.max_steps=2", "--device", "cpu", "--quiet"]


def tree(folder: Path) -> dict[str, bytes | str | None]:
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes() if path.is_file() else None)
        for path in folder.rglob("*")
    }


# --- folders ------------------------------------------------------------------------------------------------------

SEEN = [
    *("step-00000001/mine", "average-00000002/mine", "metrics.jsonl", "vocab/shared.json", "tensorboard/mine"),
    *("checkpoints.json", "config.yaml", "step-00000001/manifest.json", "notes.txt"),
]
HIDDEN = [
    *(".tmp-foo-12345678/mine", ".tmp-step-00000001-12345678/content/mine", ".tmp-x-12345678/mark"),
    *(".replaced-step-00000001/mine", ".replaced-notes/mine", ".gitkeep", ".DS_Store", "lost+found/mine"),
]


def put(folder: Path, name: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}" if path.suffix == ".json" else "mine\n")


@pytest.mark.parametrize("command", ["train", "train --fresh", "build-vocab", "train --dry-run"])
@pytest.mark.parametrize("name", SEEN)
def test_a_folder_that_holds_something_else_is_refused(
    name: str, command: str, trial: Any, tfm: Any, tmp_path: Path
) -> None:
    put(tmp_path / "out", name)
    before = tree(tmp_path)
    said = tfm(*command.split(), trial.config, "--out", tmp_path / "out").refused()
    assert "out: is not a run folder, and not empty" in said
    assert tree(tmp_path) == before


def test_what_no_run_has_stays_beside_one(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """A new run, a continued one, and one that is renamed aside."""
    out = tmp_path / "out"
    for name in HIDDEN:
        put(out, name)
    before = tree(out)
    assert tfm("train", trial.config, "--out", out, *STEPS).code == 0
    assert {name: content for name, content in tree(out).items() if name in before} == before
    assert tfm("train", trial.config, "--out", out, *STEPS, "--set", "training.max_steps=4").code == 0
    assert {name: content for name, content in tree(out).items() if name in before} == before
    assert tfm("train", trial.config, "--out", out, *STEPS, "--fresh").code == 0
    aside = tree(tmp_path / "out.1")
    assert {name: content for name, content in aside.items() if name in before} == before


@pytest.mark.parametrize("name", ["step-00000004", "average-00000004", ".replaced-step-00000004"])
def test_what_has_the_name_of_a_checkpoint_to_come_is_refused(name: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tfm("train", trial.config, "--out", out, *STEPS).code == 0
    put(out, f"{name}/mine")
    before = tree(tmp_path)
    again = ["train", trial.config, "--out", out, *STEPS, "--set", "training.max_steps=4"]
    assert f"{name}: holds what no run wrote; move it" in tfm(*again).refused()
    assert tree(tmp_path) == before
    shutil.rmtree(out / name)
    assert tfm(*again).code == 0


def test_pruning_leaves_what_is_not_all_ours(trial: Any, tfm: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(trial.run, out)
    for name in ("step-00000001", "step-00000003"):
        shutil.copytree(out / "step-00000002", out / name)
    (out / "step-00000001" / "notes").write_text("mine")
    (out / "step-00000002" / "config.yaml").write_text("mine")
    index = RunFolder(out).index()
    RunFolder(out).write_index(type(index)(steps=[4], best=[4], last=4))
    before = tree(out)
    RunFolder(out).prune()
    gone = {name for name in before if name not in tree(out)}
    assert gone == {name for name in before if name.startswith("step-00000003")}


def test_a_config_with_comments_stays_as_it_is(trial: Any, tfm: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tfm("train", trial.config, "--out", out, *STEPS).code == 0
    commented = "# mine\n" + (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(commented)
    assert tfm("train", trial.config, "--out", out, *STEPS).code == 0
    assert (out / "config.yaml").read_text() == commented


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["average", "{run}", "--last", "2", "--out", "{out}"], ["mine", "model.safetensors"]),
        (["export", "{run}", "--format", "safetensors", "--out", "{out}"], ["mine"]),
        (["distill", "{run}", "{config}", "--out", "{out}"], ["mine", "train.de", "manifest.json"]),
        (["backtranslate", "{run}", "-i", "{config}", "--out", "{out}"], ["mine", "train.de", "manifest.json"]),
        (["demo", "--out", "{out}"], ["mine", "corpus/train.de", "model/mine", "training.png"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_new_folders_are_never_put_over_others(
    command: list[str], names: list[str], trial: Any, tfm: Any, tmp_path: Path
) -> None:
    for name in names:
        out = tmp_path / name.replace("/", "-")
        put(out, name)
        before = tree(tmp_path)
        words = [word.format(run=trial.run, config=trial.config, out=out) for word in command]
        tfm(*words, "--quiet").refused()
        assert tree(tmp_path) == before


def test_a_lock_of_somebody_elses_is_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    put(tmp_path / "out", ".lock")
    assert ".lock: is not a lock of tfm's" in tfm("train", trial.config, "--out", tmp_path / "out", *STEPS).refused()
    assert tree(tmp_path / "out") == {".lock": b"mine\n"}


def test_a_picture_that_nobody_named_replaces_only_its_own_kind(
    tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("positions.png").write_text("mine")
    assert "positions.png: is there already" in tfm("plot", "positions").refused()
    assert Path("positions.png").read_text() == "mine"
    assert tfm("plot", "positions", "-o", "positions.png").code == 0
    assert tfm("plot", "positions").code == 0


# --- output = input -----------------------------------------------------------------------------------------------


def twice_linked(read: Path, place: Path) -> None:
    place.with_name("first").symlink_to(read)
    place.symlink_to(place.with_name("first"))


WAYS: dict[str, Callable[[Path, Path], None]] = {  # how an output may be a file that is read
    "itself": lambda read, place: None,
    "a symbolic link": lambda read, place: place.symlink_to(read),
    "a link to a link": twice_linked,
    "a hard link": lambda read, place: os.link(read, place),
}
READ = {  # what else a command reads; {read}: that file
    "translate --glossary": ["{run}", "ein", "--glossary", "{read}"],
    "translate --constraints": ["{run}", "ein", "--constraints", "{read}"],
    "translate --constraints stdin": ["{run}", "ein", "--constraints", "/dev/stdin"],
    "translate --jobs": ["{run}", "-i", "{read}", "--jobs", "1"],
    "score --source": ["{run}", "--source", "{read}", "--target", "{reference}"],
    "score --target": ["{run}", "--source", "{source}", "--target", "{read}"],
    "align --target": ["{run}", "--source", "{source}", "--target", "{read}"],
    "evaluate --reference": ["{run}", "--source", "{source}", "--reference", "{read}"],
    "evaluate a second --reference": [
        "{run}",
        "--source",
        "{source}",
        *["--reference", "{reference}"],
        *["--reference", "{read}"],
    ],
    "train --profile": ["{read}", "--profile", "{place}"],
    "plot schedule": ["{read}"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", READ)
def test_an_output_is_no_file_that_is_read(case: str, way: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    suffix = {"train": ".json", "plot": ".png"}.get(case.split()[0], "")
    read, place = tmp_path / f"read{suffix}", tmp_path / f"place{suffix}"
    shutil.copy(trial.config if suffix else trial.source, read)
    WAYS[way](read, place)
    place = read if way == "itself" else place
    given = {"run": trial.run, "source": trial.source, "reference": trial.reference, "read": read, "place": place}
    words = [word.format(**given) for word in READ[case]]
    command = case.split()[:2] if case.startswith("plot") else case.split()[:1]
    output = [] if case.startswith("train") else ["-o", str(place)]
    before = tree(tmp_path)
    if "stdin" in case:
        with open(read, "rb") as stdin:
            done = subprocess.run([*TFM, *command, *words, *output], stdin=stdin, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert "is read, and the results would take its place" in done.stderr
    else:
        assert "is read, and the results would take its place" in tfm(*command, *words, *output).refused()
    assert tree(tmp_path) == before


def test_an_output_is_no_file_of_the_model(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """Nor a new one in a checkpoint; beside the run's own files there is room."""
    run = tmp_path / "run"
    shutil.copytree(trial.run, run)
    (run / "metrics.jsonl").write_text("")
    checkpoint = find_model(run)
    os.link(checkpoint / "model.safetensors", tmp_path / "hard")
    (tmp_path / "soft").symlink_to(checkpoint / "vocab" / "shared.json")
    (tmp_path / "inside").symlink_to(checkpoint)
    before = tree(tmp_path)
    own = [path for path in run.rglob("*") if path.is_file()]
    new = [checkpoint / "new", checkpoint / "vocab" / "new", tmp_path / "inside" / "new"]
    for place in [*own, *new, tmp_path / "hard", tmp_path / "soft"]:
        for model in (run, checkpoint):
            if model == checkpoint and place.parent == run:
                continue
            said = tfm("translate", model, "ein", "-o", place).refused()
            assert "is read, and the results" in said or "whose files belong together" in said
    assert tree(tmp_path) == before
    for _ in range(2):
        assert tfm("translate", run, "ein", "-o", run / "translated", "-q").code == 0


def test_data_that_a_config_names_is_no_output(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """Where no files are given, those of the model's own config are read."""
    config = load_config(trial.config)
    assert files_named(config.data, "test", trial.run) == []
    assert files_named(config.data, "valid", trial.run) == [trial.source, trial.reference]
    (tmp_path / "valid.png").symlink_to(trial.source)
    before = trial.source.read_bytes()
    said = tfm("plot", "mask", trial.run, "-o", tmp_path / "valid.png").refused()
    assert "is read, and the results would take its place" in said
    assert trial.source.read_bytes() == before


@pytest.mark.medium
@pytest.mark.parametrize("way", [*WAYS, "stdin"])
def test_a_text_may_be_translated_in_place(way: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    """It is read to its end before it is replaced: what cannot be translated stays."""
    read, place = tmp_path / "read", tmp_path / "place"
    shutil.copy(trial.source, read)
    expected = tfm("translate", trial.run, "-i", read, "-q").out
    if way == "stdin":
        with open(read, "rb") as stdin:
            subprocess.run([*TFM, "translate", trial.run, "-o", read, "-q"], stdin=stdin, check=True)
        assert read.read_text() == expected
        return
    WAYS[way](read, place)
    place = read if way == "itself" else place
    long = ["--constraints", tmp_path / "none"]
    tfm("translate", trial.run, "-i", read, "-o", place, *long).refused()
    assert place.read_bytes() == trial.source.read_bytes()
    assert tfm("translate", trial.run, "-i", read, "-o", place, "-q").code == 0
    assert place.read_text() == expected


# --- what is no file in the place of one ----------------------------------------------------------------------------


def in_place_of(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_no_file_of_a_model_may_be_a_pipe_device_or_folder(
    kind: str, trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused at once, by all that reads it; nothing waits for a writer, or reads for ever."""
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    names = [path.relative_to(trial.run) for path in trial.run.rglob("*") if path.is_file()]
    names = [name for name in names if "step-00000002" not in str(name)]
    assert len(names) == 6
    began = time.monotonic()
    for name in names:
        run = tmp_path / "run"
        shutil.copytree(trial.run, run)
        in_place_of(run / name, kind)
        said = tfm("translate", run, "ein", "--engine", "torch").refused()
        assert name.name in said or "checkpoint" in said
        shutil.rmtree(run)
    assert time.monotonic() - began < 10 * len(names)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_no_file_of_a_run_may_be_a_pipe_device_or_folder(kind: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tfm("train", trial.config, "--out", out, *STEPS).code == 0
    again = ["train", trial.config, "--out", out, *STEPS, "--set", "training.max_steps=4"]
    (out / ".lock").write_text("")
    for name in [path.relative_to(out) for path in out.rglob("*") if path.is_file()]:
        if name.parts[0] == "vocab":
            continue  # not read any more: that of the last checkpoint is
        run = tmp_path / "run"
        shutil.copytree(out, run)
        in_place_of(run / name, kind)
        said = tfm(*[run if word == out else word for word in again]).refused()
        assert "run" in said
        if name.name == "metrics.jsonl":
            tfm("plot", "training", run, "-o", tmp_path / "x.png").refused()
        shutil.rmtree(run)


# --- processes that come to an end ----------------------------------------------------------------------------------


def test_what_a_killed_translation_left_goes_with_the_next(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """Not while it runs, and nothing of somebody else's."""
    put(tmp_path, ".tmp-out-12345678/mine")
    mine = tree(tmp_path)
    run = [*TFM, "translate", str(trial.run), "-o", str(tmp_path / "out"), "--stream", "-q"]
    with subprocess.Popen(run, stdin=subprocess.PIPE, env=unmeasured()) as process:
        while len(left := [*tmp_path.glob(".tmp-out-*/mark")]) < 1:
            assert process.poll() is None
            time.sleep(0.02)
        assert left[0].read_text() in ("", MARKED)
        time.sleep(0.1)
        assert tfm("translate", trial.run, "ein", "-o", tmp_path / "other", "-q").code == 0
        assert left[0].exists()
        process.send_signal(signal.SIGKILL)
    (tmp_path / "other").unlink()
    assert left[0].name == MARK
    assert left[0].exists()
    assert tfm("translate", trial.run, "ein", "-o", tmp_path / "out", "-q").code == 0
    (tmp_path / "out").unlink()
    assert tree(tmp_path) == mine
