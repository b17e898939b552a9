"""The tree of a model: every parameter once, every multiplication in its place, by the formulas that the help has."""

import inspect
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from transformer_cli.build import build_model, count_parameters
from transformer_cli.config import ModelConfig
from transformer_cli.errors import UserError
from transformer_cli.inside.architecture import Part, _Counter, inspect_model
from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.transformer import Transformer

S, T, V = 7, 5, 30
D, H, F = 16, 4, 24  # d_model, heads, d_ff


def make(**changes: Any) -> Transformer:
    values = {"encoder_layers": 2, "decoder_layers": 3, "d_model": D, "heads": H, "d_ff": F, "tie_embeddings": "none"}
    with torch.random.fork_rng(devices=[]):
        return build_model(ModelConfig.model_validate(values | changes), V, V)


def walk(part: Part) -> Iterator[Part]:
    yield part
    for inner in part.parts:
        yield from walk(inner)


def tree(model: Transformer, source_length: int = S, target_length: int = T) -> dict[str, Part]:
    return {part.path: part for part in walk(inspect_model(model, source_length, target_length))}


@pytest.mark.parametrize("tied", ["none", "decoder", "all"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])
def test_parameters_sum_to_the_models_with_tied_ones_once(tied: str, positions: str) -> None:
    model = make(tie_embeddings=tied, positions=positions, norm="pre", max_positions=9)
    parts = tree(model)
    assert parts[""].parameters == count_parameters(model)
    assert parts[""].parameters == sum(weight.parameters for part in parts.values() for weight in part.weights)
    weights = [(f"{part.path}.{weight.name}", weight) for part in parts.values() for weight in part.weights]
    tied_to = {name: weight.tied_to for name, weight in weights if weight.tied_to is not None}
    first = "source_embedding.tokens.table.weight" if tied == "all" else "target_embedding.tokens.table.weight"
    assert (
        tied_to
        == {
            "none": {},
            "decoder": {"generator.projection.weight": first},
            "all": {"target_embedding.tokens.table.weight": first, "generator.projection.weight": first},
        }[tied]
    )
    assert {name for name, weight in weights if not weight.constant} == {
        name for name, _ in model.named_parameters(remove_duplicate=False)
    }


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_a_linear_layer_multiplies_tokens_by_its_two_dimensions(activation: str) -> None:
    model = make(activation=activation)
    parts = tree(model)
    counted = 0
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            of_source = path.startswith("encoder") or "cross_attention.key_value" in path
            assert parts[path].multiply_adds == (S if of_source else T) * module.in_features * module.out_features, path
            counted += 1
    assert counted == 2 * (5 + (activation == "swiglu")) + 3 * (8 + (activation == "swiglu")) + 1


def test_attention_multiplies_each_pair_of_positions_twice() -> None:
    """Q Kᵀ and weights · V: d_k and d_v are D / H here, so H of them are D."""
    model = make(head_dim=6)
    parts = tree(model)
    squares = {"encoder": S * S, "decoder self": T * T, "decoder cross": T * S}
    for path, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            place = "encoder" if path.startswith("encoder") else f"decoder {path.rpartition('.')[2].split('_')[0]}"
            assert parts[path].own_multiply_adds == squares[place] * H * (6 + 6), path


def test_all_is_counted_once_and_in_the_parts_that_multiply() -> None:
    parts = tree(make())
    multiplying = {part.path.rpartition(".")[2] for part in parts.values() if part.own_multiply_adds}
    assert multiplying == {
        *("query", "key_value", "output", "self_attention", "cross_attention", "inner", "outer", "projection")
    }
    assert parts[""].multiply_adds == sum(part.own_multiply_adds for part in parts.values())
    assert parts[""].own_multiply_adds == 0


@pytest.mark.parametrize(
    "variant",
    [
        {"generator": "pointer"},
        {"generation": "mask_predict"},
        {"generation": "one_shot"},
        {"value_dim": 3},
        {"embedding": "one_hot"},
    ],
    ids=str,
)
def test_every_variant_has_a_tree(variant: dict[str, Any]) -> None:
    model = make(**variant)
    parts = tree(model)
    assert parts[""].parameters == count_parameters(model)
    assert parts["encoder.layers.1.self_attention"].own_multiply_adds == S * S * (
        D + H * variant.get("value_dim", D // H)
    )
    assert all(parts[name].multiply_adds for name in ("encoder", "decoder", "generator"))
    if variant == {"embedding": "one_hot"}:
        assert parts["source_embedding"].multiply_adds == S * V * D
    if variant == {"generation": "mask_predict"}:  # one row, of the mean of the memory
        assert parts["length_predictor.projection"].multiply_adds == model.length_predictor.projection.weight.numel()  # type: ignore[union-attr, operator]


def test_long_sentences_are_counted_alike() -> None:
    """Training on a CPU leaves open products to a fused kernel from 257 keys on; the count knows of neither."""
    parts = tree(make(), 300, 2)
    assert parts["encoder.layers.0.self_attention"].own_multiply_adds == 300 * 300 * 2 * D
    assert parts["decoder.layers.2.cross_attention"].own_multiply_adds == 2 * 300 * 2 * D


def test_the_model_is_left_as_it_was() -> None:
    model = make().train()
    before = torch.random.get_rng_state()
    inspect_model(model, S, T)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_part_that_nobody_foresaw_is_counted_too() -> None:
    """A variant's own class: its weights and products are those of the modules and functions that it is made of."""

    class Copying(torch.nn.Module):
        def __init__(self, inner: torch.nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.gate = torch.nn.Parameter(torch.ones(D, 2))

        def forward(self, output: Any, source: Any) -> Any:
            mixed = output.hidden @ self.gate  # (B, T, 2)
            return self.inner(output, source) + mixed.sum()

    model = make()
    plain = inspect_model(model, S, T)
    model.generator = Copying(model.generator)  # type: ignore[assignment]
    parts = tree(model)
    assert parts["generator"].kind == "Copying"
    assert parts["generator"].own_multiply_adds == T * D * 2
    assert parts[""].parameters == plain.parameters + 2 * D == count_parameters(model)
    assert parts[""].multiply_adds == plain.multiply_adds + T * D * 2


def test_more_positions_than_the_table_has_are_refused() -> None:
    model = make(positions="learned", max_positions=6)
    with pytest.raises(UserError, match=r"source length 7: .* end at 6"):
        inspect_model(model, 7, 6)
    with pytest.raises(UserError, match=r"target length 9: .* end at 6"):
        inspect_model(model, 6, 9)
    assert inspect_model(model, 6, 6).parameters == count_parameters(model)


def test_the_compiler_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than all the rest of `tfm inspect`."""
    monkeypatch.delattr(inspect.unwrap(_Counter.__torch_dispatch__), "__dynamo_disable", raising=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it raises
    assert tree(make())[""].multiply_adds > 0
