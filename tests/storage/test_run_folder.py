"""A run survives a kill at any point of its writing, is found wherever it was moved, and refuses what is damaged."""

import contextlib
import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.environment import unmeasured
from transformer_cli.config import dump_config, load_config
from transformer_cli.errors import UserError
from transformer_cli.storage.holding import TEMPORARY
from transformer_cli.storage.publishing import MANIFEST, REPLACED, manifest_names, verify
from transformer_cli.storage.run_folder import VOCAB, CheckpointIndex, RunFolder, average_name, find_model, step_name

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}


def checkpoint(step: int) -> Callable[[Path], None]:
    """A writer of what stands for a checkpoint: it knows its step."""

    def write(folder: Path) -> None:
        (folder / "vocab").mkdir()
        (folder / "vocab" / "shared.json").write_text("[]")
        (folder / "config.yaml").write_text("data: {}")
        (folder / "model.safetensors").write_text(str(step))

    return write


def trained_run(path: Path, steps: int = 1) -> RunFolder:
    """A run with checkpoints 1 … steps, the first being the best."""
    run = RunFolder(path)
    run.create()
    for step in range(1, steps + 1):
        run.publish(step_name(step), checkpoint(step))
    run.write_index(CheckpointIndex(steps=list(range(1, steps + 1)), best=[1], last=steps))
    return run


def hidden(run: RunFolder) -> list[str]:
    return sorted(entry.name for entry in run.path.iterdir() if entry.name.startswith((TEMPORARY, REPLACED)))


def assert_sound(run: RunFolder) -> None:
    """The index names complete checkpoints only, MODEL is found and undamaged, and knows its own step."""
    for step in run.index().steps:
        folder = run.step_folder(step)
        verify(folder, manifest_names(folder))
        assert (folder / "model.safetensors").read_text() == str(step)
    model = find_model(run.path)
    verify(model, manifest_names(model))
    for entry in run.path.iterdir():
        if entry.name.startswith("step-"):
            verify(entry, manifest_names(entry))


# --- kills --------------------------------------------------------------------------------------------------------


def save_second(run: RunFolder) -> None:
    """What a trainer does at step 2 of a run that has step 1, and then with step 2 again (a rerun, a late signal)."""
    run.clean_temporaries()
    run.metrics.append({"event": "train", "step": 2, "loss": 1.0})
    for _ in range(2):
        run.publish(step_name(2), checkpoint(2))
        run.write_index(CheckpointIndex(steps=sorted({*run.index().steps, 2}), best=[2], last=2))
    run.write_index(CheckpointIndex(steps=[2], best=[2], last=2))
    run.prune()
    run.metrics.cut(2)


def killed_before(number: int, action: Callable[[], None]) -> bool:
    """Run the action in a process that is killed before its number-th change to the disk; whether it came to that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the child only writes files
        child = os.fork()
    if child == 0:
        changes = 0

        def count(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal changes
            if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                changes += 1
                if changes == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)  # is told of each before it is made
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the action failed by itself"
    return False


@pytest.mark.medium
@pytest.mark.parametrize("apart", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_kill_at_any_point_loses_nothing(apart: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a kill, unlike a power cut, does not ask for it
    template = trained_run(tmp_path / "template").path
    outcomes = set()
    number, killed = 1, True
    while killed:
        run = RunFolder(tmp_path / "run")
        shutil.copytree(template, run.path)
        killed = killed_before(number, partial(save_second, run))
        assert_sound(run)
        outcomes.add((run.index().last, bool(hidden(run))))
        run.clean_temporaries()
        assert hidden(run) == []
        assert_sound(run)
        if number % 5 == 0 or not killed:  # the same command again
            save_second(run)
            assert run.index() == CheckpointIndex(steps=[2], best=[2], last=2)
            assert sorted(entry.name for entry in run.path.iterdir()) == [
                "checkpoints.json", "metrics.jsonl", "step-00000002",
            ]  # fmt: skip
            assert_sound(run)
        shutil.rmtree(run.path)
        number += apart
    assert number > 30
    assert outcomes >= {(1, True), (1, False), (2, True), (2, False)}  # it was killed in every state there is


@pytest.mark.medium
def test_a_kill_during_the_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def save_first(run: RunFolder) -> None:
        run.create()
        run.publish(step_name(1), checkpoint(1))
        run.write_index(CheckpointIndex(steps=[1], best=[1], last=1))

    number, killed, adopted = 1, True, 0
    while killed:
        run = RunFolder(tmp_path / str(number))
        killed = killed_before(number, partial(save_first, run))
        if (run.path / step_name(1)).exists():
            assert_sound(run)
            assert run.index().last == 1
            adopted += not run.index_path.exists()
        else:
            assert killed
            assert run.index() == CheckpointIndex()
            with pytest.raises(UserError):
                find_model(run.path)
        number += 1
    assert adopted  # a kill came between the checkpoint and the first index


SAVE_FOR_EVER = """
import sys, itertools
from pathlib import Path
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder, step_name
run = RunFolder(sys.argv[1])
run.create()
with run.lock():
    run.clean_temporaries()
    start = (run.index().last or 0)
    for step in itertools.count(max(start, 1)):
        def write(folder):
            (folder / "vocab").mkdir()
            (folder / "vocab" / "shared.json").write_text("[]")
            (folder / "model.safetensors").write_text(str(step))
        run.publish(step_name(step), write)
        run.write_index(CheckpointIndex([step], [step], step))
        run.prune()
        print(step, flush=True)
