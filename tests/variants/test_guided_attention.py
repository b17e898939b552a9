"""Guided attention: the formulas by hand, what their gradient reaches, and that nothing else of training changes."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.variants.test_lexicon import Pairs
from transformer_cli.build import build_model, build_objective
from transformer_cli.config import Config, GuidedAttention, ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Generator, Transformer
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import build_optimizer, compute_gradients, train_steps
from transformer_cli.training.objective import Loss, TranslationObjective
from transformer_cli.training.run import train
from transformer_cli.variants.guided_attention import GuidedObjective, alignment_loss, diagonal_loss, lexicon_loss
from transformer_cli.variants.lexicon import learn_lexicon

CPU = torch.device("cpu")
VOCABULARY = 20
GUIDES: dict[str, dict[str, Any]] = {
    "diagonal": {"prior": "diagonal"},
    "one head": {"prior": "diagonal", "heads": (1,), "layer": 0},
    "alignments": {"prior": "alignments", "alignments": "a"},
    "statistics": {"prior": "alignments"},
}


def small_model(dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> Transformer:
    torch.manual_seed(1)
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 3, "d_model": 8, "heads": 2, "d_ff": 16}
    return build_model(ModelConfig(**shape, dropout=dropout, norm="pre"), VOCABULARY, VOCABULARY).to(dtype)


def guided(model: Transformer | None = None, r_drop: float = 0.0, **guide: Any) -> GuidedObjective:
    lexicon = learn_lexicon(Pairs([ids for ids, _ in linked_pairs(9)]))
    return GuidedObjective(model or small_model(), 0.1, GuidedAttention(**guide), r_drop, lexicon)


def linked_pairs(count: int, seed: int = 0) -> list[tuple[tuple[list[int], list[int]], np.ndarray[Any, Any]]]:
    """Random pairs, each with random links between their tokens."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        source, target = (draw.integers(4, VOCABULARY, draw.integers(1, 8)).tolist() for _ in range(2))
        table = draw.random((len(target), len(source))) < 0.4
        found.append(((source, target), np.argwhere(table)))
    return found


def batch_of(pairs: Sequence[tuple[tuple[list[int], list[int]], np.ndarray[Any, Any]]], pad_to: int = 1) -> Batch:
    return Batch.from_ids([ids for ids, _ in pairs], pad_to, [links for _, links in pairs])


def guides_share(loss: Loss) -> float:
    return float((loss.minimised - loss.smoothed).detach())


def gradients(objective: TranslationObjective, *batches: Batch) -> list[Tensor]:
    compute_gradients(objective, Precision("fp32", CPU), list(batches))
    found = [cast(Tensor, parameter.grad).clone() for parameter in objective.parameters()]
    objective.zero_grad()
    return found


# --- the formulas -------------------------------------------------------------------------------------------------


def test_the_diagonal_loss_is_the_papers() -> None:
    batch = Batch.from_ids([([5, 6, 7], [8]), ([5], [6, 7])])  # with </s>: 4 × 2 and 2 × 3
    attention = torch.rand(2, 3, 3, 4, dtype=torch.float64)
    attention[1, :, :, 2:] = 0.0  # padding gets none
    expected = 0.0
    for row, (sources, targets) in enumerate([(4, 2), (2, 3)]):
        for t in range(targets):
            for s in range(sources):
                weight = 1 - math.exp(-((s / sources - t / targets) ** 2) / (2 * 0.3**2))
                expected += float(attention[row, :, t, s].mean()) * weight
    assert float(diagonal_loss(attention, batch, 0.3)) == pytest.approx(expected, rel=1e-12)


def test_a_diagonal_costs_nothing_and_its_opposite_much() -> None:
    batch = Batch.from_ids([([5] * 9, [6] * 9)])
    eye = torch.eye(10)[None, None]
    assert float(diagonal_loss(eye, batch, 0.2)) == pytest.approx(0.0, abs=1e-6)
    assert float(diagonal_loss(eye.flip(-1), batch, 0.2)) > 5
    assert float(diagonal_loss(eye.roll(1, -1), batch, 0.2)) < 2.5  # a step aside is nearly free


def test_the_alignment_loss_is_a_cross_entropy() -> None:
    attention = torch.rand(2, 2, 3, 4, dtype=torch.float64).softmax(-1)
    links = torch.tensor([[0, 0, 1], [0, 2, 0], [0, 2, 3], [1, 1, 2]])
    tokens = {(0, 0): [1], (0, 2): [0, 3], (1, 1): [2]}  # a token with two links wants half of each
    expected = -sum(
        float(attention[row, head, t, s].log()) / len(sources) / 2
        for (row, t), sources in tokens.items()
        for s in sources
        for head in range(2)
    )
    assert float(alignment_loss(attention, links)) == pytest.approx(expected, rel=1e-12)
    assert float(alignment_loss(attention, links[:0])) == 0.0


