"""Which search finds a batch's translations, and what goes around the model's step for it: coverage, then constraints.

`TorchEngine` calls `search`, with its model as plain functions. Every search is a state and a pure step; what goes
around the step, all searches have alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import torch
from torch import Tensor

from transformer_cli.decoding.engines.protocol import UNCONSTRAINED, Hypothesis, SearchBatch
from transformer_cli.decoding.search.automaton import ConstraintAutomaton
from transformer_cli.decoding.search.beam import Bonus, Propose, beam_search
from transformer_cli.decoding.search.constrained import StepConstraints, bank_proposer, beams_needed
from transformer_cli.decoding.search.greedy import CacheT, Key, Step, greedy_search, sample
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions

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


def search(
    model: StepModel[CacheT], batch: SearchBatch, options: SearchOptions, max_cells: int
) -> list[list[Hypothesis]]:
    """Return the `n_best` hypotheses of each source, best first.

    No tensor over the vocabulary has more than `max_cells` cells, or it is a single sentence's. Sentences that need
    more beams, for what is required of them, are searched for apart.
    """
    sources, constraints = batch.sources, batch.constraints
    keys = [(place,) for place in range(len(sources))] if batch.keys is None else batch.keys
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
            hypotheses = _search_part(
                model,
                [sources[place] for place in places],
                replace(options, beam_size=width),
                [keys[place] for place in places],
                [limits[place] for place in places],
                None if automata is None else [automata[place] for place in places],
            )
            for place, one in zip(places, hypotheses, strict=True):
                found[place] = one
    return found


def _search_part(
    model: StepModel[CacheT],
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    keys: Sequence[Key],
    limits: Sequence[int],
    automata: Sequence[ConstraintAutomaton] | None,
) -> list[list[Hypothesis]]:
    """Search as the options name it, with coverage and constraints around the model's step where there are any."""
    device = model.device
    step: Step[Any] = model.step
    cache: Any = model.start(sources)
    bonus: Bonus[Any] | None = None
    covered: Bonus[Any] = coverage_bonus(options.coverage_penalty)
    propose: Propose[Any] | None = None
    if options.coverage_penalty:
        step, cache, bonus = covering(model.attending_step), CoveredCache(cache), covered
    if automata is not None or options.no_repeat_ngram or options.min_length > 1:
        automata = automata or [ConstraintAutomaton(UNCONSTRAINED)] * len(sources)
        required_at_end, size = not _has_banks(options), output_size(model, sources)
        constraints = StepConstraints(options, automata, limits, size, device, required_at_end)
        step, cache = constraints.around(step), constraints.start(cache)
        bonus = None if bonus is None else lambda cache: covered(cache.inner)
        if constraints.tables.required and not required_at_end:
            propose = bank_proposer(constraints.tables)
    if options.method == "sample":
        return sample(step, cache, limits, options, keys, device)
    alone = options.beam_size == 1 and options.stopping == "first" and bonus is None
    if options.method == "greedy" or alone:
        return [[one] for one in greedy_search(step, cache, limits, options, device)]
    return beam_search(step, cache, limits, options, device, propose, bonus)


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


# --- coverage ---------------------------------------------------------------------------------------------------------


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


def covering(attending_step: AttendingStep[CacheT]) -> Step[CoveredCache[CacheT]]:
    """Return the model's step as one that adds up attention."""

    def step(tokens: Tensor, cache: CoveredCache[CacheT]) -> tuple[Tensor, CoveredCache[CacheT]]:
        log_probs, attention, inner = attending_step(tokens, cache.inner)
        before = torch.zeros_like(attention) if cache.after is None else cache.after
        return log_probs, CoveredCache(inner, before, before + attention)

    return step


def coverage_bonus(beta: float) -> Bonus[CoveredCache[CacheT]]:
    """Return what coverage adds to a score: β Σ_j log min(Σ_i a_ij, 1) (Wu et al. 2016, eq. 14).

    Of the attention a_ij of target word i on source position j, after the length penalty; the search itself continues
    by log-probability. CTranslate2 does the same: `</s>` of the target does not count, `</s>` of the source does, and
    positions without attention are left out.
    """

    def bonus(cache: CoveredCache[CacheT]) -> tuple[Tensor, Tensor]:
        assert cache.before is not None, "no step yet"
        assert cache.after is not None
        return beta * coverage(cache.before), beta * coverage(cache.after)

    return bonus


def coverage(attended: Tensor) -> Tensor:
    """Return Σ_j log min(attended, 1) over the positions that got any. (N, S) → (N,)"""
    return attended.clamp(max=1).log().masked_fill(attended == 0, 0.0).sum(dim=1)
