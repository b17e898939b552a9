"""How much text a corpus has to learn from: what `model.preset: auto` goes by. No torch."""

import re
from collections import Counter

from transformer_cli.config import DataConfig
from transformer_cli.config.presets import CorpusSize
from transformer_cli.data.corpora import open_split
from transformer_cli.text.lines import with_bar

MOST_COMPARED = 1_000_000  # pairs among which repetitions are sought; beyond them the same share is taken to be one
# Characters of scripts that write a word or a syllable with one: about three letters of an alphabet each.
_DENSE = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_LETTERS = 3
# Of a token, at most so many on average: subwords of captions have 3.4 of a vocabulary of 2,000, and 4.1 of 8,000.
_LETTERS_A_TOKEN = 4.5
_COVERED = 0.9995  # share of all characters; what is rarer has no piece of its own (`vocabulary.character_coverage`)


def measure_corpus(data: DataConfig, progress: bool = False) -> CorpusSize:
    """Return the size of what of `data.train` can be trained on, in one pass over it: neither side is blank, nor longer
    than `data.max_length`, as its letters let expect. Filters are not asked. `progress` shows a bar, on a terminal.
    """
    seen: set[int] = set()
    characters: Counter[str] = Counter()
    pairs = letters = 0
    for pair in with_bar(open_split(data, "train").pairs(), "measuring", progress):
        if not all(text.strip() and may_fit(text, data.max_length) for text in pair):
            continue
        if any(_letters(text) > _LETTERS_A_TOKEN * data.max_length for text in pair):  # where no spaces part words, too
            continue
        pairs += 1
        if pairs <= MOST_COMPARED:
            key = hash(pair)
            if key in seen:
                continue
            seen.add(key)
            for text in pair:
                characters.update(text)
        letters += _letters(pair[1])
    compared, covering = min(pairs, MOST_COMPARED), _covering(characters)
    if pairs > compared:  # only the first are known to differ
        share = len(seen) / compared
        letters = round(letters * share * pairs / (len(seen) + pairs - compared))
        return CorpusSize(pairs, round(share * pairs), letters, covering)
    return CorpusSize(pairs, len(seen), letters, covering)


def may_fit(text: str, most: int) -> bool:
    """Return whether a text may have so many tokens at most: a word has one at least."""
    return text.count(" ") < most or len(text.split()) <= most


def _covering(characters: Counter[str]) -> int:
    """Return how many of the commonest characters make up nearly all of the text."""
    rest = _COVERED * characters.total()
    for number, (_, count) in enumerate(characters.most_common()):
        if rest <= 0:
            return number
        rest -= count
    return len(characters)


def _letters(text: str) -> int:
    return len(text) if text.isascii() else len(text) + (_LETTERS - 1) * len(_DENSE.findall(text))
