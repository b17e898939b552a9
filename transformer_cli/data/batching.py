"""Which sentence pairs go together: the batches of an epoch, as a pure function of lengths, seed and epoch.

Called by the loader, and by training to say how much padding there is and which batch is the costliest. numpy only.
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int32]

_TIE_BITS = 28  # random bits that order pairs of equal lengths
_BLOCK = 1 << 16  # pairs that are dealt out at a time: few enough for the processor's cache
_GOOD_ENOUGH = 0.98  # share of cells that are tokens from which on no better plan is looked for
_TOGETHER = 1 << 20  # pairs that are put in order together: enough of each length, in bounded time and memory


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The batches of one epoch: `plan[i]` is the pairs (their indices) of batch i."""

    order: npt.NDArray[np.integer[Any]]  # (N,) the pairs of the epoch, those of a batch side by side
    starts: npt.NDArray[np.int64]  # (batches,) where batch i begins in `order`
    stops: npt.NDArray[np.int64]  # (batches,) where it ends
    longest_source: Lengths  # (batches,) with </s>, and rounded up where `pad_to` asks for it
    longest_target: Lengths  # (batches,) likewise
    source_tokens: int  # of the epoch, padding not included
    target_tokens: int
    recased: int = 0  # sources that noise puts into another case
    too_long: int = 0  # sources that noise leaves as they are, for they would be too long in another case

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, batch: int) -> npt.NDArray[np.integer[Any]]:
        return self.order[self.starts[batch] : self.stops[batch]]

    def padding(self) -> tuple[float, float]:
        """Return the share of padding in all source cells and in all target cells of the epoch."""
        sentences = self.stops - self.starts
        source_cells = int((sentences * self.longest_source).sum())
        target_cells = int((sentences * self.longest_target).sum())
        return 1 - self.source_tokens / source_cells, 1 - self.target_tokens / target_cells

    def costliest(self) -> int:
        """Return the batch that needs the most memory, roughly: its cells, where a target cell also carries logits over
        the vocabulary and long rows carry attention over each other."""
        sentences = self.stops - self.starts
        cells = sentences * (self.longest_source + 2.0 * self.longest_target)
        rows = np.maximum(self.longest_source, self.longest_target)
        return int(np.argmax(cells * (1 + rows / 1024)))


def plan_epoch(
    source_lengths: Lengths, target_lengths: Lengths, *, batch_tokens: int, seed: int, epoch: int
) -> BatchPlan:
    """Group pairs of like lengths into batches and shuffle the batches.

    Lengths (N,) include `</s>` and are at most `batch_tokens`. A batch holds as many pairs as keep sentences × the
    longer of its longest source and longest target within `batch_tokens`. Pairs of like lengths are grouped anew in
    each epoch. A corpus of more than a million pairs is dealt out to equal parts; a batch has pairs of one part, and
    the batches of all parts are shuffled together. Depends on nothing but its arguments: numpy's bit generators give
    the same bits in every version.
    """
    assert len(source_lengths) == len(target_lengths) > 0, "a plan needs pairs"
    assert max(source_lengths.max(), target_lengths.max()) <= batch_tokens, "a pair longer than a whole batch"
    bits = np.random.PCG64(np.random.SeedSequence((seed, epoch)))
    count = math.ceil(len(source_lengths) / _TOGETHER)
    order = np.empty(len(source_lengths), dtype=np.int32)
    parts: list[BatchPlan] = []
    filled = 0
    for number in range(count):  # every `count`-th pair, so that a batch has pairs from all over the corpus
        source, target = (np.ascontiguousarray(side[number::count]) for side in (source_lengths, target_lengths))
        part = _plan_part(source, target, batch_tokens, bits)
        own = order[filled : filled + len(part.order)]
        np.multiply(part.order, count, out=own)
        own += number
        parts.append(replace(part, order=own, starts=part.starts + filled, stops=part.stops + filled))
        filled += len(own)
    if count == 1:
        return parts[0]
    shuffle = np.argsort(bits.random_raw(sum(map(len, parts))), kind="stable")
    return BatchPlan(
        order=order,
        starts=np.concatenate([part.starts for part in parts])[shuffle],
        stops=np.concatenate([part.stops for part in parts])[shuffle],
        longest_source=np.concatenate([part.longest_source for part in parts])[shuffle],
        longest_target=np.concatenate([part.longest_target for part in parts])[shuffle],
        source_tokens=sum(part.source_tokens for part in parts),
        target_tokens=sum(part.target_tokens for part in parts),
    )


