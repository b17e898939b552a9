"""Alignment error rate of a model on 50 hand-aligned German-English pairs, for each layer and each head. For example:

    .venv/bin/python experiments/alignments.py checkpoints/multi30k_de_en

Prints a Markdown table. Sure and possible links are in `hand_aligned.de-en.tsv`; words stand between spaces.
"""

import argparse
from pathlib import Path
from unittest import mock

import numpy as np

from transformer_cli import Translator
from transformer_cli.decoding.engines import torch_engine
from transformer_cli.evaluation.alignments import align_texts, alignment_error_rate, diagonal, read_aligned_pairs

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
        links = align_texts(translator, sources, targets, attention=(layer, heads))
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


if __name__ == "__main__":
    main()
