"""Successive halving: who continues, what is drawn, what an interruption changes (nothing), and what is refused.

Trials are trained by `pretended_tfm.py`; `tests/cli/test_tune.py` trains real ones.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.jobs import pretended_tfm
from tests.training.conftest import write_corpus
from transformer_cli.config import Config, config_of_tree, load_config
from transformer_cli.errors import UserError
from transformer_cli.jobs import halving, study, tuning
from transformer_cli.jobs.plan import Plan, make_plan, parse_budget
from transformer_cli.jobs.search_space import Space, parse_dimension, settings
from transformer_cli.jobs.tuning import Answer, Question, tune
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training import start

PRETENDED = [sys.executable, "-IS", pretended_tfm.__file__]
DROPOUTS = "model.dropout=0.0,0.1,0.2,0.3,0.4,0.5"

Ask = Callable[..., Question]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Call it with keys of `Question`: one over a config in `tmp_path`, which the pretended `tfm` will train."""
    monkeypatch.setattr(halving, "TFM", PRETENDED)
    monkeypatch.setattr(halving, "POLL_SECONDS", 0.01)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tree = {
        "data": {
            "source_language": "de",
            "target_language": "en",
            "train": write_corpus(tmp_path, "train", 30, 1),
            "valid": write_corpus(tmp_path, "valid", 4, 2),
        },
        "vocabulary": {"tokenizer": "whitespace"},
        "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2},
        "training": {"batch_tokens": 300, "max_steps": 90, "validate_every": 10, "warmup_steps": 2},
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(tree))
    asked = Question(config_of_tree(tree, "my.yaml"), (DROPOUTS,), "310steps")
    return lambda **changes: replace(asked, **changes)


def rows(folder: Path) -> list[str]:
    return (folder / "trained").read_text().splitlines()


def legs(folder: Path) -> list[tuple[str, int, int]]:
    """What was trained, in order: which run, from and to which step."""
    return [(name, before, until) for name, before, until, _ in map(json.loads, rows(folder))]


def told(answer: Answer) -> dict[str, Any]:
    """What a search came to, without what depends on the clock and the folder."""
    found = json.loads(tuning.as_json(answer))
    del found["best"]["config"]
    return {**found, "trials": [{**trial, "seconds": None} for trial in found["trials"]]}


# --- the plan -----------------------------------------------------------------------------------------------------


def test_a_budget_is_steps_or_time() -> None:
    assert parse_budget("20000steps").steps == parse_budget("20,000 steps").steps == 20_000
    assert parse_budget("2h").seconds == parse_budget("120m").seconds == parse_budget("7200s").seconds == 7200
    assert parse_budget("0.5d").seconds == 43_200
    for text in ("", "20000", "steps", "-1h", "0steps", "2 weeks", "nanh", "1e400s", "2hh"):
        with pytest.raises(UserError, match="--budget"):
            parse_budget(text)


def test_what_a_plan_costs_is_what_its_trials_train() -> None:
    plan = Plan((10, 30, 90), 3)
    assert [plan.sizes(count) for count in (1, 2, 9, 10)] == [[1, 1, 1], [2, 1, 1], [9, 3, 1], [10, 3, 1]]
    assert (plan.cost(1), plan.cost(9)) == (90, 9 * 10 + 3 * 20 + 60)
    assert plan.cost(9, jobs=2) == 5 * 10 + 2 * 20 + 60, "of each of two processes"
    assert plan.affordable(89) == 0
    for budget in range(90, 400, 7):
        count = plan.affordable(budget)
        assert plan.cost(count) <= budget < plan.cost(count + 1)
    assert Plan((10, 30, 90), 3, seeds=2).cost(1) == 90 + 4 * 90


