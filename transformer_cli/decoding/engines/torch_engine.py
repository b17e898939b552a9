"""The engine that runs our own Transformer: search, forced scores and alignments of one batch of token ids.

`Translator` calls it. Source and target ids come and go without specials; the engine adds them.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformer_cli.data.batch import Batch
from transformer_cli.decoding.devices import use_quick_attention
from transformer_cli.decoding.engines.fast_step import FastStep, can_step_fast
from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch, own_sources
from transformer_cli.decoding.search.dispatch import StepModel, output_size, parts, search
from transformer_cli.decoding.search.greedy import accumulation_dtype
from transformer_cli.errors import UserError
from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.layers import DecoderLayer
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import DecoderOutput, Transformer
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD


@dataclass(frozen=True)
class SearchCache:
    """N rows are hypotheses. They read M sentences: while all sentences have as many rows, N / M each, they share.

    So a sentence's memory is neither copied for its beams nor moved when these change places.
    """

    decoder: DecoderCache
    source: Tensor  # (M, S)
    source_mask: Tensor  # (M, 1, 1, S)
    places: Tensor  # (N,) which of the M each row reads; ascending

    @classmethod
    def start(cls, decoder: DecoderCache, source: Tensor, source_mask: Tensor) -> Self:
        """Begin with one row per sentence."""
        return cls(decoder, source, source_mask, torch.arange(len(source), device=source.device))

    def select(self, rows: Tensor) -> Self:
        """Return the given rows, in the given order; `rows` (N,) may repeat. Those of a sentence stay together."""
        places = self.places[rows]
        if places.shape == self.places.shape and torch.equal(places, self.places):
            decoder = self.decoder.select(rows, memory_rows=None)
            return type(self)(decoder, self.source, self.source_mask, self.places)
        sentences, counts = torch.unique_consecutive(places, return_counts=True)
        shared = bool((counts == counts[:1]).all())
        kept = sentences if shared else places
        width = len(rows) // max(1, len(kept))
        places = torch.arange(len(kept), device=rows.device).repeat_interleave(width)
        decoder = self.decoder.select(rows, memory_rows=kept)
        return type(self)(decoder, self.source[kept], self.source_mask[kept], places)


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def map_in_order(work: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int) -> Iterator[ResultT]:
    """Map with up to `workers` items under way at once. `items` are read in this thread, one ahead of the workers.

    What `work` raises is raised here, at its place. Closed early, it waits for what is under way and drops the rest.
    """
    items = iter(items)
    first = list(islice(items, 2))
    if workers < 2 or len(first) < 2:
        yield from map(work, chain(first, items))
        return
    width = torch.get_num_threads()
    pool = ThreadPoolExecutor(workers, "tfm-search", initializer=_take_one_core)
    try:
        under_way: deque[Future[ResultT]] = deque()
        for item in chain(first, items):
            under_way.append(pool.submit(work, item))
            if len(under_way) > workers:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(width)  # a thread has its own number, but a new one starts with what was set last


def _take_one_core() -> None:
    """Use one thread for each operation of this one. Only when it is asked for does a thread keep what was set."""
    torch.set_num_threads(1)
    torch.get_num_threads()


@contextmanager
def evaluating(*models: torch.nn.Module) -> Iterator[None]:
    """Switch dropout off inside; afterwards the modes are as before."""
    training = [model for model in models if model.training]
    for model in training:
        model.eval()
    try:
        yield
    finally:
        for model in training:
            model.train()


def search_in_threads(
    search: Callable[[SearchBatch], list[list[Hypothesis]]],
    models: Sequence[torch.nn.Module],
    batches: Iterable[SearchBatch],
    device: torch.device,
) -> Iterator[list[list[Hypothesis]]]:
    """Yield `search` of each batch, in order; on a CPU one batch per core at a time, read ahead as that takes."""

    def search_one(batch: SearchBatch) -> list[list[Hypothesis]]:
        with torch.inference_mode():  # of each thread's own
            return search(batch)

    with evaluating(*models):
        yield from map_in_order(search_one, batches, torch.get_num_threads() if device.type == "cpu" else 1)


MAX_CELLS = 2**27  # of one tensor over the vocabulary or of attention weights: 512 MB in float32


def padded_rows(rows: Iterable[Sequence[int]]) -> Tensor:
    """Return rows of ids side by side, (B, T)."""
    return pad_sequence([torch.tensor([*row], dtype=torch.long) for row in rows], batch_first=True, padding_value=PAD)


def check_attention(layers: int, layer: int, count: int, heads: Sequence[int] | None) -> None:
    """Raise `UserError` where a decoder of so many layers, of `count` heads each, has no such layer or head."""
    if not -layers <= layer < layers:
        raise UserError(f"alignment layer {layer}: the decoder has {layers} layers; count them from 0")
    for head in () if heads is None else heads:
        if not 0 <= head < count:
            raise UserError(f"alignment head {head}: the layer has {count} heads; count them from 0")
    assert heads is None or len(heads) > 0, "no heads to take the mean over"


def without_special(positions: Iterable[int | None]) -> int | None:
    """Return how many tokens fit into the fewest of these positions beside `<s>` or `</s>`; None: any number."""
    return min((one - 1 for one in positions if one is not None), default=None)


def step_model(model: Transformer, device: torch.device, constant: bool) -> StepModel[SearchCache]:
    """Return a Transformer as a search takes it."""
    fast_step = FastStep(model, constant) if can_step_fast(model) else None

    def start(sources: Sequence[Sequence[int]]) -> SearchCache:
        source = padded_rows([*source, EOS] for source in sources).to(device)  # (B, S)
        source_mask = padding_mask(source)
        decoder = model.start_cache(model.encode(source, source_mask))
        return SearchCache.start(decoder, source, source_mask)

    def step(tokens: Tensor, cache: SearchCache) -> tuple[Tensor, SearchCache]:
        if fast_step is None:
            output = model.decode(tokens[:, None], None, cache.source_mask, cache.decoder)
            decoder, log_probs = output.cache, last(output, cache)
        else:
            log_probs, decoder = fast_step(tokens, cache.source_mask, cache.decoder)
        log_probs[:, PAD] = log_probs[:, BOS] = -torch.inf  # no translation holds them
        return log_probs, replace(cache, decoder=decoder)

    def attending_step(tokens: Tensor, cache: SearchCache) -> tuple[Tensor, Tensor, SearchCache]:
        output = model.decode(tokens[:, None], None, cache.source_mask, cache.decoder, need_weights=True)
        log_probs = last(output, cache)
        log_probs[:, PAD] = log_probs[:, BOS] = -torch.inf
        attention = output.cross_attention[-1][:, :, -1].mean(dim=1)  # of the last layer
        return log_probs, attention.to(accumulation_dtype(attention.dtype)), replace(cache, decoder=output.cache)

    def last(output: DecoderOutput, cache: SearchCache) -> Tensor:
        """Return those of the only position, (N, V), in one piece: a search reads a batch as one row."""
        log_probs: Tensor = model.generator(output, cache.source)  # (N, 1, V)
        return log_probs[:, 0].contiguous()

    size, most = model.generator.projection.out_features, without_special([model.max_target_length])
    return StepModel(start, step, attending_step, size, most, device, model.generator.copies_source)


@dataclass(frozen=True)
class EnsembleCache:
    """Each model's own cache, of the same rows."""

    caches: tuple[SearchCache, ...]

    def select(self, rows: Tensor) -> "EnsembleCache":
        """Return the given rows, in the given order; `rows` (N,) may repeat."""
        return EnsembleCache(tuple(cache.select(rows) for cache in self.caches))


