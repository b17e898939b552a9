"""Tries the costliest batch before training starts, so that too little memory shows at once and not after hours."""

import torch

from transformer_cli.config import TrainingConfig
from transformer_cli.data.batching import BatchPlan
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.loader import SubwordSampling, largest_batch
from transformer_cli.errors import UserError
from transformer_cli.training.loop import BatchTooLarge, accumulate_gradients
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import Precision


def probe_memory(
    objective: TranslationObjective,
    precision: Precision,
    config: TrainingConfig,
    corpus: EncodedCorpus,
    plan: BatchPlan,
    sampling: SubwordSampling | None = None,
) -> None:
    """Forward and backward over the plan's costliest batch, without an update; random and gradient state as before.

    Raises `UserError` where the memory does not suffice.
    """
    batch = largest_batch(corpus, plan[plan.costliest()], sampling, config.pad_to)
    devices = [precision.device] if precision.device.type == "cuda" else []
    objective.train()
    try:
        learn = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        moments = [torch.empty_like(parameter) for parameter in learn for _ in range(2)]  # Adam's
        with torch.random.fork_rng(devices=devices):
            accumulate_gradients(objective, precision, [batch], batch.target_tokens)
        del moments
    except (BatchTooLarge, torch.OutOfMemoryError):
        rows, source, target = *batch.source.shape, batch.target_output.size(1)
        raise UserError(
            f"not enough memory on {precision.device} for the costliest batch ({rows} sentences, {source} source and "
            f"{target} target tokens each); lower training.batch_tokens = {config.batch_tokens} and raise "
            "training.accumulation in its place"
        ) from None
    finally:
        for parameter in objective.parameters():
            parameter.grad = None
