"""Weights and training state, to and from a checkpoint folder. For training and all that uses a model.

Tensors are safetensors, everything else JSON; nothing that is read can run code. `run_folder` makes the folders.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transformer_cli.config import Config, ModelConfig, dump_config
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import manifest_names, read_json, verify
from transformer_cli.storage.run_folder import CONFIG, STATE_VALUES, WEIGHTS
from transformer_cli.text.codec import Codecs

STATE_TENSORS = "training.safetensors"
# What weights and training state are made of; safetensors knows more types, which no model here has.
TYPES = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.bool, torch.uint8}
TYPES |= {torch.int64, torch.int32, torch.int16, torch.int8}


@dataclass(frozen=True)
class TrainingState:
    """What resuming needs beside the weights: tensors (optimizer, random generators) and plain JSON values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]  # keys are strings, at every depth


# --- saving -------------------------------------------------------------------------------------------------------


def save_model(folder: Path, model: nn.Module, config: Config, codecs: Codecs) -> None:
    """Write config.yaml, vocab/ and model.safetensors into the folder; the manifest is `run_folder.publish`'s.

    Each weight keeps its type; tied ones are stored once. The same weights give the same bytes. Raises `OSError`.
    """
    save_weights(folder, stored_weights(model), config, codecs)


def save_weights(folder: Path, weights: Mapping[str, Tensor], config: Config, codecs: Codecs) -> None:
    """Write the same as `save_model`, from a model's `stored_weights` or a copy of them."""
    (folder / CONFIG).write_text(dump_config(config), encoding="utf-8")
    codecs.save(folder)
    _write_tensors(folder / WEIGHTS, weights)


def save_training_state(folder: Path, state: TrainingState) -> None:
    """Write training.safetensors and training.json into the folder. Raises `OSError`."""
    _write_tensors(folder / STATE_TENSORS, state.tensors)
    (folder / STATE_VALUES).write_text(json.dumps(state.values, ensure_ascii=False) + "\n", encoding="utf-8")


def stored_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's tensors by name; of tied ones only the first name."""
    tensors: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if place not in seen or not tensor.numel():
            tensors[name] = tensor
        seen.add(place)
    return tensors


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    # Tensors that overlap in memory without being tied (a view of a larger one) are copied: the format has no views.
    plain = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        plain[name] = tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
    try:
        save_file(plain, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it hides a full disk in a message
        code = re.search(r"os error ([0-9]+)", str(error))
        number = int(code[1]) if code else 5
        raise OSError(number, os.strerror(number), str(path)) from error
    path.chmod(path.parent.stat().st_mode & 0o666)  # save_file's own files can be read by nobody else


# --- loading ------------------------------------------------------------------------------------------------------


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors by name, mapped from the file: only what is looked at takes memory.

    Raises `UserError` for anything but a safetensors file of the types that a model has.
    """
    try:
        tensors = load_file(path)
        for name, tensor in tensors.items():
            if tensor.dtype not in TYPES:
                raise ValueError(f"tensor {name} is of type {tensor.dtype}")
    except (OSError, ValueError, TypeError, OverflowError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:80]
        raise UserError(f"{path}: cannot be read as a safetensors file ({reason}); copy it again") from None
    return tensors


def check_size(path: Path, shape: ModelConfig, vocabulary_size: int) -> None:
    """Raise `UserError` where the file cannot hold the model that the config describes, before memory is taken for it.

    Counts only what every model has; `_check_layout` looks at each tensor later.
    """
    stored = read_tensors(path)
    attention = 2 * shape.d_model * shape.heads * (shape.head_width + (shape.value_dim or shape.head_width))
    layer = attention + 2 * shape.d_model * shape.d_ff
    rows = vocabulary_size + (shape.max_positions if shape.positions == "learned" else 0)
    needed = shape.encoder_layers * layer + shape.decoder_layers * (layer + attention) + rows * shape.d_model
    held = sum(tensor.numel() for tensor in stored.values())
    if needed > held or shape.encoder_layers + shape.decoder_layers > len(stored):
        raise UserError(
            f"{path}: holds {held:,} weights in {len(stored):,} tensors, but {CONFIG} and vocab/ describe another, "
            "larger model; copy the whole folder again"
        )


def load_weights(folder: Path, model: nn.Module) -> None:
    """Copy a checkpoint's weights into a model that is there already. Raises `UserError`, and changes nothing then."""
    verify(folder, [WEIGHTS])
    fill(model, folder / WEIGHTS)


def fill(model: nn.Module, path: Path) -> None:
    """Copy the file's tensors into the model; its floats take the type that they have in the file."""
    stored = read_tensors(path)
    _check_layout(path, stored, stored_weights(model))
    for name, tensor in stored.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path}: tensor {name} is not finite; copy it again, or take another model")
    for dtype in {tensor.dtype for tensor in stored.values() if tensor.is_floating_point()}:
        model.to(dtype)
    with torch.no_grad():
        for name, tensor in stored_weights(model).items():
            tensor.copy_(stored[name])


def _check_layout(path: Path, stored: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise `UserError` where a tensor is missing, unknown, or of another shape or type than in the model, by name."""
    floats = {tensor.dtype for tensor in stored.values() if tensor.is_floating_point()}
    float_type = floats.pop() if len(floats) == 1 else torch.float32  # a whole model may be of another precision
    for name in (*tensors, *stored):
        fault = ""
        if name not in stored:
            fault = "is missing"
        elif name not in tensors:
            fault = f"does not belong to the model that {CONFIG} describes"
        else:
            ours, theirs = tensors[name], stored[name]
            expected = float_type if ours.is_floating_point() else ours.dtype
            if theirs.shape != ours.shape:
                fault = f"is {[*theirs.shape]}, but {CONFIG} and vocab/ make it {[*ours.shape]}"
            elif theirs.dtype != expected:
                fault = f"is of type {theirs.dtype}, not {expected}"
        if fault:
            raise UserError(f"{path}: tensor {name[:100]} {fault}; copy the whole folder again")


def load_training_state(folder: Path) -> TrainingState:
    """Return what `save_training_state` wrote; `UserError` where it is not there or damaged."""
    values = load_training_values(folder)
    verify(folder, [STATE_TENSORS])
    # Copies, so that they lie in memory as fresh tensors do, and not in the file.
    return TrainingState(
        {name: tensor.clone() for name, tensor in read_tensors(folder / STATE_TENSORS).items()}, values
    )


def load_training_values(folder: Path) -> dict[str, Any]:
    """Return the JSON values of the training state alone."""
    if STATE_TENSORS not in manifest_names(folder) or not (folder / STATE_TENSORS).exists():
        raise UserError(f"{folder}: holds a model, but no training state to resume from; start again with --fresh")
    verify(folder, [STATE_VALUES])
    return read_json(folder / STATE_VALUES, dict[str, Any])
