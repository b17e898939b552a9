"""Padded tensors: specials where they belong, padding nowhere else, and the same after any journey."""

import copy

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.data.batch import Batch
from transformer_cli.text.vocabulary import BOS, EOS, PAD

ids = st.lists(st.integers(4, 65_535), max_size=12)


@settings(max_examples=100)
@given(pairs=st.lists(st.tuples(ids, ids), min_size=1, max_size=8))
def test_rows_are_the_pairs_with_specials(pairs: list[tuple[list[int], list[int]]]) -> None:
    batch = Batch.from_ids([(np.array(source, dtype=np.uint16), target) for source, target in pairs])
    for row, (source, target) in enumerate(pairs):
        expected = {
            "source": [*source, EOS],
            "target_input": [BOS, *target],
            "target_output": [*target, EOS],
        }
        for name, tokens in expected.items():
            tensor = getattr(batch, name)
            assert tensor.dtype == torch.int64
            assert tensor[row, : len(tokens)].tolist() == tokens
            assert (tensor[row, len(tokens) :] == PAD).all()
        assert batch.source_mask[row, 0, 0].tolist() == [i <= len(source) for i in range(batch.source.shape[1])]
    assert batch.source.shape[1] == max(len(source) for source, _ in pairs) + 1
    assert batch.target_input.shape == batch.target_output.shape
    assert batch.target_output.shape[1] == max(len(target) for _, target in pairs) + 1
    assert batch.target_tokens == int((batch.target_output != PAD).sum())
    taken = batch.target_output.flatten()[batch.target_places].tolist()
    assert taken == [token for _, target in pairs for token in [*target, EOS]]
    if len(pairs) > 1:
        first, second = batch.halves()
        assert torch.cat([first.source, second.source]).equal(batch.source)
        assert first.target_tokens + second.target_tokens == batch.target_tokens


def test_a_batch_survives_other_processes_and_devices() -> None:
    batch = Batch.from_ids([([5, 6], [7]), ([8], [9, 10, 11])])
    for other in (copy.deepcopy(batch), batch.to("cpu")):  # a copy goes through the same form as a message
        assert other.target_tokens == batch.target_tokens
        for name in ("source", "source_mask", "target_input", "target_output", "target_places"):
            assert torch.equal(getattr(other, name), getattr(batch, name))
    assert batch.to("meta").source.device.type == "meta"


def test_links_go_where_their_rows_go() -> None:
    links = [np.array([[0, 1]]), np.zeros((0, 2), dtype=np.int32), np.array([[0, 0], [2, 0]])]
    batch = Batch.from_ids([([5, 6], [7]), ([8], [9]), ([8], [9, 10, 11])], links=links)
    assert batch.links is not None
    assert batch.links.tolist() == [[0, 0, 1], [2, 0, 0], [2, 2, 0]]
    assert batch.links.dtype == torch.int64
    for other in (copy.deepcopy(batch), batch.to("cpu")):
        assert other.links is not None
        assert torch.equal(other.links, batch.links)
    assert copy.deepcopy(Batch.from_ids([([5], [6])])).links is None
    first, second = batch.halves()
    assert first.links is not None
    assert second.links is not None
    assert first.links.tolist() == [[0, 0, 1]]
    assert second.links.tolist() == [[1, 0, 0], [1, 2, 0]]
    nothing = Batch.from_ids([([5], [6])], links=[np.zeros((0, 2))])
    assert nothing.links is not None
    assert nothing.links.shape == (0, 3)


def test_other_sources_are_those_of_the_sentence_before() -> None:
    pairs = [([5, 6], [7]), ([8], [9, 10]), ([11, 12, 13], [14])]
    other = [([11, 12, 13], [7]), ([5, 6], [9, 10]), ([8], [14])]
    links = [np.array([[0, 0]])] * 3
    found = Batch.from_ids(pairs, links=links).beside_other_sources(words=15)
    for batch, expected in zip(found, (Batch.from_ids(pairs), Batch.from_ids(other)), strict=True):
        for name in ("source", "source_mask", "target_input", "target_output", "target_places"):
            assert getattr(batch, name).equal(getattr(expected, name))
        assert batch.links is None  # those of a pair mean nothing beside another source


def test_what_another_source_says_nothing_about_is_not_compared() -> None:
    """The same source once more, and a target with a place in its own source, which has an id beyond the words."""
    pairs = [([5, 6], [7]), ([8], [9]), ([8], [10]), ([11], [12, 15])]
    own, other = Batch.from_ids(pairs).beside_other_sources(words=15)
    assert own.source[:, 0].tolist() == [5, 8]
    assert other.source[:, 0].tolist() == [11, 5]
    assert own.target_output[:, 0].tolist() == other.target_output[:, 0].tolist() == [7, 9]
    assert [batch.target_tokens for batch in Batch.from_ids(pairs[1:2]).beside_other_sources(words=15)] == [0, 0]
