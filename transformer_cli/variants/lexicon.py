"""Which tokens translate which, by statistics of the training text alone: what attention can be guided by from the
first update on, and what embeddings can begin near.

IBM Model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine Translation", §4) with a preference for the
diagonal (Dyer et al. 2013, "A Simple, Fast, and Effective Reparameterization of IBM Model 2", eq. 1-3), learned by
expectation-maximisation in both directions. It knows token ids, not texts: what a batch's tokens are aligned to is
computed when it is needed, however they were drawn.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transformer_cli.data.batch import Batch
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.mixture import Mixture
from transformer_cli.text.vocabulary import EOS, PAD

ROUNDS = 5
TENSION = 4.0  # how much the diagonal is preferred
NOWHERE = 0.08  # probability that a token comes from none of the other side
MOST_CELLS = 10_000_000  # pairs of tokens that stand in one sentence pair; of a larger corpus a part is learned from
LEAST = 1e-4  # probabilities below this are not kept

Reals = NDArray[np.float32]
Numbers = NDArray[np.integer[Any]]


@dataclass
class Direction:
    """Translation probabilities from the tokens of one side to those of the other."""

    probability: Tensor  # (K,) of each kept pair of tokens
    nothing: Tensor  # (V,) of each token of the other side, from none

    def to(self, device: torch.device) -> "Direction":
        """Return it on a device."""
        return Direction(self.probability.to(device), self.nothing.to(device))

    def share(self, known: Tensor, place: Tensor, prior: Tensor, tokens: Tensor) -> Tensor:
        """Return of each token (B, T) the probability that it comes from each of the other side: → (B, T, S).

        known, place (B, T, S): whether and where a pair of tokens is among those kept; prior (B, T, S).
        """
        weight = prior * torch.where(known, self.probability[place], 0.0)
        nothing = NOWHERE * self.nothing[tokens.clamp_max(len(self.nothing) - 1)].clamp_min(
            LEAST
        )  # unseen ones: of no matter
        return weight / (weight.sum(dim=2) + nothing).unsqueeze(2)


@dataclass
class Lexicon:
    """The pairs of tokens that translate each other, with their probabilities in both directions."""

    keys: Tensor  # (K,) rising: source id · SPAN + target id
    forward: Direction  # from source to target
    backward: Direction

    def links(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the source id, the target id and the confidence of each pair, (K,) each.

        The confidence is the geometric mean of the probabilities in both directions.
        """
        both = self.forward.probability * self.backward.probability
        return self.keys // SPAN, self.keys % SPAN, both.sqrt()

    def alignment(self, batch: Batch) -> Tensor:
        """Return how surely each target token and each source token are each other's translation: (B, T, S).

        It is the product of the probabilities in both directions (Liang et al. 2006, "Alignment by Agreement"), so that
        a row has a sum of at most 1. `</s>` and padding have no part.
        """
        source, target = batch.source, batch.target_output
        if self.keys.device != source.device:
            self.keys = self.keys.to(source.device)
            self.forward, self.backward = self.forward.to(source.device), self.backward.to(source.device)
        key = (source[:, None, :] * SPAN + target[:, :, None]).contiguous()
        place = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
        known = self.keys[place] == key
        ours, theirs = _is_word(source), _is_word(target)
        known &= ours[:, None, :] & theirs[:, :, None]
        near = _near_diagonal(ours, theirs)  # (B, T, S)
        ahead = self.forward.share(known, place, near / near.sum(dim=2, keepdim=True).clamp_min(1e-9), target)
        prior = near / near.sum(dim=1, keepdim=True).clamp_min(1e-9)
        back = self.backward.share(known.mT, place.mT, prior.mT, source).mT
        return ahead * back


SPAN = 1 << 32  # more than a vocabulary has ids


def _is_word(ids: Tensor) -> Tensor:
    return (ids != PAD) & (ids != EOS)


