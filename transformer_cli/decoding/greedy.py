"""Greedy search, and the walk that it shares with sampling: one path a sentence, one token a step.

`TorchEngine` calls it. The model enters as `step(tokens, cache) -> (log_probs, cache)` and nothing else is known of it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from transformer_cli.decoding.best_tokens import best_token
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS


class Cache(Protocol):
    """What a step remembers of the rows decoded so far."""

    def select(self, rows: Tensor) -> Self:
        """The given rows, in the given order; `rows` (N,) may repeat."""


CacheT = TypeVar("CacheT", bound=Cache)
Step = Callable[[Tensor, CacheT], tuple[Tensor, CacheT]]  # tokens (N,), cache → log-probabilities (N, V), cache
Choose = Callable[[Tensor, Tensor, int], Tensor]  # log-probabilities (N, V), rows (N,), position → tokens (N,)


def greedy_search(
    step: Step[CacheT], cache: CacheT, limits: Sequence[int], options: SearchOptions, device: torch.device | str = "cpu"
) -> list[Hypothesis]:
    """The likeliest token at each step, for as many sentences as there are `limits` (most tokens, `</s>` aside)."""
    return walk(step, cache, limits, options, lambda log_probs, rows, position: best_token(log_probs), device)


def walk(
    step: Step[CacheT],
    cache: CacheT,
    limits: Sequence[int],
    options: SearchOptions,
    choose: Choose,
    device: torch.device | str = "cpu",
) -> list[Hypothesis]:
    """Follow one path a row until `</s>` or the row's limit; rows that are done leave the batch.

    `choose` picks the next tokens from the log-probabilities of the rows still walking.
    """
    total = len(limits)
    limit = torch.tensor(limits, device=device)  # (N,) shrinks with the rows, as do the next three
    rows = torch.arange(total, device=device)  # where a row stood at the start
    tokens = torch.full((total,), BOS, device=device)
    log_probability: Tensor | None = None
    path = torch.zeros(total, max(limits), dtype=torch.long, device=device)  # (all rows, longest limit)
    lengths = [0] * total
    log_probabilities = [0.0] * total
    ended = [False] * total
    for position in range(max(limits)):
        log_probs, cache = step(tokens, cache)  # (N, V)
        if position == 0:
            log_probs = forbid_empty(log_probs)
        tokens = choose(log_probs, rows, position)  # (N,)
        gained = log_probs.gather(1, tokens[:, None])[:, 0].to(wide(log_probs.dtype))
        log_probability = gained if log_probability is None else log_probability + gained
        path[rows, position] = tokens
        done = (tokens == EOS) | (limit == position + 1)
        if not done.any():
            continue
        for row, token, value in zip(
            rows[done].tolist(), tokens[done].tolist(), log_probability[done].tolist(), strict=True
        ):
            ended[row] = token == EOS
            lengths[row] = position + (not ended[row])
            log_probabilities[row] = value
        going = (~done).nonzero()[:, 0]
        if not len(going):
            break
        rows, limit, tokens, log_probability = rows[going], limit[going], tokens[going], log_probability[going]
        cache = cache.select(going)
    return [
        Hypothesis(ids[:length], value / options.penalty(length), value, end)
        for ids, length, value, end in zip(path.tolist(), lengths, log_probabilities, ended, strict=True)
    ]


def forbid_empty(log_probs: Tensor) -> Tensor:
    """Log-probabilities (N, V) of first tokens without `</s>`: no line with text translates to none.

    CTranslate2's default (`min_decoding_length` 1); training never shows an empty target either.
    """
    return log_probs.index_fill(-1, torch.tensor([EOS], device=log_probs.device), -torch.inf)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that log-probabilities of type `dtype` are summed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
