"""The automatons of a batch of sentences as tables, so that all rows of a search step through them at once.

`restrictions` and `constrained` work with them. Shapes: B sentences, N rows, V vocabulary, P required sequences, L
letters: the tokens that occur in any sequence. Letter 0 stands for all other tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_cli.decoding.search.patterns import Patterns
from transformer_cli.errors import UserError
from transformer_cli.text.vocabulary import BOS, EOS, PAD


class Said(NamedTuple):
    """How far each row has come with its sequences."""

    sentences: Tensor  # (N,) which sentence of the batch a row belongs to
    nodes: Tensor  # (N,) where the sentence's automaton stands
    left: Tensor  # (N, P) how often each required sequence still must come

    def select(self, rows: Tensor) -> "Said":
        """The given rows, in the given order; `rows` (N,) may repeat."""
        return Said(self.sentences[rows], self.nodes[rows], self.left[rows])


class PatternTables:
    """What is required and forbidden in each sentence of a batch. Raises `UserError` where no word is left to say."""

    def __init__(self, patterns: Sequence[Patterns], vocabulary_size: int, device: torch.device | str) -> None:
        """`patterns` of each sentence; sentences may share them."""
        automatons = list(dict.fromkeys(patterns))
        kind = {automaton: place for place, automaton in enumerate(automatons)}
        kinds = torch.tensor([kind[one] for one in patterns])  # (B,)
        for automaton in automatons:
            if sum(len(sequence) == 1 for sequence in automaton.forbidden) >= vocabulary_size - len((PAD, BOS, EOS)):
                raise UserError("every word of the vocabulary is forbidden: leave some to translate with")

        letters = sorted({token for automaton in automatons for token in automaton.letters})
        self.letters = torch.tensor(letters, dtype=torch.long, device=device)  # (L,)
        self.letter_of = torch.zeros(vocabulary_size, dtype=torch.long, device=device)  # (V,)
        self.letter_of[self.letters] = torch.arange(1, len(letters) + 1, device=device)
        self.sequences = max(len(automaton.required) for automaton in automatons)  # P

        starts = torch.tensor([0, *(len(automaton.nodes) for automaton in automatons)]).cumsum(0)[:-1]
        self.links = _links(automatons, starts.tolist(), letters).to(device)  # (nodes, 1 + L)
        broken = [value for automaton in automatons for value in automaton.broken]
        self.breaks = torch.tensor(broken, device=device)[self.links]  # (nodes, 1 + L)
        self.met = self._table([row for automaton in automatons for row in automaton.met]).to(device)  # (nodes, P)
        self.saved = self._table([row for automaton in automatons for row in automaton.saved]).to(device)
        counts = self._table([automaton.counts for automaton in automatons])[kinds]
        costs = self._table(
            [[len(sequence) + automaton.gap for sequence in automaton.required] for automaton in automatons]
        )[kinds]
        self.costs = costs.to(device)  # (B, P) tokens of each required sequence, the gap before it among them
        self.gaps = torch.tensor([one.gap for one in patterns], device=device)  # (B,)
        self.start_nodes = starts[kinds].to(device)  # (B,)
        self.counts = counts.to(device)  # (B, P)

    def _table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[*map(int, row), *[0] * (self.sequences - len(row))] for row in rows]).long()

    def start(self) -> Said:
        """Where every sentence begins; one row each."""
        return Said(torch.arange(len(self.counts), device=self.counts.device), self.start_nodes, self.counts)

    def grow(self, said: Said, tokens: Tensor) -> Said:
        """One more token (N,) said."""
        nodes = self.links[said.nodes, self.letter_of[tokens]]
        return Said(said.sentences, nodes, (said.left - self.met[nodes]).clamp(min=0))

    def need(self, said: Said) -> Tensor:
        """As many more tokens always do to say all that is left. → (N,)"""
        return self._need(said.nodes, said.left, self.costs[said.sentences])

    def needs(self, said: Said) -> Tensor:
        """The same after each letter. → (N, 1 + L)"""
        nodes = self.links[said.nodes]  # (N, 1 + L)
        left = (said.left[:, None, :] - self.met[nodes]).clamp(min=0)  # (N, 1 + L, P)
        return self._need(nodes, left, self.costs[said.sentences][:, None, :])

    def advancing(self, said: Said, needs: Tensor) -> Tensor:
        """Which letters bring a row nearer to having said all. `needs` (N, 1 + L) → (N, 1 + L)"""
        return needs < self.need(said)[:, None]

    def begun(self, said: Said) -> Tensor:
        """How many tokens a row has said of the required sequence that it is in the middle of. → (N,)"""
        whole = (said.left * self.costs[said.sentences]).sum(dim=1)
        return whole - self.need(said) - self.gaps[said.sentences]

    def _need(self, nodes: Tensor, left: Tensor, costs: Tensor) -> Tensor:
        return (left * costs).sum(dim=-1) - self.saved[nodes].masked_fill(left == 0, 0).amax(dim=-1)

    def without_forbidden(self, log_probs: Tensor, said: Said) -> Tensor:
        """Log-probabilities (N, V) without the tokens that would complete a forbidden sequence."""
        columns = log_probs[:, self.letters].masked_fill(self.breaks[said.nodes, 1:], -torch.inf)
        return log_probs.index_copy(1, self.letters, columns)

    def only(self, log_probs: Tensor, letters: Tensor) -> Tensor:
        """Log-probabilities (N, V) of the tokens whose letters (N, 1 + L) are True."""
        return log_probs.masked_fill(~letters[:, self.letter_of], -torch.inf)


def _links(automatons: Sequence[Patterns], starts: Sequence[int], letters: Sequence[int]) -> Tensor:
    """Where each letter leads from each node of each automaton. → (nodes, 1 + L)"""
    number = {token: place for place, token in enumerate(letters, start=1)}
    tables = []
    for automaton, start in zip(automatons, starts, strict=True):
        table = torch.full((len(automaton.nodes), 1 + len(letters)), start)
        for node, children in enumerate(automaton.children):
            if node:
                table[node] = table[automaton.ends[node]]  # as that one, a shorter end, goes on
            if children:
                table[node, [number[token] for token in children]] = start + torch.tensor([*children.values()])
        tables.append(table)
    return torch.cat(tables)
