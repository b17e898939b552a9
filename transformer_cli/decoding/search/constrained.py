"""Constraints around the model's step, and beams for required sequences: dynamic beam allocation (Post and Vilar 2018).

`dispatch` calls it for every search. `StepConstraints` leaves only those tokens a probability that may come: what is
required comes in time, and no end before it. `bank_proposer` shares beams out: hypotheses that lack equally many tokens
form a bank, and the beams go to all banks in turn, so that those that begin a required sequence, seldom the likeliest,
live on to be compared when it is complete.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformer_cli.decoding.search.automaton import AutomatonState, AutomatonTables, ConstraintAutomaton
from transformer_cli.decoding.search.beam import BeamState, Candidates, Propose, extend
from transformer_cli.decoding.search.greedy import CacheT, Step, forbid_empty
from transformer_cli.search_options import MAX_BEAMS, SearchOptions
from transformer_cli.text.vocabulary import EOS


@dataclass(frozen=True)
class ConstrainedCache(Generic[CacheT]):
    """The model's cache, and each row's tokens so far. Rows are hypotheses."""

    inner: CacheT
    history: Tensor | None  # (N, t) None: not even <s>
    state: AutomatonState

    def select(self, rows: Tensor) -> "ConstrainedCache[CacheT]":
        """Return the given rows, in the given order; `rows` (N,) may repeat."""
        history = None if self.history is None else self.history[rows]
        return ConstrainedCache(self.inner.select(rows), history, self.state.select(rows))


class StepConstraints:
    """The constraints on a batch of sentences: prefix, required and forbidden sequences, n-grams, least length."""

    def __init__(
        self,
        options: SearchOptions,
        automata: Sequence[ConstraintAutomaton],
        limits: Sequence[int],
        vocabulary_size: int,
        device: torch.device | str = "cpu",
        required_at_end: bool = False,
    ) -> None:
        """`automata` and `limits` (most tokens) of each sentence; limits are at least its `least_limit`.

        `required_at_end`: where a row would end now, what it still lacks comes next. For searches that do not lead a
        row there by themselves; without, what is required comes when it must.
        """
        self.no_repeat_ngram, self.min_length = options.no_repeat_ngram, options.min_length
        self.required_at_end = required_at_end
        self.tables = AutomatonTables(automata, vocabulary_size, device)
        self.limits = torch.tensor(limits, device=device)  # (B,)
        # Before this position there is room enough for all that is required, whatever token comes.
        self.tight_from = min(limit - one.most_needed for limit, one in zip(limits, automata, strict=True))
        prefixes = [torch.tensor(one.prefix, dtype=torch.long) for one in automata]
        self.prefixes = pad_sequence(prefixes, batch_first=True, padding_value=-1).to(device)  # (B, longest)

    def start(self, cache: CacheT) -> ConstrainedCache[CacheT]:
        """Return the cache to begin with, around the model's own; one row per sentence."""
        return ConstrainedCache(cache, None, self.tables.start())

    def around(self, step: Step[CacheT]) -> Step[ConstrainedCache[CacheT]]:
        """Return the model's step under these constraints."""

        def constrained(tokens: Tensor, cache: ConstrainedCache[CacheT]) -> tuple[Tensor, ConstrainedCache[CacheT]]:
            if cache.history is None:
                history, state = tokens[:, None][:, :0], cache.state
            else:
                history = torch.cat([cache.history, tokens[:, None]], dim=1)
                state = self.tables.advance(cache.state, tokens)
            log_probs, inner = step(tokens, cache.inner)
            return self.allowed(log_probs, history, state), ConstrainedCache(inner, history, state)

        return constrained

    def allowed(self, log_probs: Tensor, history: Tensor, state: AutomatonState) -> Tensor:
        """Return log-probabilities (N, V) of the tokens that may follow the history (N, t); of all others -inf.

        A later constraint gives way to earlier ones where it would leave no token.
        """
        tables, position = self.tables, history.size(1)
        allowed = forbid_empty(log_probs) if position == 0 else log_probs
        if len(tables.symbols):
            allowed = tables.without_forbidden(allowed, state)
        needed = advancing = None
        if tables.required:
            needed = tables.needed_after(state)  # (N, 1 + L)
            advancing = needed < tables.needed(state)[:, None]  # (N, 1 + L) symbols of what is required
            allowed = _unless_nothing(allowed, self._in_time(allowed, position, state, needed))
        if self.no_repeat_ngram:
            fresh = without_repeated(allowed, history, self.no_repeat_ngram)
            if advancing is not None:  # what is required may repeat
                inside = tables.begun(state) >= self.no_repeat_ngram - 1  # (N,)
                fresh = torch.where((inside[:, None] & advancing)[:, tables.symbol_of], allowed, fresh)
            allowed = _unless_nothing(allowed, fresh)
        if advancing is not None and self.required_at_end and position >= self.min_length:
            free = (state.left == 0).all(dim=1) | (log_probs.argmax(dim=1) != EOS)  # (N,)
            allowed = _unless_nothing(allowed, tables.only(allowed, free[:, None] | advancing))
        if position < self.min_length:
            allowed = _unless_nothing(allowed, forbid_empty(allowed))
        if position < self.prefixes.size(1):
            allowed = force_prefix(allowed, log_probs, self.prefixes[state.sentences, position])
        return allowed

    def _in_time(self, log_probs: Tensor, position: int, state: AutomatonState, needed: Tensor) -> Tensor:
        """Allow no end before all that is required is there, and no token that takes the room of what must come."""
        ending = log_probs[:, EOS].masked_fill((state.left > 0).any(dim=1), -torch.inf)
        allowed = log_probs.index_copy(1, torch.tensor([EOS], device=log_probs.device), ending[:, None])
        if position >= self.tight_from:
            allowed = self.tables.only(allowed, needed <= (self.limits[state.sentences] - position - 1)[:, None])
        return allowed


