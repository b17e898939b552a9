"""A batch as the model sees it: padded tensors with the specials in place. Made by the loader, evaluation and tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
    target_places: Tensor  # (N,) int64: where target_output, flattened, holds a token; found here, where nobody waits
    # (L, 3) int64: row, place in target_output, place in source of tokens that belong together; None: nobody asks
    links: Tensor | None = None

    @property
    def target_tokens(self) -> int:
        """N, the tokens of `target_output`, padding not included."""
        return len(self.target_places)

    @classmethod
    def from_ids(
        cls, pairs: Sequence[tuple[Ids, Ids]], pad_to: int = 1, links: Sequence[Array] | None = None
    ) -> "Batch":
        """Pad pairs of (source ids, target ids), both without specials, and add the specials.

        S and T are the longest lengths, rounded up to multiples of `pad_to`. `links`: of each pair the linked places in
        target and source, (links, 2).
        """
        sources = [np.asarray(source, dtype=np.int64) for source, _ in pairs]
        targets = [np.asarray(target, dtype=np.int64) for _, target in pairs]
        return cls._of(
            torch.from_numpy(_pad(sources, pad_to, last=EOS)),
            torch.from_numpy(_pad(targets, pad_to, first=BOS)),
            torch.from_numpy(_pad(targets, pad_to, last=EOS)),
            links=None if links is None else torch.from_numpy(_with_rows(links)),
        )

    @classmethod
    def _of(cls, source: Tensor, target_input: Tensor, target_output: Tensor, *, links: Tensor | None) -> "Batch":
        return cls(
            source=source,
            source_mask=(source != PAD)[:, None, None, :],
            target_input=target_input,
            target_output=target_output,
            target_places=(target_output.flatten() != PAD).nonzero().squeeze(1),
            links=links,
        )

    def halves(self) -> tuple["Batch", "Batch"]:
        """Return the first and the second half of the sentences, of which there must be two at least."""
        middle = len(self.source) // 2
        assert middle, "a single sentence cannot be halved"
        parts = (self.source, self.target_input, self.target_output)
        first, second = (None, None) if self.links is None else _halve_links(self.links, middle)
        before, after = [part[:middle] for part in parts], [part[middle:] for part in parts]
        return Batch._of(*before, links=first), Batch._of(*after, links=second)

    def beside_other_sources(self, words: int) -> tuple["Batch", "Batch"]:
        """Return some of the sentences, and these once more, each target beside the source of the sentence before it,
        which is about as long.

        Left out are those whose source is the same as that one, and targets with ids from `words` on, which stand for
        places in a source (`generator: pointer`). Both may be empty.
        """
        source = self.source.roll(1, 0)
        kept = (source != self.source).any(1) & (self.target_output < words).all(1)
        rest = self.target_input[kept], self.target_output[kept]
        return Batch._of(self.source[kept], *rest, links=None), Batch._of(source[kept], *rest, links=None)

    def to(self, device: torch.device | str, non_blocking: bool = True) -> "Batch":
        """Return the same batch on another device; from pinned memory the copy runs beside the computation."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the same batch in page-locked memory; the data loader calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes as bytes through a pipe: torch would open a shared file and a socket for each
        tensor, which takes far longer than copying what little a batch holds."""
        return _from_arrays, tuple(self._each(Tensor.numpy))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(*self._each(change))

    def _each(self, change: Callable[[Tensor], Any]) -> list[Any]:
        """Return what becomes of each field; None stays None."""
        tensors = [getattr(self, field.name) for field in fields(self)]
        return [None if tensor is None else change(tensor) for tensor in tensors]


def _from_arrays(*arrays: Any) -> Batch:
    tensors: list[Any] = [None if array is None else torch.from_numpy(array) for array in arrays]
    return Batch(*tensors)


def _with_rows(links: Sequence[Array]) -> Array:
    """Return the links of each pair (links, 2) as one array (L, 3), each after the row of its pair."""
    rows = np.repeat(np.arange(len(links)), [len(of_pair) for of_pair in links])
    return np.column_stack([rows, np.concatenate(links)]).astype(np.int64)


def _halve_links(links: Tensor, middle: int) -> tuple[Tensor, Tensor]:
    """Return the links of the rows before the middle, and those from it on, whose rows are counted from there."""
    is_first = links[:, 0] < middle
    return links[is_first], links[~is_first] - links.new_tensor([middle, 0, 0])


def _pad(
    rows: Sequence[npt.NDArray[np.int64]], pad_to: int, first: int | None = None, last: int | None = None
) -> npt.NDArray[np.int64]:
    """Return rows of unequal lengths as one array (B, longest + 1), with `first` before or `last` after each of them.

    Its width is rounded up to a multiple of `pad_to`.
    """
    lengths = np.array([len(row) for row in rows])
    width = -(-(int(lengths.max()) + 1) // pad_to) * pad_to
    padded = np.full((len(rows), width), PAD, dtype=np.int64)
    before = 0 if first is None else 1
    columns = np.arange(padded.shape[1])
    padded[(columns >= before) & (columns < lengths[:, None] + before)] = np.concatenate(rows)
    if first is not None:
        padded[:, 0] = first
    if last is not None:
        padded[np.arange(len(rows)), lengths] = last
    return padded
