"""Links between the words of a sentence pair, as Pharaoh files write them, and what they mean for its tokens.

Words are what stands between white space, as aligners count them. Data, guided attention and `Translator` call it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec, Codecs

Links = set[tuple[int, int]]  # source word, target word, both from 0

_LINK = re.compile(r"([0-9]{1,9})([-?])([0-9]{1,9})")


class AlignedPair(NamedTuple):
    """A sentence pair, and which of its words belong together."""

    source: str
    target: str
    sure: Links
    possible: Links  # the sure ones too


def aligned_pair(source: str, target: str, links: str, *, possible: bool = False) -> AlignedPair:
    """Return the pair with what a Pharaoh line says of it: `0-1` a link, and if `possible` `0?1` a possible one.

    Raises `UserError`, which names no file, at anything else and at links of words that are not there.
    """
    sources, targets = len(source.split()), len(target.split())
    pair = AlignedPair(source, target, set(), set())
    for text in links.split():
        match = _LINK.fullmatch(text)
        if match is None or (match[2] == "?" and not possible):
            how = "0-1 for the first source word and the second target word"
            raise UserError(f"{text[:40]!r} is not a link; write {how}" + ", 0?1 for a possible link" * possible)
        link = int(match[1]), int(match[3])
        if link[0] >= sources or link[1] >= targets:
            raise UserError(
                f"{text!r} links a word that is not there: the pair has {sources} source and {targets} target words; "
                "count words between spaces from 0"
            )
        pair.possible.add(link)
        if match[2] == "-":
            pair.sure.add(link)
    return pair


def token_words(codec: Codec, text: str) -> list[int]:
    """Return for each token of a text which word it belongs to, a separator or a doubled space to the word after it.

    A text whose normalisation changes where words end may give another number of tokens than `codec.encode`.
    """
    last = max(0, len(text.split()) - 1)
    words: list[int] = []
    number = 0  # of the next word
    for unit in codec.tokenizer.words(codec.preparation(text)):
        tokens = len(codec.encode(unit) if unit else codec.tokenizer.tokens(unit))
        words += [min(number, last)] * (tokens + (bool(words) and codec.tokenizer.separator is not None))
        number += len(unit.split())
    return words


def token_links(codecs: Codecs, pair: AlignedPair, lengths: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return the links between tokens, (links, 2): place in the target, place in the source, in order, each once.

    Tokens are linked where their words surely are. `lengths`: source and target tokens of the pair; where the words
    have another number of them, because normalisation changes where words end, nothing is linked.
    """
    sources, targets = token_words(codecs.source, pair.source), token_words(codecs.target, pair.target)
    if not pair.sure or [len(sources), len(targets)] != list(lengths):
        return np.zeros((0, 2), dtype=np.int32)
    linked = np.zeros((len(pair.target.split()), len(pair.source.split())), dtype=bool)  # words
    for source, target in pair.sure:
        linked[target, source] = True
    return np.argwhere(linked[np.ix_(targets, sources)]).astype(np.int32)


def word_links(codecs: Codecs, source: str, target: str, row: Sequence[int]) -> Links:
    """Return the links between the words of two texts; none where normalisation changes where words end.

    row: of each target token the place of its source token.
    """
    source_words, target_words = token_words(codecs.source, source), token_words(codecs.target, target)
    if len(target_words) != len(row) or max(row) >= len(source_words):
        return set()
    return {(source_words[place], word) for word, place in zip(target_words, row, strict=True)}
