"""Greedy search, and the walk that it shares with sampling: one path per sentence, one token per step.

`TorchEngine` calls it. The model enters as `step(tokens, cache) -> (log_probs, cache)` and nothing else is known of it.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from transformer_cli.decoding.engines.protocol import Hypothesis
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS

BLOCK = 64  # tokens
LARGE = 1 << 17  # scores from which more steps cost less than they save


def best_token(log_probs: Tensor) -> Tensor:
    """Return the likeliest token of each row, of equal ones the first. (N, V) → (N,)"""
    if log_probs.numel() < LARGE or log_probs.device.type != "cpu":
        return log_probs.argmax(dim=1)
    maxima = block_maxima(log_probs)
    columns = maxima.argmax(dim=1, keepdim=True) * BLOCK + torch.arange(BLOCK)  # (N, BLOCK)
    columns = columns.clamp(max=log_probs.size(1) - 1)
    return columns.gather(1, log_probs.gather(1, columns).argmax(dim=1, keepdim=True))[:, 0]


def best_continuations(before: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` greatest of before (B, W) + log_probs (B·W, V), over a sentence's W rows, best first.

    Returns sums and places in W·V, (B, count) each; or as many as there are. The `count` best lie in the `count` blocks
    with the greatest maxima, so no other is looked into, and no sum over the whole vocabulary is made.
    """
    (batch, width), vocabulary = before.shape, log_probs.size(1)
    maxima = block_maxima(log_probs)  # (B·W, blocks)
    blocks = maxima.size(1)
    if width * blocks <= count:
        totals = (before[:, :, None] + log_probs.view(batch, width, vocabulary)).flatten(1)  # (B, W·V)
        values, places = totals.topk(min(count, width * vocabulary), dim=1)
        return values, places
    chosen = (before[:, :, None] + maxima.view(batch, width, blocks)).flatten(1).topk(count, dim=1).indices
    origins = chosen // blocks  # (B, count)
    columns = (chosen % blocks * BLOCK)[:, :, None] + torch.arange(BLOCK, device=before.device)  # (B, count, BLOCK)
    inside = columns.clamp(max=vocabulary - 1) if vocabulary % BLOCK else columns
    places = (origins * vocabulary)[:, :, None] + inside
    totals = log_probs.view(batch, -1).gather(1, places.flatten(1)).view_as(places)
    totals = totals + before.gather(1, origins)[:, :, None]
    if vocabulary % BLOCK:  # the last block has fewer tokens: what is beyond is none
        totals = totals.masked_fill(columns >= vocabulary, -torch.inf)
    values, best = totals.flatten(1).topk(count, dim=1)
    return values, places.flatten(1).gather(1, best)


def block_maxima(log_probs: Tensor) -> Tensor:
    """Return the greatest of every BLOCK tokens in turn; the last block may have fewer. (N, V) → (N, blocks)"""
    whole = log_probs.size(1) // BLOCK * BLOCK
    maxima = log_probs[:, :whole].view(len(log_probs), -1, BLOCK).amax(dim=2)
    if whole == log_probs.size(1):
        return maxima
    return torch.cat([maxima, log_probs[:, whole:].amax(dim=1, keepdim=True)], dim=1)


class Cache(Protocol):
    """What a step remembers of the rows decoded so far."""

    def select(self, rows: Tensor) -> Self:
        """Return the given rows, in the given order; `rows` (N,) may repeat."""


CacheT = TypeVar("CacheT", bound=Cache)
CHECK_EVERY = 8  # steps on a GPU; rows that are done continue till then

Step = Callable[[Tensor, CacheT], tuple[Tensor, CacheT]]  # tokens (N,), cache → log-probabilities (N, V), cache
Choose = Callable[[Tensor, Tensor, int], Tensor]  # log-probabilities (N, V), rows (N,), position → tokens (N,)


def greedy_search(
    step: Step[CacheT], cache: CacheT, limits: Sequence[int], options: SearchOptions, device: torch.device | str = "cpu"
) -> list[Hypothesis]:
    """Take the likeliest token at each step, for as many sentences as there are `limits` (tokens without `</s>`)."""
    return walk(step, cache, limits, options, lambda log_probs, rows, position: best_token(log_probs), device)


