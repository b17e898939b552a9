"""Fast steps are those of the model itself, whatever the model is made of."""

import itertools

import pytest
import torch

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.engines import fast_step
from transformer_cli.decoding.engines.fast_step import FastStep, can_step_fast
from transformer_cli.model import torch_private
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer

SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, 0, 0], [10, 11, 12, 3, 0]])
MASK = padding_mask(SOURCE)
TOKENS = torch.tensor([4, 5, 6])


def build(**options: object) -> Transformer:
    torch.manual_seed(0)
    shape = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "d_ff": 20, "heads": 3, "dropout": 0.3}
    model = build_model(ModelConfig.model_validate({**shape, **options}), 19, 19).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # norms and biases too: none is without effect
    return model


@pytest.mark.parametrize(
    "options",
    [
        *({"norm": norm, "activation": kind} for norm, kind in itertools.product(("pre", "post"), ("relu", "gelu"))),
        {"activation": "swiglu"},
        {"activation": "geglu", "norm": "pre"},
        {"positions": "learned", "tie_embeddings": "none", "generator_bias": True},
        {"head_dim": 5, "attention_bias": False, "feed_forward_bias": False, "norm_epsilon": 1e-2},
        {"positions": "rotary"},
        {"positions": "rotary", "qk_norm": True, "norm": "pre"},
        {"qk_norm": True, "norm_epsilon": 1e-2},
    ],
    ids=str,
)
@torch.inference_mode()
def test_steps_are_the_models(options: dict[str, object]) -> None:
    model = build(**options)
    step = FastStep(model)
    cache = model.start_cache(model.encode(SOURCE, MASK))
    repeated = torch.tensor([0, 0, 1, 1, 2, 2])
    tokens = torch.full((3,), 2)
    for number in range(5):
        (log_probs, grown), expected = step(tokens, MASK, cache), model.decode(tokens[:, None], None, MASK, cache)
        torch.testing.assert_close(log_probs, model.generator(expected, SOURCE)[:, 0], rtol=0, atol=1e-10)
        for one, other in zip(grown.decoded, expected.cache.decoded, strict=True):
            assert one is not None
            assert other is not None
            torch.testing.assert_close(one.both, other.both, rtol=0, atol=1e-10)
        assert grown.length == expected.cache.length == number + 1
        cache = grown if number else grown.select(repeated, None)  # beams share a memory from here on
        tokens = torch.randint(1, 19, (6,))


def learn(model: Transformer) -> None:
    """An update that changes every parameter, in place as training does."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()


def test_what_the_model_learns_fast_steps_know() -> None:
    model = build()
    step = FastStep(model)
    learn(model)
    with torch.inference_mode():
        cache = model.start_cache(model.encode(SOURCE, MASK))
        expected = model.decode(TOKENS[:, None], None, MASK, cache)
        log_probs, _ = step(TOKENS, MASK, cache)
        torch.testing.assert_close(log_probs, model.generator(expected, SOURCE)[:, 0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("packed", [True, False])
@torch.inference_mode()
def test_packed_weights_multiply_alike(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_step, "LARGE", 1)
    if not packed:  # a torch without the kernels
        monkeypatch.setattr(torch_private, "has", lambda name: False)
    model = build(attention_bias=False).float()
    cache = model.start_cache(model.encode(SOURCE, MASK))
    step = FastStep(model, constant=True)
    expected = model.generator(model.decode(TOKENS[:, None], None, MASK, cache), SOURCE)[:, 0]
    if torch_private.can_pack(model.generator.projection.weight):
        assert packed
        for parameter in model.decoder.parameters():
            if parameter.dim() == 2:
                parameter.zero_()  # the packed copies are what is used
    torch.testing.assert_close(step(TOKENS, MASK, cache)[0], expected)


def test_models_of_other_parts_are_left_to_the_layers() -> None:
    assert can_step_fast(build())
    assert not can_step_fast(build(generator="pointer"))
    assert not can_step_fast(build(value_dim=2))


@pytest.mark.parametrize(
    "part",
    [
        "decoder",
        "generator",
        "decoder.layers.1",
        "decoder.layers.1.self_attention",
        "decoder.layers.0.cross_attention",
        "decoder.layers.0.feed_forward_residual",
    ],
)
def test_a_class_of_its_own_in_any_place_takes_the_models_own_step(part: str) -> None:
    """Its forward may do anything, which a step that repeats the plain one would leave out."""
    model = build()
    module = model.get_submodule(part)
    module.__class__ = type("Variant", (type(module),), {})
    assert not can_step_fast(model)
