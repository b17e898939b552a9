"""Training on one GPU, everything in one go: the paper's base model at about 25,000 + 25,000 tokens an update.

    python benchmarks/gpu.py --out DIR              # under 8 minutes on an H200
    python benchmarks/gpu.py --device cpu --small --out DIR   # the same code in under a minute

Measures the bf16 matmul peak; which attention kernels run and how fast each would be; tfm's own training step, eager
and compiled, with lengths padded to multiples of 1 and 8, and torch.nn.Transformer for comparison: tokens a second
(padding not counted), share of the peak, time of 100,000 updates, graphs compiled, places that wait for the GPU,
memory, kernels; and how long real loading is waited for. A part that fails is named and the next goes on; DIR/gpu.json
grows with each.

Needs torch, numpy, pyarrow, pydantic, pyyaml, safetensors, sentencepiece and tqdm. A machine without an index gets what
it lacks as wheels (pydantic, pydantic-core, annotated-types, typing-inspection): `pip download -d wheels NAME==VERSION`
elsewhere, `pip install --no-index --no-deps --target site wheels/*.whl` there, and PYTHONPATH=site.
"""

import argparse
import json
import statistics
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from batches import MULTI30K, WMT, PaddedBatch, generate_sentences, pad
from contenders.plain import PlainTransformer
from contenders.tfm import model_config
from loading import Waited
from machine import describe_machine, matmul_peak, synchronise
from shape import Shape, training_flops
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile
from training import make_batches

from transformer_cli.config import Config, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import encode_corpus
from transformer_cli.data.loader import START, UpdateBatches, load_updates
from transformer_cli.model.build import build_model, count_parameters
from transformer_cli.text.build import build_codecs
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import Precision
from transformer_cli.training.tuning import compile_layers, tune_process

BASE = Shape(layers=6, d_model=512, d_ff=2048, heads=8, vocabulary=37_000)
SMALL = Shape(layers=1, d_model=32, d_ff=64, heads=2, vocabulary=500)
PAPER_STEPS = 100_000
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
ATTENTION = ("flash", "fmha", "attention", "attn", "sdpa", "mha")  # in the names of its kernels
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")

Step = Callable[[], object]


