"""Attention on a CPU, forward and backward: its fused kernel against plain products, over lengths and precisions.

    python benchmarks/attention.py [--threads 2] [--rounds 9] [--write]

This is where `SHORT` in `transformer_cli/model/attention.py` comes from. A batch has about 1,500 positions; 4 heads of
64, projections included; the padding mask of the encoder. The two take turns; medians.
"""

import argparse
import statistics
import sys
import time

import torch
from page import describe_run, report

from transformer_cli.model import attention
from transformer_cli.training.hardware import choose_precision, tune_process

POSITIONS, HEADS, HEAD_DIM = 1536, 4, 64


def milliseconds(layer: attention.MultiHeadAttention, states: torch.Tensor, mask: torch.Tensor, short: int) -> float:
    attention.SHORT = short
    began = time.perf_counter()
    with torch.autocast("cpu", dtype=states.dtype, enabled=states.dtype != torch.float32):
        mixed, _ = layer(states, layer.keys_values(states), mask)
    mixed.sum().backward()
    return 1000 * (time.perf_counter() - began)


def compare(dtype: torch.dtype, length: int, rounds: int) -> tuple[float, float]:
    """Median milliseconds of the fused kernel and of plain products."""
    torch.manual_seed(1)
    layer = attention.MultiHeadAttention(HEADS * HEAD_DIM, HEADS, HEAD_DIM, HEAD_DIM, 0.0, bias=True)
    states = torch.randn(POSITIONS // length, length, HEADS * HEAD_DIM, dtype=dtype, requires_grad=True)
    mask = torch.ones(len(states), 1, 1, length, dtype=torch.bool)
    mask[::2, ..., -2:] = False
    times: dict[int, list[float]] = {0: [], length: []}
    for number in range(rounds + 2):
        for short in times:
            spent = milliseconds(layer, states, mask, short)
            if number >= 2:  # the first rounds warm up
                times[short].append(spent)
    return statistics.median(times[0]), statistics.median(times[length])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tune_process(torch.device("cpu"))
    lines = [
        describe_run(options.threads),
        f"{POSITIONS:,} positions, {HEADS} heads of {HEAD_DIM}, projections included; medians of {options.rounds}.",
        "",
        "| precision | keys | fused, ms | plain, ms | fused ÷ plain |",
        "| --- | --: | --: | --: | --: |",
    ]
    native = choose_precision("auto", torch.device("cpu")) == "bf16"
    if not native:
        print("left out: bfloat16; this CPU does not compute in it itself", file=sys.stderr)
    for dtype in (torch.float32, torch.bfloat16) if native else (torch.float32,):
        for length in (16, 32, 64, 128, 256, 512):
            fused, plain = compare(dtype, length, options.rounds)
            name = str(dtype).removeprefix("torch.")
            lines.append(f"| {name} | {length} | {fused:.2f} | {plain:.2f} | {fused / plain:.2f} |")
    report(lines, options.write)


if __name__ == "__main__":
    main()
