import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position
from transformer_cli.errors import UserError
from transformer_cli.model.build import build_model
from transformer_cli.model.decoder import DecoderOutput
from transformer_cli.model.generator import Generator
from transformer_cli.training.loop import (
    MAX_SKIPPED,
    Update,
    build_optimizer,
    group_updates,
    train_steps,
)
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import Precision

CPU = torch.device("cpu")
VOCABULARY = 20


def objective(dropout: float = 0.0, dtype: torch.dtype = torch.float64, smoothing: float = 0.1) -> TranslationObjective:
    torch.manual_seed(1)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, heads=2, d_ff=16, dropout=dropout, norm="pre")
    return TranslationObjective(build_model(config, VOCABULARY, VOCABULARY).to(dtype), smoothing)


def pairs(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(seed)

    def sentence() -> list[int]:
        length = int(torch.randint(1, 9, (1,), generator=generator))
        return torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()

    return [(sentence(), sentence()) for _ in range(count)]


def plan(*groups: Sequence[tuple[list[int], list[int]]], epoch: int = 0) -> Iterator[tuple[Position, Batch]]:
    return ((Position(epoch, number), Batch.from_ids(group)) for number, group in enumerate(groups))


def run(
    batches: Iterator[tuple[Position, Batch]], model: TranslationObjective | None = None, **training: Any
) -> tuple[TranslationObjective, list[Update]]:
    model = model or objective()
    defaults = {"schedule": "constant", "warmup_steps": 0, "peak_learning_rate": 0.01, "epsilon": 1e-4}
    config = TrainingConfig(**{**defaults, **training})
    updates = list(
        train_steps(model, build_optimizer(model, config), Precision(config.precision, CPU), config, batches)
    )
    return model, updates


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_accumulation_and_batching_never_change_the_update() -> None:
    sentences = pairs(12)
    one, (update,) = run(plan(sentences))
    lopsided = sorted(sentences, key=lambda pair: len(pair[1]))
    for groups in ([sentences[:6], sentences[6:]], [lopsided[:1], lopsided[1:9], lopsided[9:]]):
        other, (same,) = run(plan(*groups), accumulation=len(groups))
        torch.testing.assert_close(weights(other), weights(one), rtol=0, atol=1e-10)
        assert same.target_tokens == update.target_tokens == sum(len(target) + 1 for _, target in sentences)
        assert math.isclose(same.loss, update.loss, rel_tol=1e-10)


def test_the_update_is_adams_on_the_mean_loss_of_its_tokens() -> None:
    sentences = pairs(6)
    ours, (update,) = run(plan(sentences), clip_norm=None)
    theirs = objective()
    batch = Batch.from_ids(sentences)
    loss = theirs(batch).smoothed / batch.target_tokens
    loss.backward()
    torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-4).step()
    torch.testing.assert_close(weights(ours), weights(theirs), rtol=0, atol=1e-10)
    assert math.isclose(update.loss, loss.item(), rel_tol=1e-10)


def test_an_update_never_takes_batches_of_two_epochs() -> None:
    batches = [Batch.from_ids(pairs(1))] * 8
    places = [Position(0, n) for n in range(5)] + [Position(1, n) for n in range(3)]
    grouped = [(after, len(group)) for after, group in group_updates(zip(places, batches, strict=True), 2)]
    assert grouped == [((0, 2), 2), ((0, 4), 2), ((1, 0), 1), ((1, 2), 2), ((1, 3), 1)]


def test_grouping_resumes_between_updates() -> None:
    batches = [Batch.from_ids(pairs(1))] * 4
    places = [Position(0, n) for n in range(2, 6)]
    assert [after for after, _ in group_updates(zip(places, batches, strict=True), 2)] == [(0, 4), (0, 6)]


def test_clipping_bounds_the_gradient() -> None:
    sentences = pairs(6)
    model, (update,) = run(plan(sentences), clip_norm=1e-3, optimizer="adam", betas=(0.0, 0.0), epsilon=1.0)
    free, _ = run(plan(sentences), clip_norm=None, betas=(0.0, 0.0), epsilon=1.0)
    start = weights(objective())
    assert update.gradient_norm > 1e-3, "the norm is told as it was before clipping"
    assert (weights(model) - start).norm() < 0.1 * (weights(free) - start).norm()


def test_weight_decay_spares_norms_and_biases() -> None:
    model = objective()
    optimizer = build_optimizer(model, TrainingConfig(optimizer="adamw", weight_decay=0.1))
    decayed, spared = optimizer.param_groups
    assert all(parameter.dim() > 1 for parameter in decayed["params"])
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    model = objective()
    poison = next(iter(model.parameters()))
    calls = 0

    def poison_once(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return gradient * math.nan if calls == 2 else gradient

    poison.register_hook(poison_once)  # type: ignore[no-untyped-call]
    sentences = pairs(9)
    model, updates = run(plan(sentences[:3], sentences[3:6], sentences[6:]), model)
    assert [(update.step, update.next_position) for update in updates] == [(1, (0, 1)), (2, (0, 3))]
    without, _ = run(plan(sentences[:3], sentences[6:]))
    assert torch.equal(weights(model), weights(without))


def test_divergence_is_an_error() -> None:
    model = objective()
    next(iter(model.parameters())).register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    with pytest.raises(UserError, match="diverged at step 0"):
        run(plan(*[pairs(1)] * (MAX_SKIPPED + 1)), model)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_is_near_full_precision(precision: str) -> None:
    sentences = [pairs(6, seed) for seed in range(4)]
    _, full = run(plan(*sentences), objective(dtype=torch.float32))
    _, low = run(plan(*sentences), objective(dtype=torch.float32), precision=precision)
    assert len(low) == 4
    for a, b in zip(full, low, strict=True):
        assert a.loss != b.loss, "autocast changed nothing"
        assert math.isclose(a.loss, b.loss, rel_tol=0.05)


def test_padding_takes_no_part_in_the_loss() -> None:
    model = objective().eval()
    sentences = pairs(5)
    together = model(Batch.from_ids(sentences)).smoothed
    apart = sum(model(Batch.from_ids([pair])).smoothed for pair in sentences)
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-10)


def test_any_generator_gives_the_same_loss_as_the_fused_one() -> None:
    class OtherGenerator(Generator):
        def forward(self, output: DecoderOutput, source: torch.Tensor) -> torch.Tensor:
            return super().forward(output, source)

    model, batch = objective(), Batch.from_ids(pairs(5))
    fused = model(batch)
    fused.smoothed.backward()
    gradient = [parameter.grad for parameter in model.parameters()]
    other = OtherGenerator(8, VOCABULARY, bias=False).double()
    other.projection = model.model.generator.projection
    model.model.generator = other
    model.zero_grad()
    plain = model(batch)
    plain.smoothed.backward()
    torch.testing.assert_close(plain.smoothed, fused.smoothed, rtol=0, atol=1e-10)
    torch.testing.assert_close(plain.likelihood, fused.likelihood, rtol=0, atol=1e-10)
    for ours, parameter in zip(gradient, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=0, atol=1e-10)
