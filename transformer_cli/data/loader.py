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
from torch.utils.data import DataLoader, Dataset, Sampler

from transformer_cli.data.batch import Batch, Ids
from transformer_cli.data.batching import BatchPlan, plan_epoch
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_GRACE = 30.0  # seconds a worker goes on serving after SIGTERM

STRETCH = 1.5  # how much longer than planned drawn segmentations may make a batch


class Position(NamedTuple):
    """A batch of the endless sequence: the epoch and the batch within its plan, both from 0."""

    epoch: int
    batch: int


START = Position(0, 0)


@dataclass(frozen=True)
class UpdateBatches:
    """One rank's share of an update."""

    next_position: Position  # where the plan goes on after the whole update
    batches: list[Batch]  # none where an epoch ends in fewer batches than there are ranks

    def pin_memory(self) -> "UpdateBatches":
        """The same in page-locked memory; the data loader calls it."""
        return UpdateBatches(self.next_position, [batch.pin_memory() for batch in self.batches])


@dataclass(frozen=True)
class SubwordSampling:
    """What drawing segmentations anew in each epoch needs (BPE-dropout, unigram sampling)."""

    codecs: Codecs
    strength: float  # training.subword_sampling
    seed: int
    max_length: int  # tokens of a side, without </s>


def plan_corpus(corpus: EncodedCorpus, *, batch_tokens: int, seed: int, epoch: int, pad_to: int = 1) -> BatchPlan:
    """The plan of one epoch over a corpus, where every sentence gets its `</s>`.

    Lengths count as multiples of `pad_to`, as batches will have them; the plan's tokens are without padding.
    """
    source, target = corpus.source_lengths + 1, corpus.target_lengths + 1
    wide_source, wide_target = (-(-lengths // pad_to) * pad_to for lengths in (source, target))
    plan = plan_epoch(wide_source, wide_target, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    source_tokens, target_tokens = (int(lengths.sum(dtype=np.int64)) for lengths in (source, target))
    return replace(plan, source_tokens=source_tokens, target_tokens=target_tokens)


def read_batch(
    corpus: EncodedCorpus,
    pairs: npt.NDArray[np.integer],
    sampling: SubwordSampling | None = None,
    epoch: int = 0,
    pad_to: int = 1,
) -> Batch:
    """The batch of these pairs (indices into the corpus), segmented as they were encoded or drawn anew.

    What is drawn depends on (seed, epoch, pair, side) alone. A drawn segmentation over `drawing_limits` gives way to
    the one the plan knows.
    """
    if sampling is None:
        links = [corpus.links(pair) for pair in pairs.tolist()] if corpus.has_links else None
        return Batch.from_ids([corpus.ids(pair) for pair in pairs.tolist()], pad_to, links)
    limits = drawing_limits(corpus, pairs, sampling)
    return Batch.from_ids([_sample(corpus, pair, sampling, epoch, limits) for pair in pairs.tolist()], pad_to)


def drawing_limits(corpus: EncodedCorpus, pairs: npt.NDArray[np.integer], sampling: SubwordSampling) -> tuple[int, int]:
    """The longest source and target that drawing may give in this batch: `STRETCH` × the longest planned."""
    source, target = (
        min(sampling.max_length, int(STRETCH * int(lengths[pairs].max())))
        for lengths in (corpus.source_lengths, corpus.target_lengths)
    )
    return source, target


def largest_batch(
    corpus: EncodedCorpus,
    pairs: npt.NDArray[np.integer],
    sampling: SubwordSampling | None = None,
    pad_to: int = 1,
) -> Batch:
    """The most cells that `read_batch` can make of these pairs: for trying whether the memory suffices."""
    if sampling is None:
        return read_batch(corpus, pairs, pad_to=pad_to)
    limits = drawing_limits(corpus, pairs, sampling)
    planned = [corpus.ids(pair) for pair in pairs.tolist()]
    resized = [(np.resize(source, limits[0]), np.resize(target, limits[1])) for source, target in planned]
    return Batch.from_ids(resized, pad_to)


def load_updates(
    corpus: EncodedCorpus,
    *,
    batch_tokens: int,
    seed: int,
    accumulation: int = 1,
    start: Position = START,
    rank: int = 0,
    ranks: int = 1,
    workers: int = 0,
    pin: bool = False,
    pad_to: int = 1,
    sampling: SubwordSampling | None = None,
) -> Iterator[UpdateBatches]:
    """Updates without end, from `start` on: of each what this rank has to do.

    An update takes the plan's next `accumulation` × `ranks` batches of one epoch, the epoch's last what is left; the
    ranks deal them out in turn. `start` may stand behind the last batch of an epoch: the next epoch follows. `workers`
    processes read ahead (0: none); they change neither the batches nor their order. `pin` puts tensors into
    page-locked memory, for CUDA. torch's global random state is neither read nor changed. Close the iterator (or let
    go of it) to end the workers.
    """
    assert sampling is None or corpus.has_texts, "sampling needs a corpus encoded with keep_text"
    assert sampling is None or not corpus.has_links, "links are of the tokens as they were encoded"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores: as it was asked for
        loader: DataLoader[UpdateBatches] = DataLoader(
            _Reader(corpus, sampling, pad_to),
            batch_size=None,
            sampler=_Plans(corpus, batch_tokens, seed, start, accumulation, rank, ranks, pad_to),
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
    batches: list[npt.NDArray[np.int32]]


class _Plans(Sampler[_Share]):
    """A rank's shares of the updates from a start on, without end. Runs in the training process."""

    def __init__(
        self,
        corpus: EncodedCorpus,
        batch_tokens: int,
        seed: int,
        start: Position,
        accumulation: int,
        rank: int,
        ranks: int,
        pad_to: int,
    ):
        assert 0 <= rank < ranks
        self.corpus, self.start = corpus, start
        self.plan = {"batch_tokens": batch_tokens, "seed": seed, "pad_to": pad_to}
        self.size, self.rank, self.ranks = accumulation * ranks, rank, ranks

    def __iter__(self) -> Iterator[_Share]:
        epoch, first = self.start
        while True:
            plan = plan_corpus(self.corpus, epoch=epoch, **self.plan)
            if first > len(plan):
                raise UserError(
                    f"the training state goes on at batch {first:,} of epoch {epoch:,}, which has {len(plan):,}; "
                    "begin anew with --fresh"
                )
            for begin in range(first, len(plan), self.size):
                end = min(begin + self.size, len(plan))
                after = Position(epoch, end) if end < len(plan) else Position(epoch + 1, 0)
                yield _Share(epoch, after, [plan[batch] for batch in range(begin + self.rank, end, self.ranks)])
            epoch, first = epoch + 1, 0


class _Reader(Dataset[UpdateBatches]):
    """From a share of an update to its batches. Runs in the workers, where there are any."""

    def __init__(self, corpus: EncodedCorpus, sampling: SubwordSampling | None, pad_to: int):
        self.corpus, self.sampling, self.pad_to = corpus, sampling, pad_to

    def __getitem__(self, share: _Share) -> UpdateBatches:
        batches = [
            read_batch(self.corpus, pairs, self.sampling, share.epoch, pad_to=self.pad_to) for pairs in share.batches
        ]
        return UpdateBatches(share.next_position, batches)


def _sample(
    corpus: EncodedCorpus, pair: int, sampling: SubwordSampling, epoch: int, limits: tuple[int, int]
) -> tuple[Ids, Ids]:
    sides = zip(
        ("source", "target"),
        (sampling.codecs.source, sampling.codecs.target),
        corpus.texts(pair),
        corpus.ids(pair),
        limits,
        strict=True,
    )
    drawn: list[Ids] = []
    for side, codec, text, planned, limit in sides:
        key = f"{sampling.seed} {epoch} {pair} {side}".encode()
        ids = codec.sample(text, sampling.strength, int.from_bytes(hashlib.sha256(key).digest()[:8]))
        drawn.append(ids if 0 < len(ids) <= limit else planned)
    return drawn[0], drawn[1]


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
