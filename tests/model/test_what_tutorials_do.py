"""What tutorials do differently, and what difference it makes: each of docs/the-transformer.md, shown.

Their variants are the small functions at the head of each part; ours is always the package's own code.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.data.batch import Batch
from transformer_cli.model.attention import MultiHeadAttention, attention_weights
from transformer_cli.model.layers import Residual, build_attention
from transformer_cli.model.masks import causal_mask, padding_mask
from transformer_cli.model.transformer import Encoder, Transformer
from transformer_cli.text.vocabulary import BOS, EOS
from transformer_cli.training.objective import TranslationObjective

Build = Callable[..., Transformer]
SmallConfig = Callable[..., ModelConfig]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


# --- layer norm ---------------------------------------------------------------------------------------------------


def norm_by_unbiased_deviation(states: Tensor, epsilon: float = 1e-6) -> Tensor:
    """(x - mean) / (std + ε), where std divides by D - 1."""
    return (states - states.mean(dim=-1, keepdim=True)) / (states.std(dim=-1, keepdim=True) + epsilon)


def our_norm(small_config: SmallConfig, d_model: int) -> nn.LayerNorm:
    return Residual(small_config(d_model=d_model, heads=1)).double().norm


@pytest.mark.parametrize("d_model", [4, 64, 512])
def test_the_unbiased_deviation_makes_all_smaller(small_config: SmallConfig, d_model: int) -> None:
    states = 100 * torch.randn(50, d_model, dtype=torch.float64)  # far above either ε
    ours, theirs = our_norm(small_config, d_model)(states), norm_by_unbiased_deviation(states)
    torch.testing.assert_close(theirs, ours * math.sqrt((d_model - 1) / d_model), rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.var(dim=-1, correction=0), torch.ones(50).double(), rtol=1e-6, atol=0)


def test_epsilon_beside_the_deviation_hardly_bounds_the_gain(small_config: SmallConfig) -> None:
    """A row of nearly equal numbers: ours divides by √(σ² + 1e-5) > 0.003, the other by σ + 1e-6."""
    states = 7 + 1e-5 * torch.randn(200, 64, dtype=torch.float64)
    assert our_norm(small_config, 64)(states).std() < 0.005
    assert norm_by_unbiased_deviation(states).std() > 0.5


def test_a_root_without_epsilon_has_no_gradient_where_all_are_equal(small_config: SmallConfig) -> None:
    def by_hand(states: Tensor) -> Tensor:
        deviation = states - states.mean(dim=-1, keepdim=True)
        return deviation / (deviation.square().mean(dim=-1, keepdim=True).sqrt() + 1e-6)

    states = torch.full((1, 4), 2.0, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(our_norm(small_config, 4)(states).sum(), states)
    (theirs,) = torch.autograd.grad(by_hand(states).sum(), states)
    assert ours.isfinite().all()
    assert theirs.isnan().all()


# --- masks --------------------------------------------------------------------------------------------------------


def weights_with_fill(query: Tensor, keys: Tensor, mask: Tensor, fill: float) -> Tensor:
    """`attention_weights`, with a large negative number for -inf."""
    scores = query @ keys.transpose(-2, -1) / math.sqrt(query.size(-1))
    return scores.masked_fill(~mask, fill).softmax(dim=-1)


QUERY, KEYS = torch.linspace(-1, 1, 8).view(1, 1, 2, 4), torch.linspace(-2, 1, 12).view(1, 1, 3, 4)
LAST_HIDDEN = torch.tensor([True, True, False])


@pytest.mark.parametrize("fill", [-1e9, -1e4])
def test_with_ordinary_scores_all_fills_agree(fill: float) -> None:
    ours = attention_weights(QUERY, KEYS, LAST_HIDDEN)
    assert torch.equal(weights_with_fill(QUERY, KEYS, LAST_HIDDEN, fill), ours)
    assert (ours[..., 2] == 0).all()


def test_a_row_that_may_look_nowhere_shows_under_inf_only() -> None:
    nowhere = torch.zeros(3, dtype=torch.bool)
    assert attention_weights(QUERY, KEYS, nowhere).isnan().all()
    fused = nn.functional.scaled_dot_product_attention(QUERY, KEYS, KEYS, nowhere.expand(2, 3))
    assert (fused == 0).all()
    third = torch.full((1, 1, 2, 3), 1 / 3)
    torch.testing.assert_close(weights_with_fill(QUERY, KEYS, nowhere, -1e9), third)
    scores = QUERY @ KEYS.transpose(-2, -1) / 2
    torch.testing.assert_close((scores - 1e9).softmax(dim=-1), third)  # added: float32 has steps of 64 there


def test_no_row_of_ours_may_look_nowhere() -> None:
    batch = Batch.from_ids([([], []), ([5, 6, 7], [8])])  # an empty source still has its </s>
    assert batch.source_mask.any(dim=-1).all()
    assert torch.equal(batch.source_mask, padding_mask(batch.source))
    assert all(causal_mask(queries, 6).any(dim=-1).all() for queries in range(1, 7))


def test_minus_1e9_does_not_fit_into_float16() -> None:
    keys = KEYS.half()
    with pytest.raises(RuntimeError, match="overflow"):
        weights_with_fill(QUERY.half(), keys, LAST_HIDDEN, -1e9)
    allowed = LAST_HIDDEN.half()
    times = (1 - allowed) * torch.tensor(-1e9).half()  # the additive mask of tutorials: 0 · -inf where all may look
    assert times[:2].isnan().all()
    assert attention_weights(QUERY.half(), keys, LAST_HIDDEN).isfinite().all()


def test_minus_1e4_leaks_where_scores_are_large() -> None:
    query, keys = torch.tensor([[[[200.0]]]]), torch.tensor([[[[-100.0], [0.0]]]])  # scores -20,000 and 0
    first_only = torch.tensor([True, False])
    assert attention_weights(query, keys, first_only).flatten().tolist() == [1, 0]
    assert weights_with_fill(query, keys, first_only, -1e4).flatten().tolist() == [0, 1]
    scores = query @ keys.transpose(-2, -1) + torch.tensor([0.0, -1e4])  # added, it needs a gap of 1e4 too
    assert scores.softmax(dim=-1).flatten().tolist() == [0, 1]


# --- post-norm and pre-norm ---------------------------------------------------------------------------------------


def fresh_encoder(norm: str, layers: int, d_model: int = 64) -> Encoder:
    """As training begins with it."""
    torch.manual_seed(0)
    sizes = {"d_model": d_model, "heads": 4, "d_ff": 4 * d_model}
    config = ModelConfig.model_validate(
        {**sizes, "encoder_layers": layers, "decoder_layers": 1, "dropout": 0.0, "norm": norm}
    )
    return build_model(config, 20, 20).encoder


def stream(encoder: Encoder, states: Tensor) -> list[float]:
    """The standard deviation of the states after each layer."""
    deviations, everything = [], torch.ones(len(states), 1, 1, states.size(1), dtype=torch.bool)
    for layer in encoder.layers:
        states, _ = layer(states, everything)
        deviations.append(states.detach().std(dim=-1, correction=0).mean().item())
    return deviations


def test_the_residual_stream_grows_in_pre_norm_only() -> None:
    """Each sub-layer adds to it, and nothing takes away."""
    states = torch.randn(4, 10, 64)
    assert stream(fresh_encoder("post", 24), states) == pytest.approx([1.0] * 24, abs=1e-3)
    pre = stream(fresh_encoder("pre", 24), states)
    assert 1.1 < pre[0] < pre[5] / 1.5
    assert pre[5] * 1.3 < pre[23] > 3


def last_gradient(norm: str, layers: int) -> float:
    """The norm of the gradient of the last layer's W₂, for a gradient of 1 or so in every output."""
    encoder = fresh_encoder(norm, layers)
    memory, _ = encoder(torch.randn(4, 10, 64), torch.ones(4, 1, 1, 10, dtype=torch.bool))
    weight = encoder.layers[-1].get_parameter("feed_forward.outer.weight")
    (gradient,) = torch.autograd.grad((memory * torch.randn_like(memory)).sum(), [weight])
    return float(gradient.norm())


