"""How far a model's scores tell how good its translations are. Behind `tfm calibrate`; other programs may call it."""

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.decoding.translation import FILE, Confidence, score
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import EvaluationSet, load_scorers, translate_all
from transformer_cli.storage.publishing import MANIFEST, manifest_names, publish, verify

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Translator
    from transformer_cli.search_options import SearchOptions

BINS = 10
FEWEST = 2 * BINS  # sentences, so that no bin of the half that measures is empty


def check_calibration_set(found: EvaluationSet) -> None:
    """Raise `UserError` where there are too few sentences."""
    if len(found.sources) < FEWEST:
        raise UserError(f"{len(found.sources)} sentences are too few to calibrate with; give at least {FEWEST}")


def calibrate(
    translator: "Translator",
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    options: "SearchOptions | None" = None,
    report: Callable[[int], None] | None = None,
) -> Confidence:
    """Fit confidence on every other sentence, and measure its error on those between.

    references: one sequence a reference set. options: how to search; None takes the model's own way. report: called
    with the number of sentences done.
    """
    (chrf,) = load_scorers(["chrf"], translator.config.data.target_language)
    scores: list[float] = []
    observed: list[float] = []
    for translation, *beside in zip(translate_all(translator, sources, options, report), *references, strict=True):
        best = translation.hypotheses[0]
        scores.append(score(best.text, best.log_probability))
        observed.append(chrf.sentence_score(best.text, beside).score / 100)
    points = fit(scores[::2], observed[::2])
    fitted = Confidence(*points, sentences=len(scores[::2]), measured=len(scores[1::2]), error=0.0)
    predicted = [fitted.at(one) for one in scores[1::2]]
    return replace(fitted, error=calibration_error(predicted, observed[1::2]))


def fit(scores: Sequence[float], chrf: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points of the never falling function that is nearest to `chrf` in the mean square: scores, values.

    Between the ends of a level segment there is no point.
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
    """Return the never falling sequence with the least Σ w (fitted - value)², by pooling adjacent violators."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values, weights, strict=True):
        mean, heavy, count = value, float(weight), 1
        while pools and pools[-1][0] >= mean:
            before, before_heavy, before_count = pools.pop()
            mean = (before * before_heavy + mean * heavy) / (before_heavy + heavy)
            heavy, count = before_heavy + heavy, before_count + count
        pools.append((mean, heavy, count))
    return [mean for mean, _, count in pools for _ in range(count)]


def calibration_error(predicted: Sequence[float], observed: Sequence[float], bins: int = BINS) -> float:
    """Return the mean over `bins` bins of |mean predicted - mean observed|.

    The lowest predictions make the first bin, and so on; bins are of equal size, or one apart.
    """
    assert len(predicted) == len(observed) >= bins
    order = sorted(range(len(predicted)), key=lambda place: predicted[place])
    edges = [len(order) * number // bins for number in range(bins + 1)]
    gaps = []
    for low, high in pairwise(edges):
        places = order[low:high]
        gaps.append(abs(sum(predicted[place] - observed[place] for place in places)) / len(places))
    return sum(gaps) / bins


def check_folder(folder: Path) -> None:
    """Raise `UserError` where a checkpoint folder could not be replaced by one that holds its confidence too.

    Nor may any of its files be damaged: a new manifest would vouch for it.
    """
    if not os.access(folder.parent, os.W_OK | os.X_OK) or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}: cannot be written, but the confidence is kept in it; copy the model elsewhere first"
        )
    if Path.cwd().is_relative_to(folder):
        raise UserError(f"{folder}: cannot be replaced while you are in it; run tfm from outside it")
    verify(folder, [name for name in manifest_names(folder) if (folder / name).exists()])  # others were not wanted


def keep_confidence(folder: Path, confidence: Confidence) -> None:
    """Publish a checkpoint folder anew, with this confidence in it. Raises `UserError` where a file is damaged.

    What else is in the folder stays as it is, and takes no room twice on the way.
    """
    check_folder(folder)

    def write(new: Path) -> None:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = file.relative_to(folder)
            if str(name) in (FILE, MANIFEST):
                continue
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, new / name)
            except OSError:  # a file system without hard links
                shutil.copy2(file, new / name)
        (new / FILE).write_text(confidence.dumps(), encoding="utf-8")

    publish(folder, write)
