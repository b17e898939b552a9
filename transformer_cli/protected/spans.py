"""A user's glossary: terms of the source language and what each is called in the translation. No torch.

`protected` finds the terms in a line; `tfm translate --glossary` reads the file.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

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
            assert first is not None, "a term is no white space"
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
                raise UserError(f"{path}:{number}: is no glossary entry; write the term, a tab, and its translation")
            term, translation = columns
            if translations.setdefault(term, translation) != translation:
                raise UserError(
                    f"{path}:{number}: {term!r} is {translations[term]!r} further up; keep one of the two translations"
                )
        return cls(translations)

    def find(self, line: str) -> Iterator[Term]:
        """The terms in a line, from left to right; they do not overlap."""
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
        """The longest term at `start` that ends where a word does."""
        for term in self._by_first_word.get(first_word, ()):
            if line.startswith(term, start) and not _inside_word(line, start + len(term)):
                return term
        return None


def occurrences(text: str, words: Iterable[str]) -> int:
    """How often any of some texts stands in a text as whole words; capitals at their beginnings don't matter."""
    forms = {form for word in words for form in (word, capitalised(word), uncapitalised(word))}
    choice = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    return len(re.findall(rf"(?<!\w)(?:{choice})(?!\w)", text)) if forms else 0


def capitalised(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def uncapitalised(text: str) -> str:
    """The text with a small letter at its beginning."""
    return text[:1].lower() + text[1:]


def _inside_word(line: str, place: int) -> bool:
    """Whether a word goes on over `place`."""
    return bool(re.match(r"\w", line[place : place + 1]) and re.match(r"\w", line[place - 1]))


Kind = Literal["url", "email", "placeholder", "tag", "term"]

# Possessive repeats and disjoint alternatives keep every pattern linear. A URL may hold brackets in pairs; punctuation
# at its end is the sentence's. A printf conversion is none after a digit ("50%d") or before a letter ("%sth").
_KINDS: dict[Kind, str] = {
    "url": r"(?:(?:https?|ftps?|file)://|www\.)(?:[^\s<>\"'“”„«»()]|\([^\s<>\"'()]*+\)|'(?=\w))++",
    "email": r"(?<![\w.+-])\w[\w.+-]*+@\w[\w-]*+(?:\.\w[\w-]*+)++",
    "tag": r"<!--(?:[^<-]|-(?!->)|<(?!!--))*+-->|</[A-Za-z][\w:.-]*+\s*+>"
    r"|<[A-Za-z][\w:.-]*+(?=[\s/>])(?:[^<>\"']|\"[^\"]*+\"|'[^']*+')*+>",
    "placeholder": r"\{\{[^{}]*+\}\}|[$#%]\{[^{}\s]++\}|\{[\w.\[\]]*+(?:![rsa])?(?::[^{}\s]*+)?\}"
    r"|(?<![\d%])%(?:\d++\$|\(\w++\))?[#0+-]*+\d*+(?:\.\d++)?(?:hh|h|ll|l|z|j|t)?[diouxXeEfFgGcrs@](?![A-Za-z])",
}  # fmt: skip
_FOUND = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))
_URL_END = ".,;:!?…、。，；！？"
CLOSING = re.compile(r"[.,;:!?…)\]}”’»、。，；！？]")
_CLOSERS = dict(zip("([{<\"'“„«»‘「（", ")]}>\"'”“»«’」）", strict=True))
_TAG_NAME = re.compile(r"</?([A-Za-z][\w:.-]*+)")


class Span(NamedTuple):
    """A protected part of a line."""

    start: int
    end: int
    kind: Kind
    text: str  # as it stands in the translation


class Placeholder(NamedTuple):
    """Protected text that is left out of a line, and how it stood there: spans that touch are one gap."""

    text: str
    place: int  # in the line without gaps: how many of its characters stand before
    before: str  # white space before it …
    after: str  # … and after it
    left: str  # the character beside it, if it touches one; "" at white space and at the line's ends
    right: str
    opening: bool  # nothing but tags that open, and touching what follows
    closing: bool
    partners: tuple[int, int] | None  # of tags: the first and the last gap that holds a tag paired with one of these


