"""What is published is there whole or not at all, whatever fails; what is read is what was published."""

import errno
import json
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_cli.errors import UserError
from transformer_cli.storage.holding import TEMPORARY
from transformer_cli.storage.publishing import (
    MANIFEST,
    REPLACED,
    atomic_write,
    is_complete,
    locate,
    manifest_names,
    publish,
    read_bytes,
    verify,
)

SYSTEM_CALLS = ("fsync", "replace", "open", "mkdir")


def writer(content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "vocab").mkdir()
        (folder / "vocab" / "words.json").write_text(content)
        (folder / "weights").write_text(content)

    return write


def leftovers(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith((TEMPORARY, REPLACED))]


def fail_at(monkeypatch: pytest.MonkeyPatch, call: int) -> list[str]:
    """Let the call-th (from 0) of the system calls that writing makes find a full disk; returns the calls made."""
    made: list[str] = []

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and args[1] & os.O_NONBLOCK:
                return real(*args, **kwargs)  # to read a file takes no room
            made.append(name)
            if len(made) == call + 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, replacement)

    for name in SYSTEM_CALLS:
        wrap(name)
    return made


def full_disk(action: Callable[[], object]) -> bool:
    """Whether the action says that the disk is full."""
    try:
        action()
    except OSError as error:
        return error.errno == errno.ENOSPC or pytest.fail(f"another error: {error}")
    return False


def test_published_folder_is_complete_and_verified(tmp_path: Path) -> None:
    folder = publish(tmp_path / "step", writer("one"))
    assert folder == tmp_path / "step"
    assert is_complete(folder)
    assert manifest_names(folder) == ["vocab/words.json", "weights"]
    verify(folder, manifest_names(folder))
    assert leftovers(tmp_path) == []


def test_nothing_is_named_before_it_is_whole(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        assert not (tmp_path / "step").exists()
        assert folder.parent.name.startswith(TEMPORARY)
        assert folder.parent.parent == tmp_path
        (folder / "weights").write_text("one")

    publish(tmp_path / "step", write)
    assert (tmp_path / "step" / "weights").read_text() == "one"


def test_files_reach_the_disk_before_the_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and folder is synced, then renamed, then the parent is synced."""
    events: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}") if os.path.isdir("/proc/self/fd") else "?")
        real_sync(descriptor)

    def replace(source: Path, target: Path) -> None:
        events.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    publish(tmp_path / "step", writer("one"))
    before, after = events[: events.index("rename")], events[events.index("rename") + 1 :]
    assert [Path(name).name for name in before[:2]] == ["words.json", "weights"]
    assert Path(before[2]).name == MANIFEST
    assert {Path(name).name.split("-")[0] for name in before[3:]} == {"vocab", "content"}
    assert after[0] == str(tmp_path)


def test_published_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        folder = publish(tmp_path / "step", writer("one"))
        atomic_write(tmp_path / "file", "text")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o750
    for file in (folder / "weights", folder / MANIFEST, tmp_path / "file"):
        assert file.stat().st_mode & 0o777 == 0o640


def test_the_same_content_gives_the_same_manifest(tmp_path: Path) -> None:
    first, second = (publish(tmp_path / name, writer("one")) for name in ("a", "b"))
    assert (first / MANIFEST).read_bytes() == (second / MANIFEST).read_bytes()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), ValueError("bug")])
def test_failing_writer_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    publish(tmp_path / "step", writer("old"))

    def write(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise error

    for name in ("step", "new"):
        with pytest.raises(type(error)):
            publish(tmp_path / name, write)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step"]
    assert (tmp_path / "step" / "weights").read_text() == "old"


@pytest.mark.parametrize("existing", [False, True])
def test_full_disk_at_every_call(tmp_path: Path, existing: bool) -> None:
    """Whichever call fails, the error goes up, and there is the old folder or the new, whole, and nothing else."""
    call, done = 0, False
    while not done:
        base = tmp_path / str(call)
        base.mkdir()
        if existing:
            publish(base / "step", writer("old"))
        with pytest.MonkeyPatch.context() as patch:
            made = fail_at(patch, call)
            error = full_disk(partial(publish, base / "step", writer("new")))
            done = len(made) <= call
        folder = locate(base / "step")
        if error and not folder.exists():
            assert not existing
        else:
            assert is_complete(folder)
            verify(folder, manifest_names(folder))
            assert (folder / "weights").read_text() in (("old", "new") if error and existing else ("new",))
        if error:
            assert not any(name.startswith(TEMPORARY) for name in leftovers(base))
        call += 1
    assert call > 8  # it did fail at many places


def test_atomic_write_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    atomic_write(path, "old ä")
    with open(path, "rb") as reader:
        atomic_write(path, b"new")
        assert reader.read().decode() == "old ä"  # it was never changed, only replaced
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.json"]


def test_atomic_write_fails_without_harm(tmp_path: Path) -> None:
    path = tmp_path / "index.json"
    path.write_text("old")
    call, done = 0, False
    while not done:
        with pytest.MonkeyPatch.context() as patch:
            made = fail_at(patch, call)
            full_disk(lambda: atomic_write(path, "new"))
            done = len(made) <= call
        assert path.read_text() in ("old", "new")
        assert [entry.name for entry in tmp_path.iterdir()] == ["index.json"]
        call += 1
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.write_bytes(b"oNe"), "does not match its manifest: the file is damaged"),
        (lambda file: file.write_bytes(b"on"), "does not match its manifest: the file is damaged"),
        (lambda file: file.unlink(), "cannot be read: No such file"),
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read: Is a directory"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    folder = publish(tmp_path / "step", writer("one"))
    damage(folder / "weights")
    verify(folder, ["vocab/words.json"])
    with pytest.raises(UserError, match=message) as raised:
        verify(folder, ["weights"])
    assert str(folder / "weights") in str(raised.value)
    assert "\n" not in str(raised.value)


def test_file_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    folder = publish(tmp_path / "step", writer("one"))
    (folder / "more").write_text("more")
    with pytest.raises(UserError, match="does not name more"):
        verify(folder, ["more"])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"sha256": []}',
        '{"sha256": {"weights": 1}}',
        '{"sha256": {"weights": "xyz"}}',
        '{"sha256": {"' + "name" * 5000 + '": 1}}',
        "[" * 99999,
    ],
)
def test_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    folder = publish(tmp_path / "step", writer("one"))
    (folder / MANIFEST).write_text(content)
    with pytest.raises(UserError, match=MANIFEST) as raised:
        verify(folder, ["weights"])
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < len(str(folder)) + 200


@pytest.mark.medium
@given(content=st.binary(max_size=80) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_manifest_never_verifies(tmp_path: Path, content: str | bytes) -> None:
    folder = tmp_path / "step"
    if not folder.exists():
        publish(folder, writer("one"))
    (folder / MANIFEST).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError):
        verify(folder, ["weights"])


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_bytes(tmp_path / "file", limit=4) == b"1234"
    with pytest.raises(UserError, match="larger than 3 bytes"):
        read_bytes(tmp_path / "file", limit=3)
    with pytest.raises(UserError, match="cannot be read"):
        read_bytes(tmp_path / "missing")


def test_file_systems_that_sync_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert is_complete(publish(tmp_path / "step", writer("one")))
