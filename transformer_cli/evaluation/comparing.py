"""Whether one system's score is better than another's, or what is seen is noise: tests, intervals, what would show.

Behind `tfm compare`. All of it works on sums over sentences of sacreBLEU's own statistics (n-gram counts, edits,
lengths), of which a metric's score of a corpus is a function; the score of a sentence-level metric is the mean. No
torch. docs/comparing.md says what is tested and why; this is how.

**One run a side.** Paired approximate randomization (Noreen 1989; Riezler and Maxwell 2005) exchanges the two outputs
of each sentence with probability 1/2, R times; p = (r + 1) / (R + 1), where r trials have a |difference| of at least
the observed one: two-sided, and valid for any R. Beside it stands the percentile interval of the paired bootstrap
(Koehn 2004; Efron and Tibshirani 1993, ch. 13): the same sentences are drawn for both sides.

**Several runs (seeds) a side.** Runs and sentences are random effects, crossed: every run translates every sentence,
and runs are nested in systems (Obuchowski and Rockette 1995; Hillis 2014). With a runs on one side and b on the other,

    variance = S² (1/a + 1/b) + max(c'Cc - W (1/a + 1/b), 0)

S²: variance of the runs' scores within a side, pooled; C: covariance of all runs' scores over bootstrap resamples of
the sentences; c: 1/b for the runs of one side and -1/a for those of the other; W: variance within a side by C alone,
which S² has in it already. difference / sqrt(variance) is held against Student's t with Satterthwaite's degrees of
freedom, (a + b - 2) (variance / S² (1/a + 1/b))².

**Several comparisons** with the same first system: Holm (1979).

**What would show**: the smallest true difference that a test at 5 % finds in 80 % of cases, (1.96 + 0.84) standard
errors, which are the bootstrap's; with several runs t's quantiles stand in the place of the normal ones, and the
standard error is c'Cc's where that is larger.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from transformer_cli.evaluation.evaluate import load_scorers

Array = NDArray[np.float64]
TRIALS, SEED = 10_000, 12345
LEVEL, POWER = 0.05, 0.8
BLOCK = 1 << 19  # numbers drawn at a time, which bounds the memory
MOST_DEGREES = 1000.0  # of freedom: beyond, t is the normal distribution

# --- metrics --------------------------------------------------------------------------------------------------------


def bleu_scores(sums: Array) -> Array:
    """Return sacreBLEU's BLEU of summed statistics, (…, 10) → (…): lengths, matches, n-grams; smoothing `exp`."""
    length, reference = sums[..., 0], sums[..., 1]
    matches, total = sums[..., 2:6], sums[..., 6:10]
    with np.errstate(divide="ignore", invalid="ignore"):
        brevity = np.where(length < reference, np.exp(1 - reference / length), 1.0)
        missed = np.cumsum(matches == 0, axis=-1)  # an order without a match counts half of what the last such did
        logs = np.log(np.where(matches > 0, matches, 2.0**-missed) / total)
        score = 100 * brevity * np.exp(np.where(total > 0, logs, -np.inf).mean(axis=-1))
    return np.where(matches.any(axis=-1), score, 0.0)


def chrf_scores(sums: Array) -> Array:
    """Return sacreBLEU's chrF of summed statistics, (…, 3 × orders) → (…): of each order n-grams of the hypothesis, of
    the reference, and matches."""
    hypothesis, reference, matches = sums[..., 0::3], sums[..., 1::3], sums[..., 2::3]
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=-1), 1)
    precision = np.where(counted, matches / np.maximum(hypothesis, 1), 0.0).sum(axis=-1) / orders
    recall = np.where(counted, matches / np.maximum(reference, 1), 0.0).sum(axis=-1) / orders
    return cast(Array, 100 * 5 * precision * recall / np.where(precision + recall > 0, 4 * precision + recall, 1.0))


def ter_scores(sums: Array) -> Array:
    """Return sacreBLEU's TER of summed statistics, (…, 2) → (…): edits and reference words."""
    edits, words = sums[..., 0], sums[..., 1]
    return np.where(words > 0, 100 * edits / np.where(words > 0, words, 1.0), np.where(edits > 0, 100.0, 0.0))


def mean_scores(sums: Array) -> Array:
    """Return means of summed numbers, (…, 2) → (…): sum and count."""
    return sums[..., 0] / sums[..., 1]


SCORES = {"bleu": bleu_scores, "chrf": chrf_scores, "chrf++": chrf_scores, "ter": ter_scores}


@dataclass(frozen=True, eq=False)
class Measure:
    """One metric over the outputs of some systems, each with one or more runs."""

    metric: str  # as the user names it
    name: str  # as papers write it
    signature: str | None  # None: a metric of the user's own
    higher_is_better: bool
    statistics: list[Array]  # of each system: (runs, sentences, statistics)
    scores: Callable[[Array], Array]  # sums of statistics (…, statistics) → scores (…)

    @property
    def sentences(self) -> int:
        """How many sentences there are."""
        return int(self.statistics[0].shape[1])

    def of_runs(self, system: int) -> list[float]:
        """Return the score of each run of a system."""
        return [float(score) for score in self.scores(self.statistics[system].sum(axis=1))]

    def within(self, chosen: NDArray[np.bool_]) -> "Measure":
        """Return the same of some sentences alone."""
        return replace(self, statistics=[statistics[:, chosen] for statistics in self.statistics])


