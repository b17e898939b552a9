"""Which search finds a batch's translations, and what goes around the model's step for it: coverage, then constraints.

`TorchEngine` and `EnsembleEngine` call `search`, with their model as plain functions. Every search is a state and a
pure step; what goes around the step, all searches have alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import torch
from torch import Tensor

from transformer_cli.decoding.options import UNCONSTRAINED, Hypothesis, SearchOptions, TokenConstraints
from transformer_cli.decoding.search.automaton import ConstraintAutomaton
from transformer_cli.decoding.search.beam import Bonus, Propose, beam_search
from transformer_cli.decoding.search.constrained import ConstrainedCache, StepConstraints, bank_proposer, beams_needed
from transformer_cli.decoding.search.diverse import diverse_beam_search
from transformer_cli.decoding.search.greedy import CacheT, Key, Step, greedy_search, sample
from transformer_cli.errors import UserError

# Tokens (N,), cache → log-probabilities (N, V), attention on the source (N, S) while predicting them, cache
AttendingStep = Callable[[Tensor, CacheT], tuple[Tensor, Tensor, CacheT]]


@dataclass(frozen=True)
class StepModel(Generic[CacheT]):
    """What a search needs of a model, or of several."""

    start: Callable[[Sequence[Sequence[int]]], CacheT]  # sources → the cache over them, one row each
    step: Step[CacheT]
    attending_step: AttendingStep[CacheT]
    vocabulary_size: int
    max_target_length: int | None  # tokens, `</s>` not counted; None: any number
    device: torch.device
    copies_source: bool = False  # whether log-probabilities have, after the vocabulary, columns of source positions


@dataclass(frozen=True)
class Task:
    """Rows that are searched for together, one hypothesis or one beam search each."""

    options: SearchOptions
    limits: Sequence[int]  # most tokens of a translation, `</s>` not counted
    keys: Sequence[Key]
    automata: Sequence[ConstraintAutomaton] | None  # None: no row has constraints
    output_size: int
    device: torch.device

    def repeat(self, draws: int) -> "Task":
        """Return each row `draws` times, with a key of its own."""
        limits = [limit for limit in self.limits for _ in range(draws)]
        automata = None if self.automata is None else [one for one in self.automata for _ in range(draws)]
        keys = [(*key, draw) for key in self.keys for draw in range(draws)]
        return replace(self, limits=limits, keys=keys, automata=automata)


@dataclass(frozen=True)
class Walk(Generic[CacheT]):
    """What a search goes by."""

    step: Step[CacheT]
    cache: CacheT
    bonus: Bonus[CacheT] | None = None
    propose: Propose[CacheT] | None = None


def search(
    model: StepModel[CacheT],
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    keys: Sequence[Key],
    constraints: Sequence[TokenConstraints] | None,
    max_cells: int,
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each source, best first; see `TorchEngine.search`.

    No tensor over the vocabulary has more than `max_cells` cells, or it is a single sentence's. Sentences that need
    more beams, for what is required of them, are searched for apart.
    """
    automata: list[ConstraintAutomaton] | None = None
    widths = [options.beam_size] * len(sources)
    if constraints is not None and any(one != UNCONSTRAINED for one in constraints):
        different = {one: ConstraintAutomaton(one) for one in dict.fromkeys(constraints)}
        automata = [different[one] for one in constraints]
        if _has_banks(options):
            widths = [beams_needed(one, options.beam_size) for one in automata]
    least = [1] * len(sources) if automata is None else [one.least_limit for one in automata]
    limits = [_limit(model, options, len(source), one) for source, one in zip(sources, least, strict=True)]
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for width in sorted(set(widths)):
        alike = [place for place, other in enumerate(widths) if other == width]
        rows = {"beam": width, "greedy": 1, "sample": options.n_best}[options.method]
        for part in parts(len(alike), rows * output_size(model, sources), max_cells):
            places = alike[part]
            own = [sources[place] for place in places]
            task = Task(
                options=replace(options, beam_size=width),
                limits=[limits[place] for place in places],
                keys=[keys[place] for place in places],
                automata=None if automata is None else [automata[place] for place in places],
                output_size=output_size(model, own),
                device=model.device,
            )
            for place, hypotheses in zip(places, _cover(model, own, task), strict=True):
                found[place] = hypotheses
    return found


