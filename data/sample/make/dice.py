"""Seeded choices for the sample corpus, the same under every Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Dice:
    """Choices by `random()` alone, whose numbers every Python draws alike."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """True this often."""
        return self._rng.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """One of them, each as likely."""
        return items[int(self._rng.random() * len(items))]

    def weighted(self, items: Sequence[tuple[Item, float]]) -> Item:
        """One of them, as likely as its weight says."""
        at = self._rng.random() * sum(weight for _, weight in items)
        for item, weight in items:
            at -= weight
            if at < 0:
                return item
        return items[-1][0]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """All of them in another order."""
        return [items[at] for _, at in sorted((self._rng.random(), at) for at in range(len(items)))]

    def between(self, first: int, last: int) -> int:
        """A number from `first` to `last`."""
        return first + int(self._rng.random() * (last - first + 1))
