import inspect
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.model.dropout import Dropout
from transformer_cli.model.transformer import DecoderOutput, Generator
from transformer_cli.training.distributed import Ranks
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import Update, build_optimizer, train_steps
from transformer_cli.training.muon import MuonAndAdam
from transformer_cli.training.objective import Loss, Passes, TranslationObjective

CPU = torch.device("cpu")
VOCABULARY = 20


def objective(
    dropout: float = 0.0, dtype: torch.dtype = torch.float64, smoothing: float = 0.1, r_drop: float = 0.0
) -> TranslationObjective:
    torch.manual_seed(1)
    config = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, heads=2, d_ff=16, dropout=dropout, norm="pre")
    return TranslationObjective(build_model(config, VOCABULARY, VOCABULARY).to(dtype), smoothing, r_drop)


def pairs(count: int, seed: int = 0) -> list[tuple[list[int], list[int]]]:
    generator = torch.Generator().manual_seed(seed)

    def sentence() -> list[int]:
        length = int(torch.randint(1, 9, (1,), generator=generator))
        return torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()

    return [(sentence(), sentence()) for _ in range(count)]


Pairs = Sequence[tuple[list[int], list[int]]]


def plan(*groups: Pairs, accumulation: int = 1) -> Iterator[UpdateBatches]:
    batches = [Batch.from_ids(group) for group in groups]
    for number in range(0, len(batches), accumulation):
        yield UpdateBatches(Position(0, number + accumulation), batches[number : number + accumulation])


