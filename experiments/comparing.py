"""How often `tfm compare` flags a difference where there is none, and how often it finds one that there is.

    .venv/bin/python experiments/comparing.py calibration train.en.gz
    .venv/bin/python experiments/comparing.py calibration test.en.gz --outputs seed1.en seed2.en …
    .venv/bin/python experiments/comparing.py power train.en.gz --picture docs/images/compare-power.svg
    .venv/bin/python experiments/comparing.py speed test.en.gz --outputs a.en b.en

FILE has real sentences, the references. With --outputs, the runs of a system are these files, which models wrote that
differ by their seed alone; at least six. Without, outputs are simulated: words are dropped, replaced and inserted where
a latent difficulty is above a threshold; part of it belongs to the word, part to the system, part to the run, so that
outputs make similar mistakes, as models do. The threshold says how good a system is; seeds move it a little. For each
comparison, sentences and runs are drawn from a pool. Everything is scored by sacreBLEU's statistics.

Prints the share of null comparisons with p < 0.05, and the power; the picture shows the power. `speed` times the tests
of two outputs beside sacreBLEU's, each once its statistics are there.
"""

import argparse
import gzip
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_cli.evaluation.comparing import (
    SCORES,
    Array,
    Measure,
    bootstrap,
    compare,
    compare_two,
    measure,
    randomization_p,
)
from transformer_cli.evaluation.evaluate import load_scorers

METRICS = ("bleu", "chrf", "ter")
SHARED, OWN, RUN = 0.5, 0.15, 0.35  # parts of the variance of a word's difficulty
THRESHOLD, SPREAD = 0.3, 0.0078  # SPREAD of the threshold over seeds: three of them span 0.7 BLEU
SHIFTS = (0.008, 0.02, 0.032, 0.044)  # of the threshold, for the power
SIZES = (500, 1000, 2000)
TRIALS, RUNS = 400, 8


@dataclass(frozen=True)
class Simulated:
    """A run of a system; where its output is given, the number is that of the file."""

    system: int
    run: int
    shift: float = 0.0  # of the system's threshold
    spread: float = SPREAD


def words_like(lines: Sequence[str]) -> list[str]:
    """Return words as often as they are in the lines, to draw from."""
    return [word for line in lines for word in line.split()]


def output(lines: Sequence[str], words: Sequence[str], simulated: Simulated) -> list[str]:
    """Return what a run would write for sentences with these references."""
    counts = [len(line.split()) for line in lines]
    total = sum(counts)
    seeds = [1], [2, simulated.system + 1], [3, simulated.system + 1, simulated.run + 1]
    drawn = [np.random.default_rng(seed).standard_normal(total) for seed in seeds]
    difficulty = sum(share**0.5 * part for share, part in zip((SHARED, OWN, RUN), drawn, strict=True))
    effect = np.random.default_rng([4, simulated.run + 1]).standard_normal()
    wrong = (difficulty > THRESHOLD + simulated.shift + simulated.spread * effect).tolist()
    same, other = random.Random(13), random.Random(f"{simulated.system} {simulated.run}")
    hypotheses, place = [], 0
    for line in lines:
        said: list[str] = []
        for word in line.split():
            kind, common, own = same.random(), same.choice(words), other.choice(words)
            new = common if kind * 10 % 1 < 0.5 else own  # half of the mistakes are the same for all
            said += [word] if not wrong[place] else [] if kind < 0.25 else [new] if kind < 0.8 else [word, new]
            place += 1
        hypotheses.append(" ".join(said))
    return hypotheses


def statistics(lines: Sequence[str], hypotheses: Sequence[str], metrics: Sequence[str]) -> list[Array]:
    """Return the statistics of an output, (sentences, K) for each metric."""
    return [measure(metric, [[[*hypotheses]]], [[*lines]], "en").statistics[0][0] for metric in metrics]


