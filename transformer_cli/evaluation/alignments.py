"""How good alignments are: the error rate against links made by hand (Och & Ney 2003), between words. No torch.

Links are written as in Pharaoh files, `source-target` by the words' places from 0; `source?target` is a possible link.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.decoding.pipeline import batches_by_length
from transformer_cli.errors import UserError
from transformer_cli.text.alignments import AlignedPair, Links, aligned_pair, token_words
from transformer_cli.text.lines import read_lines

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Translator
    from transformer_cli.text.codec import Codecs


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
        try:
            pairs.append(aligned_pair(source, target, links, possible=True))
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None
    return pairs


def alignment_error_rate(found: Sequence[Links], pairs: Sequence[AlignedPair]) -> float:
    """Return 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|) over all pairs (Och & Ney 2003, §5.1): from 0, less is better.

    A: the links found; S: the sure ones; P: the possible ones, among them the sure ones.
    """
    assert len(found) == len(pairs), "links of each pair"
    hits = sum(len(links & pair.sure) + len(links & pair.possible) for links, pair in zip(found, pairs, strict=True))
    total = sum(len(links) + len(pair.sure) for links, pair in zip(found, pairs, strict=True))
    return 1 - hits / total if total else 0.0


def diagonal(pair: AlignedPair) -> Links:
    """Return each target word with the source word that is as far along: what any alignment should be better than."""
    sources, targets = len(pair.source.split()), len(pair.target.split())
    return {(min(sources - 1, (2 * target + 1) * sources // (2 * targets)), target) for target in range(targets)}


def align_texts(
    translator: "Translator",
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    words: bool = True,
    attention: tuple[int, Sequence[int] | None] | None = None,
) -> list[Links]:
    """Return the links that a model finds between words, or between tokens, of given sources and targets.

    Words are linked where any of their tokens are. `attention`: the decoder layer, and its heads (None: all), whose
    attention to the source gives them; None: those that the model itself takes.
    A text without tokens has no links; nor have the words of one whose normalisation changes where words end.
    """
    codecs = translator.codecs
    source_ids, target_ids = codecs.source.encode_batch(sources), codecs.target.encode_batch(targets)
    layer, heads = attention or (translator.alignment_layer, translator.alignment_heads)
    filled = [pair for pair, both in enumerate(zip(source_ids, target_ids, strict=True)) if all(both)]
    lengths = [max(len(source_ids[pair]), len(target_ids[pair])) for pair in filled]
    found: list[Links] = [set() for _ in sources]
    for batch in batches_by_length(lengths, translator.config.decoding.batch_tokens):
        places = [filled[number] for number in batch]
        rows = translator.engine.align(
            [source_ids[place] for place in places],
            [target_ids[place] for place in places],
            layer,
            heads,
        )
        for place, row in zip(places, rows, strict=True):
            links = {(source, target) for target, source in enumerate(row)}
            found[place] = _of_words(codecs, sources[place], targets[place], row) if words else links
    return found


def _of_words(codecs: "Codecs", source: str, target: str, row: Sequence[int]) -> Links:
    """Return the links between the words of two texts; row: of each target token the place of its source token."""
    source_words, target_words = token_words(codecs.source, source), token_words(codecs.target, target)
    if len(target_words) != len(row) or max(row) >= len(source_words):
        return set()
    return {(source_words[place], word) for word, place in zip(target_words, row, strict=True)}