def run(
    batches: Iterator[UpdateBatches], model: TranslationObjective | None = None, **training: Any
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
        other, (same,) = run(plan(*groups, accumulation=len(groups)))
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


def test_clipping_bounds_the_gradient() -> None:
    sentences = pairs(6)
    model, (update,) = run(plan(sentences), clip_norm=1e-3, optimizer="adam", betas=(0.0, 0.0), epsilon=1.0)
    free, _ = run(plan(sentences), clip_norm=None, betas=(0.0, 0.0), epsilon=1.0)
    start = weights(objective())
    assert update.gradient_norm > 1e-3, "the norm is reported as it was before clipping"
    assert (weights(model) - start).norm() < 0.1 * (weights(free) - start).norm()


def test_weight_decay_spares_norms_and_biases() -> None:
    model = objective()
    optimizer = build_optimizer(model, TrainingConfig(optimizer="adamw", weight_decay=0.1))
    decayed, spared = optimizer.param_groups
    assert all(parameter.dim() > 1 for parameter in decayed["params"])
    assert (decayed["weight_decay"], spared["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))
    muon = build_optimizer(model, TrainingConfig(optimizer="muon", weight_decay=0.1))
    assert isinstance(muon, MuonAndAdam)
    assert muon.decay == 0.1
    assert all(not group["weight_decay"] for group in muon.adam.param_groups), (
        "Adam has the embeddings, norms and biases"
    )


@pytest.mark.parametrize("kind", ["adam", "adamw", "muon"])
def test_no_optimizer_looks_for_the_compiler(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it takes a third of the time in which a small training starts."""
    for method in ("add_param_group", "load_state_dict", "state_dict", "zero_grad"):  # torch notes that it has it
        inner = inspect.unwrap(getattr(torch.optim.Optimizer, method))
        monkeypatch.delattr(inner, "__dynamo_disable", raising=False)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # importing it raises
    with pytest.raises(ModuleNotFoundError):
        torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    config = TrainingConfig(optimizer=kind, schedule="constant", warmup_steps=0, peak_learning_rate=0.01)  # type: ignore[arg-type]
    model = objective()
    optimizer = build_optimizer(model, config)
    batches = plan(pairs(4), pairs(4))
    assert len(list(train_steps(model, optimizer, Precision("fp32", CPU), config, batches))) == 2
    optimizer.load_state_dict(optimizer.state_dict())


def poisoned(poison: float, *numbers: int) -> TranslationObjective:
    """An objective whose gradient is spoilt in these backward passes, from 1."""
    model = objective()
    calls = 0

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return gradient * poison if calls in numbers else gradient

    next(iter(model.parameters())).register_hook(spoil)  # type: ignore[no-untyped-call]
    return model


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(poison: float) -> None:
    sentences = pairs(9)
    groups = sentences[:3], sentences[3:6], sentences[6:]
    model, updates = run(plan(*groups), poisoned(poison, 2))
    assert [(update.step, update.next_position, update.applied) for update in updates] == [
        (1, (0, 1), True),
        (1, (0, 2), False),
        (2, (0, 3), True),
    ]
    without, _ = run(plan(groups[0], groups[2]))
    assert torch.equal(weights(model), weights(without))


def test_an_optimiser_that_is_not_fused_skips_and_applies_the_same() -> None:
    """On Apple's MPS it is none."""
    groups = pairs(3), pairs(3, 1), pairs(3, 2)
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01, epsilon=1e-4)
    results = []
    for fused in (True, False):
        model = poisoned(math.nan, 2)
        optimizer = torch.optim.Adam(model.parameters(), betas=config.betas, eps=config.epsilon, fused=fused)
        updates = list(train_steps(model, optimizer, Precision("fp32", CPU), config, plan(*groups)))
        assert [update.applied for update in updates] == [True, False, True]
        results.append(weights(model))
    torch.testing.assert_close(*results, rtol=0, atol=1e-12)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    class Poisoned(TranslationObjective):
        def forward(self, batch: Batch) -> Loss:
            loss = super().forward(batch)
            return loss._replace(smoothed=loss.smoothed + math.nan)  # its gradient is finite all the same

    model = objective()
    before = weights(model)
    poisonous = Poisoned(model.model, 0.1)
    _, (update,) = run(plan(pairs(3)), poisonous)
    assert not update.applied
    assert math.isfinite(update.gradient_norm)
    assert torch.equal(weights(model), before)


def test_divergence_is_an_error() -> None:
    groups = [pairs(1)] * 5
    with pytest.raises(UserError, match="diverged at step 2: 3 updates in a row"):
        run(plan(*groups), poisoned(math.inf, 3, 4, 5), max_skipped=3)
    _, updates = run(plan(*groups), poisoned(math.inf, 1, 2, 4, 5), max_skipped=3)  # never three in a row
    assert [update.applied for update in updates] == [False, False, True, False, False]


def test_an_overflow_of_fp16_is_reported_apart_and_lowers_the_scale() -> None:
    model = objective(dtype=torch.float32)
    config = TrainingConfig(
        schedule="constant", warmup_steps=0, peak_learning_rate=1e-3, precision="fp16", max_skipped=1
    )
    precision = Precision("fp16", CPU)
    precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    steps = train_steps(model, build_optimizer(model, config), precision, config, plan(*[pairs(4)] * 24))
    outcomes = [(update.applied, update.overflow) for update in steps]
    assert outcomes[0] == (False, True), "the scale fits after all: begin with a larger one"
    assert outcomes[-1] == (True, False)
    assert all(applied != overflow for applied, overflow in outcomes)
    assert precision.scaler.get_scale() < 2.0**24


@pytest.mark.parametrize("batches", [1, 3])
def test_a_batch_that_memory_does_not_hold_is_halved_until_it_does(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [pairs(8, seed) for seed in range(batches)]
    plenty, (expected,) = run(plan(*groups, accumulation=batches))
    real = TranslationObjective.forward

    def forward(self: TranslationObjective, batch: Batch) -> Loss:
        if len(batch.source) > 3:
            raise torch.OutOfMemoryError("no memory")
        return real(self, batch)

    monkeypatch.setattr(TranslationObjective, "forward", forward)
    model, (update,) = run(plan(*groups, accumulation=batches))
    assert update.halvings == 3 * batches  # 8 → 4 + 4 → 2 + 2 + 4 → 2 + 2 + 2 + 2
    assert update.target_tokens == expected.target_tokens
    assert math.isclose(update.loss, expected.loss, rel_tol=1e-12)
    torch.testing.assert_close(weights(model), weights(plenty), rtol=0, atol=1e-10)


def test_a_single_sentence_that_memory_does_not_hold_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: TranslationObjective, batch: Batch) -> Loss:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(TranslationObjective, "forward", forward)
    with pytest.raises(UserError, match=r"a single sentence of .* source .*data\.max_length"):
        run(plan(pairs(4)))


def test_what_torch_says_when_memory_is_short_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: TranslationObjective, batch: Batch) -> Loss:
        torch.empty(2**50)
        raise AssertionError("so much memory there is")

    monkeypatch.setattr(TranslationObjective, "forward", forward)
    with pytest.raises(UserError, match="not enough memory"):
        run(plan(pairs(1)))


def test_other_errors_are_no_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: TranslationObjective, batch: Batch) -> Loss:
        raise RuntimeError("shapes do not fit the memory format")

    monkeypatch.setattr(TranslationObjective, "forward", forward)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        run(plan(pairs(4)))


@pytest.mark.parametrize("part", ["objective", "model"])
def test_every_update_drops_out_whatever_was_validated_before_it(part: str) -> None:
    """The objective evaluates between updates; a model may have been made to evaluate before the first."""
    learned = {}
    for validates in (False, True):
        model = objective(dropout=0.5)
        if validates:
            model.eval() if part == "objective" else model.model.eval()
        config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01)
        steps = train_steps(
            model, build_optimizer(model, config), Precision("fp32", CPU), config, plan(*[pairs(6)] * 3)
        )
        torch.manual_seed(2)
        for _ in steps:
            if validates and part == "objective":
                model.eval()
        learned[validates] = weights(model)
    assert torch.equal(learned[True], learned[False])


@pytest.mark.parametrize(("first", "rates"), [(0, [0.0, 0.1, 0.2, 0.3, 0.4, 0.4]), (3, [0.3, 0.4, 0.4])])
def test_dropout_rises_evenly_and_continues_where_it_was(first: int, rates: list[float]) -> None:
    model, seen = objective(dropout=0.4), []
    model.register_forward_pre_hook(
        lambda *_: seen.append({module.rate for module in model.modules() if isinstance(module, Dropout) and module.p})
    )
    config = TrainingConfig(
        schedule="constant", warmup_steps=0, peak_learning_rate=0.01, dropout_warmup_steps=4, epsilon=1e-4
    )
    batches = plan(*[pairs(3)] * len(rates))
    list(train_steps(model, build_optimizer(model, config), Precision("fp32", CPU), config, batches, step=first))
    assert [pytest.approx(rate) for rate in rates] == [one for (one,) in seen]


