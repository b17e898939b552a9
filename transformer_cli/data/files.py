"""Files that are read more than once: one on the disk, or one in a zip archive, which is never unpacked.

The corpora read their bytes and lines from here. A name inside an archive is shown and matched, never used as a path.
"""

import hashlib
import io
import os
import re
import weakref
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, cast

from transformer_cli.config.languages import covers
from transformer_cli.errors import UserError, one_of
from transformer_cli.text.lines import TextLines, open_bytes, read_lines

MOST_TIMES, FREE = 100, 1_000_000  # a file in an archive unpacks to so many times its size, or to so few bytes; text: 3


class LocalFile:
    """A file that will be read more than once. Raises `UserError` where there is no such thing."""

    def __init__(self, path: str | Path):
        self.path, self.name = Path(path), str(path)
        self._hashed: tuple[tuple[int, ...], str] | None = None
        if os.path.exists(self.path) and not os.path.isfile(self.path) and not os.path.isdir(self.path):
            raise UserError(
                f"{path}: is a pipe or device, and it is read more than once; write the text to a file first"
            )
        read_lines(self.path).close()

    def open(self) -> BinaryIO:
        """Open it for reading, decompressed if its name ends in `.gz`."""
        return open_bytes(self.path)

    def lines(self) -> TextLines:
        """Open it for reading line by line."""
        return read_lines(self.path)

    def content_hash(self) -> str:
        """Return the sha256 of the bytes, taken once for as long as the file stays untouched."""
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if self._hashed is None or self._hashed[0] != state:
                    self._hashed = (state, hashlib.file_digest(file, "sha256").hexdigest())
                return self._hashed[1]
        except OSError as error:
            raise UserError(f"{self.path}: cannot read it: {error.strerror}") from None


class Member:
    """A file in a zip archive, read as a stream."""

    def __init__(self, archive: LocalFile, info: zipfile.ZipInfo):
        self.archive, self.path = archive, archive.path
        self.inner = info.filename
        self.name = f"{archive.path}/{info.filename}"
        self._info = info

    def open(self) -> BinaryIO:
        """Open it for reading; `UserError` where it would unpack to far more than a text does, or cannot be read."""
        size, packed = self._info.file_size, self._info.compress_size
        if size > FREE + MOST_TIMES * packed:  # zipfile gives no more than the size that is said here
            raise UserError(
                f"{self.name}: {packed:,} bytes would unpack to {size:,}, so it is not text, but made to fill a "
                "disk; if you trust it, unpack it and name its files"
            )
        return cast(BinaryIO, io.BufferedReader(_Unpacked(self.path, self._info), 1 << 16))

    def lines(self) -> TextLines:
        """Open it for reading line by line."""
        stream = self.open()
        lines = TextLines(stream, self.name)
        weakref.finalize(lines, stream.close)  # where reading stops half-way
        return lines

    def content_hash(self) -> str:
        """Return a hash of the archive and the name in it."""
        return hashlib.sha256(f"zip {self.archive.content_hash()} {self.inner!r}".encode()).hexdigest()


class _Unpacked(io.RawIOBase):
    """The bytes of a file in an archive; what is damaged raises `OSError` in words."""

    def __init__(self, path: Path, info: zipfile.ZipInfo):
        try:
            self._archive = zipfile.ZipFile(path)
            self._file = self._archive.open(info)
        except RuntimeError:  # as zipfile says it
            raise UserError(f"{path}/{info.filename}: has a password; unpack it and name its files") from None
        except Exception as error:  # of a dozen kinds
            raise UserError(f"{path}/{info.filename}: {_damage(error)}") from None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise OSError(_damage(error)) from None
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
            self._archive.close()
        super().close()


def _damage(error: Exception) -> str:
    reason = " ".join(str(error).split())[:100] or type(error).__name__
    return f"the zip data is damaged, or packed as Python cannot unpack it ({reason}); copy the file again"


def read_members(path: str | Path) -> list[Member]:
    """Return the files in a zip archive that a person put there; `UserError` where it is none, or has none."""
    archive = LocalFile(path)
    try:
        with zipfile.ZipFile(archive.path) as opened:
            infos = opened.infolist()
    except Exception as error:
        raise UserError(f"{path}: is not a zip archive, or it is cut off ({error}); copy the file again") from None
    found = [info for info in infos if not info.is_dir() and not re.search(r"^__MACOSX/|(^|/)\.[^/]*$", info.filename)]
    if not found:
        raise UserError(f"{path}: the archive is empty; copy it again")
    return [Member(archive, info) for info in found]


def read_pairs_of_members(path: str | Path, languages: tuple[str, str]) -> list[tuple[Member, Member]]:
    """Return each pair of files in a zip archive that have one name but for its end, a language: `a.de` and `a.en`.

    Raises `UserError` where there is none.
    """
    members = read_members(path)
    sides: list[dict[str, Member]] = [{}, {}]
    for member in members:
        stem, _, tag = member.inner.removesuffix(".txt").rpartition(".")
        for side, language in zip(sides, languages, strict=True):
            if covers(language, tag):
                side[stem] = member
    pairs = [(member, sides[1][stem]) for stem, member in sides[0].items() if stem in sides[1]]
    if not pairs:
        names = one_of([member.inner for member in members], last="and")
        raise UserError(
            f"{path}: has no pair of files whose names end in .{languages[0]} and .{languages[1]} and are equal before "
            f"that; it has {names}"
        )
    return pairs


def find_tmx(path: str | Path) -> LocalFile | Member:
    """Return the file to read TMX from: the one named, or the only `.tmx` in it where that is a zip archive."""
    if not str(path).lower().endswith(".zip"):
        return LocalFile(path)
    found = [member for member in read_members(path) if member.inner.lower().endswith(".tmx")]
    if len(found) != 1:
        raise UserError(f"{path}: has {len(found)} files that end in .tmx, not one; unpack it and name the file")
    return found[0]