def parts(count: int, cells_each: int, max_cells: int) -> Iterator[slice]:
    """Cut `count` rows so that no part needs tensors of more than `max_cells` cells (or it is a single row)."""
    rows = max(1, max_cells // max(1, cells_each))
    return (slice(first, first + rows) for first in range(0, count, rows))


def output_size(model: StepModel[CacheT], sources: Sequence[Sequence[int]]) -> int:
    """Return how many columns the model's log-probabilities have for these sources: V, or V + S where it copies."""
    return model.vocabulary_size + (1 + max(map(len, sources), default=0) if model.copies_source else 0)


def _has_banks(options: SearchOptions) -> bool:
    """Return whether beams are shared out for what is required; else what a row lacks comes when it would end."""
    return options.method == "beam" and options.diversity_groups == 1


def _limit(model: StepModel[CacheT], options: SearchOptions, source_length: int, least: int) -> int:
    """Return the most tokens of a translation: `least` or more, but a position table does not grow."""
    limit, most = options.length_limit(source_length), model.max_target_length
    if most is not None and least - 1 > most:
        raise UserError(
            f"prefix and required text take {least - 1} tokens, but this model's learned positions end at {most}: "
            "require less"
        )
    return max(limit, least) if most is None else min(max(limit, least), max(1, most))


# --- what goes around the model's step --------------------------------------------------------------------------------


@dataclass(frozen=True)
class CoveredCache(Generic[CacheT]):
    """The model's cache, and how much attention each source position has got. Rows are hypotheses."""

    inner: CacheT
    before: Tensor | None = None  # (N, S) from all words so far; None: no step yet
    after: Tensor | None = None  # (N, S) and from the one that comes next

    def select(self, rows: Tensor) -> "CoveredCache[CacheT]":
        """Return the given rows, in the given order; `rows` (N,) may repeat."""
        before, after = (None if each is None else each[rows] for each in (self.before, self.after))
        return CoveredCache(self.inner.select(rows), before, after)


def coverage(attended: Tensor) -> Tensor:
    """Return Σ_j log min(attended, 1) over the positions that got any (Wu et al. 2016, eq. 14). (N, S) → (N,)"""
    return attended.clamp(max=1).log().masked_fill(attended == 0, 0.0).sum(dim=1)


def _cover(model: StepModel[CacheT], sources: Sequence[Sequence[int]], task: Task) -> list[list[Hypothesis]]:
    """Start the model; where there is a coverage penalty, let its step count attention.

    β Σ_j log min(Σ_i a_ij, 1), of the attention of target word i on source position j, is added to the score of a
    finished hypothesis after the length penalty; the search itself continues by log-probability. CTranslate2 does the
    same: `</s>` of the target does not count, `</s>` of the source does, and positions without attention are left out.
    """
    cache, draws, beta = model.start(sources), task.options.n_best, task.options.coverage_penalty
    if task.options.method == "sample":
        if draws > 1:
            cache = cache.select(torch.arange(len(sources), device=model.device).repeat_interleave(draws))
        task = task.repeat(draws)
    if not beta:
        return _constrain(Walk(model.step, cache), task)

    def step(tokens: Tensor, cache: CoveredCache[CacheT]) -> tuple[Tensor, CoveredCache[CacheT]]:
        log_probs, attention, inner = model.attending_step(tokens, cache.inner)
        before = torch.zeros_like(attention) if cache.after is None else cache.after
        return log_probs, CoveredCache(inner, before, before + attention)

    def bonus(cache: CoveredCache[CacheT]) -> tuple[Tensor, Tensor]:
        assert cache.before is not None, "no step yet"
        assert cache.after is not None
        return beta * coverage(cache.before), beta * coverage(cache.after)

    return _constrain(Walk(step, CoveredCache(cache), bonus), task)


def _constrain(walk: Walk[CacheT], task: Task) -> list[list[Hypothesis]]:
    """Put the constraints around the step, where there are any."""
    options, bonus = task.options, walk.bonus
    if task.automata is None and not options.no_repeat_ngram and options.min_length <= 1:
        return _find(walk, task)
    automata = task.automata or [ConstraintAutomaton(UNCONSTRAINED)] * len(task.limits)
    constraints = StepConstraints(
        options, automata, task.limits, task.output_size, task.device, required_at_end=not _has_banks(options)
    )
    propose: Propose[ConstrainedCache[CacheT]] | None = None
    if _has_banks(options) and constraints.tables.required:
        propose = bank_proposer(constraints.tables)
    inner_bonus = None if bonus is None else lambda cache: bonus(cache.inner)
    return _find(Walk(constraints.around(walk.step), constraints.start(walk.cache), inner_bonus, propose), task)


def _find(walk: Walk[CacheT], task: Task) -> list[list[Hypothesis]]:
    """Search in the way that the options name."""
    options, limits, step, cache, device = task.options, task.limits, walk.step, walk.cache, task.device
    if options.method == "sample":
        drawn, draws = sample(step, cache, limits, options, task.keys, device), options.n_best
        groups = [drawn[place : place + draws] for place in range(0, len(drawn), draws)]
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
    if options.diversity_groups > 1:
        return diverse_beam_search(step, cache, limits, options, device, walk.bonus)
    alone = options.beam_size == 1 and options.stopping == "first" and walk.bonus is None
    if options.method == "greedy" or alone:
        return [[one] for one in greedy_search(step, cache, limits, options, device)]
    return beam_search(step, cache, limits, options, device, walk.propose, walk.bonus)