def test_the_last_layers_gradient_falls_with_depth_in_pre_norm_only() -> None:
    """Xiong et al. 2020, theorem 1: as 1/√L in pre-norm, not at all in post-norm."""
    assert last_gradient("post", 24) / last_gradient("post", 2) == pytest.approx(1, abs=0.35)
    assert last_gradient("pre", 24) / last_gradient("pre", 2) == pytest.approx(math.sqrt(2 / 24), rel=0.35)


# --- the encoder's output -----------------------------------------------------------------------------------------


def test_pre_norm_without_its_last_norm_gives_a_memory_that_grows_with_depth() -> None:
    states, everything = torch.randn(4, 10, 64), torch.ones(4, 1, 1, 10, dtype=torch.bool)
    spread = {}
    for layers in (2, 24):
        encoder = fresh_encoder("pre", layers)
        memory, _ = encoder(states, everything)
        assert memory.std(dim=-1, correction=0).mean().item() == pytest.approx(1, abs=1e-3)
        encoder.norm = nn.Identity()
        spread[layers] = encoder(states, everything)[0].std().item()
    assert 1.2 < spread[2] < spread[24] / 2


def test_a_second_norm_after_post_norm_changes_nothing_until_gains_are_learned() -> None:
    """torch's `nn.Transformer` has one there; ours has none."""
    states, everything = torch.randn(4, 10, 64), torch.ones(4, 1, 1, 10, dtype=torch.bool)
    encoder, second = fresh_encoder("post", 2), nn.LayerNorm(64)
    assert isinstance(encoder.norm, nn.Identity)
    memory, _ = encoder(states, everything)
    torch.testing.assert_close(second(memory), memory, rtol=0, atol=1e-4)
    nn.init.uniform_(encoder.layers[-1].get_parameter("feed_forward_residual.norm.weight"), 0.5, 1.5)
    memory, _ = encoder(states, everything)
    assert (second(memory) - memory).abs().max() > 0.1