"""


@pytest.mark.medium
def test_real_kills_of_a_real_process(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    last = 0
    for wait in (0.0, 0.013, 0.031):
        command = [sys.executable, "-c", SAVE_FOR_EVER, str(run.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=unmeasured()) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            with pytest.raises(UserError, match="another tfm is training here"), run.lock():
                pass
            time.sleep(wait)
            process.kill()
        assert_sound(run)
        found = run.index().last
        assert found is not None
        assert found >= last
        last = found
    with run.lock():  # goes with the killed process
        run.clean_temporaries()
    assert hidden(run) == []


def test_lock_is_not_inherited(tmp_path: Path) -> None:
    """A data worker that outlives a killed trainer does not keep the folder."""
    run = trained_run(tmp_path / "run")
    script = """
import os, sys, time
from transformer_cli.storage.run_folder import RunFolder
with RunFolder(sys.argv[1]).lock():
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(60)
    os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", script, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=unmeasured()) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            process.wait()
            with run.lock():
                pass
        finally:
            os.kill(worker, signal.SIGKILL)


def test_the_lock_leaves_nothing_behind_and_holds_again_and_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match="refused"), run.lock():
            raise UserError("refused")
        assert list(tmp_path.iterdir()) == []


def test_a_lock_that_is_removed_while_another_opens_it_still_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who gets the lock of a file that is gone takes the next one; else two would train in one folder."""
    run = RunFolder(tmp_path)
    opened: list[Any] = []
    take = fcntl.lockf

    def take_late(file: Any, *how: int) -> None:
        if not opened:
            (tmp_path / ".lock").unlink()  # by its holder, who has ended
        opened.append(file)
        take(file, *how)

    monkeypatch.setattr(fcntl, "lockf", take_late)
    with run.lock():
        assert len(opened) == 2
        assert os.path.samestat(os.fstat(opened[1].fileno()), os.stat(tmp_path / ".lock"))


def test_a_renamed_folder_does_not_take_anothers_lock(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    with run.lock():
        os.rename(run.path, tmp_path / "run.1")
        run.create()
        (run.path / ".lock").write_text("another's")
    assert (run.path / ".lock").exists()


def test_who_lost_the_lock_to_another_writes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a file server may give it to another, when it has not heard of the first one's machine for long."""
    run, successor = trained_run(tmp_path / "run", steps=2), RunFolder(tmp_path / "run")

    def lose() -> None:
        with run.lock():
            run.publish(step_name(3), checkpoint(3))
            monkeypatch.setattr("fcntl.lockf", lambda *how: None)
            monkeypatch.setattr("socket.gethostname", lambda: "another-machine")
            with successor.lock():
                with pytest.raises(FileNotFoundError):
                    run.write_index(run.index())
                successor.publish(step_name(4), checkpoint(4))
                run.publish(step_name(5), checkpoint(5))

    with pytest.raises(OSError, match="another tfm has taken it over"):
        lose()
    assert (run.path / step_name(4)).exists()
    assert not (run.path / step_name(5)).exists()