def simulated_statistics(
    lines: Sequence[str], words: Sequence[str], metrics: Sequence[str], simulated: Simulated
) -> list[Array]:
    """Return the statistics of what a run would write, (sentences, K) for each metric."""
    return statistics(lines, output(lines, words, simulated), metrics)


def sacrebleu_p(before: Array, after: Array, scores: Callable[[Array], Array]) -> float:
    """Return p as `sacrebleu --paired-bs` computes it, with fewer resamples; statistics are (N, K)."""
    resampled = bootstrap(np.stack([before, after]), scores, TRIALS)
    differences = np.abs(resampled[:, 1] - resampled[:, 0])
    observed = abs(float(scores(after.sum(axis=0)) - scores(before.sum(axis=0))))
    return float(np.sum(differences - differences.mean() > observed) + 1) / (TRIALS + 1)


@dataclass(frozen=True)
class Pool:
    """The statistics of some runs over a pool of sentences: (sentences, K) for each metric."""

    of: Mapping[Simulated, list[Array]]

    @classmethod
    def simulated(
        cls, lines: Sequence[str], words: Sequence[str], metrics: Sequence[str], runs: Sequence[Simulated], jobs: int
    ) -> "Pool":
        """Return the pool of some simulated runs."""
        runs = list(dict.fromkeys(runs))
        with ProcessPoolExecutor(jobs) as processes:
            found = processes.map(partial(simulated_statistics, lines, words, metrics), runs)
            return cls(dict(zip(runs, found, strict=True)))

    @property
    def size(self) -> int:
        """Return how many sentences there are."""
        return len(next(iter(self.of.values()))[0])

    def measure(self, metric: int, sides: Sequence[Sequence[Simulated]], chosen: NDArray[Any]) -> Measure:
        """Return a metric over the runs of two sides and some sentences."""
        data = [np.stack([self.of[run][metric][chosen] for run in runs]) for runs in sides]
        name = METRICS[metric]
        return Measure(name, name, None, name != "ter", data, SCORES[name])

    def score(self, run: Simulated) -> float:
        """Return the BLEU of a run over all sentences."""
        return float(SCORES["bleu"](self.of[run][0].sum(axis=0)))


def exchanged(one: Measure, choose: np.random.Generator) -> Measure:
    """Return a measure of which the two outputs of each sentence are exchanged or not, by chance."""
    before, after = one.statistics
    swap = choose.integers(2, size=one.sentences).astype(bool)[None, :, None]
    return replace(one, statistics=[np.where(swap, after, before), np.where(swap, before, after)])


def mixed(pool: Pool, metric: int, systems: int, runs: Sequence[int], choose: np.random.Generator) -> Measure:
    """Return a measure of two systems with half of the runs each, whose outputs are, sentence by sentence, those of two
    of the systems: which sentences one does better is chance, and that it is better on the whole."""
    chosen = choose.choice(pool.size, 1000, replace=False)
    owners = np.argsort(choose.random((systems, 1000)), axis=0)[:2]  # two systems for each sentence
    every = pool.measure(metric, [[Simulated(2 + system, run) for system in range(systems)] for run in runs], chosen)
    sides = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    data = [
        np.stack([every.statistics[runs.index(run)][owners[side], np.arange(1000)] for run in sides[side]])
        for side in (0, 1)
    ]
    return replace(every, statistics=data)