def ensemble(models: Sequence[StepModel[SearchCache]]) -> StepModel[EnsembleCache]:
    """Return several models as one: each probability is the mean of theirs, the attention is the first one's."""

    def start(sources: Sequence[Sequence[int]]) -> EnsembleCache:
        return EnsembleCache(tuple(model.start(sources) for model in models))

    def step(tokens: Tensor, cache: EnsembleCache) -> tuple[Tensor, EnsembleCache]:
        found = [model.step(tokens, own) for model, own in zip(models, cache.caches, strict=True)]
        return mean_log_probs([one for one, _ in found]), EnsembleCache(tuple(grown for _, grown in found))

    def attending_step(tokens: Tensor, cache: EnsembleCache) -> tuple[Tensor, Tensor, EnsembleCache]:
        log_probs, attention, grown = models[0].attending_step(tokens, cache.caches[0])
        rest = [model.step(tokens, own) for model, own in zip(models[1:], cache.caches[1:], strict=True)]
        log_probs = mean_log_probs([log_probs, *(one for one, _ in rest)])
        return log_probs, attention, EnsembleCache((grown, *(one for _, one in rest)))

    most = min((one.max_target_length for one in models if one.max_target_length is not None), default=None)
    first = models[0]
    return StepModel(start, step, attending_step, first.vocabulary_size, most, first.device, first.copies_source)


