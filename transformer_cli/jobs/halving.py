"""Successive halving, by which `tuning` searches. No torch: every trial trains in a process of its own.

Many trials train a little, the best of them three times as long, the best of these again (Jamieson and Talwalkar 2016;
Li et al. 2018). A trial is a run folder that pauses at a rung and continues from there. What was drawn and scored is
in an Optuna study; all else follows from that, so that an interrupted search continues by the same command.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.config import Config
from transformer_cli.decoding.devices import device_of, usable_cores
from transformer_cli.errors import UserError
from transformer_cli.jobs.plan import Budget, Plan
from transformer_cli.jobs.search_space import Space, settings, with_values
from transformer_cli.jobs.study import Study, Trial
from transformer_cli.storage.publishing import MANIFEST, is_complete, reach
from transformer_cli.storage.run_folder import HELD_OUT, VOCAB, RunFolder
from transformer_cli.training.start import build_vocabulary

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster, RemoteProcess

POLL_SECONDS = 0.2
WAIT_SECONDS = 5.0  # between two looks at what other machines do
NOTE_SECONDS = 60.0
FAILING = 3  # trials, after which a search in time that has timed none yet gives up
TFM = [sys.executable, "-m", "transformer_cli"]
ENDED = (130, 143, -signal.SIGINT, -signal.SIGTERM)  # exit codes of a process that somebody ended

Note = Callable[[str], None]


@dataclass(frozen=True)
class Leg:
    """What one process trains: a run, until some step."""

    trial: Trial
    folder: Path
    until: int
    seed: int | None = None  # another one than the config's

    @property
    def name(self) -> str:
        """Return what the user reads of it."""
        return f"trial {self.trial.number}" + ("" if self.seed is None else f", seed {self.seed}")


# --- the search ---------------------------------------------------------------------------------------------------


@dataclass
class Search:
    """A search: what trials it has, trains, and goes on with."""

    space: Space
    plan: Plan
    budget: Budget
    folder: Path  # held by this process
    study: Study
    sampler: str = "tpe"
    jobs: "int | Cluster" = 1
    device: str = "auto"
    note: Note = lambda _: None

    def run(self) -> None:
        """Train until the plan is done. Raises `UserError` where no trial has a score, and `OSError`."""
        try:
            if self.budget.steps is not None:
                self._say_plan(self._wanted([], 0))
            self._train(self._first_rung())
            self._wait_for_others(self.plan.rungs[0], self.study.trials())
            if not any(trial.scores for trial in self.study.trials()):
                failures = [trial.failure for trial in self.study.trials() if trial.failure]
                raise UserError(f"every trial failed: {(failures or ['no score'])[0]}")
            for number in range(1, len(self.plan.rungs)):
                rung, chosen = self.plan.rungs[number], self._choose(number)
                own = [trial for trial in chosen if trial.place == self.study.place and trial.state == "running"]
                self._train(iter([self._leg(trial, rung) for trial in own if rung not in trial.scores]))
                self._wait_for_others(rung, chosen)
            for trial in self.study.own():
                if trial.state == "running":
                    self.study.end(trial, trial.scores[self.plan.rungs[-1]])
            self._train(self._other_seeds())
        except (KeyboardInterrupt, SystemExit):
            self.note("interrupted; what was trained is kept: the same command continues")
            raise

    def ranked(self) -> list[Trial]:
        """Return the trials with a score: those that came furthest first, of these the best first."""
        steps = sorted({trial.step for trial in self.study.trials()} - {0}, reverse=True)
        return [trial for step in steps for trial in self.best_at(step) if trial.step == step]

    def best_at(self, rung: int) -> list[Trial]:
        """Return the trials with a score at a rung, the best first."""
        sign = 1 if self.study.maximize else -1
        there = [trial for trial in self.study.trials() if rung in trial.scores]
        return sorted(there, key=lambda trial: (-sign * trial.scores[rung], trial.number))

    def _first_rung(self) -> Iterator[Leg | None]:
        """Yield the trials of the first rung, each drawn as soon as it can be trained; None: not yet."""
        first = self.plan.rungs[0]
        for trial in self.study.own():
            if trial.state == "running" and first not in trial.scores:
                yield self._leg(trial, first)
        while True:
            every, own = self.study.trials(), self.study.own()
            # What a draw knows must not depend on which of several processes was the fastest.
            known = own[: max(0, len(own) - self.at_once + 1)]
            if any(trial.state == "running" and first not in trial.scores for trial in known):
                yield None
                continue
            values = None
            if len(every) < self._wanted(known, len(own)):
                unknown = {trial.number for trial in own[len(known) :]}
                scored = [
                    (trial.values, trial.scores[first])
                    for trial in every
                    if first in trial.scores and trial.number not in unknown
                ]
                seen = [trial.values for trial in every]
                values = self.space.draw(self.sampler, len(every), seen, scored, self.study.maximize)
            if values is None:
                break
            trial = self.study.add(values)
            reach("tune-drawn")
            yield self._leg(trial, first)
        if self.study.wanted is None:
            self.study.want(len(every))
            if self.budget.steps is None:
                self._say_plan(len(every))

    def _wanted(self, known: list[Trial], drawn: int) -> int:
        """Return how many trials there shall be: by the budget in steps, or as far as those that were timed say."""
        if self.study.wanted is not None:
            return self.study.wanted
        if self.budget.steps is not None:
            wanted = self.plan.affordable(self.budget.steps)
        else:
            assert self.budget.seconds is not None
            timed = [trial.seconds for trial in known if trial.seconds and self.plan.rungs[0] in trial.scores]
            if not timed:
                return drawn + (drawn < self.at_once + FAILING)  # some may fail
            speed = self.plan.rungs[0] * len(timed) / sum(timed)  # steps a second
            wanted = self.plan.affordable(self.budget.seconds * speed, self.at_once)
            if wanted < 1:
                whole = self.plan.cost(1, self.at_once) / speed
                raise UserError(
                    f"--budget {self.budget.text}: is too small for one trial, which takes about {whole:,.0f} seconds; "
                    "give more, and another --out"
                )
        return min([wanted, *([] if self.space.combinations is None else [len(self.space.combinations)])])

    def _say_plan(self, trials: int) -> None:
        parts = [
            f"{size:,} {'trials' if size > 1 else 'trial'} to step {rung:,}"
            for size, rung in zip(self.plan.sizes(trials), self.plan.rungs, strict=True)
        ]
        seeds = f", the best two with {self.plan.seeds} other seeds" * (self.plan.seeds > 0)
        self.note(f"plan         {', '.join(parts)}{seeds}: {self.plan.cost(trials):,} steps")

    def _choose(self, number: int) -> list[Trial]:
        """Return the trials that continue to a rung, the best of the one before; the others end."""
        assert self.study.wanted is not None
        size = self.plan.sizes(self.study.wanted)[number]
        chosen = self.best_at(self.plan.rungs[number - 1])[:size]
        going = {trial.number for trial in chosen}
        for trial in self.study.own():
            if trial.state == "running" and trial.number not in going:
                self.study.end(trial)
        return chosen

    def _other_seeds(self) -> Iterator[Leg]:
        """Yield whole runs with other seeds, of the best two trials."""
        for trial in self.ranked()[:2]:
            for seed in self.other_seeds():
                if seed not in trial.seeds and trial.place == self.study.place:
                    folder = self.folder / "seeds" / f"{trial.number:03}-{seed}"
                    yield Leg(trial, folder, self.plan.rungs[-1], seed)

    def other_seeds(self) -> range:
        """Return the seeds with which the best two are trained once more."""
        seed = self.space.config.training.seed
        return range(seed + 1, seed + 1 + self.plan.seeds)

    def _leg(self, trial: Trial, until: int) -> Leg:
        return Leg(trial, self.folder / "trials" / f"{trial.number:03}", until)

    def _wait_for_others(self, rung: int, trials: list[Trial]) -> None:
        """Wait for trials that other machines train to a rung."""
        names, noted = {trial.number for trial in trials} - {trial.number for trial in self.study.own()}, 0.0
        while waiting := [
            trial
            for trial in self.study.trials()
            if trial.number in names and trial.state == "running" and rung not in trial.scores
        ]:
            if time.monotonic() - noted > NOTE_SECONDS:
                noted = time.monotonic()
                self.note(f"waiting for {len(waiting)} trials to step {rung:,}, which other machines train")
            time.sleep(WAIT_SECONDS)

    @property
    def at_once(self) -> int:
        """How many trials train at once."""
        return self.jobs if isinstance(self.jobs, int) else self.jobs.workers

    # --- processes ------------------------------------------------------------------------------------------------

    def _train(self, legs: Iterator[Leg | None]) -> None:
        """Train legs, several at once, and record how they ended. None among them: wait until another one has."""
        running: dict[int, tuple[Leg, subprocess.Popen[bytes] | RemoteProcess, float]] = {}
        more = True
        try:
            while more or running:
                while more and len(running) < self.at_once:
                    leg = next(legs, self)
                    if leg is self:
                        more = False
                    if not isinstance(leg, Leg):
                        break
                    if _reached(leg):
                        self._record(leg, 0, 0.0)
                        continue
                    slot = min({*range(self.at_once)} - running.keys())
                    try:
                        running[slot] = leg, self._start(leg, slot), time.monotonic()
                    except UserError as error:  # a vocabulary that cannot be built
                        self._fail(leg, str(error))
                for slot, (leg, process, began) in [*running.items()]:
                    if process.poll() is not None:
                        del running[slot]
                        self._record(leg, process.returncode, time.monotonic() - began)
                if running:
                    time.sleep(POLL_SECONDS)
        finally:
            for _, process, _ in running.values():
                process.terminate()  # it saves its state
            for _, process, _ in running.values():
                process.wait()

    def _start(self, leg: Leg, slot: int) -> "subprocess.Popen[bytes] | RemoteProcess":
        run, config = RunFolder(leg.folder), with_values(self.space.config, leg.trial.values)
        _wait_for_holder(run, self.note)
        run.create()
        self._give_vocabulary(config, run)
        given = settings(leg.trial.values) + ([] if leg.seed is None else [f"training.seed={leg.seed}"])
        if config.training.average_last is None:
            given.append("training.keep_last=1")  # there are many trials
        words = [str(self.folder / "base.yaml"), "--quiet", "--until", str(leg.until)]
        words += [word for setting in given for word in ("--set", setting)]
        if not isinstance(self.jobs, int):
            from transformer_cli.cluster import RemoteProcess

            device = "cuda" if self.jobs.gpu else "cpu"
            return RemoteProcess(self.jobs, partial(_start_training, leg.folder, [*words, "--device", device]))
        threads = str(max(1, usable_cores() // self.jobs)) if self.jobs > 1 else None
        return _start_training(leg.folder, [*words, "--device", device_of(self.device, slot)], threads)

    def _give_vocabulary(self, config: Config, run: RunFolder) -> None:
        """Build the vocabulary of a trial, or copy it from one that has the same."""
        if config.training.takes_vocabulary or run.vocab_path.exists():
            return
        parts = config.vocabulary, config.training.noise  # what a trial may vary of what a vocabulary depends on
        wanted = json.dumps([part and part.model_dump(mode="json") for part in parts], sort_keys=True)
        built = RunFolder(self.folder / "vocabularies" / hashlib.sha256(wanted.encode()).hexdigest()[:12])
        if not is_complete(built.vocab_path):
            built.path.mkdir(parents=True, exist_ok=True)
            build_vocabulary(config, built.path)
        for name in (HELD_OUT, VOCAB):
            if is_complete(built.path / name):
                source = built.path / name
                run.publish(name, lambda folder, source=source: _copy(source, folder))  # type: ignore[misc]

    def _record(self, leg: Leg, code: int, seconds: float) -> None:
        """Store what a leg reached. Raises `OSError` where its end was not its own fault."""
        metric = self.space.config.training.best_metric
        said = _last_line(leg.folder.with_name(f"{leg.folder.name}.log"))
        score = best_score(leg.folder, metric, leg.until) if code == 0 else None
        if code in ENDED:
            raise ChildProcessError(errno.ECHILD, f"{leg.name}: its process was ended; the same command continues")
        if code not in (0, 2, -signal.SIGKILL) and "out of memory" not in said:
            raise ChildProcessError(
                errno.ECHILD, f"{leg.name}: {said or f'exited with {code}'}; the same command continues"
            )
        if score is not None:
            if leg.seed is None:
                self.study.report(leg.trial, leg.until, score, seconds)
            else:
                self.study.report_seed(leg.trial, leg.seed, score)
            values = ", ".join(settings(leg.trial.values))
            self.note(f"{leg.name:<12} step {leg.until:,}: {metric} {score:.2f} ({values})")
            reach("tune-recorded")
            return
        why = said or "no validation was finite"
        if code == -signal.SIGKILL:
            why = "was killed (by the system, out of memory?)"
        self._fail(leg, why)

    def _fail(self, leg: Leg, why: str) -> None:
        self.note(f"{leg.name:<12} failed before step {leg.until:,}: {why}")
        if leg.seed is None:
            self.study.end(leg.trial, why=why)


def _start_training(folder: Path, words: list[str], threads: str | None = None) -> "subprocess.Popen[bytes]":
    """Start a process that trains in a folder, beside which is its log. Waits for one that does so still, whose worker
    on a cluster was lost.
    """
    _wait_for_holder(RunFolder(folder), lambda _: None)
    with open(folder.with_name(f"{folder.name}.log"), "ab") as log:
        return subprocess.Popen(
            [*TFM, "train", *words, "--out", str(folder)],
            env={**({"OMP_NUM_THREADS": threads} if threads else {}), **os.environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for this process, which ends the others
        )


def _copy(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST))


def _wait_for_holder(run: RunFolder, note: Note) -> None:
    """Wait for a process that trains there still, for a command that was killed."""
    noted = False
    while run.path.is_dir():
        try:
            with run.lock():
                return
        except UserError:
            if not noted:
                note(f"waiting for a process that still trains in {run.path}, of a command that was killed")
            noted = True
            time.sleep(POLL_SECONDS)


def _reached(leg: Leg) -> bool:
    """Return whether a run has been trained so far already, and saved."""
    if not leg.folder.is_dir():
        return False
    index = RunFolder(leg.folder).index()
    validated = any(step == leg.until for step, _ in _validations(leg.folder))
    return index.finished is not None or ((index.last or 0) >= leg.until and validated)


def _validations(run: Path) -> Iterator[tuple[int, dict[str, float | None]]]:
    """Yield each validation of a run, by its step."""
    file = run / "metrics.jsonl"
    for line in file.read_bytes().splitlines() if file.is_file() else []:
        with contextlib.suppress(ValueError):  # a kill may have left half of one, which comes again
            event = json.loads(line)
            if "valid_loss" in event:
                yield event["step"], event


def best_score(run: Path, metric: str, until: int) -> float | None:
    """Return the best validation of a run up to a step: what its best checkpoint has; None: there is none."""
    found = [event[f"valid_{metric}"] for step, event in _validations(run) if step <= until]
    scores = [score for score in found if score is not None]
    return (min(scores) if metric == "loss" else max(scores)) if scores else None


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.removeprefix("error: ") for line in reversed(lines) if line.strip()), "")
