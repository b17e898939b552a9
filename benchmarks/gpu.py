"""One GPU, everything in one go: the paper's base model, training at about 25,000 + 25,000 tokens per update, decoding.

    python benchmarks/gpu.py --out DIR              # 3 minutes on an H200 but for most of compiling, else up to 8
    python benchmarks/gpu.py --device cpu --small --out DIR   # the same code in under a minute

Measures the bf16 matmul peak; which attention kernels run and how fast each would be; tfm's own training step, eager
and compiled, with lengths padded to multiples of 1 and 8, and torch.nn.Transformer for comparison: tokens per second
(padding not counted), share of the peak, time of 100,000 updates, graphs compiled, places that wait for the GPU,
memory, kernels; how long real loading is waited for; and decoding in bf16, fp16 and fp32, against Hugging Face's
`generate`. A part that fails is named and the next begins; DIR/gpu.json grows with each.

Needs torch, numpy, pyarrow, pydantic, pyyaml, safetensors, sentencepiece and tqdm; transformers, or those rows stay
empty. A machine without an index gets what it lacks as wheels (pydantic, pydantic-core, annotated-types,
typing-inspection): `pip download -d wheels NAME==VERSION` elsewhere, `pip install --no-index --no-deps --target site
wheels/*.whl` there, and PYTHONPATH=site.
"""

import argparse
import json
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from contenders.matmul import matmul_peak
from machine import describe_machine
from on_gpu.attention import attention
from on_gpu.decoding import COMPILED, compiled, decoding
from on_gpu.loading import loading
from on_gpu.training import measure, plain, tfm
from on_gpu.work import Work

from transformer_cli.training.hardware import tune_process


class Benchmark:
    """The parts' results, and the time that is left for the others."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.began = time.monotonic()
        self.path = Path(options.out) / "gpu.json"
        self.seconds = options.seconds or (40 if options.small else 440)
        self.results: dict[str, Any] = {}

    def run(self, name: str, part: Callable[[], Any], needs_seconds: float = 0.0) -> None:
        """Do one part, show and keep what it gives; a failure is a result too."""
        left = self.seconds - (time.monotonic() - self.began)
        try:
            enough = not needs_seconds or left > needs_seconds
            result = part() if enough else f"not tried: {left:.0f} s are left"
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"[:2000], "where": traceback.format_exc(limit=-3)}
        self.results[name] = result
        print(f"\n== {name} ({time.monotonic() - self.began:.0f} s)\n{show(result)}", flush=True)
        self.path.write_text(json.dumps(self.results, indent=1, ensure_ascii=False), encoding="utf-8")


def peak(work: Work) -> dict[str, float]:
    """The best matrix product in bf16."""
    work.peaks.append(matmul_peak(work.device, torch.bfloat16, repeats=1 if work.small else 5))
    return {"TFLOP/s in bf16": round(work.peaks[-1] / 1e12, 3)}


def show(result: Any, indent: str = "  ") -> str:
    """A result as indented lines."""
    if not isinstance(result, dict):
        return f"{indent}{result}"
    lines = []
    for key, value in result.items():
        nested = isinstance(value, dict) and value
        lines.append(f"{indent}{key}:" if nested else f"{indent}{key}: {value}")
        if nested:
            lines.append(show(value, indent + "  "))
    return "\n".join(lines)


def summarise(work: Work, results: dict[str, Any]) -> dict[str, Any]:
    """The figures that matter, in one place."""
    speeds = {
        name.removeprefix("training: "): result["target tokens/s"]
        for name, result in results.items()
        if isinstance(result, dict) and "target tokens/s" in result
    }
    others = [speed for name, speed in speeds.items() if name.startswith("torch")]
    best = max((name for name in speeds if name.startswith("tfm")), key=lambda name: speeds[name])
    chosen = results[f"training: {best}"]
    return {
        "fastest": best,
        **{key: chosen[key] for key in chosen if "share" in key or "hours" in key or key == "target tokens/s"},
        "÷ the fastest torch.nn.Transformer": round(speeds[best] / max(others), 3) if others else "not measured",
        **{
            f"decoding, {case}": result["tfm ÷ Hugging Face, fastest of each"]
            for case, result in results["decoding"].items()
            if "tfm ÷ Hugging Face, fastest of each" in result
        },
        "bf16 peak, TFLOP/s": round(max(work.peaks) / 1e12, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the program itself")
    parser.add_argument("--seconds", type=float, help="begin nothing that may end later (default 440, small 40)")
    parser.add_argument("--out", required=True, help="folder for gpu.json")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    tune_process(torch.device(options.device))
    benchmark, work = Benchmark(options), Work(options.device, options.small)
    count = len(work.batches)
    print(f"{describe_machine(options.device)}; torch {torch.__version__}; {count} batches of about", end=" ")
    print(f"{work.target_tokens // count:,} target tokens (`batch_tokens` {work.batch_tokens:,})")
    benchmark.run("matmul peak", lambda: peak(work))
    benchmark.run("training: tfm, pad_to 1", lambda: measure(work, lambda: tfm(work, 1, "")))
    benchmark.run("training: tfm, pad_to 8", lambda: measure(work, lambda: tfm(work, 8, "")))
    benchmark.run("training: torch.nn.Transformer", lambda: measure(work, lambda: plain(work, "")))
    benchmark.run("attention", lambda: attention(work))
    benchmark.run("loading", lambda: loading(work))
    benchmark.run("decoding", lambda: decoding(work))
    longest = 10 if options.small else 100  # seconds to compile
    for what, seconds in (("layers", longest), ("model", 2 * longest)):
        name = f"training: tfm, pad_to 8, {what} compiled"
        benchmark.run(name, partial(measure, work, partial(tfm, work, 8, what)), seconds)
    name = "training: torch.nn.Transformer, compiled"
    benchmark.run(name, lambda: measure(work, lambda: plain(work, "model")), 2 * longest)
    benchmark.run(f"decoding: {COMPILED}", lambda: compiled(work), 1.5 * longest)
    benchmark.run("matmul peak again", lambda: peak(work))
    benchmark.run("summary", lambda: summarise(work, benchmark.results))


if __name__ == "__main__":
    main()
