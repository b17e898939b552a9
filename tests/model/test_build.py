"""Building: sizes, ties and first weights are the paper's, and no option of the config is without effect."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.build import build_model, count_parameters
from transformer_cli.config import ModelConfig, load_config
from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.embedding import LearnedPositions, sinusoidal_table
from transformer_cli.model.layers import FeedForward, GatedFeedForward
from transformer_cli.model.masks import PAD, padding_mask
from transformer_cli.model.transformer import Transformer

CONFIGS = Path(__file__).parents[2] / "configs"
SmallConfig = Callable[..., ModelConfig]
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0]])
TARGET = torch.tensor([[2, 5, 6, 7], [2, 7, 8, 3]])


# --- size ---------------------------------------------------------------------------------------------------------


def paper_count(d_model: int, d_ff: int, layers: int, vocabulary: int) -> int:
    """The paper's Transformer: attention projects by plain matrices (§3.2.2), one matrix embeds both sides (§3.4)."""
    attention = 4 * d_model * d_model  # Wᵠ, Wᴷ, Wⱽ and Wᴼ of all heads together
    feed_forward = (d_model * d_ff + d_ff) + (d_ff * d_model + d_model)
    norm = 2 * d_model  # gain and bias
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return vocabulary * d_model + layers * (encoder_layer + decoder_layer)


@pytest.mark.parametrize(
    ("name", "sizes", "exact", "rounded"),
    [
        ("base", (512, 2048, 6), 63_045_632, 65e6),
        ("big", (1024, 4096, 6), 214_171_648, 213e6),
    ],
)
def test_the_papers_models_have_the_papers_size(
    name: str, sizes: tuple[int, int, int], exact: int, rounded: float
) -> None:
    config = load_config(CONFIGS / f"wmt14_en_de_{name}.yaml").model
    with torch.device("meta"):
        count = count_parameters(build_model(config, 37_000, 37_000))
    assert exact == paper_count(*sizes, vocabulary=37_000)
    assert count == exact
    assert abs(count - rounded) / rounded < 0.035  # table 3


def test_frozen_weights_count(small_config: SmallConfig) -> None:
    model = build_model(small_config(), 17, 19)
    before = count_parameters(model)
    model.source_embedding.requires_grad_(False)
    assert count_parameters(model) == before


# --- ties ---------------------------------------------------------------------------------------------------------


def ends(model: Transformer) -> tuple[Tensor, Tensor, Tensor]:
    """The three matrices that may be one: of the source, of the target and of the generator."""
    return (
        model.source_embedding.tokens.table.weight,
        model.target_embedding.tokens.table.weight,
        model.generator.projection.weight,
    )


