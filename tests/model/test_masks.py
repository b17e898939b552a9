"""Who may see whom: the masks themselves, and that nothing leaks through them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from transformer_cli.model.masks import PAD, causal_mask, padding_mask
from transformer_cli.model.transformer import Transformer
from transformer_cli.text import vocabulary

Build = Callable[..., Transformer]
NORMS = pytest.mark.parametrize("norm", ["post", "pre"])
PATHS = pytest.mark.parametrize("need_weights", [False, True], ids=["fast", "open"])


def influence(output: Tensor, states: Tensor) -> Tensor:
    """(N, M): how strongly position m of `states` (B, M, D) acts on position n of `output` (B, N, D)."""
    rows = []
    for position in range(output.size(1)):
        direction = torch.randn_like(output[:, position])
        (gradient,) = torch.autograd.grad((output[:, position] * direction).sum(), states, retain_graph=True)
        rows.append(gradient.abs().amax(dim=(0, 2)))
    return torch.stack(rows)


def test_padding_mask_is_true_where_a_token_stands() -> None:
    ids = torch.tensor([[5, 3, PAD, PAD], [7, 8, 9, 3]])
    mask = padding_mask(ids)
    assert mask.shape == (2, 1, 1, 4)
    assert mask[:, 0, 0].tolist() == [[True, True, False, False], [True, True, True, True]]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 4), (3, 3), (2, 5)])
def test_causal_mask_lets_a_position_see_itself_and_those_before(queries: int, keys: int) -> None:
    first = keys - queries  # the queries are the last positions
    expected = [[key <= first + query for key in range(keys)] for query in range(queries)]
    assert causal_mask(queries, keys).tolist() == expected


@NORMS
@PATHS
def test_future_tokens_have_exactly_zero_gradient(build: Build, norm: str, need_weights: bool) -> None:
    model = build(norm=norm)
    states = torch.randn(2, 6, 12, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(2, 4, 12, dtype=torch.float64)
    everything = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    hidden = model.decoder(states, everything, model.start_cache(memory), need_weights).hidden
    seen = influence(hidden, states) > 0
    assert torch.equal(seen, torch.ones(6, 6, dtype=torch.bool).tril())


@NORMS
@PATHS
def test_future_tokens_have_zero_gradient_within_a_chunk_after_a_cache(
    build: Build, norm: str, need_weights: bool
) -> None:
    model = build(norm=norm)
    first, second = (torch.randn(2, n, 12, dtype=torch.float64, requires_grad=True) for n in (2, 4))
    memory = torch.randn(2, 4, 12, dtype=torch.float64)
    everything = torch.ones(2, 1, 1, 4, dtype=torch.bool)
    cache = model.decoder(first, everything, model.start_cache(memory)).cache
    hidden = model.decoder(second, everything, cache, need_weights).hidden
    assert (influence(hidden, first) > 0).all()
    assert torch.equal(influence(hidden, second) > 0, torch.ones(4, 4, dtype=torch.bool).tril())


def test_later_target_ids_change_nothing_before_them(build: Build) -> None:
    model = build()
    source, target = torch.randint(4, 17, (2, 5)), torch.randint(4, 19, (2, 6))
    changed = target.clone()
    changed[:, 3:] = torch.randint(4, 19, (2, 3))
    mask = padding_mask(source)
    before, after = (model.generator(model(source, mask, ids), source) for ids in (target, changed))
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3:], after[:, 3:])


@NORMS
@PATHS
def test_padded_source_positions_have_exactly_zero_gradient(build: Build, norm: str, need_weights: bool) -> None:
    model = build(norm=norm)
    real = 3
    ids = torch.tensor([[5, 6, 3, PAD, PAD], [8, 9, 3, PAD, PAD]])
    mask = padding_mask(ids)
    states = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    memory, _ = model.encoder(states, mask, need_weights)
    seen = influence(memory[:, :real], states) > 0
    assert seen[:, :real].all()
    assert not seen[:, real:].any()

    memory = memory.detach().requires_grad_()
    target = torch.randint(4, 19, (2, 4))
    seen = influence(model.decode(target, memory, mask, need_weights=need_weights).hidden, memory) > 0
    assert seen[:, :real].all()
    assert not seen[:, real:].any()


@NORMS
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
@PATHS
def test_padding_and_batching_change_nothing(build: Build, norm: str, positions: str, need_weights: bool) -> None:
    model = build(norm=norm, positions=positions)
    lengths = [(1, 5), (7, 1), (4, 3), (6, 6)]  # of sources and targets
    pairs = [(torch.randint(1, 17, (s,)), torch.randint(1, 19, (t,))) for s, t in lengths]

    def log_probabilities(pairs: list[tuple[Tensor, Tensor]], more: int = 0) -> list[Tensor]:
        """Each pair's, decoded in one batch with `more` columns of padding than needed."""
        source, target = (
            torch.stack([torch.cat([row, row.new_full((longest + more - len(row),), PAD)]) for row in side])
            for side in zip(*pairs, strict=True)
            for longest in [max(map(len, side))]
        )
        mask = padding_mask(source)
        output = model.decode(target, model.encode(source, mask), mask, need_weights=need_weights)
        result = model.generator(output, source)
        return [row[: len(ids)] for row, (_, ids) in zip(result, pairs, strict=True)]

    alone = [log_probabilities([pair])[0] for pair in pairs]
    together = log_probabilities(pairs)
    turned_round = log_probabilities(pairs[::-1], more=3)[::-1]
    for one, other, third in zip(alone, together, turned_round, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-10)
        torch.testing.assert_close(third, one, rtol=0, atol=1e-10)


def test_padding_is_what_vocabularies_call_so() -> None:
    """The model knows no text, and has the id for itself."""
    assert PAD == vocabulary.PAD
