"""The engine that runs a CTranslate2 model, the fastest there is on a CPU. No torch, and CTranslate2 only when used.

`engines` makes it, from a folder that `ctranslate2_model` wrote. It searches by the same rule as `TorchEngine`, finds
the same translations, and leaves to that one, which is loaded when it is first needed, what it cannot do alike.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

from transformer_cli.decoding.devices import usable_cores
from transformer_cli.decoding.engines.protocol import Engine, Hypothesis, SearchBatch, batch_needs, torch_needs
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.publishing import read_json
from transformer_cli.storage.run_folder import EXPORTED
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import BOS, PAD, SPECIALS

CHUNK = 64  # sentences that a worker takes at a time
TRIED = 5  # sentences that come alone, in each of two ways
MOST_WORKERS = 16
NO_EARLY_EXIT = 1e-30  # a length penalty that changes no score; with 0, the search would end with the first ending

Ids = Sequence[int]
Found = list[list[Hypothesis]]  # of each sentence
LoadedT = TypeVar("LoadedT")


@dataclass(frozen=True)
class Description:
    """What the engine must know of a model that CTranslate2's own files do not say."""

    positions: int  # rows of the position tables: the longest source with </s>, and the longest target with <s>
    learned_positions: bool  # whether the model itself ends there
    alignment_layer: int = -1  # whose attention it gives
    alignment_heads: int | None = None  # the mean of its first ones; None: of all
    quantization: str | None = None  # the type that weights are stored in; None: float32
    shortlist: int = 0  # target tokens that are on every source token's list of those it may become; 0: no lists


