"""The engine that asks several models at once: each token's probability is the mean of theirs.

`Translator` takes it as it takes `TorchEngine`. The models may differ in all but their vocabularies.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transformer_cli.build import build_engine, load_model
from transformer_cli.decoding.devices import choose_device
from transformer_cli.decoding.engines.protocol import LoadedEngine, SearchBatch
from transformer_cli.decoding.engines.torch_engine import (
    MAX_CELLS,
    SearchCache,
    TorchEngine,
    evaluating,
    search_in_threads,
)
from transformer_cli.decoding.options import Hypothesis, SearchOptions, TokenConstraints
from transformer_cli.decoding.search.dispatch import StepModel, search
from transformer_cli.decoding.search.greedy import Key
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs


@dataclass(frozen=True)
class EnsembleCache:
    """Each model's own cache, of the same rows."""

    caches: tuple[SearchCache, ...]

    def select(self, rows: Tensor) -> "EnsembleCache":
        """Return the given rows, in the given order; `rows` (N,) may repeat."""
        return EnsembleCache(tuple(cache.select(rows) for cache in self.caches))


def load_ensemble(folders: Sequence[Path], device: str = "auto") -> LoadedEngine:
    """Return the models of some checkpoint folders as one engine, with the first one's text side and config.

    Raises `UserError` where vocabularies differ, or where `load_model` or `choose_device` do.
    """
    target = choose_device(device)
    models = [load_model(folder, target) for folder in folders]
    for loaded in models:
        if loaded.config.model.generation != "autoregressive":
            raise UserError(
                f"{loaded.folder}: writes all tokens at once; models decide together token after token only"
            )
    for other in models[1:]:
        check_vocabularies(models[0].codecs, models[0].folder, other.codecs, other.folder)
        if other.config.model.generator != models[0].config.model.generator:
            raise UserError(
                f"{other.folder}: its generator is not that of {models[0].folder} ({other.config.model.generator} and "
                f"{models[0].config.model.generator}); models work together only if all copy or none"
            )
    engines = [build_engine(loaded.model, target, constant=True) for loaded in models]
    return LoadedEngine(
        EnsembleEngine([engine for engine in engines if isinstance(engine, TorchEngine)]),
        models[0].codecs,
        models[0].config,
    )


def check_vocabularies(codecs: Codecs, folder: Path, other: Codecs, other_folder: Path) -> None:
    """Raise `UserError` unless every id means the same token in both models, on either side."""
    for side in ("source", "target"):
        tokens, others = (getattr(each, side).vocabulary.get_itos() for each in (codecs, other))
        if tokens != others:
            if len(tokens) != len(others):
                difference = f"{len(tokens):,} and {len(others):,} tokens"
            else:
                place = next(place for place, token in enumerate(tokens) if token != others[place])
                difference = f"token {place} is {tokens[place]!r} and {others[place]!r}"
            raise UserError(
                f"{other_folder}: its {side} vocabulary is not that of {folder} ({difference}); "
                "models work together only if they were trained with one vocabulary"
            )


class EnsembleEngine:
    """Searches and scores with the mean of the models' probabilities; alignments are the first model's."""

    name = "torch"

    def __init__(self, engines: Sequence[TorchEngine]) -> None:
        self.engines = tuple(engines)
        self._models = [engine.model for engine in self.engines]
        self.device = self.engines[0].device
        sizes = {engine.vocabulary_size for engine in self.engines}
        assert len(sizes) == 1, "vocabularies are compared before"

    @property
    def max_source_length(self) -> int | None:
        """The most source tokens, `</s>` not counted, that all models take; None: any number."""
        return _least(engine.max_source_length for engine in self.engines)

    @property
    def max_target_length(self) -> int | None:
        """The most target tokens, `</s>` not counted, that all models take; None: any number."""
        return _least(engine.max_target_length for engine in self.engines)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        options: SearchOptions,
        keys: Sequence[Key] | None = None,
        constraints: Sequence[TokenConstraints] | None = None,
    ) -> list[list[Hypothesis]]:
        """Do as `TorchEngine.search`."""
        keys = [(place,) for place in range(len(sources))] if keys is None else keys
        with evaluating(*self._models), torch.inference_mode():
            return search(self.step_model, sources, options, keys, constraints, MAX_CELLS)

    def search_batches(
        self, batches: Iterable[SearchBatch], options: SearchOptions
    ) -> Iterator[list[list[Hypothesis]]]:
        """Do as `TorchEngine.search_batches`."""
        return search_in_threads(
            lambda batch: self.search(batch.sources, options, batch.keys, batch.constraints),
            self._models,
            batches,
            self.device,
        )

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Do as `TorchEngine.score`: the log of the mean probability of each token."""
        each = [engine.score(sources, targets) for engine in self.engines]
        return [
            mean_log_probs([torch.tensor(row, dtype=torch.float64) for row in rows]).tolist()
            for rows in zip(*each, strict=True)
        ]

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Do as `TorchEngine.align`, by the first model alone."""
        return self.engines[0].align(sources, targets, layer, heads)

    @property
    def step_model(self) -> StepModel[EnsembleCache]:
        """The models as one, for a search."""
        models = [engine.step_model for engine in self.engines]

        def start(sources: Sequence[Sequence[int]]) -> EnsembleCache:
            return EnsembleCache(tuple(model.start(sources) for model in models))

        def step(tokens: Tensor, cache: EnsembleCache) -> tuple[Tensor, EnsembleCache]:
            results = [model.step(tokens, one) for model, one in zip(models, cache.caches, strict=True)]
            log_probs = mean_log_probs([log_probs for log_probs, _ in results])
            return log_probs, EnsembleCache(tuple(grown for _, grown in results))

        def attending_step(tokens: Tensor, cache: EnsembleCache) -> tuple[Tensor, Tensor, EnsembleCache]:
            first, attention, grown = models[0].attending_step(tokens, cache.caches[0])
            rest = [model.step(tokens, one) for model, one in zip(models[1:], cache.caches[1:], strict=True)]
            log_probs = mean_log_probs([first, *(log_probs for log_probs, _ in rest)])
            return log_probs, attention, EnsembleCache((grown, *(one for _, one in rest)))

        size = self.engines[0].vocabulary_size
        copies = self.engines[0].copies_source
        return StepModel(start, step, attending_step, size, self.max_target_length, self.device, copies)


def mean_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean of the models' probabilities, given as logs, all of one shape."""
    return torch.stack([*log_probs]).logsumexp(dim=0) - math.log(len(log_probs))


def _least(lengths: Iterable[int | None]) -> int | None:
    return min((length for length in lengths if length is not None), default=None)
