"""Text in one language, from which a model of the other direction is to make training pairs. No torch.

It is read twice: once to choose the lines that are worth it, of which a byte and a hash each stay in memory, and once
for these lines.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from transformer_cli.data.corpora import dropped
from transformer_cli.data.files import LocalFile
from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.data.quality.repeats import NearTexts, came_before
from transformer_cli.data.quality.words import Hashes, Words
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec
from transformer_cli.text.lines import with_bar

PART = 5_000  # lines that are judged together
LEAST_SHARE = 0.5  # of the lines that are in the language expected
REASONS = {  # why a line is left out; 0: it stays
    1: "empty",
    2: "longer than the model takes",
    3: "in the language that the model writes",
    4: "in valid or test, or nearly",
    5: "repeated",
}
EMPTY, LONG, OTHER, HELD_OUT, REPEATED = REASONS


class Monolingual:
    """The lines of some text files that are worth translating: a `Corpus` of sources without targets."""

    def __init__(
        self,
        paths: Sequence[Path],
        codec: Codec,
        max_length: int,
        *,
        held_out: Sequence[str] = (),
        languages: LanguageIdentifier | None = None,
        progress: bool = False,
    ) -> None:
        """codec: the model's for its source side. held_out: texts that are left out, and whatever is near one of them.

        languages: what tells the model's apart. Raises `UserError` where a file cannot be read twice.
        """
        self.files = [LocalFile(path) for path in paths]
        self.notes: list[str] = []
        self._codec, self._max_length = codec, max_length
        self._held_out, self._languages, self._progress = held_out, languages, progress

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield each line that is worth it, beside no text. Raises `UserError` for faulty text, and where none is."""
        for line, reason in zip(self._lines(), self.reasons, strict=True):
            if not reason:
                yield line, ""

    @cached_property
    def reasons(self) -> NDArray[np.int8]:
        """Why each line is left out, by `REASONS`; 0: it stays. (N,)"""
        words = Words.of(self._held_out)
        held_out = words.texts, NearTexts(words)
        lines = with_bar(self._lines(), "reading", self._progress, unit="lines")
        reasons: list[NDArray[np.int8]] = []
        hashes: list[Hashes] = []
        while part := list(islice(lines, PART)):
            words = Words.of(part)
            hashes.append(words.texts)
            reasons.append(self._judge(part))
            shared = np.isin(hashes[-1], held_out[0]) | held_out[1].find(words)
            reasons[-1][shared & (reasons[-1] == 0)] = HELD_OUT
        if not reasons:
            raise UserError(f"{self.describe()}: has no lines; give text to translate")
        found = np.concatenate(reasons)
        rest = np.flatnonzero(found == 0)
        found[rest[came_before(np.concatenate(hashes)[rest])]] = REPEATED
        self._check(found)
        return found

    @property
    def left_out(self) -> str:
        """How many lines there are, and how many of them are left out for which reason, in words."""
        counts = np.bincount(self.reasons, minlength=len(REASONS) + 1)
        found = [f"{count:,} {REASONS[reason]}" for reason, count in enumerate(counts) if reason and count]
        lines = "1 line" if len(self.reasons) == 1 else f"{len(self.reasons):,} lines"
        return f"{lines}; left out: {', '.join(found) or 'none'}"

    def content_hash(self) -> str:
        """Return a hash of the files, and of what is left out of them."""
        parts = [[file.content_hash() for file in self.files], self._max_length, sorted(self._held_out)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def describe(self) -> str:
        """Return the files' names."""
        return " and ".join(file.name for file in self.files)

    def _lines(self) -> Iterator[str]:
        notes = []
        for file in self.files:
            with file.lines() as lines:
                yield from lines
                notes += dropped(lines)
        self.notes = notes

    def _judge(self, lines: Sequence[str]) -> NDArray[np.int8]:
        """Return what is wrong with each line by itself."""
        lengths = np.array([len(ids) for ids in self._codec.encode_batch(lines)])
        reasons = np.zeros(len(lines), dtype=np.int8)
        if self._languages is not None:
            reasons[self._languages.is_other(self._languages.score(lines, 0), 0)] = OTHER
        reasons[lengths > self._max_length] = LONG
        reasons[[not line.strip() for line in lines]] = EMPTY
        return reasons

    def _check(self, reasons: NDArray[np.int8]) -> None:
        """Raise `UserError` where the text is not what the model translates, or nothing is left of it."""
        expected, other = np.count_nonzero(reasons != EMPTY), np.count_nonzero(reasons == OTHER)
        if self._languages is not None and other > LEAST_SHARE * expected:
            source, target = self._languages.languages
            raise UserError(
                f"{self.describe()}: most lines are in {target}, but the model translates {source} into {target};"
                f" give text in {source}, or a model of the other direction"
            )
        if not np.count_nonzero(reasons == 0):
            counts = [f"{np.count_nonzero(reasons == reason):,} {name}" for reason, name in REASONS.items()]
            raise UserError(f"{self.describe()}: no line is left to translate ({', '.join(counts)}); give more text")
