"""What is translated in one go: windows of lines, chunks of a line that is longer than the model allows, batches.

`Translator` calls it for every line; nearly all are one chunk. No torch.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from transformer_cli.text.codec import Codec
from transformer_cli.text.sentences import split_sentences

WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "yue"})  # languages written without them
WINDOW_CHARACTERS = 4_000_000  # of a window, so that very long lines stay within memory

T = TypeVar("T")


@dataclass(frozen=True)
class Chunk:
    """A part of a line that the model translates in one go."""

    ids: list[int]  # what the model reads: its tag, if it has one, then its own …
    text: str  # … which were made from this part of the line
    start: int = 0  # the place of the first of its own among the tokens of that
    tag_length: int = 0  # ids of the tag

    @property
    def length(self) -> int:
        """How many tokens of the line it has."""
        return len(self.ids) - self.tag_length


def parts_of(text: str, language: str, *, split: bool) -> list[str]:
    """Return what of a line is translated by itself: its sentences if it is `split`, else all of it."""
    if split and len(sentences := split_sentences(text, language)) > 1:
        return [text[start:end] for start, end in sentences]
    return [text] if text.strip() else []


def cut(
    text: str, ids: list[int], codec: Codec, max_length: int, language: str, tag: Sequence[int] = ()
) -> list[Chunk]:
    """Cut a text into chunks of at most `max_length` tokens: at sentence ends, and a longer sentence at tokens.

    `ids` are those of the whole text; a text without ids gives no chunk. `tag`: ids that every chunk begins with.
    """
    if tag:
        chunks = cut(text, ids, codec, max(1, max_length - len(tag)), language)
        return [replace(chunk, ids=[*tag, *chunk.ids], tag_length=len(tag)) for chunk in chunks]
    if len(ids) <= max_length:
        return [Chunk(ids, text)] if ids else []
    sentences = split_sentences(text, language)
    lengths = [len(sentence_ids) for sentence_ids in codec.encode_batch([text[start:end] for start, end in sentences])]
    chunks = []
    for start, end in _pack(sentences, lengths, max_length):
        # Tokens of sentences and of the text they make together may differ, so that even a pack may be too long.
        part = text[start:end]
        chunks += _cut_at_tokens(part, codec.encode(part), max_length)
    return chunks


def source_words(chunk: Chunk, codec: Codec) -> list[str]:
    """Return the tokens of a chunk, anew from its text: the ids may have lost the very words that are to be copied.

    The tag is none of them."""
    return codec.tokenize(chunk.text)[chunk.start : chunk.start + chunk.length]


def words_read(chunk: Chunk, codec: Codec) -> list[str]:
    """Return the tokens that the model reads of a chunk, one for each id: the tag's, then `source_words`."""
    return [*codec.tokens(chunk.ids[: chunk.tag_length]), *source_words(chunk, codec)]


def join(texts: Sequence[str], language: str) -> str:
    """Join the translations of a line's chunks."""
    return (" " if writes_spaces(language) else "").join(text for text in texts if text)


def writes_spaces(language: str) -> bool:
    """Return whether a language, given by its code, is written with spaces between words."""
    return re.split("[-_]", language)[0].lower() not in WITHOUT_SPACES


def _pack(sentences: Sequence[tuple[int, int]], lengths: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield where neighbouring sentences start and end, as many as make at most `most` tokens."""
    first, total = 0, 0
    for place, length in enumerate(lengths):
        if total and total + length > most:
            yield sentences[first][0], sentences[place - 1][1]
            first, total = place, 0
        total += length
    if sentences:
        yield sentences[first][0], sentences[-1][1]


def _cut_at_tokens(text: str, ids: list[int], max_length: int) -> list[Chunk]:
    """Cut a text into parts of equal lengths, as few as possible."""
    if not ids:
        return []
    parts = math.ceil(len(ids) / max_length)
    size = math.ceil(len(ids) / parts)
    return [Chunk(ids[start : start + size], text, start) for start in range(0, len(ids), size)]


def windows_of(items: Iterable[T], window: int, length: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in groups of `window`, or fewer where they are very long; `length` gives an item's characters."""
    group: list[T] = []
    characters = 0
    for item in items:
        group.append(item)
        characters += length(item)
        if len(group) >= window or characters >= WINDOW_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Yield which sentences go together, longest first: sentences × longest (with `</s>`) is at most `batch_tokens`."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
