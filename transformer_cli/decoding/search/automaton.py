"""Required and forbidden token sequences as an automaton (Aho and Corasick 1975) a sentence, and as tables of a batch.

A node is the longest end of a text with which some sequence begins. `constrained` searches by these tables.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_cli.decoding.engines.protocol import TokenConstraints
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
        self.symbols = sorted({token for sequence in sequences for token in sequence})
        beginnings = {sequence[:size] for sequence in sequences for size in range(len(sequence) + 1)} | {()}
        self.nodes = sorted(beginnings, key=lambda tokens: (len(tokens), tokens))
        self.transitions = _transitions(self.nodes)
        self.completes = [[_ends_with(node, sequence) for sequence in self.required] for node in self.nodes]
        self.breaks = [any(node[start:] in self.forbidden for start in range(len(node))) for node in self.nodes]
        # Beside forbidden sequences, one token of another kind before each required one keeps them apart.
        self.gap = int(bool(self.forbidden))
        self.costs = [len(sequence) + self.gap for sequence in self.required]
        self.saved = [[self._saved(node, sequence) for sequence in self.required] for node in range(len(self.nodes))]

    def follow(self, node: int, tokens: Sequence[int]) -> list[int]:
        """Return the nodes that these tokens lead through."""
        path = []
        for token in tokens:
            node = self.transitions[node].get(token, 0)
            path.append(node)
        return path

    def _saved(self, node: int, sequence: Tokens) -> int:
        """Return how many tokens fewer than its cost a required sequence takes from a node: what of it is there
        already, and the gap. 0 where to continue it from here would complete a forbidden one.
        """
        for size in range(len(sequence) - 1, -1, -1):
            begun, rest = sequence[:size], sequence[size:]
            if _ends_with(self.nodes[node], begun) and not any(self.breaks[step] for step in self.follow(node, rest)):
                return size + self.gap
        return 0

    def needed(self, node: int, left: Sequence[int]) -> int:
        """Return how many more tokens always suffice for all that is left: how often each sequence must still come."""
        total = sum(count * cost for count, cost in zip(left, self.costs, strict=True))
        return total - max((saved for saved, count in zip(self.saved[node], left, strict=True) if count), default=0)

    @property
    def most_needed(self) -> int:
        """The most that `needed` ever returns."""
        return sum(count * cost for count, cost in zip(self.counts, self.costs, strict=True))

    @property
    def least_limit(self) -> int:
        """The least length limit: the prefix, all that is required after it, and one token more, so that it may end."""
        path = self.follow(0, self.prefix)
        in_prefix = [sum(self.completes[node][place] for node in path) for place in range(len(self.required))]
        left = [max(0, count - times) for count, times in zip(self.counts, in_prefix, strict=True)]
        return len(self.prefix) + self.needed(path[-1] if path else 0, left) + 1


def _transitions(nodes: Sequence[Tokens]) -> list[dict[int, int]]:
    """Return where each token leads from each of these nodes, shortest first; tokens that are not there lead to 0."""
    number = {node: place for place, node in enumerate(nodes)}
    children: list[dict[int, int]] = [{} for _ in nodes]
    for node, place in number.items():
        if node:
            children[number[node[:-1]]][node[-1]] = place
    transitions: list[dict[int, int]] = []
    for node, own in zip(nodes, children, strict=True):
        shorter = next((node[start:] for start in range(1, len(node) + 1) if node[start:] in number), None)
        transitions.append(own if shorter is None else {**transitions[number[shorter]], **own})
    return transitions


def _ends_with(text: Tokens, sequence: Tokens) -> bool:
    return len(sequence) <= len(text) and text[len(text) - len(sequence) :] == sequence


class AutomatonState(NamedTuple):
    """Where each row stands with its sequences."""

    sentences: Tensor  # (N,) which sentence of the batch a row belongs to
    nodes: Tensor  # (N,) of the sentence's automaton
    left: Tensor  # (N, P) how often each required sequence must still come

    def select(self, rows: Tensor) -> "AutomatonState":
        """Return the given rows, in the given order; `rows` (N,) may repeat."""
        return AutomatonState(*(field[rows] for field in self))


class AutomatonTables:
    """The automata of a batch of sentences. Raises `UserError` where one forbids every word."""

    def __init__(
        self, automata: Sequence[ConstraintAutomaton], vocabulary_size: int, device: torch.device | str
    ) -> None:
        """`automata` of each sentence; sentences may share them."""
        different = list(dict.fromkeys(automata))
        kind = {automaton: place for place, automaton in enumerate(different)}
        kinds = torch.tensor([kind[one] for one in automata])  # (B,)
        for automaton in different:
            if sum(len(sequence) == 1 for sequence in automaton.forbidden) >= vocabulary_size - len((PAD, BOS, EOS)):
                raise UserError("every word of the vocabulary is forbidden: leave some to translate with")

        symbols = sorted({token for automaton in different for token in automaton.symbols})
        self.symbols = torch.tensor(symbols, dtype=torch.long, device=device)  # (L,)
        self.symbol_of = torch.zeros(vocabulary_size, dtype=torch.long, device=device)  # (V,) 0: no symbol
        self.symbol_of[self.symbols] = torch.arange(1, len(symbols) + 1, device=device)
        self.required = max(len(automaton.required) for automaton in different)  # P

        starts = torch.tensor([0, *(len(automaton.nodes) for automaton in different)]).cumsum(0)[:-1]
        self.links = _links(different, starts.tolist(), symbols).to(device)  # (nodes, 1 + L)
        breaks = [value for automaton in different for value in automaton.breaks]
        self.breaks = torch.tensor(breaks, device=device)[self.links]  # (nodes, 1 + L)
        self.completes = self._table([row for each in different for row in each.completes]).to(device)  # (nodes, P)
        self.saved = self._table([row for each in different for row in each.saved]).to(device)  # (nodes, P)
        self.costs = self._table([each.costs for each in different])[kinds].to(device)  # (B, P)
        self.counts = self._table([each.counts for each in different])[kinds].to(device)  # (B, P)
        self.gaps = torch.tensor([each.gap for each in automata], device=device)  # (B,)
        self.start_nodes = starts[kinds].to(device)  # (B,)

    def _table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor([[*map(int, row), *[0] * (self.required - len(row))] for row in rows]).long()

    def start(self) -> AutomatonState:
        """Return where every sentence begins; one row each."""
        return AutomatonState(torch.arange(len(self.counts), device=self.counts.device), self.start_nodes, self.counts)

    def advance(self, state: AutomatonState, tokens: Tensor) -> AutomatonState:
        """Return the state after one more token (N,)."""
        nodes = self.links[state.nodes, self.symbol_of[tokens]]
        return AutomatonState(state.sentences, nodes, (state.left - self.completes[nodes]).clamp(min=0))

    def needed(self, state: AutomatonState) -> Tensor:
        """Return how many more tokens always suffice for all that is left. → (N,)"""
        return self._needed(state.nodes, state.left, self.costs[state.sentences])

    def needed_after(self, state: AutomatonState) -> Tensor:
        """Return the same after each symbol. → (N, 1 + L)"""
        nodes = self.links[state.nodes]  # (N, 1 + L)
        left = (state.left[:, None, :] - self.completes[nodes]).clamp(min=0)  # (N, 1 + L, P)
        return self._needed(nodes, left, self.costs[state.sentences][:, None, :])

    def _needed(self, nodes: Tensor, left: Tensor, costs: Tensor) -> Tensor:
        return (left * costs).sum(dim=-1) - self.saved[nodes].masked_fill(left == 0, 0).amax(dim=-1)

    def begun(self, state: AutomatonState) -> Tensor:
        """Return how many tokens a row has of the required sequence that it is in the middle of. → (N,)"""
        whole = (state.left * self.costs[state.sentences]).sum(dim=1)
        return whole - self.needed(state) - self.gaps[state.sentences]

    def without_forbidden(self, log_probs: Tensor, state: AutomatonState) -> Tensor:
        """Return log-probabilities (N, V) without the tokens that would complete a forbidden sequence."""
        columns = log_probs[:, self.symbols].masked_fill(self.breaks[state.nodes, 1:], -torch.inf)
        return log_probs.index_copy(1, self.symbols, columns)

    def only(self, log_probs: Tensor, symbols: Tensor) -> Tensor:
        """Return log-probabilities (N, V) of the tokens whose symbols (N, 1 + L) are True."""
        return log_probs.masked_fill(~symbols[:, self.symbol_of], -torch.inf)


def _links(automata: Sequence[ConstraintAutomaton], starts: Sequence[int], symbols: Sequence[int]) -> Tensor:
    """Return where each symbol leads from each node of each automaton. → (nodes, 1 + L)"""
    number = {token: place for place, token in enumerate(symbols, start=1)}
    tables = []
    for automaton, start in zip(automata, starts, strict=True):
        table = torch.full((len(automaton.nodes), 1 + len(symbols)), start)
        for node, transitions in enumerate(automaton.transitions):
            if transitions:
                table[node, [number[token] for token in transitions]] = start + torch.tensor([*transitions.values()])
        tables.append(table)
    return torch.cat(tables)
