"""How translations are printed: plain text with columns as asked for, a table of fixed columns, or JSON lines.

`tfm translate` makes it of its options; `shards` keeps what it gives. One line of input gives one row, or `n_best`
rows; as JSON always one. Nothing heavy is imported: the help of commands shows what `--format` may be.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformer_cli.decoding.translation import Candidate, Translation

MARK = "[?] "  # before a translation of low confidence
# What some programs take for line ends; json escapes those below U+0020 by itself.
_LINE_ENDS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


class Format(StrEnum):
    """What `--format` may be."""

    TEXT = "text"
    JSON = "json"
    TSV = "tsv"


class Below(StrEnum):
    """What `--below` may be: what becomes of a translation of low confidence."""

    MARK = "mark"
    DROP = "drop"


@dataclass(frozen=True)
class Layout:
    """Which columns are printed, and how."""

    n_best: int = 1
    scores: bool = False
    alignments: bool = False
    format: Format = Format.TEXT
    min_confidence: float | None = None
    below: Below = Below.MARK

    def rows(self, number: int, translation: "Translation") -> list[str]:
        """Return the output lines of input line `number` (from 1): always as many, whatever the search found."""
        found = translation.hypotheses
        chosen = [found[min(rank, len(found) - 1)] for rank in range(self.n_best)]
        if self.format == Format.JSON:
            return [self._object(number, translation)]
        if self.format == Format.TSV:
            return [
                "\t".join(map(_cell, self._table_row(number, rank, translation.line.text, candidate)))
                for rank, candidate in enumerate(chosen, start=1)
            ]
        return ["\t".join(self._columns(number, candidate)) for candidate in chosen]

    def _columns(self, number: int, candidate: "Candidate") -> Iterator[str]:
        if self.n_best > 1:
            yield str(number)
        more = self.n_best > 1 or self.scores or self.alignments
        text = self._text(candidate, mark=True)
        yield text.replace("\t", " ") if more else text
        if self.scores:
            yield f"{candidate.score:.6f}"
        if self.alignments:
            yield pharaoh(candidate)

    def _table_row(self, number: int, rank: int, source: str, candidate: "Candidate") -> Iterator[str]:
        yield str(number)
        yield str(rank)
        yield self._text(candidate, mark=True)
        yield f"{candidate.score:.6f}"
        yield "" if candidate.confidence is None else f"{candidate.confidence:.4f}"
        yield pharaoh(candidate)
        yield source

    def _object(self, number: int, translation: "Translation") -> str:
        found = translation.hypotheses[: self.n_best]
        content = {
            "line": number,
            "source": translation.line.text,
            **self._fields(found[0]),
            "source_tokens": translation.source_tokens,
            "n_best": [self._fields(candidate) for candidate in found] if self.n_best > 1 else None,
        }
        return to_json(content)

    def _fields(self, candidate: "Candidate") -> dict[str, object]:
        """Return what a translation is in JSON. A key is always there; null: not asked for, or not known."""
        alignment = candidate.alignment
        return {
            "translation": self._text(candidate, mark=False),
            "score": round(candidate.score, 6),
            "confidence": _rounded(candidate.confidence),
            "below": None if self.min_confidence is None else self._is_below(candidate),
            "utility": _rounded(candidate.utility),
            "tokens": candidate.tokens,
            "alignment": None if alignment is None else [[place, token] for token, place in enumerate(alignment)],
        }

    def _text(self, candidate: "Candidate", *, mark: bool) -> str:
        if not self._is_below(candidate):
            return candidate.text
        return "" if self.below == Below.DROP else MARK + candidate.text if mark else candidate.text

    def _is_below(self, candidate: "Candidate") -> bool:
        """Return whether its confidence is too low; an empty line's is none."""
        wanted, found = self.min_confidence, candidate.confidence
        return wanted is not None and found is not None and found < wanted and bool(candidate.text)


def pharaoh(candidate: "Candidate") -> str:
    """Return `0-0 1-2 …`: source token i with target token j; empty where nobody asked for it."""
    return " ".join(f"{place}-{token}" for token, place in enumerate(candidate.alignment or ()))


def to_json(content: dict[str, object]) -> str:
    """Return one line, whatever is in it: what some programs take for a line end is escaped."""
    return json.dumps(content, ensure_ascii=False).translate(_LINE_ENDS)


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _cell(text: str) -> str:
    from transformer_cli.text.lines import one_line

    return one_line(text).replace("\t", " ")
