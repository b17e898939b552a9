"""A batch as the model sees it: padded tensors with the specials in place. Made by the loader, evaluation and tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_cli.text.vocabulary import BOS, EOS, PAD

Array = npt.NDArray[Any]
Ids = Sequence[int] | npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class Batch:
    """B sentence pairs, padded on the right to S source and T target positions."""

    source: Tensor  # (B, S) int64: x </s>
    source_mask: Tensor  # (B, 1, 1, S) bool: True where there is a token
    target_input: Tensor  # (B, T) int64: <s> y
    target_output: Tensor  # (B, T) int64: y </s>
    target_tokens: int  # of target_output, padding not included

    @classmethod
    def from_ids(cls, pairs: Sequence[tuple[Ids, Ids]]) -> "Batch":
        """Pad pairs of (source ids, target ids), both without specials, and add the specials."""
        sources = [np.asarray(source, dtype=np.int64) for source, _ in pairs]
        targets = [np.asarray(target, dtype=np.int64) for _, target in pairs]
        source = torch.from_numpy(_pad(sources, last=EOS))
        target_output = torch.from_numpy(_pad(targets, last=EOS))
        return cls(
            source=source,
            source_mask=(source != PAD)[:, None, None, :],
            target_input=torch.from_numpy(_pad(targets, first=BOS)),
            target_output=target_output,
            target_tokens=sum(len(target) + 1 for target in targets),
        )

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Batch":
        """The same batch on another device; from pinned memory the copy runs beside the computation."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The same batch in page-locked memory; the data loader calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes as bytes through a pipe: torch would open a shared file and a socket for each
        tensor, which takes far longer than copying what little a batch holds."""
        tensors = (self.source, self.source_mask, self.target_input, self.target_output)
        return _from_arrays, (*(tensor.numpy() for tensor in tensors), self.target_tokens)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            source=change(self.source),
            source_mask=change(self.source_mask),
            target_input=change(self.target_input),
            target_output=change(self.target_output),
            target_tokens=self.target_tokens,
        )


def _from_arrays(
    source: Array, source_mask: Array, target_input: Array, target_output: Array, target_tokens: int
) -> Batch:
    return Batch(
        source=torch.from_numpy(source),
        source_mask=torch.from_numpy(source_mask),
        target_input=torch.from_numpy(target_input),
        target_output=torch.from_numpy(target_output),
        target_tokens=target_tokens,
    )


def _pad(
    rows: Sequence[npt.NDArray[np.int64]], first: int | None = None, last: int | None = None
) -> npt.NDArray[np.int64]:
    """Rows of unequal lengths as one array (B, longest + 1), with `first` before or `last` after each of them."""
    lengths = np.array([len(row) for row in rows])
    padded = np.full((len(rows), int(lengths.max()) + 1), PAD, dtype=np.int64)
    before = 0 if first is None else 1
    columns = np.arange(padded.shape[1])
    padded[(columns >= before) & (columns < lengths[:, None] + before)] = np.concatenate(rows)
    if first is not None:
        padded[:, 0] = first
    if last is not None:
        padded[np.arange(len(rows)), lengths] = last
    return padded
