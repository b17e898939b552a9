"""Where text comes from, what is said on the way, and where results go: stdin or a file, stderr, stdout or a file.

A result file appears whole or not at all. Progress is a bar on a terminal, a line now and then anywhere else.
"""

import contextlib
import errno
import io
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Self, cast

from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from tqdm import tqdm

LOG_SECONDS = 30.0
BAR_SECONDS = 0.1
RUN_FILES = (
    "config.yaml",
    "checkpoints.json",
    "metrics.jsonl",
    "origin.json",
    ".lock",
)  # of a run folder, beside its checkpoints


class TextInput:
    """An iterator of lines. Raises `UserError` with name and line where the rest cannot be read."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        from transformer_cli.text.lines import TextLines

        self.reader = TextLines(stream, name, lenient=True)
        self.name = name
        self._stream = stream

    def __iter__(self) -> Iterator[str]:
        return self.reader

    @property
    def is_typed(self) -> bool:
        """Whether somebody sits at a terminal and waits for each answer."""
        return self.name == "stdin" and self._stream.isatty()

    def estimate(self) -> int | None:
        """Return about how many lines there are, from how much of the file was read; None: nobody knows.

        Of a compressed file the compressed bytes count.
        """
        try:
            descriptor = self._stream.fileno()
            size = os.fstat(descriptor).st_size
            plain = isinstance(self._stream, io.BufferedReader)
            position = self._stream.tell() if plain else os.lseek(descriptor, 0, os.SEEK_CUR)
        except OSError:
            return None  # a pipe, a terminal, arguments
        return round(self.reader.number * size / position) if position and size else None

    @property
    def warnings(self) -> list[str]:
        """What was odd in the lines read so far, a sentence each."""
        reader, found = self.reader, []
        if reader.invalid:
            found.append(f"{_lines(reader.invalid)} held invalid UTF-8: what could not be read became U+FFFD")
        if reader.carriage_returns:
            found.append(f"{_lines(reader.carriage_returns)} ended in a carriage return, which was dropped")
        if reader.byte_order_mark:
            found.append("the text began with a byte-order mark, which was dropped")
        return found


@contextlib.contextmanager
def open_input(text: Sequence[str] | None, path: Path | None) -> Iterator[TextInput]:
    """Open the arguments, else the file, else stdin."""
    if text:
        yield TextInput(io.BytesIO(b"".join(os.fsencode(argument) + b"\n" for argument in text)), "TEXT")
    elif path is None or str(path) == "-":
        if sys.stdin is None:
            raise UserError("stdin is closed; give TEXT, or a file with --input")
        yield TextInput(cast(BinaryIO, sys.stdin.buffer), "stdin")
    else:
        from transformer_cli.text.lines import open_bytes

        with open_bytes(path) as stream:
            yield TextInput(stream, str(path))


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


Write = Callable[[str], None]

# All but tab and line feed: C0, DEL and C1, any of which may steer a terminal …
_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f]"
_CONTROLS = re.compile(_CONTROL)
_BUT_OF_BARS = re.compile(rf"(?!\r|\x1b\[A){_CONTROL}")  # … and all but those by which tqdm draws


def shown(text: str) -> str:
    """Return a text as a terminal may get it: its control characters written out, such as `\\x1b`."""
    return _CONTROLS.sub(_written_out, text)


def _written_out(control: re.Match[str]) -> str:
    return control[0].encode("unicode_escape").decode()


class Terminal(io.TextIOWrapper):
    """A stream to a terminal, which no text of the user's can steer."""

    def __init__(self, stream: io.TextIOWrapper, controls: re.Pattern[str] = _CONTROLS) -> None:
        super().__init__(stream.buffer, stream.encoding, stream.errors, line_buffering=True)
        self._controls = controls
        self._stream = stream  # which would close what they share, were it forgotten

    def write(self, text: str) -> int:
        """Write the text, control characters written out."""
        super().write(self._controls.sub(_written_out, text))
        return len(text)


