"""`tfm train --dry-run`: all that comes before a run's first update, and a few updates that are then thrown away.

`cli.train` prints the lines. Nothing is written but the cache of encoded corpora; no vocabulary is left behind.
"""

import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from pathlib import Path

import torch
from torch.distributed import is_torchelastic_launched

from transformer_cli.config import Config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import START, UpdateBatches, largest_batch
from transformer_cli.decoding.devices import choose_device
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.codec import Codec, Codecs
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import PAD
from transformer_cli.training.hardware import tuned_process
from transformer_cli.training.loop import train_steps
from transformer_cli.training.memory import measure_peak
from transformer_cli.training.run import check_beforehand, find_run_state, make_session
from transformer_cli.training.schedules import learning_rate
from transformer_cli.training.session import Session
from transformer_cli.training.training_data import describe_training

TIMED = 10  # updates at most, after one that is not timed
TIMED_SECONDS = 20.0  # after which no other update begins
SHOWN_PAIRS = 3


def dry_run(
    config: Config,
    path: str | Path,
    *,
    resume: bool | None = None,
    fresh: bool = False,
    device: str = "auto",
    quiet: bool = False,
) -> Iterator[str]:
    """Lines on what `run.train` with the same arguments would begin with, as they become known.

    quiet: no progress on stderr. Raises `UserError` as training would.
    """
    if is_torchelastic_launched():
        raise UserError("--dry-run: takes one process only; give the command without torchrun")
    torch_device = choose_device(device)
    with tuned_process(torch_device):
        yield from _describe(config, RunFolder(path), resume, fresh, torch_device, quiet)


def _describe(
    config: Config, run: RunFolder, resume: bool | None, fresh: bool, torch_device: torch.device, quiet: bool
) -> Iterator[str]:
    check_beforehand(run, config)
    asked = config
    config, preset = resolve_preset(asked, progress=not quiet)
    yield from preset
    beginning = find_run_state(run, asked, config, run.exists() and not fresh, resume)
    if beginning.finished:
        yield f"{run.path}: this run is finished ({beginning.finished}); nothing is left to do"
        return
    session, notes = make_session(beginning, torch_device, quiet)
    yield from [*session.material.notes, *notes, *session.notes]
    yield from describe_training(config, session.material, session.model)
    yield _describe_parts(session.model)
    yield _describe_schedule(session)
    step = session.progress.step
    where = f"would go on after step {step:,}" if step else "would begin"
    yield f"run          {run.path}: {where}; nothing was written there"
    yield from _describe_first_batch(session)
    yield from _measure_memory(session)
    yield from _measure_time(session)


def _describe_parts(model: Transformer) -> str:
    """Parameters of each part; what is shared is counted where it stands first."""
    seen: set[int] = set()
    counts = []
    for name, part in model.named_children():
        own = [parameter for parameter in part.parameters() if id(parameter) not in seen]
        seen.update(map(id, own))
        count = f"{sum(parameter.numel() for parameter in own):,}" if own else "shared"
        frozen = own and not any(parameter.requires_grad for parameter in own)
        counts.append(f"{name.replace('_', ' ')} {count}" + " (frozen)" * bool(frozen))
    return f"parameters   {', '.join(counts)}"


