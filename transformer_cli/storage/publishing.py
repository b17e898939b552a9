"""Files, folders and lines that are there whole or not at all, and the hashes that show it later.

`run_folder` and `checkpoint` write and read through it. A folder is published with a manifest, its last file.
"""

import contextlib
import errno
import functools
import gzip
import hashlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import Field, TypeAdapter, ValidationError

from transformer_cli.errors import UserError
from transformer_cli.storage.holding import clean, open_regular, temporary

_times: Counter[str] = Counter()


def reach(name: str) -> None:
    """Kill the process by SIGKILL where the environment names this spot (TFM_FAILPOINT): for tests of kills."""
    wanted = os.environ.get("TFM_FAILPOINT")
    if wanted is None:
        return
    _times[name] += 1
    spot, _, number = wanted.partition("@")
    if spot == name and _times[name] == int(number or 1):
        os.kill(os.getpid(), signal.SIGKILL)


MANIFEST = "manifest.json"
MAX_JSON_BYTES = 50_000_000
REPLACED = ".replaced-"  # complete: what a folder was until its successor stands

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class _Manifest:
    sha256: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


@contextlib.contextmanager
def atomic_file(path: Path, name: Path | None = None) -> Iterator[BufferedRandom]:
    """Give a new file that replaces `path` once the block has ended well and it is on the disk.

    On any failure it is removed, and what `path` was stays. An `OSError` of its own names the path, or `name`.
    """
    with contextlib.ExitStack() as stack:
        with naming(name or path):
            place = stack.enter_context(temporary(path))
            file = open(place, "x+b")  # noqa: SIM115  (closed below)
        try:
            yield file
            with naming(name or path):
                file.flush()
                os.fsync(file.fileno())
                file.close()
                os.replace(place, path)
        finally:
            with contextlib.suppress(OSError):
                file.close()


def atomic_write(path: str | Path, content: str | bytes) -> None:
    """Give the file this content, on the disk when this returns; at any kill it has the old content or the new.

    Raises `OSError` that names the file; the old one stays then, and nothing half-written with it.
    """
    path = Path(path)
    with naming(path):
        with atomic_file(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        sync_folder(path.parent)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Callable[[str], None]]:
    """Give a function that writes one line (without its line end) to a file, compressed where it is called .gz.

    The file gets its name, in the place of an older one, only when the block ends well: until then it is a hidden
    sibling, removed on any failure. A link is followed. Raises `OSError` that names the path.
    """
    real = Path(os.path.realpath(path))
    clean(real.parent)
    with atomic_file(real, path) as file:
        packed = None
        if real.suffix == ".gz":  # with nothing in it that says when
            packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)

        def write(line: str) -> None:
            with naming(path):
                (packed or file).write(line.encode("utf-8", errors="replace") + b"\n")

        try:
            yield write
            with naming(path):
                if packed is not None:
                    packed.close()
                if real.exists():
                    os.fchmod(file.fileno(), real.stat().st_mode & 0o777)
        except BaseException:
            with contextlib.suppress(OSError):
                if packed is not None:
                    packed.close()
            raise


def publish(folder: Path, write: Callable[[Path], None], *, replace: bool = True) -> Path:
    """Let `write` fill a temporary folder, add its manifest, and rename it to `folder` once all is on the disk.

    replace: one of that name gives way, if it is ours (`is_ours`): it is renamed aside first (`locate` finds it there
    if a kill comes in between), and deleted last. What `write` or the disk raises goes up (`OSError` naming the
    folder), with the temporary removed and the old folder back.
    """
    clean(folder.parent)
    replaced = folder.with_name(REPLACED + folder.name)
    with naming(folder), temporary(folder) as place:
        place.mkdir()
        write(place)
        reach("before-fsync")
        _write_manifest(place)
        reach("after-fsync")
        try:
            if replace and os.path.lexists(folder):
                if not is_ours(folder, place):
                    raise FileExistsError(errno.EEXIST, "holds what tfm did not write, so it is not replaced")
                remove(replaced, folder)
                os.replace(folder, replaced)
            os.replace(place, folder)
        except BaseException:
            if locate(folder) == replaced:
                with contextlib.suppress(OSError):  # `locate` finds it under that name too
                    os.replace(replaced, folder)
            raise
        reach("after-rename")
        sync_folder(folder.parent)
    remove(replaced, folder)
    return folder


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an `OSError` inside name the path that the user knows, not a temporary one or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write_manifest(folder: Path) -> None:
    """Hash every file and bring it to the disk; then the manifest, then the folders."""
    hashes = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with open(file, "rb") as content:
            hashes[file.relative_to(folder).as_posix()] = hashlib.file_digest(content, "sha256").hexdigest()
            os.fsync(content.fileno())
    with open(folder / MANIFEST, "x", encoding="utf-8") as manifest:
        json.dump(asdict(_Manifest(hashes)), manifest, indent=2)
        manifest.flush()
        os.fsync(manifest.fileno())
    for inner in [path for path in folder.rglob("*") if path.is_dir()]:
        sync_folder(inner)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise  # else: a file system (some network ones) that syncs no folders
    finally:
        os.close(descriptor)


