"""tfm: its own training step, in a process set up as `tfm train` sets it up."""

from collections.abc import Iterator
from itertools import cycle

import torch
from batches import Pairs
from shape import Shape

from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import START, UpdateBatches
from transformer_cli.training.hardware import Precision, tune_process
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective


def model_config(shape: Shape) -> ModelConfig:
    return ModelConfig(
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        d_model=shape.d_model,
        heads=shape.heads,
        d_ff=shape.d_ff,
        dropout=shape.dropout,
    )


def train(batches: list[Pairs], shape: Shape, precision: str) -> Iterator[float]:
    """An update a batch, again and again."""
    tune_process(torch.device("cpu"))
    torch.manual_seed(1)
    config = TrainingConfig(
        schedule="constant", warmup_steps=0, peak_learning_rate=1e-4, label_smoothing=shape.label_smoothing
    )
    model = build_model(model_config(shape), shape.vocabulary, shape.vocabulary)
    objective = TranslationObjective(model, config.label_smoothing)
    optimizer = build_optimizer(objective, config)
    updates = [UpdateBatches(START, [Batch.from_ids(pairs)]) for pairs in batches]
    for update in train_steps(objective, optimizer, Precision(precision, torch.device("cpu")), config, cycle(updates)):
        yield update.loss
