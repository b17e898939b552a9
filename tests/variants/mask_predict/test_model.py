"""The decoder that sees all positions, the lengths it is given, and what stays as in the plain model."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_cli.build import build_model, count_parameters
from transformer_cli.config import ModelConfig
from transformer_cli.model.masks import PAD, padding_mask
from transformer_cli.variants.mask_predict.model import (
    LENGTH_SPAN,
    MASK,
    NonAutoregressiveTransformer,
    all_masked,
    canvas_length,
    length_class,
)

Build = Callable[..., NonAutoregressiveTransformer]
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 10, 3, PAD, PAD], [11, 3, PAD, PAD, PAD]])
TARGET = torch.tensor([[4, MASK, 6, 7], [8, 9, PAD, PAD], [MASK, MASK, MASK, PAD]])


def decode(model: NonAutoregressiveTransformer, source: Tensor, target: Tensor) -> Tensor:
    mask = padding_mask(source)
    return model.decode(target, model.encode(source, mask), mask).hidden


def test_every_position_sees_all_others_but_no_padding(build: Build) -> None:
    model = build(generation="mask_predict")
    table = model.target_embedding.tokens.table
    states: list[Tensor] = []
    table.register_forward_hook(lambda *arguments: states.append(arguments[2].requires_grad_()))
    with torch.no_grad():
        memory = model.encode(SOURCE, padding_mask(SOURCE))
    hidden = model.decode(TARGET, memory, padding_mask(SOURCE)).hidden
    for row, column in [(0, 0), (0, 3), (1, 1), (2, 0)]:
        (gradient,) = torch.autograd.grad(hidden[row, column].square().sum(), states[0], retain_graph=True)
        seen = gradient.abs().sum(dim=2) > 0  # (B, T)
        expected = torch.zeros_like(seen)
        expected[row] = TARGET[row] != PAD
        assert torch.equal(seen, expected)


def test_padding_and_the_order_of_rows_change_nothing(build: Build) -> None:
    model = build(generation="mask_predict")
    together = decode(model, SOURCE, TARGET)
    for row in range(len(SOURCE)):
        source, target = SOURCE[row][SOURCE[row] != PAD], TARGET[row][TARGET[row] != PAD]
        alone = decode(model, source[None], target[None])[0]
        assert torch.allclose(together[row, : len(target)], alone, atol=1e-10, rtol=0)
    order = torch.tensor([2, 0, 1])
    assert torch.allclose(decode(model, SOURCE[order], TARGET[order]), together[order], atol=1e-10, rtol=0)


def test_rows_of_one_sentence_share_its_memory(build: Build) -> None:
    model = build(generation="mask_predict")
    mask = padding_mask(SOURCE)
    memory = model.encode(SOURCE, mask)
    rows = torch.stack([TARGET, all_masked(torch.tensor([1, 4, 2]), 4)], dim=1)  # (B, 2, T)
    shared = model.decode(rows.flatten(0, 1), None, mask, model.start_cache(memory)).hidden.view(3, 2, 4, -1)
    for place in range(2):
        apart = model.decode(rows[:, place], memory, mask).hidden
        real = rows[:, place] != PAD
        assert torch.allclose(shared[:, place][real], apart[real], atol=1e-10, rtol=0)


def test_attention_is_shown_on_request_and_changes_nothing(build: Build) -> None:
    model = build(generation="one_shot")
    mask = padding_mask(SOURCE)
    memory = model.encode(SOURCE, mask)
    plain, open_ = (model.decode(TARGET, memory, mask, need_weights=need) for need in (False, True))
    assert torch.allclose(plain.hidden, open_.hidden, atol=1e-12, rtol=0)
    assert not plain.cross_attention
    for weights, seen in ((open_.self_attention, padding_mask(TARGET)), (open_.cross_attention, mask)):
        assert len(weights) == 3
        for layer in weights:
            assert torch.allclose(layer.sum(dim=3), torch.ones(()).double())
            assert not layer.masked_fill(seen, 0).any()


def test_a_target_without_tokens_spoils_no_gradient(build: Build) -> None:
    model = build(generation="mask_predict")
    target = torch.tensor([[4, 5], [PAD, PAD], [6, PAD]])
    hidden = decode(model, SOURCE, target)
    torch.autograd.backward(hidden[target != PAD].sum())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert any(gradient.any() for gradient in gradients)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_lengths_are_told_from_the_real_part_of_the_memory(build: Build) -> None:
    model = build(generation="mask_predict")
    mask = padding_mask(SOURCE)
    together = model.predict_lengths(model.encode(SOURCE, mask), mask)
    assert together.shape == (3, 2 * LENGTH_SPAN + 1)
    assert torch.allclose(together.exp().sum(dim=1), torch.ones(3).double())
    for row in range(3):
        source = SOURCE[row][SOURCE[row] != PAD][None]
        alone = model.predict_lengths(model.encode(source, padding_mask(source)), padding_mask(source))
        assert torch.allclose(together[row], alone[0], atol=1e-10, rtol=0)


def test_classes_of_lengths_are_clipped_differences() -> None:
    classes = length_class(torch.tensor([5, 3, 9, 900, 1]), torch.tensor([5, 5, 5, 5, 900]))
    assert classes.tolist() == [LENGTH_SPAN, LENGTH_SPAN - 2, LENGTH_SPAN + 4, 2 * LENGTH_SPAN, 0]


def test_a_canvas_is_as_long_as_the_source_says() -> None:
    assert canvas_length(torch.tensor([1, 10])).tolist() == [10, 28]
    assert all_masked(torch.tensor([1, 3, 0]), 4).tolist() == [
        [MASK, PAD, PAD, PAD],
        [MASK, MASK, MASK, PAD],
        [PAD, PAD, PAD, PAD],
    ]


@pytest.mark.parametrize("generation", ["mask_predict", "one_shot"])
def test_weights_are_the_plain_models_and_those_of_the_lengths(
    generation: str, small_config: Callable[..., ModelConfig]
) -> None:
    plain, other = (build_model(small_config(generation=kind), 17, 19) for kind in ("autoregressive", generation))
    shapes: list[dict[str, Any]] = [
        {name: weight.shape for name, weight in m.state_dict().items()} for m in (plain, other)
    ]
    more = {name: shape for name, shape in shapes[1].items() if name not in shapes[0]}
    assert shapes[0].items() <= shapes[1].items()
    assert {name.split(".")[0] for name in more} == ({"length_predictor"} if generation == "mask_predict" else set())
    assert count_parameters(other) - count_parameters(plain) == sum(shape.numel() for shape in more.values())
