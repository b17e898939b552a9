"""Which search finds a batch's translations, and what goes around the model's step for it.

`TorchEngine` and `EnsembleEngine` call it, with their model as plain functions. Every search is a state and a pure
step; restrictions and coverage are steps around the model's, so that all searches obey them alike.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import torch

from transformer_cli.decoding.options import UNCONSTRAINED, Hypothesis, SearchOptions, TokenConstraints
from transformer_cli.decoding.search.automaton import ConstraintAutomaton
from transformer_cli.decoding.search.beam import Bonus, Propose, beam_search
from transformer_cli.decoding.search.constrained import Restricted, Restrictions, beams_for, bonus_of_inner, proposer
from transformer_cli.decoding.search.coverage import AttendingStep, Covered, coverage_bonus, covering
from transformer_cli.decoding.search.diverse import diverse_beam_search
from transformer_cli.decoding.search.greedy import CacheT, Key, Step, greedy_search, sample
from transformer_cli.errors import UserError


@dataclass(frozen=True)
class StepModel(Generic[CacheT]):
    """What a search needs of a model, or of several."""

    start: Callable[[Sequence[Sequence[int]]], CacheT]  # sources → the cache over them, one row each
    step: Step[CacheT]
    attending_step: AttendingStep[CacheT]
    vocabulary_size: int
    max_target_length: int | None  # tokens, `</s>` not counted; None: any number
    device: torch.device
    copies_source: bool = False  # whether log-probabilities go on, after the vocabulary, with the source positions


@dataclass(frozen=True)
class Task:
    """Rows that are searched for together, one hypothesis or one beam search each."""

    options: SearchOptions
    limits: Sequence[int]  # most tokens of a translation, `</s>` not counted
    keys: Sequence[Key]
    patterns: Sequence[ConstraintAutomaton] | None  # None: nothing is demanded of any

    def repeat(self, draws: int) -> "Task":
        """Each row `draws` times, with a key of its own."""
        limits = [limit for limit in self.limits for _ in range(draws)]
        patterns = None if self.patterns is None else [one for one in self.patterns for _ in range(draws)]
        return Task(self.options, limits, [(*key, draw) for key in self.keys for draw in range(draws)], patterns)


def search(
    model: StepModel[CacheT],
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    keys: Sequence[Key],
    constraints: Sequence[TokenConstraints] | None,
    max_cells: int,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each source, best first; see `TorchEngine.search`.

    No tensor over the vocabulary has more than `max_cells` cells, or it is a single sentence's. Sentences that need
    more beams, for what is required of them, are searched for apart.
    """
    patterns: list[ConstraintAutomaton] | None = None
    widths = [options.beam_size] * len(sources)
    if constraints is not None and any(one != UNCONSTRAINED for one in constraints):
        different = {one: ConstraintAutomaton(one) for one in dict.fromkeys(constraints)}
        patterns = [different[one] for one in constraints]
        if _takes_turns(options):
            widths = [beams_for(one, options.beam_size) for one in patterns]
    rooms = [1] * len(sources) if patterns is None else [one.room for one in patterns]
    limits = [_limit(model, options, len(source), room) for source, room in zip(sources, rooms, strict=True)]
    found: list[list[Hypothesis]] = [[] for _ in sources]
    for width in sorted(set(widths)):
        alike = [place for place, other in enumerate(widths) if other == width]
        rows = {"beam": width, "greedy": 1, "sample": options.n_best}[options.method]
        for part in parts(len(alike), rows * output_size(model, sources), max_cells):
            places = alike[part]
            task = Task(
                options=replace(options, beam_size=width),
                limits=[limits[place] for place in places],
                keys=[keys[place] for place in places],
                patterns=None if patterns is None else [patterns[place] for place in places],
            )
            for place, hypotheses in zip(places, _run(model, [sources[place] for place in places], task), strict=True):
                found[place] = hypotheses
    return found