def null_comparisons(pool: Pool, same: Sequence[Simulated], systems: int, count: int) -> None:
    """Print the share of null comparisons that are flagged. systems: as many with equal runs 0 to 7; 0: only `same`."""
    pick = random.Random(1)
    wide = [run for run in same if run.spread > SPREAD]
    same = [run for run in same if run.spread == SPREAD]

    def sides(first: int, second: int) -> list[list[Simulated]]:
        drawn = pick.sample(same, first + second)
        return [drawn[:first], drawn[first:]]

    rows: dict[str, Callable[[], list[list[Simulated]] | list[int]]] = {
        "one output a side, sentences exchanged": lambda: sides(1, 1),
        "3 seeds v 3 of the same system": lambda: sides(3, 3),
        "5 seeds v 5 of the same system": lambda: sides(5, 5),
        "1 seed v 3 of the same system": lambda: sides(1, 3),
    }
    if len(same) < 10:
        del rows["5 seeds v 5 of the same system"]
    if systems:
        rows |= {
            "3 seeds v 3 of a system with twice the spread": lambda: [pick.sample(same, 3), pick.sample(wide, 3)],
            "3 seeds v 3 of different systems that are as good": lambda: pick.sample(range(RUNS), 6),
        }
    print(f"{'share of ' + format(count, ',') + ' null comparisons with p < 0.05':52}{'    '.join(METRICS)}")
    for number, (name, draw) in enumerate(rows.items()):
        choose = np.random.default_rng(number)
        flagged: dict[str, Array] = {}
        for _ in range(count):
            drawn = draw()
            chosen = choose.choice(pool.size, 1000, replace=False)
            for metric in range(3):
                if isinstance(drawn[0], int):
                    one = mixed(pool, metric, systems, drawn, choose)
                else:
                    one = pool.measure(metric, drawn, chosen)
                if number == 0:
                    one = exchanged(one, choose)
                for test, p in tests(one, others=number < 2).items():
                    flagged.setdefault(test, np.zeros(3))[metric] += p < 0.05
        for test, shares in flagged.items():
            print(f"{test or name:52}{_percent(shares / count)}", flush=True)


def tests(one: Measure, others: bool) -> dict[str, float]:
    """Return p of a comparison by our test, and by others of the first run of each side."""
    before, after = (side[0] for side in one.statistics)
    found = {"": compare_two(one, 0, 1, trials=TRIALS).p}
    if others:
        found["  sacrebleu --paired-bs, of the first runs"] = sacrebleu_p(before, after, one.scores)
    if others and len(one.statistics[0]) > 1:
        found["  randomization, of the first runs"] = randomization_p(before, after, one.scores, TRIALS)
    return found


def _percent(shares: Array) -> str:
    return "  ".join(f"{share:6.1%}" for share in shares)


def power(pool: Pool, base: Sequence[Simulated], count: int) -> dict[str, dict[int, list[tuple[float, float]]]]:
    """Return how often a difference is found: title → sentences → (BLEU, share found)."""
    choose, pick = np.random.default_rng(2), random.Random(2)
    found: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for title, runs in (("one output a side", 1), ("three seeds a side", 3)):
        for size in SIZES:
            for shift in SHIFTS:
                better = [replace(run, system=1, shift=shift) for run in base]
                before, after = ([run for run in side if bool(run.spread) == (runs > 1)] for side in (base, better))
                gap = np.mean([pool.score(run) for run in after]) - np.mean([pool.score(run) for run in before])
                flagged = 0
                for _ in range(count):
                    drawn = pick.sample(range(len(before)), 2 * runs)
                    sides = [[before[run] for run in drawn[:runs]], [after[run] for run in drawn[runs:]]]
                    one = pool.measure(0, sides, choose.choice(pool.size, size))
                    flagged += compare_two(one, 0, 1, trials=TRIALS).p < 0.05
                found.setdefault(title, {}).setdefault(size, []).append((float(gap), flagged / count))
                print(f"{title}, {size:,} sentences, {gap:.2f} BLEU: found in {flagged / count:.0%}", flush=True)
    return found


