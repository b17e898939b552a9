"""A generator that copies: a distribution over the vocabulary and the source's tokens, however they are batched."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.model.conftest import SOURCE_VOCABULARY, TARGET_VOCABULARY
from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer
from transformer_cli.text.vocabulary import EOS, PAD
from transformer_cli.variants.pointer.model import PointerGenerator

Build = Callable[..., Transformer]
V = TARGET_VOCABULARY
BOTH = SOURCE_VOCABULARY + V  # the first id of what neither vocabulary knows
# Known, known again, known to the target alone (as 7), unknown to both twice, and another such.
SOURCE = [[5, 9, 5, SOURCE_VOCABULARY + 7, BOTH, BOTH, BOTH + 1, EOS], [6, BOTH, EOS, PAD, PAD, PAD, PAD, PAD]]
TARGET = [[2, 4, V + 4, 7, V + 6], [2, V + 1, 8, 9, 9]]


@pytest.fixture
def model(build: Build) -> Transformer:
    """A model that knows of source token 5 that it is target token 11, and of no other."""
    model = build(generator="pointer")
    pointer(model).set_target_ids([11 if token == 5 else -1 for token in range(SOURCE_VOCABULARY)])
    return model


def pointer(model: Transformer) -> PointerGenerator:
    assert isinstance(model.generator, PointerGenerator)
    return model.generator


def run(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    log_probs: Tensor = model.generator(model(source, padding_mask(source), target), source)
    return log_probs


def test_it_is_a_distribution_over_what_is_possible(model: Transformer) -> None:
    log_probs = run(model, torch.tensor(SOURCE), torch.tensor(TARGET))
    assert log_probs.shape == (2, 5, V + 8)
    torch.testing.assert_close(log_probs.logsumexp(-1).exp(), torch.ones(2, 5, dtype=torch.float64), atol=1e-12, rtol=0)
    # Copied by position: the source's 9, which the target lacks, and both unknown ones where they first stand.
    assert (log_probs[0] > -torch.inf).all(0).nonzero()[:, 0].tolist() == [*range(V), V + 1, V + 4, V + 6]
    assert (log_probs[1] > -torch.inf).all(0).nonzero()[:, 0].tolist() == [*range(V), V + 0, V + 1]


def by_hand(gate: float, attention: list[float], source: list[int], hidden: list[float]) -> Tensor:
    """The generator of two hidden dimensions whose logits are the hidden state, for one position."""
    generator = PointerGenerator(2, 6, 6, bias=True).double()
    with torch.no_grad():
        generator.projection.weight.zero_()
        generator.projection.bias.copy_(torch.tensor(hidden))
        generator.mixture.weight.zero_()
        generator.mixture.bias.fill_(gate)
    generator.set_target_ids([0, 1, 2, 3, 5, -1])
    weights = torch.tensor(attention, dtype=torch.float64)[None, None, None]  # (1, 1, 1, S)
    output = DecoderOutput(torch.zeros(1, 1, 2, dtype=torch.float64), DecoderCache((), ()), (), (weights,))
    log_probs: Tensor = generator(output, torch.tensor([source]))
    return log_probs[0, 0]


def test_a_small_example_by_hand() -> None:
    """σ(ln 3) = 3/4; the vocabulary's six tokens are equally likely; attention 0.1 on `</s>` counts for them."""
    found = by_hand(math.log(3), [0.2, 0.3, 0.1, 0.25, 0.05, 0.1], [4, 5, 4, 12, 5, EOS], [0.0] * 6).exp()
    own = (0.75 + 0.25 * 0.1) / 6
    expected = [own] * 5 + [own + 0.25 * 0.3] + [0.0, 0.25 * 0.35, 0.0, 0.25 * 0.25, 0.0, 0.0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_a_token_that_only_the_target_knows_is_copied_as_it(model: Transformer) -> None:
    found = by_hand(0.0, [0.5, 0.5, 0.0], [6 + 4, 12, EOS], [0.0] * 6).exp()
    own = 0.5 / 6
    expected = [own] * 4 + [own + 0.25, own, 0.0, 0.25, 0.0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=0)


def test_without_copying_it_is_the_plain_generator(model: Transformer) -> None:
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    with torch.no_grad():
        pointer(model).mixture.weight.zero_()
        pointer(model).mixture.bias.fill_(2000.0)  # p_gen is 1
    output = model(source, padding_mask(source), target)
    plain = Generator.forward(model.generator, output, source)
    torch.testing.assert_close(model.generator(output, source)[:, :, :V], plain)


def test_where_there_is_nothing_to_copy_it_is_the_plain_generator(model: Transformer) -> None:
    source, target = torch.tensor([[EOS, PAD]]), torch.tensor([[2, 4, 5]])
    output = model(source, padding_mask(source), target)
    log_probs = model.generator(output, source)
    torch.testing.assert_close(log_probs[:, :, :V], Generator.forward(model.generator, output, source))
    assert (log_probs[:, :, V:] == -torch.inf).all()


@pytest.mark.parametrize("gate", [-2000.0, -30.0, 0.0, 30.0, 2000.0])
def test_gradients_are_finite_however_sharp_it_is(gate: float) -> None:
    for attention in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]):
        generator = PointerGenerator(4, 6, 6, bias=True)
        with torch.no_grad():
            generator.mixture.bias.fill_(gate)
        weights = torch.tensor(attention)[None, None, None].requires_grad_()
        output = DecoderOutput(torch.randn(1, 1, 4, requires_grad=True), DecoderCache((), ()), (), (weights,))
        log_probs = generator(output, torch.tensor([[5, 12, EOS]]))[0, 0]
        (log_probs[6] + log_probs[:6].sum()).backward()
        for tensor in (weights, output.hidden, *generator.parameters()):
            assert tensor.grad is not None
            assert tensor.grad.isfinite().all()


