"""How good a translation is likely to be: the sentence chrF to expect of it, from what the model thought of it.

`tfm calibrate` fits it once on sentences with known translations and keeps it beside the weights; `Translator` looks
it up. Isotonic regression (Barlow et al. 1972): the better the score, the better the translation, and no more is
assumed. No torch.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_cli.errors import UserError
from transformer_cli.publishing import manifest_names, read_json, verify

FILE = "confidence.json"  # of a checkpoint folder, named in its manifest


@dataclass(frozen=True)
class Confidence:
    """A rising line from the model's score to the chrF to expect, straight between its points."""

    scores: list[float]  # as `score` gives them, rising
    chrf: list[float]  # 0 to 1; what to expect at each of them, never falling
    sentences: int  # that it was fitted on …
    measured: int  # … and the others, whose
    error: float  # mean |predicted - observed| chrF is this, in ten bins of equal size

    def expect(self, text: str, log_probability: float) -> float:
        """The sentence chrF, 0 to 1, to expect of a translation that the model gives this log-probability."""
        return self.at(score(text, log_probability))

    def at(self, here: float) -> float:
        """The chrF to expect at a score."""
        after = bisect_right(self.scores, here)
        if after in (0, len(self.scores)):
            return self.chrf[min(after, len(self.chrf) - 1)]
        low, high = self.scores[after - 1 : after + 1]
        part = (here - low) / (high - low)
        return (1 - part) * self.chrf[after - 1] + part * self.chrf[after]

    def dumps(self) -> str:
        """What confidence.json holds."""
        return json.dumps(asdict(self), indent=2) + "\n"


def score(text: str, log_probability: float) -> float:
    """What confidence is read from: the log-probability of a translation, for each of its characters.

    Of the measures tried (by token, by word, the least token's) it goes best with chrF, whose unit is the character.
    """
    return log_probability / max(1, len(text))


def fit(scores: Sequence[float], chrf: Sequence[float]) -> tuple[list[float], list[float]]:
    """The points of the never falling function that is nearest to `chrf` in the mean square: scores, values.

    Between the ends of a level stretch there is no point.
    """
    assert len(scores) == len(chrf) > 0
    distinct = sorted(set(scores))
    sums = dict.fromkeys(distinct, (0.0, 0))
    for place, value in zip(scores, chrf, strict=True):
        total, count = sums[place]
        sums[place] = (total + value, count + 1)
    levels = isotonic([total / count for total, count in sums.values()], [count for _, count in sums.values()])
    corners = [
        place
        for place, level in enumerate(levels)
        if place in (0, len(levels) - 1) or not levels[place - 1] == level == levels[place + 1]
    ]
    return [distinct[place] for place in corners], [levels[place] for place in corners]


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The never falling sequence with the least Σ w (fitted - value)², by pooling adjacent violators."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        mean, heavy, count = value, float(weight), 1
        while pools and pools[-1][0] >= mean:
            before, before_heavy, before_count = pools.pop()
            mean = (before * before_heavy + mean * heavy) / (before_heavy + heavy)
            heavy, count = before_heavy + heavy, before_count + count
        pools.append((mean, heavy, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def load_confidence(folder: Path) -> Confidence | None:
    """What `tfm calibrate` left in a checkpoint folder, held against its hash; None: it never ran.

    Raises `UserError` where the file is damaged.
    """
    if FILE not in manifest_names(folder):
        return None
    verify(folder, [FILE])
    found = read_json(folder / FILE, Confidence)
    rising = all(low < high for low, high in zip(found.scores, found.scores[1:], strict=False))
    sound = len(found.scores) == len(found.chrf) > 0 and all(map(math.isfinite, found.scores))
    if not (rising and sound and found.chrf == sorted(found.chrf) and all(0 <= value <= 1 for value in found.chrf)):
        raise UserError(f"{folder / FILE}: contradicts itself; run tfm calibrate again")
    return found
