"""One sentence's required and forbidden token sequences as one automaton (Aho and Corasick 1975). No torch.

A node is the longest end of a text with which some sequence begins. `restrictions` makes tables of it for a batch.
"""

from collections import Counter, deque
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
        self.nodes: list[Tokens] = sorted(beginnings, key=lambda tokens: (len(tokens), tokens))
        self.links: list[dict[int, int]] = _links(self.nodes)
        self.met = [[_ends_with(node, sequence) for sequence in self.required] for node in self.nodes]
        self.broken = [any(_ends_with(node, sequence) for sequence in self.forbidden) for node in self.nodes]
        # With forbidden sequences about, one token of another kind before each required one keeps them apart.
        self.gap = int(bool(self.forbidden))
        self.saved = [[self._saved(node, sequence) for sequence in self.required] for node in range(len(self.nodes))]

    def follow(self, node: int, tokens: Sequence[int]) -> list[int]:
        """The nodes that these tokens lead through."""
        path = []
        for token in tokens:
            node = self.links[node].get(token, 0)
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


def _links(nodes: Sequence[Tokens]) -> list[dict[int, int]]:
    """For each node, which node a token leads to; any token that is not named leads to node 0."""
    number = {node: place for place, node in enumerate(nodes)}
    children: list[dict[int, int]] = [{} for _ in nodes]
    for place, node in enumerate(nodes):
        if node:
            children[number[node[:-1]]][node[-1]] = place
    links: list[dict[int, int]] = [{} for _ in nodes]
    links[0] = children[0]
    waiting = deque((place, 0) for place in children[0].values())  # node, and the node of its longest proper end
    while waiting:
        place, end = waiting.popleft()
        links[place] = {**links[end], **children[place]}
        waiting.extend((child, links[end].get(token, 0)) for token, child in children[place].items())
    return links


def _ends_with(text: Tokens, sequence: Tokens) -> bool:
    return len(sequence) <= len(text) and text[len(text) - len(sequence) :] == sequence
