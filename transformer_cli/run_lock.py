"""The lock of a run folder: one training process holds it, and it goes with that process, however that ends."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from transformer_cli.errors import UserError

LOCK = ".lock"


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock file `path` of a run folder, and remove it at the end.

    Raises `UserError` where another process holds it, or the folder cannot be written to.
    """
    with contextlib.ExitStack() as stack:
        while True:
            try:
                file = stack.enter_context(open(path, "a", encoding="utf-8"))
            except OSError as error:
                raise not_writable(path.parent, error) from None
            _take(file, path.parent)
            if _is_open(file, path):
                break  # else: its holder removed it after we had opened it
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                if _is_open(file, path):  # else: the folder was renamed, and this is another's
                    path.unlink()


def not_writable(folder: Path, error: OSError) -> Exception:
    """The user's fault, but for a full or failing disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        return error
    return UserError(f"{folder}: cannot write here: {error.strerror}; choose another folder with --out")


def _take(file: IO[str], folder: Path) -> None:
    import fcntl  # training only: where a system has none, models can still be used

    try:
        # Not flock: data workers would inherit it, and hold it for seconds after a killed trainer.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise UserError(
                f"{folder}: another tfm is training here; wait for it, or choose another folder with --out"
            ) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise  # else: a file system without locks; to train without one beats not to train


def _is_open(file: IO[str], path: Path) -> bool:
    """Whether the path still leads to the file that is open."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