def walk(
    step: Step[CacheT],
    cache: CacheT,
    limits: Sequence[int],
    options: SearchOptions,
    choose: Choose,
    device: torch.device | str = "cpu",
) -> list[Hypothesis]:
    """Follow one path per row until `</s>` or the row's limit; rows that are done leave the batch.

    `choose` picks the next tokens from the log-probabilities of the rows still walking.
    """
    interval = check_interval(torch.device(device))
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
        gained = log_probs.gather(1, tokens[:, None]).to(accumulation_dtype(log_probs.dtype))
        gains = gained if gains is None else torch.cat([gains, gained], dim=1)
        path = torch.cat([path, tokens[:, None]], dim=1)
        if (position + 1) % interval and position + 1 < max(limits):
            continue
        done = tokens == EOS if interval == 1 else (path == EOS).any(dim=1)
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


def check_interval(device: torch.device) -> int:
    """Return after how many steps to check which rows are done: to look at a GPU's values is to wait for it."""
    return CHECK_EVERY if device.type == "cuda" else 1


def forbid_empty(log_probs: Tensor) -> Tensor:
    """Return log-probabilities (N, V) of first tokens without `</s>`: no line with text translates to none.

    CTranslate2's default (`min_decoding_length` 1); training never shows an empty target either.
    """
    return log_probs.index_fill(-1, torch.tensor([EOS], device=log_probs.device), -torch.inf)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that log-probabilities of type `dtype` are summed in: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


UNIFORM_BLOCK = 256  # numbers drawn at once; always as many, so that a longer row begins like a shorter one

Key = tuple[int, ...]  # says which draw a row is: the sentence, its chunk, the number of the draw


def sample(
    step: Step[CacheT],
    cache: CacheT,
    limits: Sequence[int],
    options: SearchOptions,
    keys: Sequence[Key],
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Return `n_best` translations of each sentence, drawn token by token; best first.

    Their log-probability is the model's own, whatever temperature, top-k and top-p made of it for the draw.
    """
    draws = options.n_best
    if draws > 1:
        cache = cache.select(torch.arange(len(limits), device=device).repeat_interleave(draws))
    limits = [limit for limit in limits for _ in range(draws)]
    choose = chooser(options, [(*key, draw) for key in keys for draw in range(draws)], max(limits), device)
    drawn = walk(step, cache, limits, options, choose, device)
    groups = [drawn[first : first + draws] for first in range(0, len(drawn), draws)]
    return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]


def chooser(options: SearchOptions, keys: Sequence[Key], length: int, device: torch.device | str) -> Choose:
    """Return how a row draws its next token: by inverse distribution function, from one uniform number per position."""
    uniforms = torch.stack([uniform_numbers((options.seed, *key), length) for key in keys])  # (N, length)
    uniforms = uniforms.to(device, sum_type(torch.device(device)))

    def choose(log_probs: Tensor, rows: Tensor, position: int) -> Tensor:
        return draw(log_probs / options.temperature, uniforms[rows, position], options.top_k, options.top_p)

    return choose


def uniform_numbers(key: Key, length: int) -> Tensor:
    """Return numbers in [0, 1) that depend on the key and the position only. → (length,) float64"""
    digest = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    blocks = [
        torch.rand(UNIFORM_BLOCK, generator=generator, dtype=torch.float64) for _ in range(0, length, UNIFORM_BLOCK)
    ]
    return torch.cat(blocks)[:length]


def sum_type(device: torch.device) -> torch.dtype:
    """Return the type to add probabilities of a whole vocabulary in: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def draw(logits: Tensor, uniform: Tensor, top_k: int, top_p: float) -> Tensor:
    """Return one token per row from softmax(logits), (N, V), cut to the `top_k` likeliest (0: all) and to the fewest
    tokens that hold a probability of `top_p`; `uniform` (N,) in [0, 1). → (N,)
    """
    tokens: Tensor | None = None
    if 0 < top_k < logits.size(-1):
        logits, tokens = logits.topk(top_k, dim=-1)
    elif top_p < 1:
        logits, tokens = logits.sort(dim=-1, descending=True)
    probabilities = logits.softmax(dim=-1, dtype=sum_type(logits.device))
    if top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0.0)
    cumulative = probabilities.cumsum(dim=-1)  # (N, V)
    # The first token whose sum exceeds the number drawn; never one without probability, even where sums round.
    place = torch.searchsorted(cumulative, uniform.to(cumulative.dtype)[:, None] * cumulative[:, -1:], right=True)
    last = (cumulative < cumulative[:, -1:]).sum(dim=-1, keepdim=True)
    place = torch.minimum(place, last.clamp(max=logits.size(-1) - 1))
    return (place if tokens is None else tokens.gather(1, place))[:, 0]
