"""One sentence's required and forbidden token sequences as one automaton (Aho and Corasick 1975). No torch.

A node is the longest end of a text with which some sequence begins. `restrictions` makes tables of it for a batch.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_cli.decoding.options import TokenConstraints
from transformer_cli.errors import UserError
from transformer_cli.text.vocabulary import BOS, EOS, PAD

Tokens = tuple[int, ...]


class ConstraintAutomaton:
    """The automaton of one sentence's constraints. Node 0: nothing of any sequence yet."""

    def __init__(self, constraints: TokenConstraints) -> None:
        self.prefix = constraints.prefix
        counts = Counter(constraints.required)
        self.required = list(counts)  # P different sequences
        self.counts = [counts[sequence] for sequence in self.required]  # how often each is required
        self.forbidden = set(constraints.forbidden)
        sequences = [*self.required, *self.forbidden]
        self.letters = sorted({token for sequence in sequences for token in sequence})
        beginnings = {sequence[:size] for sequence in sequences for size in range(len(sequence) + 1)} | {()}
        self.nodes = sorted(beginnings, key=lambda tokens: (len(tokens), tokens))
        self.children: list[dict[int, int]] = [{} for _ in self.nodes]  # by token
        self.ends = _link(self.nodes, self.children)  # of each node, the node of its longest proper end
        self.met = [[_ends_with(node, sequence) for sequence in self.required] for node in self.nodes]
        self.broken = [any(node[place:] in self.forbidden for place in range(len(node))) for node in self.nodes]
        # With forbidden sequences about, one token of another kind before each required one keeps them apart.
        self.gap = int(bool(self.forbidden))
        self.saved = [[self._saved(node, sequence) for sequence in self.required] for node in range(len(self.nodes))]

    def follow(self, node: int, tokens: Sequence[int]) -> list[int]:
        """The nodes that these tokens lead through."""
        path = []
        for token in tokens:
            while node and token not in self.children[node]:
                node = self.ends[node]
            node = self.children[node].get(token, 0)
            path.append(node)
        return path

    def _saved(self, node: int, sequence: Tokens) -> int:
        """How much nearer than at worst a node is to the end of a required sequence: tokens of it said already, and no
        gap needed. 0 where going on from here would complete a forbidden one.
        """
        for size in range(len(sequence) - 1, -1, -1):
            said, rest = sequence[:size], sequence[size:]
            if _ends_with(self.nodes[node], said) and not any(self.broken[step] for step in self.follow(node, rest)):
                return size + self.gap
        return 0

    def need(self, node: int, left: Sequence[int]) -> int:
        """As many more tokens always do to say all that is left; `left`: how often each sequence still must come."""
        total = sum(count * (len(sequence) + self.gap) for count, sequence in zip(left, self.required, strict=True))
        return total - max((saved for saved, count in zip(self.saved[node], left, strict=True) if count), default=0)

    @property
    def worst(self) -> int:
        """The most that `need` ever says."""
        return sum(
            count * (len(sequence) + self.gap) for count, sequence in zip(self.counts, self.required, strict=True)
        )

    @property
    def room(self) -> int:
        """The least length limit: the prefix, all that is required after it, and one token more, so that it may end."""
        path = self.follow(0, self.prefix)
        said = [sum(self.met[node][place] for node in path) for place in range(len(self.required))]
        left = [max(0, count - times) for count, times in zip(self.counts, said, strict=True)]
        return len(self.prefix) + self.need(path[-1] if path else 0, left) + 1


def _link(nodes: Sequence[Tokens], children: Sequence[dict[int, int]]) -> list[int]:
    """Fill in the children of nodes, shortest first; return the node of each one's longest proper end."""
    number = {node: place for place, node in enumerate(nodes)}
    ends = [0] * len(nodes)
    for place, node in enumerate(nodes):
        if node:
            children[number[node[:-1]]][node[-1]] = place
            shorter = (node[start:] for start in range(1, len(node) + 1))
            ends[place] = next(number[end] for end in shorter if end in number)
    return ends


def _ends_with(text: Tokens, sequence: Tokens) -> bool:
    return len(sequence) <= len(text) and text[len(text) - len(sequence) :] == sequence


class AutomatonState(NamedTuple):
    """How far each row has come with its sequences."""

    sentences: Tensor  # (N,) which sentence of the batch a row belongs to
    nodes: Tensor  # (N,) where the sentence's automaton stands
    left: Tensor  # (N, P) how often each required sequence still must come

    def select(self, rows: Tensor) -> "AutomatonState":
        """The given rows, in the given order; `rows` (N,) may repeat."""
        return AutomatonState(self.sentences[rows], self.nodes[rows], self.left[rows])


class AutomatonTables:
    """What is required and forbidden in each sentence of a batch. Raises `UserError` where no word is left to say."""

    def __init__(
        self, patterns: Sequence[ConstraintAutomaton], vocabulary_size: int, device: torch.device | str
    ) -> None:
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

    def start(self) -> AutomatonState:
        """Where every sentence begins; one row each."""
        return AutomatonState(torch.arange(len(self.counts), device=self.counts.device), self.start_nodes, self.counts)

    def grow(self, said: AutomatonState, tokens: Tensor) -> AutomatonState:
        """One more token (N,) said."""
        nodes = self.links[said.nodes, self.letter_of[tokens]]
        return AutomatonState(said.sentences, nodes, (said.left - self.met[nodes]).clamp(min=0))

    def need(self, said: AutomatonState) -> Tensor:
        """As many more tokens always do to say all that is left. → (N,)"""
        return self._need(said.nodes, said.left, self.costs[said.sentences])

    def needs(self, said: AutomatonState) -> Tensor:
        """The same after each letter. → (N, 1 + L)"""
        nodes = self.links[said.nodes]  # (N, 1 + L)
        left = (said.left[:, None, :] - self.met[nodes]).clamp(min=0)  # (N, 1 + L, P)
        return self._need(nodes, left, self.costs[said.sentences][:, None, :])

    def advancing(self, said: AutomatonState, needs: Tensor) -> Tensor:
        """Which letters bring a row nearer to having said all. `needs` (N, 1 + L) → (N, 1 + L)"""
        return needs < self.need(said)[:, None]

    def begun(self, said: AutomatonState) -> Tensor:
        """How many tokens a row has said of the required sequence that it is in the middle of. → (N,)"""
        whole = (said.left * self.costs[said.sentences]).sum(dim=1)
        return whole - self.need(said) - self.gaps[said.sentences]

    def _need(self, nodes: Tensor, left: Tensor, costs: Tensor) -> Tensor:
        return (left * costs).sum(dim=-1) - self.saved[nodes].masked_fill(left == 0, 0).amax(dim=-1)

    def without_forbidden(self, log_probs: Tensor, said: AutomatonState) -> Tensor:
        """Log-probabilities (N, V) without the tokens that would complete a forbidden sequence."""
        columns = log_probs[:, self.letters].masked_fill(self.breaks[said.nodes, 1:], -torch.inf)
        return log_probs.index_copy(1, self.letters, columns)

    def only(self, log_probs: Tensor, letters: Tensor) -> Tensor:
        """Log-probabilities (N, V) of the tokens whose letters (N, 1 + L) are True."""
        return log_probs.masked_fill(~letters[:, self.letter_of], -torch.inf)


def _links(automatons: Sequence[ConstraintAutomaton], starts: Sequence[int], letters: Sequence[int]) -> Tensor:
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