def test_r_drop_rises_long_after_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sentences, strengths = objective(dropout=0.4, r_drop=6.0), [], []
    model.model.register_forward_pre_hook(lambda _, inputs: sentences.append(len(inputs[0])))
    real = TranslationObjective.loss_at

    def loss_at(self: TranslationObjective, output: DecoderOutput, passes: Passes) -> Loss:
        strengths.append(passes.r_drop)
        return real(self, output, passes)

    monkeypatch.setattr(TranslationObjective, "loss_at", loss_at)
    run(plan(*[pairs(3)] * 12), model, dropout_warmup_steps=2)
    assert sentences == [*[3] * 5, *[6] * 7]
    torch.testing.assert_close(strengths, [*[0.0] * 5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 6.0])


def test_a_signal_comes_with_the_update() -> None:
    model, config = objective(), TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01)
    ranks = Ranks()
    steps = train_steps(
        model, build_optimizer(model, config), Precision("fp32", CPU), config, plan(*[pairs(2)] * 2), ranks=ranks
    )
    assert next(steps).signal is None
    ranks.stop.signal_number = 15
    assert next(steps).signal == 15


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


@pytest.mark.parametrize("r_drop", [0.0, 5.0])
def test_any_generator_gives_the_same_loss_as_the_fused_one(r_drop: float) -> None:
    class OtherGenerator(Generator):
        def forward(self, output: DecoderOutput, source: torch.Tensor) -> torch.Tensor:
            return super().forward(output, source)

    model, batch = objective(dropout=0.3 if r_drop else 0.0, r_drop=r_drop), Batch.from_ids(pairs(5))
    torch.manual_seed(2)
    fused = model(batch)
    fused.minimised.backward()
    gradient = [parameter.grad for parameter in model.parameters()]
    other = OtherGenerator(8, VOCABULARY, bias=False).double()
    other.projection = model.model.generator.projection
    model.model.generator = other
    model.zero_grad()
    torch.manual_seed(2)
    plain = model(batch)
    plain.minimised.backward()
    torch.testing.assert_close(plain.minimised, fused.minimised, rtol=0, atol=1e-10)
    torch.testing.assert_close(plain.smoothed, fused.smoothed, rtol=0, atol=1e-10)
    torch.testing.assert_close(plain.likelihood, fused.likelihood, rtol=0, atol=1e-10)
    for ours, parameter in zip(gradient, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad, rtol=0, atol=1e-10)


# --- R-Drop -------------------------------------------------------------------------------------------------------


def test_r_drop_compares_two_passes_with_different_dropout() -> None:
    batch = Batch.from_ids(pairs(5))
    still = objective(r_drop=5.0)(batch)  # without dropout both passes are one
    torch.testing.assert_close(still.minimised, 2 * objective()(batch).smoothed, rtol=0, atol=1e-10)
    torch.testing.assert_close(still.smoothed, objective()(batch).smoothed, rtol=0, atol=1e-10)
    dropping = objective(dropout=0.3, r_drop=5.0)
    moved = dropping(batch)
    assert moved.minimised > 2 * moved.smoothed + 1e-3, "the passes differ, and that costs"
    plain = dropping.eval()(batch)
    assert plain.regularised is None, "validation knows no R-Drop"
    torch.testing.assert_close(plain.smoothed, objective().eval()(batch).smoothed, rtol=0, atol=1e-10)


def test_r_drop_counts_a_token_once() -> None:
    """Without dropout the gradient is twice the plain one, and what is reported is as without R-Drop."""
    sentences = pairs(6)
    _, (plain,) = run(plan(sentences), clip_norm=None)
    for groups in ([sentences], [sentences[:2], sentences[2:]]):
        _, (double,) = run(plan(*groups, accumulation=len(groups)), objective(r_drop=5.0), clip_norm=None)
        assert double.target_tokens == plain.target_tokens
        assert math.isclose(double.loss, plain.loss, rel_tol=1e-10)
        assert math.isclose(double.gradient_norm, 2 * plain.gradient_norm, rel_tol=1e-9)


def test_r_drop_keeps_both_passes_of_a_sentence_together_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty, (expected,) = run(plan(pairs(8)), objective(r_drop=2.0))
    real = TranslationObjective.forward

    def forward(self: TranslationObjective, batch: Batch) -> Loss:
        if len(batch.source) > 3:
            raise torch.OutOfMemoryError("no memory")
        return real(self, batch)

    monkeypatch.setattr(TranslationObjective, "forward", forward)
    model, (update,) = run(plan(pairs(8)), objective(r_drop=2.0))
    assert update.halvings == 3
    assert math.isclose(update.loss, expected.loss, rel_tol=1e-12)
    torch.testing.assert_close(weights(model), weights(plenty), rtol=0, atol=1e-10)
