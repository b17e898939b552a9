"""What is known of a model that others trained, before anything is made of it. `huggingface` and `marian` fill it in.

Names are those of transformers' MarianMTModel, into which a Marian release is translated too.
"""

import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from transformer_cli.errors import UserError

Shapes = Mapping[str, tuple[int, ...]]
TYPES = ("F64", "F32", "F16", "BF16")  # of safetensors: what weights are stored in
LARGEST_RATIO = 20  # of what a zip unpacks to and its size; weights hardly get smaller


@dataclass(frozen=True)
class Original:
    """A model's parts as they were found."""

    name: str  # as the user gave it
    config: Path  # the file that `shape` is of
    shape: Mapping[str, Any]  # the keys of transformers' config.json
    vocabularies: tuple[Mapping[str, int], Mapping[str, int]]  # source and target: rows of pieces; may be the same
    subwords: tuple[Path, Path]  # sentencepiece models of source and target
    weights: "Weights"
    languages: tuple[str | None, str | None]  # of source and target, where they are stated
    license: str | None  # where one is stated
    beam_size: int | None  # that its makers search with


class Weights:
    """The tensors of a file, read one by one, each once, so that memory holds one of theirs at a time."""

    def __init__(self, path: Path, shapes: Shapes, read: Callable[[str], Tensor]) -> None:
        self.path, self._shapes, self._read = path, shapes, read
        self._taken: set[str] = set()

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def take(self, name: str, *shape: int) -> Tensor:
        """Return a tensor of this shape as float32; `UserError` where there is none, or it is not finite."""
        if name not in self._shapes:
            raise UserError(f"{self.path}: tensor {name} is missing; copy the whole model again")
        if self._shapes[name] != shape:
            found = [*self._shapes[name]]
            raise UserError(
                f"{self.path}: tensor {name} is {found}, but config and vocabulary make it {[*shape]}; copy the whole "
                "model again"
            )
        self._taken.add(name)
        tensor = self._read(name).to(torch.float32)
        if not torch.stack(torch.aminmax(tensor)).isfinite().all():  # `isfinite` of all takes the tensor's memory again
            raise UserError(f"{self.path}: tensor {name} is not finite; copy it again, or take another model")
        return tensor

    def check_all_taken(self, others: Collection[str]) -> None:
        """Raise `UserError` where a tensor was never taken and is not among `others`: no part of the model has it."""
        for name in sorted(set(self._shapes) - self._taken - {*others}):
            raise UserError(f"{self.path}: tensor {name[:100]} has no place in the model that its config describes")


# --- files of weights -------------------------------------------------------------------------------------------------


def open_safetensors(path: Path) -> Weights:
    """Open a safetensors file; it is mapped anew for each tensor, so that no page stays in memory after it."""

    def read(name: str) -> Tensor:
        with reading(path, "safetensors"), safe_open(path, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    shapes = {}
    with reading(path, "safetensors"), safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            if part.get_dtype() not in TYPES:
                raise ValueError(f"tensor {name[:100]} is of type {part.get_dtype()}")
            shapes[name] = tuple(part.get_shape())
    return Weights(path, shapes, read)


def open_bin(path: Path) -> Weights:
    """Open a file of `torch.save` by torch's restricted reader, which builds tensors and runs nothing.

    A tensor is let go when it is read.
    """
    with reading(path, "PyTorch"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_unpacked(path, archive)
        tensors = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(tensors, dict):
            raise ValueError("it holds no dictionary of tensors")
        for name, tensor in tensors.items():
            if type(name) is not str or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
                raise ValueError(f"{str(name)[:100]!r} is not a tensor")
            if not tensor.is_floating_point():
                raise ValueError(f"tensor {name[:100]} is of type {tensor.dtype}")
            if not tensor.is_cpu or tensor.untyped_storage().nbytes() < tensor.numel() * tensor.itemsize:
                raise ValueError(f"tensor {name[:100]} is larger than what is stored of it")
    return Weights(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.pop)


def open_npz(path: Path, text: str) -> tuple[bytes, Shapes, Callable[[str], Tensor]]:
    """Open an archive of numpy arrays; return the bytes of the one called `text`, and of the others the shapes and what
    reads one. No array of Python objects is read."""

    def read(name: str) -> "np.ndarray[Any, Any]":
        with reading(path, "npz"), np.load(path, allow_pickle=False) as file:
            array: np.ndarray[Any, Any] = file[name]
            return array

    shapes: dict[str, tuple[int, ...]] = {}
    with reading(path, "npz"), zipfile.ZipFile(path) as archive:
        check_unpacked(path, archive)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = header[version](file)
            if name in shapes:
                raise ValueError(f"it holds two arrays called {name[:50]}")
            if dtype.newbyteorder("<").str not in (("|i1", "|u1") if name == text else ("<f2", "<f4", "<f8")):
                raise ValueError(f"array {name[:50]} is of type {dtype}")
            shapes[name] = shape
        if text not in shapes:
            raise ValueError(f"it has no {text}, in which Marian keeps what a model is")
    del shapes[text]
    return read(text).tobytes(), shapes, lambda name: torch.from_numpy(read(name).astype(np.float32, copy=False))


def check_unpacked(path: Path, archive: zipfile.ZipFile) -> None:
    """Raise `ValueError` for a zip that holds far more than its size says, as none of weights does."""
    size = sum(member.file_size for member in archive.infolist())
    if size > LARGEST_RATIO * path.stat().st_size:
        raise ValueError(f"it would unpack to {size:,} bytes")


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn what the readers raise on damaged files into a `UserError` of one line."""
    try:
        if not path.is_file():
            raise ValueError("not a regular file")
        with warnings.catch_warnings(action="ignore"):
            yield
    except (MemoryError, UserError):
        raise
    except Exception as error:  # each reader has kinds of its own
        reason = " ".join(str(error).split())[:80] or type(error).__name__
        raise UserError(f"{path}: cannot be read as a {kind} file ({reason}); copy it again") from None
