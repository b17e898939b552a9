"""How much memory a piece of work takes at most, on the GPU or in this process. `dry_run` measures with it."""

import ctypes
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from transformer_cli.config import TrainingConfig
from transformer_cli.data.batching import BatchPlan
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.loader import SubwordSampling, largest_batch
from transformer_cli.errors import UserError
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import BatchTooLarge, accumulate_gradients
from transformer_cli.training.objective import TranslationObjective

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_peak(device: torch.device, work: Callable[[], object]) -> tuple[int, int]:
    """Do the work; returns bytes: by how much memory grew at most meanwhile, and how much was in use then.

    On a GPU what torch has allocated there; else what this process holds in memory. Where the system does not tell of
    a stretch of time, the growth is that of the highest use since the process began.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        peak = torch.cuda.max_memory_allocated(device)
        return peak - before, peak
    _forget_peak()
    before = _process_peak()
    work()
    peak = _process_peak()
    return peak - before, peak


def _forget_peak() -> None:
    """Give unused memory back, so that the work must take it anew, and let the peak begin at what is left."""
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # no Linux, or a locked-down one
        CLEAR.write_text("5")


def _process_peak() -> int:
    with suppress(OSError, IndexError):
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def probe_memory(
    objective: TranslationObjective,
    precision: Precision,
    config: TrainingConfig,
    corpus: EncodedCorpus,
    plan: BatchPlan,
    sampling: SubwordSampling | None = None,
) -> None:
    """Forward and backward over the plan's costliest batch, without an update; random and gradient state as before.

    Raises `UserError` where the memory does not suffice.
    """
    batch = largest_batch(corpus, plan[plan.costliest()], sampling, config.pad_to)
    devices = [precision.device] if precision.device.type == "cuda" else []
    objective.train()
    try:
        learn = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        moments = [torch.empty_like(parameter) for parameter in learn for _ in range(2)]  # Adam's
        with torch.random.fork_rng(devices=devices):
            accumulate_gradients(objective, precision, [batch], batch.target_tokens)
        del moments
    except (BatchTooLarge, torch.OutOfMemoryError):
        rows, source, target = *batch.source.shape, batch.target_output.size(1)
        raise UserError(
            f"not enough memory on {precision.device} for the costliest batch ({rows} sentences, {source} source and "
            f"{target} target tokens each); lower training.batch_tokens = {config.batch_tokens} and raise "
            "training.accumulation in its place"
        ) from None
    finally:
        for parameter in objective.parameters():
            parameter.grad = None