def measure(
    metric: str, systems: Sequence[Sequence[Sequence[str]]], references: Sequence[Sequence[str]], language: str
) -> Measure:
    """Return a metric of `evaluate.METRICS` over the outputs of systems: runs, each as many texts as references.

    Raises `UserError` for an unknown metric, or where its tokenizer is not installed.
    """
    (scorer,) = load_scorers([metric], language)
    scorer._ref_cache = scorer._cache_references(references)  # once for all runs
    statistics = [
        np.array([scorer._extract_corpus_statistics(run, None) for run in runs], dtype=np.float64) for runs in systems
    ]
    name = str(scorer._compute_score_from_stats(statistics[0][0].sum(axis=0)).name)
    signature = scorer.get_signature().format(short=True)
    return Measure(metric, name, signature, metric != "ter", statistics, SCORES[metric])


def measure_of_numbers(name: str, systems: Sequence[Sequence[Sequence[float]]]) -> Measure:
    """Return a metric of one number a sentence, more being better, for the runs of systems."""
    statistics = [np.stack([np.array(runs), np.ones_like(runs)], axis=-1) for runs in systems]
    return Measure(name, name, None, True, statistics, mean_scores)


# --- comparing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """What can be said of the score of system `b` beside that of system `a`, by one metric."""

    metric: str
    name: str
    higher_is_better: bool
    a: int  # places of the systems
    b: int
    scores_a: list[float]  # of each run
    scores_b: list[float]
    difference: float  # mean of b's runs minus mean of a's
    interval: tuple[float, float]  # 95 %
    standard_error: float
    p: float
    detectable: float | None  # a true difference that would show in 80 % of cases; None: none could
    sentences: int
    differing: int  # sentences whose statistics are not the same in all runs
    degrees_of_freedom: float | None = None  # of the test with several runs; None: approximate randomization
    p_holm: float = field(default=1.0)  # p, corrected for the number of systems; what the verdict follows

    @property
    def better(self) -> int | None:
        """Which system is better, if one is."""
        if self.p_holm >= LEVEL or self.difference == 0:
            return None
        return self.b if (self.difference > 0) == self.higher_is_better else self.a


def compare(measures: Sequence[Measure], *, trials: int = TRIALS) -> list[Comparison]:
    """Compare the first system with each of the others, by each metric: all of one metric, then all of the next.

    trials: of the randomization and of the bootstrap.
    """
    found = []
    for one in measures:
        ours = [compare_two(one, 0, b, trials=trials) for b in range(1, len(one.statistics))]
        corrected = holm([comparison.p for comparison in ours])
        found += [replace(comparison, p_holm=p) for comparison, p in zip(ours, corrected, strict=True)]
    return found


def compare_two(one: Measure, a: int, b: int, *, trials: int = TRIALS) -> Comparison:
    """Compare two systems by one metric; with several runs on a side both sentences and seeds are random."""
    before, after = one.statistics[a], one.statistics[b]
    scores_a, scores_b = one.of_runs(a), one.of_runs(b)
    runs = np.concatenate([before, after])  # (R, N, K)
    differing = int((runs != runs[:1]).any(axis=(0, 2)).sum())
    resampled = bootstrap(runs, one.scores, trials)  # (trials, R)
    difference = float(np.mean(scores_b) - np.mean(scores_a))
    known = Comparison(
        *(one.metric, one.name, one.higher_is_better, a, b, scores_a, scores_b, difference),
        **_crossed(scores_a, scores_b, resampled)
        if len(runs) > 2
        else _paired(before[0], after[0], one.scores, resampled),
        sentences=one.sentences,
        differing=differing,
    )
    return replace(known, p_holm=known.p)


def _paired(before: Array, after: Array, scores: Callable[[Array], Array], resampled: Array) -> dict[str, Any]:
    """Test one run (N, K) against another."""
    differences = resampled[:, 1] - resampled[:, 0]
    error = float(differences.std(ddof=1))
    low, high = np.quantile(differences, [LEVEL / 2, 1 - LEVEL / 2])
    normal = NormalDist()
    # of n exchanges of unlike outputs none or all give the largest difference: p is 2 / 2ⁿ at least
    can_show = 2.0 ** (1 - int((before != after).any(axis=-1).sum())) < LEVEL
    return {
        "interval": (float(low), float(high)),
        "standard_error": error,
        "p": randomization_p(before, after, scores, len(resampled)),
        "detectable": (normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(POWER)) * error if can_show else None,
    }