def _plan_part(source_lengths: Lengths, target_lengths: Lengths, batch_tokens: int, bits: np.random.PCG64) -> BatchPlan:
    """Return the batches of pairs that are put in order together, shuffled."""
    source_tokens = int(source_lengths.sum(dtype=np.int64))
    target_tokens = int(target_lengths.sum(dtype=np.int64))

    fewest_cells = 2**63 - 1
    for width in range(1, int(target_lengths.max()) + 1):
        order, sources, targets = _by_length(source_lengths, target_lengths, width, bits)
        starts = _cut(np.maximum(sources, targets), batch_tokens)
        longest_source = np.maximum.reduceat(sources, starts)
        longest_target = np.maximum.reduceat(targets, starts)
        stops = np.append(starts[1:], len(order))
        cells = int(((stops - starts) * (longest_source.astype(np.int64) + longest_target)).sum())
        if cells >= fewest_cells:
            break  # the width before this one wastes the least
        shuffle = np.argsort(bits.random_raw(len(starts)), kind="stable")
        plan = BatchPlan(
            order=order,
            starts=starts[shuffle],
            stops=stops[shuffle],
            longest_source=longest_source[shuffle],
            longest_target=longest_target[shuffle],
            source_tokens=source_tokens,
            target_tokens=target_tokens,
        )
        fewest_cells = cells
        if cells * _GOOD_ENOUGH <= source_tokens + target_tokens:
            break
    return plan


def _by_length(
    source_lengths: Lengths, target_lengths: Lengths, width: int, bits: np.random.PCG64
) -> tuple[Lengths, Lengths, Lengths]:
    """Order the pairs by target length in steps of `width`, then by source length, then at random.

    Returns pairs, source lengths and target lengths in that order, (N,) each. Source lengths go up within one step and
    down within the next (a snake), so that neighbours stay alike where the target length changes. Wider steps pad the
    target more and the source less, which pays where batches are so large that one holds many target lengths.

    Pairs are dealt out to their steps first, a block at a time, and each step is sorted by itself: memory is read and
    written in order, so that ten times the pairs take ten times as long, and no whole array is needed but the results
    and the ties.
    """
    blocks = [slice(first, first + _BLOCK) for first in range(0, len(source_lengths), _BLOCK)]
    steps = int(target_lengths.max()) // width + 1
    counts = np.zeros(steps, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(target_lengths[block] // width, minlength=steps)
    order, sources, targets = (
        np.empty(len(source_lengths), dtype=np.int32) for _ in range(3)
    )  # a plan keeps the first
    ties = np.empty(len(source_lengths), dtype=np.uint32)
    free = np.cumsum(counts) - counts  # (steps,) where the next pair of each goes
    for block in blocks:
        step = (target_lengths[block] // width).astype(np.min_scalar_type(steps))  # numpy sorts 16 bits by digits
        drawn = bits.random_raw(len(step)) >> np.uint64(64 - _TIE_BITS)
        by_step, found = np.argsort(step, kind="stable"), np.bincount(step, minlength=steps)
        places = np.repeat(free - (np.cumsum(found) - found), found) + np.arange(len(step))
        free += found
        order[places] = by_step + block.start
        sources[places], targets[places] = source_lengths[block][by_step], target_lengths[block][by_step]
        ties[places] = drawn[by_step]

    longest = int(source_lengths.max())
    ends = np.cumsum(counts[counts > 0]).tolist()
    for rank, (first, end) in enumerate(itertools.pairwise([0, *ends])):
        own = sources[first:end]
        snake = own if rank % 2 == 0 else longest - own
        places = _stable_order(snake.astype(np.int64) << _TIE_BITS | ties[first:end])
        for values in (order, sources, targets):
            values[first:end] = values[first:end][places]
    return order, sources, targets


def _stable_order(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return `np.argsort(keys, kind="stable")` of keys that are not negative, and change them.

    With its place in its lowest bits no key is there twice, so a faster sort, in place, gives the same order.
    """
    bits = len(keys).bit_length()
    if int(keys.max()).bit_length() + bits > 63:
        return np.argsort(keys, kind="stable")
    keys <<= bits
    keys |= np.arange(len(keys))
    keys.sort()
    return keys & ((1 << bits) - 1)


def _cut(longest: Lengths, batch_tokens: int) -> npt.NDArray[np.int64]:
    """Return where each batch begins, if every batch is filled as far as `batch_tokens` allows.

    `longest` (N,) is each pair's longer side, in the order of the plan.
    """
    starts = []
    start = 0
    while start < len(longest):
        starts.append(start)
        # no more pairs than this fit, since the first is no longer than the longest of them
        window = longest[start : start + batch_tokens // int(longest[start])]
        cells = np.maximum.accumulate(window) * np.arange(1, len(window) + 1)  # grows with each pair
        start += int(np.searchsorted(cells, batch_tokens, side="right"))
    return np.array(starts, dtype=np.int64)
