"""What comes out of a `Translator`: plain records of text, scores and alignments. No torch."""

from dataclasses import dataclass


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
