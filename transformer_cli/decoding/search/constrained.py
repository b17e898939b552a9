"""Beams for required token sequences: dynamic beam allocation (Post and Vilar 2018).

`search` hands `proposer` to `beam_search`. Hypotheses that lack equally many tokens form a bank, and the beams go to
all banks in turn: so those that begin a required sequence, seldom the likeliest, live on to be compared when complete.
That all is said in time, and no end comes before, `restrictions` sees to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.search.automaton import AutomatonState, AutomatonTables, ConstraintAutomaton
from transformer_cli.decoding.search.beam import BeamState, Bonus, Candidates, Propose, extend
from transformer_cli.decoding.search.greedy import CacheT, Step, forbid_empty
from transformer_cli.text.vocabulary import EOS


@dataclass(frozen=True)
class Restricted(Generic[CacheT]):
    """The model's cache, and what was said so far. Rows are hypotheses."""

    inner: CacheT
    history: Tensor | None  # (N, t) None: not even <s>
    said: AutomatonState

    def select(self, rows: Tensor) -> "Restricted[CacheT]":
        """The given rows, in the given order; `rows` (N,) may repeat."""
        history = None if self.history is None else self.history[rows]
        return Restricted(self.inner.select(rows), history, self.said.select(rows))


class Restrictions:
    """What holds for a batch of sentences."""

    def __init__(
        self,
        options: SearchOptions,
        patterns: Sequence[ConstraintAutomaton],
        limits: Sequence[int],
        vocabulary_size: int,
        device: torch.device | str = "cpu",
        urgent: bool = False,
    ) -> None:
        """`patterns` and `limits` (most tokens) of each sentence; limits are at least its `room`.

        `urgent`: where a row would end now, what it still lacks comes next. For searches that do not lead a row there
        by themselves; without, what is required comes when it must.
        """
        self.no_repeat_ngram, self.min_length, self.urgent = options.no_repeat_ngram, options.min_length, urgent
        self.tables = AutomatonTables(patterns, vocabulary_size, device)
        self.limits = torch.tensor(limits, device=device)  # (B,)
        # Before this position no token takes the room of what is required.
        self.tight_from = min(limit - one.worst for limit, one in zip(limits, patterns, strict=True))
        prefixes = [torch.tensor(one.prefix, dtype=torch.long) for one in patterns]
        self.prefixes = pad_sequence(prefixes, batch_first=True, padding_value=-1).to(device)  # (B, longest)

    def start(self, cache: CacheT) -> Restricted[CacheT]:
        """The cache to begin with, over the model's own; one row a sentence."""
        return Restricted(cache, None, self.tables.start())

    def around(self, step: Step[CacheT]) -> Step[Restricted[CacheT]]:
        """The model's step, with all this obeyed."""

        def restricted(tokens: Tensor, cache: Restricted[CacheT]) -> tuple[Tensor, Restricted[CacheT]]:
            if cache.history is None:
                history, said = tokens[:, None][:, :0], cache.said
            else:
                history = torch.cat([cache.history, tokens[:, None]], dim=1)
                said = self.tables.grow(cache.said, tokens)
            log_probs, inner = step(tokens, cache.inner)
            return self.allowed(log_probs, history, said), Restricted(inner, history, said)

        return restricted

    def allowed(self, log_probs: Tensor, history: Tensor, said: AutomatonState) -> Tensor:
        """Log-probabilities (N, V) of the tokens that may follow the history (N, t); of all others -inf."""
        tables, position = self.tables, history.size(1)
        some = forbid_empty(log_probs) if position == 0 else log_probs
        if len(tables.letters):
            some = tables.without_forbidden(some, said)
        needs = tables.needs(said) if tables.sequences else None  # (N, 1 + L)
        if needs is not None:
            some = _unless_nothing(some, self._in_time(some, position, said, needs))
        if self.no_repeat_ngram:
            fresh = without_repeated(some, history, self.no_repeat_ngram)
            if needs is not None:  # what is required may repeat
                inside = tables.begun(said) >= self.no_repeat_ngram - 1  # (N,)
                demanded = inside[:, None] & tables.advancing(said, needs)
                fresh = torch.where(demanded[:, tables.letter_of], some, fresh)
            some = _unless_nothing(some, fresh)
        if needs is not None and self.urgent and position >= self.min_length:
            calm = (said.left == 0).all(dim=1) | (log_probs.argmax(dim=1) != EOS)  # (N,)
            some = _unless_nothing(some, tables.only(some, calm[:, None] | tables.advancing(said, needs)))
        if position < self.min_length:
            some = _unless_nothing(some, forbid_empty(some))
        if position < self.prefixes.size(1):
            some = begun(some, log_probs, self.prefixes[said.sentences, position])
        return some

    def _in_time(self, log_probs: Tensor, position: int, said: AutomatonState, needs: Tensor) -> Tensor:
        """No end before all that is required is said, and no token that takes the room of what must still come."""
        ending = log_probs[:, EOS].masked_fill((said.left > 0).any(dim=1), -torch.inf)
        some = log_probs.index_copy(1, torch.tensor([EOS], device=log_probs.device), ending[:, None])
        if position >= self.tight_from:
            some = self.tables.only(some, needs <= (self.limits[said.sentences] - position - 1)[:, None])
        return some


def bonus_of_inner(bonus: Bonus[CacheT]) -> Bonus[Restricted[CacheT]]:
    """The same bonus from a cache that restrictions are around."""
    return lambda cache: bonus(cache.inner)


def without_repeated(log_probs: Tensor, history: Tensor, size: int) -> Tensor:
    """Log-probabilities (N, V) without the tokens that would repeat `size` tokens of the history (N, t)."""
    if history.size(1) < size:
        return log_probs
    windows = history.unfold(1, size, 1)  # (N, t - size + 1, size)
    seen = (windows[:, :, :-1] == history[:, None, history.size(1) - size + 1 :]).all(dim=2)
    most = torch.where(seen, -torch.inf, torch.inf).to(log_probs.dtype)
    return log_probs.scatter_reduce(1, windows[:, :, -1], most, "amin")


def begun(log_probs: Tensor, own: Tensor, prefix: Tensor) -> Tensor:
    """Log-probabilities (N, V), but where a row's next token is given, `prefix` (N,) ≥ 0, that token's `own` alone."""
    given = prefix.clamp(min=0)[:, None]
    alone = torch.full_like(own, -torch.inf).scatter(1, given, own.gather(1, given))
    return torch.where((prefix >= 0)[:, None], alone, log_probs)


def _unless_nothing(before: Tensor, after: Tensor) -> Tensor:
    """`after`, but for rows where it leaves no token, `before`. Both (N, V)"""
    return torch.where((after > -torch.inf).any(dim=1, keepdim=True), after, before)


FEW = 4  # beams more or less do not matter
OWN = 2  # of each beam, so many of its likeliest continuations are candidates


def beams_for(patterns: ConstraintAutomaton, beam_size: int) -> int:
    """How many beams a sentence needs so that every bank has one; rounded up, so that like sentences go together."""
    banks = patterns.worst + 1
    size = max(beam_size, FEW)
    return beam_size if banks <= beam_size else -(-banks // size) * size


def proposer(tables: AutomatonTables) -> Propose[Restricted[CacheT]]:
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