def draw_power(found: dict[str, dict[int, list[tuple[float, float]]]], path: Path) -> None:
    """Write the picture of the power."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "tfm", "font.size": 10})
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for axis, (title, sizes) in zip(axes, found.items(), strict=True):
        for (size, points), style in zip(sizes.items(), ("o:", "s--", "^-"), strict=True):
            axis.plot(*zip(*points, strict=True), style, label=f"{size:,} sentences")
        axis.axhline(0.8, color="0.7", linewidth=1)
        axis.set(title=title, xlabel="true difference (BLEU)", ylim=(0, 1.03), xlim=(0, None))
    axes[0].set_ylabel("share found (p < 0.05)")
    axes[1].legend(loc="upper left")
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def print_speed(lines: Sequence[str], outputs: Sequence[Sequence[str]], trials: int = 10_000) -> None:
    """Print how long the tests of two outputs take, for all metrics together, here and in sacreBLEU."""
    from sacrebleu.significance import PairedTest

    measures = [measure(metric, [[[*text]] for text in outputs], [[*lines]], "en") for metric in METRICS]
    scorers = dict(zip(METRICS, load_scorers(METRICS, "en"), strict=True))
    named: list[tuple[str, Sequence[str]]] = [(str(place), [*text]) for place, text in enumerate(outputs)]
    kinds: dict[str, Callable[[], object]] = {"tfm compare, randomization and bootstrap": lambda: compare(measures)}
    for kind in ("ar", "bs"):
        kinds[f"sacrebleu --paired-{kind}"] = PairedTest(named, scorers, [[*lines]], kind, trials)
    for name, call in kinds.items():
        clock, work = time.perf_counter(), time.process_time()
        call()
        clock, work = time.perf_counter() - clock, time.process_time() - work
        print(f"{name:44} {clock:6.2f} s, CPU {work:6.2f} s", flush=True)


def print_scores(pool: Pool, same: Sequence[Simulated]) -> None:
    """Print how good the runs of a system are."""
    scores = [pool.score(run) for run in same]
    print(f"{len(scores)} seeds: {np.mean(scores):.2f} BLEU, standard deviation {np.std(scores, ddof=1):.2f}")


def main() -> None:
    """Simulate, compare, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["calibration", "power", "speed"])
    parser.add_argument("file", type=Path, help="sentences, one a line, gzipped")
    parser.add_argument("--outputs", type=Path, nargs="+", default=[], help="translations of seeds, one a line")
    parser.add_argument("--sentences", type=int, default=2000, help="of the pool, which is simulated")
    parser.add_argument("--comparisons", type=int, default=1000)
    parser.add_argument("--systems", type=int, default=4, help="that are as good as each other")
    parser.add_argument("--seeds", type=int, default=24, help="of one of them")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    lines = gzip.decompress(given.file.read_bytes()).decode().split("\n")[:-1]
    if given.outputs:
        same = [Simulated(0, number) for number in range(len(given.outputs))]
        texts = [path.read_text("utf-8").split("\n")[:-1] for path in given.outputs]
        if given.what == "speed":
            print_speed(lines, texts)
            return
        pool = Pool({run: statistics(lines, text, METRICS) for run, text in zip(same, texts, strict=True)})
        print_scores(pool, same)
        null_comparisons(pool, same, 0, given.comparisons)
        return
    words = words_like(lines)
    random.Random(5).shuffle(lines)
    lines = lines[: given.sentences]
    if given.what == "calibration":
        same = [Simulated(0, run) for run in range(given.seeds)]
        wide = [Simulated(0, 1000 + run, spread=2 * SPREAD) for run in range(given.seeds // 2)]
        systems = [Simulated(2 + system, run) for system in range(given.systems) for run in range(RUNS)]
        pool = Pool.simulated(lines, words, METRICS, [*same, *wide, *systems], given.jobs)
        print_scores(pool, same)
        null_comparisons(pool, [*same, *wide], given.systems, given.comparisons)
        return
    base = [Simulated(0, 2000 + run, spread=0.0) for run in range(2)] + [Simulated(0, run) for run in range(RUNS)]
    shifted = [replace(run, system=1, shift=shift) for shift in SHIFTS for run in base]
    pool = Pool.simulated(lines, words, METRICS[:1], [*base, *shifted], given.jobs)
    found = power(pool, base, given.comparisons)
    if given.picture is not None:
        draw_power(found, given.picture)


if __name__ == "__main__":
    main()