class Masked(NamedTuple):
    """A line that the model reads: without its gaps."""

    text: str
    gaps: list[Placeholder]


def find_spans(line: str, glossary: Glossary | None = None) -> list[Span]:
    """The protected parts of a line, from left to right; they do not overlap. Where two might, the first one counts."""
    spans: list[Span] = []
    for match in _FOUND.finditer(line) if _may_hold(line) else ():
        kind: Kind = match.lastgroup  # type: ignore[assignment]  # one of the patterns' names
        text = match[0].rstrip(_URL_END) if kind == "url" else match[0]
        if text != "www":
            spans.append(Span(match.start(), match.start() + len(text), kind, text))
    if glossary is None:
        return spans
    taken = [(span.start, span.end) for span in spans]
    terms = [Span(term.start, term.end, "term", term.translation) for term in glossary.find(line)]
    spans += [term for term in terms if all(term.end <= start or end <= term.start for start, end in taken)]
    return sorted(spans)


def _may_hold(line: str) -> bool:
    """Whether a line holds a character without which nothing is protected; most hold none."""
    return any(sign in line for sign in ("%", "{", "<", "@", "://", "www."))


def leave_out(line: str, spans: Sequence[Span]) -> Masked:
    """The line without spans, and the gaps that they leave. Brackets and quotes tight around a span go with it."""
    groups = _touching(line, spans)
    partners = _partners([[span for span in group if span.kind == "tag"] for _, _, group in groups])
    stretches, texts = cut_out(line, spans)
    gaps: list[Placeholder] = []
    for number, (text, (_, _, group), pair) in enumerate(zip(texts, groups, partners, strict=True)):
        # Of tags side by side all know what stands before the first: the `!` of `a!</i></b>`.
        left = stretches[number] or (gaps[-1].left or gaps[-1].text if gaps else "")
        right = stretches[number + 1] or (texts[number + 1] if number + 1 < len(texts) else "")
        gaps.append(_gap(text, group, left, right, pair))
    return _join(stretches, _agreeing(gaps, stretches))


def _agreeing(gaps: Sequence[Placeholder], stretches: Sequence[str]) -> list[Placeholder]:
    """Tags side by side open, or close, only if the one beside the text does."""
    agreeing = list(gaps)
    for number in range(1, len(gaps)):
        if not stretches[number] and not agreeing[number - 1].closing:
            agreeing[number] = agreeing[number]._replace(closing=False)
    for number in reversed(range(len(gaps) - 1)):
        if not stretches[number + 1] and not agreeing[number + 1].opening:
            agreeing[number] = agreeing[number]._replace(opening=False)
    return agreeing


def _gap(text: str, group: Sequence[Span], left: str, right: str, partners: tuple[int, int] | None) -> Placeholder:
    """What a group of spans leaves between `left` and `right`; its place is not known yet."""
    before, after = left[len(left.rstrip()) :], right[: len(right) - len(right.lstrip())]
    sides = {_tag_side(span.text) for span in group}
    return Placeholder(
        text=text,
        place=0,
        before=before,
        after=after,
        left="" if before else left[-1:],
        right="" if after else right[:1],
        opening=sides == {"opens"} and bool(right) and not after,
        closing=sides == {"closes"} and bool(left) and not before,
        partners=partners,
    )


def _text(line: str, start: int, end: int, group: Sequence[Span]) -> str:
    """A group's spans as they go to the translation, with the brackets around and between them."""
    text = ""
    for span in group:
        text += line[start : span.start] + span.text
        start = span.end
    return text + line[start:end]


def _join(stretches: Sequence[str], gaps: Sequence[Placeholder]) -> Masked:
    """What stands before, between and after gaps as one text: with a space where there was one at either side of a gap.

    Words do not run together, and no space comes before punctuation.
    """
    text = stretches[0].strip()
    placed: list[Placeholder] = []
    spaced = False  # since the last stretch with text in it
    for gap, stretch in zip(gaps, stretches[1:], strict=True):
        placed.append(gap._replace(place=len(text)))
        spaced |= bool(gap.before or gap.after)
        if part := stretch.strip():
            between_words = _takes_spaces(text[-1:]) and _takes_spaces(part[0])
            if text and (spaced or between_words) and not CLOSING.match(part):
                text += " "
            text += part
            spaced = False
    return Masked(text, placed)


