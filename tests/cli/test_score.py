"""`tfm score`: one line per pair; tokens' log-probabilities add up; the end of the sentence counts."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.decoding.translator import Translator


def rows(result: Any) -> list[list[str]]:
    assert result.code == 0, result.err
    return [line.split("\t") for line in result.out.split("\n")[:-1]]


@pytest.mark.parametrize("kind", ["run", "words"])
def test_tokens_add_up_to_the_sum_and_the_sum_to_the_score(kind: str, trial: Any, tfm: Any) -> None:
    score = ["score", getattr(trial, kind), "--source", trial.source, "--target", trial.reference]
    plain = rows(tfm(*score))
    detailed = rows(tfm(*score, "--tokens", "--length-penalty", 0.5, "--quiet"))
    assert len(plain) == len(detailed) == 6
    for (total, mean), (again, penalised, tokens, each) in zip(plain, detailed, strict=True):
        assert total == again
        assert float(total) < 0
        values = [float(value) for value in each.split()]
        assert tokens.split()[-1] == "</s>"
        length = len(tokens.split()) - 1
        assert len(values) == length + 1
        assert sum(values) == pytest.approx(float(total), abs=1e-4)
        assert float(mean) == pytest.approx(float(total) / length, abs=1e-5)
        assert float(penalised) == pytest.approx(float(total) / math.sqrt(length), abs=1e-5)
    assert "divided by the number of target tokens, </s> not counted" in tfm("score", "--help").out


def test_lines_are_kept_and_other_lines_change_nothing(trial: Any, tfm: Any, tmp_path: Path) -> None:
    source, target, output = tmp_path / "source", tmp_path / "target", tmp_path / "output"
    source.write_text("\r\nein hund\n\nzwei\n", newline="")
    target.write_text("\n\na \u2028 dog\none\n")
    result = tfm("score", trial.run, "--source", source, "--target", target, "--tokens", "-o", output)
    assert (result.code, result.out) == (0, "")
    assert f"warning: {source}: dropped the carriage return" in result.err
    text = output.read_text(encoding="utf-8")
    assert text.count("\n") == len(text.splitlines()) == 4
    source.write_text("zwei\n")
    target.write_text("one\n")
    (alone,) = rows(tfm("score", trial.run, "--source", source, "--target", target))
    assert float(alone[0]) == pytest.approx(float(text.split("\n")[3].split("\t")[0]), abs=1e-4)


def test_unequal_files_are_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    target, output = tmp_path / "target", tmp_path / "output"
    target.write_text("one\n")
    refused = tfm("score", trial.run, "--source", trial.source, "--target", target, "-o", output).refused()
    assert "target: has 1 lines, but" in refused
    assert not output.exists()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_line_past_the_learned_positions_is_named(side: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    files = {"source": trial.source, "target": trial.reference}
    files[side] = tmp_path / "long"
    files[side].write_text("ein\n" * 4 + "ein " * 25 + "\nein\n")
    score = ["score", trial.words, "--source", files["source"], "--target", files["target"]]
    assert tfm(*score).code == 0
    files[side].write_text("ein\n" * 4 + "ein " * 26 + "\nein\n")
    assert f"{files[side]}:5: 26 tokens, but this model's learned positions end at 25" in tfm(*score).refused()


def test_json_has_the_pair_its_scores_and_its_tokens(trial: Any, tfm: Any) -> None:
    score = ["score", trial.run, "--source", trial.source, "--target", trial.reference, "--quiet"]
    table = rows(tfm(*score, "--tokens"))
    objects = [json.loads(line) for line in tfm(*score, "--format", "json").out.splitlines()]
    sources, targets = trial.source.read_text().splitlines(), trial.reference.read_text().splitlines()
    assert [(one["line"], one["source"], one["target"]) for one in objects] == list(
        zip(range(1, 7), sources, targets, strict=True)
    )
    for one, (total, penalised, _, values) in zip(objects, table, strict=True):
        assert [*one][3:] == ["log_probability", "score", "tokens", "log_probabilities"]
        assert (one["log_probability"], one["score"]) == (float(total), float(penalised))
        assert one["log_probabilities"] == [float(value) for value in values.split()]
        assert one["tokens"][-1] == "</s>"
        assert len(one["tokens"]) == len(one["log_probabilities"])
    assert "--tokens and --format json exclude" in tfm(*score, "--tokens", "--format", "json").refused()


def test_either_engine_gives_the_same(trial: Any, tfm: Any) -> None:
    score = ["score", trial.run, "--source", trial.source, "--target", trial.reference, "--quiet"]
    found = [[float(row[0]) for row in rows(tfm(*score, "--engine", name))] for name in ("torch", "ctranslate2")]
    assert found[0] == pytest.approx(found[1], abs=1e-3)
    assert "there is no engine" in tfm(*score, "--engine", "marian").refused()


def test_scores_are_computed_in_float32_unless_told(trial: Any, tfm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU too, where translations are not."""
    asked, load = [], Translator.load

    def noting(*arguments: Any, compute_type: str, **options: Any) -> Any:
        asked.append(compute_type)
        return load(*arguments, compute_type=compute_type, **options)

    monkeypatch.setattr(Translator, "load", noting)
    run = ["score", trial.run, "--source", trial.source, "--target", trial.reference, "--engine", "torch"]
    assert tfm(*run).code == tfm(*run, "--compute-type", "bfloat16").code == 0
    assert asked == ["float32", "bfloat16"]