def _near_diagonal(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return the preference for the diagonal, (B, T, S), from what is a word on both sides, (B, S) and (B, T)."""
    along = [
        (torch.arange(words.size(1), device=words.device) + 0.5) / words.sum(dim=1, keepdim=True).clamp_min(1)
        for words in (ours, theirs)
    ]
    near = torch.exp(-TENSION * (along[1][:, :, None] - along[0][:, None, :]).abs())
    return near * (ours[:, None, :] & theirs[:, :, None])


def learn_lexicon(corpus: EncodedCorpus | Mixture) -> Lexicon:
    """Learn from an encoded corpus: from all of it, or from pairs at even distances where it is large."""
    cells = corpus.source_lengths.astype(np.int64) * corpus.target_lengths
    step = -(-int(cells.sum()) // MOST_CELLS)
    pairs = [tuple(side.astype(np.int64) for side in corpus.ids(pair)) for pair in range(0, len(cells), max(1, step))]
    sources, targets = (np.concatenate(side) for side in zip(*pairs, strict=True))
    ours, theirs = (np.array([len(ids) for ids in side]) for side in zip(*pairs, strict=True))
    source, target, near = _cells(ours, theirs)
    keys, kind = np.unique(sources[source] * SPAN + targets[target], return_inverse=True)
    kind = kind.astype(np.int32)
    kinds = np.divmod(keys, SPAN)
    size = 1 + int(max(kinds[0].max(), kinds[1].max()))
    ahead = _learn(kind, kinds[0], target, targets, near, size)
    back = _learn(kind, kinds[1], source, sources, near, size)
    kept = (ahead[0] >= LEAST) & (back[0] >= LEAST)
    directions = (
        Direction(torch.from_numpy(probability[kept]), torch.from_numpy(nothing))
        for probability, nothing in (ahead, back)
    )
    return Lexicon(torch.from_numpy(keys[kept]), *directions)


def _cells(ours: Numbers, theirs: Numbers) -> tuple[Numbers, Numbers, Reals]:
    """Return every pair of tokens of every sentence pair: where both stand in the corpus, and how near the diagonal.

    ours, theirs: tokens of each source and target.
    """
    cells = ours * theirs
    owner = np.repeat(np.arange(len(cells), dtype=np.int32), cells)
    within = np.arange(len(owner), dtype=np.int32) - (np.cumsum(cells) - cells).astype(np.int32)[owner]
    target, source = np.divmod(within, ours.astype(np.int32)[owner])
    along = [
        (place + np.float32(0.5)) / side.astype(np.float32)[owner] for place, side in ((target, theirs), (source, ours))
    ]
    near = np.exp(-TENSION * np.abs(along[0] - along[1]))
    before, ahead = ((np.cumsum(side) - side).astype(np.int32)[owner] for side in (ours, theirs))
    return source + before, target + ahead, near


def _learn(
    kind: Numbers, given: Numbers, token: Numbers, tokens: Numbers, near: Reals, size: int
) -> tuple[Reals, Reals]:
    """Return the probability of each kind of cell, and of each id from nothing, by expectation-maximisation.

    kind: of each cell; given: the id that each kind comes from; token: the place of each cell's other token, whose ids
    are `tokens`; size: of the vocabulary.
    """
    prior = near * ((1 - NOWHERE) / np.bincount(token, near, len(tokens)).astype(np.float32))[token]
    probability: NDArray[np.float64] = np.full(len(given), 1 / size)
    nothing: NDArray[np.float64] = np.full(size, 1 / size)
    for _ in range(ROUNDS):
        weight = prior * probability[kind]
        alone = NOWHERE * nothing[tokens]
        total = np.bincount(token, weight, len(tokens)) + alone
        counts = np.bincount(kind, weight / total[token], len(given))
        probability = counts / np.bincount(given, counts, size)[given]
        counts = np.bincount(tokens, alone / total, size)
        nothing = counts / counts.sum()
    return probability.astype(np.float32), nothing.astype(np.float32)