def parts(count: int, cells_each: int, max_cells: int) -> Iterator[slice]:
    """Cut `count` rows so that no part needs tensors of more than `max_cells` cells (or it is a single row)."""
    rows = max(1, max_cells // max(1, cells_each))
    return (slice(first, first + rows) for first in range(0, count, rows))


def output_size(model: StepModel[CacheT], sources: Sequence[Sequence[int]]) -> int:
    """How many columns the model's log-probabilities have for these sources: V, or V + S where it copies."""
    return model.vocabulary_size + (1 + max(map(len, sources), default=0) if model.copies_source else 0)


def _takes_turns(options: SearchOptions) -> bool:
    """Whether beams are allotted to what is required; else what a row lacks comes when it would end."""
    return options.method == "beam" and options.diversity_groups == 1


def _limit(model: StepModel[CacheT], options: SearchOptions, source_length: int, room: int) -> int:
    """The most tokens of a translation: `room` at least, but a position table does not grow."""
    limit, most = options.length_limit(source_length), model.max_target_length
    if most is not None and room - 1 > most:
        raise UserError(
            f"prefix and required text take {room - 1} tokens, but this model's learned positions end at {most}: "
            "demand less"
        )
    return max(limit, room) if most is None else min(max(limit, room), max(1, most))


def _run(model: StepModel[CacheT], sources: Sequence[Sequence[int]], task: Task) -> list[list[Hypothesis]]:
    """Start the model, and put around its step what it takes."""
    cache, options, size = model.start(sources), task.options, output_size(model, sources)
    if options.method == "sample":
        if options.n_best > 1:
            rows = torch.arange(len(sources), device=model.device).repeat_interleave(options.n_best)
            cache = cache.select(rows)
        task = task.repeat(options.n_best)
    if options.coverage_penalty:
        step = covering(model.attending_step)
        bonus: Bonus[Covered[CacheT]] = coverage_bonus(options.coverage_penalty)
        return _restricted(step, Covered(cache, None, None), task, size, model.device, bonus)
    return _restricted(model.step, cache, task, size, model.device, None)


def _restricted(
    step: Step[CacheT],
    cache: CacheT,
    task: Task,
    vocabulary_size: int,
    device: torch.device,
    bonus: Bonus[CacheT] | None,
) -> list[list[Hypothesis]]:
    options = task.options
    if task.patterns is None and not options.no_repeat_ngram and options.min_length <= 1:
        return _find(step, cache, task, device, bonus, None)
    patterns = task.patterns or [ConstraintAutomaton(UNCONSTRAINED)] * len(task.limits)
    turns = _takes_turns(options)
    restrictions = Restrictions(options, patterns, task.limits, vocabulary_size, device, urgent=not turns)
    propose: Propose[Restricted[CacheT]] | None = None
    if turns and restrictions.tables.sequences:
        propose = proposer(restrictions.tables)
    inner = None if bonus is None else bonus_of_inner(bonus)
    return _find(restrictions.around(step), restrictions.start(cache), task, device, inner, propose)


def _find(
    step: Step[CacheT],
    cache: CacheT,
    task: Task,
    device: torch.device,
    bonus: Bonus[CacheT] | None,
    propose: Propose[CacheT] | None,
) -> list[list[Hypothesis]]:
    options, limits = task.options, task.limits
    if options.method == "sample":
        drawn, draws = sample(step, cache, limits, options, task.keys, device), options.n_best
        groups = [drawn[place : place + draws] for place in range(0, len(drawn), draws)]
        return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
    if options.diversity_groups > 1:
        return diverse_beam_search(step, cache, limits, options, device, bonus)
    alone = options.beam_size == 1 and options.stopping == "first" and bonus is None
    if options.method == "greedy" or alone:
        return [[one] for one in greedy_search(step, cache, limits, options, device)]
    return beam_search(step, cache, limits, options, device, propose, bonus)
