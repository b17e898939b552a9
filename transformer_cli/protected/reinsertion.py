"""Where in a translation protected text belongs, by the alignment, and how it is written there. Pure; no torch.

`protecting` calls it. Text is changed at places between tokens only, words whole; a place is a number of characters.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from transformer_cli.protected.spans import CLOSING, Placeholder, capitalised
from transformer_cli.text.codec import Tokenizer
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import SPECIALS, UNK

_PUNCTUATION = re.compile(rf"{CLOSING.pattern}+")
_OPENING = tuple("([{“„«‘「（")
_SENTENCE_MARKS = re.compile("[.,;:!?…)”’»、。，；！？]+")
_SENTENCE_START = re.compile(r"(?:^|[.!?…]\s+)[\"'“„«(\[¿¡]*\Z")


class Output(NamedTuple):
    """A translation as text and as tokens."""

    text: str
    places: list[tuple[int, int]]  # where in the text each token stands
    alignment: list[int]  # for each token the place of its source token


class Edit(NamedTuple):
    """What to write instead of the text from `start` to `end`; a gap's text goes between the two (`start` = `end`)."""

    start: int
    end: int
    text: str
    source: int  # the source token that it belongs to
    gap: Placeholder | None = None


def token_places(tokens: Sequence[str], text: str, tokenizer: Tokenizer) -> list[tuple[int, int]] | None:
    """Where in a text each of its tokens stands; None where that cannot be told. The bytes of a character share one.

    What stands for `<unk>` may be any word, or any character.
    """
    places: list[tuple[int, int]] = []
    unknown = 0  # at the end of `places`
    end = 0
    for run in [*_runs(tokens, tokenizer), None]:
        surface = "" if run is None else one_line(tokenizer.join(run)).strip()
        if run == [SPECIALS[UNK]]:
            unknown += 1
            places.append((end, end))
            continue
        if run is not None and not surface:  # a space
            places += [(end, end)] * len(run)
            continue
        start = len(text) if run is None else text.find(surface, end)
        between = [match.span() for match in re.finditer(r"\S+", text[end : max(start, end)])]
        if len(between) != unknown:
            between = [(place, place + 1) for first, last in between for place in range(first, last)]
        if start < 0 or len(between) != unknown:
            return None
        copied = iter([(end + first, end + last) for first, last in between])
        waiting = (
            [place for place in range(len(places)) if tokens[place] == SPECIALS[UNK]][-unknown:] if unknown else []
        )
        for place in waiting:
            places[place] = next(copied)
        unknown = 0
        end = start + len(surface)
        places += [(start, end)] * (0 if run is None else len(run))
    return places


def _runs(tokens: Sequence[str], tokenizer: Tokenizer) -> list[list[str]]:
    """Tokens one by one, but those that are bytes together with the bytes beside them."""
    runs: list[list[str]] = []
    for token in tokens:
        if runs and tokenizer.is_byte(token) and tokenizer.is_byte(runs[-1][-1]):
            runs[-1].append(token)
        else:
            runs.append([token])
    return runs


def cuts(output: Output, spaces: bool) -> list[tuple[int, int]]:
    """Where a gap may go, as (number of tokens before, place): between words and before punctuation.

    spaces: whether the language puts spaces between words; without them every token begins one.
    """
    text = output.text
    found = [(0, 0)]
    for number, (start, end) in enumerate(output.places):
        begins = start > 0 and (text[start - 1].isspace() or not spaces)
        if start > found[-1][1] and (begins or _PUNCTUATION.fullmatch(text, start, end)):
            found.append((number, start))
        last = _SENTENCE_MARKS.search(text, start, end)  # some tokenizers leave them on the word
        if last is not None and last.start() > found[-1][1] and last.end() == end:
            found.append((number + 1, last.start()))
    return [*found, (len(output.places), len(text))] if output.places else found


def placeholder_positions(
    output: Output, gaps: Sequence[Placeholder], before: Sequence[int], spaces: bool
) -> list[int]:
    """The place of each gap in the translation; `before` tells how many source tokens stand before each.

    Paired tags go around all that is aligned to what they stood around. Anything else goes where it parts best what
    is aligned to the words before it from what is aligned to those after it; nearer words weigh more.
    """
    allowed = cuts(output, spaces)
    return [
        _around(output, allowed, gap, number, before)
        if gap.partners is not None and (gap.opening or gap.closing)
        else _between(output, allowed, gap, before[number])
        for number, gap in enumerate(gaps)
    ]


def _around(
    output: Output, allowed: Sequence[tuple[int, int]], gap: Placeholder, number: int, before: Sequence[int]
) -> int:
    """The place of a tag that opens or closes a stretch of text. There must be a token."""
    assert gap.partners is not None, "no partner to tell where the stretch ends"
    first = number if gap.opening else gap.partners[0]
    last = gap.partners[1] if gap.opening else number
    inside: list[int] = []
    wider = 0  # where nothing is aligned to the stretch, what stands nearest to it counts
    while not inside:
        start, end = before[first] - wider, before[last] + wider
        inside = [place for place, source in enumerate(output.alignment) if start <= source < end]
        wider += 1
    inside = _words(output, inside) or inside
    if gap.opening:
        place = max(place for tokens, place in allowed if tokens <= inside[0])
        return place + (gap.left in _OPENING and output.text.startswith(gap.left, place))
    place = min(place for tokens, place in allowed if tokens > inside[-1])
    marks = _PUNCTUATION.match(output.text, place) if CLOSING.match(gap.left) else None
    return place if marks is None else marks.end()


