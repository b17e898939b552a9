"""Batches in the order of the plan, epoch after epoch, from any position on. Called by training and evaluation.

A `Position` is all there is to remember: from it on, the same batches follow, with any number of worker processes.
"""

import hashlib
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from transformer_cli.data.batch import Batch, Ids
from transformer_cli.data.batching import BatchPlan, plan_epoch
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.mixture import Mixture
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs

GROWTH = 1.5  # how much longer than planned drawn segmentations may make a batch
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_GRACE = 30.0  # seconds a worker still serves after SIGTERM

Pairs = npt.NDArray[np.integer[Any]]  # indices into a corpus


@dataclass(frozen=True)
class SubwordSampling:
    """What drawing segmentations anew in each epoch needs (BPE-dropout, unigram sampling)."""

    codecs: Codecs
    strength: float  # training.subword_sampling
    max_length: int  # tokens of a side, without </s>


@dataclass(frozen=True)
class CorpusBatches:
    """A corpus in batches: which pairs stand together in each epoch, and the tensors that they become."""

    corpus: EncodedCorpus | Mixture
    batch_tokens: int  # size of a batch: sentences × the longer of its longest source and target, padding included
    seed: int
    pad_to: int = 1  # lengths are padded up to a multiple of this
    sampling: SubwordSampling | None = None  # None: segmented as they were encoded

    def __post_init__(self) -> None:
        assert self.sampling is None or self.corpus.has_texts, "sampling needs a corpus encoded with keep_text"
        assert self.sampling is None or not self.corpus.has_links, "links are of the tokens as they were encoded"

    def plan(self, epoch: int) -> BatchPlan:
        """Return the plan of one epoch, where every sentence gets its `</s>`.

        Lengths count as multiples of `pad_to`, as batches will have them; the plan's tokens are without padding.
        """
        source, target = self.corpus.source_lengths + 1, self.corpus.target_lengths + 1
        mixed = self.corpus.epoch(self.seed, epoch) if isinstance(self.corpus, Mixture) else None
        if mixed is not None:
            source, target = source[mixed % len(self.corpus)], target[mixed % len(self.corpus)]
        padded = (-(-lengths // self.pad_to) * self.pad_to for lengths in (source, target))
        plan = plan_epoch(*padded, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch)
        source_tokens, target_tokens = (int(lengths.sum(dtype=np.int64)) for lengths in (source, target))
        order = plan.order if mixed is None else mixed[plan.order]
        return replace(plan, order=order, source_tokens=source_tokens, target_tokens=target_tokens)

    def read(self, pairs: Pairs, epoch: int = 0) -> Batch:
        """Return the batch of these pairs, segmented as they were encoded or drawn anew.

        What is drawn depends on (seed, epoch, pair, side) alone. A drawn segmentation that is longer than the batch
        may become gives way to the one the plan knows.
        """
        numbers = pairs.tolist()
        if self.sampling is not None:
            limits = self._limits(pairs, self.sampling)
            return Batch.from_ids([self._draw(pair, epoch, limits, self.sampling) for pair in numbers], self.pad_to)
        links = None
        if isinstance(self.corpus, EncodedCorpus) and self.corpus.has_links:
            links = [self.corpus.links(pair) for pair in numbers]
        return Batch.from_ids([self.corpus.ids(pair) for pair in numbers], self.pad_to, links)

    def largest(self, pairs: Pairs) -> Batch:
        """Return the most cells that `read` can make of these pairs: for trying whether the memory suffices."""
        if self.sampling is None:
            return self.read(pairs)
        limits = self._limits(pairs, self.sampling)
        planned = [self.corpus.ids(pair) for pair in pairs.tolist()]
        resized = [(np.resize(source, limits[0]), np.resize(target, limits[1])) for source, target in planned]
        return Batch.from_ids(resized, self.pad_to)

    def _limits(self, pairs: Pairs, sampling: SubwordSampling) -> tuple[int, int]:
        """Return the longest source and target that drawing may give in a batch: `GROWTH` × the longest planned."""
        source, target = (
            min(sampling.max_length, int(GROWTH * int(lengths[pairs % len(self.corpus)].max())))
            for lengths in (self.corpus.source_lengths, self.corpus.target_lengths)
        )
        return source, target

    def _draw(self, pair: int, epoch: int, limits: tuple[int, int], sampling: SubwordSampling) -> tuple[Ids, Ids]:
        sides = {"source": sampling.codecs.source, "target": sampling.codecs.target}
        drawn: list[Ids] = []
        for (side, codec), text, planned, limit in zip(
            sides.items(), self.corpus.texts(pair), self.corpus.ids(pair), limits, strict=True
        ):
            key = f"{self.seed} {epoch} {pair} {side}".encode()
            ids = codec.sample(text, sampling.strength, int.from_bytes(hashlib.sha256(key).digest()[:8]))
            drawn.append(ids if 0 < len(ids) <= limit else planned)
        return drawn[0], drawn[1]


class Position(NamedTuple):
    """A batch of the endless sequence: the epoch and the batch within its plan, both from 0."""

    epoch: int
    batch: int


START = Position(0, 0)


@dataclass(frozen=True)
class UpdateBatches:
    """One rank's share of an update."""

    next_position: Position  # where the plan continues after the whole update
    batches: list[Batch]  # none where an epoch ends in fewer batches than there are ranks

    def pin_memory(self) -> "UpdateBatches":
        """Return the same in page-locked memory; the data loader calls it."""
        return UpdateBatches(self.next_position, [batch.pin_memory() for batch in self.batches])


def load_updates(
    batches: CorpusBatches,
    *,
    accumulation: int = 1,
    start: Position = START,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
    pin: bool = False,
) -> Iterator[UpdateBatches]:
    """Yield updates without end, from `start` on: of each what this rank has to do.

    An update takes the plan's next `accumulation` × `ranks` batches of one epoch, the epoch's last what is left; the
    ranks deal them out in turn. `start` may stand behind the last batch of an epoch: the next epoch follows. `workers`
    processes read ahead (0: none); they change neither the batches nor their order. `pin` puts tensors into
    page-locked memory, for CUDA. torch's global random state is neither read nor changed. Close the iterator (or let
    go of it) to end the workers.
    """
    assert 0 <= rank < ranks
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: as it was asked for
        loader: DataLoader[UpdateBatches] = DataLoader(
            _Reader(batches),
            batch_size=None,
            sampler=_shares(batches, start, accumulation * ranks, rank, ranks),
            num_workers=workers,
            collate_fn=_unchanged,
            pin_memory=pin,
            worker_init_fn=_outlive_signals if workers else None,
            generator=torch.Generator(),  # else the loader draws a seed from the global generator
        )
        with _held_signals():  # a worker must not meet one before it is ready for it
            updates = iter(loader)
    yield from updates


class _Share(NamedTuple):
    """One rank's part of an update, by the pairs of each batch."""

    epoch: int
    next_position: Position
    batches: list[Pairs]


def _shares(batches: CorpusBatches, start: Position, size: int, rank: int, ranks: int) -> Iterator[_Share]:
    """Yield a rank's shares of updates of `size` batches from a start on, without end."""
    epoch, first = start
    while True:
        plan = batches.plan(epoch)
        if first > len(plan):
            raise UserError(
                f"the training state resumes at batch {first:,} of epoch {epoch:,}, which has {len(plan):,}; "
                "start again with --fresh"
            )
        for begin in range(first, len(plan), size):
            end = min(begin + size, len(plan))
            after = Position(epoch, end) if end < len(plan) else Position(epoch + 1, 0)
            yield _Share(epoch, after, [plan[batch] for batch in range(begin + rank, end, ranks)])
        epoch, first = epoch + 1, 0


class _Reader(Dataset[UpdateBatches]):
    """From a share of an update to its batches. Runs in the workers, where there are any."""

    def __init__(self, batches: CorpusBatches):
        self.batches = batches

    def __getitem__(self, share: _Share) -> UpdateBatches:
        return UpdateBatches(share.next_position, [self.batches.read(pairs, share.epoch) for pairs in share.batches])


def _unchanged(item: Any) -> Any:
    return item


@contextmanager
def _held_signals() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back, here and in processes that are started meanwhile, until the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outlive_signals(worker: int) -> None:
    """Let a worker serve on after the signals that a terminal or a job scheduler sends to the whole process group, so
    that the training process can finish its step and save. After SIGTERM it ends by itself a little later."""

    def leave_later(signum: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, _GRACE)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda signum, frame: os._exit(0))
    signal.signal(signal.SIGTERM, leave_later)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
