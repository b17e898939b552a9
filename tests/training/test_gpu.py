"""What only a GPU can show: the same results as on the CPU, in every precision. Marked `gpu`."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from transformer_cli import Translator
from transformer_cli.build import build_model
from transformer_cli.config import Config, ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.training.hardware import Precision, tune_process
from transformer_cli.training.loop import apply_gradients, build_optimizer, compute_gradients, train_steps
from transformer_cli.training.muon import MuonAndAdam
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.run import train

pytestmark = pytest.mark.gpu

MakeConfig = Callable[..., Config]
# The paper's, and what the presets for little text take.
WAYS: list[dict[str, object]] = [{}, {"positions": "rotary", "qk_norm": True, "optimizer": "muon"}]
of_each = pytest.mark.parametrize("way", WAYS, ids=["paper", "little-text"])
BATCH = Batch.from_ids([([5, 6, 7], [8, 9]), ([4], [5, 6, 7, 8])])


def prepared(
    way: dict[str, object], device: str, vocabulary: int, **shape: object
) -> tuple[TranslationObjective, torch.optim.Optimizer, TrainingConfig]:
    """What trains a model of two layers in one of the ways."""
    torch.manual_seed(1)
    model, training = dict(way), {"schedule": "constant", "warmup_steps": 0, "peak_learning_rate": 0.01}
    training["optimizer"] = model.pop("optimizer", "adam")
    config = TrainingConfig.model_validate(training)
    built = build_model(
        ModelConfig.model_validate({"encoder_layers": 2, "decoder_layers": 2, **shape, **model}), vocabulary, vocabulary
    )
    objective = TranslationObjective(built.to(device), 0.1)
    return objective, build_optimizer(objective, config), config


def losses(device: str, precision: str, way: dict[str, object]) -> list[float]:
    objective, optimizer, config = prepared(way, device, 12, d_model=32, heads=4, d_ff=64, dropout=0.0)
    if precision == "fp32" and isinstance(optimizer, MuonAndAdam):
        optimizer.products = torch.float32  # on a GPU they are bfloat16 always
    batches = (UpdateBatches(Position(0, number + 1), [BATCH]) for number in range(5))
    place = Precision(precision, torch.device(device))
    return [update.loss for update in train_steps(objective, optimizer, place, config, batches)]


@of_each
def test_the_gpu_trains_as_the_cpu_does(way: dict[str, object]) -> None:
    assert losses("cuda", "fp32", way) == pytest.approx(losses("cpu", "fp32", way), rel=1e-4)


@of_each
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_nearly_as_well(precision: str, way: dict[str, object]) -> None:
    low = losses("cuda", precision, way)
    assert len(low) == 5
    assert low == pytest.approx(losses("cpu", "fp32", way), rel=0.1)


def test_a_run_on_the_gpu_continues_after_a_stop_and_translates_on_both(
    tmp_path: Path, tiny_config: MakeConfig
) -> None:
    config = tiny_config(tmp_path, max_steps=40, validate_every=20)
    train(config, tmp_path / "run", device="cuda", quiet=True)
    longer = config.model_copy(update={"training": config.training.model_copy(update={"max_steps": 60})})
    train(longer, tmp_path / "run", device="cuda", quiet=True)
    assert (RunFolder(tmp_path / "run").step_folder(60) / WEIGHTS).exists()
    lines = (tmp_path / "valid.de").read_text().splitlines()
    on_gpu, on_cpu = (
        Translator.load(tmp_path / "run", device=device, engine="torch", compute_type="float32").translate(lines)
        for device in ("cuda", "cpu")
    )
    same = sum(a == b for a, b in zip(on_gpu, on_cpu, strict=True))
    assert same >= 0.9 * len(lines), "float32 sums differ in their order only"


def gpu_objective(way: dict[str, object]) -> tuple[TranslationObjective, torch.optim.Optimizer, list[Batch]]:
    objective, optimizer, _ = prepared(way, "cuda", 40, d_model=128, heads=2, d_ff=256, dropout=0.1)
    objective.train()
    pairs = [(list(range(4, 4 + n % 30)), list(range(4, 4 + n % 23))) for n in range(1, 40)]
    for settings in optimizer.param_groups:
        settings["lr"] = 0.01  # else the loop's to set
    return objective, optimizer, [Batch.from_ids(pairs, pad_to=8).pin_memory()]


def update(objective: TranslationObjective, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> None:
    """One update but for reading its loss."""
    precision = Precision("bf16", torch.device("cuda"))
    loss = compute_gradients(objective, precision, batches).loss
    norm = torch.nn.utils.clip_grad_norm_(objective.parameters(), 1.0)
    apply_gradients(optimizer, precision, finite=(loss + norm).isfinite())
    optimizer.zero_grad(set_to_none=True)


@of_each
def test_attention_takes_the_kernel_that_is_quick_with_new_shapes(way: dict[str, object]) -> None:
    """Masks of the encoder, the causal decoder and over the memory: none takes cuDNN's, nor falls back to open products
    ("math").
    """
    objective, optimizer, batches = gpu_objective(way)
    tune_process(torch.device("cuda"))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        update(objective, optimizer, batches)
    counts = {event.key: event.count for event in profile.key_averages() if "_scaled_dot_product_" in event.key}
    forward = {name: count for name, count in counts.items() if not name.endswith("_backward")}
    kernels = {f"aten::_scaled_dot_product_{kind}_attention" for kind in ("efficient", "flash")}
    assert forward.keys() <= kernels
    assert sum(forward.values()) == 2 + 2 * 2  # every layer's attention


def test_nothing_waits_for_the_gpu_inside_an_update() -> None:
    """With Adam: before Muon's step the CPU reads once whether the gradient is finite."""
    objective, optimizer, batches = gpu_objective(WAYS[0])
    update(objective, optimizer, batches)  # what happens once only
    try:
        with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype
            torch.cuda.set_sync_debug_mode("error")
        update(objective, optimizer, batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@of_each
def test_a_gradient_that_is_not_finite_changes_nothing_on_the_gpu(way: dict[str, object]) -> None:
    objective, optimizer, batches = gpu_objective(way)
    update(objective, optimizer, batches)
    before = [parameter.clone() for parameter in objective.parameters()]
    steps = [float(state["step"]) for state in optimizer.state.values() if "step" in state]  # Muon's have none
    hook = next(objective.parameters()).register_hook(lambda gradient: gradient * math.nan)  # type: ignore[no-untyped-call]
    update(objective, optimizer, batches)
    hook.remove()
    assert all(map(torch.equal, before, objective.parameters()))
    assert [float(state["step"]) for state in optimizer.state.values() if "step" in state] == steps
    update(objective, optimizer, batches)
    assert not all(map(torch.equal, before, objective.parameters()))
