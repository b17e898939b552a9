"""Where results go: stdout, or a file that appears whole or not at all. Notes go to stderr.

Called by the commands; everything here is about the shell, nothing about translation.
"""

import contextlib
import gzip
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from transformer_cli.errors import UserError

Write = Callable[[str], None]


def note(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def check_output(path: Path | None) -> None:
    """Raise `UserError` where a result file could not be written, before time is spent on its content."""
    if path is None or _is_special(path):
        return
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name a file to write the results to")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise UserError(f"{path}: cannot be written: there is no folder {folder}; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot be written: no permission to write into {folder}; choose another place")


@contextlib.contextmanager
def open_results(path: Path | None, live: bool = False) -> Iterator[Write]:
    """A function that writes one line (without its line end) to stdout, or to `path` (.gz: compressed).

    The file gets its name only when the block ends well: until then it is a hidden sibling, removed on any failure.
    live: every line reaches the reader at once.
    """
    if path is None or str(path) in ("-", "/dev/stdout"):
        yield _writer(cast(IO[bytes], sys.stdout.buffer), live)
        sys.stdout.flush()
    elif _is_special(path):  # /dev/stdout, /dev/null, a named pipe: nothing to rename
        with open(path, "wb") as stream:
            yield _writer(stream, live)
    else:
        check_output(path)
        with _whole_file(Path(os.path.realpath(path))) as stream:
            yield _writer(stream, live)


def _is_special(path: Path) -> bool:
    """Whether it names a stream, not a place for a file."""
    return str(path) in ("-", "/dev/stdout") or (path.exists() and not path.is_file() and not path.is_dir())


def _writer(stream: IO[bytes], live: bool) -> Write:
    def write(line: str) -> None:
        stream.write(line.encode("utf-8", errors="replace") + b"\n")
        if live:
            stream.flush()

    return write


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            if path.exists():
                os.chmod(temporary, path.stat().st_mode & 0o777)
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def silence_stdout() -> None:
    """Nothing more can be written to stdout: keep Python from trying, and failing, again when it exits."""
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())


def align(rows: Sequence[Sequence[object]]) -> list[str]:
    """Rows as lines of columns, two spaces between; to the right where the last row has a number, else to the left."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = [cell[:1].isdigit() for cell in cells[-1]]
    lines = []
    for row in cells:
        columns = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ]
        lines.append("  ".join(columns).rstrip())
    return lines
