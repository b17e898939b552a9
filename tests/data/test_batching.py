"""The plan of an epoch: every pair once, within the limit, little padding, and nothing but its arguments decides it."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.data.batching import BatchPlan, Lengths, _by_length, plan_epoch


def sentence_lengths(pairs: int, seed: int = 0) -> tuple[Lengths, Lengths]:
    """Lengths as real text has them: long-tailed, source and target alike but not equal."""
    generator = np.random.default_rng(seed)
    source = np.clip(generator.lognormal(2.7, 0.4, pairs), 2, 250).astype(np.int32)
    target = np.clip(source * generator.normal(1.0, 0.15, pairs), 2, 250).astype(np.int32)
    return source, target


def batches(plan: BatchPlan) -> list[list[int]]:
    return [plan[batch].tolist() for batch in range(len(plan))]


def check_cells(plan: BatchPlan, source: Lengths, target: Lengths, batch_tokens: int) -> None:
    for batch in range(len(plan)):
        pairs = plan[batch]
        assert plan.longest_source[batch] == source[pairs].max()
        assert plan.longest_target[batch] == target[pairs].max()
        assert len(pairs) * max(plan.longest_source[batch], plan.longest_target[batch]) <= batch_tokens


@settings(max_examples=100)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=200),
    batch_tokens=st.integers(40, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_pair_once_and_no_batch_too_large(lengths: list[tuple[int, int]], batch_tokens: int, seed: int) -> None:
    source, target = np.array(lengths, dtype=np.int32).T
    plan = plan_epoch(source, target, batch_tokens=batch_tokens, seed=seed, epoch=0)
    assert sorted(np.concatenate([plan[batch] for batch in range(len(plan))])) == list(range(len(lengths)))
    check_cells(plan, source, target, batch_tokens)


def test_batches_are_filled() -> None:
    """The next pair in order of length would not have fitted, so batches are nearly full on average."""
    source, target = sentence_lengths(20_000)
    plan = plan_epoch(source, target, batch_tokens=2000, seed=1, epoch=0)
    longest = np.maximum(plan.longest_source, plan.longest_target)
    assert np.mean([len(plan[batch]) * longest[batch] / 2000 for batch in range(len(plan))]) > 0.97


@pytest.mark.parametrize(("block", "longest"), [(7, 9), (1 << 16, 40), (50, 1 << 30)])
@pytest.mark.parametrize("width", [1, 4])
def test_pairs_stand_as_one_stable_sort_puts_them(
    block: int, longest: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many are dealt out at a time, and where a key has no room for a place: a run that continues has the same
    batches."""
    monkeypatch.setattr("transformer_cli.data.batching._BLOCK", block)
    generator = np.random.default_rng(1)
    source = generator.integers(1, longest + 1, 3000).astype(np.int32)
    target = generator.integers(1, min(longest, 40) + 1, 3000).astype(np.int32)
    ties = np.random.PCG64(1).random_raw(3000) >> np.uint64(36)
    step = target // width
    rank = np.unique(step, return_inverse=True)[1]
    expected = np.lexsort((ties, np.where(rank % 2, -source, source), step))
    order, *lengths = _by_length(source, target, width, np.random.PCG64(1))
    assert order.tolist() == expected.tolist()
    assert [values.tolist() for values in lengths] == [source[expected].tolist(), target[expected].tolist()]


def test_a_large_corpus_is_planned_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair once, each batch within one part, those of all parts mixed, and other batches in another epoch."""
    source, target = sentence_lengths(4501)
    monkeypatch.setattr("transformer_cli.data.batching._TOGETHER", 1000)
    arguments = [(1, 0), (1, 0), (1, 1)]
    plan, same, other = (plan_epoch(source, target, batch_tokens=500, seed=s, epoch=e) for s, e in arguments)
    assert batches(plan) == batches(same)
    assert sorted(plan.order.tolist()) == list(range(4501))
    assert sorted(pair for batch in batches(plan) for pair in batch) == list(range(4501))
    check_cells(plan, source, target, 500)
    assert (plan.source_tokens, plan.target_tokens) == (source.sum(), target.sum())
    parts = [{pair % 5 for pair in batch} for batch in batches(plan)]
    assert all(len(part) == 1 for part in parts)
    for part in range(5):  # the batches of each lie all over the epoch
        places = [place for place, own in enumerate(parts) if part in own]
        assert abs(np.mean(places) / len(plan) - 0.5) < 0.1
    shared = {*map(frozenset, batches(plan))} & {*map(frozenset, batches(other))}
    assert len(shared) < 0.2 * len(plan)  # those of few long pairs


def test_batches_of_a_large_corpus_mix_what_stands_apart_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as two sources, one after the other: a batch has about as much of each as the corpus."""
    source, target = sentence_lengths(40_000)
    monkeypatch.setattr("transformer_cli.data.batching._TOGETHER", 10_000)
    plan = plan_epoch(source, target, batch_tokens=2000, seed=1, epoch=0)
    shares = [np.mean(plan[batch] < 20_000) for batch in range(len(plan)) if len(plan[batch]) > 50]
    assert len(shares) > 100
    assert min(shares) > 0.2
    assert max(shares) < 0.8