def guard_terminals() -> None:
    """Let stdout and stderr write out control characters where they are terminals; progress bars still work."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.isatty():
        sys.stdout = Terminal(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr.isatty():
        sys.stderr = Terminal(sys.stderr, _BUT_OF_BARS)


def note(text: str) -> None:
    """Write one line to stderr."""
    print(text, file=sys.stderr, flush=True)


def warn(*warnings: str) -> None:
    """Write each sentence to stderr, as a warning."""
    for warning in warnings:
        note(f"warning: {warning}")


class Progress:
    """Counts lines on stderr; says at the end how many there were and how fast, unless the block failed."""

    def __init__(
        self,
        doing: str,
        total: int | None = None,
        quiet: bool = False,
        estimate: Callable[[], int | None] = lambda: None,
    ) -> None:
        """estimate: about how many lines there are, where the total is not known; None: nobody knows."""
        self.doing, self.total, self.quiet, self.done = doing, total, quiet, 0
        self._estimate = estimate
        self._kept = 0
        self._began = self._shown = time.monotonic()
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        if not self.quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, desc=self.doing, unit=" lines", leave=False, dynamic_ncols=True)
        return self

    def __call__(self, done: int, kept: int = 0, expected: int | None = None) -> None:
        """Show that so many lines are done, of about `expected`; `kept` of them by an earlier command, at no speed."""
        new, self.done, self._kept = done - self.done, done, kept
        if expected is not None:
            self._estimate = lambda: expected
        now = time.monotonic()
        if self._bar is not None:
            self._bar.initial = kept
            if now - self._shown >= BAR_SECONDS:
                self._shown = now
                self._bar.total = self._expected()
            self._bar.update(new)
        elif not self.quiet and now - self._shown >= LOG_SECONDS:
            self._shown = now
            note(self._summary(now) + self._left(now))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        if kind is None and not self.quiet:
            note(self._summary(time.monotonic()))

    def _summary(self, now: float) -> str:
        seconds = max(now - self._began, 1e-9)
        of = f" of {self.total:,}" if self.total is not None and self.done < self.total else ""
        lines = "line" if self.done == 1 and not of else "lines"
        before = f" ({self._kept:,} of them before)" if self._kept else ""
        speed = (self.done - self._kept) / seconds
        return f"{self.doing}: {self.done:,}{of} {lines}{before} in {seconds:.1f} s ({speed:.1f} lines/s)"

    def _left(self, now: float) -> str:
        """Return how much of it that is, and how long the rest will take at the speed so far."""
        new, expected = self.done - self._kept, self._expected()
        if expected is None or new <= 0 or expected <= self.done:
            return ""
        from transformer_cli.report.page import duration

        seconds = (expected - self.done) * (now - self._began) / new
        return f", {self.done / expected:.0%}, about {duration(seconds)} left"

    def _expected(self) -> int | None:
        if self.total is not None:
            return self.total
        estimate = self._estimate()
        return None if estimate is None else max(self.done, estimate)


def check_output(
    path: Path | None,
    given: Mapping[str, Any] | None = None,
    *,
    option: str = "output_file",
    in_place: bool = False,
) -> None:
    """Raise `UserError` where a result file could not be written, before time is spent on its content.

    given: all parameters of the command; the results must not take the place of a file that any but `option`, which is
    the result's own, names or has in it. in_place: they may take that of the text, `--input` or stdin.
    """
    if path is None or str(path) in ("-", "/dev/stdout"):
        if sys.stdout is None:
            raise UserError("stdout is closed; open it, or name a file with --output")
        return
    try:
        exists = bool(os.stat(path))
    except FileNotFoundError:
        exists = False
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another place") from None
    if os.path.isdir(path):
        raise UserError(f"{path}: is a folder; name a file to write the results to")
    unchanged = {option, "input_file"} if in_place else {option}
    read = _files_read({name: value for name, value in (given or {}).items() if name not in unchanged})
    if exists and any(os.path.samefile(path, file) for file in read):
        raise UserError(f"{path}: is read, and the results would take its place; name another file for them")
    if exists and not os.access(path, os.W_OK):
        raise UserError(f"{path}: cannot be written: no permission; choose another place")
    folder = Path(os.path.realpath(path)).parent
    if _is_special(path):
        return
    if not os.path.isdir(folder):
        raise UserError(f"{path}: cannot be written: the folder {folder} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"{path}: cannot be written: no permission to write into {folder}; choose another place")
    for above in (folder, *folder.parents):
        if _is_published(above):
            raise UserError(f"{path}: is in {above}, whose files belong together; name a place outside")


def _files_read(given: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the files that a command reads, by its parameters: those in its folders too, and what stdin is."""
    paths = [one for value in given.values() for one in (value if isinstance(value, list) else [value])]
    paths += [Path("/dev/stdin")] * ("input_file" in given and given["input_file"] is None)
    for path in paths:
        if isinstance(path, Path) and os.path.isfile(path):
            yield path
        elif isinstance(path, Path) and os.path.isdir(path) and os.access(path, os.R_OK | os.X_OK):
            whole = _is_published(path)
            for entry in path.iterdir():
                if os.path.isfile(entry) and (whole or entry.name in RUN_FILES):
                    yield entry
                elif os.path.isdir(entry) and (whole or _is_published(entry)):
                    yield from filter(os.path.isfile, entry.rglob("*"))