def _between(output: Output, allowed: Sequence[tuple[int, int]], gap: Placeholder, before: int) -> int:
    """The place that crosses the least alignment; of equals one before punctuation where the gap stood before such.

    Of those the one that is as far along as in the source.
    """
    weights = [
        (source < before, 1 / (before - source if source < before else source - before + 1))
        for source in output.alignment
    ]
    along = before / (1 + max([*output.alignment, before - 1]))

    def crossed(cut: tuple[int, int]) -> tuple[float, bool, float]:
        crossing = sum(weight for place, (left, weight) in enumerate(weights) if left != (place < cut[0]))
        unlike = bool(CLOSING.match(output.text, cut[1])) != bool(CLOSING.match(gap.right))
        return round(crossing, 9), unlike, abs(cut[0] - along * len(weights))

    return min(allowed, key=crossed)[1]


def _words(output: Output, tokens: Sequence[int]) -> list[int]:
    """Those of some tokens that are no mere punctuation."""
    return [token for token in tokens if any(map(str.isalnum, output.text[slice(*output.places[token])]))]


def term_edit(output: Output, translation: str, first: int, last: int, spaces: bool) -> Edit | None:
    """A term's translation in place of the words aligned to source tokens `first` to `last`; None: there are none."""
    own = _words(output, [place for place, source in enumerate(output.alignment) if first <= source < last])
    runs: list[list[int]] = []
    for token in own:
        if runs and not output.text[output.places[runs[-1][-1]][1] : output.places[token][0]].strip():
            runs[-1].append(token)
        else:
            runs.append([token])
    if not runs:
        return None
    best = max(runs, key=len)
    start, end = output.places[best[0]][0], output.places[best[-1]][1]
    while not output.text[end - 1].isalnum():  # punctuation that a tokenizer leaves on its word stays
        end -= 1
    while not output.text[start].isalnum():
        start += 1
    if spaces:  # whole words
        while start and output.text[start - 1].isalnum():
            start -= 1
        while end < len(output.text) and output.text[end].isalnum():
            end += 1
    if output.text[start].isupper() and _SENTENCE_START.search(output.text[:start]):
        translation = capitalised(translation)
    return Edit(start, end, translation, first)


def written(text: str, edits: Sequence[Edit]) -> str:
    """A translation with edits made; edits that overlap are not allowed. Gaps get the spaces that they had."""
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end, _rank(edit.gap)))
    parts: list[str | Placeholder] = []
    end = 0
    for edit in ordered:
        assert edit.start >= end, "edits overlap"
        parts.append(text[end : edit.start])
        parts.append(edit.text if edit.gap is None else edit.gap)
        end = edit.end
    parts.append(text[end:])
    return _spaced(parts)


def _rank(gap: Placeholder | None) -> int:
    """At one place, what closes comes first and what opens last."""
    return 0 if gap is None or gap.closing else 2 if gap.opening else 1


def _spaced(parts: Sequence[str | Placeholder]) -> str:
    """Stretches of text and gaps as one text."""
    text = ""
    last: Placeholder | None = None  # the gap that `text` ends with
    for part in parts:
        if isinstance(part, Placeholder):
            stripped = text.rstrip()
            text = stripped + (_space_before(stripped, last, part) if stripped else "") + part.text
            last = part
        elif last is None:
            text += part
        elif part.strip():
            text += _space_after(last, part.lstrip()) + part.lstrip()
            last = None
    return text


def _space_before(text: str, last: Placeholder | None, gap: Placeholder) -> str:
    if gap.closing or (last is not None and last.opening):
        return ""
    if last is not None:
        touched = not (last.after or gap.before) and last.right and gap.left
        return "" if touched else gap.before or last.after or " "
    if gap.before or not gap.left:
        return gap.before or " "
    return "" if gap.left.isalnum() or text[-1] == gap.left else " "


def _space_after(gap: Placeholder, text: str) -> str:
    if gap.opening:
        return ""
    if CLOSING.match(text):
        return ""
    if gap.after or not gap.right:
        return gap.after or " "
    return "" if gap.right.isalnum() or text[0] == gap.right else " "


def with_placeholders(tokens: Sequence[str], gaps: Sequence[Placeholder], before: Sequence[int]) -> list[str]:
    """A source's tokens with each gap's text as one token more."""
    found = list(tokens)
    for gap, place in reversed(list(zip(gaps, before, strict=True))):
        found.insert(place, gap.text)
    return found


def tokens_written(
    tokens: Sequence[str], output: Output, edits: Sequence[Edit], before: Sequence[int]
) -> tuple[list[str], list[int]]:
    """A translation's tokens after edits, each of which is one token, and their alignment to `with_placeholders`."""
    waiting = sorted(edits, key=lambda edit: (edit.start, edit.end, _rank(edit.gap)), reverse=True)
    found: list[str] = []
    alignment: list[int] = []
    end = 0  # of the term written last
    for token, (start, stop), source in zip(
        [*tokens, None], [*output.places, (len(output.text) + 1,) * 2], [*output.alignment, 0], strict=True
    ):
        while waiting and waiting[-1].start <= start:
            edit = waiting.pop()
            found.append(edit.text)
            alignment.append(edit.source if edit.gap is not None else _shifted(edit.source, before))
            end = max(end, edit.end)
        if token is not None and (start >= end or stop > end):
            found.append(token)
            alignment.append(_shifted(source, before))
    return found, alignment


def _shifted(place: int, before: Sequence[int]) -> int:
    """The place of a source token once gaps are tokens too."""
    return place + sum(place >= gap for gap in before)