def test_as_many_pairs_as_go_together_are_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = sentence_lengths(1000)
    whole = batches(plan_epoch(source, target, batch_tokens=500, seed=1, epoch=0))
    monkeypatch.setattr("transformer_cli.data.batching._TOGETHER", 1000)
    assert batches(plan_epoch(source, target, batch_tokens=500, seed=1, epoch=0)) == whole


def test_a_part_takes_the_memory_not_the_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning needs little beside the order, which the plan keeps."""
    source, target = sentence_lengths(300_000)
    monkeypatch.setattr("transformer_cli.data.batching._TOGETHER", 30_000)
    tracemalloc.start()
    plan_epoch(source, target, batch_tokens=2000, seed=1, epoch=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15 * len(source)


def test_planning_takes_little_more_memory_than_the_lengths() -> None:
    """Beside what it is given: order, both lengths, ties, and the order of a plan that is better or worse."""
    source, target = sentence_lengths(300_000)
    tracemalloc.start()
    plan_epoch(source, target, batch_tokens=2000, seed=1, epoch=0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * len(source)


def test_a_plan_keeps_nothing_but_its_order() -> None:
    source, target = sentence_lengths(300_000)
    tracemalloc.start()
    plan = plan_epoch(source, target, batch_tokens=2000, seed=1, epoch=0)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 6 * len(plan.order)


def test_same_arguments_same_plan_and_other_epochs_other_plans() -> None:
    source, target = sentence_lengths(3000)
    first = batches(plan_epoch(source, target, batch_tokens=500, seed=1, epoch=0))
    assert first == batches(plan_epoch(source, target, batch_tokens=500, seed=1, epoch=0))
    for seed, epoch in ((1, 1), (2, 0)):
        other = batches(plan_epoch(source, target, batch_tokens=500, seed=seed, epoch=epoch))
        assert first != other
        # not the same batches in another order, either: the pairs are grouped anew
        shared = {frozenset(batch) for batch in first} & {frozenset(batch) for batch in other}
        assert len(shared) < 0.2 * len(first)


def test_batches_come_in_no_order_of_length() -> None:
    source, target = sentence_lengths(20_000)
    plan = plan_epoch(source, target, batch_tokens=1000, seed=1, epoch=0)
    correlation = np.corrcoef(np.arange(len(plan)), plan.longest_target)[0, 1]
    assert abs(correlation) < 0.15


def test_padding_is_counted_as_it_is() -> None:
    source, target = sentence_lengths(500)
    plan = plan_epoch(source, target, batch_tokens=700, seed=1, epoch=3)
    for lengths, share in zip((source, target), plan.padding(), strict=True):
        cells = sum(len(plan[batch]) * lengths[plan[batch]].max() for batch in range(len(plan)))
        assert share == pytest.approx((cells - lengths.sum()) / cells)


@pytest.mark.parametrize("batch_tokens", [1000, 2000, 4096])
def test_little_padding(batch_tokens: int) -> None:
    source, target = sentence_lengths(29_000)
    source_padding, target_padding = plan_epoch(source, target, batch_tokens=batch_tokens, seed=1, epoch=0).padding()
    assert source_padding < 0.08
    assert target_padding < 0.08


def test_the_costliest_batch_has_the_most_cells_or_nearly() -> None:
    source, target = sentence_lengths(5000)
    plan = plan_epoch(source, target, batch_tokens=1000, seed=1, epoch=0)
    cells = (plan.stops - plan.starts) * (plan.longest_source + plan.longest_target)
    assert cells[plan.costliest()] > 0.8 * cells.max()
    # of equally large batches, the one with the longer rows
    long = plan_epoch(*[np.array([100] + [10] * 10, dtype=np.int32)] * 2, batch_tokens=100, seed=1, epoch=0)
    assert long.longest_source[long.costliest()] == 100


def test_one_pair_and_a_pair_as_long_as_a_batch() -> None:
    one = np.array([7], dtype=np.int32)
    assert batches(plan_epoch(one, one, batch_tokens=7, seed=1, epoch=0)) == [[0]]
    with pytest.raises(AssertionError):
        plan_epoch(one, one, batch_tokens=6, seed=1, epoch=0)
