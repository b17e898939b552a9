"""What an engine is: ids in, ids out. `TorchEngine` is one, `CTranslate2Engine` another; `Translator` knows no more.

No torch. An engine's methods may be called from several threads at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from transformer_cli.config import Config
from transformer_cli.decoding.options import Demands, Hypothesis, SearchOptions
from transformer_cli.text.codec import Codecs


class Engine(Protocol):
    """What searches. Ids come and go without specials."""

    @property
    def name(self) -> str: ...

    @property
    def max_source_length(self) -> int | None: ...

    @property
    def max_target_length(self) -> int | None: ...

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        keys: Sequence[tuple[int, ...]] | None = None,
        demands: Sequence[Demands] | None = None,
    ) -> list[list[Hypothesis]]: ...

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]: ...

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
    ) -> list[list[int]]: ...


@dataclass(frozen=True)
class SearchBatch:
    """Sentences that are searched together: what `Engine.search` takes beside the options."""

    sources: list[list[int]]
    keys: list[tuple[int, ...]]
    demands: list[Demands] | None = None  # None: of no sentence anything


@runtime_checkable
class PipelinedEngine(Protocol):
    """An engine that works on some batches while the caller prepares the next ones."""

    def search_batches(
        self, batches: Iterable[SearchBatch], options: SearchOptions
    ) -> Iterator[list[list[Hypothesis]]]: ...


class LoadedEngine(NamedTuple):
    """An engine, and what of its model is text."""

    engine: Engine
    codecs: Codecs
    config: Config


def search_batches(
    engine: Engine, batches: Iterable[SearchBatch], options: SearchOptions
) -> Iterator[list[list[Hypothesis]]]:
    """What is found for each batch, in order. `batches` is read in this thread, a few batches ahead or none."""
    if isinstance(engine, PipelinedEngine):
        yield from engine.search_batches(batches, options)
    else:
        for batch in batches:
            yield engine.search(batch.sources, options, batch.keys, batch.demands)
