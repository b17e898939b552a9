"""Scheduled sampling: which inputs give way to what, and that nothing else of training changes."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from transformer_cli.build import build_model, build_objective
from transformer_cli.config import Config, ModelConfig, ScheduledSampling, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.run import train
from transformer_cli.variants.scheduled_sampling import ScheduledSamplingObjective, put_after, truth_probability

VOCABULARY = 20
SPECIALS = [0, 2, 3]  # <pad>, <s>, </s>: never a prediction that the decoder reads


def small_model(dropout: float = 0.0, dtype: torch.dtype = torch.float64, **options: Any) -> Transformer:
    torch.manual_seed(1)
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 8, "heads": 2, "d_ff": 16}
    config = ModelConfig(**shape, dropout=dropout, norm="pre", **options)
    return build_model(config, VOCABULARY, VOCABULARY).to(dtype)


def scheduled(dropout: float = 0.0, dtype: torch.dtype = torch.float64, **options: Any) -> ScheduledSamplingObjective:
    sampling = ScheduledSampling(**{"schedule": "linear", "steps": 10, "floor": 0.0, **options})
    return ScheduledSamplingObjective(small_model(dropout, dtype), 0.1, sampling)


def batch_of(count: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def sentence() -> list[int]:
        length = int(torch.randint(0, 9, (1,), generator=generator))
        return torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()

    return Batch.from_ids([(sentence(), sentence()) for _ in range(count)])


def gradients(objective: TranslationObjective) -> list[torch.Tensor]:
    return [cast(torch.Tensor, parameter.grad) for parameter in objective.parameters()]


def predicted_logits(model: Transformer, batch: Batch) -> torch.Tensor:
    """What the model says of each position when it reads the true tokens. → (B, T, V)"""
    with torch.no_grad():
        logits = model.generator.projection(model(batch.source, batch.source_mask, batch.target_input).hidden)
    logits[:, :, SPECIALS] = -torch.inf
    return cast(torch.Tensor, logits)


def decoder_inputs(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All that any model's decoder will read, in order."""
    read: list[torch.Tensor] = []
    decode = Transformer.decode

    def watched(self: Transformer, target: torch.Tensor, *others: Any, **options: Any) -> DecoderOutput:
        read.append(target)
        return decode(self, target, *others, **options)

    monkeypatch.setattr(Transformer, "decode", watched)
    return read


