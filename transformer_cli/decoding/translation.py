"""What comes out of a `Translator`: plain records of text, scores and alignments. No torch."""

import json
import math
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_cli.decoding.constraints import Line
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import manifest_names, read_json, verify


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str
    score: float  # log_probability by the length penalty; the higher the better
    log_probability: float
    tokens: list[str]
    alignment: list[int] | None  # for each token the place of its source token; None: not asked for
    ended: bool  # False: cut off at the length limit
    utility: float | None = None  # the mean chrF, 0 to 1, with all hypotheses as references; None: no MBR
    confidence: float | None = None  # the chrF to expect of it, 0 to 1; None: the model is not calibrated


@dataclass(frozen=True)
class Translation:
    """What became of a line: its hypotheses, best first, at least one. The best one's fields are its own."""

    line: Line  # the very one that was given, or made of a text
    source_tokens: list[str]
    hypotheses: list[Candidate]

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score

    @property
    def tokens(self) -> list[str]:
        return self.hypotheses[0].tokens

    @property
    def alignment(self) -> list[int] | None:
        return self.hypotheses[0].alignment

    @property
    def confidence(self) -> float | None:
        return self.hypotheses[0].confidence


@dataclass(frozen=True)
class Scored:
    """A given translation of a given source, as likely as the model finds it."""

    tokens: list[str]  # the target's, then </s>
    log_probabilities: list[float]  # of each of them
    log_probability: float  # their sum
    score: float  # the sum by the length penalty, as search would give it


class Tally:
    """How many lines, or translations, met with what."""

    NAMES = (
        "cut_lines",  # were too long for one piece
        "caught",  # translations that the guard had searched for again …
        "mended",  # … and those that were better then
        "protected_lines",  # held protected text …
        "split_lines",  # … and those that had to be translated in pieces
    )

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._counts = dict.fromkeys(self.NAMES, 0)
        self._lock = threading.Lock()
        self.add(**(counts or {}))

    def add(self, **more: int) -> None:
        """So many more, by name."""
        with self._lock:
            for name, count in more.items():
                self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    @property
    def counts(self) -> dict[str, int]:
        """All counts so far, by name."""
        with self._lock:
            return dict(self._counts)

    @property
    def notes(self) -> list[str]:
        """What the user should know of it, a sentence each."""
        counts, notes = self.counts, []
        if cut := counts["cut_lines"]:
            were = "1 line was" if cut == 1 else f"{cut:,} lines were"
            notes.append(f"{were} longer than the model takes: cut into pieces, translated and joined")
        if caught := counts["caught"]:
            were = "1 translation" if caught == 1 else f"{caught:,} translations"
            mended = counts["mended"]
            notes.append(
                f"{were} ran in circles or had no end: searched for again without repetition, {mended:,} mended"
            )
        if split := counts["split_lines"]:
            notes.append(
                f"{split:,} of {counts['protected_lines']:,} lines with protected text: its place could not be told;"
                " the text around it was translated in pieces"
            )
        return notes


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
