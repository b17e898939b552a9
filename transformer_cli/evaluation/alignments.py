"""How good alignments are: the error rate against links made by hand (Och & Ney 2003), between words. No torch.

Links are written as in Pharaoh files, `source-target` by the words' places from 0; `source?target` is a possible link.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.errors import UserError
from transformer_cli.text.lines import read_lines
from transformer_cli.text.token_words import token_words

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Translator

Links = set[tuple[int, int]]  # source word, target word

_LINK = re.compile(r"(\d+)([-?])(\d+)", re.ASCII)


@dataclass(frozen=True)
class AlignedPair:
    """A sentence pair whose words were linked by hand. Words stand between spaces."""

    source: str
    target: str
    sure: Links
    possible: Links  # the sure ones too


def read_aligned_pairs(path: str | Path) -> list[AlignedPair]:
    """Read a TSV file: source, target, links. Raises `UserError` with file and line where a line is anything else."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 3:
            raise UserError(
                f"{path}:{number}: has {len(columns)} columns; write source, target and links, tabs between"
            )
        source, target, links = columns
        sure: Links = set()
        possible: Links = set()
        for text in links.split():
            match = _LINK.fullmatch(text)
            if match is None:
                raise UserError(f"{path}:{number}: {text!r} is no link; write 0-1, or 0?1 for a possible one")
            link = int(match[1]), int(match[3])
            if link[0] >= len(source.split()) or link[1] >= len(target.split()):
                raise UserError(f"{path}:{number}: {text!r} links a word that is not there; count words from 0")
            possible.add(link)
            if match[2] == "-":
                sure.add(link)
        pairs.append(AlignedPair(source, target, sure, possible))
    return pairs


def alignment_error_rate(found: Sequence[Links], pairs: Sequence[AlignedPair]) -> float:
    """1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all pairs (Och & Ney 2003, §5.1): from 0, less is better.

    A: the links found; S: the sure ones; P: the possible ones, among them the sure ones.
    """
    assert len(found) == len(pairs), "links of each pair"
    hits = sum(len(links & pair.sure) + len(links & pair.possible) for links, pair in zip(found, pairs, strict=True))
    total = sum(len(links) + len(pair.sure) for links, pair in zip(found, pairs, strict=True))
    return 1 - hits / total if total else 0.0


def diagonal(pair: AlignedPair) -> Links:
    """Each target word with the source word that is as far along: what any alignment should be better than."""
    sources, targets = len(pair.source.split()), len(pair.target.split())
    return {(min(sources - 1, (2 * target + 1) * sources // (2 * targets)), target) for target in range(targets)}


def model_links(
    translator: "Translator", pairs: Sequence[AlignedPair], layer: int = -1, heads: Sequence[int] | None = None
) -> list[Links]:
    """The links between words that a model finds in given pairs, by the cross-attention of a layer.

    Words are linked where any of their tokens are.
    """
    codecs = translator.codecs
    sources = [codecs.source.encode(" ".join(pair.source.split())) for pair in pairs]
    targets = [codecs.target.encode(" ".join(pair.target.split())) for pair in pairs]
    rows = translator.engine.align(sources, targets, layer, heads)
    found = []
    for pair, row in zip(pairs, rows, strict=True):
        source_words = token_words(codecs.source, pair.source)
        target_words = token_words(codecs.target, pair.target)
        found.append({(source_words[place], word) for word, place in zip(target_words, row, strict=True)})
    return found
