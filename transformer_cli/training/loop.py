"""The training loop: batches in, updates out. It knows no files; who consumes it saves, validates and reports."""

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from transformer_cli.config import TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.errors import UserError
from transformer_cli.model.dropout import set_dropout_share
from transformer_cli.model.torch_private import step_where, without_compiler
from transformer_cli.training.distributed import SINGLE_PROCESS, Ranks
from transformer_cli.training.hardware import PRECISIONS, Precision, choose_precision
from transformer_cli.training.muon import MuonAndAdam, hidden_matrices
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.schedules import dropout_share, learning_rate, r_drop_share

AGAINST_DIVERGENCE = (
    "lower the learning rate (training.factor or peak_learning_rate), warm up longer, or use precision bf16 or fp32"
)


@dataclass(frozen=True)
class Update:
    """What one update did. Losses are per target token, in nats."""

    step: int  # updates applied so far
    next_position: Position  # where the plan continues
    loss: float  # label-smoothed; with R-Drop the mean of both passes, without their divergence
    target_tokens: int
    learning_rate: float
    gradient_norm: float  # before clipping
    applied: bool = True  # False: loss or gradient was not finite, and nothing was changed
    overflow: bool = False  # not applied because fp16's loss scale was too large; it is lower now
    halvings: int = 0  # how often a batch had to be halved because memory ran out
    signal: int | None = None  # a signal to stop, on this or another rank