def _is_published(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, or anything else that is whole or not at all."""
    if not os.path.isfile(folder / "manifest.json"):
        return False
    from transformer_cli.storage.publishing import manifest_names

    try:
        return bool(manifest_names(folder))
    except UserError:
        return False  # another program's


@contextlib.contextmanager
def open_results(path: Path | None, live: bool = False) -> Iterator[Write]:
    """Yield a function that writes one line (without its line end) to stdout, or to `path` (.gz: compressed).

    The file gets its name only when the block ends well: until then it is a hidden sibling, removed on any failure.
    live: every line reaches the reader at once.
    """
    if path is None or str(path) in ("-", "/dev/stdout"):
        check_output(path)
        yield _writer(cast(IO[bytes], sys.stdout.buffer), live, "stdout")
        flush_stdout()
    elif _is_special(path):  # /dev/stdout, /dev/null, a named pipe: nothing to rename
        with _stream(path) as stream:
            yield _writer(stream, live, path)
    else:
        from transformer_cli.storage.publishing import whole_file

        check_output(path)
        with whole_file(path) as write:
            yield write


def write_report(path: Path | None, text: str) -> None:
    """Write a text of many lines as `open_results` does; line feeds alone end them, whatever else is in it."""
    with open_results(path) as write:
        for line in text.removesuffix("\n").split("\n"):
            write(line)


def is_file(path: Path) -> bool:
    """Return whether it names a place for a file (there may be none yet), not a stream."""
    return str(path) != "-" and not _is_special(path)


def _is_special(path: Path) -> bool:
    """Return whether it names a stream, not a place for a file."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _writer(stream: IO[bytes], live: bool, name: Path | str) -> Write:
    is_terminal = stream.isatty()

    def write(line: str) -> None:
        line = shown(line) if is_terminal else line
        with _named(name):
            stream.write(line.encode("utf-8", errors="replace") + b"\n")
            if live:
                stream.flush()

    return write


@contextlib.contextmanager
def _named(name: Path | str) -> Iterator[None]:
    """Let an `OSError` inside name this file: a full disk does not say where by itself."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), str(name)) from error
        raise


@contextlib.contextmanager
def _stream(path: Path) -> Iterator[IO[bytes]]:
    stream = open(path, "wb")  # noqa: SIM115  (closed below)
    try:
        yield stream
        with _named(path):
            stream.close()
    finally:
        with contextlib.suppress(OSError):
            stream.close()


def flush_stdout() -> None:
    """Send out everything printed; the error names stdout where it does not take it."""
    if sys.stdout is not None:
        with _named("stdout"):
            sys.stdout.flush()


def silence(*streams: IO[str] | None) -> None:
    """Keep Python from writing to streams that take nothing more, and failing, again when it exits."""
    for stream in filter(None, streams):
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), stream.fileno())


def has_no_reader(error: BaseException | None) -> bool:
    """Return whether an error says that who reads our output has closed it, as `head` does.

    Pipes between our own processes have no name, and break where one has died: that is an error.
    """
    if not isinstance(error, OSError) or error.errno != errno.EPIPE:
        return False
    return error.filename is not None or any(map(_is_broken, (sys.stdout, sys.stderr)))


def _is_broken(stream: IO[str] | None) -> bool:
    found: list[tuple[int, int]] = []
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no file, or a system without poll
        poll = select.poll()
        poll.register(cast(IO[str], stream), select.POLLERR)
        found = poll.poll(0)
    return bool(found)


def align(rows: Sequence[Sequence[object]], left: int | None = None) -> list[str]:
    """Return rows as lines of columns, two spaces between.

    So many columns are aligned left, the others right; None: right where the last row has a number.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    to_the_right = [
        cell[:1].isdigit() if left is None else place >= left for place, cell in enumerate(cells[-1] if cells else ())
    ]
    lines = []
    for row in cells:
        columns = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_the_right, strict=True)
        ]
        lines.append("  ".join(columns).rstrip())
    return lines
