"""Beams for required token sequences: dynamic beam allocation (Post and Vilar 2018).

`search` hands `proposer` to `beam_search`. Hypotheses that lack equally many tokens form a bank, and the beams go to
all banks in turn: so those that begin a required sequence, seldom the likeliest, live on to be compared when complete.
That all is said in time, and no end comes before, `restrictions` sees to.
"""

import torch
from torch import Tensor

from transformer_cli.decoding.search.beam import BeamState, Candidates, Propose, extend
from transformer_cli.decoding.search.greedy import CacheT
from transformer_cli.decoding.search.pattern_tables import PatternTables
from transformer_cli.decoding.search.patterns import Patterns
from transformer_cli.decoding.search.restrictions import Restricted

FEW = 4  # beams more or less do not matter
OWN = 2  # of each beam, so many of its likeliest continuations are candidates


def beams_for(patterns: Patterns, beam_size: int) -> int:
    """How many beams a sentence needs so that every bank has one; rounded up, so that like sentences go together."""
    banks = patterns.worst + 1
    size = max(beam_size, FEW)
    return beam_size if banks <= beam_size else -(-banks // size) * size


def proposer(tables: PatternTables) -> Propose[Restricted[CacheT]]:
    """Which continuations of the beams have a right to go on: in each bank the likeliest first, all banks in turn."""

    def propose(state: BeamState, log_probs: Tensor, cache: Restricted[CacheT], count: int) -> Candidates:
        width, said = state.log_probability.size(1), cache.said
        needs = tables.needs(said)  # (B·W, 1 + L)
        advancing = tables.advancing(said, needs)
        total, tokens, origins = gather_candidates(state, log_probs, tables.letters, advancing[:, 1:], count)
        places = origins * needs.size(1) + tables.letter_of[tokens]
        bank = needs.view(-1, width * needs.size(1)).gather(1, places)  # (B, C)
        best = take_turns(total, bank)[:, :count]  # (B, 2K)
        return Candidates(tokens.gather(1, best), origins.gather(1, best), total.gather(1, best))

    return propose


def gather_candidates(
    state: BeamState, log_probs: Tensor, letters: Tensor, advancing: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest continuations (`count` of them), the likeliest that advance a required sequence (as many), and the
    likeliest of every beam; each once, best first. `log_probs` (B·W, V), `advancing` (B·W, L).

    Returns log-probability (-inf: none), token and beam of each, (B, C).
    """
    batch, width = state.log_probability.shape
    likeliest = extend(state, log_probs, count)

    before = state.log_probability[:, :, None]
    gains = log_probs[:, letters].masked_fill(~advancing, -torch.inf)
    helpful = (before + gains.view(batch, width, -1)).flatten(1)  # (B, W·L)
    helpful, places = helpful.topk(min(count, helpful.size(1)), dim=1)

    own, own_tokens = log_probs.topk(min(OWN, log_probs.size(1)), dim=1)  # (B·W, OWN)
    own_origins = torch.arange(width, device=places.device).repeat_interleave(own.size(1)).expand(batch, -1)

    tokens = torch.cat([likeliest.tokens, letters[places % len(letters)], own_tokens.view(batch, -1)], dim=1)
    origins = torch.cat([likeliest.origins, places // len(letters), own_origins], dim=1)
    own_total = (before + own.view(batch, width, -1)).flatten(1)
    total = torch.cat([likeliest.log_probability, helpful, own_total], dim=1)
    total, order = total.sort(dim=1, descending=True, stable=True)
    tokens, origins = tokens.gather(1, order), origins.gather(1, order)
    again = (tokens[:, :, None] == tokens[:, None, :]) & (origins[:, :, None] == origins[:, None, :])  # (B, C, C)
    return total.masked_fill(again.tril(diagonal=-1).any(dim=2), -torch.inf), tokens, origins


def take_turns(total: Tensor, bank: Tensor) -> Tensor:
    """The order of candidates (B, C), best first already, that puts the best of every bank before any second best."""
    there = total != -torch.inf
    same = (bank[:, :, None] == bank[:, None, :]) & there[:, None, :]  # (B, C, C)
    rank = same.tril(diagonal=-1).sum(dim=2).masked_fill(~there, total.size(1))
    return rank.argsort(dim=1, stable=True)
