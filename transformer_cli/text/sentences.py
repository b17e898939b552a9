"""Where the sentences of a line end: by sentencex's rules for each language, and a few of our own.

`decoding.chunks` cuts lines with it, `training.start` counts with it how many lines hold several sentences. Where in
doubt, text stays together: two sentences translated as one lose little, half a sentence much.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

COUNTED_LINES = 50_000  # of a corpus, from its start
BLOCK = 1000  # characters that are looked at together: the time that sentencex takes grows with their square
# Not in its text: white space of several bytes has made it fail, and halves of characters are no UTF-8.
_PLAIN_SPACE = re.compile("[^\\S ]|[\ud800-\udfff]")

# Words and, at the end, marks: one sentence, whatever the language. Most lines are, and sentencex need not be asked.
_ONE_SENTENCE = re.compile(r"[\w ,'-]*+\W*+")

# A capital alone ("J. Smith", "M. Dupont", "U.S. Army"), and titles that sentencex knows in some languages only.
_NAME_FOLLOWS = re.compile(r"(?<![^\W_])([^\W\d_]|Dr|Prof|Mr|Mrs|Ms|Mme|Mlle)\.\s*\Z")
# Languages that write "the 2nd floor" as "2. Stock": a short number and a dot end no sentence there.
_ORDINALS = frozenset("bs cs da de et fi fo hr hu is lb lt lv nb nn no pl sk sl sr tr".split())  # noqa: SIM905
_ORDINAL = re.compile(r"(?<![\w.,])\d{1,2}\.\s*\Z")
_QUOTATION = re.compile(r"[」』]\s*\Z")
_HIRAGANA = re.compile(r"\s*[\u3041-\u309f]")  # continues after a quotation: と言った
_LONGEST_END = 20  # characters: more than these patterns look at


def split_sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Return where each sentence starts and ends, in order; nothing but white space lies between them.

    language: its code; one without rules of its own is cut as English is. White space alone is no sentence.
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for sentence in _sentences(text, re.split("[-_]", language)[0].lower()):
        if sentence.strip():
            leading = len(sentence) - len(sentence.lstrip())
            spans.append((start + leading, start + len(sentence.rstrip())))
        start += len(sentence)
    return spans


def share_of_several(texts: Iterable[str], language: str) -> float:
    """Return the share of lines that hold several sentences, of the first `COUNTED_LINES` that are not empty."""
    counts = [len(split_sentences(text, language)) for text in islice(filter(str.strip, texts), COUNTED_LINES)]
    return sum(count > 1 for count in counts) / max(1, len(counts))


def _sentences(text: str, language: str) -> Iterator[str]:
    """Yield all of a text, sentence by sentence."""
    if _ONE_SENTENCE.fullmatch(text):
        yield text
        return
    cased = not text.islower()  # else a small letter says nothing
    parts: list[str] = []  # of the sentence that is open, and whether they hold a letter: "1. First" is one
    letter = False
    for part, following in pairwise([*_segments(text, language), ""]):
        parts.append(part)
        letter = letter or any(map(str.isalpha, part))
        if letter and _has_word(following) and not _continues(part[-_LONGEST_END:], following, language, cased):
            yield "".join(parts)
            parts, letter = [], False
    yield "".join(parts)


def _segments(text: str, language: str) -> Iterator[str]:
    """Yield all of a text in what sentencex takes for sentences."""
    from sentencex import segment  # not at the top: many commands need none of it

    plain = _PLAIN_SPACE.sub(" ", text)
    start = sought = 0  # of the sentence that is open; of what was not looked at yet
    while sought < len(text):
        ends_here = sought + BLOCK >= len(text)
        found = segment(language, plain[sought : sought + BLOCK])
        for sentence in found if ends_here else found[:-1]:  # the last one may go on beyond the block
            sought += len(sentence)
            yield text[start:sought]
            start = sought
        if len(found) == 1:
            sought += BLOCK


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _continues(before: str, after: str, language: str, cased: bool) -> bool:
    """Return whether a sentence goes on over a place where sentencex ends it."""
    if before[-1].isascii() and not (before[-1].isspace() or after[0].isspace()):
        return True  # "Yahoo!Answers": only marks such as 。 end a sentence without a space
    if cased and next(filter(str.isalnum, after)).islower():
        return True
    name = _NAME_FOLLOWS.search(before)
    if name and name[1][0].isupper():
        return True
    if language in _ORDINALS and _ORDINAL.search(before):
        return True
    return bool(_QUOTATION.search(before) and _HIRAGANA.match(after))