@pytest.mark.parametrize("training", [True, False])
def test_with_the_truth_alone_it_is_the_plain_objective_bit_for_bit(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first update of a linear schedule, and in validation at any."""
    ours, plain, batch = scheduled(dropout=0.3), TranslationObjective(small_model(0.3), 0.1), batch_of(5)
    ours.updates = 0 if training else 7
    read = decoder_inputs(monkeypatch)
    found = []
    for objective in (ours, plain):
        torch.manual_seed(2)
        loss = objective.train(training)(batch)
        loss.minimised.backward()
        found.append((loss.smoothed, loss.likelihood, *gradients(objective), torch.get_rng_state()))
    assert len(read) == 2, "one pass each"
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_where_no_token_gives_way_one_pass_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, read = scheduled(steps=10**9), decoder_inputs(monkeypatch)
    objective.updates = 1
    objective(batch_of(2))
    assert len(read) == 1


def test_two_passes_are_the_plain_loss_of_the_inputs_that_came_of_the_first() -> None:
    """The likeliest token in place of every input: the same loss and gradients as teacher forcing with those inputs."""
    ours, plain, batch = scheduled(), TranslationObjective(small_model(), 0.1), batch_of(6)
    ours.updates = 10  # the floor, 0: every token gives way
    predicted = predicted_logits(plain.model, batch).argmax(2)
    given = batch.target_input.clone()
    for row, tokens in enumerate(batch.target_input.tolist()):
        for place in range(1, len(tokens)):
            if tokens[place]:
                given[row, place] = predicted[row, place - 1]
    assert not torch.equal(given, batch.target_input)
    changed = Batch(batch.source, batch.source_mask, given, batch.target_output, batch.target_places)
    expected, loss = plain(changed), ours(batch)
    torch.testing.assert_close(loss.smoothed, expected.smoothed, rtol=0, atol=1e-10)
    torch.testing.assert_close(loss.likelihood, expected.likelihood, rtol=0, atol=1e-10)
    loss.minimised.backward()
    expected.minimised.backward()
    for a, b in zip(gradients(ours), gradients(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_only_tokens_give_way_and_as_many_as_the_schedule_says(monkeypatch: pytest.MonkeyPatch) -> None:
    objective, batch, read = (
        scheduled(prediction="sample", temperature=100.0),
        batch_of(400),
        decoder_inputs(monkeypatch),
    )
    objective.updates = 3
    objective(batch)
    first, second = read
    assert torch.equal(first, batch.target_input)
    changed = first != second
    tokens = (first != 0) & (first != 2)
    assert not changed[~tokens].any(), "<s> and padding stay"
    assert not any((second[changed] == special).any() for special in SPECIALS)
    share = changed.sum() / tokens.sum() * (VOCABULARY - 3) / (VOCABULARY - 4)  # a draw may be the true token
    assert abs(share - 0.3) < 0.03


def test_draws_follow_the_models_probabilities() -> None:
    objective = scheduled(prediction="sample", temperature=0.5)
    batch = Batch.from_ids([([5, 6], [7])] * 20_000)
    memory = objective.model.encode(batch.source[:1], batch.source_mask[:1]).expand(len(batch.source), -1, -1)
    places = torch.arange(len(batch.source)) * 2  # after each <s>
    drawn = objective.predict(batch, memory, places)
    wanted = (predicted_logits(objective.model, Batch.from_ids([([5, 6], [7])]))[0, 0] / 0.5).softmax(0)
    torch.testing.assert_close(
        torch.bincount(drawn, minlength=VOCABULARY) / len(drawn), wanted.float(), rtol=0, atol=0.02
    )


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_the_mixture_is_the_mean_embedding_by_probability(positions: str) -> None:
    objective = scheduled(prediction="mixture", temperature=0.7)
    objective.model = small_model(positions=positions)
    batch, places = Batch.from_ids([([5, 6], [7, 8, 9])]), torch.tensor([1])
    model = objective.model
    memory = model.encode(batch.source, batch.source_mask)
    output = objective.decode(batch, memory, places, objective.predict(batch, memory, places))
    mean = (predicted_logits(model, batch)[0, 1] / 0.7).softmax(0) @ model.target_embedding.tokens.table.weight
    with torch.no_grad():  # a token of its own, of which only this embedding is known
        model.target_embedding.tokens.table.weight[19] = mean
    expected = model.decode(torch.tensor([[2, 7, 19, 9]]), memory, batch.source_mask)
    torch.testing.assert_close(output.hidden, expected.hidden, rtol=0, atol=1e-10)


@pytest.mark.parametrize("prediction", ["sample", "mixture"])
def test_near_temperature_zero_all_are_the_likeliest_token(prediction: str) -> None:
    batch, found = batch_of(6), []
    for objective in (scheduled(prediction=prediction, temperature=1e-9), scheduled()):
        loss = objective(batch)
        loss.minimised.backward()
        found.append([loss.smoothed, *gradients(objective)[1:]])  # but the table's own, which a mixture spreads
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)


def test_what_is_put_after_a_place_stands_one_further_on() -> None:
    true = torch.tensor([[2, 5, 6, 7], [2, 8, 0, 0]])
    places = torch.tensor([0, 2, 3, 4, 5])  # the last of a row has nothing after it, and padding stays
    predicted = torch.tensor([11, 12, 13, 14, 15])
    assert put_after(places, true, predicted, true).tolist() == [[2, 11, 6, 12], [2, 14, 0, 0]]
    vectors = put_after(places, true[:, :, None].double(), predicted[:, None].double(), true)
    assert vectors[:, :, 0].tolist() == [[2, 11, 6, 12], [2, 14, 0, 0]]


@pytest.mark.parametrize("prediction", ["argmax", "mixture"])
def test_any_generator_predicts_the_same(prediction: str) -> None:
    class OtherGenerator(Generator):
        def forward(self, output: DecoderOutput, source: torch.Tensor) -> torch.Tensor:
            log_probabilities = super().forward(output, source)
            extended = torch.full_like(log_probabilities[:, :, :1], 0.0)  # one word beyond the vocabulary, and likely
            return torch.cat([log_probabilities, extended], 2)

    objective, batch = scheduled(prediction=prediction), batch_of(5)
    memory = objective.model.encode(batch.source, batch.source_mask)
    places = batch.target_places
    expected = objective.predict(batch, memory, places)
    other = OtherGenerator(8, VOCABULARY, bias=False).double()
    other.projection = objective.model.generator.projection
    objective.model.generator = other
    torch.testing.assert_close(objective.predict(batch, memory, places), expected, rtol=0, atol=1e-10)


def test_in_bf16_the_second_pass_has_its_gradient() -> None:
    """Autocast keeps what it cast: weights first cast where no gradient is kept would learn nothing after."""
    batch, found = batch_of(20), []
    for name in ("fp32", "bf16"):
        objective = scheduled(dtype=torch.float32)
        with Precision(name, torch.device("cpu")).autocast():
            loss = objective(batch)
        loss.minimised.backward()
        found.append(torch.cat([gradient.flatten() for gradient in gradients(objective)]))
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=0) > 0.99


def test_accumulation_changes_nothing() -> None:
    """Nor do ranks, which share an update out in the same way; here every token gives way, so that none is drawn."""
    whole, found = batch_of(8), []
    for batches in ([whole], list(whole.halves())):
        objective = scheduled()
        objective.sampling = ScheduledSampling(schedule="linear", steps=1, floor=0.0)
        config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01, epsilon=1e-4)
        updates = (UpdateBatches(Position(0, n), batches) for n in range(3))
        steps = train_steps(
            objective, build_optimizer(objective, config), Precision("fp32", torch.device("cpu")), config, updates
        )
        assert [update.step for update in steps] == [1, 2, 3]
        assert objective.updates == 2, "the loop tells how many updates there were"
        found.append(torch.cat([parameter.detach().flatten() for parameter in objective.parameters()]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


def test_the_config_chooses_it(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    config = tiny_config(tmp_path, scheduled_sampling={"floor": 0.25})
    objective = build_objective(small_model(), config)
    assert isinstance(objective, ScheduledSamplingObjective)
    assert objective.sampling.floor == 0.25
    assert type(build_objective(small_model(), tiny_config(tmp_path))) is TranslationObjective


def test_stopping_and_continuing_equals_never_stopping(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    def run(name: str, steps: int) -> bytes:
        sampling = {"steps": 4, "floor": 0.25, "prediction": "sample"}
        config = tiny_config(tmp_path, max_steps=steps, pairs=40, validation_sentences=2, scheduled_sampling=sampling)
        train(config, tmp_path / name, quiet=True)
        return (RunFolder(tmp_path / name).step_folder(steps) / WEIGHTS).read_bytes()

    never = run("never", 4)
    run("stopped", 2)
    assert run("stopped", 4) == never


# --- the schedule -------------------------------------------------------------------------------------------------


def truths(updates: list[int], **options: Any) -> list[float]:
    return [truth_probability(ScheduledSampling(**options), update) for update in updates]


def test_linear_truth_falls_to_its_floor_and_stays() -> None:
    """max(ε, k - c i) of Bengio et al. 2015 with k = 1 and c = (1 - ε) / steps."""
    found = truths([0, 1, 25, 100, 150], schedule="linear", steps=100, floor=0.2)
    assert found == pytest.approx([max(0.2, 1 - 0.8 / 100 * i) for i in (0, 1, 25, 100, 150)], rel=1e-12)


def test_exponential_truth_is_a_power_of_k() -> None:
    k = 0.5 ** (1 / 100)
    found = truths([0, 1, 100, 1000], schedule="exponential", steps=100, floor=0.0)
    assert found == pytest.approx([k**i for i in (0, 1, 100, 1000)], rel=1e-9)


@pytest.mark.parametrize("k", [2.0, 30.0, 1000.0])
def test_inverse_sigmoid_truth_is_its_formula(k: float) -> None:
    steps = round(k * math.log(k))
    updates = [0, 1, steps, 3 * steps]
    found = truths(updates, schedule="inverse_sigmoid", steps=steps, floor=0.0)
    exact = found[0] / (1 - found[0])  # for k / (k + 1) is the first
    assert exact * math.log(exact) == pytest.approx(steps, rel=1e-11)
    assert found == pytest.approx([exact / (exact + math.exp(i / exact)) for i in updates], rel=1e-9)


@pytest.mark.parametrize("schedule", ["linear", "exponential", "inverse_sigmoid"])
@pytest.mark.parametrize("steps", [1, 100, 10**7])
def test_truth_falls_from_one_to_the_floor_from_its_start_on(schedule: Any, steps: int) -> None:
    common: dict[str, Any] = {"schedule": schedule, "steps": steps, "floor": 0.25, "start_step": 50}
    found = truths([0, 49, 50, 50 + steps // 3, 50 + steps, 50 + 3 * steps, 2**62], **common)
    assert found[:2] == [1.0, 1.0]
    assert all(1.0 >= a >= b >= 0.25 for a, b in pairwise(found))
    assert found[4] == pytest.approx(0.25 if schedule == "linear" else 0.625), "after `steps`"
    assert found[-1] == pytest.approx(0.25)
    assert truths([0, 10**9], schedule=schedule, floor=1.0) == [1.0, 1.0], "a floor of 1 is teacher forcing"
