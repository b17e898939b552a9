"""What a run shows and records while it trains: a progress bar or log lines, metrics.jsonl, TensorBoard, a profile.

Everything for people goes to stderr; `session` says what happened, this module how it is shown.
"""

import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from transformer_cli.config import TrainingConfig
from transformer_cli.data.loader import UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.loop import Update
from transformer_cli.training.validation import Validation


class Recorder:
    """Shows and stores the updates and validations of one session of a run."""

    def __init__(
        self,
        run: RunFolder,
        config: TrainingConfig,
        first_step: int,
        total_steps: int | None,
        quiet: bool,
        is_main: bool = True,
    ) -> None:
        """`is_main` False: one of several processes, of which another shows and stores."""
        self.run, self.log_every, self.quiet, self._is_main = run, config.log_every, quiet or not is_main, is_main
        self._shows_bar = not self.quiet and sys.stderr.isatty()
        self._bar: tqdm[Any] | None = None
        self._first_step, self._total_steps = first_step, total_steps
        self._tensorboard = config.tensorboard and is_main
        self._board: Any = None
        self._loss, self._tokens = 0.0, 0
        self._window_began = time.monotonic()

    def say(self, line: str = "") -> None:
        """Write a line for the user, above the bar."""
        if not self.quiet:
            tqdm.write(line, file=sys.stderr)

    def start(self, hardware: str = "") -> None:
        """Show the bar and open the board, where training starts; steps to come replace old ones of theirs.

        hardware: what it runs on, which is stored where it is not what the run was on before.
        """
        if self._is_main and hardware and self.run.metrics.hardware()[-1:] != [hardware]:
            self.run.metrics.append({"step": self._first_step, "hardware": hardware})
        if self._tensorboard:
            self._board = load_tensorboard()(str(self.run.tensorboard_path), purge_step=self._first_step + 1)
        if self._shows_bar:
            self._bar = tqdm(
                total=self._total_steps, initial=self._first_step, unit="step", dynamic_ncols=True, smoothing=0.05
            )
        self._window_began = time.monotonic()

    def ends_at(self, step: int) -> None:
        """Show from now on that training ends after this step."""
        self._total_steps = step
        if self._bar is not None:
            self._bar.total = step

    def update(self, update: Update) -> None:
        """Show and store an update that was made, or skipped."""
        if update.halvings:
            self.say(f"step {update.step:,}  out of memory: continued with batches in halves")
        if update.overflow:
            return
        if not update.applied:
            self._store({"step": update.step + 1, "skipped": 1})  # the one that was tried
            self.say(f"step {update.step + 1:,}  an update was skipped: its loss or gradient was not finite")
            return
        self._loss += update.loss * update.target_tokens
        self._tokens += update.target_tokens
        speed = self._tokens / max(time.monotonic() - self._window_began, 1e-9)
        if self._bar is not None:
            self._bar.set_postfix_str(
                f"loss {self._loss / self._tokens:.3f}, lr {update.learning_rate:.2e}, {speed:,.0f} target tokens/s",
                refresh=False,
            )
            self._bar.update(1)
        if update.step % self.log_every:
            return
        event = {
            "step": update.step,
            "epoch": update.next_position.epoch,
            "loss": self._loss / self._tokens,
            "learning_rate": update.learning_rate,
            "gradient_norm": update.gradient_norm,
            "target_tokens": self._tokens,
            "target_tokens_per_second": speed,
        }
        self._store(event)
        if self._bar is None:
            of = f"/{self._total_steps:,}" if self._total_steps else ""
            self.say(
                f"step {update.step:,}{of}  loss {event['loss']:.3f}  lr {update.learning_rate:.2e}  "
                f"{speed:,.0f} target tokens/s"
            )
        self._loss, self._tokens, self._window_began = 0.0, 0, time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """Leave so much time, which went into something else than updates, out of the speeds."""
        self._window_began += seconds

    def validation(self, step: int, validation: Validation, is_best: bool, seconds: float) -> None:
        """Show and store a validation that ended."""
        self.leave_out(seconds)
        self._store(
            {
                "step": step,
                "valid_loss": validation.loss,
                "valid_perplexity": validation.perplexity,
                **({} if math.isnan(validation.source_gain) else {"valid_source_gain": validation.source_gain}),
                "valid_bleu": validation.bleu,
                "valid_chrf": validation.chrf,
            }
        )
        self.say(
            f"step {step:,}  validation: loss {validation.loss:.3f}  perplexity {validation.perplexity:.2f}"
            f"{validation.other_source()}  BLEU {validation.bleu:.2f}  chrF {validation.chrf:.2f}  ({seconds:.0f} s)"
            f"{'  best so far' if is_best else ''}"
        )
        for sample in validation.samples:
            self.say(f"    source       {sample.source}")
            self.say(f"    reference    {sample.reference}")
            self.say(f"    translation  {sample.translation}")

    def close(self) -> None:
        """Leave the terminal in order and the files complete."""
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()

    def _store(self, event: dict[str, Any]) -> None:
        if not self._is_main:
            return
        self.run.check_there()
        self.run.metrics.append(event)
        if self._board is not None:
            for key, value in event.items():
                if key != "step":
                    self._board.add_scalar(key, value, event["step"])


