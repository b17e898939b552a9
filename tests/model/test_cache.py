"""Decoding step by step, in chunks, and with rows picked, repeated and dropped is decoding the whole."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformer_cli.model.attention import DecoderCache, KeysValues
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer

Build = Callable[..., Transformer]
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [10, 11, 12, 3, 0]])
MASK = padding_mask(SOURCE)
ROWS = torch.tensor([2, 0])
OPTIONS = pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "pre"},
        {"positions": "learned"},
        {"value_dim": 2},
        {"positions": "rotary", "qk_norm": True},
        {"positions": "rotary", "value_dim": 2},
        {"head_dim": 5, "norm": "pre", "attention_bias": False},
    ],
    ids=str,
)


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


@pytest.mark.medium
@OPTIONS
@settings(max_examples=15)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), need_weights=st.booleans())
def test_chunks_of_any_size_are_the_whole(
    build: Build, options: dict[str, object], sizes: list[int], need_weights: bool
) -> None:
    model = build(**options)
    target = torch.randint(1, 19, (3, sum(sizes)))
    memory = model.encode(SOURCE, MASK)
    whole = model.decode(target, memory, MASK, need_weights=True)

    cache, done = model.start_cache(memory), 0
    for size in sizes:
        end = done + size
        output = model.decode(target[:, done:end], None, MASK, cache, need_weights)
        cache = output.cache
        close(output.hidden, whole.hidden[:, done:end])
        assert cache.length == end
        if need_weights:
            for ours, expected in zip(output.self_attention, whole.self_attention, strict=True):
                close(ours, expected[:, :, done:end, :end])
            for ours, expected in zip(output.cross_attention, whole.cross_attention, strict=True):
                close(ours, expected[:, :, done:end])
        done = end
    for layer, expected_layer in zip(cache.decoded, whole.cache.decoded, strict=True):
        assert layer is not None
        assert expected_layer is not None
        close(layer.both, expected_layer.both)


@OPTIONS
@pytest.mark.parametrize("size", [1, 2])
def test_after_rows_are_picked_repeated_and_dropped(build: Build, options: dict[str, object], size: int) -> None:
    model = build(**options)
    memory = model.encode(SOURCE, MASK)
    origin = torch.tensor([0, 0, 1, 1, 2, 2])  # the sentence of each row
    cache, mask = model.start_cache(memory).select(origin, origin), MASK[origin]
    prefix = torch.empty(6, 0, dtype=torch.long)
    for rows in ([1, 1, 3, 2, 5, 4], [0, 1, 2, 2, 5, 5], [4, 4, 0, 1], [3, 1, 0, 0, 2], [2]):
        new = torch.randint(1, 19, (len(prefix), size))
        prefix = torch.cat([prefix, new], dim=1)
        output = model.decode(new, None, mask, cache)
        whole = model.decode(prefix, memory[origin], MASK[origin])
        close(output.hidden, whole.hidden[:, -size:])
        chosen = torch.tensor(rows)
        cache = output.cache.select(chosen, chosen)
        mask, prefix, origin = mask[chosen], prefix[chosen], origin[chosen]
        assert cache.length == prefix.size(1)
    assert len(prefix) == 1


@OPTIONS
@pytest.mark.parametrize("size", [1, 2])
def test_rows_that_share_a_memory_read_it_as_if_it_were_their_own(
    build: Build, options: dict[str, object], size: int
) -> None:
    model = build(**options)
    memory = model.encode(SOURCE, MASK)
    origin = torch.tensor([0, 0, 1, 1, 2, 2])
    shared = model.start_cache(memory)
    own = shared.select(origin, origin)
    assert shared.select(origin, None).memory is shared.memory
    for _ in range(3):
        new = torch.randint(1, 19, (6, size))
        together = model.decode(new, None, MASK, shared, need_weights=True)
        apart = model.decode(new, None, MASK[origin], own, need_weights=True)
        close(together.hidden, apart.hidden)
        close(model.decode(new, None, MASK, shared).hidden, apart.hidden)
        for ours, expected in zip(together.cross_attention, apart.cross_attention, strict=True):
            assert ours.shape == expected.shape
            close(ours, expected)
        chosen = torch.tensor([1, 0, 2, 2, 5, 4])
        shared, own = together.cache.select(chosen, None), apart.cache.select(chosen, chosen)


def test_the_cache_handed_in_is_left_as_it_was(build: Build) -> None:
    model = build()
    memory = model.encode(SOURCE, MASK)
    cache = model.decode(torch.tensor([[2], [2], [2]]), memory, MASK).cache
    new = torch.tensor([[7], [8], [9]])
    first = model.decode(new, None, MASK, cache)
    second = model.decode(new, None, MASK, cache)
    assert torch.equal(first.hidden, second.hidden)
    assert (cache.length, first.cache.length) == (1, 2)


def test_the_memory_is_projected_once(build: Build) -> None:
    model = build()
    projected: list[int] = []
    for layer in model.decoder.layers:
        layer.get_submodule("cross_attention.key_value").register_forward_hook(lambda *_: projected.append(1))
    cache = model.start_cache(model.encode(SOURCE, MASK))
    for _ in range(3):
        cache = model.decode(torch.tensor([[2], [2], [2]]), None, MASK, cache).cache
    assert len(projected) == len(model.decoder.layers)


def test_decoding_needs_a_memory_or_a_cache(build: Build) -> None:
    with pytest.raises(AssertionError, match="memory or a cache"):
        build().decode(torch.tensor([[2]]), None, MASK)


def test_select_keeps_a_fresh_cache_fresh(build: Build) -> None:
    model = build()
    cache: DecoderCache = model.start_cache(model.encode(SOURCE, MASK)).select(ROWS, ROWS)
    assert cache.decoded == (None, None, None)
    assert cache.length == 0
    assert all(layer.both.size(0) == 2 for layer in cache.memory)


@pytest.mark.parametrize("pick", [1, 3, 50])
def test_growing_is_appending_without_copying_each_time(pick: int) -> None:
    torch.manual_seed(0)
    grown = plain = KeysValues(torch.randn(3, 2, 1, 8), heads=2)
    seen, rooms = [], set()
    for number in range(1, 40):
        new = KeysValues(torch.randn(3, 2, 1, 8), heads=2)
        grown, plain = grown.grow(new), plain.append(new)
        seen.append((grown, plain))
        if grown.room is not None:
            rooms.add(grown.room.data_ptr())
        if number % pick == 0:
            rows = torch.randint(3, (3,))
            grown, plain = grown.select(rows), plain.select(rows)
    for ours, expected in seen:  # the earlier ones too: nobody's positions were written over
        assert torch.equal(ours.both, expected.both)
        for one, other in zip(ours.split(), expected.split(), strict=True):
            assert torch.equal(one, other)
    if pick == 50:
        assert len(rooms) <= 6, "one a doubling"