# --- biases -------------------------------------------------------------------------------------------------------


def attend(attention: MultiHeadAttention, states: Tensor) -> Tensor:
    result: Tensor = attention(states, attention.keys_values(states), PADDED)[0]
    return result


STATES = torch.linspace(-3, 3, 2 * 5 * 12, dtype=torch.float64).sin().view(2, 5, 12)
PADDED = torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None, None, :]


@pytest.fixture
def attention(small_config: SmallConfig) -> MultiHeadAttention:
    torch.manual_seed(4)
    layer = build_attention(small_config()).double()
    for bias in biases(layer).values():
        bias.zero_()
    return layer


def biases(attention: MultiHeadAttention) -> dict[str, Tensor]:
    """Of keys and values, which are one parameter, the two halves."""
    keys, values = attention.key_value.bias.data.chunk(2)
    return {"query": attention.query.bias.data, "key": keys, "value": values, "output": attention.output.bias.data}


def test_a_bias_of_the_keys_changes_nothing(attention: MultiHeadAttention) -> None:
    """q · (k + b) = q · k + q · b: all scores of a query rise alike, and softmax does not see it."""
    before = attend(attention, STATES)
    biases(attention)["key"].normal_(std=10)
    torch.testing.assert_close(attend(attention, STATES), before, rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(attend(attention, STATES).square().sum(), [attention.key_value.bias])
    keys, values = gradient.chunk(2)
    assert keys.abs().max() < 1e-12 < values.abs().max()  # so it is never learned either


def test_a_bias_of_the_values_is_one_of_the_output(attention: MultiHeadAttention) -> None:
    """Weights sum to 1, so every position gets Wᴼ b more."""
    before, values = attend(attention, STATES), biases(attention)["value"].normal_()
    expected = before + attention.output.weight @ values
    torch.testing.assert_close(attend(attention, STATES), expected, rtol=0, atol=1e-12)


def test_a_bias_of_the_queries_counts(attention: MultiHeadAttention) -> None:
    """(q + b) · k = q · k + b · k differs from key to key."""
    before = attend(attention, STATES)
    biases(attention)["query"].normal_()
    assert (attend(attention, STATES) - before).abs().max() > 0.01


# --- √d_k ---------------------------------------------------------------------------------------------------------


def softmax_slope(weights: Tensor) -> float:
    """The mean norm of the softmax's derivative, diag(p) - p pᵀ; weights (…, S)"""
    derivative = torch.diag_embed(weights) - weights[..., :, None] * weights[..., None, :]
    return float(derivative.norm(dim=(-2, -1)).mean())


@pytest.mark.parametrize("d_k", [16, 256, 4096])
def test_dot_products_have_variance_d_k(d_k: int) -> None:
    query, keys = torch.randn(500, 1, 1, d_k), torch.randn(500, 1, 8, d_k)
    scores = query @ keys.transpose(-2, -1)  # (500, 1, 1, 8)
    assert scores.var().item() == pytest.approx(d_k, rel=0.2)
    assert (scores / math.sqrt(d_k)).var().item() == pytest.approx(1, rel=0.2)


def test_without_the_root_softmax_saturates_and_its_gradient_vanishes() -> None:
    largest, slope = {}, {}
    for d_k in (16, 4096):
        query, keys = torch.randn(500, 1, 1, d_k), torch.randn(500, 1, 8, d_k)
        for name, weights in (
            ("ours", attention_weights(query, keys, None)),
            ("unscaled", (query @ keys.transpose(-2, -1)).softmax(dim=-1)),
        ):
            largest[name, d_k], slope[name, d_k] = weights.amax(dim=-1).mean().item(), softmax_slope(weights)
    assert largest["ours", 4096] == pytest.approx(largest["ours", 16], abs=0.05)
    assert slope["ours", 4096] == pytest.approx(slope["ours", 16], rel=0.1)
    assert largest["unscaled", 4096] > 0.95 > 0.85 > largest["unscaled", 16]
    assert slope["unscaled", 4096] < slope["unscaled", 16] / 5


# --- teacher forcing ----------------------------------------------------------------------------------------------


def test_one_parallel_pass_is_decoding_letter_by_letter(build: Build) -> None:
    model, source, letters = build(), torch.tensor([[5, 6, 7, EOS]]), torch.tensor([[BOS, 8, 9, 10]])
    mask = padding_mask(source)
    memory = model.encode(source, mask)
    at_once = model.generator(model.decode(letters, memory, mask), source)  # (1, 4, V)

    cache = model.start_cache(memory)
    for place in range(4):  # with a cache, one letter per step
        output = model.decode(letters[:, place : place + 1], None, mask, cache)
        cache = output.cache
        torch.testing.assert_close(model.generator(output, source)[:, 0], at_once[:, place], rtol=0, atol=1e-10)
        # as tutorials decode: the whole beginning anew each time, for its last position
        again = model.generator(model.decode(letters[:, : place + 1], memory, mask), source)
        torch.testing.assert_close(again[:, -1], at_once[:, place], rtol=0, atol=1e-10)


def test_without_the_causal_mask_a_position_reads_its_answer(attention: MultiHeadAttention) -> None:
    """The input after a position is what it must predict."""
    changed = STATES.clone()
    changed[:, 3] += 1  # the answer to position 2
    keys_values, other = attention.keys_values(STATES), attention.keys_values(changed)
    for causal in (True, False):
        before = attention(STATES, keys_values, causal=causal)[0][:, :3]
        after = attention(changed, other, causal=causal)[0][:, :3]
        assert torch.equal(before, after) is causal


# --- one word after the other, or all at once ---------------------------------------------------------------------

THANK, MANY, YOU, THANKS = range(5, 9)
RIGHT = [(THANK, YOU), (MANY, THANKS)]  # both translate one and the same source
MIXED = [(THANK, THANKS), (MANY, YOU)]


def test_independent_positions_mix_two_translations_and_a_chain_does_not() -> None:
    joint = torch.tensor([[0.5, 0.0], [0.0, 0.5]])  # rows: thank, many; columns: you, thanks
    first, second = joint.sum(dim=1), joint.sum(dim=0)
    independent = first[:, None] * second
    assert independent.flatten().tolist() == [0.25] * 4
    assert torch.equal(first[:, None] * (joint / first[:, None]), joint)  # p(y₁) p(y₂ | y₁)
    # No independent model does better than this one, and it needs ln 2 nats more: what one word tells of the other.
    missed = torch.special.entr(independent).sum() - torch.special.entr(joint).sum()
    assert missed.item() == pytest.approx(math.log(2))


def test_the_likeliest_word_of_each_place_may_make_what_nobody_says() -> None:
    joint = torch.tensor([[0.4, 0.0], [0.0, 0.35], [0.0, 0.25]])  # thank you, many thanks, big thanks
    first, second = joint.sum(dim=1), joint.sum(dim=0)
    assert first.argmax() == 0
    assert second.argmax() == 1
    assert joint[0, 1] == 0  # thank thanks
    assert joint[0].argmax() == 0  # one after the other: thank you


def train_on_both(blind: bool) -> Callable[[Sequence[int]], float]:
    """A model after training on RIGHT, as what it gives a target's probability.

    blind: it is shown `<s>` at each position, so that no word depends on another.
    """

    def batch_of(targets: Sequence[Sequence[int]]) -> Batch:
        batch = Batch.from_ids([([4], target) for target in targets])
        return dataclasses.replace(batch, target_input=torch.full_like(batch.target_input, BOS)) if blind else batch

    torch.manual_seed(1)
    model = build_model(
        ModelConfig(encoder_layers=1, decoder_layers=1, d_model=32, heads=2, d_ff=64, dropout=0.0), 9, 9
    )
    objective, batch = TranslationObjective(model, label_smoothing=0.0), batch_of(RIGHT)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        objective(batch).minimised.backward()
        optimizer.step()

    @torch.inference_mode()
    def probability(target: Sequence[int]) -> float:
        return math.exp(-objective(batch_of([target])).likelihood.item())

    return probability


def test_our_model_learns_both_translations_and_a_blind_one_their_mixture() -> None:
    chain, blind = train_on_both(False), train_on_both(True)
    assert [chain(target) for target in RIGHT] == pytest.approx([0.5, 0.5], abs=0.1)
    assert max(chain(target) for target in MIXED) < 0.02
    assert sum(map(blind, MIXED)) == pytest.approx(sum(map(blind, RIGHT)), rel=0.4)
    # Whatever its weights are: p(thank) p(you) p(many) p(thanks), once by the rows and once by the columns.
    assert math.prod(map(blind, RIGHT)) == pytest.approx(math.prod(map(blind, MIXED)), rel=1e-4)
