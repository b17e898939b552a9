"""Attention on a CPU, forward and backward: its fused kernel against plain products, over lengths and precisions.

    python benchmarks/attention.py [--threads 2] [--rounds 9]

This is where `SHORT` and `HALF` in `transformer_cli/model/attention.py` come from. A batch has about 1,500
positions; 4 heads of 64; the padding mask of the encoder. Interleaved; prints the median milliseconds and the ratio.
"""

import argparse
import statistics
import time

import torch

from transformer_cli.model import attention
from transformer_cli.training.tuning import keep_large_buffers

attention.HALF |= {torch.float32}  # to measure it there too
POSITIONS, HEADS, HEAD_DIM = 1536, 4, 64


def milliseconds(layer: attention.MultiHeadAttention, states: torch.Tensor, mask: torch.Tensor, short: int) -> float:
    attention.SHORT = short
    began = time.perf_counter()
    with torch.autocast("cpu", dtype=states.dtype, enabled=states.dtype != torch.float32):
        mixed, _ = layer(states, layer.keys_values(states), mask)
    mixed.sum().backward()
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_large_buffers()
    print(f"torch {torch.__version__}, {options.threads} threads; projections included")
    print("precision  keys  fused ms  plain ms  fused ÷ plain")
    for dtype in (torch.float32, torch.bfloat16):
        for length in (16, 32, 64, 128, 256, 512):
            torch.manual_seed(1)
            layer = attention.MultiHeadAttention(HEADS * HEAD_DIM, HEADS, HEAD_DIM, 0.0, bias=True)
            states = torch.randn(POSITIONS // length, length, HEADS * HEAD_DIM, dtype=dtype, requires_grad=True)
            mask = torch.ones(len(states), 1, 1, length, dtype=torch.bool)
            mask[::2, ..., -2:] = False
            times: dict[int, list[float]] = {0: [], length: []}
            for number in range(options.rounds + 2):
                for short in times:
                    spent = milliseconds(layer, states, mask, short)
                    if number >= 2:  # the first rounds warm up
                        times[short].append(spent)
            fused, plain = (statistics.median(values) for values in times.values())
            name = str(dtype).removeprefix("torch.")
            print(f"{name:9} {length:5} {fused:9.2f} {plain:9.2f} {fused / plain:14.2f}")


if __name__ == "__main__":
    main()
