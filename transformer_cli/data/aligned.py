"""A corpus whose words are aligned: beside its pairs a Pharaoh file, line n with the links of pair n. No torch.

`training.preparation` makes one where the config guides attention by alignments. What the links of words mean for
tokens is decided here too, for the encoder.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transformer_cli.data.corpora import COUNTED, Corpus, LocalFile, dropped
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import TextLines, read_lines
from transformer_cli.text.token_words import token_words

WordLinks = list[tuple[int, int]]  # source word, target word, both from 0

_LINK = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


class AlignedPair(NamedTuple):
    """A sentence pair, and which of its words, apart by white space, belong together."""

    source: str
    target: str
    links: WordLinks


class AlignedCorpus:
    """The pairs of a corpus with the links that a file has for them."""

    def __init__(self, corpus: Corpus, alignments: str | Path):
        self.corpus, self.alignments = corpus, LocalFile(alignments)
        self.notes: list[str] = []

    def pairs(self) -> Iterator[AlignedPair]:
        """Raises `UserError`, with file and line, at what is no link, at links of words that are not there, and where
        the file has fewer or more lines than the corpus has pairs; and whatever the corpus raises."""
        lines = read_lines(self.alignments.path)
        number = 0
        for number, (source, target) in enumerate(self.corpus.pairs(), start=1):
            line = next(lines, None)
            if line is None:
                raise UserError(
                    f"{lines.path}:{number}: is missing: the file has {number - 1:,} lines, and "
                    f"{self.corpus.describe()} more pairs; it needs a line for each pair, an empty one for none linked"
                )
            yield AlignedPair(source, target, self._links(line, number, len(source.split()), len(target.split())))
        self._check_end(lines, number)
        self.notes = [*self.corpus.notes, *dropped(lines)]

    def _links(self, line: str, number: int, sources: int, targets: int) -> WordLinks:
        links: WordLinks = []
        for text in line.split():
            match = _LINK.fullmatch(text)
            if match is None:
                raise UserError(
                    f"{self.alignments.path}:{number}: {text[:40]!r} is no link; write 0-1 for the first source word "
                    "and the second target word"
                )
            source, target = int(match[1]), int(match[2])
            if source >= sources or target >= targets:
                raise UserError(
                    f"{self.alignments.path}:{number}: {text!r} links a word that is not there: the pair has {sources} "
                    f"source and {targets} target words; count words between spaces from 0, and check that the file is "
                    f"of {self.corpus.describe()}"
                )
            links.append((source, target))
        return links

    def _check_end(self, lines: TextLines, pairs: int) -> None:
        more = sum(1 for _ in islice(lines, COUNTED))
        if more:
            count = f"{pairs + more:,}" if more < COUNTED else f"over {pairs + more:,}"
            raise UserError(
                f"{lines.path}:{pairs + 1}: has no counterpart: the file has {count} lines, and "
                f"{self.corpus.describe()} {pairs:,} pairs; it needs a line for each pair"
            )

    def content_hash(self) -> str:
        """Of the corpus and the bytes of the file."""
        parts = f"aligned {self.corpus.content_hash()} {self.alignments.content_hash()}"
        return hashlib.sha256(parts.encode()).hexdigest()

    def describe(self) -> str:
        """The corpus and the file."""
        return f"{self.corpus.describe()}, {self.alignments.path}"


def token_links(codecs: Codecs, pair: AlignedPair, lengths: Sequence[int]) -> npt.NDArray[np.int32]:
    """The links between tokens, (links, 2): place in the target, place in the source, in that order and each once.

    Tokens are linked where their words are. `lengths`: source and target tokens of the pair; where the words have
    another number of them, because normalisation changes where words end, nothing is linked.
    """
    sources, targets = token_words(codecs.source, pair.source), token_words(codecs.target, pair.target)
    if not pair.links or [len(sources), len(targets)] != list(lengths):
        return np.zeros((0, 2), dtype=np.int32)
    linked = np.zeros((len(pair.target.split()), len(pair.source.split())), dtype=bool)  # words
    for source, target in pair.links:
        linked[target, source] = True
    return np.argwhere(linked[np.ix_(targets, sources)]).astype(np.int32)
