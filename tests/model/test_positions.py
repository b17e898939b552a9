"""Positions: the paper's sinusoids, computed here with `math` alone, and a learned table with an end."""

import cmath
import math
from collections.abc import Callable

import pytest
import torch

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.model.embedding import (
    TABLE_LENGTH,
    LearnedPositions,
    RotaryPositions,
    SinusoidalPositions,
    sinusoidal_table,
)
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer

FLOAT32_ROUNDING = 2.0**-24  # of a number up to 1


def paper_encoding(position: int, d_model: int) -> list[float]:
    """§3.5: PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))"""
    row = []
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        row += [math.sin(angle), math.cos(angle)]
    return row


@pytest.mark.parametrize("d_model", [2, 6, 512])
def test_sinusoids_are_the_papers(d_model: int) -> None:
    table = sinusoidal_table(5001, d_model).double()
    assert table.shape == (5001, d_model)
    for position in (0, 1, 2, 17, 1000, 5000):
        expected = torch.tensor(paper_encoding(position, d_model), dtype=torch.float64)
        torch.testing.assert_close(table[position], expected, rtol=0, atol=FLOAT32_ROUNDING * 1.01)


@pytest.mark.parametrize(
    ("start", "length"), [(0, 3), (7, 2), (TABLE_LENGTH - 1, 1), (TABLE_LENGTH - 1, 2), (2 * TABLE_LENGTH, 3)]
)
def test_sinusoids_start_anywhere_and_never_end(start: int, length: int) -> None:
    positions = SinusoidalPositions(6)
    expected = torch.tensor([paper_encoding(start + offset, 6) for offset in range(length)])
    torch.testing.assert_close(positions(start, length), expected, rtol=0, atol=1e-7)


def test_sinusoids_are_neither_learned_nor_saved(build: Callable[..., Transformer]) -> None:
    assert list(SinusoidalPositions(6).parameters()) == []
    assert not [name for name in build().state_dict() if "position" in name]


def test_sinusoids_follow_the_models_type() -> None:
    positions = SinusoidalPositions(6).double()
    assert positions(0, 2).dtype == positions(TABLE_LENGTH, 2).dtype == torch.float64


def test_embeddings_are_scaled_and_positions_added(build: Callable[..., Transformer]) -> None:
    for positions in ("sinusoidal", "learned"):
        model = build(positions=positions)
        ids = torch.tensor([[5, 6, 7]])
        for embedding in (model.source_embedding, model.target_embedding):
            vectors = embedding.tokens.table.weight[ids[0]] * math.sqrt(12)  # §3.4
            if isinstance(embedding.positions, LearnedPositions):
                where = embedding.positions.table.weight[4:7]
            else:
                where = torch.tensor([paper_encoding(position, 12) for position in (4, 5, 6)])
            torch.testing.assert_close(embedding(ids, start=4)[0], vectors + where, rtol=0, atol=1e-7)


def test_learned_positions_are_rows_of_their_table_which_gets_their_gradient() -> None:
    positions = LearnedPositions(5, 4)
    assert torch.equal(positions(1, 3), positions.table.weight[1:4])
    positions(1, 3).sum().backward()
    gradient = positions.table.weight.grad
    assert gradient is not None
    assert gradient[:, 0].tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(("d_model", "even"), [(12, 12), (9, 10)])
def test_learned_positions_begin_as_sinusoids(
    small_config: Callable[..., ModelConfig], d_model: int, even: int
) -> None:
    """Of an odd width those of the next even one, less the last."""
    model = build_model(small_config(positions="learned", d_model=d_model), 17, 19)
    begun = torch.tensor([paper_encoding(position, even)[:d_model] for position in range(7)])
    for embedding in (model.source_embedding, model.target_embedding):
        assert embedding.positions is not None
        torch.testing.assert_close(embedding.positions(0, 7), begun, rtol=0, atol=1e-7)


def test_learned_positions_end_with_their_table(build: Callable[..., Transformer]) -> None:
    model = build(positions="learned", max_positions=5)
    assert model.max_source_length == model.max_target_length == 5
    source = torch.full((1, 5), 4)
    mask = padding_mask(source)
    memory = model.encode(source, mask)
    cache = model.decode(torch.full((1, 5), 4), memory, mask).cache  # five stand in the table, a sixth does not
    with pytest.raises(AssertionError, match="6 positions, but the table has 5"):
        model.decode(torch.full((1, 1), 4), None, mask, cache)
    with pytest.raises(AssertionError, match="6 positions, but the table has 5"):
        model.encode(torch.full((1, 6), 4), padding_mask(torch.full((1, 6), 4)))


def test_sinusoids_set_no_limit(build: Callable[..., Transformer]) -> None:
    model = build()
    assert model.max_source_length is None
    assert model.max_target_length is None


# --- rotary ones ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 3, TABLE_LENGTH - 2])
def test_a_product_of_turned_vectors_is_of_their_distance_alone(start: int) -> None:
    """Su et al. 2021, eq. 11: whole sentences may move along, past the table too."""
    query, key = torch.randn(1, 1, 2, 6, dtype=torch.float64), torch.randn(1, 1, 2, 6, dtype=torch.float64)
    rotary = RotaryPositions(6).double()

    def product(first: int, second: int) -> torch.Tensor:
        turned: torch.Tensor = rotary(first, 1).turn(query) * rotary(second, 1).turn(key)
        return turned.sum(-1)

    for distance in (0, 1, 5):
        torch.testing.assert_close(product(start + distance, start), product(distance, 0), rtol=0, atol=1e-5)
    assert (product(start + 1, start) - product(start, start)).abs().min() > 1e-3


def test_dimensions_turn_in_pairs_by_the_papers_angles() -> None:
    vectors = torch.ones(1, 3, 1, 4)
    turned = RotaryPositions(4)(5, 3).turn(vectors)[0, :, 0]
    for row, position in zip(turned, (5, 6, 7), strict=True):
        for pair, angle in enumerate((position / 1.0, position / 100.0)):
            wanted = (1 + 1j) * cmath.exp(1j * angle)
            assert (float(row[pair]), float(row[pair + 2])) == pytest.approx((wanted.real, wanted.imag), abs=1e-6)


def test_with_rotary_positions_embeddings_are_tokens_alone(build: Callable[..., Transformer]) -> None:
    model = build(positions="rotary")
    ids = torch.tensor([[5, 6]])
    assert torch.equal(model.source_embedding(ids, start=4), model.source_embedding.tokens(ids))
    assert model.max_source_length is None
    assert model.max_target_length is None
    assert not [name for name in model.state_dict() if "rotary" in name or "position" in name]


def test_rotary_positions_tell_the_order(build: Callable[..., Transformer]) -> None:
    """Without positions the memory of a source in another order would be the same, in that order."""
    model = build(positions="rotary")
    order, mask = torch.tensor([2, 0, 1, 3]), torch.ones(1, 1, 1, 4, dtype=torch.bool)
    ids = torch.tensor([[5, 6, 7, 3]])
    assert (model.encode(ids, mask)[:, order] - model.encode(ids[:, order], mask)).abs().max() > 1e-3
