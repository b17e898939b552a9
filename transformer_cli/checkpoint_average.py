"""The model whose weights are the means of several checkpoints': for `tfm average`, and for the end of training."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import safe_open

from transformer_cli.checkpoint import (
    LoadedModel,
    load_model,
    load_text_side,
    read_layout,
    save_model,
    stored_weights,
)
from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.publishing import publish
from transformer_cli.run_folder import CONFIG, WEIGHTS, RunFolder, find_model


def average(folders: Sequence[str | Path], out: Path) -> None:
    """Publish as `out` the model whose weights are the means of several checkpoints' (Vaswani et al. 2017, §6.1).

    Raises `UserError`, before anything is written, where `out` exists or the models are not of one kind.
    """
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name a new folder with --out")
    mean = _mean_model([find_model(folder) for folder in folders])
    RunFolder(out.parent).create()
    publish(out, lambda folder: save_model(folder, mean.model, mean.config, mean.codecs))


def write_average(folders: Sequence[Path], folder: Path) -> None:
    """`average`, into a folder that is being published: for training's own average at the end."""
    mean = _mean_model(folders)
    save_model(folder, mean.model, mean.config, mean.codecs)


def _mean_model(folders: Sequence[Path]) -> LoadedModel:
    if not folders:
        raise UserError("no checkpoint to average; name at least one")
    first = load_model(folders[0])
    layout = read_layout(folders[0] / WEIGHTS)
    for folder in folders[1:]:
        config, codecs = load_text_side(folder)
        if config.model != first.config.model or _languages(config) != _languages(first.config):
            raise UserError(
                f"{folder}: is another kind of model than {folders[0]} ({CONFIG} differs); average one run's"
            )
        if codecs.fingerprint != first.codecs.fingerprint:
            raise UserError(f"{folder}: has another vocabulary than {folders[0]}; average checkpoints of one run")
        if read_layout(folder / WEIGHTS) != layout:
            raise UserError(f"{folder / WEIGHTS}: has other tensors than {folders[0] / WEIGHTS}; copy it again")
    tensors = stored_weights(first.model)
    with torch.no_grad(), ExitStack() as stack:
        files = [stack.enter_context(safe_open(folder / WEIGHTS, framework="pt")) for folder in folders]
        for name, (dtype, _) in layout.items():  # one at a time: memory holds one model, however many are averaged
            if dtype.is_floating_point:
                total = torch.zeros(tensors[name].shape, dtype=torch.float64)
                for file in files:
                    total += file.get_tensor(name)
                tensors[name].copy_(total / len(files))
    return first


def _languages(config: Config) -> tuple[str, str]:
    return config.data.source_language, config.data.target_language
