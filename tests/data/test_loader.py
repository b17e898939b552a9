"""From any position on the same batches follow, whoever makes them; sampling depends on seed, epoch and pair alone."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.loader import (
    START,
    CorpusBatches,
    Position,
    SubwordSampling,
    UpdateBatches,
    load_updates,
)
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import EOS, PAD

BATCH_TOKENS = 300
SEED = 5
Content = tuple[Position, list[Any], list[Any], list[Any], int]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory, corpus: TextCorpus, subword_codecs: Codecs) -> EncodedCorpus:
    folder = tmp_path_factory.mktemp("cache")
    return encode_corpus(corpus, subword_codecs, max_length=60, keep_text=True, cache_folder=folder)


@pytest.fixture(scope="module")
def sampling(subword_codecs: Codecs) -> SubwordSampling:
    return SubwordSampling(subword_codecs, strength=0.2, max_length=60)


def in_batches(encoded: EncodedCorpus, sampling: SubwordSampling | None = None, pad_to: int = 1) -> CorpusBatches:
    return CorpusBatches(encoded, BATCH_TOKENS, SEED, pad_to, sampling)


def load(encoded: EncodedCorpus, count: int, start: Position = START, **options: Any) -> list[Content]:
    """Batch after batch, each with its own place."""
    if start.batch == epoch_length(encoded, start.epoch):
        start = Position(start.epoch + 1, 0)
        options = {"start": Position(start.epoch - 1, epoch_length(encoded, start.epoch - 1)), **options}
    batches = in_batches(encoded, options.pop("sampling", None))
    updates = load_updates(batches, **{"start": start, **options})
    contents = []
    for update in islice(updates, count):
        (b,) = update.batches
        contents.append((start, b.source.tolist(), b.target_input.tolist(), b.target_output.tolist(), b.target_tokens))
        start = update.next_position
    return contents


def epoch_length(encoded: EncodedCorpus, epoch: int) -> int:
    return len(in_batches(encoded).plan(epoch))


def test_a_place_that_no_epoch_has_is_refused(encoded: EncodedCorpus) -> None:
    assert len(load(encoded, 1, start=Position(0, epoch_length(encoded, 0)))) == 1  # its end: the next epoch follows
    with pytest.raises(UserError, match=r"batch 1,000,000 of epoch 0, which has .*--fresh"):
        load(encoded, 1, start=Position(0, 1_000_000))


def test_epochs_follow_each_other(encoded: EncodedCorpus) -> None:
    lengths = [epoch_length(encoded, epoch) for epoch in range(2)]
    positions = [position for position, *_ in load(encoded, sum(lengths) + 1)]
    expected = [Position(epoch, batch) for epoch in range(2) for batch in range(lengths[epoch])]
    assert positions == [*expected, Position(2, 0)]


def test_an_epoch_holds_every_pair_once(encoded: EncodedCorpus) -> None:
    rows = [row for _, source, *_ in load(encoded, epoch_length(encoded, 0)) for row in source]
    sources = sorted(row[: row.index(EOS)] for row in rows)
    assert sources == sorted(encoded.ids(pair)[0].tolist() for pair in range(len(encoded)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drawn", [False, True])
def test_any_position_resumes(encoded: EncodedCorpus, sampling: SubwordSampling, workers: int, drawn: bool) -> None:
    options: dict[str, Any] = {"sampling": sampling if drawn else None}
    first_epoch = epoch_length(encoded, 0)
    assert first_epoch > 10
    straight = load(encoded, first_epoch + 6, **options)
    for done in (0, 1, first_epoch - 1, first_epoch, first_epoch + 2):
        start = straight[done][0]
        assert (
            load(encoded, min(7, len(straight) - done), start=start, workers=workers, **options)
            == straight[done : done + 7]
        )
    # behind the last batch of an epoch comes the first of the next
    after = load(encoded, 6, start=Position(0, first_epoch), workers=workers, **options)
    assert after == straight[first_epoch:]


def rows(updates: Iterator[UpdateBatches], count: int) -> list[tuple[Position, list[list[Any]]]]:
    return [(update.next_position, [b.source.tolist() for b in update.batches]) for update in islice(updates, count)]


@pytest.mark.parametrize("start", [Position(0, 0), Position(0, 3), Position(1, 1)])
@pytest.mark.parametrize(("accumulation", "ranks"), [(3, 1), (1, 3), (2, 2), (4, 5)])
@pytest.mark.parametrize("workers", [0, 1])
def test_an_update_takes_the_next_batches_of_one_epoch_and_its_ranks_deal_them_out(
    encoded: EncodedCorpus, accumulation: int, ranks: int, start: Position, workers: int
) -> None:
    options: dict[str, Any] = {"start": start, "workers": workers}
    size = accumulation * ranks
    shares = [
        rows(load_updates(in_batches(encoded), accumulation=accumulation, rank=rank, ranks=ranks, **options), 12)
        for rank in range(ranks)
    ]
    one_by_one = load(encoded, 12 * size, start=start)
    dealt: list[list[list[int]]] = []
    for update in zip(*shares, strict=True):
        (after,) = {position for position, _ in update}  # the same for all ranks
        batches = [batch for _, share in update for batch in share]
        assert [len(share) for _, share in update] == [len(range(rank, len(batches), ranks)) for rank in range(ranks)]
        assert len(batches) == size or after.batch == 0, "only an epoch's last update may be smaller"
        in_turn = [share[turn] for turn in range(accumulation) for _, share in update if turn < len(share)]
        epochs = {place.epoch for place, *_ in one_by_one[len(dealt) : len(dealt) + len(in_turn)]}
        assert len(epochs) == 1, "an update never takes batches of two epochs"
        dealt += in_turn
        assert [place for place, *_ in one_by_one[len(dealt) :][:1]] in ([after], [])
    assert dealt == [source for _, source, *_ in one_by_one[: len(dealt)]]
    assert len(dealt) > epoch_length(encoded, start.epoch) - start.batch


def test_lengths_are_padded_to_a_multiple(encoded: EncodedCorpus) -> None:
    pairs = in_batches(encoded, pad_to=8).plan(0)[0]
    (wide,) = next(load_updates(in_batches(encoded, pad_to=8))).batches
    narrow = in_batches(encoded).read(pairs)
    assert wide.source.size(1) % 8 == wide.target_input.size(1) % 8 == wide.target_output.size(1) % 8 == 0
    assert wide.source.size(1) - narrow.source.size(1) < 8
    assert wide.source[:, : narrow.source.size(1)].equal(narrow.source)
    assert wide.target_tokens == narrow.target_tokens


def test_the_plan_counts_cells_as_they_are_padded(encoded: EncodedCorpus) -> None:
    plan = in_batches(encoded, pad_to=24).plan(0)
    updates = load_updates(in_batches(encoded, pad_to=24))
    read = [update.batches[0] for update in islice(updates, len(plan))]
    cells = [max(batch.source.numel(), batch.target_output.numel()) for batch in read]
    assert max(cells) <= BATCH_TOKENS
    assert [(batch.source.size(1), batch.target_output.size(1)) for batch in read] == list(
        zip(plan.longest_source.tolist(), plan.longest_target.tolist(), strict=True)
    )
    largest = read[plan.costliest()]
    sums = [batch.source.numel() + 2 * batch.target_output.numel() for batch in read]
    assert largest.source.numel() + 2 * largest.target_output.numel() > 0.9 * max(sums)
    plain = in_batches(encoded).plan(0)
    assert plan.source_tokens == plain.source_tokens == sum(int((batch.source != PAD).sum()) for batch in read)
    assert plan.target_tokens == plain.target_tokens == sum(batch.target_tokens for batch in read)


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_random_state_is_neither_read_nor_changed(
    encoded: EncodedCorpus, sampling: SubwordSampling, workers: int
) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load(encoded, 5, workers=workers, sampling=sampling)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert load(encoded, 5, workers=workers, sampling=sampling) == first


def test_sampling_draws_anew_in_each_epoch(
    encoded: EncodedCorpus, sampling: SubwordSampling, subword_codecs: Codecs
) -> None:
    pairs = in_batches(encoded).plan(0)[0]
    planned = in_batches(encoded).read(pairs)
    epochs = [in_batches(encoded, sampling).read(pairs, epoch) for epoch in (0, 1)]
    assert not torch.equal(epochs[0].source, epochs[1].source)
    for batch in epochs:
        assert not torch.equal(batch.source, planned.source)
        for row, pair in enumerate(pairs.tolist()):  # other pieces, the same text
            for side, tensor, codec in (
                (0, batch.source, subword_codecs.source),
                (1, batch.target_output, subword_codecs.target),
            ):
                assert codec.decode(tensor[row].tolist()) == encoded.texts(pair)[side]


def test_neither_the_batch_nor_the_other_side_matters(encoded: EncodedCorpus, sampling: SubwordSampling) -> None:
    """The same pair is cut the same in any batch, and two equal sides are cut differently."""
    pairs = in_batches(encoded).plan(0)[0]
    together = in_batches(encoded, sampling).read(pairs, 3)
    alone = in_batches(encoded, sampling).read(pairs[-1:], 3)
    assert together.source[-1, : alone.source.shape[1]].tolist() == alone.source[0].tolist()


def test_sides_of_equal_text_are_cut_differently(
    tmp_path: Path, corpus: TextCorpus, subword_codecs: Codecs, sampling: SubwordSampling
) -> None:
    twice = TextCorpus(corpus.source.path, corpus.source.path)
    encoded = encode_corpus(twice, subword_codecs, max_length=60, keep_text=True, cache_folder=tmp_path)
    pairs = in_batches(encoded).plan(0)[0]
    batch = in_batches(encoded, sampling).read(pairs, 0)
    assert batch.source.tolist() != batch.target_output.tolist()


def test_a_drawn_sentence_over_the_limit_keeps_its_planned_ids(encoded: EncodedCorpus, subword_codecs: Codecs) -> None:
    longest = int(encoded.source_lengths.max())
    pair = np.array([encoded.source_lengths.argmax()])
    strong = SubwordSampling(subword_codecs, strength=0.9, max_length=longest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_cli.data.loader.GROWTH", 100.0)
        free = SubwordSampling(subword_codecs, strength=0.9, max_length=10_000)
        assert in_batches(encoded, free).read(pair).source.shape[1] > longest + 1
    assert torch.equal(in_batches(encoded, strong).read(pair).source, in_batches(encoded).read(pair).source)


def test_no_drawn_batch_is_larger_than_the_largest_that_is_tried(
    encoded: EncodedCorpus, subword_codecs: Codecs
) -> None:
    sampling = SubwordSampling(subword_codecs, strength=0.4, max_length=10_000)
    plan = in_batches(encoded).plan(0)
    grew = 0
    for number in range(len(plan)):
        planned, drawn = in_batches(encoded).read(plan[number]), in_batches(encoded, sampling).read(plan[number])
        largest = in_batches(encoded, sampling).largest(plan[number])
        assert drawn.source.shape[1] <= largest.source.shape[1]
        assert drawn.target_output.shape[1] <= largest.target_output.shape[1]
        assert len(drawn.source) == len(largest.source)
        grew += drawn.source.shape[1] > planned.source.shape[1]
    assert grew > 0, "drawing made no batch longer: the bound shows nothing"


def children() -> set[int]:
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}


def worker_processes(batches: Iterator[Any]) -> set[int]:
    before = children()
    next(batches)
    return children() - before


def test_workers_outlive_the_signals_of_a_terminal(encoded: EncodedCorpus) -> None:
    """Ctrl-C and a scheduler's SIGTERM reach the whole process group; the trainer still needs its next batches."""
    expected = load(encoded, 12)
    batches = load_updates(in_batches(encoded), workers=2)
    workers = worker_processes(batches)
    assert len(workers) == 2
    for number in (signal.SIGINT, signal.SIGTERM):
        for worker in workers:
            os.kill(worker, number)
    time.sleep(0.1)
    assert [update.batches[0].source.tolist() for update in islice(batches, 11)] == [
        source for _, source, *_ in expected[1:]
    ]
    del batches


def test_workers_end_with_the_iterator(encoded: EncodedCorpus) -> None:
    before = children()
    batches = load_updates(in_batches(encoded), workers=1)
    assert worker_processes(batches)
    del batches
    assert children() == before
