"""Alignment error rate of a model on 50 hand-aligned German-English pairs, for each layer and each head. For example:

    .venv/bin/python experiments/alignments.py checkpoints/multi30k_de_en_plain

Prints a Markdown table. Sure and possible links are in `hand_aligned.de-en.tsv`; words stand between spaces.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from transformer_cli import Translator
from transformer_cli.decoding.engines import torch_engine
from transformer_cli.errors import UserError
from transformer_cli.text.alignments import AlignedPair, Links, aligned_pair
from transformer_cli.text.lines import read_lines

PAIRS = Path(__file__).with_name("hand_aligned.de-en.tsv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder or checkpoint folder of a German-English model")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="TSV file: source, target, links")
    options = parser.parse_args()
    pairs = read_aligned_pairs(options.pairs)
    translator = Translator.load(options.model, device="cpu", engine="torch")
    config = translator.config.model
    sources = [" ".join(pair.source.split()) for pair in pairs]
    targets = [" ".join(pair.target.split()) for pair in pairs]

    def rate(layer: int, heads: list[int] | None = None) -> str:
        links = translator.align(sources, targets, attention=(layer, heads))
        return f"{alignment_error_rate(links, pairs):.3f}"

    def peaks(weights: "np.ndarray[tuple[int, int], np.dtype[np.float64]]") -> list[int]:
        """What `own_sources` would be if weights counted as they are."""
        return [int(place) for place in weights.argmax(axis=1)]

    print(f"{len(pairs)} pairs; diagonal: {alignment_error_rate([diagonal(pair) for pair in pairs], pairs):.3f}\n")
    heads = range(config.heads)
    print("| layer | highest weight, mean | share, mean |", *(f"share, head {head + 1} |" for head in heads))
    print("|" + "---|" * (3 + config.heads))
    for layer in range(config.decoder_layers):
        with mock.patch.object(torch_engine, "own_sources", peaks):
            highest = rate(layer)
        print(f"| {layer + 1} | {highest} | {rate(layer)} |", *(f"{rate(layer, [head])} |" for head in heads))
    layer, learned = translator.config.alignment_attention
    if learned is not None:
        with mock.patch.object(torch_engine, "own_sources", peaks):
            highest = rate(layer, [*learned])
        print(f"\nwhat learned to align: {rate(layer, [*learned])} by the share, {highest} by the highest weight")


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


if __name__ == "__main__":
    main()