@pytest.mark.parametrize(("tie", "matrices"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_tied_embeddings_are_one_matrix(small_config: SmallConfig, tie: str, matrices: int) -> None:
    model, untied = (build_model(small_config(tie_embeddings=way), 17, 17) for way in (tie, "none"))
    source, target, generator = ends(model)
    assert (target is generator) == (tie != "none")
    assert (source is target) == (tie == "all")
    assert count_parameters(untied) - count_parameters(model) == (3 - matrices) * 17 * 12

    for moved in (model, model.double()):  # a change of type does not cut the tie
        assert len({matrix.data_ptr() for matrix in ends(moved)}) == matrices
        with torch.no_grad():
            ends(moved)[1][5] += 1.0
        assert [bool((matrix[5].mean() > 0.5).item()) for matrix in ends(moved)] == [
            tie == "all",
            True,
            tie != "none",
        ]
        with torch.no_grad():
            ends(moved)[1][5] -= 1.0


def test_a_tied_matrix_gathers_the_gradient_of_all_its_uses(small_config: SmallConfig) -> None:
    gradients = {}
    for tie in ("none", "all"):
        torch.manual_seed(4)
        model = build_model(small_config(tie_embeddings=tie), 17, 17).double()
        if tie == "none":
            with torch.no_grad():
                for matrix in ends(model):
                    matrix.copy_(ends(model)[1])
            untied = model
        else:
            model.load_state_dict(untied.state_dict())
        mask = padding_mask(SOURCE)
        log_probabilities = model.generator(model(SOURCE, mask, TARGET), SOURCE)
        log_probabilities[..., 5].sum().backward()
        gradients[tie] = [matrix.grad for matrix in ends(model)]
    parts = [gradient for gradient in gradients["none"] if gradient is not None]
    assert len(parts) == 3
    for gradient in gradients["all"]:
        assert gradient is not None
        torch.testing.assert_close(gradient, parts[0] + parts[1] + parts[2], rtol=0, atol=1e-12)


def test_tying_all_needs_one_vocabulary(small_config: SmallConfig) -> None:
    with pytest.raises(AssertionError, match="one shared vocabulary"):
        build_model(small_config(tie_embeddings="all"), 17, 19)


# --- initialisation -----------------------------------------------------------------------------------------------


def assert_xavier(weight: Tensor) -> None:
    """Uniform in ±√(6 / (fan in + fan out)) (Glorot and Bengio 2010, eq. 16): within, up to the bounds, flat."""
    fan_out, fan_in = weight.shape
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.98 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert abs(weight.mean().item()) < 5 * bound / math.sqrt(3 * weight.numel())


@pytest.mark.parametrize(
    "options",
    [{}, {"head_dim": 8}, {"activation": "swiglu"}, {"tie_embeddings": "all", "positions": "learned", "norm": "pre"}],
    ids=str,
)
def test_initial_weights(small_config: SmallConfig, options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    config = small_config(**{"d_model": 48, "heads": 4, "d_ff": 200, "tie_embeddings": "none", **options})
    model = build_model(config, 300, 300)
    checked: set[int] = set()
    size = 4 * (config.head_dim or 12)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            keys_values = module.key_value.weight
            assert keys_values.shape == (2 * size, 48)
            projections = [module.query.weight, keys_values[:size], keys_values[size:], module.output.weight]
            checked |= {id(module.query.weight), id(keys_values), id(module.output.weight)}
        elif isinstance(module, FeedForward | GatedFeedForward):
            projections = list(filter(lambda weight: weight.dim() == 2, module.parameters()))
            assert len(projections) == (3 if isinstance(module, GatedFeedForward) else 2)
            checked |= set(map(id, projections))
        else:
            continue
        for weight in projections:
            assert_xavier(weight)
    if config.tie_embeddings == "none":
        assert_xavier(model.generator.projection.weight)
        checked.add(id(model.generator.projection.weight))

    for embedding in (model.source_embedding, model.target_embedding):
        table = embedding.tokens.table.weight
        assert table[PAD].eq(0).all()
        drawn = table[PAD + 1 :]
        checked.add(id(table))
        if isinstance(embedding.positions, LearnedPositions):
            learned = embedding.positions.table.weight
            assert torch.equal(learned, sinusoidal_table(*learned.shape))
            checked.add(id(learned))
        assert drawn.std().item() == pytest.approx(48**-0.5, rel=0.03)
        assert drawn.abs().max() > 3 * 48**-0.5  # normal, not uniform
        assert abs(drawn.mean().item()) < 5 * 48**-0.5 / math.sqrt(drawn.numel())
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all()
            checked.add(id(module.weight))
        if isinstance(module, nn.LayerNorm | nn.Linear) and module.bias is not None:
            assert module.bias.eq(0).all()
            checked.add(id(module.bias))
    assert checked == set(map(id, model.parameters()))


def test_equal_seeds_give_equal_models(small_config: SmallConfig) -> None:
    models = []
    for seed in (6, 6, 7):
        torch.manual_seed(seed)
        models.append(build_model(small_config(), 17, 19).state_dict())
    first, same, other = models
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["generator.projection.weight"], other["generator.projection.weight"])


# --- options ------------------------------------------------------------------------------------------------------

# For every option another value than the small config's.
OTHERWISE: dict[str, Any] = {
    "encoder_layers": 4,
    "decoder_layers": 1,
    "d_model": 18,
    "heads": 2,
    "head_dim": 5,
    "d_ff": 21,
    "dropout": 0.5,
    "attention_dropout": 0.5,
    "activation_dropout": 0.5,
    "embedding_dropout": 0.5,
    "activation": "gelu",
    "norm": "pre",
    "norm_epsilon": 1e-2,
    "positions": "learned",
    "max_positions": 9,
    "qk_norm": True,
    "tie_embeddings": "all",
    "attention_bias": False,
    "feed_forward_bias": False,
    "generator_bias": True,
    "generator": "pointer",
    "generation": "one_shot",
    "value_dim": 5,
}
# What else must be set for an option to be seen alone.
BASE: dict[str, dict[str, Any]] = {"max_positions": {"positions": "learned"}, "dropout": {"embedding_dropout": 0.0}}


def behaviour(config: ModelConfig) -> tuple[dict[str, tuple[int, ...]], Tensor]:
    """The shapes of all weights (tied ones once) and the result in training, with equal draws."""
    torch.manual_seed(8)
    model = build_model(config, 17, 17).train()
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    return shapes, model.generator(model(SOURCE, padding_mask(SOURCE), TARGET), SOURCE)


def test_the_table_of_options_is_complete() -> None:
    idle = {"preset", "embedding"}  # the one fills in the others, the other changes nothing
    assert set(OTHERWISE) == set(ModelConfig.model_fields) - idle


@pytest.mark.parametrize("option", OTHERWISE)
def test_every_option_changes_the_model(small_config: SmallConfig, option: str) -> None:
    base = small_config(**BASE.get(option, {}))
    other = small_config(**BASE.get(option, {}), **{option: OTHERWISE[option]})
    changed = {name for name in ModelConfig.model_fields if getattr(base, name) != getattr(other, name)}
    assert changed == {option}
    shapes, result = behaviour(base)
    other_shapes, other_result = behaviour(other)
    assert shapes != other_shapes or not torch.equal(result, other_result)
    again_shapes, again = behaviour(base)
    assert shapes == again_shapes
    assert torch.equal(result, again)


def test_every_activation_differs(small_config: SmallConfig) -> None:
    annotation = ModelConfig.model_fields["activation"].annotation
    names = inspect.getattr_static(annotation, "__args__")
    results = {name: behaviour(small_config(activation=name))[1] for name in names}
    assert len(results) == 5
    assert len({tuple(result.flatten().tolist()) for result in results.values()}) == 5


def test_layer_numbers_are_the_configs(small_config: SmallConfig) -> None:
    model = build_model(small_config(encoder_layers=4, decoder_layers=1), 17, 19)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (4, 1)


def test_biases_are_where_the_config_wants_them(small_config: SmallConfig) -> None:
    for attention in (False, True):
        for feed_forward in (False, True):
            for generator in (False, True):
                config = small_config(
                    attention_bias=attention, feed_forward_bias=feed_forward, generator_bias=generator
                )
                model = build_model(config, 17, 19)
                for name, module in model.named_modules():
                    if isinstance(module, nn.Linear):
                        wanted = generator if "generator" in name else attention
                        wanted = feed_forward if "feed_forward" in name else wanted
                        assert (module.bias is not None) == wanted, name


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_epsilon_reaches_every_norm(small_config: SmallConfig, norm: str) -> None:
    model = build_model(small_config(norm=norm, norm_epsilon=0.01), 17, 19)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 3 * 3 + 2 * (norm == "pre")  # a sub-layer's each, and a pre-norm stack's own
    assert {module.eps for module in norms} == {0.01}