def test_attention_of_nothing_at_all_stays_finite() -> None:
    attention = torch.tensor([1.0, 0.0], requires_grad=True)
    loss = alignment_loss(attention.expand(1, 1, 1, 2), torch.tensor([[0, 0, 1]]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite()
    assert attention.grad is not None
    assert attention.grad.isfinite().all()


def test_sure_links_of_a_lexicon_are_those_of_a_file() -> None:
    attention = torch.rand(2, 2, 3, 4, dtype=torch.float64).softmax(-1)
    links = torch.tensor([[0, 0, 1], [0, 2, 3], [1, 1, 2]])  # one for each of these tokens
    sure = torch.zeros(2, 3, 4, dtype=torch.float64)
    sure[tuple(links.T)] = 1.0
    assert torch.allclose(lexicon_loss(attention, sure), alignment_loss(attention, links))
    assert torch.allclose(lexicon_loss(attention, sure / 2), alignment_loss(attention, links) / 2)


# --- beside the translation's loss --------------------------------------------------------------------------------


@pytest.mark.parametrize("guide", GUIDES)
def test_the_reported_loss_is_the_translations(guide: str) -> None:
    batch, objective = batch_of(linked_pairs(6)), guided(**GUIDES[guide], weight=2.0)
    plain, found = TranslationObjective(objective.model, 0.1)(batch), objective(batch)
    assert torch.equal(found.smoothed, plain.smoothed)
    assert torch.equal(found.likelihood, plain.likelihood)
    assert guides_share(found) > 0
    doubled = guided(objective.model, **GUIDES[guide], weight=4.0)(batch)
    assert guides_share(doubled) == pytest.approx(2 * guides_share(found))


@pytest.mark.parametrize(("start", "middle"), [(6.0, 4.0), (0.5, 1.25)])
def test_the_weight_goes_evenly_from_the_start_weight_to_the_weight(start: float, middle: float) -> None:
    batch, objective = batch_of(linked_pairs(6)), guided(weight=2.0, start_weight=start, start_steps=8)
    alone = guides_share(guided(objective.model)(batch))
    for updates, weight in ((0, start), (4, middle), (8, 2.0), (9, 2.0)):
        objective.updates = updates
        assert guides_share(objective(batch)) == pytest.approx(weight * alone)


@pytest.mark.parametrize("guide", GUIDES)
def test_a_weight_of_nearly_nothing_is_plain_training(guide: str) -> None:
    batch, objective = batch_of(linked_pairs(6)), guided(**GUIDES[guide], weight=1e-300)
    plain = gradients(TranslationObjective(objective.model, 0.1), batch)
    for one, other in zip(gradients(objective, batch), plain, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("guide", GUIDES)
def test_validation_and_the_steps_after_the_last_are_plain(guide: str) -> None:
    batch, objective = batch_of(linked_pairs(4)), guided(**GUIDES[guide], max_steps=3)
    objective.updates = 2
    assert objective(batch).regularised is not None
    objective.updates = 3
    assert objective(batch).regularised is None
    objective.updates = 0
    unlinked = Batch.from_ids([ids for ids, _ in linked_pairs(4)])
    assert objective.eval()(unlinked) == TranslationObjective(objective.model, 0.1)(unlinked)


def test_the_gradient_reaches_the_chosen_head_and_what_is_below() -> None:
    objective = guided(prior="alignments", alignments="a", layer=1, heads=(1,))
    batch = batch_of(linked_pairs(6))
    loss: Loss = objective(batch)
    (loss.minimised - TranslationObjective(objective.model, 0.1)(batch).smoothed).backward()
    layers = cast(Sequence[Any], objective.model.decoder.layers)

    def size(parameter: Tensor) -> float:
        return 0.0 if parameter.grad is None else float(parameter.grad.abs().max())

    chosen = layers[1].cross_attention
    key, value = chosen.key_value.weight.grad.split(8)
    heads = chosen.query.weight.grad.split(4)  # 2 heads of 4 rows
    assert heads[0].abs().max() < 1e-12 < 1e-6 < heads[1].abs().max()
    heads = key.split(4)
    assert heads[0].abs().max() < 1e-12 < 1e-6 < heads[1].abs().max()
    assert value.abs().max() < 1e-12
    above = [*layers[2].parameters(), chosen.output.weight, *layers[1].feed_forward.parameters()]
    assert max(map(size, above)) < 1e-12
    assert size(layers[0].cross_attention.key_value.weight) > 1e-6
    assert size(layers[1].self_attention.query.weight) > 1e-9


@pytest.mark.parametrize("guide", GUIDES)
def test_accumulation_and_batching_never_change_the_gradient(guide: str) -> None:
    objective, pairs = guided(**GUIDES[guide], weight=3.0), linked_pairs(9)
    whole = gradients(objective, batch_of(pairs))
    halves = batch_of(pairs).halves()
    for parts in (halves, [batch_of(pairs[:2], pad_to=8), batch_of(pairs[2:])], [batch_of([pair]) for pair in pairs]):
        for one, other in zip(gradients(objective, *parts), whole, strict=True):
            assert torch.allclose(one, other, atol=1e-6 if guide == "statistics" else 1e-12)  # float32 probabilities


@pytest.mark.parametrize("guide", GUIDES)
def test_with_r_drop_both_passes_are_guided(guide: str) -> None:
    """Without dropout both are the same, so that what is minimised is twice that of one."""
    batch, objective = batch_of(linked_pairs(6)), guided(r_drop=0.5, **GUIDES[guide], weight=3.0)
    once = guided(objective.model, **GUIDES[guide], weight=3.0)(batch)
    both = objective(batch)
    assert both.minimised.item() == pytest.approx(2 * once.minimised.item(), rel=1e-9)
    assert both.smoothed.item() == pytest.approx(once.smoothed.item(), rel=1e-9)


def test_any_generator_will_do() -> None:
    class Own(Generator):
        """Not known to the objective as a plain projection."""

    objective, batch = guided(weight=2.0), batch_of(linked_pairs(5))
    plain = objective(batch)
    own = Own(8, VOCABULARY, bias=False).double()
    own.projection = objective.model.generator.projection
    objective.model.generator = own
    other = objective(batch)
    assert guides_share(other) == pytest.approx(guides_share(plain), rel=1e-9)
    assert other.likelihood.item() == pytest.approx(plain.likelihood.item(), rel=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("guide", GUIDES)
def test_training_lowers_the_guides_loss(guide: str) -> None:
    objective, batch = guided(small_model(torch.float32), **GUIDES[guide], weight=5.0), batch_of(linked_pairs(6))
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01, epsilon=1e-6)

    before = guides_share(objective(batch))
    updates = (UpdateBatches(Position(0, 1), [batch]) for _ in range(25))
    for _ in train_steps(objective, build_optimizer(objective, config), Precision("fp32", CPU), config, updates):
        pass
    assert guides_share(objective(batch)) < 0.7 * before


# --- a whole run --------------------------------------------------------------------------------------------------


def test_it_is_chosen_by_the_config(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    model = nn.Module()
    chosen = build_objective(cast(Transformer, model), tiny_config(tmp_path, guided_attention={"width": 0.5}))
    assert type(chosen) is GuidedObjective
    assert chosen.guide.width == 0.5
    assert type(build_objective(cast(Transformer, model), tiny_config(tmp_path))) is TranslationObjective


def write_diagonal(folder: Path) -> Path:
    """Links of each word of the corpus to that of its own place."""
    lines = (folder / "train.de").read_text().splitlines()
    path = folder / "train.align"
    path.write_text("".join(" ".join(f"{i}-{i}" for i in range(len(line.split()))) + "\n" for line in lines))
    return path


def weights(run: Path, step: int) -> bytes:
    return (RunFolder(run).step_folder(step) / WEIGHTS).read_bytes()


@pytest.mark.medium
@pytest.mark.parametrize("by_file", [True, False])
def test_stopping_and_continuing_equals_never_stopping(
    by_file: bool, tmp_path: Path, tiny_config: Callable[..., Config]
) -> None:
    tiny_config(tmp_path)
    alignments = str(write_diagonal(tmp_path)) if by_file else None
    guide = {"prior": "alignments", "alignments": alignments, "max_steps": 3, "start_weight": 4.0, "start_steps": 3}

    def run(name: str, **changes: Any) -> bytes:
        config = tiny_config(tmp_path, guided_attention=guide, accumulation=2, **changes)
        train(config, tmp_path / name, quiet=True)
        return weights(tmp_path / name, config.training.max_steps or 0)

    whole = run("whole", max_steps=4)
    run("parts", max_steps=2)
    assert run("parts", max_steps=4) == whole
    train(tiny_config(tmp_path, accumulation=2, max_steps=4), tmp_path / "plain", quiet=True)
    assert weights(tmp_path / "plain", 4) != whole


def test_other_alignments_of_the_same_name_are_refused(tmp_path: Path, tiny_config: Callable[..., Config]) -> None:
    tiny_config(tmp_path)
    path = write_diagonal(tmp_path)
    guide = {"prior": "alignments", "alignments": str(path)}
    train(tiny_config(tmp_path, guided_attention=guide, max_steps=2), tmp_path / "run", quiet=True)
    path.write_text(path.read_text().replace("1-1", "0-1"))
    with pytest.raises(UserError, match="not what the run was trained on"):
        train(tiny_config(tmp_path, guided_attention=guide, max_steps=4), tmp_path / "run", quiet=True)