def _describe_schedule(session: Session) -> str:
    training, d_model, last = session.config.training, session.config.model.d_model, session.total_steps()
    steps = sorted({1, min(last, max(1, training.warmup_steps)), max(1, last // 2), last})
    rates = ", ".join(f"{learning_rate(training, d_model, step):.2e} at step {step:,}" for step in steps)
    epochs = last / session.material.updates_an_epoch
    return f"schedule     {last:,} steps are {epochs:,.1f} epochs; learning rate {rates}"


# --- the first batch ----------------------------------------------------------------------------------------------


def _describe_first_batch(session: Session) -> Iterator[str]:
    """Its shape, and the pairs with the least, the middle and the most padding, decoded back to text."""
    batch = next(session.load_updates(START, workers=0)).batches[0]
    sentences, source, target = *batch.source.shape, batch.target_output.size(1)
    yield f"first batch  {sentences:,} sentences of {source} source and {target} target tokens, padding included"
    padding = ((batch.source == PAD).sum(1) + (batch.target_output == PAD).sum(1)).tolist()
    rows = sorted(range(sentences), key=padding.__getitem__)
    chosen = [rows[place * (sentences - 1) // (SHOWN_PAIRS - 1)] for place in range(SHOWN_PAIRS)]
    for row in dict.fromkeys(chosen):
        yield from _describe_pair(batch, row, session.codecs)


def _describe_pair(batch: Batch, row: int, codecs: Codecs) -> Iterator[str]:
    """Both sides of a sentence pair: the text of the ids, then the tokens."""
    for name, codec, ids in (("source", codecs.source, batch.source), ("target", codecs.target, batch.target_output)):
        yield one_line(f"    {name}       {codec.decode(ids[row].tolist())}")
        yield one_line(f"                 {_tokens(codec, ids[row].tolist())}")


def _tokens(codec: Codec, ids: list[int]) -> str:
    """Each token with its id, padding only counted."""
    padding = ids.count(PAD)
    kept = ids[: len(ids) - padding]
    tokens = [f"{token}:{index}" for token, index in zip(codec.tokens(kept), kept, strict=True)]
    return " ".join(tokens) + (f" and {padding} × <pad>:{PAD}" if padding else "")


# --- measuring ----------------------------------------------------------------------------------------------------


def _measure_memory(session: Session) -> Iterator[str]:
    """What the model takes by count, what its costliest batch takes by trying it."""
    trained = [parameter for group in session.optimizer.param_groups for parameter in group["params"]]
    weights, gradients = (sum(weight.nbytes for weight in some) for some in (session.model.parameters(), trained))
    moments = 2 * gradients
    average = f", moving average {_size(gradients)}" if session.config.training.ema_decay else ""
    grown, used = measure_peak(session.precision.device, session.probe)
    # On a CPU the memory that the probe sets aside for the moments is not in use before something is written there.
    touched, where = (moments, "on the GPU") if session.precision.device.type == "cuda" else (0, "in this process")
    yield (
        f"memory       weights {_size(weights)}, gradients {_size(gradients)}, moments of Adam {_size(moments)}"
        f"{average}; activations of the costliest batch about {_size(max(0, grown - gradients - touched))}; "
        f"in all {_size(used + moments - touched)} {where}, measured here"
    )


def _measure_time(session: Session) -> Iterator[str]:
    """Updates of the costliest batch and of the first batches of the run, each on the way to nothing."""
    training, material = session.config.training, session.material
    pairs = material.plan[material.plan.costliest()]
    batch = largest_batch(material.train, pairs, session.sampling(), training.pad_to)
    costliest = UpdateBatches(START, [batch] * training.accumulation)
    seconds, _ = _time_updates(session, repeat(costliest))
    sentences, source, target = *batch.source.shape, batch.target_output.size(1)
    yield (
        f"time         {seconds:.3g} s an update of the costliest batch ({sentences} sentences of {source} source and "
        f"{target} target tokens), measured here"
    )
    seconds, tokens = _time_updates(session, list(islice(session.load_updates(START, workers=0), TIMED + 1)))
    left = session.total_steps() - session.progress.step
    yield (
        f"             {seconds:.3g} s an update of the first batches, {tokens / seconds:,.0f} target tokens/s: about "
        f"{left * seconds / 60:,.1f} minutes for {left:,} steps, validations not counted"
    )


def _time_updates(session: Session, updates: Iterable[UpdateBatches]) -> tuple[float, float]:
    """Median seconds and mean target tokens of a few updates; the first counts only where it is the only one.

    They are those in the middle of what is left: scheduled sampling costs a second pass once it has begun, guided
    attention nothing once it has ended.
    """
    times: list[float] = []
    tokens: list[int] = []
    began = time.monotonic()
    middle = (session.progress.step + session.total_steps()) // 2
    training = session.config.training
    steps = train_steps(session.objective, session.optimizer, session.precision, training, updates, middle)
    while len(times) <= TIMED and time.monotonic() - began < TIMED_SECONDS:
        before = time.monotonic()
        update = next(steps, None)
        if update is None:
            break
        times.append(time.monotonic() - before)
        tokens.append(update.target_tokens)
    steps.close()
    return statistics.median(times[1:] or times), statistics.mean(tokens[1:] or tokens)


def _size(count: int) -> str:
    """Bytes as people read them."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
