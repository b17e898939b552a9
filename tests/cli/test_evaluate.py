"""`tfm evaluate`: sacreBLEU's numbers of the model's translations; every file is checked before one is translated."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config, dump_config, load_config
from transformer_cli.decoding.translator import Translator
from transformer_cli.evaluation.evaluate import corpus_scores
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import find_model


def test_scores_are_those_of_the_translations_it_keeps(trial: Any, tfm: Any, tmp_path: Path) -> None:
    output = tmp_path / "output"
    evaluate = ["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference]
    table = tfm(*evaluate, "-o", output)
    assert table.code == 0
    assert table.err.startswith("translated: 6 lines in ")
    assert output.read_text() == tfm("translate", trial.run, "-i", trial.source).out
    translations, references = output.read_text().splitlines(), trial.reference.read_text().splitlines()
    expected = corpus_scores(translations, [references], "en")
    assert [row.split() for row in table.out.splitlines()] == [
        [score.name, f"{score.score:.2f}", score.signature] for score in expected
    ]
    result = tfm(*evaluate, "--json", "--quiet")
    assert "translated:" not in result.err
    found = json.loads(result.out)
    assert found["sentences"] == 6
    assert [(one["metric"], one["score"], one["signature"]) for one in found["scores"]] == [
        (score.metric, score.score, score.signature) for score in expected
    ]


def test_without_files_the_configs_test_set_is_used(trial: Any, tfm: Any, tmp_path: Path) -> None:
    named = tfm("evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "--json", "--quiet")
    missing = tfm("evaluate", trial.run)
    assert (missing.code, missing.out) == (2, "")
    assert "no data.test; give --source and --reference" in missing.err

    model = shutil.copytree(find_model(trial.run), tmp_path / "model")
    config = load_config(model / "config.yaml", [f"data.test={{source: {trial.source}, target: {trial.reference}}}"])
    publish(tmp_path / "other", lambda folder: copy_model(model, folder, config))
    configured = tfm("evaluate", tmp_path / "other", "--json", "--quiet")
    assert json.loads(configured.out)["scores"] == json.loads(named.out)["scores"]


def copy_model(model: Path, folder: Path, config: Config) -> None:
    """The model, with another config, into a folder that is being published."""
    shutil.copytree(model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    (folder / "config.yaml").write_text(dump_config(config))


@pytest.mark.parametrize("half", [["--source", "x"], ["--reference", "x"]])
def test_half_a_test_set_is_refused(trial: Any, tfm: Any, half: list[str]) -> None:
    result = tfm("evaluate", trial.run, *half)
    assert (result.code, result.out) == (2, "")
    assert "--source and --reference belong together" in result.err


def test_perfect_references_and_the_choice_of_metrics(trial: Any, tfm: Any, tmp_path: Path) -> None:
    perfect = tmp_path / "perfect"
    perfect.write_text(tfm("translate", trial.run, "-i", trial.source, "--greedy").out)
    result = tfm(
        *["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "--reference", perfect],
        *["--greedy", "--metric", "ter", "--metric", "chrf++", "--metric", "ter", "--json", "--quiet"],
    )
    ter, chrf = json.loads(result.out)["scores"]
    assert (ter["name"], ter["score"]) == ("TER", 0.0)
    assert (chrf["name"], chrf["score"]) == ("chrF2++", pytest.approx(100.0))
    assert "nrefs:2" in chrf["signature"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "source", "--reference", "short"], "short: has 5 lines, but source has 6"),
        (["--source", "source", "--reference", "source", "--reference", "short"], "short: has 5 lines"),
        (["--source", "none", "--reference", "source"], "none: no such file"),
        (["--source", "source", "--reference", "none"], "none: no such file"),
        (["--source", "empty", "--reference", "empty"], "empty: is empty"),
        (["--source", "source", "--reference", "latin"], "latin:2: is not valid UTF-8"),
        (["--source", "source", "--reference", "source", "--metric", "meteor"], "there is no metric 'meteor'"),
        (["--source", "source", "--reference", "source", "-o", "no/output"], "no/output: cannot be written"),
        (["--source", "source", "--reference", "source", "--beam", "2", "--greedy"], "exclude each other"),
    ],
)
def test_faults_are_found_before_anything_is_translated(
    arguments: list[str],
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source").write_bytes(trial.source.read_bytes())
    Path("short").write_text("a\n" * 5)
    Path("empty").write_bytes(b"")
    Path("latin").write_bytes(b"a\nfa\xe7ade\n" + b"a\n" * 4)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(Translator, "load", lambda *_, **__: pytest.fail("no model is needed to find that"))
    assert message in tfm("evaluate", trial.run, *arguments).refused()
    assert sorted(tmp_path.iterdir()) == before


def test_the_engine_is_the_one_asked_for(trial: Any, tfm: Any) -> None:
    run = ["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "--quiet"]
    assert tfm(*run, "--engine", "torch").code == 0
    assert tfm(*run, "--compute-type", "int8").code == 0
    assert "exclude each other" in tfm(*run, "--engine", "torch", "--compute-type", "int8").refused()
