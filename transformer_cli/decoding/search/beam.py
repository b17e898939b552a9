"""Beam search by CTranslate2's rule: a state, a pure step, and the loop that feeds one from the other.

`dispatch` calls it. The model enters as `step(tokens, cache) -> (log_probs, cache)` and nothing else is known of it.
Shapes: B sentences still searched (in diverse beam search, sentences × groups), K beams, V vocabulary, t tokens so far.
Beams are folded into the rows of a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from transformer_cli.decoding.engines.protocol import Hypothesis
from transformer_cli.decoding.search.greedy import (
    CacheT,
    Step,
    accumulation_dtype,
    best_continuations,
    check_interval,
    forbid_empty,
)
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD


class Ended(NamedTuple):
    """The K best hypotheses of each sentence that ended, or were cut at the limit; best first."""

    tokens: Tensor  # (B, K, t) padded
    lengths: Tensor  # (B, K) without </s>; 0: no hypothesis here yet
    log_probability: Tensor  # (B, K)
    score: Tensor  # (B, K)
    ended: Tensor  # (B, K) False: cut at the limit


class BeamState(NamedTuple):
    """Where a search stands. At the start all beams are alike, and there is one only: W = 1, later W = K."""

    sentences: Tensor  # (B,) which sentence of the batch each row is
    limits: Tensor  # (B,) most tokens of a translation, </s> not counted
    shortest: int  # no limit is less
    tokens: Tensor  # (B, W, t) live hypotheses
    log_probability: Tensor  # (B, W) -inf: no hypothesis on this beam
    ended: Ended
    ended_count: Tensor  # (B,) all that ever ended

    def keep(self, places: Tensor) -> "BeamState":
        """Return only the sentences at these places, (N,)."""
        return BeamState(
            self.sentences[places],
            self.limits[places],
            self.shortest,
            self.tokens[places],
            self.log_probability[places],
            Ended(*(field[places] for field in self.ended)),
            self.ended_count[places],
        )


class Candidates(NamedTuple):
    """2K ways to make a hypothesis of a sentence one token longer, the first choice first."""

    tokens: Tensor  # (B, 2K)
    origins: Tensor  # (B, 2K) the beam that each one continues
    log_probability: Tensor  # (B, 2K) -inf: there are fewer than 2K


# State, log-probabilities (B·W, V), cache, how many candidates → the candidates, in the order of their right to a beam.
Propose = Callable[[BeamState, Tensor, CacheT, int], Candidates]
# Cache → what is added to the score of a row's hypothesis (N,): where it ends now, and where it is cut after one token.
Bonus = Callable[[CacheT], tuple[Tensor, Tensor]]


def beam_search(
    step: Step[CacheT],
    cache: CacheT,
    limits: Sequence[int],
    options: SearchOptions,
    device: torch.device | str = "cpu",
    propose: Propose[CacheT] | None = None,
    bonus: Bonus[CacheT] | None = None,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses of each sentence, best first; fewer only where the vocabulary holds no more,
    or where diversity groups found the same.

    `limits`: a sentence's most tokens, `</s>` not counted. The first step gets one row per sentence; after it, rows
    are sentences × groups × beams. Sentences that are done leave the batch. `propose` chooses other candidates than the
    likeliest; `bonus` adds to the scores, and never more than 0.
    """
    groups, size = options.diversity_groups, options.beam_size // options.diversity_groups
    if groups > 1:
        propose = diverse_proposer(groups, options.diversity_strength)
    own = replace(options, beam_size=size, n_best=min(options.n_best, size), diversity_groups=1)
    limits = [limit for limit in limits for _ in range(groups)]  # a group is a beam search of its own
    found: list[list[Hypothesis]] = [[] for _ in limits]
    tokens = torch.full((len(limits) // groups,), BOS, device=device)
    interval = check_interval(torch.device(device))
    state: BeamState | None = None
    while True:
        log_probs, cache = step(tokens, cache)  # (B·W, V)
        if state is None:
            log_probs = forbid_empty(log_probs)
            if groups > 1:
                rows = torch.arange(len(tokens), device=device).repeat_interleave(groups)
                log_probs, cache = log_probs[rows], cache.select(rows)
            state = start(limits, size, log_probs)
        if propose is None:
            candidates = extend(state.log_probability, log_probs, 2 * size)
        else:
            candidates = propose(state, log_probs, cache, 2 * size)
        width = state.tokens.size(1)
        state, origins, settled = advance(state, candidates, own, None if bonus is None else bonus(cache))
        rows = origins  # (B, K)
        if len(origins) > 1:
            rows = rows + torch.arange(0, len(origins) * width, width, device=device)[:, None]
        if settled:
            done, length = is_done(state, own), state.tokens.size(2)
            state = freeze(state, done)
            over = done.view(-1, groups).all(dim=1).repeat_interleave(groups)  # a sentence's groups leave together
            if (length % interval == 0 or length >= max(limits)) and over.any():
                for place, hypotheses in collect(state.keep(over.nonzero()[:, 0]), own.n_best):
                    found[place] = hypotheses
                going = (~over).nonzero()[:, 0]
                if not len(going):
                    break
                state, rows = state.keep(going), rows[going]
        cache = cache.select(rows.flatten())
        tokens = state.tokens[:, :, -1].flatten()
    if groups == 1:
        return found
    return [best_of_groups(found[first : first + groups], options.n_best) for first in range(0, len(found), groups)]


def start(limits: Sequence[int], beam_size: int, log_probs: Tensor) -> BeamState:
    """Return the state before the first step, with the type and on the device of its log-probabilities."""
    batch, device, dtype = len(limits), log_probs.device, accumulation_dtype(log_probs.dtype)
    empty = torch.zeros(batch, beam_size, dtype=torch.long, device=device)
    nothing = torch.full((batch, beam_size), -torch.inf, dtype=dtype, device=device)
    return BeamState(
        sentences=torch.arange(batch, device=device),
        limits=torch.tensor(limits, device=device),
        shortest=min(limits),
        tokens=empty[:, :1, None][:, :, :0],
        log_probability=torch.zeros(batch, 1, dtype=dtype, device=device),
        ended=Ended(empty[:, :, None][:, :, :0], empty, nothing, nothing, empty.bool()),
        ended_count=empty[:, 0],
    )


def advance(
    state: BeamState, candidates: Candidates, options: SearchOptions, bonus: tuple[Tensor, Tensor] | None = None
) -> tuple[BeamState, Tensor, bool]:
    """Take one step: set aside what ended, continue with what lives.

    `bonus`: see `Bonus`. Returns the new state; for each new beam, the one that it continues, (B, K); and False where
    no sentence can be done yet.
    """
    beam_size, length = options.beam_size, state.tokens.size(2)
    first = Candidates(*(field[:, :beam_size] for field in candidates))
    longer = _longer(state.tokens, first)
    ends = candidates.tokens == EOS  # (B, 2K)
    asking = is_cheap_to_read(ends)
    if asking and length + 1 < state.shortest and not ends.any():  # as most steps are
        new_state = state._replace(tokens=longer, log_probability=first.log_probability)
        return new_state, first.origins, options.stopping == "exact"
    # Those ending among the first K are set aside; at the limit the first K are taken as they are.
    closing = (ends[:, :beam_size] | (state.limits == length + 1)[:, None]) & (first.log_probability != -torch.inf)
    if not asking or closing.any():
        score = _score(first, ends[:, :beam_size], length, options, bonus)
        state = state._replace(
            ended=_set_aside(state.ended, longer, first.log_probability, score, ends[:, :beam_size], closing),
            ended_count=state.ended_count + closing.sum(dim=1),
        )
    lives = surviving(candidates, beam_size)
    tokens = _longer(state.tokens, lives)
    return state._replace(tokens=tokens, log_probability=lives.log_probability), lives.origins, True


def surviving(candidates: Candidates, beam_size: int) -> Candidates:
    """Return the first K of 2K candidates that do not end. At most K end, one per beam (but in a tiny vocabulary)."""
    alive = (candidates.tokens == EOS).to(torch.uint8).argsort(dim=1, stable=True)[:, :beam_size]  # (B, K)
    tokens, origins, values = (field.gather(1, alive) for field in candidates)
    return Candidates(tokens, origins, values.masked_fill(tokens == EOS, -torch.inf))


def is_cheap_to_read(tensor: Tensor) -> bool:
    """Return whether to look at values may save work. A GPU's must be waited for; it could do the work meanwhile."""
    return tensor.device.type == "cpu"


def extend(before: Tensor, log_probs: Tensor, count: int, cost: Tensor | None = None) -> Candidates:
    """Return the `count` likeliest continuations of a sentence, over all its beams and the whole vocabulary.

    `before` (B, W) is of the beams, `log_probs` (B·W, V). `cost` (B, V) of the tokens counts in choosing, not in the
    log-probability.
    """
    width, vocabulary = before.size(1), log_probs.size(1)
    if cost is None:
        best, flat = best_continuations(before, log_probs, count)  # (B, ≤ 2K)
    else:
        totals = (before[:, :, None] + log_probs.view(-1, width, vocabulary)).flatten(1)  # (B, W·V)
        flat = (totals - cost.repeat(1, width)).topk(min(count, width * vocabulary), dim=1).indices
        best = totals.gather(1, flat)
    found = Candidates(tokens=flat % vocabulary, origins=flat // vocabulary, log_probability=best)
    missing = (0, count - best.size(1))
    if missing[1]:
        fillers = (EOS, 0, -torch.inf)
        found = Candidates(*(functional.pad(field, missing, value=v) for field, v in zip(found, fillers, strict=True)))
    return found


def diverse_proposer(groups: int, strength: float) -> Propose[CacheT]:
    """Return what proposes continuations in groups that keep out of each other's way (Vijayakumar et al. 2016).

    Rows of the state are sentences × groups. The groups choose in turn; a token costs `strength` (λ) for each live beam
    of the groups before that just took it (Hamming diversity). Ends cost nothing: a group that ends takes no word away.
    """

    def propose(state: BeamState, log_probs: Tensor, cache: CacheT, count: int) -> Candidates:
        _, width = state.log_probability.shape
        vocabulary = log_probs.size(1)
        before = state.log_probability.view(-1, groups, width)
        by_group = log_probs.view(-1, groups, width, vocabulary)
        taken = log_probs.new_zeros(len(before), vocabulary)  # (B, V)
        found = []
        for group in range(groups):
            cost = strength * taken if group else None
            found.append(extend(before[:, group], by_group[:, group].flatten(0, 1), count, cost))
            lives = surviving(found[-1], count // 2)
            taken = taken.scatter_add(1, lives.tokens, (lives.log_probability != -torch.inf).to(taken.dtype))
        return Candidates(*(torch.stack(fields, dim=1).flatten(0, 1) for fields in zip(*found, strict=True)))

    return propose


def best_of_groups(groups: Sequence[Sequence[Hypothesis]], n_best: int) -> list[Hypothesis]:
    """Return the best of each group before any second best, each text once; then by score."""
    ranked = [(rank, -one.score, one) for group in groups for rank, one in enumerate(group)]
    ranked.sort(key=lambda place: place[:2])
    once = {tuple(one.ids): one for _, _, one in reversed(ranked)}
    chosen = [one for _, _, one in ranked if once[tuple(one.ids)] is one][:n_best]
    return sorted(chosen, key=lambda one: -one.score)


def is_done(state: BeamState, options: SearchOptions) -> Tensor:
    """Return which sentences are done: at the limit, without a live beam, or by the stopping rule. → (B,)

    `first`: K hypotheses ended. `exact`: the best live one can no longer get among the `n_best` best: its
    log-probability only falls, and (α ≥ 0) divided by the penalty of the longest text allowed it falls least.
    """
    best = state.log_probability.amax(dim=1)
    done = (state.limits <= state.tokens.size(2)) | (best == -torch.inf)
    if options.stopping == "first":
        return done | (state.ended_count >= options.beam_size)
    penalties = [options.penalty(limit) for limit in state.limits.tolist()]
    bound = best / torch.tensor(penalties, dtype=best.dtype, device=best.device)
    return done | (state.ended.score[:, options.n_best - 1] >= bound)


def freeze(state: BeamState, done: Tensor) -> BeamState:
    """Return the same without a live beam where `done` (B,): these wait."""
    return state._replace(log_probability=state.log_probability.masked_fill(done[:, None], -torch.inf))


def collect(state: BeamState, n_best: int) -> list[tuple[int, list[Hypothesis]]]:
    """Return what was found for each sentence of a state: its number in the batch and the hypotheses, best first."""
    kept = [field[:, :n_best].tolist() for field in state.ended]
    return [
        (
            sentence,
            [
                Hypothesis(tokens[:length], score, log_probability, ended)
                for tokens, length, log_probability, score, ended in zip(*fields, strict=True)
                if length
            ],
        )
        for sentence, *fields in zip(state.sentences.tolist(), *kept, strict=True)
    ]


def _score(
    candidates: Candidates, ends: Tensor, length: int, options: SearchOptions, bonus: tuple[Tensor, Tensor] | None
) -> Tensor:
    """Return what each candidate (B, K) scores if it ends now (`ends`) or is cut. All that end in one step have one
    length, all that are cut off another.
    """
    log_probability = candidates.log_probability
    score = torch.where(ends, log_probability / options.penalty(length), log_probability / options.penalty(length + 1))
    if bonus is None:
        return score
    ending, cut = (each.view(len(ends), -1).gather(1, candidates.origins) for each in bonus)
    return score + torch.where(ends, ending, cut)


def _set_aside(
    before: Ended, sequences: Tensor, log_probability: Tensor, score: Tensor, ends: Tensor, closing: Tensor
) -> Ended:
    """Return the K best of those that ended before and those ending now, best first; of equal ones the earlier."""
    beam_size, length = before.lengths.size(1), sequences.size(2)
    both = Ended(
        torch.cat([functional.pad(before.tokens, (0, length - before.tokens.size(2)), value=PAD), sequences], dim=1),
        torch.cat([before.lengths, (length - ends.long()).masked_fill(~closing, 0)], dim=1),
        torch.cat([before.log_probability, log_probability], dim=1),
        torch.cat([before.score, score.masked_fill(~closing, -torch.inf)], dim=1),
        torch.cat([before.ended, ends], dim=1),
    )
    best = both.score.argsort(dim=1, descending=True, stable=True)[:, :beam_size]  # (B, K)
    return Ended(_pick(both.tokens, best), *(field.gather(1, best) for field in both[1:]))


def _longer(sequences: Tensor, candidates: Candidates) -> Tensor:
    """Return the sequences (B, W, t) that candidates (B, N) continue, with their tokens at the end. → (B, N, t + 1)"""
    return torch.cat([_pick(sequences, candidates.origins), candidates.tokens[:, :, None]], dim=2)


def _pick(sequences: Tensor, which: Tensor) -> Tensor:
    """Return sequences (B, N, t) numbered by `which` (B, M). → (B, M, t)"""
    return sequences.gather(1, which[:, :, None].expand(-1, -1, sequences.size(2)))