def test_rungs_are_validated_and_beyond_the_warmup(ask: Ask) -> None:
    config = ask().config

    def rungs(first: int | None = None, **training: int | None) -> tuple[int, ...]:
        changed = config.model_copy(update={"training": config.training.model_copy(update=training)})
        return make_plan(changed, 3, first, 0).rungs

    assert rungs() == (10, 30, 90)
    assert rungs(max_steps=100) == (20, 40, 100), "33.3 and 11.1, rounded up"
    assert rungs(warmup_steps=20) == (30, 90)
    assert rungs(first=31) == (90,)
    assert rungs(max_steps=100_000, validate_every=1) == (3704, 11112, 33334, 100_000)
    assert rungs(max_steps=10, validate_every=10) == (10,)
    with pytest.raises(UserError, match="max_steps"):
        rungs(max_steps=None)


# --- the search ---------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_of_many_trials_the_best_third_continues_from_where_it_stood(ask: Ask, tmp_path: Path) -> None:
    said: list[str] = []
    values = "model.dropout=0.0,0.05,0.1,0.15,0.2,0.25,0.3,0.4,0.5"
    answer = tune(ask(vary=(values,), budget="210steps"), tmp_path / "out", note=said.append)
    assert "plan         9 trials to step 10, 3 trials to step 30, 1 trial to step 90: 210 steps" in said
    trained = legs(tmp_path / "out")
    assert sum(until - before for _, before, until in trained) == 210
    assert [before for _, before, _ in trained] == [0] * 9 + [10] * 3 + [30]
    dropouts = [float(trial.values["model.dropout"]) for trial in answer.trials]
    assert sorted(dropouts) == [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5], "each once"
    nearest = sorted(dropouts, key=lambda dropout: abs(dropout - 0.22))
    assert dropouts[:3] == nearest[:3] == [0.2, 0.25, 0.15]
    assert [trial.step for trial in answer.trials] == [90, 30, 30, *[10] * 6]
    assert [trial.state for trial in answer.trials] == ["finished", *["stopped"] * 8]
    assert answer.trials[0].scores[90] == pretended_tfm.score({"model.dropout": "0.2"}, 90)
    best = load_config(answer.best_config)
    assert best == ask().config.model_copy(update={"model": ask().config.model.model_copy(update={"dropout": 0.2})})
    assert answer.best_config.read_text().startswith("# bleu 31.09 at step 90: trial")


def test_the_configs_own_values_come_first(ask: Ask, tmp_path: Path) -> None:
    answer = tune(ask(budget="130steps"), tmp_path / "out")
    assert next(trial for trial in answer.trials if trial.number == 0).values == {"model.dropout": "0.1"}


@pytest.mark.parametrize("metric", ["bleu", "loss"])
def test_the_best_validation_so_far_counts(metric: str, tmp_path: Path) -> None:
    found = [(10, 3.0), (20, 5.0), (30, 4.0), (40, 9.0), (50, None)]
    turned = -1 if metric == "loss" else 1
    events = [
        {"step": step, "valid_loss": 0.0, f"valid_{metric}": None if score is None else turned * score}
        for step, score in found
    ]
    text = "".join(json.dumps(event) + "\n" for event in [{"step": 5, "loss": 1.0}, *events])
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 60, "valid_l')
    assert halving.best_score(tmp_path, metric, 9) is None
    assert halving.best_score(tmp_path, metric, 30) == turned * 5.0
    assert halving.best_score(tmp_path, metric, 60) == turned * 9.0
    assert halving.best_score(tmp_path / "none", metric, 60) is None


@pytest.mark.medium
def test_lower_losses_are_better(ask: Ask, tmp_path: Path) -> None:
    config = ask().config
    by_loss = config.model_copy(update={"training": config.training.model_copy(update={"best_metric": "loss"})})
    answer = tune(ask(config=by_loss), tmp_path / "out")
    assert answer.best.values == {"model.dropout": "0.2"}


