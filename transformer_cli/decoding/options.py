"""How to search, under which constraints, and what a search finds. Every engine speaks in these terms; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD

__all__ = ["UNCONSTRAINED", "Hypothesis", "SearchOptions", "TokenConstraints", "occurs"]


@dataclass(frozen=True)
class TokenConstraints:
    """Constraints on the translation of one sentence, in target ids. Raises `UserError` for what nothing can satisfy.

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
    """Return whether the text holds the sequence's tokens one after another."""
    size = len(sequence)
    return any(tuple(text[place : place + size]) == tuple(sequence) for place in range(len(text) - size + 1))


@dataclass(frozen=True)
class Hypothesis:
    """One translation that a search found."""

    ids: list[int]  # without </s>
    score: float  # log_probability / penalty(len(ids)), plus the coverage penalty if asked for; the higher the better
    log_probability: float  # Σ log p of the ids, and of </s> if ended; the model's own, whatever the constraints
    ended: bool  # False: cut off at the length limit
