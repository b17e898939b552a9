"""The training loop: batches in, updates out. It knows no files; who consumes it saves, validates and reports."""

import math
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from transformer_cli.config import TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position
from transformer_cli.errors import UserError
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import Precision
from transformer_cli.training.schedules import learning_rate

MAX_SKIPPED = 20  # updates in a row whose gradients were not finite


@dataclass(frozen=True)
class Update:
    """What one update did. Losses are per target token, in nats."""

    step: int  # updates applied so far
    next_position: Position  # where the plan goes on
    loss: float  # label-smoothed
    target_tokens: int
    learning_rate: float
    gradient_norm: float  # before clipping


def build_optimizer(objective: TranslationObjective, config: TrainingConfig) -> torch.optim.Optimizer:
    """Adam (§5.3) or AdamW, which decays matrices only: norms and biases have no size to lose."""
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    fused = parameters[0].device.type in ("cpu", "cuda")
    return kind(
        [group for group in groups if group["params"]], lr=0.0, betas=config.betas, eps=config.epsilon, fused=fused
    )


def group_updates(
    batches: Iterable[tuple[Position, Batch]], accumulation: int
) -> Iterator[tuple[Position, list[Batch]]]:
    """The batches of each update, with the position after them.

    An update takes `accumulation` batches of one epoch; the epoch's last may take fewer.
    """
    group: list[Batch] = []
    last = Position(0, 0)
    for position, batch in batches:
        if group and (last.epoch, last.batch // accumulation) != (position.epoch, position.batch // accumulation):
            yield position, group  # the first position of the next update: only the plan knows where an epoch ends
            group = []
        group.append(batch)
        last = position
    if group:
        yield Position(last.epoch, last.batch + 1), group


def train_steps(
    objective: TranslationObjective,
    optimizer: torch.optim.Optimizer,
    precision: Precision,
    config: TrainingConfig,
    batches: Iterable[tuple[Position, Batch]],
    step: int = 0,
) -> Generator[Update, None, None]:
    """Train without end, an `Update` at a time; whoever consumes it stops.

    The gradient of an update is that of Σ loss ÷ Σ target tokens over all of its batches, so batching and accumulation
    never change it. An update whose gradient is not finite is skipped, its batches with it; after many in a row
    training has diverged and `UserError` says so.
    """
    d_model = objective.model.source_embedding.tokens.table.embedding_dim
    parameters = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    skipped = 0
    for next_position, group in group_updates(batches, config.accumulation):
        objective.train()
        rate = learning_rate(config, d_model, step + 1)
        for settings in optimizer.param_groups:
            settings["lr"] = rate
        tokens = sum(batch.target_tokens for batch in group)
        loss = accumulate_gradients(objective, precision, group, tokens)
        precision.scaler.unscale_(optimizer)
        norm = clip_grad_norm_(parameters, config.clip_norm or math.inf)
        if bool(norm.isfinite()):
            precision.scaler.step(optimizer)
            step, skipped = step + 1, 0
        else:
            skipped += 1
        precision.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if skipped > MAX_SKIPPED:
            raise UserError(
                f"training diverged at step {step}: {skipped} updates in a row had no finite gradient; lower the "
                "learning rate (training.factor or peak_learning_rate), warm up longer, or use precision bf16 or fp32"
            )
        if not skipped:
            yield Update(step, next_position, float(loss) / tokens, tokens, rate, float(norm))


def accumulate_gradients(
    objective: TranslationObjective, precision: Precision, group: list[Batch], tokens: int
) -> Tensor:
    """Add the gradient of Σ loss ÷ tokens over the batches to the weights' `.grad`; returns Σ loss, ()."""
    total = torch.zeros((), device=precision.device)
    for batch in group:
        batch = batch.to(precision.device)
        with precision.autocast():
            loss = objective(batch).smoothed
        precision.scaler.scale(loss / tokens).backward()
        total = total + loss.detach()
    return total