class Benchmark:
    """The parts, what they share, and their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.began = time.monotonic()
        self.options, self.device = options, torch.device(options.device)
        self.shape = SMALL if options.small else BASE
        self.updates = 4 if options.small else 40  # measured, in 4 rounds
        self.seconds = options.seconds or (55 if options.small else 440)
        self.results: dict[str, Any] = {}
        lengths, tokens = (MULTI30K, 1000) if options.small else (WMT, 25_000)
        pairs = generate_sentences(2_000 if options.small else 60_000, self.shape.vocabulary, lengths)
        self.pairs = pairs
        self.batches, self.batch_tokens = make_batches(pairs, tokens, self.updates)
        self.target_tokens = sum(len(target) + 1 for batch in self.batches for _, target in batch)
        self.flops = training_flops(self.shape, [(len(s) + 1, len(t) + 1) for batch in self.batches for s, t in batch])

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
        path = Path(self.options.out) / "gpu.json"
        path.write_text(json.dumps(self.results, indent=1, ensure_ascii=False), encoding="utf-8")

    def peak(self) -> dict[str, float]:
        self.results.setdefault("peaks", []).append(matmul_peak(self.device, torch.bfloat16, repeats=5))
        return {"TFLOP/s in bf16": round(self.results["peaks"][-1] / 1e12, 3)}

    # --- training -------------------------------------------------------------------------------------------------

    def tfm(self, pad_to: int, compiled: str) -> tuple[Step, nn.Module]:
        """tfm's own loop over batches in pinned memory. `compiled`: nothing, the layers (so does
        `training.compile`), or the model as a whole."""
        torch.manual_seed(1)
        model = build_model(model_config(self.shape), self.shape.vocabulary, self.shape.vocabulary).to(self.device)
        backend = "aot_eager" if self.options.small else "inductor"
        if compiled == "layers":
            compile_layers(model, backend)
        elif compiled == "model":
            model.compile(dynamic=True, backend=backend)
        objective = TranslationObjective(model, self.shape.label_smoothing)
        config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
        prepared = [UpdateBatches(START, [Batch.from_ids(pairs, pad_to)]) for pairs in self.batches]
        if self.device.type == "cuda":
            prepared = [update.pin_memory() for update in prepared]
        optimizer = build_optimizer(objective, config)
        updates = train_steps(objective, optimizer, Precision("bf16", self.device), config, cycle(prepared))
        return lambda: next(updates), model

    def plain(self, compiled: str) -> tuple[Step, nn.Module]:
        """torch.nn.Transformer in the loop of `contenders/plain.py`, its batches on the device already."""
        torch.manual_seed(1)
        model = PlainTransformer(self.shape).to(self.device).train()
        if compiled:
            model.compile(dynamic=True, backend="aot_eager" if self.options.small else "inductor")
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
        batches = cycle([move(pad(pairs), self.device) for pairs in self.batches])

        def step() -> None:
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = model(next(batches))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step, model

    def measure(self, build: Callable[[], tuple[Step, nn.Module]]) -> dict[str, Any]:
        """All that is to be known of one way to train."""
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step, model = build()
        began = time.monotonic()
        step()
        synchronise(self.device)
        first, graphs_first = time.monotonic() - began, graphs()
        for _ in range(len(self.batches) - 1):  # every shape once
            step()
        graphs_warm = graphs()
        seconds = self.time_rounds(step)
        median = statistics.median(seconds)
        speed = self.target_tokens / len(self.batches) / median
        peak = max(self.results["peaks"])
        result = {
            "target tokens/s": round(speed),
            "range": [round(self.target_tokens / len(self.batches) / each) for each in (max(seconds), min(seconds))],
            "share of the bf16 peak": round(speed * self.flops / self.target_tokens / peak, 4),
            "seconds an update": round(median, 5),
            f"hours for {PAPER_STEPS:,} updates": round(median * PAPER_STEPS / 3600, 3),
            "parameters": count_parameters(model),
            "first update, s": round(first, 2),
            "all shapes once, s": round(time.monotonic() - began - sum(seconds) * len(self.batches) / len(seconds), 2),
            "graphs after the first update": graphs_first,
            "graphs after all shapes": graphs_warm,
            "graphs at the end": graphs(),
            "graph breaks": dict(torch._dynamo.utils.counters["graph_break"]),
        }
        if self.device.type == "cuda":
            result["peak memory, GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
            result["waits for the GPU"] = find_waits(step)
        result["kernels"] = profile_kernels(step, self.device)
        return result

    def time_rounds(self, step: Step) -> list[float]:
        """Seconds an update, of each round; a round ends when the GPU has."""
        count = len(self.batches) // 4
        seconds = []
        for _ in range(4):
            synchronise(self.device)
            began = time.perf_counter()
            for _ in range(count):
                step()
            synchronise(self.device)
            seconds.append((time.perf_counter() - began) / count)
        return seconds

    # --- attention ------------------------------------------------------------------------------------------------

    def attention(self) -> dict[str, Any]:
        """Every kernel on the three attentions of a batch, forward and backward; which one runs by itself."""
        results: dict[str, Any] = {}
        for length in (29, 32, 64):
            rows = (256 if self.options.small else 25_600) // length
            for kind in ("encoder", "causal", "cross"):
                results[f"{kind}, length {length}"] = self.attend(kind, rows, length)
        return results

    def attend(self, kind: str, rows: int, length: int) -> dict[str, Any]:
        heads, head_dim = self.shape.heads, self.shape.d_model // self.shape.heads

        def states(positions: int) -> Tensor:  # as the model has them: heads are split off without a copy
            flat = torch.randn(rows, positions, heads, head_dim, device=self.device, dtype=torch.bfloat16)
            return flat.transpose(1, 2).requires_grad_()

        query, key, value = states(length), *(states(length + 3 if kind == "cross" else length) for _ in range(2))
        mask = None
        if kind != "causal":
            mask = torch.ones(rows, 1, 1, key.size(2), dtype=torch.bool, device=self.device)
            mask[::2, ..., -2:] = False

        def step() -> None:
            mixed = scaled_dot_product_attention(query, key, value, mask, is_causal=kind == "causal")
            mixed.backward(mixed.detach())
            query.grad = key.grad = value.grad = None

        result: dict[str, Any] = {"by itself": milliseconds(step, self.device)}
        result["kernels"] = list(profile_kernels(step, self.device)["by time"])[:6]
        for name, backend in BACKENDS.items():
            try:
                with sdpa_kernel(backend), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they say why a kernel does not take this
                    result[name] = milliseconds(step, self.device)
            except RuntimeError as error:
                result[name] = f"refused: {str(error).splitlines()[0][:60]}"
        return result

    # --- loading --------------------------------------------------------------------------------------------------

    def loading(self) -> dict[str, Any]:
        """Real loading from an encoded corpus with 2 workers and pinned memory, beside the training step."""
        with tempfile.TemporaryDirectory(prefix="tfm-gpu-") as name:
            folder = Path(name)
            paths = [folder / "source", folder / "target"]
            for side, path in enumerate(paths):
                path.write_text("".join(" ".join(f"w{token}" for token in pair[side]) + "\n" for pair in self.pairs))
            files = {"source": str(paths[0]), "target": str(paths[1])}
            config = Config.model_validate(
                {
                    "data": {"source_language": "de", "target_language": "en", "train": files, "valid": files},
                    "vocabulary": {"tokenizer": "whitespace", "size": self.shape.vocabulary},
                }
            )
            text = TextCorpus(*map(str, paths))
            codecs, _ = build_codecs(config, text.pairs)
            corpus = encode_corpus(text, codecs, max_length=256, keep_text=False, cache_folder=folder)
            return {f"{workers} workers": self.wait(corpus, workers) for workers in (0, 2)}

    def wait(self, corpus: Any, workers: int) -> dict[str, Any]:
        loaded = load_updates(
            corpus,
            batch_tokens=self.batch_tokens,
            seed=1,
            workers=workers,
            pin=self.device.type == "cuda",
            pad_to=8,
        )
        waited = Waited(loaded)
        torch.manual_seed(1)
        model = build_model(model_config(self.shape), self.shape.vocabulary, self.shape.vocabulary).to(self.device)
        objective = TranslationObjective(model, self.shape.label_smoothing)
        config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
        optimizer = build_optimizer(objective, config)
        steps = train_steps(objective, optimizer, Precision("bf16", self.device), config, waited)
        for _ in range(5):
            next(steps)
        began = time.perf_counter()
        for _ in range(self.updates):
            next(steps)
        seconds = time.perf_counter() - began
        steps.close()
        waits = waited.seconds[5:]
        return {
            "share of the time": round(sum(waits) / seconds, 4),
            "median, ms": round(1000 * statistics.median(waits), 3),
            "longest, ms": round(1000 * max(waits), 3),
            "an update, ms": round(1000 * seconds / self.updates, 2),
        }


def move(batch: PaddedBatch, device: torch.device) -> PaddedBatch:
    return PaddedBatch(*(part.to(device) if isinstance(part, Tensor) else part for part in batch))


def graphs() -> int:
    """How many graphs were compiled since the counters were cleared."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def milliseconds(step: Step, device: torch.device) -> float:
    """The best of a few rounds of one step."""
    count, rounds = (20, 5) if device.type == "cuda" else (1, 2)
    step()
    best = float("inf")
    for _ in range(rounds):
        synchronise(device)
        began = time.perf_counter()
        for _ in range(count):
            step()
        synchronise(device)
        best = min(best, 1000 * (time.perf_counter() - began) / count)
    return round(best, 4)


