"""Translations that repeat themselves, or never end: recognised by their ids alone. No torch.

`Translator` searches again, with repetition blocked, for what is flagged here, and keeps the better of the two.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from transformer_cli.decoding.options import Hypothesis, SearchOptions

LONGEST_PHRASE = 20  # tokens of what is looked for in a row
IN_A_ROW = 2  # times that a phrase may come in a row whatever the source; a single token one time more, as in "..."
COUNTED_PHRASE = 4  # tokens of what is counted wherever it stands …
ANYWHERE = 3  # … and the times that it may come
BLOCKED_PHRASE = 3  # tokens that may not come twice, when a sentence is searched for again


def excess_tokens(hypothesis: Hypothesis, source: Sequence[int], options: SearchOptions) -> int:
    """Return how many tokens of a translation are too many: it repeats itself, or was cut at its length limit.

    A limit that the user set (`max_length`) does not count.
    """
    cut = not hypothesis.ended and options.max_length is None
    runaway = cut and len(hypothesis.ids) >= options.length_limit(len(source))
    return repeated(hypothesis.ids, source) + (max(1, len(hypothesis.ids) - len(source)) if runaway else 0)


def repeated(ids: Sequence[int], source: Sequence[int]) -> int:
    """Return how many tokens of a translation are one repetition too many; a source that repeats itself excuses it."""
    if len(ids) - len(set(ids)) <= IN_A_ROW:
        return 0  # nearly all: no phrase can have come too often
    return _repeated_in_a_row(ids, source) + _repeated_anywhere(ids, source)


def search_again(options: SearchOptions) -> SearchOptions | None:
    """Return how to search again for what is flagged; None: the search blocks repetition already."""
    if 0 < options.no_repeat_ngram <= BLOCKED_PHRASE:
        return None
    return replace(options, no_repeat_ngram=BLOCKED_PHRASE)


def runs(ids: Sequence[int]) -> list[int]:
    """Return for each phrase length from 1 how many times a phrase of so many tokens comes in a row at the most."""
    found = []
    for size in range(1, min(LONGEST_PHRASE, len(ids) // 2) + 1):
        longest = now = 0
        for one, other in zip(ids, ids[size:], strict=False):
            now = now + 1 if one == other else 0
            longest = max(longest, now)
        found.append(longest // size + 1)
    return found


def _repeated_in_a_row(ids: Sequence[int], source: Sequence[int]) -> int:
    beyond = {
        size: times for size, times in enumerate(runs(ids), start=1) if times > IN_A_ROW + (size == 1)
    }  # nearly always none
    excused = 1 + max(runs(source), default=1) if beyond else 0
    return max([0, *((times - max(excused, IN_A_ROW + (size == 1))) * size for size, times in beyond.items())])


def _repeated_anywhere(ids: Sequence[int], source: Sequence[int]) -> int:
    beyond = [times for times in _phrases(ids, COUNTED_PHRASE).values() if times > ANYWHERE]
    # Half as long in the source: where one language needs four tokens, another may need two.
    excused = 2 * max(_phrases(source, COUNTED_PHRASE // 2).values(), default=1) if beyond else 0
    return sum(max(0, times - max(excused, ANYWHERE)) for times in beyond)


def _phrases(ids: Sequence[int], size: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(ids[start:] for start in range(size)), strict=False))