def test_a_copied_token_teaches_attention_and_gate(model: Transformer) -> None:
    run(model, torch.tensor(SOURCE), torch.tensor(TARGET))[0, 1, V + 4].backward()  # type: ignore[no-untyped-call]
    last = model.decoder.layers[-1].cross_attention
    for parameter in (last.query.weight, last.key_value.weight, pointer(model).mixture.weight):  # type: ignore[union-attr]
        assert isinstance(parameter, Tensor)
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0


def test_with_a_cache_it_is_the_same(model: Transformer) -> None:
    """Step by step, and for two rows that read one sentence."""
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    whole = run(model, source, target)
    mask = padding_mask(source)
    cache = model.start_cache(model.encode(source, mask))
    for step in range(target.size(1)):
        output = model.decode(target[:, step : step + 1], None, mask, cache)
        torch.testing.assert_close(model.generator(output, source)[:, 0], whole[:, step], atol=1e-10, rtol=0)
        cache = output.cache
    twice = torch.tensor([0, 0, 1, 1])
    cache = model.start_cache(model.encode(source, mask)).select(twice, None)
    output = model.decode(target[twice, :1], None, mask, cache)
    torch.testing.assert_close(model.generator(output, source)[:, 0], whole[twice, 0], atol=1e-10, rtol=0)


def test_neither_padding_nor_neighbours_change_anything(model: Transformer) -> None:
    together = run(model, torch.tensor(SOURCE), torch.tensor(TARGET))
    alone = run(model, torch.tensor([SOURCE[1][:3]]), torch.tensor(TARGET[1:]))
    torch.testing.assert_close(together[1:, :, : V + 3], alone, atol=1e-10, rtol=0)
    assert (together[1, :, V + 3 :] == -torch.inf).all()


def test_ids_beyond_the_vocabulary_are_read_as_unknown(model: Transformer) -> None:
    source, unknown = torch.tensor(SOURCE), torch.tensor(SOURCE)
    unknown[unknown >= SOURCE_VOCABULARY] = 1
    mask = padding_mask(source)
    torch.testing.assert_close(model.encode(source, mask), model.encode(unknown, mask))


def test_the_attention_that_copies_is_handed_out_with_the_others_on_request(model: Transformer) -> None:
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    mask = padding_mask(source)
    memory = model.encode(source, mask)
    (alone,) = model.decode(target, memory, mask).cross_attention
    all_layers = model.decode(target, memory, mask, need_weights=True)
    assert len(all_layers.cross_attention) == len(all_layers.self_attention) == len(model.decoder.layers)
    torch.testing.assert_close(all_layers.cross_attention[-1], alone)


def test_the_plain_model_has_nothing_of_it(build: Build) -> None:
    model = build()
    assert type(model.generator) is Generator
    source = torch.tensor([[5, EOS]])
    assert model(source, padding_mask(source), torch.tensor([[2, 4]])).cross_attention == ()
