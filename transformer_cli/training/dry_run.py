"""`tfm train --dry-run`: all that comes before a run's first update, and a few updates that are then thrown away.

`cli.train` prints the lines. Nothing is written but the cache of encoded corpora; no vocabulary is left behind.
"""

import ctypes
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed import is_torchelastic_launched

from transformer_cli.config import Config, TrainingConfig
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import START, UpdateBatches
from transformer_cli.data.size import measure_corpus
from transformer_cli.decoding.devices import choose_device
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.metrics import METRICS, Series, read_metrics
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import PAD
from transformer_cli.training.hardware import tuned_process
from transformer_cli.training.loop import probe_memory, train_steps
from transformer_cli.training.run import check_beforehand, find_run_state, make_data, make_learner
from transformer_cli.training.saving import Learner, Progress
from transformer_cli.training.schedules import learning_rate, r_drop_begins
from transformer_cli.training.session import LEAST_GAIN
from transformer_cli.training.start import resolve_split
from transformer_cli.training.training_data import TrainingData, describe_training

TIMED = 10  # updates at most, after one that is not timed
TIMED_SECONDS = 20.0  # after which no other update begins
SHOWN_PAIRS = 3
SHOWN_TOKENS = 60  # of a side of a pair; the text itself is shown whole


class Measured(NamedTuple):
    """A corpus that was trained on with what `preset: auto` took at that time (docs/results.md)."""

    pairs: int
    length: int  # target tokens of a pair, on average
    bleu: float  # on a test set of its own kind
    what: str