@pytest.mark.medium
def test_jobs_share_the_cores_and_come_to_the_same_end(ask: Ask, tmp_path: Path) -> None:
    question = ask(vary=("model.dropout=0.01..0.5", "model.heads=2,4"), budget="130steps")
    alone = tune(question, tmp_path / "one", jobs=2)
    again = tune(question, tmp_path / "two", jobs=2)
    assert told(alone) == told(again)
    threads = {json.loads(line)[3] for line in rows(tmp_path / "one")}
    assert threads == {str(max(1, (os.cpu_count() or 1) // 2))}


@pytest.mark.medium
def test_trials_that_fail_are_kept_as_such_and_stop_nothing(ask: Ask, tmp_path: Path) -> None:
    said: list[str] = []
    answer = tune(ask(vary=("model.dropout=0.1,0.2,0.8,0.9",)), tmp_path / "out", note=said.append)
    failed = {trial.values["model.dropout"]: trial.failure for trial in answer.trials if trial.state == "failed"}
    assert failed == {"0.8": "out of memory; take smaller batches", "0.9": "diverged"}
    assert answer.best.values == {"model.dropout": "0.2"}
    assert [row[-1] for row in tuning.rows(answer)] == ["state", "best", "stopped", "failed", "failed"]
    assert sum("failed before step 10" in line for line in said) == 2


def test_a_vocabulary_that_cannot_be_built_fails_its_trials_alone(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    real = start.build_vocabulary

    def build(config: Config, path: Path) -> None:
        built.append(config.vocabulary.min_freq)
        if config.vocabulary.min_freq == 3:
            raise UserError("nothing is left of it")
        real(config, path)

    monkeypatch.setattr("transformer_cli.jobs.halving.build_vocabulary", build)
    question = ask(vary=("vocabulary.min_freq=1,2,3", "model.dropout=0.1,0.2"), budget="210steps")
    answer = tune(question, tmp_path / "out")
    failed = [trial for trial in answer.trials if trial.failure]
    assert [trial.failure for trial in failed] == ["nothing is left of it"] * 2
    assert {trial.values["vocabulary.min_freq"] for trial in failed} == {"3"}
    assert sorted(built) == [1, 2, 3, 3], "once for all trials that have the same"


def test_where_every_trial_fails_the_reason_is_said(ask: Ask, tmp_path: Path) -> None:
    for budget in ("310steps", "1h"):
        with pytest.raises(UserError, match=r"every trial failed: (diverged|out of memory)"):
            tune(ask(vary=("model.dropout=0.8,0.9",), budget=budget), tmp_path / budget)


def test_what_is_no_trials_fault_ends_the_search_which_continues(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(ChildProcessError, match="No space left on device"):
        tune(ask(vary=("model.dropout=0.1,0.7",)), tmp_path / "full")
    with pytest.raises(ChildProcessError, match="was ended"):
        tune(ask(vary=("model.dropout=0.1,0.6",)), tmp_path / "ended")
    answer = tune(ask(vary=("model.dropout=0.1,0.6",)), tmp_path / "ended")
    assert {trial.state for trial in answer.trials} == {"finished", "stopped"}


@pytest.mark.slow
def test_a_budget_in_time_is_measured_by_the_first_trials(ask: Ask, tmp_path: Path) -> None:
    said: list[str] = []
    question = ask(vary=("model.dropout=0.01..0.5",), budget="4s")
    answer = tune(question, tmp_path / "out", note=said.append)
    assert len(answer.trials) > 1
    assert any(line.startswith(f"plan         {len(answer.trials)} trials to step 10") for line in said)
    count = len(legs(tmp_path / "out"))
    assert told(tune(question, tmp_path / "out")) == told(answer)
    assert len(legs(tmp_path / "out")) == count, "a search that is done trains nothing"


def test_a_time_that_is_too_short_is_found_by_the_first_trial(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--budget 0.01s: is too small for one trial, which takes about"):
        tune(ask(budget="0.01s"), tmp_path / "out")


# --- interruptions ------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from transformer_cli.cli.app import main
from transformer_cli.jobs import halving
halving.TFM, halving.POLL_SECONDS = {pretended!r}, 0.01
sys.exit(main(sys.argv[1:]))
"""


def command(folder: Path, out: Path, budget: str, **environment: str) -> "subprocess.Popen[str]":
    """`tfm tune`, as a process."""
    options = ["--vary", "model.dropout=0.01..0.5", "--vary", "model.heads=2,4", "--budget", budget, "--json"]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(pretended=PRETENDED), "tune", folder / "my.yaml", "--out", out, *options],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow  # in each run of CI the next test interrupts it once, in its own process
@pytest.mark.parametrize(
    ("budget", "spots"),
    [
        ("130steps", ["tune-recorded@6"]),  # the score of a trial at the second rung is stored
        # A trial is drawn and not trained; a score of the first rung is stored; one of the second.
        ("200steps", ["tune-drawn@5", "tune-recorded@3", "tune-recorded@4"]),
    ],
)
def test_killed_again_and_again_it_comes_to_the_same_end(
    budget: str, spots: list[str], ask: Ask, tmp_path: Path
) -> None:
    whole = tune(ask(vary=("model.dropout=0.01..0.5", "model.heads=2,4"), budget=budget), tmp_path / "whole")
    for spot in spots:
        process = command(tmp_path, tmp_path / "killed", budget, TFM_FAILPOINT=spot)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    last = command(tmp_path, tmp_path / "killed", budget)
    out, err = last.communicate()
    assert last.returncode == 0, err
    found = json.loads(out)
    del found["best"]["config"]
    assert {**found, "trials": [{**trial, "seconds": None} for trial in found["trials"]]} == told(whole)
    assert legs(tmp_path / "killed") == legs(tmp_path / "whole"), "in the same order, and nothing twice"
    assert len({before for _, before, _ in legs(tmp_path / "whole")}) == 3
    best = [(tmp_path / name / "best.yaml").read_text() for name in ("killed", "whole")]
    assert best[0] == best[1]
    assert "waiting" not in err


@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.slow), 5])
def test_what_was_trained_and_not_yet_noted_is_not_trained_again(
    number: int, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill leaves it that comes when a trial has ended, at the first or the second rung."""
    question, calls = ask(vary=("model.dropout=0.1,0.2,0.3,0.4",)), []
    real = halving.Search._record

    def record(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        real(*arguments)

    monkeypatch.setattr(halving.Search, "_record", record)
    with pytest.raises(KeyboardInterrupt):
        tune(question, tmp_path / "out")
    answer = tune(question, tmp_path / "out")
    trained = legs(tmp_path / "out")
    assert len(trained) == len({(name, until) for name, _, until in trained}) == 4 + 1 + 1
    assert told(answer) == told(tune(question, tmp_path / "whole"))
    assert trained == legs(tmp_path / "whole")
    assert len({(tmp_path / name / "best.yaml").read_text() for name in ("out", "whole")}) == 1


def test_ctrl_c_ends_the_trials_too(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = [sys.executable, "-IS", "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(halving, "TFM", sleeper)
    started: list[Any] = []
    real = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(real(*arguments, **options))
        return started[-1]

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", start)
    said: list[str] = []
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune(ask(), tmp_path / "out", jobs=2, note=said.append)
    assert said[-1] == "interrupted; what was trained is kept: the same command continues"
    assert [process.poll() for process in started] == [-signal.SIGTERM] * 2


def test_a_process_that_still_trains_is_waited_for(tmp_path: Path) -> None:
    said: list[str] = []
    program = "import sys, time; from transformer_cli.storage.run_folder import RunFolder\n"
    program += "with RunFolder(sys.argv[1]).lock(): print(flush=True); time.sleep(1)"
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        began = time.monotonic()
        halving._wait_for_holder(RunFolder(tmp_path), said.append)
        assert time.monotonic() - began > 0.5
    assert len(said) == 1
    assert str(tmp_path) in said[0]


# --- what came of it ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "beyond"), [("0.1", True), ("100", False)])
def test_the_winner_is_held_against_the_noise_of_the_seed(
    ask: Ask, tmp_path: Path, noise: str, beyond: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISE", noise)
    question = ask(vary=("model.dropout=0.0,0.1,0.2",), budget="1000steps", seeds=3)
    answer = tune(question, tmp_path / "out")
    assert answer.beyond_noise is beyond
    assert ("is better than" in answer.verdict) is beyond
    assert ("cannot be told apart from the noise" in answer.verdict) is not beyond
    extra = [name for name, *_ in legs(tmp_path / "out") if name.startswith("seeds/")]
    assert len(set(extra)) == len(extra) == 6
    assert {name.partition("-")[2] for name in extra} == {"2", "3", "4"}
    assert told(tune(question, tmp_path / "out")) == told(answer)
    assert len([name for name, *_ in legs(tmp_path / "out") if name.startswith("seeds/")]) == 6
    assert any(line.startswith("noise") for line in tuning.summary(answer)) is beyond


def test_the_interval_is_students() -> None:
    """By the book: two samples of four, t(6) = 2.447."""
    difference, reach = tuning.spread([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])
    assert difference == 2.5
    assert reach == pytest.approx(2.447 * ((5 / 3 + 20 / 3) / 4) ** 0.5, rel=1e-3)
    difference, reach = tuning.spread([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0])
    assert difference == 1.5
    assert reach == pytest.approx(2.571 * ((5 + 8) / 5 * (1 / 4 + 1 / 3)) ** 0.5, rel=1e-3), "where a run failed, t(5)"


def test_runs_with_other_seeds_that_failed_are_said_to_have(ask: Ask, tmp_path: Path) -> None:
    searched = halving.Search(space(ask, DROPOUTS), Plan((90,), 3, seeds=3), parse_budget("9steps"), tmp_path, None)  # type: ignore[arg-type]
    searched.study = study.Study(None, "", searched.space, True)
    *_, said = tuning._judge([TRIAL, replace(TRIAL, number=1, scores={9: 0.5})], searched, "bleu")
    assert "their runs with other seeds failed" in said
    assert "--seeds 3" not in said


def test_other_seeds_decide_and_not_the_first(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner-up wins where its other runs are better."""
    asked = ask(vary=("model.dropout=0.1,0.2",), budget="700steps", seeds=2)
    answer: list[study.Trial] = []
    real = tuning._judge

    def judge(ranked: Any, *rest: Any) -> Any:
        lucky, other = (replace(trial, seeds=seeds) for trial, seeds in zip(ranked, SEEDS, strict=True))
        answer.append(other)
        return real([lucky, other], *rest)

    SEEDS = [{2: 1.0, 3: 1.1}, {2: 2.0, 3: 2.1}]
    monkeypatch.setattr(tuning, "_judge", judge)
    assert tune(asked, tmp_path / "out").best == answer[0]


def test_what_mattered_most_is_the_key_that_did(ask: Ask, tmp_path: Path) -> None:
    tried = space(ask, "model.dropout=0.0..0.5", "training.label_smoothing=0.0..0.3")
    with study.open_study(f"sqlite:///{tmp_path}/study.db", "mine", "here", tried, True) as kept:
        for number in range(8):
            values = {"model.dropout": number / 16, "training.label_smoothing": number * 3 % 8 / 30}
            kept.report(kept.add(values), 10, pretended_tfm.score({"model.dropout": str(number / 16)}, 10), 1.0)
            assert (kept.importances(10) == {}) is (number < 5)
        found = kept.importances(10)
        assert kept.importances(30) == {}
    assert list(found) == ["model.dropout", "training.label_smoothing"]
    assert sum(found.values()) == pytest.approx(1)
    answer = Answer("bleu", [], replace(TRIAL, values={"a": 1}), tmp_path, found, 10, None, "")
    assert [*tuning.summary(answer)][1].startswith("mattered     model.dropout ")


TRIAL = study.Trial(0, "", {"model.dropout": "0.2"}, "finished", {9: 1.0}, 1, {}, None)


def test_one_trial_has_nothing_to_be_compared_with(ask: Ask, tmp_path: Path) -> None:
    answer = tune(ask(budget="90steps"), tmp_path / "out")
    assert (answer.beyond_noise, len(answer.trials)) == (None, 1)
    assert "nothing to compare" in answer.verdict


def test_a_preset_stays_one_in_the_best_config_where_it_means_the_same(ask: Ask, tmp_path: Path) -> None:
    tree = ask().config.model_dump(mode="json", exclude_unset=True)
    tree["model"] = {"preset": "tiny"}
    del tree["training"], tree["vocabulary"]
    config = config_of_tree(tree, "my.yaml")
    base, *_ = tuning._checked(Question(config, ("model.dropout=0.1,0.2",), "20000steps"))
    (tmp_path / "best.yaml").write_text(tuning.best_config(config, base, TRIAL, "bleu"))
    best = load_config(tmp_path / "best.yaml")
    assert (best.model.preset, best.model.dropout) == ("tiny", 0.2)
    words = replace(TRIAL, values={"vocabulary.tokenizer": '"whitespace"'})  # for which the preset has no size
    (tmp_path / "best.yaml").write_text(tuning.best_config(config, base, words, "bleu"))
    best = load_config(tmp_path / "best.yaml")
    assert (best.model.preset, best.vocabulary.tokenizer, best.vocabulary.size) == (None, "whitespace", 2000)


# --- machines that share a study ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_searches_share_a_study_and_wait_for_each_other(ask: Ask, tmp_path: Path) -> None:
    options = ["--vary", "model.dropout=0.01..0.5", "--budget", "300steps", "--json"]
    options += ["--storage", f"sqlite:///{tmp_path}/shared.db"]
    program = PROGRAM.format(pretended=PRETENDED).replace("0.01\n", "0.01\nhalving.WAIT_SECONDS = 0.05\n")
    processes, said = [], []
    both = tmp_path / "both"  # until it is there, no trial ends: one search might have trained them all
    for name in ("one", "two"):
        places = [f"{tmp_path}/my.yaml", "--out", f"{tmp_path}/{name}"]
        arguments = [sys.executable, "-c", program, "tune", *places, *options]
        environment = {**os.environ, "TRIALS_WAIT_FOR": str(both)}
        process = subprocess.Popen(
            arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        processes.append(process)
        assert process.stderr is not None
        said.append(process.stderr.readline())  # the study is there
    while not all(list((tmp_path / name / "trials").glob("*")) for name in ("one", "two")):
        assert [process.poll() for process in processes] == [None, None], said
        time.sleep(0.01)
    both.touch()
    ends = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], (said, ends)
    found = [json.loads(out) for out, _ in ends]
    numbers = [sorted(trial["trial"] for trial in answer["trials"]) for answer in found]
    assert numbers[0] == numbers[1]
    trained = [{name for name, *_ in legs(tmp_path / place)} for place in ("one", "two")]
    assert len(trained[0] | trained[1]) == len(numbers[0])
    assert not trained[0] & trained[1]
    assert all(trained)
    assert found[0]["best"]["trial"] == found[1]["best"]["trial"]


def test_a_password_is_not_kept_or_shown(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    question = ask(storage="postgresql://me:secret@nowhere.invalid/x")
    with pytest.raises(UserError, match="cannot be opened") as refused:
        tune(question, tmp_path / "out")
    assert "secret" not in str(refused.value)
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(tuning, "open_storage", lambda _: SimpleNamespace(remove_session=lambda: None))  # gone since
    with pytest.raises(UserError, match="cannot be opened"):
        tune(question, tmp_path / "out")
    assert "secret" not in (tmp_path / "out" / "tune.json").read_text()


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED = {
    "model.dropout": "write it as KEY=",
    "model.dropout=": "write it as KEY=",
    "model.dropout=0.1": "names one value",
    "model.dropout=0.1,0.1": "names one value",
    "model.dropout=0.1,2.0": "model.dropout: should be less than or equal to 0.9, got 2.0",
    "model.dropout=0.5..0.95": "model.dropout: should be less than or equal to 0.9, got 0.95",
    "model.dropout=0.3..0.1": "is empty",
    "model.dropout=0.1..1e999": "is empty",
    "model.dropout=[0.1": "is not valid YAML",
    "model.dorpout=0.1,0.2": "did you mean model.dropout",
    "model=1,2": "is a section",
    "nonsense=1,2": "nonsense",
    "model.heads=3,5": "does not divide",
    "model.heads=2..2.5": "valid integer",
    "training.seed=1,2": "cannot vary: it is noise",
    "training.max_steps=1,2": "cannot vary: it decides how long",
    "training.best_metric=bleu,chrf": "cannot vary: it decides how trials are judged",
    "training.init_from=a,b": "cannot vary: it names a file",
    "data.max_length=10,20": "cannot vary: trials that learn from",
    "decoding.beam_size=1,5": "cannot vary: it can be chosen",
    "model.preset=tiny,small": "cannot vary: a preset",
    "training.peak_learning_rate=0.1,0.2": "the noam schedule has none",
}


@pytest.mark.parametrize(("setting", "message"), REFUSED.items())
def test_what_cannot_vary_is_refused_before_anything_is_written(
    setting: str, message: str, ask: Ask, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        tune(ask(vary=(setting,)), tmp_path / "out")
    assert message in str(refused.value)
    assert str(refused.value).startswith("--vary ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vary": ()}, "nothing varies"),
        ({"vary": (DROPOUTS, "model.dropout=0.1,0.5")}, "is given twice"),
        ({"budget": "89steps"}, "too small for one trial, which takes 90 steps"),
        ({"budget": "400steps", "seeds": 2}, "takes 450 steps (training.max_steps = 90, and --seeds)"),
        ({"seeds": 1}, "2 to 10"),
        ({"sampler": "best"}, "--sampler best: unknown"),
        ({"sampler": "grid", "vary": ("model.dropout=0.1..0.2",)}, "--sampler grid: needs"),
        ({"budget": "2h", "storage": "sqlite:///x.db"}, "give it in steps"),
    ],
)
def test_a_search_that_cannot_be_is_refused(changes: dict[str, Any], message: str, ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        tune(ask(**changes), tmp_path / "out")
    assert message in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_losses_of_different_vocabularies_are_not_compared(ask: Ask) -> None:
    config = ask().config
    by_loss = config.model_copy(update={"training": config.training.model_copy(update={"best_metric": "loss"})})
    with pytest.raises(UserError, match="losses of different vocabularies"):
        parse_dimension("vocabulary.min_freq=1,2", by_loss)
    with pytest.raises(UserError, match="losses of different vocabularies"):
        parse_dimension("training.noise=null,{capitals: 1.0}", by_loss)


@pytest.mark.medium
def test_a_trial_has_the_vocabulary_that_training_with_its_values_builds(ask: Ask, tmp_path: Path) -> None:
    noise = "training.noise=null,{capitals: 1.0}"
    found = told(tune(ask(vary=(noise, "model.dropout=0.1,0.2"), sampler="grid", budget="360steps"), tmp_path / "out"))
    in_capitals = {
        (trial["values"]["training.noise"] is not None, "BALAN" in vocabulary.read_text())
        for trial in found["trials"]
        for vocabulary in [tmp_path / "out" / "trials" / f"{trial['trial']:03}" / "vocab" / "shared.json"]
    }
    assert in_capitals == {(False, False), (True, True)}


def test_another_question_in_the_same_folder_is_refused_by_name(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tune(ask(budget="90steps"), tmp_path / "out")
    other = ask().config.model_copy(update={"model": ask().config.model.model_copy(update={"d_ff": 32})})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"budget": "91steps"}, "--budget 90steps, now it is 91steps"),
        ({"vary": ("model.dropout=0.1,0.2",)}, f"--vary {DROPOUTS}, now it is model.dropout=0.1,0.2"),
        ({"config": other}, "model.d_ff 2048, now it is 32"),
        ({"sampler": "random"}, "--sampler tpe, now it is random"),
        ({"min_steps": 30}, "--min-steps not given, now it is 30"),
        ({"storage": "sqlite:///x.db"}, "--storage not given, now it is sqlite:///x.db"),
    ]
    for changes, named in cases:
        with pytest.raises(UserError) as refused:
            tune(ask(**{"budget": "90steps", **changes}), tmp_path / "out")
        assert named in str(refused.value)


@pytest.mark.medium
def test_a_folder_of_something_else_is_left_alone(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear")
    for place in (tmp_path / "other", tmp_path / "my.yaml"):
        with pytest.raises(UserError, match="choose another"):
            tune(ask(), place)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter"]
    (tmp_path / "held").mkdir()
    with RunFolder(tmp_path / "held").lock():
        arguments = ["tune", f"{tmp_path}/my.yaml", "--out", f"{tmp_path}/held", "--vary", DROPOUTS]
        program = [sys.executable, "-c", PROGRAM.format(pretended=PRETENDED), *arguments, "--budget", "90steps"]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "another tfm is" in done.stderr


def test_without_optuna_the_extra_is_named(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'transformer-cli\[tune\]'"):
        tune(ask(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- drawing ------------------------------------------------------------------------------------------------------


def space(ask: Ask, *given: str) -> Space:
    config = ask().config
    return Space(config, tuple(parse_dimension(setting, config) for setting in given))


def test_ranges_are_linear_or_logarithmic_whole_or_not(ask: Ask) -> None:
    said = {
        "training.factor=0.1..1.0": "training.factor: 0.1 to 1 (logarithmic scale)",
        "training.factor=5e-1..3": "training.factor: 0.5 to 3 (linear scale)",
        "model.dropout=0..0.5": "model.dropout: 0 to 0.5 (linear scale)",
        "training.clip_norm=1..5": "training.clip_norm: 1 to 5 (linear scale)",
        "training.warmup_steps=100..1000": "training.warmup_steps: 100 to 1000 (logarithmic scale, whole numbers)",
        "model.encoder_layers=1..4": "model.encoder_layers: 1 to 4 (linear scale, whole numbers)",
        "model.activation=relu, gelu": 'model.activation: "relu", "gelu"',
        "training.betas=[0.9,0.98],[0.9,0.999]": "training.betas: [0.9, 0.98], [0.9, 0.999]",
        "training.clip_norm=null,1.0": "training.clip_norm: null, 1.0",
    }
    for setting, words in said.items():
        assert str(parse_dimension(setting, ask().config)) == words


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_draw_follows_from_the_seed_and_the_trials_before_it(sampler: str, ask: Ask) -> None:
    ranges = [] if sampler == "grid" else ["training.factor=0.1..1.0", "training.warmup_steps=10..40"]
    tried = space(ask, "model.dropout=0.1,0.2,0.3,0.4", "model.heads=2,4,8,16", *ranges)
    drawn: list[dict[str, Any]] = []
    scored: list[tuple[dict[str, Any], float]] = []
    for number in range(13):
        once, again = (tried.draw(sampler, number, drawn, scored, True) for _ in range(2))
        assert once is not None
        assert once == again
        assert once not in drawn
        assert tried.fits(once)
        drawn.append(once)
        scored.append((once, float(number)))
    assert tried.draw("random", 99, drawn, [], True) != tried.draw("random", 98, drawn, [], True)
    values = settings(drawn[-1])
    assert all("=" in value and '"' not in value for value in values)


def test_what_does_not_fit_together_is_not_drawn(ask: Ask) -> None:
    tried = space(ask, "model.d_model=16,18,30", "model.heads=2,3,5")
    tried.check()
    assert tried.combinations is not None
    assert len(tried.combinations) == 6
    drawn: list[dict[str, Any]] = []
    for number in range(6):
        values = tried.draw("random", number, drawn, [], True)
        assert values is not None
        drawn.append(values)
    assert all(tried.fits(values) for values in drawn)
    assert tried.draw("random", 6, drawn, [], True) is None
    assert tried.draw("grid", 6, drawn, [], True) is None


def test_where_nothing_fits_it_says_so(ask: Ask) -> None:
    tried = space(ask, "model.d_model=17..19", "training.factor=0.1..0.9")
    with pytest.raises(UserError, match="valid; name values that fit together"):
        replace_fits(tried).draw("random", 0, [], [], True)


def replace_fits(tried: Space) -> Space:
    class Unfit(Space):
        def fits(self, values: Any) -> bool:
            return False

    return Unfit(tried.config, tried.dimensions)