def is_ours(folder: Path, successor: Path | None = None) -> bool:
    """Return whether a folder holds nothing but files that its manifest names, and its hashes confirm: it may go.

    successor: what takes its place, and may have taken over a file that the folder's own manifest does not name.
    """
    manifests = [one for one in (folder, successor) if one is not None and is_complete(one)]
    try:
        hashes = [manifest_hashes(one) for one in manifests]
        for path in folder.rglob("*"):
            name = path.relative_to(folder).as_posix()
            if (name != MANIFEST or folder not in manifests) and (path.is_symlink() or not path.is_dir()):
                found = _sha256(path)
                if all(known.get(name) != found for known in hashes):
                    return False
    except (OSError, UserError):
        return False
    return folder.is_dir() and not folder.is_symlink()


def remove(folder: Path, successor: Path | None = None) -> None:
    """Delete a published folder, never half of it under its own name; one that is not all ours stays (`is_ours`)."""
    if is_ours(folder, successor):
        with contextlib.suppress(OSError), temporary(folder) as place:
            os.replace(folder, place)
            reach("pruning")


def _sha256(path: Path) -> str:
    with open_regular(path) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# --- reading ------------------------------------------------------------------------------------------------------


def locate(folder: Path) -> Path:
    """Return the folder itself, or what it was before, where a kill came between the two renames of `publish`."""
    replaced = folder.with_name(REPLACED + folder.name)
    return replaced if os.path.lexists(replaced) and not os.path.lexists(folder) else folder


def is_complete(folder: Path) -> bool:
    """Return whether the folder was published whole (its manifest is written last)."""
    return os.path.isfile(folder / MANIFEST)


def manifest_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a published folder, as its manifest has them; `UserError` where it has none."""
    return read_json(folder / MANIFEST, _Manifest).sha256


def manifest_names(folder: Path) -> list[str]:
    """Return the files that a published folder had, as its manifest names them."""
    return sorted(manifest_hashes(folder))


def verify(folder: Path, names: Iterable[str] | None = None) -> None:
    """Check each file, or all, against its hash in the manifest, before anything reads it; `UserError` where they
    differ."""
    hashes = manifest_hashes(folder)
    for name in sorted(hashes) if names is None else names:
        if name not in hashes:
            raise UserError(f"{folder / MANIFEST}: does not name {name}; copy the folder again")
        try:
            found = _sha256(folder / name)
        except OSError as error:
            raise UserError(f"{folder / name}: cannot be read: {error.strerror}; copy it again") from None
        if found != hashes[name]:
            raise UserError(f"{folder / name}: does not match its manifest: the file is damaged; copy it again")


def read_bytes(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the whole of a small file; `UserError` where it cannot be read or is larger than `limit`."""
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; copy it again") from None
    if len(content) > limit:
        raise UserError(f"{path}: is larger than {limit:,} bytes, so it is damaged; copy it again")
    return content


@functools.cache  # making one takes longer than reading most files
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_json(path: Path, kind: type[Parsed]) -> Parsed:
    """Return a JSON file as an object of this dataclass, every type checked; `UserError` where it is anything else."""
    try:
        parsed: Parsed = _adapter(cast(Hashable, kind)).validate_json(read_bytes(path), strict=True)
        return parsed
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:60]
        raise UserError(f"{path}: is damaged ({where}{': ' * bool(where)}{first['msg']}); copy it again") from None