_CAPTIONS = "captions of Multi30k (short, clean and similar; German to English)"
_HELP = "paragraphs of LibreOffice's help (long, some faulty, half of them repeated; Spanish to Basque)"
MEASURED = (
    Measured(1_000, 18, 25.82, _CAPTIONS),
    Measured(5_000, 15, 36.83, _CAPTIONS),
    Measured(10_000, 15, 40.42, f"{_CAPTIONS} in at most 4,800 steps"),
    Measured(29_000, 15, 44.01, _CAPTIONS),
    Measured(23_000, 32, 23.51, _HELP),  # without the 57 lines of the test that are in the training text
)
MANY, LONG = 2.0, 1.4  # times as many pairs, or as long ones, from which on a corpus is not like another
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def dry_run(
    config: Config,
    path: str | Path,
    *,
    resume: bool | None = None,
    fresh: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Iterator[str]:
    """Yield lines on what `run.train` with the same arguments would begin with, as they become known.

    quiet: no progress on stderr. Raises `UserError` as training would.
    """
    if is_torchelastic_launched():
        raise UserError("--dry-run: takes one process only; give the command without torchrun")
    run, torch_device = RunFolder(path), choose_device(device)
    with tuned_process(torch_device):
        check_beforehand(run, config, fresh)
        asked = config
        config, preset = resolve_preset(asked, partial(measure_corpus, progress=not quiet))
        yield from preset
        resuming = run.exists() and not fresh
        if resuming:
            yield from _use_of_source(run)
        config, sentences = resolve_split(config, run if resuming else None)
        state = find_run_state(run, asked, config, resuming, resume)
        if state.finished:
            yield f"{run.path}: this run is finished ({state.finished}); nothing is left to do"
            return
        data = make_data(state, quiet)
        learner, notes = make_learner(state, data, torch_device, quiet)
        yield from [*sentences, *data.notes, *state.notes, *notes]
        yield from describe_training(data, learner.model, learner.progress.decay_from)
        if asked.model.preset == "auto":
            length = data.plan.target_tokens / len(data.plan.order)
            yield from _expect(len(data.train), length, as_chosen=len(preset) == 1)
        yield _describe_parts(learner.model)
        yield _describe_schedule(data, learner.progress)
        step = learner.progress.step
        where = f"would continue after step {step:,}" if step else "would start"
        yield f"run          {run.path}: {where}; nothing was written there"
        yield from _describe_first_batch(data)
        yield _measure_memory(data, learner)
        yield from _measure_time(data, learner)


def _expect(pairs: int, length: float, as_chosen: bool) -> Iterator[str]:
    """Yield what was measured on the corpus that is most like one of so many pairs, and how sure that makes us.

    length: target tokens of a pair, on average. How long sentences are says more than how many there are. as_chosen:
    the config sets nothing that the preset would.
    """

    def unlike(other: Measured) -> float:
        return abs(math.log(pairs / other.pairs)) + 3 * abs(math.log(length / other.length))

    nearest = min(MEASURED, key=unlike)
    ratios = (pairs / nearest.pairs, MANY, "many"), (length / nearest.length, LONG, "long")
    apart = [f"{ratio:.2g} times as {kind}" for ratio, most, kind in ratios if not 1 / most <= ratio <= most]
    sure = (
        f"a rough guess for yours, which are {' and '.join(apart)}" if apart else "yours are about as many and as long"
    )
    yield (
        f"measured     {nearest.pairs:,} {nearest.what} led to a BLEU of {nearest.bleu} with what model.preset: auto "
        "took when it was measured (docs/results.md)"
    )
    own = "" if as_chosen else "; so can the keys that your config sets itself"
    yield f"             {sure}; another subject or language can change it a lot{own}"


def _use_of_source(run: RunFolder) -> Iterator[str]:
    """Yield how much the source is of use to the run so far, where it was validated."""
    gains = read_metrics(run.path)["valid_source_gain"] if (run.path / METRICS).exists() else Series([], [])
    if not gains.values or math.isnan(gains.values[-1]):
        return
    verdict = (
        f"less than {LEAST_GAIN:g}: what it writes hardly follows from the source yet "
        '(docs/training.md, "When nothing is learned from the source")'
        if gains.values[-1] < LEAST_GAIN
        else "it follows its source"
    )
    yield (
        f"source       at step {gains.steps[-1]:,} a sentence's own source predicts its tokens by "
        f"{gains.values[-1]:.2f} nats better than another's; {verdict}"
    )


def _describe_parts(model: Transformer) -> str:
    """Return the parameters of each part; what is shared is counted where it stands first."""
    seen: set[int] = set()
    counts = []
    for name, part in model.named_children():
        own = [parameter for parameter in part.parameters() if id(parameter) not in seen]
        seen.update(map(id, own))
        count = f"{sum(parameter.numel() for parameter in own):,}" if own else "shared"
        frozen = own and not any(parameter.requires_grad for parameter in own)
        counts.append(f"{name.replace('_', ' ')} {count}" + " (frozen)" * bool(frozen))
    return f"parameters   {', '.join(counts)}"


def _describe_schedule(data: TrainingData, progress: Progress) -> str:
    training, d_model, last = data.config.training, data.config.model.d_model, data.last_step(progress.decay_from)
    steps = sorted({1, min(last, max(1, training.warmup_steps)), max(1, last // 2), last})
    rate = partial(learning_rate, training, d_model, decay_from=progress.decay_from)
    rates = ", ".join(f"{rate(step):.2e} at step {step:,}" for step in steps)
    limit = "at most " * _may_end_before(training, progress)
    return f"schedule     {limit}{last:,} steps are {last / data.updates_an_epoch:,.1f} epochs; learning rate {rates}"


def _may_end_before(training: TrainingConfig, progress: Progress) -> bool:
    """Return whether patience may still end training; with a rate that falls since it was over, the end is fixed."""
    return training.patience is not None and progress.decay_from is None


# --- the first batch ----------------------------------------------------------------------------------------------


def _describe_first_batch(data: TrainingData) -> Iterator[str]:
    """Yield its shape, and the pairs with the least, the middle and the most padding, decoded back to text."""
    batch = next(data.updates()).batches[0]
    sentences, source, target = *batch.source.shape, batch.target_output.size(1)
    yield f"first batch  {sentences:,} sentences of {source} source and {target} target tokens, padding included"
    padding = ((batch.source == PAD).sum(1) + (batch.target_output == PAD).sum(1)).tolist()
    rows = sorted(range(sentences), key=padding.__getitem__)
    chosen = [rows[place * (sentences - 1) // (SHOWN_PAIRS - 1)] for place in range(SHOWN_PAIRS)]
    for row in dict.fromkeys(chosen):
        yield from _describe_pair(batch, row, data.codecs)


def _describe_pair(batch: Batch, row: int, codecs: Codecs) -> Iterator[str]:
    """Yield both sides of a sentence pair: the text of the ids, then each token with its id, padding only counted.

    Of more than `SHOWN_TOKENS`, the first and the last ones are shown.
    """
    for name, codec, side in (("source", codecs.source, batch.source), ("target", codecs.target, batch.target_output)):
        ids = side[row].tolist()
        kept = [index for index in ids if index != PAD]
        tokens = [f"{token}:{index}" for token, index in zip(codec.tokens(kept), kept, strict=True)]
        if left_out := max(0, len(tokens) - SHOWN_TOKENS):
            tokens[SHOWN_TOKENS - 10 : -10] = [f"… {left_out:,} more …"]
        padding = f" and {len(ids) - len(kept)} × <pad>:{PAD}" if len(kept) < len(ids) else ""
        yield one_line(f"    {name}       {codec.decode(ids)}")
        yield one_line(f"                 {' '.join(tokens)}{padding}")


# --- memory -------------------------------------------------------------------------------------------------------


def _measure_memory(data: TrainingData, learner: Learner) -> str:
    """Return what the model takes by count, and what its costliest batch takes by trying it."""
    device, training = learner.precision.device, data.config.training
    groups = learner.optimizer.param_groups
    trained = [parameter for group in groups for parameter in group["params"]]
    squared = [parameter for group in groups if "betas" in group for parameter in group["params"]]  # Muon has no square
    parts = (learner.model.parameters(), trained, squared)
    weights, gradients, squares = (sum(weight.nbytes for weight in some) for some in parts)
    moments = gradients + squares
    average = f", moving average {_size(gradients)}" if training.ema_decay else ""
    probe = partial(probe_memory, learner.objective, learner.precision, data.costliest_batch(), training.batch_tokens)
    grown, used = measure_peak(device, probe)
    # On a CPU the memory that the probe sets aside for the moments is not in use before something is written there.
    touched, where = (2 * gradients, "on the GPU") if device.type == "cuda" else (0, "in this process")
    return (
        f"memory       weights {_size(weights)}, gradients {_size(gradients)}, optimizer {_size(moments)}"
        f"{average}; activations of the costliest batch about {_size(max(0, grown - gradients - touched))}; "
        f"{_size(used + moments - touched)} in all {where}, measured here"
    )


def measure_peak(device: torch.device, work: Callable[[], object]) -> tuple[int, int]:
    """Do the work; return bytes: by how much memory grew at most meanwhile, and how much was in use then.

    On a GPU what torch has allocated there; else what this process holds in memory. Where the system cannot say it of
    the work alone, the growth is that of the highest use since the process started.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        peak = torch.cuda.max_memory_allocated(device)
        return peak - before, peak
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)  # so that the work must take unused memory anew
    with suppress(OSError):  # no Linux, or a locked-down one
        CLEAR.write_text("5")  # the peak begins at what is left
    before = _process_peak()
    work()
    peak = _process_peak()
    return peak - before, peak


def _process_peak() -> int:
    with suppress(OSError, IndexError):
        return int(STATUS.read_text().split("VmHWM:")[1].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _size(count: int) -> str:
    """Return bytes as people read them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


# --- time ---------------------------------------------------------------------------------------------------------


def _measure_time(data: TrainingData, learner: Learner) -> Iterator[str]:
    """Measure updates of the costliest batch and of the run's first batches; they change what learns."""
    batch, training = data.costliest_batch(), data.config.training
    costliest = UpdateBatches(START, [batch] * training.accumulation)
    last = data.last_step(learner.progress.decay_from)
    phases = _phases(training, learner.progress.step, last)
    if not phases:
        yield f"time         none: step {learner.progress.step:,} of {last:,} is done"
        return
    seconds, _ = _time_updates(learner, training, repeat(costliest), phases[-1][0])
    sentences, source, target = *batch.source.shape, batch.target_output.size(1)
    yield (
        f"time         {seconds:.3g} s per update with the costliest batch ({sentences} sentences of {source} source "
        f"and {target} target tokens), measured here"
    )
    updates = list(islice(data.updates(), TIMED + 1))
    timed = [_time_updates(learner, training, updates, step) for step, _ in phases]
    minutes = sum(seconds * count for (seconds, _), (_, count) in zip(timed, phases, strict=True)) / 60
    left, limit = last - learner.progress.step, "at most " * _may_end_before(training, learner.progress)
    seconds, tokens = timed[0]
    with_r_drop = f" ({timed[1][0]:.3g} s after step {last - phases[1][1]:,}, with R-Drop)" if timed[1:] else ""
    yield (
        f"             {seconds:.3g} s per update with the first batches{with_r_drop}, {tokens / seconds:,.0f} target "
        f"tokens/s: about {minutes:,.1f} minutes for {limit}{left:,} steps, validations not counted"
    )


def _phases(training: TrainingConfig, done: int, last: int) -> list[tuple[int, int]]:
    """Return, for what is left before and after R-Drop begins, the step in the middle and the number of steps.

    The middle, as scheduled sampling costs a second pass once it has begun, guided attention nothing once it has ended.
    """
    begins = min(max(done, r_drop_begins(training)), last) if training.r_drop else done
    return [((first + end) // 2, end - first) for first, end in ((done, begins), (begins, last)) if end > first]


def _time_updates(
    learner: Learner, training: TrainingConfig, updates: Iterable[UpdateBatches], step: int
) -> tuple[float, float]:
    """Return median seconds and mean target tokens of a few updates as they are after a step; the first counts only
    where it is the only one.
    """
    times: list[float] = []
    tokens: list[int] = []
    began = time.monotonic()
    steps = train_steps(learner.objective, learner.optimizer, learner.precision, training, updates, step)
    while len(times) <= TIMED and time.monotonic() - began < TIMED_SECONDS:
        before = time.monotonic()
        update = next(steps, None)
        if update is None:
            break
        times.append(time.monotonic() - before)
        tokens.append(update.target_tokens)
    steps.close()
    return statistics.median(times[1:] or times), statistics.mean(tokens[1:] or tokens)
