"""What `tfm tune` does: begins a search for hyper-parameters, or continues it, and says what came of it. No torch."""

import json
import math
import os
import secrets
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.config import Config, config_of_tree, dump_config, parse_config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.config.yaml_file import dump_flow, dump_tree, merge
from transformer_cli.data.size import measure_corpus
from transformer_cli.errors import UserError
from transformer_cli.evaluation.comparing import LEVEL, t_quantile
from transformer_cli.jobs.halving import Note, Search
from transformer_cli.jobs.plan import Budget, Plan, make_plan, parse_budget
from transformer_cli.jobs.search_space import Space, parse_dimension, plain, settings, with_values
from transformer_cli.jobs.study import Study, Trial, import_optuna, open_storage, open_study, without_password
from transformer_cli.storage.holding import clean, hold
from transformer_cli.storage.publishing import atomic_write, read_json
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.start import check_inputs, differences

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster

MARK, BASE, BEST, DATABASE = "tune.json", "base.yaml", "best.yaml", "study.db"
MOST_SEEDS = 10


@dataclass(frozen=True)
class Question:
    """What a search is for: all that decides its end."""

    config: Config  # as the user gave it
    vary: tuple[str, ...]
    budget: str
    sampler: str = "tpe"
    reduction: int = 3
    min_steps: int | None = None
    seeds: int = 0
    storage: str | None = None
    study: str = "tune"


@dataclass(frozen=True)
class Began:
    """What `tune.json` says of a search: its mark on the trials in a study, and what it was begun with."""

    place: str
    asked: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """What came of a search."""

    metric: str
    trials: list[Trial]  # those with a score, the best first; then those that failed
    best: Trial
    best_config: Path
    importances: dict[str, float]  # by key, at the first rung
    first_rung: int
    beyond_noise: bool | None  # None: not measured
    verdict: str


def tune(
    question: Question, folder: Path, *, jobs: "int | Cluster" = 1, device: str = "auto", note: Note = lambda _: None
) -> Answer:
    """Search in a folder, or continue there; return what came of it.

    jobs: how many trials train at once, or where they do: the machines of a cluster, which share the folder. note:
    called with each sentence for the user. Raises `UserError` before anything is trained.
    """
    import_optuna()
    config, budget, plan, space = _checked(question)
    if question.storage:
        open_storage(question.storage).remove_session()
    _check_folder(folder)
    check_inputs(config, RunFolder(folder), begins=True)
    with ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(hold(folder / ".lock", "tuning", "choose another folder with --out"))
        clean(folder, alone=True)
        asked = _asked(question, config)
        storage = {"storage": without_password(question.storage), "study": question.study} if question.storage else {}
        began = _begin(folder, config, {"storage": "", "study": "", **asked, **storage})
        url = question.storage or f"sqlite:///{(folder / DATABASE).absolute()}"
        study = stack.enter_context(
            open_study(url, question.study, began.place, space, config.training.best_metric != "loss")
        )
        _compare(study.agree(asked), asked, f"study {question.study}", "give it another name with --study")
        for dimension in space.dimensions:
            note(f"vary         {dimension}")
        if not isinstance(jobs, int):
            jobs = jobs.requiring([folder / MARK])
        search = Search(space, plan, budget, folder, study, question.sampler, jobs, device, note)
        search.run()
        return _answer(question, search, study)


# --- before anything is written -----------------------------------------------------------------------------------


def _checked(question: Question) -> tuple[Config, Budget, Plan, Space]:
    config, _ = resolve_preset(question.config, partial(measure_corpus, progress=False))
    space = Space(config, tuple(parse_dimension(setting, config) for setting in question.vary))
    space.check()
    if question.sampler not in ("tpe", "random", "grid"):
        raise UserError(f"--sampler {question.sampler[:40]}: unknown; give tpe, random or grid")
    if question.sampler == "grid" and space.combinations is None:
        raise UserError("--sampler grid: needs keys with named values, not too many of them; leave it out for a range")
    plan = make_plan(config, question.reduction, question.min_steps, question.seeds)
    budget = parse_budget(question.budget)
    if question.seeds == 1 or question.seeds > MOST_SEEDS:
        raise UserError(f"--seeds {question.seeds}: a spread is measured with 2 to {MOST_SEEDS} other seeds; 0: none")
    if budget.steps is not None and plan.affordable(budget.steps) < 1:
        raise UserError(
            f"--budget {question.budget}: is too small for one trial, which takes {plan.cost(1):,} steps "
            f"(training.max_steps = {plan.rungs[-1]:,}{', and --seeds' * (question.seeds > 0)})"
        )
    if budget.seconds is not None and question.storage is not None:
        raise UserError("--budget: give it in steps where --storage is given, which several machines may share")
    return config, budget, plan, space


