"""Diverse beam search (Vijayakumar et al. 2016): G groups of K / G beams that keep out of each other's way.

`search` calls it. Each group is a beam search of its own, but for what a token costs that earlier groups just took.
Shapes: B sentences, G groups, W beams of one group, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.search.beam import BeamState, Bonus, advance, collect, extend, freeze, is_done, start
from transformer_cli.decoding.search.greedy import CacheT, Step, forbid_empty
from transformer_cli.text.vocabulary import BOS


def diverse_beam_search(
    step: Step[CacheT],
    cache: CacheT,
    limits: Sequence[int],
    options: SearchOptions,
    device: torch.device | str = "cpu",
    bonus: Bonus[CacheT] | None = None,
) -> list[list[Hypothesis]]:
    """Return `n_best` hypotheses of each sentence, best first: every group's best, every second best, and so on.

    Fewer where groups found the same. Arguments are those of `beam_search`, and one group is that, exactly. After the
    first step rows are sentences × groups × beams. Sentences of which all groups are done leave the batch.
    """
    groups, size = options.diversity_groups, options.beam_size // options.diversity_groups
    own = replace(options, beam_size=size, n_best=min(options.n_best, size), diversity_groups=1)
    found: list[list[list[Hypothesis]]] = [[] for _ in limits]  # by sentence and group
    tokens = torch.full((len(limits),), BOS, device=device)
    states: list[BeamState] = []
    while True:
        log_probs, cache = step(tokens, cache)  # (N, V)
        bonuses = () if bonus is None else bonus(cache)  # (N,) each
        if not states:
            log_probs = forbid_empty(log_probs)
            states = [start(limits, size, log_probs) for _ in range(groups)]
            starts = torch.arange(len(limits), device=device)[:, None].expand(-1, groups)
        else:
            starts = torch.arange(0, len(tokens), size, device=device).view(-1, groups)
        rows = starts[:, :, None] + torch.arange(states[0].tokens.size(1), device=device)  # (B, G, W) which each read
        states, origins = advance_groups(states, log_probs[rows], tuple(each[rows] for each in bonuses), own)
        rows = starts[:, :, None] + origins
        done = torch.stack([is_done(state, own) for state in states], dim=1)  # (B, G)
        # A group that is done waits, without a live beam, for the others of its sentence.
        states = [freeze(state, done[:, group]) for group, state in enumerate(states)]
        over = done.all(dim=1)  # (B,)
        if over.any():
            for state in states:
                for sentence, hypotheses in collect(state.keep(over.nonzero()[:, 0]), own.n_best):
                    found[sentence].append(hypotheses)
            going = (~over).nonzero()[:, 0]
            if not len(going):
                return [_best(of_groups, options.n_best) for of_groups in found]
            states, rows = [state.keep(going) for state in states], rows[going]
        cache = cache.select(rows.flatten())
        tokens = torch.stack([state.tokens[:, :, -1] for state in states], dim=1).flatten()


def advance_groups(
    states: Sequence[BeamState], log_probs: Tensor, bonuses: Sequence[Tensor], options: SearchOptions
) -> tuple[list[BeamState], Tensor]:
    """Take one step of all groups, in order; `log_probs` (B, G, W, V), `bonuses` none or two (B, G, W).

    A token costs λ for each live beam of the groups before that just took it (Hamming diversity). Ends cost nothing:
    a group that ends takes no word away. Returns the new states and the beams that theirs continue, (B, G, W).
    """
    taken = log_probs.new_zeros(log_probs.size(0), log_probs.size(3))  # (B, V)
    new_states, origins = [], []
    for group, state in enumerate(states):
        own = log_probs[:, group].flatten(0, 1)  # (B·W, V)
        cost = options.diversity_strength * taken if group else None
        candidates = extend(state, own, 2 * options.beam_size, cost)
        bonus = (bonuses[0][:, group], bonuses[1][:, group]) if bonuses else None
        new_state, continued, _ = advance(state, candidates, options, bonus)
        live = (new_state.log_probability != -torch.inf).to(taken.dtype)  # (B, W)
        taken = taken.scatter_add(1, new_state.tokens[:, :, -1], live)
        new_states.append(new_state)
        origins.append(continued)
    return new_states, torch.stack(origins, dim=1)


def _best(groups: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Return the best of each group before any second best, each text once; then by score."""
    ranked = [(rank, -one.score, one) for group in groups for rank, one in enumerate(group)]
    ranked.sort(key=lambda place: place[:2])
    once = {tuple(one.ids): one for _, _, one in reversed(ranked)}
    chosen = [one for _, _, one in ranked if once[tuple(one.ids)] is one][:n_best]
    return sorted(chosen, key=lambda one: -one.score)
