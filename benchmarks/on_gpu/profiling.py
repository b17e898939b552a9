"""How long a step takes, where it waits for the GPU, and which kernels it runs."""

import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contenders.matmul import synchronise
from torch.profiler import ProfilerActivity, profile

ATTENTION = ("flash", "fmha", "attention", "attn", "sdpa", "mha")  # in the names of its kernels
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")

Step = Callable[[], object]


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
    waits = [each for each in caught if "called a synchronizing" in str(each.message)]
    where = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)
    return dict(where)


def profile_kernels(step: Step, device: torch.device) -> dict[str, Any]:
    """Where the device's time goes in two steps: kernels by time, those of attention, waits, and how busy it was."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    synchronise(device)
    began = time.perf_counter()
    with profile(activities=activities, acc_events=True) as profiled:
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
        "ms a step": round(total / 2000, 3),
        "busy": round(total / 1e6 / wall, 3),  # the profiler itself slows the host
        "by time": {event.key[:90]: round(microseconds(event) / total, 4) for event in ranked[:12]},
        "attention": {
            event.key[:90]: event.count for event in kernels if any(word in event.key.lower() for word in ATTENTION)
        },
        "waits": {
            event.key: f"{event.count}, {event.self_cpu_time_total / 1000:.1f} ms"
            for event in events
            if event.key in WAITS
        },
    }