def without_repeated(log_probs: Tensor, history: Tensor, size: int) -> Tensor:
    """Return log-probabilities (N, V) without the tokens that would repeat `size` tokens of the history (N, t)."""
    if history.size(1) < size:
        return log_probs
    windows = history.unfold(1, size, 1)  # (N, t - size + 1, size)
    seen = (windows[:, :, :-1] == history[:, None, history.size(1) - size + 1 :]).all(dim=2)
    most = torch.where(seen, -torch.inf, torch.inf).to(log_probs.dtype)
    return log_probs.scatter_reduce(1, windows[:, :, -1], most, "amin")


def force_prefix(log_probs: Tensor, own: Tensor, prefix: Tensor) -> Tensor:
    """Return log-probabilities (N, V); of a row whose next token is given, `prefix` (N,) ≥ 0, those of that alone."""
    given = prefix.clamp(min=0)[:, None]
    alone = torch.full_like(own, -torch.inf).scatter(1, given, own.gather(1, given))
    return torch.where((prefix >= 0)[:, None], alone, log_probs)


def _unless_nothing(before: Tensor, after: Tensor) -> Tensor:
    """Return `after`, but for rows where it leaves no token, `before`. Both (N, V)"""
    return torch.where((after > -torch.inf).any(dim=1, keepdim=True), after, before)


# --- beams for required sequences -------------------------------------------------------------------------------------

FEW = 4  # beams more or less do not matter
OWN = 2  # of each beam, so many of its likeliest continuations are candidates


def beams_needed(automaton: ConstraintAutomaton, beam_size: int) -> int:
    """Return how many beams a sentence takes so that every bank has one; rounded up, so that like ones go together."""
    banks, size = automaton.most_needed + 1, max(beam_size, FEW)
    return beam_size if banks <= beam_size else min(-(-banks // size), MAX_BEAMS // size) * size


def bank_proposer(tables: AutomatonTables) -> Propose[ConstrainedCache[CacheT]]:
    """Return what proposes continuations of the beams: in each bank the likeliest first, all banks in turn."""

    def propose(state: BeamState, log_probs: Tensor, cache: ConstrainedCache[CacheT], count: int) -> Candidates:
        width = state.log_probability.size(1)
        needed = tables.needed_after(cache.state)  # (B·W, 1 + L)
        advancing = (needed < tables.needed(cache.state)[:, None])[:, 1:]
        total, tokens, origins = gather_candidates(state, log_probs, tables.symbols, advancing, count)
        places = origins * needed.size(1) + tables.symbol_of[tokens]
        bank = needed.view(-1, width * needed.size(1)).gather(1, places)  # (B, C)
        best = alternate(total, bank)[:, :count]  # (B, 2K)
        return Candidates(tokens.gather(1, best), origins.gather(1, best), total.gather(1, best))

    return propose


def gather_candidates(
    state: BeamState, log_probs: Tensor, symbols: Tensor, advancing: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the likeliest continuations (`count` of them), the likeliest that advance a required sequence (as many),
    and the likeliest of every beam; each once, best first. `log_probs` (B·W, V), `advancing` (B·W, L).

    Returns log-probability (-inf: none), token and beam of each, (B, C).
    """
    batch, width = state.log_probability.shape
    likeliest = extend(state.log_probability, log_probs, count)

    before = state.log_probability[:, :, None]
    gains = log_probs[:, symbols].masked_fill(~advancing, -torch.inf)
    helpful = (before + gains.view(batch, width, -1)).flatten(1)  # (B, W·L)
    helpful, places = helpful.topk(min(count, helpful.size(1)), dim=1)

    own, own_tokens = log_probs.topk(min(OWN, log_probs.size(1)), dim=1)  # (B·W, OWN)
    own_origins = torch.arange(width, device=places.device).repeat_interleave(own.size(1)).expand(batch, -1)

    tokens = torch.cat([likeliest.tokens, symbols[places % len(symbols)], own_tokens.view(batch, -1)], dim=1)
    origins = torch.cat([likeliest.origins, places // len(symbols), own_origins], dim=1)
    own_total = (before + own.view(batch, width, -1)).flatten(1)
    total = torch.cat([likeliest.log_probability, helpful, own_total], dim=1)
    total, order = total.sort(dim=1, descending=True, stable=True)
    tokens, origins = tokens.gather(1, order), origins.gather(1, order)
    again = (tokens[:, :, None] == tokens[:, None, :]) & (origins[:, :, None] == origins[:, None, :])  # (B, C, C)
    return total.masked_fill(again.tril(diagonal=-1).any(dim=2), -torch.inf), tokens, origins


def alternate(total: Tensor, bank: Tensor) -> Tensor:
    """Return the order of candidates (B, C), best first already, that puts the best of every bank before any second."""
    there = total != -torch.inf
    same = (bank[:, :, None] == bank[:, None, :]) & there[:, None, :]  # (B, C, C)
    rank = same.tril(diagonal=-1).sum(dim=2).masked_fill(~there, total.size(1))
    return rank.argsort(dim=1, stable=True)
