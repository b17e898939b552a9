"""tfm: its own training step, in a process set up as `tfm train` sets it up."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from shape import Shape

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import START, UpdateBatches
from transformer_cli.training.hardware import Precision, tune_process
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective

LIBRARIES = ("torch", "transformer-cli")


def model_config(shape: Shape) -> ModelConfig:
    return ModelConfig(
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        d_model=shape.d_model,
        heads=shape.heads,
        d_ff=shape.d_ff,
        dropout=shape.dropout,
    )


def start(work: dict[str, Any], precision: str) -> Callable[[], dict[str, Any]]:
    """An update a batch, again and again."""
    shape = Shape(**work["shape"])
    tune_process(torch.device("cpu"))
    torch.manual_seed(1)
    config = TrainingConfig(
        schedule="constant", warmup_steps=0, peak_learning_rate=1e-4, label_smoothing=shape.label_smoothing
    )
    model = build_model(model_config(shape), shape.vocabulary, shape.vocabulary)
    objective = TranslationObjective(model, config.label_smoothing)
    optimizer = build_optimizer(objective, config)
    updates = [UpdateBatches(START, [Batch.from_ids(pairs)]) for pairs in work["batches"]]
    steps = train_steps(objective, optimizer, Precision(precision, torch.device("cpu")), config, cycle(updates))
    return lambda: {"value": next(steps).loss}
