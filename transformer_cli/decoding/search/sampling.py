"""Sampling: tokens drawn at random, with temperature, top-k and top-p. `TorchEngine` calls it.

Each row has random numbers of its own, made from its key alone: who else is in the batch changes nothing.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.search.greedy import CacheT, Choose, Step, walk

UNIFORM_BLOCK = 256  # numbers drawn at once; always as many, so that a longer row begins like a shorter one

Key = tuple[int, ...]  # says which draw a row is: the sentence, its piece, the number of the draw


def sample(
    step: Step[CacheT],
    cache: CacheT,
    limits: Sequence[int],
    options: SearchOptions,
    keys: Sequence[Key],
    device: torch.device | str = "cpu",
) -> list[Hypothesis]:
    """One translation a row, drawn token by token.

    Its log-probability is the model's own, whatever temperature, top-k and top-p made of it for the draw.
    """
    return walk(step, cache, limits, options, chooser(options, keys, max(limits), device), device)


def chooser(options: SearchOptions, keys: Sequence[Key], length: int, device: torch.device | str) -> Choose:
    """How a row draws its next token: by inverse distribution function, from one uniform number a position."""
    uniforms = torch.stack([uniform_numbers((options.seed, *key), length) for key in keys])  # (N, length)
    uniforms = uniforms.to(device, sum_type(torch.device(device)))

    def choose(log_probs: Tensor, rows: Tensor, position: int) -> Tensor:
        return draw(log_probs / options.temperature, uniforms[rows, position], options.top_k, options.top_p)

    return choose


def uniform_numbers(key: Key, length: int) -> Tensor:
    """Numbers in [0, 1) that depend on the key and the position only. → (length,) float64"""
    digest = hashlib.blake2b(",".join(map(str, key)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    blocks = [
        torch.rand(UNIFORM_BLOCK, generator=generator, dtype=torch.float64) for _ in range(0, length, UNIFORM_BLOCK)
    ]
    return torch.cat(blocks)[:length]


def sum_type(device: torch.device) -> torch.dtype:
    """The type to add probabilities of a whole vocabulary in: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def draw(logits: Tensor, uniform: Tensor, top_k: int, top_p: float) -> Tensor:
    """One token a row from softmax(logits), (N, V), cut to the `top_k` likeliest (0: all) and to the fewest tokens that
    hold a probability of `top_p`; `uniform` (N,) in [0, 1). → (N,)
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
