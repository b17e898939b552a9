"""Confidence is fitted on one half and measured on the other; the error is what its definition says."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from transformer_cli.config import Config
from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.errors import UserError
from transformer_cli.evaluation.calibration import calibrate, calibration_error, check_calibration_set
from transformer_cli.evaluation.evaluate import EvaluationSet

FILES = {"source": "a", "target": "b"}


class Knowing:
    """Leaves out letters of a text, and gives it the log-probability of a text with as many gone."""

    config = Config.model_validate(
        {"data": {"source_language": "de", "target_language": "en", "train": FILES, "valid": FILES}}
    )

    def translate_batch(self, texts: Sequence[str], options: object, **_: Any) -> list[Translation]:
        found = []
        for text in texts:
            choose = random.Random(text)
            missing = choose.random()
            kept = "".join(letter for letter in text if choose.random() > missing)
            found.append(Translation(Line(text), [], [Candidate(kept, 0.0, -missing * len(kept), [], None, True)]))
        return found


def test_what_the_scores_tell_is_learned() -> None:
    choose = random.Random(2)
    sources = ["".join(choose.choices("abcdefgh", k=60)) for _ in range(600)]
    done: list[int] = []
    found = calibrate(Knowing(), sources, [sources], report=done.append)  # type: ignore[arg-type]
    assert (found.sentences, found.measured, done) == (300, 300, [600])
    assert 0 < found.error < 0.03
    assert found.at(-0.05) > 0.7
    assert found.at(-0.95) < 0.2


def test_the_halves_are_apart() -> None:
    choose = random.Random(3)
    sources = ["".join(choose.choices("abcdefgh", k=40)) for _ in range(60)]
    found = calibrate(Knowing(), sources, [sources])  # type: ignore[arg-type]
    for other in range(1, 60, 2):  # whatever stands there
        sources[other] = "zz"
    again = calibrate(Knowing(), sources, [sources])  # type: ignore[arg-type]
    assert (again.scores, again.chrf) == (found.scores, found.chrf)
    assert again.error != found.error


def test_the_error_is_the_mean_over_ten_bins() -> None:
    choose = random.Random(4)
    predicted = [choose.random() for _ in range(100)]
    observed = [choose.random() for _ in range(100)]
    order = np.argsort(predicted).reshape(10, 10)
    gaps = [abs(np.mean(np.array(predicted)[row]) - np.mean(np.array(observed)[row])) for row in order]
    assert calibration_error(predicted, observed) == pytest.approx(np.mean(gaps))
    assert calibration_error(predicted, predicted) == 0
    assert calibration_error([0.5] * 25, [0.25] * 25) == pytest.approx(0.25)


def test_too_few_sentences_are_refused() -> None:
    check_calibration_set(EvaluationSet(["a"] * 20, [["b"] * 20], []))
    with pytest.raises(UserError, match="19 sentences are too few"):
        check_calibration_set(EvaluationSet(["a"] * 19, [["b"] * 19], []))