# --- full disks ---------------------------------------------------------------------------------------------------


def test_full_disk_keeps_the_old_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    before = sorted(run.path.rglob("*"))

    def write(folder: Path) -> None:
        checkpoint(3)(folder)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        run.publish(step_name(3), write)
    monkeypatch.setattr(os, "fsync", lambda descriptor: write(run.path / step_name(1)))
    with pytest.raises(OSError, match=r"File exists|No space left"):
        run.write_index(CheckpointIndex())
    assert sorted(run.path.rglob("*")) == before
    assert_sound(run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_what_is_the_users_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A read-only disk is; a full one is not."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(OSError if code == errno.ENOSPC else UserError, match=os.strerror(code)):
        RunFolder(tmp_path / "run").create()


def test_errors_of_the_disk_name_what_the_user_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained_run(tmp_path / "run")

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "temporary")

    monkeypatch.setattr(os, "fsync", fail)
    for name, action in (
        ("step-00000002", lambda: run.publish(step_name(2), checkpoint(2))),
        ("checkpoints.json", lambda: run.write_index(run.index())),
    ):
        with pytest.raises(OSError, match="No space left") as raised:
            action()
        assert raised.value.filename == str(run.path / name)


# --- naming, pruning, setting aside -------------------------------------------------------------------------------


def test_step_names_sort_as_numbers() -> None:
    assert step_name(12_000) == "step-00012000"
    assert average_name(12_000) == "average-00012000"
    assert sorted(map(step_name, [9, 10, 100])) == [step_name(9), step_name(10), step_name(100)]


def test_prune_deletes_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=4)
    run.publish(average_name(2), checkpoint(2))
    run.publish(average_name(4), checkpoint(4))
    run.write_index(CheckpointIndex([2, 4], [2], 4, average=average_name(4)))
    for name in ("step-notes", "average", "my-copy"):
        (run.path / name).mkdir()
    run.prune()
    assert sorted(entry.name for entry in run.path.iterdir()) == sorted(
        ["checkpoints.json", "step-notes", "average", "my-copy", average_name(4), *map(step_name, (2, 4))]
    )


