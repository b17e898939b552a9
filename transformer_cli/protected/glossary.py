"""A user's glossary: terms of the source language and what each is called in the translation. No torch.

`find_spans` looks for them in a line; `tfm translate --glossary` reads the file.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from transformer_cli.errors import UserError
from transformer_cli.text.lines import read_lines

_WORD = re.compile(r"\w+|[^\w\s]")
_SENTENCE_START = re.compile(r"(?:^|[.!?…:]\s)[\s\"'“”„«»‘’(\[¿¡-]*\Z")


class Term(NamedTuple):
    """Where a term stands in a line, and its translation."""

    start: int
    end: int
    translation: str


class Glossary:
    """Terms, the longest of which counts where several match. A term matches whole words, in the case it is written in.

    One that begins with a small letter also matches with a capital where a sentence begins.
    """

    def __init__(self, translations: Mapping[str, str]) -> None:
        self.translations = dict(translations)
        self._by_first_word: dict[str, list[str]] = {}
        for term in sorted(self.translations, key=len, reverse=True):
            first = _WORD.match(term)
            assert first is not None, "a term is not white space"
            self._by_first_word.setdefault(first[0], []).append(term)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a TSV file (plain or .gz): term, tab, translation. Empty lines and lines with `#` first are comments.

        Raises `UserError` with file and line where a line is anything else, or gives a term another translation.
        """
        translations: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), start=1):
            if not line.strip() or line.startswith("#"):
                continue
            columns = [column.strip() for column in line.split("\t")]
            if len(columns) != 2 or not all(columns):
                raise UserError(f"{path}:{number}: is not a glossary entry; write the term, a tab, and its translation")
            term, translation = columns
            if translations.setdefault(term, translation) != translation:
                raise UserError(
                    f"{path}:{number}: {term!r} is {translations[term]!r} further up; keep one of the two translations"
                )
        return cls(translations)

    def find(self, line: str) -> Iterator[Term]:
        """Yield the terms in a line, from left to right; they do not overlap."""
        end = 0
        for word in _WORD.finditer(line):
            start = word.start()
            if start < end:
                continue
            term = self._longest(line, start, word[0])
            if term is not None:
                end = start + len(term)
                yield Term(start, end, self.translations[term])
            elif word[0] != (small := uncapitalised(word[0])) and _SENTENCE_START.search(line[:start]):
                term = self._longest(line[:start] + small + line[word.end() :], start, small)
                if term is not None:
                    end = start + len(term)
                    yield Term(start, end, capitalised(self.translations[term]))

    def _longest(self, line: str, start: int, first_word: str) -> str | None:
        """Return the longest term at `start` that ends where a word does."""
        for term in self._by_first_word.get(first_word, ()):
            if line.startswith(term, start) and not _inside_word(line, start + len(term)):
                return term
        return None


def occurrences(text: str, words: Iterable[str]) -> int:
    """Return how often any of some texts stands in a text as whole words; capitals at their beginnings don't matter."""
    forms = {form for word in words for form in (word, capitalised(word), uncapitalised(word))}
    choice = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    return len(re.findall(rf"(?<!\w)(?:{choice})(?!\w)", text)) if forms else 0


def capitalised(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def uncapitalised(text: str) -> str:
    """Return the text with a small letter at its beginning."""
    return text[:1].lower() + text[1:]


def _inside_word(line: str, place: int) -> bool:
    """Return whether a word continues over `place`."""
    return bool(re.match(r"\w", line[place : place + 1]) and re.match(r"\w", line[place - 1]))
