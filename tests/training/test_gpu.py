"""What only a GPU can show: the same results as on the CPU, in every precision. Marked `gpu`."""

import math
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
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import apply_gradients, build_optimizer, compute_gradients, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.run import train

pytestmark = pytest.mark.gpu

MakeConfig = Callable[..., Config]
BATCH = Batch.from_ids([([5, 6, 7], [8, 9]), ([4], [5, 6, 7, 8])])


def losses(device: str, precision: str) -> list[float]:
    torch.manual_seed(1)
    shape = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=32, heads=4, d_ff=64, dropout=0.0)
    objective = TranslationObjective(build_model(shape, 12, 12).to(device), 0.1)
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01)
    batches = (UpdateBatches(Position(0, number + 1), [BATCH]) for number in range(5))
    optimizer, place = build_optimizer(objective, config), Precision(precision, torch.device(device))
    return [update.loss for update in train_steps(objective, optimizer, place, config, batches)]


def test_the_gpu_trains_as_the_cpu_does() -> None:
    assert losses("cuda", "fp32") == pytest.approx(losses("cpu", "fp32"), rel=1e-4)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_trains_nearly_as_well(precision: str) -> None:
    low = losses("cuda", precision)
    assert len(low) == 5
    assert low == pytest.approx(losses("cpu", "fp32"), rel=0.1)


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


def gpu_objective() -> tuple[TranslationObjective, torch.optim.Optimizer, list[Batch]]:
    torch.manual_seed(1)
    shape = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=128, heads=2, d_ff=256, dropout=0.1)
    objective = TranslationObjective(build_model(shape, 40, 40).cuda(), 0.1).train()
    pairs = [(list(range(4, 4 + n % 30)), list(range(4, 4 + n % 23))) for n in range(1, 40)]
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=0.01)
    optimizer = build_optimizer(objective, config)
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


def test_no_attention_takes_the_slow_kernel() -> None:
    """Masks of the encoder, the causal decoder and over the memory: none falls back to open products ("math")."""
    objective, optimizer, batches = gpu_objective()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        update(objective, optimizer, batches)
    counts = {event.key: event.count for event in profile.key_averages() if "_scaled_dot_product_" in event.key}
    forward = {name: count for name, count in counts.items() if not name.endswith("_backward")}
    fast = ("flash_attention", "efficient_attention", "cudnn_attention")
    assert sum(count for name, count in forward.items() if name.endswith(fast)) == 2 + 2 * 2  # every layer's attention
    assert not [name for name in counts if "math" in name]


def test_nothing_waits_for_the_gpu_inside_an_update() -> None:
    objective, optimizer, batches = gpu_objective()
    update(objective, optimizer, batches)  # what happens once only
    torch.cuda.set_sync_debug_mode("error")
    try:
        update(objective, optimizer, batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_gradient_that_is_not_finite_changes_nothing_on_the_gpu() -> None:
    objective, optimizer, batches = gpu_objective()
    update(objective, optimizer, batches)
    before = [parameter.clone() for parameter in objective.parameters()]
    steps = [float(state["step"]) for state in optimizer.state.values()]
    hook = next(objective.parameters()).register_hook(lambda gradient: gradient * math.nan)  # type: ignore[no-untyped-call]
    update(objective, optimizer, batches)
    hook.remove()
    assert all(map(torch.equal, before, objective.parameters()))
    assert [float(state["step"]) for state in optimizer.state.values()] == steps
    update(objective, optimizer, batches)
    assert not all(map(torch.equal, before, objective.parameters()))