def find_waits(step: Step) -> dict[str, int]:
    """Lines at which the host waits for the GPU in two updates, and how often each; the CUDA driver tells."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    where = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in caught if "synchron" in str(each.message))
    return dict(where)


def profile_kernels(step: Step, device: torch.device) -> dict[str, Any]:
    """Where the device's time goes in two steps: kernels by time, those of attention, waits, and how busy it was."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    synchronise(device)
    began = time.perf_counter()
    with profile(activities=activities) as profiled:
        step()
        step()
        synchronise(device)
    wall = time.perf_counter() - began
    events = profiled.key_averages()

    def microseconds(event: Any) -> float:
        return float(event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total)

    kernels = [event for event in events if device.type == "cpu" or event.device_type.name == "CUDA"]
    ranked = sorted(kernels, key=microseconds, reverse=True)
    total = sum(map(microseconds, kernels)) or 1.0
    return {
        "busy": round(total / 1e6 / wall, 3),  # the profiler itself slows the host
        "by time": {event.key[:90]: round(microseconds(event) / total, 4) for event in ranked[:12]},
        "attention": {
            event.key[:90]: event.count for event in kernels if any(word in event.key.lower() for word in ATTENTION)
        },
        "waits": {event.key: event.count for event in events if event.key in WAITS},
    }


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


def summarise(results: dict[str, Any]) -> dict[str, Any]:
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
        "bf16 peak, TFLOP/s": round(max(results["peaks"]) / 1e12, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the program itself")
    parser.add_argument("--seconds", type=float, help="begin nothing that may end later (default 440, small 55)")
    parser.add_argument("--out", required=True, help="folder for gpu.json")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    tune_process(torch.device(options.device))
    benchmark = Benchmark(options)
    count = len(benchmark.batches)
    print(f"{describe_machine(options.device)}; torch {torch.__version__}; {count} batches of about", end=" ")
    print(f"{benchmark.target_tokens // count:,} target tokens (`batch_tokens` {benchmark.batch_tokens:,})")
    benchmark.run("matmul peak", benchmark.peak)
    benchmark.run("training: tfm, pad_to 1", lambda: benchmark.measure(lambda: benchmark.tfm(1, "")))
    benchmark.run("training: tfm, pad_to 8", lambda: benchmark.measure(lambda: benchmark.tfm(8, "")))
    benchmark.run("training: torch.nn.Transformer", lambda: benchmark.measure(lambda: benchmark.plain("")))
    benchmark.run("attention", benchmark.attention)
    benchmark.run("loading", benchmark.loading)
    longest = 10 if options.small else 100  # seconds to compile
    for what, seconds in (("layers", longest), ("model", 2 * longest)):
        name = f"training: tfm, pad_to 8, {what} compiled"
        benchmark.run(name, lambda what=what: benchmark.measure(lambda: benchmark.tfm(8, what)), seconds)
    name = "training: torch.nn.Transformer, compiled"
    benchmark.run(name, lambda: benchmark.measure(lambda: benchmark.plain("model")), 2 * longest)
    benchmark.run("matmul peak again", benchmark.peak)
    benchmark.run("summary", lambda: summarise(benchmark.results))


if __name__ == "__main__":
    main()