def _takes_spaces(character: str) -> bool:
    """Whether it belongs to a word in a script that parts words by spaces."""
    return character.isalnum() and unicodedata.east_asian_width(character) not in "WF"


def cut_out(line: str, spans: Sequence[Span]) -> tuple[list[str], list[str]]:
    """What stands before, between and after the groups of a line's spans, as it is; and each group's own text."""
    stretches, texts, end = [], [], 0
    for start, stop, group in _touching(line, spans):
        stretches.append(line[end:start])
        texts.append(_text(line, start, stop, group))
        end = stop
    return [*stretches, line[end:]], texts


def _touching(line: str, spans: Sequence[Span]) -> list[tuple[int, int, list[Span]]]:
    """Spans in groups that touch, each with its start and end, brackets included; but each tag of `<b><i>` alone."""
    groups: list[tuple[int, int, list[Span]]] = []
    for span in spans:
        start, end = span.start, span.end
        if span.kind not in ("tag", "term"):
            while start and end < len(line) and _CLOSERS.get(line[start - 1]) == line[end]:
                start, end = start - 1, end + 1
        alike = groups and _tag_side(groups[-1][2][-1].text) == _tag_side(span.text) != "stands alone"
        if groups and groups[-1][1] >= start and not alike:
            first, _, group = groups.pop()
            groups.append((first, end, [*group, span]))
        else:
            groups.append((start, end, [span]))
    return groups


def _tag_side(text: str) -> str:
    """Whether a span is a tag that opens or closes something."""
    if _TAG_NAME.match(text) is None or text.endswith("/>"):
        return "stands alone"
    return "closes" if text.startswith("</") else "opens"


def _pairs(tags: Sequence[str]) -> tuple[list[tuple[int, int]], bool]:
    """Which tags open and close the same, and whether all are well nested (as far as they have partners)."""
    waiting: list[int] = []
    pairs: list[tuple[int, int]] = []
    nested = True
    for place, tag in enumerate(tags):
        name = _TAG_NAME.match(tag)
        if name is None or _tag_side(tag) == "stands alone":
            continue
        if _tag_side(tag) == "opens":
            waiting.append(place)
            continue
        same = [other for other in waiting if _TAG_NAME.match(tags[other])[1] == name[1]]  # type: ignore[index]
        if not same:
            nested = False
            continue
        nested &= same[-1] == waiting[-1]
        waiting.remove(same[-1])
        pairs.append((same[-1], place))
    return pairs, nested and not waiting


def _partners(groups: Sequence[Sequence[Span]]) -> list[tuple[int, int] | None]:
    """For each group the first and the last of the other groups that hold a partner of one of its tags."""
    numbers = [number for number, group in enumerate(groups) for _ in group]
    pairs, _ = _pairs([span.text for group in groups for span in group])
    found: list[list[int]] = [[] for _ in groups]
    for one, other in pairs:
        if numbers[one] != numbers[other]:
            found[numbers[one]].append(numbers[other])
            found[numbers[other]].append(numbers[one])
    return [(min(others), max(others)) if others else None for others in found]


def is_kept(text: str, spans: Sequence[Span]) -> bool:
    """Whether a translation holds every span of its source exactly once, nothing more, and tags as well nested.

    A term's translation may stand there more often: the model may call other things so by itself. What looks protected
    in it belongs there.
    """
    found = find_spans(text)
    fixed = [one for span in spans for one in (find_spans(span.text) if span.kind == "term" else [span])]
    if Counter(span.text for span in found) != Counter(span.text for span in fixed):
        return False
    tags = [[span.text for span in side if span.kind == "tag"] for side in (fixed, found)]
    if _pairs(tags[0])[1] and not _pairs(tags[1])[1]:
        return False
    terms = Counter(span.text for span in spans if span.kind == "term")
    return all(occurrences(text, [term]) >= count for term, count in terms.items())
