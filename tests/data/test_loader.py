"""From any position on the same batches follow, whoever makes them; sampling depends on seed, epoch and pair alone."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.sampling import one_of_each
from transformer_cli.config import Noise
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.loader import (
    GROWTH,
    START,
    Augmentation,
    CorpusBatches,
    Position,
    UpdateBatches,
    load_updates,
)
from transformer_cli.data.noise import SourceNoise
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
def sampling(subword_codecs: Codecs) -> Augmentation:
    return Augmentation(subword_codecs, 60, subword_sampling=0.2)


@pytest.fixture(scope="module")
def noisy(subword_codecs: Codecs) -> Augmentation:
    """Noise of all kinds and subword sampling. The vocabulary has no capitals, which take several tokens each."""
    noise = Noise(capitals=0.3, title_case=0.3, typos=0.3, no_final_punctuation=0.5)
    return Augmentation(subword_codecs, 200, subword_sampling=0.1, noise=SourceNoise(noise))


def in_batches(encoded: EncodedCorpus, sampling: Augmentation | None = None, pad_to: int = 1) -> CorpusBatches:
    return CorpusBatches(encoded, BATCH_TOKENS, SEED, pad_to, sampling)


def load(encoded: EncodedCorpus, count: int, start: Position = START, **options: Any) -> list[Content]:
    """Batch after batch, each with its own place."""
    sampling = options.pop("sampling", None)
    if start.batch == epoch_length(encoded, start.epoch, sampling):
        start = Position(start.epoch + 1, 0)
        options = {"start": Position(start.epoch - 1, epoch_length(encoded, start.epoch - 1, sampling)), **options}
    batches = in_batches(encoded, sampling)
    updates = load_updates(batches, **{"start": start, **options})
    contents = []
    for update in islice(updates, count):
        (b,) = update.batches
        contents.append((start, b.source.tolist(), b.target_input.tolist(), b.target_output.tolist(), b.target_tokens))
        start = update.next_position
    return contents


def epoch_length(encoded: EncodedCorpus, epoch: int, sampling: Augmentation | None = None) -> int:
    return len(in_batches(encoded, sampling).plan(epoch))


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


@pytest.mark.medium
@pytest.mark.parametrize(
    ("workers", "drawn"),
    one_of_each([pytest.param(workers, drawn) for workers in (0, 2)] for drawn in (None, "sampling", "noisy")),
)
def test_any_position_resumes(
    encoded: EncodedCorpus, request: pytest.FixtureRequest, workers: int, drawn: str | None
) -> None:
    options: dict[str, Any] = {"sampling": drawn and request.getfixturevalue(drawn)}
    first_epoch = epoch_length(encoded, 0, options["sampling"])
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


@pytest.mark.medium
@pytest.mark.parametrize(
    ("workers", "accumulation", "ranks", "start"),
    one_of_each(
        [pytest.param(workers, *shares, start) for start in (Position(0, 0), Position(0, 3), Position(1, 1))]
        for workers in (0, 1)
        for shares in [(3, 1), (1, 3), (2, 2), (4, 5)]
    ),
)
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


@pytest.mark.parametrize("epoch", [0, 2])
def test_ranks_deal_out_the_batches_of_one_process_with_noise_too(
    encoded: EncodedCorpus, noisy: Augmentation, epoch: int
) -> None:
    batches, start = in_batches(encoded, noisy), Position(epoch, 1)
    alone = rows(load_updates(batches, start=start, accumulation=3), 8)
    shares = [rows(load_updates(batches, start=start, rank=rank, ranks=3), 8) for rank in range(3)]
    for (after, expected), dealt in zip(alone, zip(*shares, strict=True), strict=True):
        assert {place for place, _ in dealt} == {after}
        assert [batch for _, share in dealt for batch in share] == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_random_state_is_neither_read_nor_changed(
    encoded: EncodedCorpus, sampling: Augmentation, workers: int
) -> None:
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = load(encoded, 5, workers=workers, sampling=sampling)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert load(encoded, 5, workers=workers, sampling=sampling) == first


def test_sampling_draws_anew_in_each_epoch(
    encoded: EncodedCorpus, sampling: Augmentation, subword_codecs: Codecs
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


def test_neither_the_batch_nor_the_other_side_matters(encoded: EncodedCorpus, sampling: Augmentation) -> None:
    """The same pair is cut the same in any batch, and two equal sides are cut differently."""
    pairs = in_batches(encoded).plan(0)[0]
    together = in_batches(encoded, sampling).read(pairs, 3)
    alone = in_batches(encoded, sampling).read(pairs[-1:], 3)
    assert together.source[-1, : alone.source.shape[1]].tolist() == alone.source[0].tolist()


def test_sides_of_equal_text_are_cut_differently(
    tmp_path: Path, corpus: TextCorpus, subword_codecs: Codecs, sampling: Augmentation
) -> None:
    twice = TextCorpus(corpus.source.path, corpus.source.path)
    encoded = encode_corpus(twice, subword_codecs, max_length=60, keep_text=True, cache_folder=tmp_path)
    pairs = in_batches(encoded).plan(0)[0]
    batch = in_batches(encoded, sampling).read(pairs, 0)
    assert batch.source.tolist() != batch.target_output.tolist()


def test_a_drawn_sentence_over_the_limit_keeps_its_planned_ids(encoded: EncodedCorpus, subword_codecs: Codecs) -> None:
    longest = int(encoded.source_lengths.max())
    pair = np.array([encoded.source_lengths.argmax()])
    strong = Augmentation(subword_codecs, longest, subword_sampling=0.9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer_cli.data.loader.GROWTH", 100.0)
        free = Augmentation(subword_codecs, 10_000, subword_sampling=0.9)
        assert in_batches(encoded, free).read(pair).source.shape[1] > longest + 1
    assert torch.equal(in_batches(encoded, strong).read(pair).source, in_batches(encoded).read(pair).source)


@pytest.mark.parametrize("noise", [None, Noise(capitals=0.3, typos=1.0)])
def test_no_drawn_batch_is_larger_than_the_largest_that_is_tried(
    encoded: EncodedCorpus, subword_codecs: Codecs, noise: Noise | None
) -> None:
    drawing = Augmentation(subword_codecs, 299, subword_sampling=0.4, noise=SourceNoise(noise) if noise else None)
    batches = in_batches(encoded, drawing)
    plan = batches.plan(0)
    grew = 0
    for number in range(len(plan)):
        drawn, largest = batches.read(plan[number]), batches.largest(plan[number])
        assert drawn.source.shape[1] <= largest.source.shape[1]
        assert drawn.target_output.shape[1] <= largest.target_output.shape[1]
        assert len(drawn.source) == len(largest.source)
        assert largest.source.shape[1] <= GROWTH * plan.longest_source[number]
        grew += drawn.source.shape[1] > plan.longest_source[number]
    assert grew > 0, "drawing made no batch longer: the bound shows nothing"


@pytest.mark.parametrize("epoch", [0, 1])
def test_batches_are_planned_with_capitals_and_title_case(
    encoded: EncodedCorpus, subword_codecs: Codecs, epoch: int
) -> None:
    """However much longer they are than their neighbours, none is left out, and no batch is larger than planned."""
    noise = SourceNoise(Noise(capitals=0.3, title_case=0.2))
    batches = in_batches(encoded, Augmentation(subword_codecs, BATCH_TOKENS - 1, noise=noise))
    plan, plain = batches.plan(epoch), in_batches(encoded).plan(epoch)
    cases = noise.cases(SEED, epoch, np.arange(len(encoded)))
    assert plan.recased == np.count_nonzero(cases) > 0
    assert plan.too_long == 0
    assert plan.target_tokens == plain.target_tokens
    assert plan.source_tokens > 1.2 * plain.source_tokens
    seen = []
    for number in range(len(plan)):
        pairs, batch = plan[number], batches.read(plan[number], epoch)
        assert max(batch.source.numel(), batch.target_output.numel()) <= BATCH_TOKENS
        assert batch.source.size(1) == plan.longest_source[number]
        for row, pair in enumerate(pairs.tolist()):
            source, target = encoded.texts(pair)
            written = subword_codecs.source.decode(batch.source[row].tolist())
            assert written == noise.in_case(source, cases[pair])
            assert subword_codecs.target.encode(target) == without_padding(batch.target_output[row])
        seen += pairs.tolist()
    assert sorted(seen) == [*range(len(encoded))]
    assert {case: noise.in_case("ab cd", case) for case in (1, 2)} == {1: "AB CD", 2: "Ab Cd"}


def without_padding(row: torch.Tensor) -> list[int]:
    return row[: row.tolist().index(EOS)].tolist()


def test_a_source_too_long_in_capitals_stays_as_written_and_is_counted(
    encoded: EncodedCorpus, subword_codecs: Codecs
) -> None:
    limit = int(encoded.source_lengths.max())
    batches = in_batches(encoded, Augmentation(subword_codecs, limit, noise=SourceNoise(Noise(capitals=1.0))))
    plan = batches.plan(0)
    assert plan.recased > 0 < plan.too_long
    assert plan.recased + plan.too_long == len(encoded)
    capitals = 0
    for number in range(len(plan)):
        batch = batches.read(plan[number])
        assert batch.source.size(1) == plan.longest_source[number] <= limit + 1
        for row, pair in enumerate(plan[number].tolist()):
            written, source = subword_codecs.source.decode(batch.source[row].tolist()), encoded.texts(pair)[0]
            assert written in (source, source.upper())
            capitals += written == source.upper()
    assert capitals == plan.recased


def test_typos_are_drawn_for_each_epoch_and_pair_on_the_source_alone(
    encoded: EncodedCorpus, subword_codecs: Codecs
) -> None:
    batches = in_batches(encoded, Augmentation(subword_codecs, 200, noise=SourceNoise(Noise(typos=0.5))))
    pairs = np.arange(20)
    planned = in_batches(encoded).read(pairs)
    epochs = [batches.read(pairs, epoch) for epoch in (0, 1)]
    assert epochs[0].source.tolist() != epochs[1].source.tolist()
    assert all(batch.target_output.equal(planned.target_output) for batch in epochs)
    for row, pair in enumerate(pairs.tolist()):  # whatever else is in the batch
        alone = batches.read(np.array([pair]), 1).source[0]
        assert without_padding(alone) == without_padding(epochs[1].source[row])


def test_capitals_have_typos_too_however_much_longer_they_are(encoded: EncodedCorpus, subword_codecs: Codecs) -> None:
    noise = SourceNoise(Noise(capitals=1.0, typos=1.0))
    batches = in_batches(encoded, Augmentation(subword_codecs, BATCH_TOKENS - 1, noise=noise))
    plan = batches.plan(0)
    for number in range(len(plan)):
        source = batches.read(plan[number]).source
        for row, pair in enumerate(plan[number].tolist()):
            capitals, written = encoded.texts(pair)[0].upper(), subword_codecs.source.decode(source[row].tolist())
            assert written.isupper()
            assert written != capitals or all(len(word) < 4 for word in capitals.split())


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


ORPHANED = """\
import multiprocessing, sys, time
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.loader import CorpusBatches, load_updates
updates = load_updates(CorpusBatches(EncodedCorpus(sys.argv[1]), 3000, 5), workers=2)
next(updates)
time.sleep(1)  # until batches wait that nobody will read
print(*[child.pid for child in multiprocessing.active_children()], flush=True)
time.sleep(60)
"""


@pytest.mark.medium
def test_workers_end_with_a_killed_trainer(encoded: EncodedCorpus) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", ORPHANED, encoded.path], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    workers = [int(number) for number in trainer.stdout.readline().split()]
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert len(workers) == 2
    give_up = time.monotonic() + 30
    while any(map(is_running, workers)):
        assert time.monotonic() < give_up, "workers that outlive their trainer"
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Whether a process is there that is no zombie, which one without a parent to wait for it may stay."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
