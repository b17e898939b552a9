"""CTranslate2's form of a checkpoint, made once and kept in the user's cache. `engines` calls it; no torch to find it.

It lies in `$TFM_CACHE`, else `$XDG_CACHE_HOME/tfm`, else `~/.cache/tfm`, as `ctranslate2/KEY`: never beside the
checkpoint, whose files are hashed and may be read-only. It may be deleted at any time.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from transformer_cli.errors import UserError
from transformer_cli.storage.holding import temporary
from transformer_cli.storage.publishing import manifest_hashes, publish, remove, verify
from transformer_cli.storage.run_folder import CONFIG, WEIGHTS

FORMAT = 1  # raised whenever the same checkpoint would be written in another way
KEPT = 10  # models; those used longest ago go first
KEY = re.compile("[0-9a-f]{32}")


def cached_model(folder: Path) -> tuple[Path, bool]:
    """Return the CTranslate2 folder of a checkpoint folder, whole and verified, and whether it had to be made.

    Several processes may ask at once. Raises `UserError` where the checkpoint is damaged, or cannot become such a
    model; `OSError` where the cache cannot be written.
    """
    place = cache_folder() / _key(folder)
    if _is_whole(place):
        return place, False
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock(place.parent / ".lock"):
        if _is_whole(place):  # another process made it meanwhile
            return place, False
        from transformer_cli.codecs import load_text_side
        from transformer_cli.decoding.engines.ctranslate2_model import build_spec, write_model

        config, codecs = load_text_side(folder)
        spec = build_spec(folder, config, codecs)
        with contextlib.suppress(FileNotFoundError), temporary(place) as old:
            os.replace(place, old)  # damaged; that name, in tfm's own cache, has nobody else's
        publish(place, lambda temporary: write_model(temporary, spec, config))
        _prune(place)
    return place, True


def cache_folder() -> Path:
    """Return where such models are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(os.environ.get("TFM_CACHE") or f"{cache}/tfm").expanduser() / "ctranslate2"
    except RuntimeError:
        raise OSError("there is no home folder for the cache; set TFM_CACHE") from None


def _key(folder: Path) -> str:
    """Return a hash of all that the model depends on: weights, config and vocabulary, by the checkpoint's manifest."""
    import ctranslate2

    hashes = manifest_hashes(folder)
    own = {name: value for name, value in hashes.items() if name in (CONFIG, WEIGHTS) or name.startswith("vocab/")}
    if WEIGHTS not in own:
        raise UserError(f"{folder}: its manifest does not name {WEIGHTS}; copy the folder again")
    parts = [FORMAT, ctranslate2.__version__, sorted(own.items())]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _is_whole(place: Path) -> bool:
    """Return whether a model is there and undamaged; if so, it counts as used now."""
    try:
        verify(place)
    except UserError:
        return False
    with contextlib.suppress(OSError):
        os.utime(place)
    return True


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold the cache while a model is made, so that one process does the work and the others wait for it."""
    with open(path, "a", encoding="utf-8") as file:
        with contextlib.suppress(ImportError, OSError):  # without locks two may do the same work, and nothing worse
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _prune(made: Path) -> None:
    """Remove the models used longest ago, but not the one just made. Call it with the lock held."""
    ages: list[tuple[float, Path]] = []
    for entry in made.parent.iterdir():
        with contextlib.suppress(OSError):
            if entry != made and KEY.fullmatch(entry.name):
                ages.append((entry.stat().st_mtime, entry))
    for _, entry in sorted(ages, reverse=True)[KEPT - 1 :]:
        remove(entry)