def _check_folder(folder: Path) -> None:
    """Raise `UserError` where something else than a search is in the folder, or it cannot be written to."""
    RunFolder(folder).check_writable()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file; choose a folder with --out")
    names = sorted(name for name in os.listdir(folder) if not name.startswith(".")) if folder.is_dir() else []
    if names and MARK not in names:
        raise UserError(f"{folder}: holds {names[0]}, but no search; choose another folder with --out")


def _asked(question: Question, config: Config) -> dict[str, str]:
    """Return all that decides the end of a search, by the names in which the user gave it."""
    given = {name: getattr(question, name) for name in ("budget", "sampler", "reduction", "min_steps", "seeds")}
    options = {name: "" if value is None else str(value) for name, value in given.items()}
    return {"config": dump_config(config), "vary": " ".join(question.vary), **options}


def _begin(folder: Path, config: Config, asked: dict[str, str]) -> Began:
    """Return how the search in the folder began; where there is none, it begins."""
    if (folder / MARK).is_file():
        began = read_json(folder / MARK, Began)
        _compare(began.asked, asked, str(folder), "choose another folder with --out")
        return began
    began = Began(secrets.token_hex(8), asked)
    atomic_write(folder / BASE, dump_config(config))
    atomic_write(folder / MARK, json.dumps(asdict(began), indent=2) + "\n")
    return began


def _compare(before: dict[str, str], now: dict[str, str], where: str, instead: str) -> None:
    """Raise `UserError` where a search was begun with something else."""
    old, new = (parse_config(asked["config"], where) for asked in (before, now))
    changed = [(key, dump_flow(was), dump_flow(said)) for key, was, said in differences(old, new)]
    changed += [
        (f"--{name.replace('_', '-')}", before.get(name, ""), now[name])
        for name in now
        if name != "config" and before.get(name) != now[name]
    ]
    if changed:
        key, was, said = changed[0]
        raise UserError(
            f"{where}: was begun with {key} {was or 'not given'}, now it is {said or 'not given'}; {instead}"
        )


# --- the answer ---------------------------------------------------------------------------------------------------


def _answer(question: Question, search: Search, study: Study) -> Answer:
    ranked, metric = search.ranked(), search.space.config.training.best_metric
    best, beyond, verdict = _judge(ranked, search, metric)
    path = search.folder / BEST
    atomic_write(path, best_config(question.config, search.space.config, best, metric))
    failed = [trial for trial in study.trials() if not trial.scores]
    first = search.plan.rungs[0]
    return Answer(metric, [*ranked, *failed], best, path, study.importances(first), first, beyond, verdict)


def _judge(ranked: list[Trial], search: Search, metric: str) -> tuple[Trial, bool | None, str]:
    """Return the best trial, whether it is better than the next beyond the noise of the seed, and a sentence on that.

    The runs with other seeds alone decide, for the first ones chose the two, the lucky of many.
    """
    first, count = ranked[0], search.plan.seeds
    if len(ranked) < 2:
        return first, None, "there is one trial with a score, and nothing to compare it with"
    second = ranked[1]
    scores = [[trial.seeds[seed] for seed in search.other_seeds() if seed in trial.seeds] for trial in ranked[:2]]
    if min(map(len, scores)) < 2:
        lead = abs(first.scores[second.step] - second.scores[second.step])
        why = "their runs with other seeds failed" if count else "--seeds 3 measures it, by six more whole runs"
        return (
            first,
            None,
            f"trial {first.number} leads trial {second.number} by {lead:.2f} {metric} at step {second.step:,}, with "
            f"one seed each: how much of that is noise was not measured ({why})",
        )
    sign = 1 if search.study.maximize else -1
    if sign * statistics.mean(scores[1]) > sign * statistics.mean(scores[0]):
        first, second, scores = second, first, scores[::-1]
    lead, reach = spread(*scores)
    beyond, runs = lead > reach, " and ".join(dict.fromkeys(str(len(one)) for one in scores))
    said = f"{lead:.2f} {metric} (95 %: {lead - reach:.2f} to {lead + reach:.2f}) over {runs} other seeds"
    if beyond:
        return first, True, f"trial {first.number} is better than trial {second.number}, by {said}"
    verdict = f"trials {first.number} and {second.number} cannot be told apart from the noise of the seed: {said}"
    return first, False, verdict


