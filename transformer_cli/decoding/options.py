"""How to search, and what a search finds. Every engine and the command line speak in these terms; no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from transformer_cli.config import DecodingConfig
from transformer_cli.errors import UserError
from transformer_cli.text.vocabulary import BOS, EOS, PAD

LIMIT_STEP = 16  # length limits are multiples of it, so that batches share them


@dataclass(frozen=True)
class SearchOptions:
    """One way to search. Raises `UserError` where a number is out of bounds or two do not go together."""

    method: Literal["beam", "greedy", "sample"] = "beam"
    beam_size: int = 5  # K
    length_penalty: float = 1.0  # α
    length_penalty_kind: Literal["average", "gnmt"] = "average"
    stopping: Literal["first", "exact"] = "first"
    max_length_ratio: float = 2.0
    max_length_extra: int = 10  # tokens
    min_length: int = 0  # tokens; no translation ends before, unless nothing else is left to say
    max_length: int | None = None  # tokens; replaces ratio and extra
    no_repeat_ngram: int = 0  # no sequence of so many tokens comes twice in one translation; 0: off
    coverage_penalty: float = 0.0  # beam only: β of Wu et al. 2016, eq. 14
    diversity_groups: int = 1  # beam only: G of Vijayakumar et al. 2016; each group has K / G beams
    diversity_strength: float = 0.5  # λ of the same: what a token costs for each beam of an earlier group that took it
    n_best: int = 1  # hypotheses returned for each sentence; for method sample: how many are drawn
    temperature: float = 1.0  # sample only: divides the log-probabilities
    top_k: int = 0  # sample only: draw from the k likeliest tokens; 0: from all
    top_p: float = 1.0  # sample only: draw from the fewest tokens that hold this much probability
    seed: int = 1  # sample only
    iterations: int = 10  # mask_predict only: passes over a translation
    length_candidates: int = 5  # mask_predict only: how many lengths are tried

    def __post_init__(self) -> None:
        for name, bad, allowed in (
            ("beam size", self.beam_size < 1, "1 or more"),
            ("n-best", self.n_best < 1, "1 or more"),
            ("length penalty", not 0 <= self.length_penalty < math.inf, "0 or more"),
            ("max length ratio", not 0 < self.max_length_ratio < math.inf, "above 0"),
            ("max length extra", self.max_length_extra < 0, "0 or more"),
            ("min length", self.min_length < 0, "0 or more"),
            ("max length", self.max_length is not None and self.max_length < 1, "1 or more"),
            ("no-repeat ngram", self.no_repeat_ngram < 0, "0 (off) or more"),
            ("coverage penalty", not 0 <= self.coverage_penalty < math.inf, "0 or more"),
            ("diversity groups", self.diversity_groups < 1, "1 or more"),
            ("diversity strength", not 0 <= self.diversity_strength < math.inf, "0 or more"),
            ("temperature", not 0 < self.temperature < math.inf, "above 0"),
            ("iterations", self.iterations < 1, "1 or more"),
            ("length candidates", self.length_candidates < 1, "1 or more"),
            ("top-k", self.top_k < 0, "0 (all tokens) or more"),
            ("top-p", not 0 < self.top_p <= 1, "above 0 and at most 1"),
        ):
            if bad:
                value = getattr(self, name.replace(" ", "_").replace("-", "_"))
                raise UserError(f"{name} {value} is out of bounds: give {allowed}")
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
                f"diversity groups {self.diversity_groups}: beam size {self.beam_size} is no multiple of it; "
                "give one that is"
            )

    @classmethod
    def from_config(cls, decoding: DecodingConfig, **changes: Any) -> "SearchOptions":
        """A model's own way to search (`decoding` in its config), with some values changed."""
        values: dict[str, Any] = {
            "beam_size": decoding.beam_size,
            "length_penalty": decoding.length_penalty,
            "length_penalty_kind": decoding.length_penalty_kind,
            "stopping": decoding.stopping,
            "max_length_ratio": decoding.max_length_ratio,
            "max_length_extra": decoding.max_length_extra,
            "iterations": decoding.iterations,
            "length_candidates": decoding.length_candidates,
        }
        return cls(**{**values, **changes})

    def length_limit(self, source_length: int) -> int:
        """The most tokens (`</s>` not counted) a translation of so many source tokens (likewise) may have."""
        if self.max_length is not None:
            return self.max_length
        limit = max(self.min_length, math.ceil(self.max_length_ratio * source_length + self.max_length_extra))
        return max(1, math.ceil(limit / LIMIT_STEP)) * LIMIT_STEP

    def penalty(self, length: int) -> float:
        """What a log-probability is divided by to give the score of `length` tokens (`</s>` not counted).

        |y|^α, or for `gnmt` ((5 + |y|) / 6)^α (Wu et al. 2016, eq. 14). An empty text counts as one token long.
        """
        length = max(length, 1)
        base = float(length) if self.length_penalty_kind == "average" else (5 + length) / 6
        return float(base**self.length_penalty)


@dataclass(frozen=True)
class TokenConstraints:
    """What the translation of one sentence must obey, in target ids. Raises `UserError` for what nothing can obey.

    The length limit gives way where prefix and required tokens need more room.
    """

    prefix: tuple[int, ...] = ()  # what it begins with
    required: tuple[tuple[int, ...], ...] = ()  # each of them occurs in it; what is listed twice, twice
    forbidden: tuple[tuple[int, ...], ...] = ()  # none of them occurs in it

    def __post_init__(self) -> None:
        for name, sequences in (("required", self.required), ("forbidden", self.forbidden)):
            if not all(sequences):
                raise UserError(f"an empty text cannot be {name}: give at least one word")
        for sequence in (self.prefix, *self.required, *self.forbidden):
            if not {PAD, BOS, EOS}.isdisjoint(sequence):
                raise UserError(f"the tokens {list(sequence)} hold <pad>, <s> or </s>: no translation does")
        for sequence in self.forbidden:
            for name, text in (("prefix", self.prefix), *(("required", text) for text in self.required)):
                if occurs(sequence, text):
                    raise UserError(f"the tokens {list(sequence)} are forbidden, but {name} text holds them: drop one")


UNCONSTRAINED = TokenConstraints()


def occurs(sequence: Sequence[int], text: Sequence[int]) -> bool:
    """Whether the text holds the sequence's tokens one after another."""
    size = len(sequence)
    return any(tuple(text[place : place + size]) == tuple(sequence) for place in range(len(text) - size + 1))


@dataclass(frozen=True)
class Hypothesis:
    """One translation that a search found."""

    ids: list[int]  # without </s>
    score: float  # log_probability / penalty(len(ids)), plus the coverage penalty if asked for; the higher the better
    log_probability: float  # Σ log p of the ids, and of </s> if ended; the model's own, whatever was demanded
    ended: bool  # False: cut off at the length limit
