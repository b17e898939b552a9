"""How to search, and what a search finds. Every engine and the command line speak in these terms; no torch."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from transformer_cli.config import DecodingConfig
from transformer_cli.errors import UserError

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
    n_best: int = 1  # hypotheses returned for each sentence; for method sample: how many are drawn
    temperature: float = 1.0  # sample only: divides the log-probabilities
    top_k: int = 0  # sample only: draw from the k likeliest tokens; 0: from all
    top_p: float = 1.0  # sample only: draw from the fewest tokens that hold this much probability
    seed: int = 1  # sample only

    def __post_init__(self) -> None:
        for name, bad, allowed in (
            ("beam size", self.beam_size < 1, "1 or more"),
            ("n-best", self.n_best < 1, "1 or more"),
            ("length penalty", not 0 <= self.length_penalty < math.inf, "0 or more"),
            ("max length ratio", not 0 < self.max_length_ratio < math.inf, "above 0"),
            ("max length extra", self.max_length_extra < 0, "0 or more"),
            ("temperature", not 0 < self.temperature < math.inf, "above 0"),
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
        }
        return cls(**{**values, **changes})

    def length_limit(self, source_length: int) -> int:
        """The most tokens (`</s>` not counted) a translation of so many source tokens (likewise) may have."""
        limit = math.ceil(self.max_length_ratio * source_length + self.max_length_extra)
        return max(1, math.ceil(limit / LIMIT_STEP)) * LIMIT_STEP

    def penalty(self, length: int) -> float:
        """What a log-probability is divided by to give the score of `length` tokens (`</s>` not counted).

        |y|^α, or for `gnmt` ((5 + |y|) / 6)^α (Wu et al. 2016, eq. 14). An empty text counts as one token long.
        """
        length = max(length, 1)
        base = float(length) if self.length_penalty_kind == "average" else (5 + length) / 6
        return float(base**self.length_penalty)


@dataclass(frozen=True)
class Hypothesis:
    """One translation that a search found."""

    ids: list[int]  # without </s>
    score: float  # log_probability / penalty(len(ids)); the higher the better
    log_probability: float  # Σ log p of the ids, and of </s> if ended
    ended: bool  # False: cut off at the length limit
