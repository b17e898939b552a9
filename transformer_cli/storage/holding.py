"""Who writes where: the lock of a folder, and temporary places that are known to be ours once their process is gone.

`publishing` writes through such a place; a run, and the parts of a long translation, are held by a lock. A name alone
proves nothing: a temporary place is a folder with a mark in it, which its process keeps locked for as long as it lives.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import IO

from transformer_cli.errors import UserError

TEMPORARY = ".tmp-"  # half-written, or half-deleted: nobody reads it
TEMPORARY_NAME = re.compile(rf"{re.escape(TEMPORARY)}.+-[0-9a-f]{{8}}", re.DOTALL)
MARK, CONTENT = "mark", "content"
MARKED = "tfm writes here; when it has ended, this folder may be deleted\n"
HOLDER = re.compile(r"process [0-9]{1,10} on [\w.-]{1,100}(, share [0-9/]+)?")


def open_regular(path: Path, flags: int = os.O_RDONLY) -> BufferedReader:
    """Open a file, and nothing that might never end or answer: `OSError` for a pipe, a device or a folder."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


# --- temporary places ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Give a free name on the disk of `path`; what has it at the end of the block is deleted. Raises `OSError`."""
    place = path.with_name(f"{TEMPORARY}{path.name[:50]}-{secrets.token_hex(4)}")  # names end at 255 bytes
    with contextlib.ExitStack() as stack:
        stack.callback(delete, place)  # from before it is there: an interruption may come as soon as it is
        place.mkdir()
        mark = stack.enter_context(open(place / MARK, "x", encoding="utf-8"))
        _lock_mark(mark)
        mark.write(MARKED)
        mark.flush()
        yield place / CONTENT


def clean(folder: Path, *, alone: bool = False) -> None:
    """Delete the temporary places in a folder whose processes are gone.

    alone: nobody else writes there now, so those count too that a kill left before their mark was whole.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if TEMPORARY_NAME.fullmatch(name):
                with contextlib.suppress(OSError):
                    _clean(folder / name, alone)


def _clean(place: Path, alone: bool) -> None:
    names = {*os.listdir(place)}
    if alone and not names:
        place.rmdir()
    if MARK not in names or not names <= {MARK, CONTENT}:
        return
    with open_regular(place / MARK, os.O_RDWR) as mark:
        text = mark.read(len(MARKED) + 1).decode("utf-8", errors="replace")
        begun = alone and MARKED.startswith(text) and CONTENT not in names
        if (text == MARKED or begun) and (alone or _lock_mark(mark)):
            delete(place)


def _lock_mark(mark: IO[str] | BufferedReader) -> bool:
    """Lock it, if nobody else has it; False also where there are no locks, so that nobody's end can be known."""
    try:
        import fcntl

        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def delete(place: Path) -> None:
    """Delete a temporary place, its mark last; what cannot be deleted now, `clean` takes later."""
    shutil.rmtree(place / CONTENT, ignore_errors=True)
    with contextlib.suppress(OSError):
        (place / CONTENT).unlink(missing_ok=True)
        (place / MARK).unlink(missing_ok=True)
        place.rmdir()


# --- locks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lock:
    """The lock file of a folder, held."""

    file: BufferedReader
    path: Path
    holder: str = ""  # our line in it; "" where it could not be written

    def is_there(self) -> bool:
        """Return whether it is still held: else the folder was renamed, or somebody deleted the file; or our machine
        could not be reached for so long that a file server gave the lock to another, who wrote a line in it."""
        try:
            same = os.path.samestat(os.fstat(self.file.fileno()), os.stat(self.path))
            return same and (not self.holder or self.holder in self.holders())
        except OSError:
            return False

    def holders(self) -> list[str]:
        """Return the lines of those that took it; of shares that have ended, too."""
        return os.pread(self.file.fileno(), 1_000_000, 0).decode("utf-8", errors="replace").splitlines()

    def wait_for_others(self) -> None:
        """Hold it alone, as soon as those that hold other shares have ended."""
        import fcntl

        with contextlib.suppress(OSError):  # no locks here
            fcntl.lockf(self.file, fcntl.LOCK_EX)


@contextlib.contextmanager
def hold(path: Path, doing: str, instead: str, share: tuple[int, int] = (0, 1)) -> Iterator[Lock]:
    """Hold a lock file, and remove it at the end; the lock goes with the process anyhow.

    doing, instead: for who finds it held. share: (i, n), only the i-th of n shares, counted from 0. Raises `UserError`
    where another process holds it, or its folder is gone or cannot be written to; `OSError` where it goes later.
    """
    with contextlib.ExitStack() as stack:
        while True:
            try:
                file = stack.enter_context(open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND))
            except OSError as error:
                if error.errno == errno.ENOENT and not os.path.lexists(path):  # as by `--fresh` of another process
                    raise UserError(
                        f"{path.parent}: was renamed or deleted meanwhile; give the command again, or {instead}"
                    ) from None
                raise not_writable(path.parent, error) from None
            lock = Lock(file, path)
            lock = replace(lock, holder=_take(lock, doing, instead, share))
            if lock.is_there():
                break  # else: its holder removed it after we had opened it
        try:
            yield lock
        except (OSError, UserError) as error:
            if lock.is_there():
                raise
            gone = (
                f"was renamed, moved or deleted while tfm was {doing} there; put it back and give the command again "
                "(or another tfm has taken it over; wait for that one)"
            )
            raise OSError(errno.ENOENT, gone, str(path.parent)) from error
        finally:
            if lock.is_there() and _lock_range(file, (0, 1)):  # else: another share is still held
                with contextlib.suppress(OSError):
                    path.unlink()


def _take(lock: Lock, doing: str, instead: str, share: tuple[int, int]) -> str:
    """Lock it, write our line into it, and return that."""
    held = not _lock_range(lock.file, share)
    lines = lock.holders()
    if not all(map(HOLDER.fullmatch, lines)):
        raise UserError(f"{lock.path}: is not a lock of tfm's; move it away, or {instead}")
    own = f", share {share[0] + 1}/{share[1]}" if share[1] > 1 else ""
    if held:
        holders = [line for line in lines if line.endswith(own)] or lines
        who = f" ({holders[-1]})" if holders else ""
        raise UserError(f"{lock.path.parent}: another tfm is {doing} here{who}; wait for it, or {instead}")
    host = re.sub(r"[^\w.-]", "-", socket.gethostname())[:100] or "localhost"
    line = f"process {os.getpid()} on {host}{own}"
    try:
        if not own:
            os.ftruncate(lock.file.fileno(), 0)
        whole = os.write(lock.file.fileno(), f"{line}\n".encode()) == len(line) + 1
    except OSError:
        whole = False
    return line if whole else ""  # on a full disk it is a lock all the same


def _lock_range(file: BufferedReader, share: tuple[int, int]) -> bool:
    """Lock the whole file, or the byte that stands for a share; return whether nobody else has it."""
    import fcntl  # where a system has none, models can still be used

    number, count = share
    start, length = (count * (count - 1) // 2 + number, 1) if count > 1 else (0, 0)
    try:
        # Not flock, which `filelock` takes too: data workers would inherit it, and hold it for seconds after a killed
        # trainer.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise  # else: a file system without locks; to train without one beats not to train
    return True


def not_writable(folder: Path, error: OSError) -> Exception:
    """Return the user's fault, but for a full or failing disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return error
    return UserError(f"{folder}: cannot write here: {error.strerror}; choose another folder with --out")
