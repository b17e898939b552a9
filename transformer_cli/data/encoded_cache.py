"""The cache of encoded corpora: what was encoded once is not encoded again. Called by training and evaluation.

A file is used only where its bytes are those that were written, and it appears only once it is whole.
"""

import atexit
import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase, BufferedRandom
from pathlib import Path

import pyarrow as pa
from tqdm import tqdm

from transformer_cli.data.corpora import Corpus
from transformer_cli.data.encoded import (
    CHUNK_PAIRS,
    EncodedChunk,
    EncodedCorpus,
    LinkedCorpus,
    Pair,
    PairEncoder,
    write_chunks,
)
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import atomic_file
from transformer_cli.text.build import in_chunks, map_in_order
from transformer_cli.text.codec import Codecs

FORMAT = 1  # raised whenever the same corpus would be encoded into other bytes


def encode_corpus(
    corpus: Corpus | LinkedCorpus,
    codecs: Codecs,
    *,
    max_length: int,
    keep_text: bool = False,
    linked: bool = False,
    workers: int = 0,
    cache_folder: str | Path | None = None,
    progress: bool = False,
) -> EncodedCorpus:
    """Encode a corpus, or take it from the cache where the same text was encoded in the same way before.

    Pairs with a side of white space alone, or of more than `max_length` tokens, are left out and counted. `keep_text`
    stores the text beside the ids, `linked` the links of a `LinkedCorpus`. `workers` processes share the work where
    there is enough of it. `cache_folder` defaults to `$TFM_CACHE`, else `$XDG_CACHE_HOME/tfm`, else `~/.cache/tfm`.
    `progress` shows a bar, on a terminal.
    Raises `UserError` where the corpus is at fault, or no pair is left.
    """
    content_hash = corpus.content_hash()
    folder = _writable_folder(cache_folder)
    path = folder / f"{_cache_key(content_hash, codecs, max_length, keep_text)}.arrow"
    encoded = _open_cached(path)
    if encoded is None or encoded.has_links != linked:
        _remove_abandoned(folder)
        encoder = PairEncoder(codecs, max_length, keep_text, linked)
        pairs = in_chunks(_watched(corpus, content_hash, progress), CHUNK_PAIRS)
        chunks = map_in_order(encoder, pairs, workers)
        try:
            _publish(path, chunks, encoder.schema)
        except OSError as error:
            raise UserError(
                f"{folder}: cannot write the encoded corpus: {error.strerror or error}; "
                "free some space, or set TFM_CACHE to another folder"
            ) from None
        encoded = EncodedCorpus(path)
    if not len(encoded):
        raise UserError(
            f"{corpus.describe()}: no pair is left: {encoded.left_out_empty:,} have an empty side, "
            f"{encoded.left_out_long:,} have more than {max_length} tokens; raise data.max_length"
        )
    return encoded


def _cache_key(content_hash: str, codecs: Codecs, max_length: int, keep_text: bool) -> str:
    """Return a hash of what the encoded file depends on, and nothing else."""
    parts = [FORMAT, content_hash, codecs.fingerprint, max_length, keep_text]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _open_cached(path: Path) -> EncodedCorpus | None:
    """Return the cached file, or None where there is none, or its bytes are not those that were written."""
    try:
        with path.open("rb") as file:
            whole = _digest_file(path).read_text() == _digest_line(file, path)
        return EncodedCorpus(path) if whole else None
    except (OSError, ValueError, KeyError):  # pa.ArrowInvalid is a ValueError
        return None


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _digest_line(file: BufferedIOBase, path: Path) -> str:
    """Return the line that `sha256sum` prints for a file, which it can check."""
    return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"


def _writable_folder(folder: str | Path | None) -> Path:
    """Return the cache folder; where nothing can be written there, a temporary one that goes with this process."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(folder or os.environ.get("TFM_CACHE") or f"{cache}/tfm").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except (OSError, RuntimeError):  # RuntimeError: no home folder
        temporary = tempfile.mkdtemp(prefix="tfm-cache-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return Path(temporary)


def _remove_abandoned(folder: Path) -> None:
    """Remove what killed processes left half-written a day ago or before."""
    for path in folder.glob("*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > 86_400:
                path.unlink()


def _watched(corpus: Corpus | LinkedCorpus, content_hash: str, progress: bool) -> Iterator[Pair]:
    """Yield the pairs of a corpus, under a progress bar; refuse a corpus that changes meanwhile, since the cache would
    then hold one text under another's name."""
    label = f"encoding {corpus.describe()}"
    pairs: Iterable[Pair] = corpus.pairs()
    yield from tqdm(pairs, desc=label, unit=" pairs", unit_scale=True, disable=None if progress else True)
    if corpus.content_hash() != content_hash:
        raise UserError(f"{corpus.describe()}: changed while it was read; run the command again")


def _publish(path: Path, chunks: Iterable[EncodedChunk], schema: pa.Schema) -> None:
    """Write the file, then its digest: a file without its own digest is not used."""
    with _private_file(path) as file:
        write_chunks(file, chunks, schema)
        file.seek(0)
        line = _digest_line(file, path)
    with _private_file(_digest_file(path)) as file:
        file.write(line.encode())


@contextmanager
def _private_file(path: Path) -> Iterator[BufferedRandom]:
    """Give a file that nobody else can read, for it holds the user's text; it takes its name once it is whole."""
    with atomic_file(path, path.with_name(f"{path.stem}.{secrets.token_hex(4)}.tmp")) as file:
        os.fchmod(file.fileno(), 0o600)
        yield file
