"""A training step: tfm's own loop and `torch.nn.Transformer`, eager and compiled."""

import statistics
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from batches import PaddedBatch, pad
from contenders.matmul import synchronise
from contenders.train_plain import PlainTransformer
from torch import nn

from on_gpu.profiling import Step, find_waits, profile_kernels
from on_gpu.work import Work
from transformer_cli.build import count_parameters
from transformer_cli.config import TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import START, UpdateBatches
from transformer_cli.decoding.devices import use_quick_attention
from transformer_cli.training.hardware import Precision, compile_layers
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective

PAPER_STEPS = 100_000


def tfm(work: Work, pad_to: int, compiled: str) -> tuple[Step, nn.Module]:
    """tfm's own loop over batches in pinned memory. `compiled`: nothing, the layers (so does
    `training.compile`), or the model as a whole."""
    use_quick_attention(work.device)
    model = work.model()
    backend = "aot_eager" if work.small else "inductor"
    if compiled == "layers":
        compile_layers(model, backend)
    elif compiled == "model":
        model.compile(dynamic=True, backend=backend)
    objective = TranslationObjective(model, work.shape.label_smoothing)
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
    prepared = [UpdateBatches(START, [Batch.from_ids(pairs, pad_to)]) for pairs in work.batches]
    if work.device.type == "cuda":
        prepared = [update.pin_memory() for update in prepared]
    optimizer = build_optimizer(objective, config)
    updates = train_steps(objective, optimizer, Precision("bf16", work.device), config, cycle(prepared))
    return lambda: next(updates), model


def plain(work: Work, compiled: str) -> tuple[Step, nn.Module]:
    """torch.nn.Transformer in the loop of `contenders/train_plain.py`, its batches on the device already."""
    torch.backends.cuda.enable_cudnn_sdp(True)  # as torch has it
    torch.manual_seed(1)
    model = PlainTransformer(work.shape).to(work.device).train()
    if compiled:
        model.compile(dynamic=True, backend="aot_eager" if work.small else "inductor")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    batches = cycle([move(pad(pairs), work.device) for pairs in work.batches])

    def step() -> None:
        with torch.autocast(work.device.type, torch.bfloat16):
            loss = model(next(batches))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, model


def measure(work: Work, build: Callable[[], tuple[Step, nn.Module]]) -> dict[str, Any]:
    """All that is to be known of one way to train."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    if work.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step, model = build()
    began = time.monotonic()
    step()
    synchronise(work.device)
    first, graphs_first = time.monotonic() - began, graphs()
    for _ in range(len(work.batches) - 1):  # every shape once
        step()
    graphs_warm = graphs()
    seconds = time_rounds(work, step)
    median = statistics.median(seconds)
    speed = work.target_tokens / len(work.batches) / median
    peak = max(work.peaks)
    result = {
        "target tokens/s": round(speed),
        "range": [round(work.target_tokens / len(work.batches) / each) for each in (max(seconds), min(seconds))],
        "share of the bf16 peak": round(speed * work.flops / work.target_tokens / peak, 4),
        "seconds per update": round(median, 5),
        f"hours for {PAPER_STEPS:,} updates": round(median * PAPER_STEPS / 3600, 3),
        "parameters": count_parameters(model),
        "first update, s": round(first, 2),
        "all shapes once, s": round(time.monotonic() - began - sum(seconds) * len(work.batches) / len(seconds), 2),
        "graphs after the first update": graphs_first,
        "graphs after all shapes": graphs_warm,
        "graphs at the end": graphs(),
        "graph breaks": dict(torch._dynamo.utils.counters["graph_break"]),
    }
    if work.device.type == "cuda":
        result["peak memory, GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
        result["waits for the GPU"] = find_waits(step)
    result["kernels"] = profile_kernels(step, work.device)
    return result


def time_rounds(work: Work, step: Step) -> list[float]:
    """Seconds an update, of each round; a round ends when the GPU has."""
    count = len(work.batches) // 4
    seconds = []
    for _ in range(4):
        synchronise(work.device)
        began = time.perf_counter()
        for _ in range(count):
            step()
        synchronise(work.device)
        seconds.append((time.perf_counter() - began) / count)
    return seconds


def move(batch: PaddedBatch, device: torch.device) -> PaddedBatch:
    source, target_input, target_output = (part.to(device) for part in batch[:3])
    return PaddedBatch(source, target_input, target_output, batch.target_tokens)


def graphs() -> int:
    """How many graphs were compiled since the counters were cleared."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
