"""What is masked, what of it enters the loss, and what a canvas tells of its target."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_cli.build import build_model, build_objective
from transformer_cli.config import Config, ModelConfig
from transformer_cli.data.batch import Batch
from transformer_cli.decoding.translator import Translator
from transformer_cli.text.vocabulary import EOS, PAD
from transformer_cli.training.run import train
from transformer_cli.variants.mask_predict.model import (
    MASK,
    MaskedObjective,
    NonAutoregressiveTransformer,
    OneShotObjective,
    draw_masked,
    length_class,
    without_end,
)

SHAPE: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 12,
    "heads": 3,
    "d_ff": 20,
    "dropout": 0.0,
}
PAIRS = [([4, 5, 6], [7, 8, 9, 10]), ([4], [5]), ([9, 8, 7, 6], [4, 4, 12])]


def make(generation: str, **options: Any) -> NonAutoregressiveTransformer:
    torch.manual_seed(1)
    model = build_model(ModelConfig(**{**SHAPE, "generation": generation, **options}), 15, 15).double()
    assert isinstance(model, NonAutoregressiveTransformer)
    return model


def targets(*lengths: int) -> Tensor:
    columns = torch.arange(max(lengths))
    return torch.where(columns < torch.tensor(lengths)[:, None], 7, PAD)


def test_the_end_is_taken_away() -> None:
    batch = Batch.from_ids(PAIRS, pad_to=4)
    assert without_end(batch.target_output)[:, :4].tolist() == [[7, 8, 9, 10], [5, 0, 0, 0], [4, 4, 12, 0]]
    assert not (without_end(batch.target_output) == EOS).any()
    assert without_end(torch.tensor([[EOS], [EOS]])).tolist() == [[PAD], [PAD]]


def test_as_many_tokens_are_masked_as_were_drawn_evenly() -> None:
    torch.manual_seed(1)
    target = targets(*[6] * 3000, *[3] * 3000)
    masked = draw_masked(target)
    assert not masked[target == PAD].any()
    for rows, length in ((masked[:3000], 6), (masked[3000:], 3)):
        counts = rows.sum(dim=1).bincount(minlength=7).double() / 3000
        assert counts[0] == 0
        assert torch.allclose(counts[1 : length + 1], torch.full((length,), 1 / length).double(), atol=0.03)
        places = rows.double().mean(dim=0)[:length]  # of each place (T + 1) / 2T
        assert torch.allclose(places, torch.full((length,), (length + 1) / (2 * length)).double(), atol=0.03)


def test_masked_tokens_alone_and_the_length_enter_the_loss() -> None:
    model, batch = make("mask_predict"), Batch.from_ids(PAIRS)
    objective, target = MaskedObjective(model, label_smoothing=0.0), without_end(batch.target_output)
    masked = torch.tensor([[True, False, True, False], [True, False, False, False], [False, True, False, False]])
    loss = objective.loss_of(batch, target, masked, weight=2.0)
    memory = model.encode(batch.source, batch.source_mask)
    output = model.decode(target.masked_fill(masked, MASK), memory, batch.source_mask)
    log_probs = model.generator(output, batch.source)
    tokens = sum(-log_probs[row, place, PAIRS[row][1][place]] for row, place in ((0, 0), (0, 2), (1, 0), (2, 1)))
    lengths = model.predict_lengths(memory, batch.source_mask)
    classes = length_class(torch.tensor([4, 1, 3]), torch.tensor([3, 1, 4]))
    expected = 2.0 * tokens - lengths.gather(1, classes[:, None]).sum()
    assert loss.minimised.item() == pytest.approx(expected.item(), abs=1e-9)
    assert loss.likelihood.item() == pytest.approx(expected.item(), abs=1e-9)


def test_what_is_seen_is_not_asked() -> None:
    """A token that is not masked changes what is predicted, but its own prediction moves nothing."""
    model, batch = make("mask_predict", tie_embeddings="none"), Batch.from_ids([([4, 5], [7, 8, 9])])
    masked = torch.tensor([[True, False, False]])
    loss = MaskedObjective(model, 0.0).loss_of(batch, without_end(batch.target_output), masked, 1.0)
    torch.autograd.backward(loss.minimised)
    used = model.target_embedding.tokens.table.weight.grad
    assert used is not None
    assert (used.abs().sum(dim=1) > 0).nonzero()[:, 0].tolist() == [MASK, 8, 9]


@pytest.mark.parametrize("generation", ["mask_predict", "one_shot"])
def test_evaluation_is_deterministic_and_adds_up_over_batches(generation: str) -> None:
    kind = MaskedObjective if generation == "mask_predict" else OneShotObjective
    objective = kind(make(generation), 0.1)
    objective.eval()
    batch = Batch.from_ids(PAIRS)
    before = torch.get_rng_state()
    whole, parts = objective(batch), [objective(part) for part in batch.halves()]
    assert torch.equal(torch.get_rng_state(), before)
    for field in ("smoothed", "likelihood"):
        total = sum(getattr(part, field).item() for part in parts)
        assert getattr(whole, field).item() == pytest.approx(total, abs=1e-9)


def test_batches_add_up_where_the_same_is_masked() -> None:
    objective, batch = MaskedObjective(make("mask_predict"), 0.1), Batch.from_ids(PAIRS)
    target = without_end(batch.target_output)
    torch.manual_seed(1)
    masked = draw_masked(target)
    whole = objective.loss_of(batch, target, masked, 2.0).minimised.item()
    total = 0.0
    for part, start, end in zip(batch.halves(), (0, 1), (1, 3), strict=True):
        ids = without_end(part.target_output)
        total += objective.loss_of(part, ids, masked[start:end, : ids.size(1)], 2.0).minimised.item()
    assert whole == pytest.approx(total, abs=1e-9)


def test_a_masked_token_counts_so_that_a_sentence_weighs_its_tokens() -> None:
    """In the mean over what is drawn, twice the masked tokens are the T + 1 by which the loop divides."""
    torch.manual_seed(1)
    for length in (1, 2, 7):
        drawn = draw_masked(targets(*[length] * 4000)).sum(dim=1).double().mean().item()
        assert 2 * drawn == pytest.approx(length + 1, rel=0.03)


def test_a_canvas_does_not_tell_how_long_the_target_is() -> None:
    model = make("one_shot")
    inputs: list[Tensor] = []
    decode = model.decode
    model.decode = lambda target, *rest: inputs.append(target) or decode(target, *rest)  # type: ignore[func-returns-value, method-assign]
    objective = OneShotObjective(model, 0.1)
    for target in ([5], [5, 6, 7], [5] * 9):
        objective(Batch.from_ids([([4, 5, 6], target), ([4], [6])]))
    assert all(torch.equal(one, inputs[0]) for one in inputs)
    assert (inputs[0] == MASK).sum(dim=1).tolist() == [14, 10]
    objective(Batch.from_ids([([4], [6] * 12)]))  # longer than its canvas: that one has to hold it
    assert (inputs[-1] == MASK).sum(dim=1).tolist() == [13]


def test_behind_the_end_nothing_is_asked() -> None:
    model, batch = make("one_shot"), Batch.from_ids(PAIRS, pad_to=16)
    loss = OneShotObjective(model, 0.0)(batch)
    mask, total = batch.source_mask, 0.0
    memory = model.encode(batch.source, mask)
    for row, (source, target) in enumerate(PAIRS):
        canvas = torch.full((1, 2 * len(source) + 8), MASK)
        output = model.decode(canvas, memory[row : row + 1], mask[row : row + 1])
        log_probs = model.generator(output, batch.source)[0]
        total -= sum(log_probs[place, token].item() for place, token in enumerate([*target, EOS]))
    assert loss.minimised.item() == pytest.approx(total, abs=1e-9)


def test_a_canvas_ends_where_learned_positions_do() -> None:
    model = make("one_shot", positions="learned", max_positions=9)
    assert OneShotObjective(model, 0.1)(Batch.from_ids(PAIRS)).minimised.isfinite()


@pytest.mark.parametrize(("generation", "kind"), [("mask_predict", MaskedObjective), ("one_shot", OneShotObjective)])
def test_the_config_chooses(
    generation: str, kind: type, tiny_tree: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    tree = tiny_tree(tmp_path)
    tree["model"]["generation"] = generation
    config = Config.model_validate(tree)
    objective = build_objective(build_model(config.model, 9, 9), config)
    assert type(objective) is kind


@pytest.mark.parametrize("generation", ["mask_predict", "one_shot"])
def test_an_interrupted_run_continues_as_if_it_had_not_been(
    generation: str, tiny_tree: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    tree = tiny_tree(tmp_path, pairs=40, validate_every=2, save_every=2)
    tree["model"]["generation"] = generation
    for name, ends in (("whole", [4]), ("parts", [2, 4])):
        for end in ends:
            tree["training"]["max_steps"] = end
            train(Config.model_validate(tree), tmp_path / name, quiet=True)
    one, other = ((tmp_path / name / "step-00000004" / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["mask_predict", "one_shot"])
def test_a_small_task_is_learned(generation: str, tiny_tree: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    cosine = {"schedule": "cosine", "peak_learning_rate": 0.005, "max_steps": 600, "warmup_steps": 50}
    tree = tiny_tree(tmp_path, pairs=2000, batch_tokens=500, validate_every=600, save_every=600, **cosine)
    tree["model"] |= {"generation": generation, "d_model": 32, "d_ff": 64, "dropout": 0.0}
    train(Config.model_validate(tree), tmp_path / "run", quiet=True)
    translator = Translator.load(tmp_path / "run", "cpu")
    sources, references = ((tmp_path / f"valid.{side}").read_text().splitlines() for side in ("de", "en"))
    right = [one == other for one, other in zip(translator.translate(sources), references, strict=True)]
    assert sum(right) >= 0.8 * len(right)
