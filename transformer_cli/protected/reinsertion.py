"""Where in a translation protected text belongs, by the alignment, and how it is written there. Pure; no torch.

`Protector` calls it. Text is changed at places between tokens only, words whole; a place is a number of characters.
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
    """What to write instead of the text from `start` to `end`; a placeholder goes between words (`start` = `end`)."""

    start: int
    end: int
    text: str
    source: int  # the source token that it belongs to
    placeholder: Placeholder | None = None


def token_places(tokens: Sequence[str], text: str, tokenizer: Tokenizer) -> list[tuple[int, int]] | None:
    """Return where in a text each of its tokens stands; None where that is not clear.

    The bytes of a character share one place. What stands for `<unk>` may be any word, or any character.
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
    """Return tokens one by one, but those that are bytes together with the bytes beside them."""
    runs: list[list[str]] = []
    for token in tokens:
        if runs and token in tokenizer.byte_tokens and runs[-1][-1] in tokenizer.byte_tokens:
            runs[-1].append(token)
        else:
            runs.append([token])
    return runs


def cuts(output: Output, spaces: bool) -> list[tuple[int, int]]:
    """Return where a placeholder may go, as (number of tokens before, place): between words and before punctuation.

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


def placeholder_edits(
    output: Output, placeholders: Sequence[Placeholder], terms: Sequence[Edit], spaces: bool
) -> list[Edit]:
    """Return how to write each placeholder into the translation; none stands within one of `terms`, edits too.

    Paired tags go around all that is aligned to what they stood around. Anything else goes where it parts best what
    is aligned to the words before it from what is aligned to those after it; nearer words weigh more.
    """
    allowed = cuts(output, spaces)
    edits = []
    for number, one in enumerate(placeholders):
        is_paired = one.partners is not None and (one.opening or one.closing)
        place = _around(output, allowed, placeholders, number) if is_paired else _between(output, allowed, one)
        for term in terms:
            if term.start < place < term.end:
                place = term.start if one.opening else term.end
        edits.append(Edit(place, place, one.text, one.tokens + number, one))
    return edits


def _around(
    output: Output, allowed: Sequence[tuple[int, int]], placeholders: Sequence[Placeholder], number: int
) -> int:
    """Return the place of a tag that opens or closes a part of the text. There must be a token."""
    one = placeholders[number]
    assert one.partners is not None, "no partner to tell where the part ends"
    first = placeholders[number if one.opening else one.partners[0]].tokens
    last = placeholders[one.partners[1] if one.opening else number].tokens
    inside: list[int] = []
    while not inside:  # where nothing is aligned to the part, what stands nearest to it counts
        inside = [place for place, source in enumerate(output.alignment) if first <= source < last]
        first, last = first - 1, last + 1
    inside = _words(output, inside) or inside
    if one.opening:
        place = max(place for tokens, place in allowed if tokens <= inside[0])
        return place + (one.left in _OPENING and output.text.startswith(one.left, place))
    place = min(place for tokens, place in allowed if tokens > inside[-1])
    marks = _PUNCTUATION.match(output.text, place) if CLOSING.match(one.left) else None
    return place if marks is None else marks.end()


def _between(output: Output, allowed: Sequence[tuple[int, int]], placeholder: Placeholder) -> int:
    """Return the place that crosses the least alignment; of equals one before punctuation if it stood before such.

    Of those the one that is as far along as in the source.
    """
    before = placeholder.tokens
    weights = [
        (source < before, 1 / (before - source if source < before else source - before + 1))
        for source in output.alignment
    ]
    along = before / (1 + max([*output.alignment, before - 1]))

    def crossed(cut: tuple[int, int]) -> tuple[float, bool, float]:
        crossing = sum(weight for place, (left, weight) in enumerate(weights) if left != (place < cut[0]))
        unlike = bool(CLOSING.match(output.text, cut[1])) != bool(CLOSING.match(placeholder.right))
        return round(crossing, 9), unlike, abs(cut[0] - along * len(weights))

    return min(allowed, key=crossed)[1]


def _words(output: Output, tokens: Sequence[int]) -> list[int]:
    """Return those of some tokens that are not mere punctuation."""
    return [token for token in tokens if any(map(str.isalnum, output.text[slice(*output.places[token])]))]


def term_edit(output: Output, translation: str, first: int, last: int, spaces: bool) -> Edit | None:
    """Return how to write a term's translation in place of the words aligned to source tokens `first` to `last`.

    None: no word is.
    """
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
    """Return a translation with edits made, which may not overlap. Placeholders get the spaces that they had."""
    found, end = "", 0
    last: Placeholder | None = None  # what `found` ends with
    for edit in [*_in_order(edits), None]:
        start = len(text) if edit is None else edit.start
        assert start >= end, "edits overlap"
        for part in (text[end:start], edit.text if edit and not edit.placeholder else ""):
            if last is None:
                found += part
            elif part.strip():
                found += _space_after(last, part.lstrip()) + part.lstrip()
                last = None
        if edit is not None:
            end = edit.end
            if edit.placeholder is not None:
                found = found.rstrip()
                found += (_space_before(found, last, edit.placeholder) if found else "") + edit.text
                last = edit.placeholder
    return found


def _in_order(edits: Sequence[Edit]) -> list[Edit]:
    """Return edits from left to right; at one place, what closes comes first and what opens last."""

    def rank(one: Placeholder | None) -> int:
        return 0 if one is None or one.closing else 2 if one.opening else 1

    return sorted(edits, key=lambda edit: (edit.start, edit.end, rank(edit.placeholder)))


def _space_before(text: str, last: Placeholder | None, one: Placeholder) -> str:
    if one.closing or (last is not None and last.opening):
        return ""
    if last is not None:
        touched = not (last.after or one.before) and last.right and one.left
        return "" if touched else one.before or last.after or " "
    if one.before or not one.left:
        return one.before or " "
    return "" if one.left.isalnum() or text[-1] == one.left else " "


def _space_after(one: Placeholder, text: str) -> str:
    if one.opening or CLOSING.match(text):
        return ""
    if one.after or not one.right:
        return one.after or " "
    return "" if one.right.isalnum() or text[0] == one.right else " "


def with_placeholders(tokens: Sequence[str], placeholders: Sequence[Placeholder]) -> list[str]:
    """Return a source's tokens with each placeholder as one token more."""
    found = list(tokens)
    for one in reversed(placeholders):
        found.insert(one.tokens, one.text)
    return found


def tokens_written(
    tokens: Sequence[str], output: Output, edits: Sequence[Edit], placeholders: Sequence[Placeholder]
) -> tuple[list[str], list[int]]:
    """Return a translation's tokens after edits, each of which is one, and their alignment to `with_placeholders`."""
    waiting = _in_order(edits)[::-1]
    found: list[str] = []
    alignment: list[int] = []
    end = 0  # of the term written last

    def shifted(place: int) -> int:  # once placeholders are tokens too
        return place + sum(place >= one.tokens for one in placeholders)

    for token, (start, stop), source in zip(
        [*tokens, None], [*output.places, (len(output.text) + 1,) * 2], [*output.alignment, 0], strict=True
    ):
        while waiting and waiting[-1].start <= start:
            edit = waiting.pop()
            found.append(edit.text)
            alignment.append(edit.source if edit.placeholder is not None else shifted(edit.source))
            end = max(end, edit.end)
        if token is not None and (start >= end or stop > end):
            found.append(token)
            alignment.append(shifted(source))
    return found, alignment
