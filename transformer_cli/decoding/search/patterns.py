"""One sentence's required and forbidden token sequences as one automaton (Aho and Corasick 1975). No torch.

A node is the longest end of a text with which some sequence begins. `restrictions` makes tables of it for a batch.
"""

from collections import Counter
from collections.abc import Sequence

from transformer_cli.decoding.options import Demands

Tokens = tuple[int, ...]


class Patterns:
    """The automaton of one sentence's demands. Node 0: nothing of any sequence yet."""

    def __init__(self, demands: Demands) -> None:
        self.prefix = demands.prefix
        counts = Counter(demands.required)
        self.required = list(counts)  # P different sequences
        self.counts = [counts[sequence] for sequence in self.required]  # how often each is required
        self.forbidden = set(demands.forbidden)
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
