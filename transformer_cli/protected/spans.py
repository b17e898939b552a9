"""What in a line is protected, what the line is without it, and whether a translation holds all of it. No torch.

Kinds of text that are known by their form, and the terms of a user's glossary (`tfm translate --glossary`).
`Protector` calls it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self

from transformer_cli.errors import UserError
from transformer_cli.text.lines import read_lines

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
_SIGNS = ("%", "{", "<", "@", "://", "www.")  # a line without any of them holds none of these kinds; most lines do not
_URL_END = ".,;:!?…、。，；！？"
CLOSING = re.compile(r"[.,;:!?…)\]}”’»、。，；！？]")
_CLOSERS = dict(zip("([{<\"'“„«»‘「（", ")]}>\"'”“»«’」）", strict=True))
_WORD = re.compile(r"\w+|[^\w\s]")
_SENTENCE_START = re.compile(r"(?:^|[.!?…:]\s)[\s\"'“”„«»‘’(\[¿¡-]*\Z")
_TAG_NAME = re.compile(r"</?([A-Za-z][\w:.-]*+)")


# --- a glossary ------------------------------------------------------------------------------------------------


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


# --- what is protected -----------------------------------------------------------------------------------------


class Span(NamedTuple):
    """A protected part of a line."""

    start: int
    end: int
    kind: Kind
    text: str  # as it stands in the translation


def find_spans(line: str, glossary: Glossary | None = None) -> list[Span]:
    """Return the protected parts of a line, from left to right; where two overlap, only the first."""
    spans: list[Span] = []
    for match in _FOUND.finditer(line) if any(sign in line for sign in _SIGNS) else ():
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


# --- a line without its spans -------------------------------------------------------------------------------------


class Placeholder(NamedTuple):
    """Protected text that is left out of a line, and how it stood there; spans that touch are one."""

    text: str
    place: int  # in the line without any: how many of its characters stand before
    before: str  # white space before it …
    after: str  # … and after it
    left: str  # the character beside it, if it touches one; "" at white space and at the line's ends
    right: str
    opening: bool  # nothing but tags that open, and touching what follows
    closing: bool
    partners: tuple[int, int] | None  # of tags: the first and the last one that holds a tag paired with one of these
    tokens: int = 0  # of the line without any that stand before; who has tokens fills it in


class Masked(NamedTuple):
    """What the model reads of a line: all but its placeholders."""

    text: str
    placeholders: list[Placeholder]


def leave_out(line: str, spans: Sequence[Span]) -> Masked:
    """Return the line without spans, and what they leave. Brackets and quotes tight around a span go with it.

    There is a space where there was one at either side of a span, and between words; none before punctuation.
    """
    groups = _touching(line, spans)
    between = _between(line, groups)
    found: list[Placeholder] = []
    text, spaced = between[0].strip(), False  # spaced: since the last text there was white space
    for number, (group, partners) in enumerate(zip(groups, _partners(groups), strict=True)):
        # Of tags side by side all know what stands before the first: the `!` of `a!</i></b>`.
        left = between[number] or (found[-1].left or found[-1].text if found else "")
        right = between[number + 1] or (groups[number + 1].text if number + 1 < len(groups) else "")
        before, after = left[len(left.rstrip()) :], right[: len(right) - len(right.lstrip())]
        sides = {_tag_side(span.text) for span in group.spans}
        # Tags side by side open, or close, only if the one beside the text does.
        agrees = bool(between[number]) or not found or found[-1].closing
        found.append(
            Placeholder(
                text=group.text,
                place=len(text),
                before=before,
                after=after,
                left="" if before else left[-1:],
                right="" if after else right[:1],
                opening=sides == {"opens"} and bool(right) and not after,
                closing=sides == {"closes"} and bool(left) and not before and agrees,
                partners=partners,
            )
        )
        spaced |= bool(before or after)
        if part := between[number + 1].strip():
            words_touch = _takes_spaces(text[-1:]) and _takes_spaces(part[0])
            if text and (spaced or words_touch) and not CLOSING.match(part):
                text += " "
            text += part
            spaced = False
    for number in reversed(range(len(found) - 1)):
        if not between[number + 1] and not found[number + 1].opening:
            found[number] = found[number]._replace(opening=False)
    return Masked(text, found)


def cut_out(line: str, spans: Sequence[Span]) -> list[tuple[str, str]]:
    """Return each group of touching spans, as it goes to the translation, after the text before it: (text, group).

    The last one is the rest of the line, with "".
    """
    groups = _touching(line, spans)
    return list(zip(_between(line, groups), [*(group.text for group in groups), ""], strict=True))


class _Group(NamedTuple):
    """Spans that touch, from their start to their end, with the brackets around and between them."""

    start: int
    end: int
    spans: list[Span]
    text: str = ""  # as it goes to the translation


def _touching(line: str, spans: Sequence[Span]) -> list[_Group]:
    """Return spans in groups that touch; but each tag of `<b><i>` alone."""
    groups: list[_Group] = []
    for span in spans:
        start, end = span.start, span.end
        if span.kind not in ("tag", "term"):
            while start and end < len(line) and _CLOSERS.get(line[start - 1]) == line[end]:
                start, end = start - 1, end + 1
        last = groups[-1] if groups else None
        alike = last and _tag_side(last.spans[-1].text) == _tag_side(span.text) != "stands alone"
        if last and last.end >= start and not alike:
            groups[-1] = _Group(last.start, end, [*last.spans, span])
        else:
            groups.append(_Group(start, end, [span]))
    return [group._replace(text=_text(line, group)) for group in groups]


def _text(line: str, group: _Group) -> str:
    text, start = "", group.start
    for span in group.spans:
        text += line[start : span.start] + span.text
        start = span.end
    return text + line[start : group.end]


def _between(line: str, groups: Sequence[_Group]) -> list[str]:
    """Return what stands before, between and after groups."""
    ends = [0, *(group.end for group in groups)]
    return [line[end:start] for end, start in zip(ends, [*(group.start for group in groups), len(line)], strict=True)]


def _takes_spaces(character: str) -> bool:
    """Return whether it belongs to a word in a script that parts words by spaces."""
    return character.isalnum() and unicodedata.east_asian_width(character) not in "WF"


# --- tags, and what is kept ---------------------------------------------------------------------------------------


def _tag_side(text: str) -> str:
    """Return whether a span is a tag that opens or closes something."""
    if _TAG_NAME.match(text) is None or text.endswith("/>"):
        return "stands alone"
    return "closes" if text.startswith("</") else "opens"


def _pairs(tags: Sequence[str]) -> tuple[list[tuple[int, int]], bool]:
    """Return which tags open and close the same, and whether all are well nested (as far as they have partners)."""
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


def _partners(groups: Sequence[_Group]) -> list[tuple[int, int] | None]:
    """Return for each group the first and the last of the other groups that hold a partner of one of its tags."""
    tags = [(number, span.text) for number, group in enumerate(groups) for span in group.spans if span.kind == "tag"]
    found: list[list[int]] = [[] for _ in groups]
    for one, other in _pairs([tag for _, tag in tags])[0]:
        opens, closes = tags[one][0], tags[other][0]
        if opens != closes:
            found[opens].append(closes)
            found[closes].append(opens)
    return [(min(others), max(others)) if others else None for others in found]


def _nesting(tags: Sequence[str]) -> Counter[tuple[str, str]] | None:
    """Return each tag with the one that it stands in, where all are well nested; else None."""
    found: Counter[tuple[str, str]] = Counter()
    opened = [""]
    for tag in tags:
        side, name = _tag_side(tag), _TAG_NAME.match(tag)
        if side == "closes":
            partner = _TAG_NAME.match(opened.pop())
            if partner is None or name is None or partner[1] != name[1]:
                return None
        found[opened[-1], tag] += 1
        if side == "opens":
            opened.append(tag)
    return found if opened == [""] else None


def is_kept(text: str, spans: Sequence[Span]) -> bool:
    """Return whether a translation holds every span of its source exactly once, nothing more, and tags nested alike.

    A term's translation may stand there more often: the model may call other things so by itself. What looks protected
    in it belongs there.
    """
    found = find_spans(text)
    fixed = [one for span in spans for one in (find_spans(span.text) if span.kind == "term" else [span])]
    if Counter(span.text for span in found) != Counter(span.text for span in fixed):
        return False
    before, after = (_nesting([span.text for span in side if span.kind == "tag"]) for side in (fixed, found))
    if before is not None and before != after:
        return False
    terms = Counter(span.text for span in spans if span.kind == "term")
    return all(occurrences(text, [term]) >= count for term, count in terms.items())
