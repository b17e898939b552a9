"""Greedy search, and the walk that it shares with sampling: one path a sentence, one token a step.

`TorchEngine` calls it. The model enters as `step(tokens, cache) -> (log_probs, cache)` and nothing else is known of it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.search.best_tokens import best_token
from transformer_cli.text.vocabulary import BOS, EOS


class Cache(Protocol):
    """What a step remembers of the rows decoded so far."""

    def select(self, rows: Tensor) -> Self:
        """The given rows, in the given order; `rows` (N,) may repeat."""


CacheT = TypeVar("CacheT", bound=Cache)
LOOK_EVERY = 8  # steps on a GPU; rows that are done walk on till then

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
    look_every = between_looks(torch.device(device))
    limit = torch.tensor(limits, device=device)  # (N,) shrinks with the rows, as do the next four
    rows = torch.arange(len(limits), device=device)  # where a row stood at the start
    tokens = torch.full((len(limits),), BOS, device=device)
    path = tokens[:, None][:, :0]  # (N, t)
    gains: Tensor | None = None  # (N, t) log-probabilities of the tokens
    found: dict[int, Hypothesis] = {}
    for position in range(max(limits)):
        log_probs, cache = step(tokens, cache)  # (N, V)
        if position == 0:
            log_probs = forbid_empty(log_probs)
        tokens = choose(log_probs, rows, position)  # (N,)
        gained = log_probs.gather(1, tokens[:, None]).to(wide(log_probs.dtype))
        gains = gained if gains is None else torch.cat([gains, gained], dim=1)
        path = torch.cat([path, tokens[:, None]], dim=1)
        if (position + 1) % look_every and position + 1 < max(limits):
            continue
        done = tokens == EOS if look_every == 1 else (path == EOS).any(dim=1)
        if position + 1 >= min(limits):
            done = done | (limit <= position + 1)
        if not done.any():
            continue
        over = done.nonzero()[:, 0]
        for row, ids, values in zip(rows[over].tolist(), path[over].tolist(), gains[over].tolist(), strict=True):
            ids = ids[: limits[row]]
            ended = EOS in ids
            ids = ids[: ids.index(EOS)] if ended else ids
            value = sum(values[: len(ids) + ended])
            found[row] = Hypothesis(ids, value / options.penalty(len(ids)), value, ended)
        going = (~done).nonzero()[:, 0]
        if not len(going):
            break
        rows, limit, tokens, path = rows[going], limit[going], tokens[going], path[going]
        gains = gains[going]
        cache = cache.select(going)
    return [found[row] for row in range(len(limits))]


def between_looks(device: torch.device) -> int:
    """Every how many steps to see who is done: to look at a GPU's values is to wait for it."""
    return LOOK_EVERY if device.type == "cuda" else 1


def forbid_empty(log_probs: Tensor) -> Tensor:
    """Log-probabilities (N, V) of first tokens without `</s>`: no line with text translates to none.

    CTranslate2's default (`min_decoding_length` 1); training never shows an empty target either.
    """
    return log_probs.index_fill(-1, torch.tensor([EOS], device=log_probs.device), -torch.inf)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type that log-probabilities of type `dtype` are summed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)