def _crossed(scores_a: Sequence[float], scores_b: Sequence[float], resampled: Array) -> dict[str, Any]:
    """Test runs against runs, as the module's docstring says. resampled: (trials, a + b)."""
    a, b = len(scores_a), len(scores_b)
    both, degrees = 1 / a + 1 / b, a + b - 2
    covariance = np.cov(resampled, rowvar=False)
    contrast = np.array([-1 / a] * a + [1 / b] * b)
    sides = (slice(0, a), slice(a, a + b))
    inner = sum(float(np.trace(covariance[s, s]) - covariance[s, s].mean() * (s.stop - s.start)) for s in sides)
    squares = sum(float(np.var(scores) * len(scores)) for scores in (scores_a, scores_b))
    of_seeds = squares / degrees * both
    sentences_alone = float(contrast @ covariance @ contrast)
    variance = of_seeds + max(sentences_alone - inner / degrees * both, 0.0)
    freedom = min(degrees * (variance / of_seeds) ** 2, MOST_DEGREES) if of_seeds > 0 else MOST_DEGREES
    difference, error = float(np.mean(scores_b) - np.mean(scores_a)), math.sqrt(variance)
    needed = t_quantile(1 - LEVEL / 2, freedom)
    return {
        "interval": (difference - needed * error, difference + needed * error),
        "standard_error": error,
        "p": t_p(difference / error, freedom) if error > 0 else 1.0,
        # a few runs may be nearer to each other than their sentences let the next ones be
        "detectable": (needed + t_quantile(POWER, freedom)) * max(variance, sentences_alone) ** 0.5 if error else None,
        "degrees_of_freedom": freedom,
    }


def randomization_p(
    before: Array, after: Array, scores: Callable[[Array], Array], trials: int = TRIALS, seed: int = SEED
) -> float:
    """Return the two-sided p of paired approximate randomization of statistics (N, K)."""
    total = before.sum(axis=0), after.sum(axis=0)
    unlike = (before != after).any(axis=-1)  # exchanging the others changes nothing
    changes = (after - before)[unlike]  # (D, K)
    score_a, score_b = scores(total[0]), scores(total[1])
    # sums in another order differ in their last digits
    observed = abs(score_b - score_a) - 1e-10 * (abs(score_a) + abs(score_b))
    random = np.random.default_rng(seed)
    reached = 0
    for size in _blocks(trials, len(changes)):
        bits = np.frombuffer(random.bytes(size * (len(changes) // 8 + 1)), dtype=np.uint8).reshape(size, -1)
        exchanged = np.unpackbits(bits, axis=1, count=len(changes)).astype(np.float64) @ changes  # (size, K)
        differences = scores(total[1] - exchanged) - scores(total[0] + exchanged)
        reached += int((np.abs(differences) >= observed).sum())
    return (reached + 1) / (trials + 1)


def bootstrap(runs: Array, scores: Callable[[Array], Array], trials: int = TRIALS, seed: int = SEED) -> Array:
    """Return the scores of runs, (R, N, K), on resampled test sets, the same ones for all: (trials, R)."""
    count, sentences, size = runs.shape
    flat = runs.transpose(1, 0, 2).reshape(sentences, count * size)
    random = np.random.default_rng(seed)
    found = []
    for rows in _blocks(trials, sentences):
        drawn = random.integers(sentences, size=(rows, sentences)) + np.arange(rows)[:, None] * sentences
        times = np.bincount(drawn.ravel(), minlength=rows * sentences).reshape(rows, sentences)
        found.append(scores((times.astype(np.float64) @ flat).reshape(rows, count, size)))
    return np.concatenate(found)


def _blocks(trials: int, sentences: int) -> Iterator[int]:
    """Yield how many trials are drawn at a time."""
    rows = max(1, BLOCK // max(1, sentences))
    for start in range(0, trials, rows):
        yield min(rows, trials - start)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's step-down procedure, in the same order."""
    corrected, least = [1.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=lambda place: values[place])):
        least = max(least, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = least
    return corrected


# --- Student's t ----------------------------------------------------------------------------------------------------


def t_p(t: float, degrees: float) -> float:
    """Return P(|T| ≥ |t|) of Student's t with so many degrees of freedom (1 to 1,000; they need not be whole).

    With t = sqrt(degrees) tan θ its density is that of cos θ to the power degrees - 1 (Gauss-Legendre, 200 nodes).
    """
    nodes, weights = _NODES
    low = math.atan(abs(t) / math.sqrt(degrees))
    half = (math.pi / 2 - low) / 2
    tail = half * float(weights @ np.cos(low + half * (nodes + 1)) ** (degrees - 1))
    whole = math.exp(math.lgamma(degrees / 2) - math.lgamma((degrees + 1) / 2)) * math.sqrt(math.pi) / 2
    return min(1.0, tail / whole)


def t_quantile(share: float, degrees: float) -> float:
    """Return what T is at most with a probability of `share`, from 0.5 on."""
    low, high = 0.0, 1e4
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - t_p(middle, degrees) / 2 < share else (low, middle)
    return middle


_NODES = np.polynomial.legendre.leggauss(200)
