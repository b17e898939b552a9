"""Where the time of training goes: a trace of a few updates, and a table of what they spent it on.

`tfm train --profile FILE` has `session` lead its batches and updates through here.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile, record_function

from transformer_cli.data.loader import UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.training.loop import Update

WARM_UP, PROFILED = 5, 8  # updates
SHOWN = 15  # operations
WAITING = "wait for data"  # its name in the trace


def check_trace(path: Path) -> None:
    """Raise `UserError` where no trace can be written there."""
    if not path.name.endswith((".json", ".json.gz")):
        raise UserError(f"--profile {path}: a trace is JSON; let the name end in .json or .json.gz")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--profile {path}: cannot be written, {path.parent} is no folder or {path.name} is one")


class Profiling:
    """Profiles some updates soon after the beginning of a session; the others pass through untouched."""

    def __init__(self, path: Path, device: torch.device, say: Callable[[str], None]) -> None:
        self.path, self.device, self.say = path, device, say
        self._waited = 0.0  # seconds, over all updates so far

    def watch(self, updates: Iterable[UpdateBatches]) -> Iterator[UpdateBatches]:
        """The same updates; how long each was waited for is measured."""
        source = iter(updates)
        while True:
            began = time.perf_counter()
            with record_function(WAITING):
                share = next(source, None)
            self._waited += time.perf_counter() - began
            if share is None:
                return
            yield share

    def record(self, steps: Generator[Update, None, None]) -> Generator[Update, None, None]:
        """The same steps, without end; after the first, in which everything warms up, some are profiled and told of."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
        with closing(steps):
            try:
                yield from islice(steps, WARM_UP)
                waited, seconds = self._waited, 0.0
                with profile(activities=activities) as profiler:
                    for left in reversed(range(PROFILED)):
                        began = time.perf_counter()
                        update = next(steps)
                        seconds += time.perf_counter() - began
                        if left:  # the last one waits for the report: it may be the end of training
                            yield update
            except GeneratorExit:
                self.say(f"profile      none: it takes {WARM_UP + PROFILED} updates, and training ended before")
                raise
            self._report(profiler, seconds, self._waited - waited)
            yield update
            yield from steps

    def _report(self, profiler: profile, seconds: float, waited: float) -> None:
        try:
            profiler.export_chrome_trace(str(self.path))
            where = f"trace in {self.path}, for chrome://tracing or ui.perfetto.dev"
        except OSError as error:
            where = f"the trace cannot be written: {error.strerror or error}"
        share = f"{waited / seconds:.1%} of it waiting for data"
        self.say(f"profile      {PROFILED} updates in {seconds:.2f} s, {share}; {where}")
        for line in describe_operations(profiler.key_averages(), self.device):
            self.say(f"             {line}")


def describe_operations(events: EventList, device: torch.device) -> Iterator[str]:
    """A table of the costliest operations by their own time: kernels on a GPU, what torch calls on a CPU."""

    def microseconds(event: Any) -> float:
        return float(event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total)

    on_gpu = device.type == "cuda"
    counted = [event for event in events if event.key != WAITING and (not on_gpu or event.device_type.name == "CUDA")]
    total = sum(map(microseconds, counted)) or 1.0
    yield f"{'share':>6}  {'ms an update':>12}  {'calls':>7}  {'kernel' if on_gpu else 'operation'}"
    for event in sorted(counted, key=microseconds, reverse=True)[:SHOWN]:
        own = microseconds(event)
        yield f"{own / total:6.1%}  {own / 1000 / PROFILED:12.2f}  {event.count:7,}  {event.key[:70]}"