def load_tensorboard() -> Any:
    """Return TensorBoard's `SummaryWriter`; raise `UserError` where it is not installed. A run checks first."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError(
            "training.tensorboard: TensorBoard is not installed; pip install 'transformer-cli[tensorboard]', or set "
            "it to false"
        ) from None
    return SummaryWriter


WARM_UP, PROFILED = 5, 8  # updates
SHOWN = 15  # operations
WAITING = "wait for data"  # its name in the trace


def check_trace(path: Path) -> None:
    """Raise `UserError` where no trace can be written there."""
    if not path.name.endswith((".json", ".json.gz")):
        raise UserError(f"--profile {path}: a trace is JSON; let the name end in .json or .json.gz")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--profile {path}: cannot be written, {path.parent} is not a folder or {path.name} is one")


class Profiling:
    """Profiles some updates soon after the beginning of a session; the others pass through untouched."""

    def __init__(self, path: Path, device: torch.device, say: Callable[[str], None]) -> None:
        self.path, self.device, self.say = path, device, say

    def watch(self, updates: Iterable[UpdateBatches]) -> Iterator[UpdateBatches]:
        """Yield the same updates; the profile names the time that each is waited for."""
        source = iter(updates)
        while True:
            with record_function(WAITING):
                update_batches = next(source, None)
            if update_batches is None:
                return
            yield update_batches

    def record(self, steps: Generator[Update, None, None]) -> Generator[Update, None, None]:
        """Yield the same steps, without end; after the first, which warm up, some are profiled and reported."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])]
        with closing(steps):
            try:
                yield from islice(steps, WARM_UP)
                seconds = 0.0
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
            self._report(profiler, seconds)
            yield update
            yield from steps

    def _report(self, profiler: profile, seconds: float) -> None:
        events = profiler.key_averages()
        waited = sum(event.cpu_time_total for event in events if event.key == WAITING) / 1e6
        try:
            profiler.export_chrome_trace(str(self.path))
            where = f"trace in {self.path}, for chrome://tracing or ui.perfetto.dev"
        except OSError as error:
            where = f"the trace cannot be written: {error.strerror or error}"
        waiting = f"{waited / seconds:.1%} of it waiting for data"
        self.say(f"profile      {PROFILED} updates in {seconds:.2f} s, {waiting}; {where}")
        for line in describe_operations(events, self.device):
            self.say(f"             {line}")


def describe_operations(events: EventList, device: torch.device) -> Iterator[str]:
    """Yield a table of the costliest operations by their own time: kernels on a GPU, what torch calls on a CPU."""

    def microseconds(event: Any) -> float:
        return float(event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total)

    on_gpu = device.type == "cuda"
    counted = [event for event in events if event.key != WAITING and (not on_gpu or event.device_type.name == "CUDA")]
    total = sum(map(microseconds, counted)) or 1.0
    yield f"{'share':>6}  {'ms per update':>13}  {'calls':>7}  {'kernel' if on_gpu else 'operation'}"
    for event in sorted(counted, key=microseconds, reverse=True)[:SHOWN]:
        own = microseconds(event)
        yield f"{own / total:6.1%}  {own / 1000 / PROFILED:13.2f}  {event.count:7,}  {event.key[:70]}"
