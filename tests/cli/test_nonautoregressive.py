"""Models that write all tokens at once, from training to evaluation, and what of the options they have no place for."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.cli.app import main
from transformer_cli.inside.trace import MASKED

KINDS = ["mask_predict", "one_shot"]


@pytest.fixture(scope="module")
def models(trial: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`models(generation)`: a run folder, trained for some steps."""
    folder, made = tmp_path_factory.mktemp("models"), set()

    def get(generation: str) -> Path:
        run = folder / generation
        if generation not in made:
            options = ["--set", f"model.generation={generation}", "--set", "decoding.iterations=2"]
            assert main(["train", str(trial.config), "--out", str(run), "--quiet", *options]) == 0
            made.add(generation)
        return run

    return get


@pytest.mark.medium
@pytest.mark.parametrize("generation", KINDS)
def test_train_translate_evaluate(generation: str, models: Any, trial: Any, tfm: Any) -> None:
    model = models(generation)
    lines = trial.source.read_text(encoding="utf-8").splitlines()
    translated = tfm("translate", model, "-i", trial.source, "--quiet")
    assert (translated.code, translated.out.count("\n")) == (0, len(lines))
    evaluated = tfm("evaluate", model, "--source", trial.source, "--reference", trial.reference, "--json", "--quiet")
    assert evaluated.code == 0
    assert json.loads(evaluated.out)["sentences"] == len(lines)
    scored = tfm("score", model, "--source", trial.source, "--target", trial.reference, "--quiet")
    assert (scored.code, scored.out.count("\n")) == (0, len(lines))
    aligned = tfm(
        "translate", model, "ein hund schläft .", "--alignments", "--greedy", "--no-repeat-ngram", 2, "--quiet"
    )
    assert aligned.code == 0
    assert "-" in aligned.out


def test_lengths_tried_are_what_n_best_chooses_from(models: Any, tfm: Any) -> None:
    options = ["--iterations", 1, "--length-candidates", 4, "--n-best", 4, "--no-guard", "--format", "json"]
    answer = tfm("translate", models("mask_predict"), "ein hund schläft .", *options)
    assert answer.code == 0
    hypotheses = json.loads(answer.out)["n_best"]
    assert len({len(one["tokens"]) for one in hypotheses}) == len(hypotheses) == 4


@pytest.mark.parametrize(
    ("generation", "options", "named"),
    [
        ("mask_predict", ["--beam", 3], "--beam"),
        ("mask_predict", ["--mbr", 2], "--mbr"),
        ("mask_predict", ["--sample"], "--sample"),
        ("mask_predict", ["--coverage-penalty", 0.2], "--coverage-penalty"),
        ("mask_predict", ["--diverse-groups", 2], "--diverse-groups"),
        ("mask_predict", ["--prefix", "one"], "--prefix"),
        ("mask_predict", ["--require", "one"], "--require"),
        ("mask_predict", ["--n-best", 6], "--n-best 6"),
        ("mask_predict", ["--length-candidates", 2, "--n-best", 3], "--n-best 3"),
        ("mask_predict", ["--engine", "ctranslate2"], "generation: mask_predict"),
        ("one_shot", ["--iterations", 2], "--iterations"),
        ("one_shot", ["--length-candidates", 2], "--length-candidates"),
        ("one_shot", ["--n-best", 2], "--n-best 2"),
        ("one_shot", ["--forbid", "one"], "--forbid"),
    ],
)
def test_what_such_a_model_cannot_do_is_refused(
    generation: str, options: list[object], named: str, models: Any, tfm: Any, tmp_path: Path
) -> None:
    model, output = models(generation), tmp_path / "out"
    assert named in tfm("translate", model, "ein hund", "-o", output, *options).refused()
    assert not output.exists()


@pytest.mark.parametrize("generation", KINDS)
def test_no_causal_mask_is_drawn_of_a_decoder_that_has_none(
    generation: str, models: Any, tfm: Any, tmp_path: Path
) -> None:
    picture = tmp_path / "mask.png"
    assert "--side source" in tfm("plot", "mask", models(generation), "ein hund", "-o", picture).refused()
    assert not picture.exists()
    assert tfm("plot", "mask", models(generation), "ein hund", "--side", "source", "-o", picture).code == 0
    assert picture.exists()


@pytest.mark.parametrize("generation", KINDS)
def test_seen_inside(generation: str, models: Any, tfm: Any, tmp_path: Path) -> None:
    model, sentence = models(generation), "ein hund schläft ."
    for options in (["--kind", "decoder"], ["--grid"], ["--entropy"]):
        picture = tmp_path / f"{options[-1]}.png"
        assert tfm("plot", "attention", model, sentence, *options, "-o", picture).code == 0
        assert picture.stat().st_size > 1000
    traced = tfm("translate", model, "--trace", sentence)
    assert traced.code == 0
    lines = traced.out.splitlines()
    assert lines[-1].strip() == tfm("translate", model, sentence).out.strip()
    titles = re.findall(r"^(\d+)\. (\w+)", traced.out, re.MULTILINE)
    length = ["length"] if generation == "mask_predict" else []
    names = ["text", "words", "tokens", "embedding", "encoder", *length, "decoder", "decoding", "ids", "text"]
    assert titles == [(str(number), name) for number, name in enumerate(names, start=1)]
    assert "--beam" in tfm("translate", model, "--trace", sentence, "--beam", 2).refused()
    start = lines.index(next(line for line in lines if "decoding in" in line))
    assert {*lines[start + 1].split()} == {"1", MASKED}
    assert max(map(len, lines)) <= 120


def test_such_models_decide_with_none_beside_them(models: Any, trial: Any, tfm: Any) -> None:
    other = models("one_shot")
    for first, second in ((trial.run, other), (other, trial.run)):
        message = tfm("translate", first, "ein hund", "--with", second).refused()
        assert "--with" in message
        assert str(other) in message


@pytest.mark.parametrize("option", ["--iterations", "--length-candidates"])
def test_a_plain_model_has_nothing_to_refine(option: str, trial: Any, tfm: Any) -> None:
    assert option in tfm("translate", trial.run, "ein hund", option, 2).refused()
    texts = ["--source", trial.source, "--reference", trial.reference]
    assert option in tfm("evaluate", trial.run, *texts, option, 2).refused()