def spread(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Return the difference of two means, and how far its 95 % interval reaches to each side (Student's t).

    Both are of runs that differ in their seed alone; the variance of the two is taken to be the same.
    """
    degrees = len(ours) + len(theirs) - 2
    squares = statistics.variance(ours) * (len(ours) - 1) + statistics.variance(theirs) * (len(theirs) - 1)
    error = math.sqrt(squares / degrees * (1 / len(ours) + 1 / len(theirs)))
    return abs(statistics.mean(ours) - statistics.mean(theirs)), t_quantile(1 - LEVEL / 2, degrees) * error


def best_config(asked: Config, base: Config, trial: Trial, metric: str) -> str:
    """Return the config of a trial as YAML: what the user's config sets, with the values of the trial.

    Where a preset would make something else of that, all keys are written out.
    """
    title = f"# {metric} {trial.scores[trial.step]:.2f} at step {trial.step:,}: trial {trial.number} of tfm tune, with "
    title += f"{' '.join(settings(trial.values))}\n"
    resolved = with_values(base, trial.values)
    tree = asked.model_dump(mode="json", exclude_unset=True)
    for setting in settings(trial.values):
        merge(tree, setting)
    try:
        again, _ = resolve_preset(config_of_tree(tree, "best"), partial(measure_corpus, progress=False))
    except UserError:
        again = None
    return title + (dump_tree(tree) if again == resolved else dump_config(resolved))


def rows(answer: Answer) -> Iterator[list[str]]:
    """Yield the table of trials: a header, then a row each, the best first."""
    keys = [*answer.best.values]
    yield ["trial", *keys, "steps", answer.metric, "state"]
    for trial in answer.trials:
        score = f"{trial.scores[trial.step]:.2f}" if trial.scores else "-"
        state = "best" if trial == answer.best else trial.state
        shown = [str(plain(trial.values[key])) for key in keys]
        yield [str(trial.number), *shown, f"{trial.step:,}", score, state]


def summary(answer: Answer) -> Iterator[str]:
    """Yield sentences on the best trial, what mattered, and the noise where the best one is beyond it."""
    values = ", ".join(settings(answer.best.values))
    yield f"best         trial {answer.best.number} ({values}): {answer.best_config}"
    if answer.importances:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in answer.importances.items())
        yield f"mattered     {shares} (for being among the best at step {answer.first_rung:,}; a rough measure)"
    if answer.beyond_noise:
        yield f"noise        {answer.verdict}"


def as_json(answer: Answer) -> str:
    """Return the answer as a JSON object."""
    trials = [
        {
            "trial": trial.number,
            "values": {key: plain(value) for key, value in trial.values.items()},
            "scores": {str(step): score for step, score in sorted(trial.scores.items())},
            "seeds": {str(seed): score for seed, score in sorted(trial.seeds.items())},
            "state": trial.state,
            "seconds": round(trial.seconds, 1),
            "failure": trial.failure,
        }
        for trial in answer.trials
    ]
    best = {"trial": answer.best.number, "config": str(answer.best_config)}
    noise = {"beyond_noise": answer.beyond_noise, "verdict": answer.verdict}
    told = {"metric": answer.metric, "best": best, **noise, "importance": answer.importances, "trials": trials}
    return json.dumps(told, ensure_ascii=False, indent=2)
