"""Batches in the order of the plan, epoch after epoch, from any position on. Called by training and evaluation.

A `Position` is all there is to remember: from it on, the same batches follow, with any number of worker processes.
"""

import hashlib
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
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
from transformer_cli.data.noise import AS_WRITTEN, SourceNoise, noise_rng
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs

GROWTH = 1.5  # how much longer than planned what is drawn may make a batch
_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_GRACE = 30.0  # seconds a worker still serves after SIGTERM
_WATCH = 2.0  # seconds between two looks whether the training process is still there

Pairs = npt.NDArray[np.integer[Any]]  # indices into a corpus


@dataclass(frozen=True)
class Augmentation:
    """What is drawn anew for each pair in each epoch: how its text is segmented (BPE-dropout, unigram sampling), and
    noise on its source."""

    codecs: Codecs
    max_length: int  # tokens of a side, without </s>
    subword_sampling: float = 0.0  # training.subword_sampling; 0: segmented as it was encoded
    noise: SourceNoise | None = None  # training.noise


@dataclass(frozen=True)
class CorpusBatches:
    """A corpus in batches: which pairs stand together in each epoch, and the tensors that they become."""

    corpus: EncodedCorpus | Mixture
    batch_tokens: int  # size of a batch: sentences × the longer of its longest source and target, padding included
    seed: int
    pad_to: int = 1  # lengths are padded up to a multiple of this
    augmentation: Augmentation | None = None  # None: the ids as they were encoded

    def __post_init__(self) -> None:
        assert self.augmentation is None or self.corpus.has_texts, "drawing needs a corpus encoded with keep_text"
        assert self.augmentation is None or not self.corpus.has_links, "links are of the tokens as they were encoded"

    def plan(self, epoch: int) -> BatchPlan:
        """Return the plan of one epoch, where every sentence gets its `</s>`.

        Lengths count as multiples of `pad_to`, as batches will have them; the plan's tokens are without padding. A
        source that noise puts into another case counts with its tokens in that case, which may be twice as many.
        """
        lengths = self.corpus.source_lengths, self.corpus.target_lengths
        pairs = None  # each once
        if isinstance(self.corpus, Mixture):
            pairs = self.corpus.epoch(self.seed, epoch)
            lengths = lengths[0].take(pairs, mode="wrap"), lengths[1].take(pairs, mode="wrap")
        source, target = (one + 1 for one in lengths)
        recased = too_long = 0
        for place, case in self._other_cases(pairs, epoch):
            planned = self._plan(place if pairs is None else int(pairs[place]), case)
            source[place] = len(planned.source) + 1
            recased, too_long = recased + 1, too_long + planned.too_long
        source_tokens, target_tokens = (int(one.sum(dtype=np.int64)) for one in (source, target))
        for one in (source, target):
            one += -one % self.pad_to
        plan = plan_epoch(source, target, batch_tokens=self.batch_tokens, seed=self.seed, epoch=epoch)
        return replace(
            plan,
            order=plan.order if pairs is None else pairs[plan.order],
            source_tokens=source_tokens,
            target_tokens=target_tokens,
            recased=recased - too_long,
            too_long=too_long,
        )

    def read(self, pairs: Pairs, epoch: int = 0) -> Batch:
        """Return the batch of these pairs, as they were encoded or drawn anew.

        What is drawn depends on (seed, epoch, pair, side) alone. What is drawn longer than the batch may become gives
        way to what the plan knows.
        """
        if self.augmentation is not None:
            planned = self._planned(pairs, epoch)
            limits = self._limits(planned)
            drawn = [self._draw(pair, epoch, plan, limits) for pair, plan in zip(pairs.tolist(), planned, strict=True)]
            return Batch.from_ids(drawn, self.pad_to)
        links = None
        if isinstance(self.corpus, EncodedCorpus) and self.corpus.has_links:
            links = [self.corpus.links(pair) for pair in pairs.tolist()]
        return Batch.from_ids(self.corpus.ids_of(pairs), self.pad_to, links)

    def largest(self, pairs: Pairs) -> Batch:
        """Return the most cells that `read` can make of these pairs in the first epoch: for trying whether the memory
        suffices."""
        if self.augmentation is None:
            return self.read(pairs)
        planned = self._planned(pairs, epoch=0)
        limits = self._limits(planned)
        resized = [(np.resize(pair.source, limits[0]), np.resize(pair.target, limits[1])) for pair in planned]
        return Batch.from_ids(resized, self.pad_to)

    def _limits(self, planned: "Sequence[_Planned]") -> tuple[int, int]:
        """Return the longest source and target that drawing may give in a batch: `GROWTH` × the longest planned."""
        assert self.augmentation is not None
        longest = max(len(pair.source) for pair in planned), max(len(pair.target) for pair in planned)
        source, target = (min(self.augmentation.max_length, int(GROWTH * length)) for length in longest)
        return source, target

    def _planned(self, pairs: Pairs, epoch: int) -> "list[_Planned]":
        """Return pairs as the plan of an epoch counts them."""
        cases = dict(self._other_cases(pairs, epoch))
        return [self._plan(pair, cases.get(place, AS_WRITTEN)) for place, pair in enumerate(pairs.tolist())]

    def _other_cases(self, pairs: Pairs | None, epoch: int) -> Iterator[tuple[int, int]]:
        """Yield the places of pairs whose source noise puts into another case in an epoch, and that case.

        pairs: None for all of the corpus.
        """
        if self.augmentation is not None and self.augmentation.noise is not None:
            pairs = np.arange(len(self.corpus)) if pairs is None else pairs
            cases = self.augmentation.noise.cases(self.seed, epoch, pairs)
            yield from ((place, int(cases[place])) for place in np.flatnonzero(cases != AS_WRITTEN).tolist())

    def _plan(self, pair: int, case: int) -> "_Planned":
        """Return a pair with its source in a case; as it was encoded, where it would have too many tokens."""
        (text, _), (source, target) = self.corpus.texts(pair), self.corpus.ids(pair)
        if case == AS_WRITTEN:
            return _Planned(text, source, target)
        assert self.augmentation is not None
        assert self.augmentation.noise is not None
        cased = self.augmentation.noise.in_case(text, case)
        ids = self.augmentation.codecs.source.encode(cased)
        if not 0 < len(ids) <= self.augmentation.max_length:
            return _Planned(text, source, target, too_long=True)
        return _Planned(cased, np.array(ids), target)

    def _draw(self, pair: int, epoch: int, planned: "_Planned", limits: tuple[int, int]) -> tuple[Ids, Ids]:
        """Return source and target of a pair as they are drawn for an epoch."""
        augmentation, text = self.augmentation, planned.text
        assert augmentation is not None
        strength, codecs = augmentation.subword_sampling, augmentation.codecs
        source, target = planned.source, planned.target
        if augmentation.noise is not None:
            text = augmentation.noise.disturb(text, noise_rng(self.seed, epoch, pair))
        if strength or text != planned.text:
            drawn = codecs.source.sample(text, strength, self._number(epoch, pair, "source"))
            source = np.array(drawn) if 0 < len(drawn) <= limits[0] else source
        if strength:
            drawn = codecs.target.sample(self.corpus.texts(pair)[1], strength, self._number(epoch, pair, "target"))
            target = np.array(drawn) if 0 < len(drawn) <= limits[1] else target
        return source, target

    def _number(self, epoch: int, pair: int, what: str) -> int:
        """Return the number from which something is drawn for a pair in an epoch."""
        return int.from_bytes(hashlib.sha256(f"{self.seed} {epoch} {pair} {what}".encode()).digest()[:8])


class _Planned(NamedTuple):
    """A pair as the plan counts it: in the case that is drawn for an epoch, segmented as it is encoded."""

    text: str  # of the source
    source: Ids
    target: Ids
    too_long: bool = False  # whether it is as it was written only because it would be too long otherwise


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
    that the training process can finish its step and save. After SIGTERM it ends by itself a little later, and soon
    after the training process was killed."""
    parent = os.getppid()
    sys.stderr = sys.__stderr__  # the copy of a notebook's or a test's buffer would swallow what a worker dies of

    def follow() -> None:
        # torch's own watch ends in waiting for the last batches to be read, which nobody does any more.
        while os.getppid() == parent:
            time.sleep(_WATCH)
        os._exit(0)

    def leave_later(signum: int, frame: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, _GRACE)

    threading.Thread(target=follow, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda signum, frame: os._exit(0))
    signal.signal(signal.SIGTERM, leave_later)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