def mean_log_probs(log_probs: Sequence[Tensor]) -> Tensor:
    """Return the log of the mean of the models' probabilities, given as logs, all of one shape."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([*log_probs]).logsumexp(dim=0) - math.log(len(log_probs))


class TorchEngine:
    """Searches with a Transformer, in evaluation mode whatever mode it is in, or with several; see `Engine`.

    Then each token's probability is the mean of theirs, and alignments are the first one's.
    """

    name = "torch"

    def __init__(
        self,
        model: Transformer,
        device: torch.device | str = "cpu",
        *,
        others: Sequence[Transformer] = (),
        constant: bool = False,
    ) -> None:
        """others: with the model's vocabularies, and its way to copy. constant: the parameters of all will never change
        again, so that steps may keep them as suits them best.
        """
        use_quick_attention(torch.device(device))
        self.models = [one.to(device) for one in (model, *others)]
        self.model, self.device = self.models[0], torch.device(device)
        self.vocabulary_size = model.generator.projection.out_features
        assert all(one.generator.projection.out_features == self.vocabulary_size for one in others)
        each = [step_model(one, self.device, constant) for one in self.models]
        self.step_model: StepModel[Any] = ensemble(each) if others else each[0]

    @property
    def max_source_length(self) -> int | None:
        """The most source tokens that all models take."""
        return without_special(one.max_source_length for one in self.models)

    @property
    def max_target_length(self) -> int | None:
        """The most target tokens that all models take."""
        return without_special(one.max_target_length for one in self.models)

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
        """Yield the hypotheses of each batch, in order; see `search_in_threads`."""
        return search_in_threads(
            lambda batch: search(self.step_model, batch, options, MAX_CELLS), self.models, batches, self.device
        )

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probabilities as `Engine.score` does, of the mean of all models' probabilities."""
        scores: list[list[float]] = []
        longest = 1 + max(map(len, targets), default=0)
        for part in parts(len(sources), longest * output_size(self.step_model, sources), MAX_CELLS):
            batch = Batch.from_ids(list(zip(sources[part], targets[part], strict=True))).to(self.device)
            of_models = []
            with evaluating(*self.models), torch.inference_mode():
                for model in self.models:
                    output = model(batch.source, batch.source_mask, batch.target_input)
                    log_probs = model.generator(output, batch.source)  # (B, T, V)
                    of_models.append(log_probs.gather(2, batch.target_output[:, :, None])[:, :, 0].double())
                chosen = mean_log_probs(of_models)  # (B, T)
            scores += [row[: len(target) + 1] for row, target in zip(chosen.tolist(), targets[part], strict=True)]
        return scores

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
        skip: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return places as `Engine.align` does, by the first model's attention."""
        skip = skip or [0] * len(sources)
        layers = cast(Sequence[DecoderLayer], self.model.decoder.layers)
        count = layers[0].cross_attention.heads
        check_attention(len(layers), layer, count, heads)
        alignments: list[list[int]] = []
        longest = max(map(len, targets), default=0) * (1 + max(map(len, sources), default=0))
        for part in parts(len(sources), 2 * len(layers) * count * longest, MAX_CELLS):
            # The last token is predicted from those before it: it need not go in.
            batch = Batch.from_ids(
                [(source, target[:-1]) for source, target in zip(sources[part], targets[part], strict=True)]
            ).to(self.device)
            with evaluating(self.model), torch.inference_mode():
                memory = self.model.encode(batch.source, batch.source_mask)
                output = self.model.decode(batch.target_input, memory, batch.source_mask, need_weights=True)
                chosen = output.cross_attention[layer] if heads is None else output.cross_attention[layer][:, heads]
                weights = chosen.mean(dim=1).to(accumulation_dtype(chosen.dtype)).cpu().numpy()  # (B, T, S)
            alignments += [
                own_sources(table[: len(target), first : len(source)])
                for table, source, target, first in zip(weights, sources[part], targets[part], skip[part], strict=True)
            ]
        return alignments
