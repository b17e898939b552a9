"""The Optuna study in which a search keeps what it drew and what that reached. No torch.

A trial that waits at a rung is running, as Optuna has it; one that stopped there is pruned.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from transformer_cli.errors import UserError
from transformer_cli.jobs.search_space import Space, Values

STATES = {"RUNNING": "running", "PRUNED": "stopped", "COMPLETE": "finished", "FAIL": "failed", "WAITING": "running"}


@dataclass(frozen=True)
class Trial:
    """One choice of values, and what it has reached."""

    number: int
    place: str  # which search trains it
    values: Values
    state: str  # running, stopped, finished or failed
    scores: dict[int, float]  # by the steps of the rungs
    seconds: float  # spent in training it
    seeds: dict[int, float]  # the scores of whole runs with other seeds
    failure: str | None  # what went wrong

    @property
    def step(self) -> int:
        """Return the last rung that it has a score of."""
        return max(self.scores, default=0)


def import_optuna() -> Any:
    """Return Optuna, which says nothing by itself; raises `UserError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UserError("tfm tune needs Optuna, which is not installed; pip install 'transformer-cli[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


class Study:
    """A study, which several searches may share: each adds trials, and changes its own."""

    def __init__(self, study: Any, place: str, space: Space, maximize: bool) -> None:
        self._study, self.place, self.space, self.maximize = study, place, space, maximize

    def trials(self) -> list[Trial]:
        """Return all trials, by number."""
        attributes = self._study.user_attrs
        return [_trial(trial, attributes) for trial in self._study.get_trials(deepcopy=False)]

    def own(self) -> list[Trial]:
        """Return the trials that are trained here."""
        return [trial for trial in self.trials() if trial.place == self.place]

    @property
    def wanted(self) -> int | None:
        """Return how many trials there shall be, once that is known."""
        wanted: int | None = self._study.user_attrs.get("trials")
        return wanted

    def want(self, trials: int) -> None:
        """Settle how many trials there shall be."""
        self._study.set_user_attr("trials", trials)

    def add(self, values: Values) -> Trial:
        """Add a trial with these values, at once or not at all."""
        optuna = import_optuna()
        distributions = {dimension.key: dimension.distribution() for dimension in self.space.dimensions}
        state, place = optuna.trial.TrialState.RUNNING, {"place": self.place}
        self._study.add_trial(
            optuna.create_trial(state=state, params=values, distributions=distributions, user_attrs=place)
        )
        return self.own()[-1]

    def report(self, trial: Trial, step: int, score: float, seconds: float) -> None:
        """Note what a trial has reached at a step, and how many more seconds that took."""
        optuna = self._open(trial)
        optuna.set_user_attr("seconds", trial.seconds + seconds)
        optuna.report(score, step)

    def report_seed(self, trial: Trial, seed: int, score: float) -> None:
        """Note what a whole run with another seed has reached."""
        self._study.set_user_attr(f"trial {trial.number} seed {seed}", score)  # the trial itself has ended

    def end(self, trial: Trial, score: float | None = None, why: str | None = None) -> None:
        """Note that a trial was trained to its end, with this score; that it cannot be trained; or else that it is not
        continued."""
        states = import_optuna().trial.TrialState
        if why is not None:
            self._open(trial).set_user_attr("failure", why[:500])
        state = None if score is not None else states.PRUNED if why is None else states.FAIL
        self._study.tell(trial.number, score, state=state)

    def _open(self, trial: Trial) -> Any:
        found = self._study.get_trials(deepcopy=False)[trial.number]
        return import_optuna().trial.Trial(self._study, found._trial_id)

    def importances(self, rung: int) -> dict[str, float]:
        """Return how much each key mattered for being among the best tenth at a rung (Watanabe et al. 2023), in all 1.

        Empty where too few trials came there to say.
        """
        optuna = import_optuna()
        scored = [(trial.values, trial.scores[rung]) for trial in self.trials() if rung in trial.scores]
        if len(scored) < 6 or len(self.space.dimensions) < 2:
            return {}
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        shares: dict[str, float] = optuna.importance.get_param_importances(
            self.space.study_of(scored, self.maximize), evaluator=evaluator
        )
        return shares

    def agree(self, asked: dict[str, str]) -> dict[str, str]:
        """Return what the study was begun with, `asked` where this begins it."""
        begun: dict[str, str] | None = self._study.user_attrs.get("asked")
        if begun is None:
            self._study.set_user_attr("asked", asked)
        return begun or asked


def _trial(trial: Any, of_study: dict[str, Any]) -> Trial:
    attributes, prefix = trial.user_attrs, f"trial {trial.number} seed "
    seeds = {int(name.removeprefix(prefix)): score for name, score in of_study.items() if name.startswith(prefix)}
    return Trial(
        trial.number,
        attributes.get("place", ""),
        dict(trial.params),
        STATES[trial.state.name],
        dict(trial.intermediate_values),
        attributes.get("seconds", 0.0),
        seeds,
        attributes.get("failure"),
    )


def open_storage(url: str) -> Any:
    """Return a storage of Optuna; raises `UserError` where it cannot be opened."""
    try:
        return import_optuna().storages.get_storage(url)
    except Exception as error:  # of whichever library the storage is accessed by
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"--storage {without_password(url)}: cannot be opened: {reason}") from None


@contextlib.contextmanager
def open_study(url: str, name: str, place: str, space: Space, maximize: bool) -> Iterator[Study]:
    """Open a study in a storage, or begin it there; raises as `open_storage` does."""
    storage = open_storage(url)
    direction = "maximize" if maximize else "minimize"
    study = import_optuna().create_study(storage=storage, study_name=name, direction=direction, load_if_exists=True)
    try:
        yield Study(study, place, space, maximize)
    finally:
        storage.remove_session()


def without_password(url: str) -> str:
    """Return the URL of a storage as it may be shown and kept."""
    return re.sub(r"//([^/@:]*):[^/@]*@", r"//\1:…@", url)