def worker_count() -> int:
    """Return how many chunks of sentences are searched at once, on a thread each: OMP_NUM_THREADS, else the cores."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return max(1, min(int(given) if given.isdigit() else usable_cores(), MOST_WORKERS))


def once(load: Callable[[], LoadedT]) -> Callable[[], LoadedT]:
    """Return `load`, called when first asked for and never again, whichever threads ask."""
    loaded: list[LoadedT] = []
    lock = threading.Lock()

    def get() -> LoadedT:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return get


class LoneSentences:
    """Chooses the translator for a sentence that comes alone: one thread of the workers', or all on a second model.

    Depending on processor and model, all threads take half or twice the time in float32. So the first such sentences in
    a row with beams of one size are timed, and the faster way is kept, for searches of any kind. Threads may share it.
    """

    def __init__(self, one: Any, load_all: Callable[[], Any] | None) -> None:
        """load_all: loads the second model; None: all threads are never faster."""
        self._one, self._load_all = one, load_all
        self._all: Any = None
        self._kept = one if load_all is None else None  # None: to be found out
        self._seconds: tuple[list[float], list[float]] = [], []  # of a token, with one thread and with all
        self._beams = 0  # side by side in what is timed; more of them make a token slower
        self._timing = threading.Lock()  # held while one is timed

    def begin(self, beams: int) -> tuple[Any, bool]:
        """Return the translator for the next one, and whether it is timed: `end` must follow its search then."""
        if self._kept is not None or not self._timing.acquire(blocking=False):
            return self._kept or self._one, False
        if beams != self._beams:
            self._beams, self._seconds = beams, ([], [])
        number = sum(map(len, self._seconds))
        if self._kept is not None or (number + 1) // 2 % 2 == 0:  # one, all, all, one, one, all, …
            return self._kept or self._one, True
        try:
            self._all = self._all or self._load_all()  # type: ignore[misc]  # else one is kept
        except (MemoryError, RuntimeError):  # too little memory for a second model
            self._kept = self._one
        return self._all or self._one, True

    def end(self, translator: Any, seconds: float | None) -> None:
        """Take into account how long a token took; None: what was searched does not count."""
        if seconds is not None and self._kept is None:
            self._seconds[translator is self._all].append(seconds)
            if sum(map(len, self._seconds)) == 2 * TRIED:
                one, all_threads = map(median, self._seconds)
                self._kept = self._one if one <= all_threads else self._all
                self._all = None  # frees the second model if it is not kept
        self._timing.release()


class CTranslate2Engine:
    """Searches with a CTranslate2 model; see `Engine`."""

    name = "ctranslate2"

    def __init__(
        self,
        folder: Path,
        codecs: Codecs,
        other: Callable[[], Engine],
        *,
        device: str = "cpu",
        compute_type: str = "float32",
        advice: str | None = None,
    ) -> None:
        """other: loads the engine for what this one cannot do; advice: refuse that instead, and say this.

        device: cpu, cuda or cuda:N. Raises `UserError` where the folder is no such model, `RuntimeError` or
        `ValueError` where CTranslate2 cannot load it.
        """
        import ctranslate2

        self.description = read_json(folder / EXPORTED, Description)
        self.workers = worker_count() if device == "cpu" else 1
        kind, _, index = device.partition(":")

        load = partial(
            ctranslate2.Translator,
            str(folder),
            kind,
            device_index=int(index or 0),
            compute_type=compute_type,
            max_queued_batches=-1,  # `search` bounds what is under way
        )
        self._translator: Any = load(inter_threads=self.workers, intra_threads=1)
        # Threads share int8 products so badly that one is up to eight times as fast as all.
        shared = self.workers > 1 and not compute_type.startswith("int8")
        self._lone = LoneSentences(
            self._translator, partial(load, inter_threads=1, intra_threads=self.workers) if shared else None
        )
        self._source_tokens, self._target_tokens = (
            codec.vocabulary.get_itos() for codec in (codecs.source, codecs.target)
        )
        self._target_ids = codecs.target.vocabulary.get_stoi()
        self._other, self._advice = once(other), advice

    @property
    def max_source_length(self) -> int | None:
        """The most source tokens; a table of sinusoids has no end of its own."""
        return self.description.positions - 1 if self.description.learned_positions else None

    @property
    def max_target_length(self) -> int | None:
        """The most target tokens, as of the source."""
        return self.max_source_length

    # --- search -------------------------------------------------------------------------------------------------------

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[Found]:
        """Yield the hypotheses of each batch, in order. While workers search some, the caller prepares the next."""
        waiting: deque[Callable[[], Found]] = deque()
        under_way: deque[int] = deque()  # chunks
        lone, timed, seconds = self._translator, False, None
        begun = 0
        try:
            for begun, batch in enumerate(batches, start=1):
                translator = self._translator
                if begun == 1 and len(batch.sources) == 1:
                    translator, timed = self._lone.begin(options.beams)
                    lone, seconds = translator, math.inf  # if its search fails or is broken off
                began = perf_counter()
                chunks, collect = self._submit(batch, options, translator)
                waiting.append(collect)
                under_way.append(chunks)
                while sum(under_way) - under_way[0] >= 2 * self.workers:  # enough is left when the first is done
                    under_way.popleft()
                    yield waiting.popleft()()
            while waiting:
                found = waiting.popleft()()
                if timed:  # other batches would have had their part in it, and so would torch
                    counts = begun == 1 and chunks
                    seconds = (perf_counter() - began) / (1 + len(found[0][0].ids)) if counts else None
                yield found
        finally:
            if timed:
                self._lone.end(lone, seconds)

    def _submit(self, batch: SearchBatch, options: SearchOptions, translator: Any) -> tuple[int, Callable[[], Found]]:
        """Begin to search a batch: in how many chunks, and what waits for the hypotheses and gives them."""
        longest = max(map(len, batch.sources), default=0)
        lengths = longest + 1, self._limit(options, longest)
        of_batch = batch_needs(batch, options, max(lengths), self.description.positions, len(self._target_tokens))
        needs = [*torch_needs(options), *of_batch]
        if needs:
            other = self._instead(needs[0])
            return 0, lambda: next(iter(other().search([batch], options)))
        limits = [self._limit(options, len(source)) for source in batch.sources]
        # A greedy search goes the same way under a higher limit, so chunks may mix limits; others never do.
        mixed = options.beams == 1
        places = sorted(range(len(limits)), key=lambda place: limits[place])
        begun = []
        for _, group in groupby(places, key=lambda place: 0 if mixed else limits[place]):
            for chunk in _chunks(list(group), self.workers):
                limit = limits[chunk[-1]]
                sources = [self._source_strings(batch.sources[place]) for place in chunk]
                begun.append((chunk, limit, self._translate(translator, sources, options, limit)))
        return len(begun), lambda: self._collect(begun, limits, options, batch.sources)

    def _translate(self, translator: Any, sources: list[list[str]], options: SearchOptions, limit: int) -> list[Any]:
        """Return CTranslate2's results to come, one per source, of at most `limit` tokens."""
        beam = options.beams
        results: list[Any] = translator.translate_batch(
            sources,
            asynchronous=True,
            beam_size=beam,
            num_hypotheses=beam,  # all that ended, for it orders them by lengths that count </s>
            length_penalty=options.length_penalty or NO_EARLY_EXIT,
            max_input_length=0,  # else longer ones were cut without a word
            max_decoding_length=limit,
            min_decoding_length=1,
            no_repeat_ngram_size=options.no_repeat_ngram,
            suppress_sequences=[[SPECIALS[PAD]], [SPECIALS[BOS]]],
            return_scores=True,
            # All tokens where more than the likeliest are needed: many beams, or a search around a repetition.
            use_vmap=self.description.shortlist >= 2 * beam and not options.no_repeat_ngram,
        )
        return results

    def _collect(
        self,
        begun: Sequence[tuple[list[int], int, list[Any]]],
        limits: Sequence[int],
        options: SearchOptions,
        sources: Sequence[Ids],
    ) -> list[list[Hypothesis]]:
        found: list[list[Hypothesis]] = [[] for _ in sources]
        again = []  # what passed its own limit under that of its chunk
        for chunk, limit, results in begun:
            for place, pending in zip(chunk, results, strict=True):
                result, own = pending.result(), limits[place]
                if own < limit and len(result.hypotheses[0]) >= own:
                    strings = [self._source_strings(sources[place])]
                    again.append((place, self._translate(self._translator, strings, options, own)[0]))
                else:
                    found[place] = self._hypotheses(result, options, own)
        for place, pending in again:
            found[place] = self._hypotheses(pending.result(), options, limits[place])
        return self._rescored(sources, found, options) if options.no_repeat_ngram else found

    def _hypotheses(self, result: Any, options: SearchOptions, limit: int) -> list[Hypothesis]:
        """Return the `n_best` of what CTranslate2 found for a source, by our own score: |y| leaves </s> out."""
        scored = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            length = len(tokens)
            ended = length < limit  # at the limit it was cut: one that ended there would be a token shorter
            log_probability = score * (length + ended) ** options.length_penalty
            scored.append((log_probability / options.penalty(length), log_probability, ended, tokens))
        scored.sort(key=lambda one: -one[0])
        ids, kept = self._target_ids, len(scored) if options.no_repeat_ngram else options.n_best
        return [
            Hypothesis([ids[token] for token in tokens], score, log_probability, ended)
            for score, log_probability, ended, tokens in scored[:kept]
        ]

    def _rescored(
        self, sources: Sequence[Ids], found: Sequence[list[Hypothesis]], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """Return the `n_best` hypotheses by the model's own probabilities: where an n-gram is forbidden, CTranslate2
        gives the other tokens what its last token might have had, and so takes a loop that it breaks off for likely.
        """
        pairs = [(source, one) for source, group in zip(sources, found, strict=True) for one in group]
        rows = iter(self.score([source for source, _ in pairs], [one.ids for _, one in pairs]))
        best = []
        for group in found:
            scored = []
            for one in group:
                row = next(rows)
                log_probability = sum(row if one.ended else row[:-1])
                score = log_probability / options.penalty(len(one.ids))
                scored.append(Hypothesis(one.ids, score, log_probability, one.ended))
            best.append(sorted(scored, key=lambda one: -one.score)[: options.n_best])
        return best

    def _limit(self, options: SearchOptions, source_length: int) -> int:
        limit = options.length_limit(source_length)
        return limit if self.max_target_length is None else max(1, min(limit, self.max_target_length))

    def _instead(self, need: str) -> Callable[[], Engine]:
        """Return what gives the engine that can; `UserError` where there is to be no other."""
        if self._advice is not None:
            raise UserError(f"the ctranslate2 engine cannot do {need}; {self._advice}")
        return self._other

    # --- forced decoding ----------------------------------------------------------------------------------------------

    def score(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[list[float]]:
        """Return log-probabilities as `Engine.score` does."""
        longest = max(map(len, (*sources, *targets)), default=0) + 1
        if longest > self.description.positions:
            need = f"texts of {longest:,} tokens (here {self.description.positions:,} are the most)"
            return self._instead(need)().score(sources, targets)
        begun = []
        for chunk in _chunks(list(range(len(sources))), self.workers):
            begun += self._translator.score_batch(
                [self._source_strings(sources[place]) for place in chunk],
                [self._target_strings(targets[place]) for place in chunk],
                max_input_length=0,
                asynchronous=True,
            )
        return [list(pending.result().log_probs) for pending in begun]

    def align(
        self,
        sources: Sequence[Ids],
        targets: Sequence[Ids],
        layer: int = -1,
        heads: Sequence[int] | None = None,
        skip: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return places as `Engine.align` does.

        CTranslate2 gives what was written into the model: the mean over the heads of the last layer, or, where they are
        the first heads of a layer, those that learned to align. Other layers and heads are torch's.
        """
        import numpy as np  # not at the top: it takes a while

        from transformer_cli.decoding.engines.protocol import own_sources

        longest = max(map(len, (*sources, *targets)), default=0) + 1
        first = self.description.alignment_heads
        given = self.description.alignment_layer, None if first is None else tuple(range(first))
        if (
            (layer, None if heads is None else tuple(sorted(heads))) != given
            or longest > self.description.positions
            or not all(map(len, sources))
        ):
            other = self._instead("alignments from other layers or heads than the model's own")
            return other().align(sources, targets, layer, heads, skip)
        places = sorted(
            (place for place, target in enumerate(targets) if target), key=lambda place: len(targets[place])
        )
        begun: list[tuple[int, Any]] = []
        for chunk in _chunks(places, self.workers):
            results = self._translator.translate_batch(
                [self._source_strings(sources[place]) for place in chunk],
                [self._target_strings(targets[place]) for place in chunk],
                asynchronous=True,
                beam_size=1,
                max_input_length=0,
                max_decoding_length=len(targets[chunk[-1]]),  # shorter ones continue after their own tokens
                min_decoding_length=1,
                return_attention=True,
            )
            begun += zip(chunk, results, strict=True)
        alignments: list[list[int]] = [[] for _ in targets]
        for place, pending in begun:
            weights = np.array(pending.result().attention[0][: len(targets[place])])  # (T, S)
            alignments[place] = own_sources(weights[:, skip[place] if skip else 0 :])
        return alignments

    def _source_strings(self, ids: Ids) -> list[str]:
        return [self._source_tokens[token] for token in ids]  # CTranslate2 adds </s>

    def _target_strings(self, ids: Ids) -> list[str]:
        return [self._target_tokens[token] for token in ids]


def _chunks(places: list[int], workers: int) -> Iterator[list[int]]:
    """Cut so that every worker has something to do, and none more than CHUNK at a time."""
    size = max(1, min(CHUNK, -(-len(places) // workers)))
    return (places[start : start + size] for start in range(0, len(places), size))
