"""Word alignments of a training set by statistics alone, as supervision for guided attention: a Pharaoh file.

    .venv/bin/python experiments/word_alignments.py --source train.de --target train.en -o train.align

IBM Model 1 (Brown et al. 1993) with a preference for the diagonal (Dyer et al. 2013, "A Simple, Fast, and Effective
Reparameterization of IBM Model 2"), learned by expectation-maximisation in both directions, whose links are then joined
(grow-diag-final-and, Koehn et al. 2003). Words stand between spaces; case and punctuation at their ends are ignored.
The hand-aligned pairs are aligned with the rest and never learned from by their links: their alignment error rate is
printed. Needs some 2 GB for 30,000 sentences. Where there are tools for this (fast_align, eflomal), use those.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from alignments import alignment_error_rate, read_aligned_pairs

from transformer_cli.data.corpora import TextCorpus
from transformer_cli.errors import UserError
from transformer_cli.text.alignments import Links

PAIRS = Path(__file__).with_name("hand_aligned.de-en.tsv")
ROUNDS = 5
TENSION = 4.0  # how much the diagonal is preferred
NOWHERE = 0.08  # probability that a word belongs to none of the other side
LEAST = 1e-7  # probability of two words that were never seen together

Words = list[npt.NDArray[np.int64]]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--output", "-o", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="hand-aligned pairs to judge by")
    options = parser.parse_args()
    judged = read_aligned_pairs(options.pairs)
    corpus = [*TextCorpus(options.source, options.target).pairs()]
    sources = [*(source for source, _ in corpus), *(pair.source for pair in judged)]
    targets = [*(target for _, target in corpus), *(pair.target for pair in judged)]
    numbers: dict[str, int] = {}
    source, target = (
        [_numbered(line, numbers, side) for line in lines] for side, lines in enumerate([sources, targets])
    )
    forward, backward = align(source, target), align(target, source)
    found = [
        grow(ahead, {(s, t) for t, s in back}, len(s_words), len(t_words))
        for ahead, back, s_words, t_words in zip(forward, backward, source, target, strict=True)
    ]
    count = len(corpus)
    lines = (" ".join(f"{s}-{t}" for s, t in sorted(links)) + "\n" for links in found[:count])
    options.output.write_text("".join(lines))
    reversed_ = [{(s, t) for t, s in back} for back in backward]
    for name, links in (("source to target", forward), ("target to source", reversed_), ("both, joined", found)):
        print(f"{name}: alignment error rate {alignment_error_rate(links[count:], judged):.3f}")


def _numbered(line: str, numbers: dict[str, int], side: int) -> npt.NDArray[np.int64]:
    words = [word.lower().strip(".,;:!?\"'()") or word for word in line.split()]
    return np.array([numbers.setdefault(f"{side} {word}", len(numbers)) for word in words], dtype=np.int64)


def align(source: Words, target: Words) -> list[Links]:
    """Of each pair the likeliest source word of each target word, where it is likelier than none; (source, target)."""
    pair, place, other, prior = _cells(source, target)
    words = 1 + max(int(row.max(initial=0)) for row in (*source, *target))
    flat_source, flat_target = np.concatenate(source), np.concatenate(target)
    starts_source, starts_target = (np.cumsum([0, *map(len, rows)]) for rows in (source, target))
    token = starts_target[pair] + place  # the target word of each cell, among all
    of_source = np.where(other < 0, words, flat_source[starts_source[pair] + np.maximum(other, 0)])
    kinds, kind = np.unique(of_source * (words + 1) + flat_target[token], return_inverse=True)
    first = kinds // (words + 1)  # the source word of each kind of cell
    probability = np.full(len(kinds), 1.0)
    for _ in range(ROUNDS):
        weight = prior * probability[kind]
        weight /= np.bincount(token, weight, len(flat_target))[token]
        counts = np.bincount(kind, weight, len(kinds))
        probability = np.maximum(counts / np.bincount(first, counts, words + 1)[first], LEAST)
    weight = prior * probability[kind]
    order = np.lexsort((weight, token))
    best = order[np.append(np.flatnonzero(np.diff(token[order])), len(order) - 1)]  # the last of each token
    found: list[Links] = [set() for _ in source]
    for cell in best[other[best] >= 0].tolist():
        found[pair[cell]].add((int(other[cell]), int(place[cell])))
    return found


def _cells(source: Words, target: Words) -> tuple[npt.NDArray[np.int64], ...]:
    """Every target word with every source word of its pair and with none (-1): pair, place, source place, prior."""
    columns: list[list[npt.NDArray[np.float64]]] = [[], [], [], []]
    for number, (sources, targets) in enumerate(zip(map(len, source), map(len, target), strict=True)):
        if not sources or not targets:
            continue
        t, s = np.meshgrid(np.arange(targets), np.arange(-1, sources), indexing="ij")
        prior = np.exp(-TENSION * np.abs((t + 0.5) / targets - (s + 0.5) / sources))
        prior[:, 0] = 0
        prior *= (1 - NOWHERE) / prior.sum(axis=1, keepdims=True)
        prior[:, 0] = NOWHERE
        for column, values in zip(columns, (np.full(t.size, number), t.ravel(), s.ravel(), prior.ravel()), strict=True):
            column.append(values)
    pair, place, other = (np.concatenate(column).astype(np.int64) for column in columns[:3])
    return pair, place, other, np.concatenate(columns[3])


def grow(forward: Links, backward: Links, sources: int, targets: int) -> Links:
    """grow-diag-final-and: what both have; what either has beside that; what links two words that nothing links."""
    links, either = forward & backward, forward | backward
    grown = True
    while grown:
        free_source = set(range(sources)) - {s for s, _ in links}
        free_target = set(range(targets)) - {t for _, t in links}
        grown = False
        for s, t in sorted(either - links):
            beside = any((s + x, t + y) in links for x in (-1, 0, 1) for y in (-1, 0, 1))
            if beside and (s in free_source or t in free_target):
                links = links | {(s, t)}
                free_source.discard(s)
                free_target.discard(t)
                grown = True
    for direction in (forward, backward):
        for s, t in sorted(direction - links):
            if all(s != a for a, _ in links) and all(t != b for _, b in links):
                links = links | {(s, t)}
    return links


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