def test_prune_never_deletes_what_the_index_names(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    run.prune()
    assert_sound(run)
    assert run.index().steps == [1, 2]


def test_publishing_a_step_again_replaces_it(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")

    def write(folder: Path) -> None:
        checkpoint(1)(folder)
        (folder / "training.json").write_text("{}")

    folder = run.publish(step_name(1), write)
    assert "training.json" in manifest_names(folder)
    assert hidden(run) == []
    assert_sound(run)


def test_a_step_the_index_does_not_know_is_replaced(tmp_path: Path) -> None:
    """A kill came after the rename and before the index."""
    run = trained_run(tmp_path / "run")
    run.publish(step_name(2), checkpoint(99))
    assert run.index().last == 1
    run.publish(step_name(2), checkpoint(2))
    run.write_index(CheckpointIndex([1, 2], [1], 2))
    assert_sound(run)


def test_between_the_renames_the_old_checkpoint_is_found(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    os.rename(run.path / step_name(1), run.path / (REPLACED + step_name(1)))
    assert_sound(run)
    assert find_model(run.path) == find_model(run.path / step_name(1)) == run.path / (REPLACED + step_name(1))
    run.clean_temporaries()
    assert find_model(run.path) == run.path / step_name(1)


def test_the_index_names_only_what_is_published(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run")
    with pytest.raises(AssertionError):
        run.write_index(CheckpointIndex([1, 2], [1], 2))
    with pytest.raises(AssertionError):
        run.write_index(CheckpointIndex([1], [2], 1))
    assert run.index() == CheckpointIndex([1], [1], 1)


def test_set_aside_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "run.1").mkdir()
    for number in (2, 3):
        run = trained_run(tmp_path / "run", steps=number)
        aside = run.set_aside()
        assert aside == tmp_path / f"run.{number}"
        assert not run.path.exists()
        assert RunFolder(aside).index().last == number
        assert_sound(RunFolder(aside))


def test_set_aside_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(UserError, match="is not a run folder"):
        RunFolder(tmp_path / "letters").set_aside()
    run = trained_run(tmp_path / "run")
    monkeypatch.chdir(run.path)
    for path in (run.path, Path()):
        with pytest.raises(UserError, match="the folder you are in"):
            RunFolder(path).set_aside()
    monkeypatch.chdir(tmp_path)

    def rename(source: object, target: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(UserError, match=r"cannot be renamed to run\.1: Permission denied"):
        run.set_aside()
    assert_sound(run)


def test_vocabulary_is_published_whole(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()

    def save(content: str, fail: bool = False) -> Callable[[Path], None]:
        def write(folder: Path) -> None:
            assert folder.is_dir()
            (folder / "shared.json").write_text(content)
            if fail:
                raise OSError(errno.ENOSPC, "full")

        return write

    assert run.publish(VOCAB, save("old")) == run.vocab_path
    with pytest.raises(OSError, match="full"):
        run.publish(VOCAB, save("half", fail=True))
    assert (run.vocab_path / "shared.json").read_text() == "old"
    run.publish(VOCAB, save("new"))
    assert (run.vocab_path / "shared.json").read_text() == "new"
    verify(run.vocab_path, ["shared.json"])
    assert hidden(run) == []


# --- finding ------------------------------------------------------------------------------------------------------


def test_find_model_gives_the_average_else_the_best_else_the_last(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=3)
    assert find_model(run.path) == run.step_folder(1)
    assert find_model(str(run.path)) == run.step_folder(1)
    run.write_index(CheckpointIndex([1, 2, 3], [], 3))
    assert find_model(run.path) == run.step_folder(3)
    assert find_model(run.step_folder(2)) == run.step_folder(2)
    run.publish(average_name(3), checkpoint(3))
    assert find_model(run.path) == run.step_folder(3)
    run.write_index(CheckpointIndex([1, 2, 3], [1], 3, average=average_name(3)))
    assert find_model(run.path) == run.path / average_name(3)


def test_a_moved_folder_works(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    moved = RunFolder(tmp_path / "elsewhere" / "ünïcode name")
    moved.path.parent.mkdir()
    os.rename(run.path, moved.path)
    assert_sound(moved)
    (tmp_path / "link").symlink_to(moved.path)
    assert_sound(RunFolder(tmp_path / "link"))


def test_a_folder_without_its_index_works(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    run.index_path.unlink()
    (run.path / "step-00000003").mkdir()  # no manifest: not complete
    assert run.index() == CheckpointIndex(steps=[1, 2], last=2)
    assert find_model(run.path) == run.step_folder(2)
    assert run.exists()


def test_reading_writes_nothing(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    (run.path / ".tmp-step-00000003-1234").mkdir()

    def snapshot() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in [run.path, *run.path.rglob("*")]}

    before = snapshot()
    assert_sound(run)
    assert snapshot() == before


@pytest.mark.parametrize(
    "name", ["missing", "missing/deeper", "file", "file/deeper", "empty", "bare", "headless", "vocab-only"]
)
def test_what_is_no_model_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.safetensors").write_text("no manifest")
    (tmp_path / "headless").mkdir()
    (tmp_path / "headless" / MANIFEST).write_text("{}")
    (tmp_path / "vocab-only").mkdir()
    (tmp_path / "vocab-only" / "config.yaml").write_text("data: {}")
    with pytest.raises(UserError) as raised:
        find_model(tmp_path / name)
    assert str(raised.value).startswith(f"{tmp_path / name}: ")
    assert ";" in str(raised.value)  # says what to do
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", '"text"', '{"steps": 1}', '{"steps": [true]}', '{"steps": ["1"]}', '{"steps": [1.5]}',
        '{"steps": [-1]}', '{"steps": [1, 1]}', '{"steps": [1], "best": [1, 1]}', '{"steps": [1], "best": [2]}',
        '{"steps": [1], "last": 2}', '{"steps": [1], "last": "1"}', '{"steps": [1], "average": "../run"}',
        '{"steps": [1], "average": "/etc"}', '{"steps": [1], "average": ""}', '{"steps": [1], "finished": 1}',
        '{"steps": [1], "last": 1e400}', "[" * 99_999, "\x00", "\ud800",
    ],
)  # fmt: skip
def test_damaged_index_is_refused(tmp_path: Path, content: str) -> None:
    run = trained_run(tmp_path / "run")
    run.index_path.write_bytes(content.encode(errors="surrogatepass"))
    for read in (run.index, lambda: find_model(run.path)):
        with pytest.raises(UserError, match=r"checkpoints\.json") as raised:
            read()
        assert "\n" not in str(raised.value)
        assert len(str(raised.value)) < 500


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{" + b" " * 10_000])
def test_undecodable_index_is_refused(tmp_path: Path, content: bytes) -> None:
    run = trained_run(tmp_path / "run")
    run.index_path.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoints\.json"):
        run.index()


def test_index_that_names_a_missing_step_is_refused(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "run", steps=2)
    shutil.rmtree(run.path / step_name(1))
    for read in (run.index, lambda: find_model(run.path)):
        with pytest.raises(UserError, match="step-00000001"):
            read()
    run.index_path.write_text(json.dumps({"steps": [2], "last": 2, "average": average_name(2)}))
    for read in (run.index, lambda: find_model(run.path)):
        with pytest.raises(UserError, match=average_name(2)):
            read()


def test_only_the_checkpoint_in_use_must_be_there(tmp_path: Path) -> None:
    """Who ships a run without its older steps ships a model."""
    run = trained_run(tmp_path / "run", steps=2)
    shutil.rmtree(run.path / step_name(2))
    assert find_model(run.path) == run.step_folder(1)


def test_index_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained_run(tmp_path / "run")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match="permission denied"):
        find_model(run.path)


# --- making -------------------------------------------------------------------------------------------------------


def test_create_makes_parents_and_keeps_what_is_there(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "a" / "b")
    run.check_writable()
    assert not run.path.parent.exists()
    run.create()
    assert not run.exists()
    run.config_path.write_text("data: {}")
    run.create()
    assert run.config_path.read_text() == "data: {}"


@pytest.mark.parametrize("name", ["file", "file/run", "dangling", "dangling/run"])
def test_create_refuses_what_cannot_be_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for make in (RunFolder(tmp_path / name).check_writable, RunFolder(tmp_path / name).create):
        with pytest.raises(UserError, match="choose another with --out"):
            make()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["dangling", "file"]


def test_create_refuses_what_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(UserError, match="not writable"):
        RunFolder(tmp_path / "a" / "b").create()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_not_held(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.path.rename(tmp_path / "run.1")  # as by `--fresh` of another process
    with pytest.raises(UserError, match="run: was renamed or deleted meanwhile; give the command again"), run.lock():
        pass
    (tmp_path / ".lock").symlink_to(tmp_path / "missing" / "lock")
    with pytest.raises(UserError, match="cannot write here"), RunFolder(tmp_path).lock():
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_file_systems_without_locks_can_be_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Failing ones cannot."""

    def lockf(file: object, *how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.lockf", lockf)
    outcome = contextlib.nullcontext() if code == errno.ENOLCK else pytest.raises(OSError, match=os.strerror(code))
    with outcome, RunFolder(tmp_path).lock():
        pass


# --- metrics ------------------------------------------------------------------------------------------------------


def read_events(run: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in run.metrics.path.read_text().split("\n")[:-1]]


def test_metrics_are_strict_json_lines(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics.append({"step": 1, "loss": float("nan"), "text": "ä\n\u2028\ud800"})
    run.metrics.append({"step": 2, "loss": float("inf"), "bleu": 1.5})
    assert read_events(run) == [
        {"step": 1, "loss": None, "text": "ä\n\u2028\ud800"},
        {"step": 2, "loss": None, "bleu": 1.5},
    ]


def test_cut_metrics_goes_back_to_the_step(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.metrics.cut(1)
    assert not run.metrics.path.exists()
    run.metrics.append({"event": "start"})
    for step in range(1, 5):
        run.metrics.append({"step": step})
    run.metrics.cut(2)
    assert read_events(run) == [{"event": "start"}, {"step": 1}, {"step": 2}]
    before = run.metrics.path.stat()
    run.metrics.cut(2)
    assert run.metrics.path.stat().st_ino == before.st_ino


def test_cut_metrics_keeps_no_event_that_comes_again(tmp_path: Path) -> None:
    """Skipped updates from before the step was saved are kept, a validation that it was saved without is not."""
    run = RunFolder(tmp_path)
    losses: list[dict[str, Any]] = [{"step": 1, "valid_loss": 2.0}, {"step": 2, "loss": 1.0}]
    skipped: dict[str, Any] = {"step": 3, "skipped": 1}
    validated: dict[str, Any] = {"step": 2, "valid_loss": 1.0}
    for event in [*losses, validated, skipped, skipped, {"step": 3, "loss": 1.0}]:
        run.metrics.append(event)
    run.metrics.cut(2, skipped=2)
    assert read_events(run) == [*losses, validated, skipped, skipped]
    run.metrics.cut(2, skipped=1, validated=False)
    assert read_events(run) == [*losses, skipped]
    run.metrics.cut(2)
    assert read_events(run) == losses


@pytest.mark.parametrize(
    "torn", [b'{"step": 2', b'{"step": 1}', b"\xff\n", b"[" * 99_999 + b"\n", b"1\n", b'{"step": "x"}\n']
)
def test_cut_metrics_drops_what_a_kill_tore(tmp_path: Path, torn: bytes) -> None:
    run = RunFolder(tmp_path)
    run.metrics.append({"step": 1})
    with open(run.metrics.path, "ab") as file:
        file.write(torn)
    run.metrics.cut(1)
    run.metrics.append({"step": 2})
    assert read_events(run) == [{"step": 1}, {"step": 2}]


def test_a_full_disk_leaves_no_half_event(tmp_path: Path) -> None:
    """Files may have 100 bytes here: the second event does not fit."""
    run = RunFolder(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        run.metrics.append({"step": 1})
        with pytest.raises(OSError, match="No space left"):
            run.metrics.append({"step": 2, "text": "x" * 200})
        run.metrics.append({"step": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_events(run) == [{"step": 1}, {"step": 3}]


@given(
    events=st.lists(
        st.dictionaries(st.text(max_size=3), st.integers() | st.floats() | st.text(max_size=5), max_size=3)
    ),
    step=st.integers(0, 5),
)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cutting_keeps_exactly_the_events_up_to_the_step(
    tmp_path: Path, events: list[dict[str, Any]], step: int
) -> None:
    run = RunFolder(tmp_path)
    run.metrics.path.unlink(missing_ok=True)
    for number, event in enumerate(events):
        run.metrics.append({**event, "step": number})
    run.metrics.cut(step)
    if events:
        assert [event["step"] for event in read_events(run)] == list(range(min(len(events), step + 1)))


def test_a_config_of_the_users_own_is_not_taken_for_a_runs(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.check_own()  # nothing there
    pair = "{source: a, target: b}"
    mine = f"# mine\ndata: {{source_language: de, target_language: en, train: {pair}, valid: {pair}}}\n"
    run.config_path.write_text(mine, encoding="utf-8")
    for text in (mine, "", "not: [a config", "\x00"):
        run.config_path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"it holds config\.yaml"):
            run.check_own()
    run.config_path.write_text(mine, encoding="utf-8")
    run.config_path.write_text(dump_config(load_config(run.config_path)), encoding="utf-8")
    run.check_own()  # a run was killed right after it wrote this


def test_only_our_own_temporaries_are_cleared_away(tmp_path: Path) -> None:
    for name in (".tmp-mine", ".tmp-notes-2024", ".temporary"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    (tmp_path / ".tmp-step-00000001-0123abcd").mkdir()
    RunFolder(tmp_path).clean_temporaries()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".temporary", ".tmp-mine", ".tmp-notes-2024"]
