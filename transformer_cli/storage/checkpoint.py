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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from transformer_cli.config import Config, ModelConfig, dump_config
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import manifest_names, read_bytes, verify
from transformer_cli.storage.run_folder import CONFIG, WEIGHTS
from transformer_cli.text.codec import Codecs

STATE_TENSORS = "training.safetensors"
STATE_VALUES = "training.json"
MAX_HEADER_BYTES = 50_000_000  # of a safetensors file; a tensor takes about 100

# safetensors' names for torch's types: what weights and training state are made of.
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

Layout = dict[str, tuple[torch.dtype, torch.Size]]  # of a safetensors file, by tensor name


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


def check_size(path: Path, shape: ModelConfig, vocabulary_size: int) -> None:
    """Raise `UserError` where the file cannot hold the model that the config describes, before memory is taken for it.

    Counts only what every model has; `_check_layout` looks at each tensor later.
    """
    layout = read_layout(path)
    head_dim = shape.head_dim or shape.d_model // shape.heads
    attention = 2 * shape.d_model * shape.heads * (head_dim + (shape.value_dim or head_dim))
    layer = attention + 2 * shape.d_model * shape.d_ff
    rows = vocabulary_size + (shape.max_positions if shape.positions == "learned" else 0)
    needed = shape.encoder_layers * layer + shape.decoder_layers * (layer + attention) + rows * shape.d_model
    held = sum(size.numel() for _, size in layout.values())
    if needed > held or shape.encoder_layers + shape.decoder_layers > len(layout):
        raise UserError(
            f"{path}: holds {held:,} weights in {len(layout):,} tensors, but {CONFIG} and vocab/ describe another, "
            "larger model; copy the whole folder again"
        )


def load_weights(folder: Path, model: nn.Module) -> None:
    """Copy a checkpoint's weights into a model that is there already. Raises `UserError`, and changes nothing then."""
    verify(folder, [WEIGHTS])
    fill(model, folder / WEIGHTS)


def fill(model: nn.Module, path: Path) -> None:
    """Copy the file's tensors into the model; its floats take the type that they have in the file."""
    layout = read_layout(path)
    _check_layout(path, layout, stored_weights(model))
    for dtype in {dtype for dtype, _ in layout.values() if dtype.is_floating_point}:
        model.to(dtype)
    tensors = stored_weights(model)
    with torch.no_grad(), safe_open(path, framework="pt") as content:
        for name in layout:
            if not content.get_tensor(name).isfinite().all():
                raise UserError(f"{path}: tensor {name} is not finite; copy it again, or take another model")
        for name in layout:
            tensors[name].copy_(content.get_tensor(name))


def _check_layout(path: Path, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
    """Raise `UserError` where a tensor is missing, unknown, or of another shape or type than in the model, by name."""
    floats = {dtype for dtype, _ in layout.values() if dtype.is_floating_point}
    float_type = floats.pop() if len(floats) == 1 else torch.float32  # a whole model may be of another precision
    for name in (*tensors, *layout):
        fault = ""
        if name not in layout:
            fault = "is missing"
        elif name not in tensors:
            fault = f"does not belong to the model that {CONFIG} describes"
        else:
            (dtype, shape), tensor = layout[name], tensors[name]
            expected = float_type if tensor.is_floating_point() else tensor.dtype
            if shape != tensor.shape:
                fault = f"is {[*shape]}, but {CONFIG} and vocab/ make it {[*tensor.shape]}"
            elif dtype != expected:
                fault = f"is of type {dtype}, not {expected}"
        if fault:
            raise UserError(f"{path}: tensor {name[:100]} {fault}; copy the whole folder again")


def load_training_state(folder: Path) -> TrainingState:
    """Return what `save_training_state` wrote; `UserError` where it is not there or damaged."""
    names = manifest_names(folder)
    if STATE_TENSORS not in names or not (folder / STATE_TENSORS).exists():
        raise UserError(f"{folder}: holds a model, but no training state to resume from; start again with --fresh")
    verify(folder, [STATE_TENSORS, STATE_VALUES])
    layout = read_layout(folder / STATE_TENSORS)
    try:
        values = json.loads(read_bytes(folder / STATE_VALUES))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{folder / STATE_VALUES}: is damaged ({str(error)[:100]}); copy it again") from None
    if not isinstance(values, dict):
        raise UserError(f"{folder / STATE_VALUES}: is damaged (not an object); copy it again")
    with safe_open(folder / STATE_TENSORS, framework="pt") as content:
        # Copies, so that they lie in memory as fresh tensors do, and not in the file.
        return TrainingState({name: content.get_tensor(name).clone() for name in layout}, values)


def read_layout(path: Path) -> Layout:
    """Return type and shape of each tensor, from the header alone; `UserError` for anything but a safetensors file."""
    layout = {}
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER_BYTES, os.fstat(file.fileno()).st_size - 8):
                raise ValueError(f"a header of {length:,} bytes")
        with safe_open(path, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118  (no mapping)
                part = content.get_slice(name)
                if part.get_dtype() not in DTYPES:
                    raise ValueError(f"tensor {name} is of type {part.get_dtype()}")
                layout[name] = (DTYPES[part.get_dtype()], torch.Size(part.get_shape()))
    except (OSError, ValueError, TypeError, OverflowError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:80]
        raise UserError(f"{path}: cannot be read as a safetensors file ({reason}); copy it again") from None
    return layout