def build_optimizer(objective: TranslationObjective, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return Adam (§5.3), AdamW, or Muon with Adam.

    AdamW decays matrices only (norms and biases have no size), Muon its own alone.
    """
    matrices = dict(hidden_matrices(objective.model)) if config.optimizer == "muon" else {}
    parameters = [p for p in objective.parameters() if p.requires_grad and p not in matrices]
    decay = config.weight_decay if config.optimizer == "adamw" else 0.0
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    kind = without_compiler(torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam)
    fused = parameters[0].device.type in ("cpu", "cuda")
    adam = kind(
        [group for group in groups if group["params"]], lr=0.0, betas=config.betas, eps=config.epsilon, fused=fused
    )
    if not matrices:
        return adam
    device = parameters[0].device
    narrow = device.type == "cuda" or choose_precision(config.precision, device) == "bf16"
    return MuonAndAdam(matrices.items(), adam, torch.bfloat16 if narrow else torch.float32, config.weight_decay)


class BatchTooLarge(Exception):
    """A batch for which there was not enough memory."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number  # among the batches of the update


def train_steps(
    objective: TranslationObjective,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
    config: TrainingConfig,
    updates: Iterable[UpdateBatches],
    step: int = 0,
    ranks: Ranks = SINGLE_PROCESS,
    skipped: int = 0,
    decay_from: Callable[[], int | None] = lambda: None,
) -> Generator[Update, None, None]:
    """Train without end, an `Update` at a time; whoever consumes it stops. `skipped`: updates in a row up to now.

    decay_from: for `learning_rate`, as it is at each update.

    The gradient of an update is that of Σ loss ÷ Σ target tokens over all of its batches, so batching, accumulation and
    the number of ranks never change it. An update whose loss or gradient is not finite is skipped, its batches with it;
    after `max_skipped` in a row training has diverged and `UserError` says so.

    Between the first kernel of an update and its last nothing waits for a GPU: whether Adam applies the gradient is
    decided there. Loss and norm are read once, at the end.
    """
    d_model = objective.model.source_embedding.tokens.table.embedding_dim
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    objective.train()
    for update_batches in updates:
        if not objective.model.training:  # after a validation; at every update a GPU would wait for it, for 2 ms
            objective.train()
        objective.updates, objective.r_drop_share = step, r_drop_share(config, step + 1)
        set_dropout_share(objective, dropout_share(config, step + 1))
        rate = learning_rate(config, d_model, step + 1, decay_from())
        for settings in optimizer.param_groups:
            settings["lr"] = rate
        loss, tokens, halvings, signal = compute_gradients(
            objective, precision, update_batches.batches, ranks, PRECISIONS[config.exchange_precision]
        )
        precision.scaler.unscale_(optimizer)
        norm = clip_grad_norm_(parameters, config.clip_norm or math.inf)
        apply_gradients(optimizer, precision, finite=(loss + norm).isfinite())
        optimizer.zero_grad(set_to_none=True)
        loss_sum, norm_value = torch.stack([loss, norm.to(loss)]).tolist()
        applied = math.isfinite(loss_sum + norm_value)
        overflow = not applied and math.isfinite(loss_sum) and precision.shrinks_scale()
        step, skipped = (step + 1, 0) if applied else (step, skipped + (not overflow))
        if skipped >= config.max_skipped:
            raise UserError(
                f"training diverged at step {step:,}: {skipped:,} updates in a row had no finite loss and gradient; "
                f"{AGAINST_DIVERGENCE}"
            )
        yield Update(
            step=step,
            next_position=update_batches.next_position,
            loss=loss_sum / tokens,
            target_tokens=tokens,
            learning_rate=rate,
            gradient_norm=norm_value,
            applied=applied,
            overflow=overflow,
            halvings=halvings,
            signal=signal,
        )


class Gradients(NamedTuple):
    """What went with the gradients of an update, over all ranks."""

    loss: Tensor  # (), its sum
    tokens: int
    halvings: int
    signal: int | None


def compute_gradients(
    objective: TranslationObjective,
    precision: Precision,
    batches: list[Batch],
    ranks: Ranks = SINGLE_PROCESS,
    exchanged: torch.dtype | None = None,
) -> Gradients:
    """Put the gradient of Σ loss ÷ Σ target tokens over all ranks' batches into the weights' `.grad`.

    Where a rank runs out of memory for one of its batches, all ranks start again, that batch in halves. The ranks share
    this, and how many tokens they have, when a GPU has yet to compute what they launched; until then each takes the
    others to have as many as itself. `exchanged`: the type in which gradients are sent, None: their own.
    """
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    own_tokens = sum(batch.target_tokens for batch in batches)
    presumed, halvings = own_tokens * ranks.count, 0
    while True:
        too_large = None
        try:
            loss = accumulate_gradients(objective, precision, batches, presumed)
        except BatchTooLarge as error:
            too_large = error.number
        gathered = ranks.gather((too_large is None, own_tokens, ranks.stop.signal_number))
        everywhere_fits, all_tokens, signals = zip(*gathered, strict=True)
        if all(everywhere_fits):
            tokens = sum(all_tokens)
            loss = ranks.sum_gradients(parameters, loss, presumed / tokens, exchanged)
            return Gradients(loss, tokens, halvings, next(filter(None, signals), None))
        objective.zero_grad(set_to_none=True)
        halvings += 1
        if too_large is not None:
            batches = _halve(batches, too_large, precision.device)


def accumulate_gradients(
    objective: TranslationObjective, precision: Precision, batches: list[Batch], tokens: int
) -> Tensor:
    """Add the gradient of Σ loss ÷ tokens over the batches to the weights' `.grad`; return Σ loss, ().

    One rank's part, which sends the others nothing. Raises `BatchTooLarge` where the memory does not suffice.
    """
    total = torch.zeros((), device=precision.device)
    for number, batch in enumerate(batches):
        try:
            batch = batch.to(precision.device)
            with precision.autocast():
                loss = objective(batch)
            precision.scaler.scale(loss.minimised / tokens).backward()
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise BatchTooLarge(number) from None
        total = total + loss.smoothed.detach()
    return total


def probe_memory(objective: TranslationObjective, precision: Precision, batch: Batch, batch_tokens: int) -> None:
    """Go forward and backward over the costliest batch, without an update; random and gradient state stay as before.

    Raises `UserError` where there is not enough memory. `batch_tokens`: the config's, for its message.
    """
    devices = [precision.device] if precision.device.type == "cuda" else []
    objective.train()
    try:
        learned = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        moments = [torch.empty_like(parameter) for parameter in learned for _ in range(2)]  # Adam's
        with torch.random.fork_rng(devices=devices):
            accumulate_gradients(objective, precision, [batch], batch.target_tokens)
        del moments
    except (BatchTooLarge, torch.OutOfMemoryError):
        rows, source, target = *batch.source.shape, batch.target_output.size(1)
        raise UserError(
            f"not enough memory on {precision.device} for the costliest batch ({rows} sentences, {source} source and "
            f"{target} target tokens each); lower training.batch_tokens = {batch_tokens} and raise "
            "training.accumulation in its place"
        ) from None
    finally:
        objective.zero_grad(set_to_none=True)


def apply_gradients(optimizer: torch.optim.Optimizer, precision: Precision, finite: Tensor) -> None:
    """Take one step of the optimizer, or none where `finite`, (), is false; the loss scale follows."""
    step_where(optimizer, finite)
    precision.scaler.update()


def _halve(batches: list[Batch], number: int, device: torch.device) -> list[Batch]:
    batch = batches[number]
    if len(batch.source) == 1:
        raise UserError(
            f"not enough memory on {device} for a single sentence of {batch.source.size(1)} source and "
            f"{batch.target_output.size(1)} target tokens; lower data.max_length, and start again with --fresh"
        )
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return [*batches[:number], *batch.halves(), *batches[number + 1 :]]


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out: torch's CPU allocator has no exception of its own, only words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return any(words in str(error) for words in ("t allocate memory", "not enough memory", "out of memory"))
