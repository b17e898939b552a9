"""Memory and time of projection and loss: the fused, chunked one of tfm against the plain formula.

    python benchmarks/loss_memory.py [--device cuda] [--tokens 25000] [--vocabulary 37000] [--d-model 512] [--write]

The plain formula holds (tokens × vocabulary) logits several times over; by default that takes about 18 GB. Forward and
backward, each case in a process of its own, set up as `tfm train` does it. Memory is what comes on top of the hidden
states, the matrix and a first small try: the most that is resident on the CPU, the most that is allocated on a GPU.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from contenders.matmul import synchronise
from machine import available_memory, process_memory
from page import describe_run, report
from torch import Tensor
from torch.nn import functional

from transformer_cli.training.hardware import tune_process
from transformer_cli.training.objective import fused_linear_cross_entropy

SMOOTHING = 0.1
COPIES = 5.2  # of the logits: what the plain formula may need


def plain(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    logits = functional.linear(hidden, weight)
    return functional.cross_entropy(logits, target, label_smoothing=SMOOTHING, reduction="sum")


def fused(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return fused_linear_cross_entropy(hidden, weight, None, target, SMOOTHING).smoothed


CASES = {"plain": plain, "fused": fused}


def measure(case: str, options: argparse.Namespace) -> dict[str, float]:
    """Loss per token, seconds and bytes of one case."""
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    tune_process(device)
    torch.manual_seed(1)
    weight = (torch.randn(options.vocabulary, options.d_model) * options.d_model**-0.5).to(device).requires_grad_()
    hidden = torch.randn(options.tokens, options.d_model).to(device).requires_grad_()
    target = torch.randint(options.vocabulary, (options.tokens,)).to(device)

    def run(rows: int) -> float:
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = CASES[case](hidden[:rows], weight, target[:rows])
        (loss / rows).backward()  # type: ignore[no-untyped-call]
        return loss.item() / rows

    run(64)
    weight.grad = hidden.grad = None
    synchronise(device)
    start = reset_peak(device)
    began = time.perf_counter()
    loss = run(options.tokens)
    synchronise(device)
    return {"loss": loss, "seconds": time.perf_counter() - began, "bytes": peak(device) - start}


def reset_peak(device: torch.device) -> int:
    """Forget the peak so far; returns the memory taken now, in bytes."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would else count as taken already
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    return process_memory("VmRSS")


def peak(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated() if device.type == "cuda" else process_memory("VmHWM")


def measure_apart(case: str, options: argparse.Namespace) -> dict[str, float] | str:
    """`measure` in a process of its own; why not, where that fails."""
    needed = COPIES * 4 * options.tokens * options.vocabulary
    available = available_memory()
    if case == "plain" and options.device == "cpu" and available < needed:
        return f"not tried: it may need {needed / 1e9:.1f} GB, {available / 1e9:.1f} GB are free"
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    done = subprocess.run(
        [sys.executable, __file__, *sys.argv[1:], "--case", case], capture_output=True, text=True, env=environment
    )
    if done.returncode:
        return f"failed: {(done.stderr.strip().splitlines() or [f'exit code {done.returncode}'])[-1][:100]}"
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--tokens", type=int, default=25_000)
    parser.add_argument("--vocabulary", type=int, default=37_000)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    parser.add_argument("--case", choices=tuple(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case, options)))
        return
    size = 4 * options.tokens * options.vocabulary
    lines = [
        describe_run(options.threads, device=options.device),
        f"{options.tokens:,} target tokens, vocabulary {options.vocabulary:,}, d_model {options.d_model}, "
        f"{options.precision}; all logits once are {size / 1e9:.1f} GB in float32.",
        "",
        "| projection and loss, forward and backward | memory on top | seconds | loss per token |",
        "| --- | --: | --: | --: |",
    ]
    for case, name in (("plain", "plain: all logits, then `cross_entropy`"), ("fused", "tfm: chunk by chunk")):
        result = measure_apart(case, options)
        if isinstance(result, str):
            lines.append(f"| {name} | {result} | | |")
            continue
        cells = f"{result['bytes'] / 1e9:.2f} GB | {result['seconds']:.2f} | {result['loss']:.5f}"
        lines.append(f"| {name} | {cells} |")
    report(lines, options.write)


if __name__ == "__main__":
    main()
