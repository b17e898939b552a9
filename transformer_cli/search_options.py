"""How to search: each option's type, bound, default and meaning, once for config files, Python and the command line.

`config.sections` makes `decoding` of `ConfiguredSearch`, `cli.options` its options of `SearchOptions`, and
docs/generate.py a table of the comments. No pydantic and no torch, for `tfm --help` reads this.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal, get_args

from transformer_cli.errors import UserError, one_of

LIMIT_STEP = 16  # length limits are multiples of it, so that batches share them
MAX_BEAMS = 1000


@dataclass(frozen=True)
class Bound:
    """From `least` to `most`; `above`: without `least` itself. pydantic reads it as a group of its own bounds."""

    least: float  # allowed itself, but for `above`
    most: float | None = None  # allowed itself; None: there is no upper bound
    above: bool = False  # whether a value must be greater than `least`
    __is_annotated_types_grouped_metadata__: ClassVar = True  # for pydantic, which then asks `__iter__`

    def __iter__(self) -> Iterator[Any]:
        from annotated_types import Ge, Gt, Le

        yield (Gt if self.above else Ge)(self.least)
        if self.most is not None:
            yield Le(self.most)

    def __contains__(self, value: float) -> bool:
        enough = value > self.least if self.above else value >= self.least
        return enough and value <= (math.inf if self.most is None else self.most)

    def __str__(self) -> str:
        least, most = (None if end is None else f"{end:,}" for end in (self.least, self.most))
        if self.above:
            return f"above {least}" + (f" and at most {most}" if most else "")
        return f"{least} to {most}" if most else f"{least} or more"


@dataclass(frozen=True, kw_only=True)
class ConfiguredSearch:
    """The options that a config file may set."""

    beam_size: Annotated[int, Bound(1, MAX_BEAMS)] = 5  # hypotheses kept at each step; 1: greedy
    length_penalty: Annotated[float, Bound(0, 10)] = 1.0  # exponent α: larger favours longer output; 0: none
    # What the log-probability is divided by: length^α, or the paper's ((5 + length) / 6)^α.
    length_penalty_kind: Literal["average", "gnmt"] = "average"
    # A sentence's search ends after `beam_size` endings, or when no open hypothesis can still win.
    stopping: Literal["first", "exact"] = "first"
    # A translation has at most this × source length + `max_length_extra` tokens, rounded up to a multiple of 16.
    max_length_ratio: Annotated[float, Bound(0, 100, above=True)] = 2.0
    max_length_extra: Annotated[int, Bound(0, 10_000)] = 10  # tokens; see `max_length_ratio`
    # Whether a line of several sentences is translated sentence by sentence; auto: unless most lines of the training
    # data held several. Training decides that, and the model's config records it.
    split: Literal["auto", "always", "never"] = "auto"
    iterations: Annotated[int, Bound(1, 1000)] = 10  # `generation: mask_predict` only: passes over a translation
    # `generation: mask_predict` only: how many likely lengths are tried; the likeliest result is taken.
    length_candidates: Annotated[int, Bound(1, 100)] = 5


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ConfiguredSearch):
    """One way to search. Raises `UserError` where a value is out of bounds or two do not go together."""

    method: Literal["beam", "greedy", "sample"] = "beam"  # greedy: the likeliest token; sample: one that is drawn
    min_length: Annotated[int, Bound(0)] = 0  # tokens; no translation ends before, unless no other token is possible
    max_length: Annotated[int | None, Bound(1)] = None  # tokens; replaces ratio and extra
    no_repeat_ngram: Annotated[int, Bound(0)] = 0  # no sequence of so many tokens comes twice in a translation; 0: off
    coverage_penalty: Annotated[float, Bound(0, 100)] = 0.0  # beam only: β of Wu et al. 2016, eq. 14
    # Beam only: G of Vijayakumar et al. 2016; each group has `beam_size` / G beams.
    diversity_groups: Annotated[int, Bound(1)] = 1
    # λ of the same: what a token costs for each beam of an earlier group that took it.
    diversity_strength: Annotated[float, Bound(0, 100)] = 0.5
    n_best: Annotated[int, Bound(1, 1000)] = 1  # hypotheses returned for each sentence; sample: how many are drawn
    temperature: Annotated[float, Bound(0, 1000, above=True)] = 1.0  # sample only: divides the log-probabilities
    top_k: Annotated[int, Bound(0)] = 0  # sample only: draw from the k likeliest tokens; 0: from all
    top_p: Annotated[float, Bound(0, 1, above=True)] = 1.0  # sample only: draw from the fewest tokens that hold so much
    seed: Annotated[int, Bound(0)] = 1  # sample only: the same seed draws the same

    def __post_init__(self) -> None:
        for field in fields(self):
            value, bound, choices = getattr(self, field.name), bound_of(field.name), get_args(field.type)
            if bound is not None and value is not None and value not in bound:
                raise UserError(f"{field.name} {value} is out of bounds: give {bound}")
            if bound is None and value not in choices:
                raise UserError(f"{field.name} {value!r}: choose {one_of(list(choices))}")
        if self.method == "beam" and self.n_best > self.beam_size:
            raise UserError(
                f"n-best {self.n_best} is more than beam size {self.beam_size} can find: "
                "raise the beam size or lower n-best"
            )
        if self.method == "greedy" and self.n_best > 1:
            raise UserError(f"n-best {self.n_best}: greedy search finds one translation; use beam search or sampling")
        if self.max_length is not None and self.min_length > self.max_length:
            raise UserError(f"min length {self.min_length} is more than max length {self.max_length}: lower it")
        if self.method != "beam" and (self.diversity_groups > 1 or self.coverage_penalty):
            name = "diversity groups" if self.diversity_groups > 1 else "coverage penalty"
            raise UserError(f"{name}: only beam search has them, not method {self.method}")
        if self.beam_size % self.diversity_groups:
            raise UserError(
                f"diversity groups {self.diversity_groups}: beam size {self.beam_size} is not a multiple of it; "
                "give one that is"
            )

    @classmethod
    def from_config(cls, decoding: ConfiguredSearch, **changes: Any) -> "SearchOptions":
        """Return a model's own way to search (`decoding` in its config), with some values changed."""
        return cls(**{**{field.name: getattr(decoding, field.name) for field in fields(ConfiguredSearch)}, **changes})

    @property
    def beams(self) -> int:
        """How many hypotheses of a sentence are searched side by side."""
        return self.beam_size if self.method == "beam" else 1

    def length_limit(self, source_length: int) -> int:
        """Return the most tokens that a translation of `source_length` tokens may have; `</s>` is in neither number."""
        if self.max_length is not None:
            return self.max_length
        limit = max(self.min_length, math.ceil(self.max_length_ratio * source_length + self.max_length_extra))
        return max(1, math.ceil(limit / LIMIT_STEP)) * LIMIT_STEP

    def penalty(self, length: int) -> float:
        """Return what a log-probability is divided by to give the score of `length` tokens (`</s>` not counted).

        |y|^α, or for `gnmt` ((5 + |y|) / 6)^α (Wu et al. 2016, eq. 14). An empty text counts as one token long.
        """
        length = max(length, 1)
        base = float(length) if self.length_penalty_kind == "average" else (5 + length) / 6
        return float(base**self.length_penalty)


def bound_of(option: str) -> Bound | None:
    """Return the bound of an option of `SearchOptions`; None for one that is a choice of words."""
    metadata = getattr(SearchOptions.__dataclass_fields__[option].type, "__metadata__", (None,))
    bound: Bound | None = metadata[0]
    return bound
