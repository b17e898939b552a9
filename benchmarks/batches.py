"""The sentences of a benchmark: generated, and padded alike by every contender. Needs no tfm."""

from typing import NamedTuple

import torch
from torch import Tensor

PAD, UNK, BOS, EOS = range(4)
Pairs = list[tuple[list[int], list[int]]]  # (source ids, target ids) of each sentence, without specials


class Lengths(NamedTuple):
    """How long sentences are in subwords, `</s>` included: of their logarithms, for source and target."""

    means: tuple[float, float]
    deviations: tuple[float, float]
    correlation: float
    longest: int


MULTI30K = Lengths((2.71, 2.685), (0.333, 0.296), 0.858, longest=60)  # German and English, measured: 15.9 and 15.3
WMT = Lengths((3.15, 3.15), (0.55, 0.55), 0.9, longest=120)  # 27 on average, roughly newstest and WMT 2014's


class PaddedBatch(NamedTuple):
    """B sentence pairs, padded on the right with `PAD`."""

    source: Tensor  # (B, S) x </s>
    target_input: Tensor  # (B, T) <s> y
    target_output: Tensor  # (B, T) y </s>
    target_tokens: int  # of target_output, padding not included


def generate_sentences(count: int, vocabulary: int, lengths: Lengths = MULTI30K) -> Pairs:
    """Ids of Zipf's distribution in sentences whose lengths are log-normal, both sides correlated."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(2, count, generator=generator)
    noise[1] = lengths.correlation * noise[0] + (1 - lengths.correlation**2) ** 0.5 * noise[1]
    means, deviations = (torch.tensor(values)[:, None] for values in (lengths.means, lengths.deviations))
    counts = (means + deviations * noise).exp().round().clamp(4, lengths.longest).long() - 1  # without </s>
    shares = 1 / torch.arange(1, vocabulary - 3, dtype=torch.float64)
    ids = (torch.multinomial(shares, int(counts.sum()), replacement=True, generator=generator) + 4).tolist()
    pairs, start = [], 0
    for source, target in counts.t().tolist():
        pairs.append((ids[start : start + source], ids[start + source : start + source + target]))
        start += source + target
    return pairs


def pad(pairs: Pairs) -> PaddedBatch:
    """Add the specials and pad."""
    return PaddedBatch(
        _rows([[*source, EOS] for source, _ in pairs]),
        _rows([[BOS, *target] for _, target in pairs]),
        _rows([[*target, EOS] for _, target in pairs]),
        sum(len(target) + 1 for _, target in pairs),
    )


def _rows(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
