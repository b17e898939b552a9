"""What comes out of a `Translator`: plain records of text, scores and alignments. No torch."""

import json
import math
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from transformer_cli.decoding.chunks import Chunk
from transformer_cli.decoding.constraints import Line
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
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
    lengths: tuple[int, ...] = ()  # how many of the tokens translate each chunk


def joined_candidate(
    text: str, parts: Sequence[Candidate], source_lengths: Sequence[int], options: SearchOptions, alignments: bool
) -> Candidate:
    """Return candidates that stand one after another as one of this text, without a confidence.

    source_lengths: how many source tokens each translates. alignments: whether they were asked for.
    """
    log_probability = sum((part.log_probability for part in parts), 0.0)
    tokens = [token for part in parts for token in part.tokens]
    starts = accumulate(source_lengths, initial=0)
    links = [start + place for start, part in zip(starts, parts, strict=False) for place in part.alignment or ()]
    utilities = [part.utility for part in parts if part.utility is not None]
    return Candidate(
        text=text,
        score=log_probability / options.penalty(len(tokens)),
        log_probability=log_probability,
        tokens=tokens,
        alignment=links if alignments else None,
        ended=all(part.ended for part in parts),
        utility=sum(utilities) / len(utilities) if utilities else None,
        lengths=tuple(length for part in parts for length in part.lengths),
    )


@dataclass(frozen=True)
class Translation:
    """What became of a line: its hypotheses, best first, at least one. The best one's fields are its own."""

    line: Line  # the very one that was given, or made of a text
    source_tokens: list[str]
    hypotheses: list[Candidate]
    chunks: Sequence[Chunk] = ()  # what was translated by itself, in order

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


_OLD_NAMES = {"caught": "flagged", "mended": "repaired"}  # in the parts of a `tfm distill` that was interrupted


class Tally:
    """How many lines, or translations, met with what."""

    NAMES = (
        "several_sentences",  # were lines of so many, translated one by one
        "cut_lines",  # were too long for one chunk
        "flagged",  # translations that the guard had searched for again …
        "repaired",  # … and those that were better then
        "protected_lines",  # held protected text …
        "split_lines",  # … and those that had to be translated in segments
    )

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._counts = dict.fromkeys(self.NAMES, 0)
        self._lock = threading.Lock()
        self.add(**{_OLD_NAMES.get(name, name): count for name, count in (counts or {}).items()})

    def add(self, **more: int) -> None:
        """Count so many more, by name."""
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
        if several := counts["several_sentences"]:
            lines = "1 line" if several == 1 else f"{several:,} lines"
            notes.append(f"{lines} held several sentences: translated one by one and joined")
        if cut := counts["cut_lines"]:
            were = "1 line was" if cut == 1 else f"{cut:,} lines were"
            notes.append(f"{were} longer than the model takes: cut into chunks, translated and joined")
        if flagged := counts["flagged"]:
            repeat = "1 translation repeats itself" if flagged == 1 else f"{flagged:,} translations repeat themselves"
            ends = "ends" if flagged == 1 else "end"
            repaired = counts["repaired"]
            notes.append(f"{repeat} or never {ends}: searched again without repetition, {repaired:,} repaired")
        if split := counts["split_lines"]:
            notes.append(
                f"{split:,} of {counts['protected_lines']:,} lines with protected text: its place could not be found;"
                " the text around it was translated in segments"
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
        """Return the sentence chrF, 0 to 1, to expect of a translation that the model gives this log-probability."""
        return self.at(score(text, log_probability))

    def at(self, here: float) -> float:
        """Return the chrF to expect at a score."""
        after = bisect_right(self.scores, here)
        if after in (0, len(self.scores)):
            return self.chrf[min(after, len(self.chrf) - 1)]
        low, high = self.scores[after - 1 : after + 1]
        part = (here - low) / (high - low)
        return (1 - part) * self.chrf[after - 1] + part * self.chrf[after]

    def dumps(self) -> str:
        """Return what confidence.json holds."""
        return json.dumps(asdict(self), indent=2) + "\n"


def score(text: str, log_probability: float) -> float:
    """Return what confidence is read from: the log-probability of a translation, for each of its characters.

    Of the measures tried (by token, by word, the least token's) it goes best with chrF, whose unit is the character.
    """
    return log_probability / max(1, len(text))


def load_confidence(folder: Path) -> Confidence | None:
    """Read what `tfm calibrate` left in a checkpoint folder, verified by its hash; None: it never ran.

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
