"""The files of a run: find, name, verify, publish, prune and index them, so that a kill at any moment loses nothing.

Training writes through it, every command that takes a MODEL reads through it. It knows no tensors and no vocabularies.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from transformer_cli.config import dump_config, load_config
from transformer_cli.errors import UserError
from transformer_cli.storage.holding import Lock, clean, hold, not_writable
from transformer_cli.storage.metrics import METRICS, MetricsFile
from transformer_cli.storage.publishing import (
    MANIFEST,
    REPLACED,
    atomic_write,
    is_complete,
    is_ours,
    locate,
    manifest_names,
    publish,
    read_json,
    remove,
    sync_folder,
    verify,
)

CONFIG = "config.yaml"
WEIGHTS = "model.safetensors"
EXPORTED = "tfm.json"  # what `tfm export --format ctranslate2` leaves in the place of WEIGHTS, beside its model.bin
INDEX = "checkpoints.json"
STATE_VALUES = "training.json"  # of a checkpoint: how far training had come
LOCK = ".lock"
VOCAB = "vocab"
HELD_OUT = "held-out"
STEP = re.compile(r"step-[0-9]{8,}")
CHECKPOINT = re.compile(r"(step|average)-[0-9]{8,}")

Step = Annotated[int, Field(ge=0, strict=True)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]


@dataclass(frozen=True)
class CheckpointIndex:
    """What `checkpoints.json` says: the steps that have a folder, which are best (the best one first), which is last.

    `average` names the folder of averaged weights that are better than every step's; `finished` says why training
    ended, None while it may continue.
    """

    steps: list[Step] = field(default_factory=list)
    best: list[Step] = field(default_factory=list)
    last: Step | None = None
    average: Name | None = None
    average_score: float | None = None  # of training.best_metric, turned so that higher is better
    finished: str | None = None

    def names(self) -> set[str]:
        """Return the folders that must be there and complete."""
        return {step_name(step) for step in self.steps} | ({self.average} if self.average else set())


def step_name(step: int) -> str:
    """Return `step-00012000`, the folder's name."""
    return f"step-{step:08d}"


def average_name(step: int) -> str:
    """Return `average-00012000`: the mean of checkpoints up to this step."""
    return f"average-{step:08d}"


class RunFolder:
    """One run's folder: config.yaml, held-out/, vocab/, step-…/, checkpoints.json, metrics.jsonl, tensorboard/."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / CONFIG
        self.vocab_path = self.path / VOCAB
        self.held_out_path = self.path / HELD_OUT  # validation pairs, where data.valid is not set
        self.metrics = MetricsFile(self.path / METRICS)
        self.tensorboard_path = self.path / "tensorboard"
        self.index_path = self.path / INDEX
        self._lock: Lock | None = None  # while this object holds it

    def exists(self) -> bool:
        """Return whether a run (or `build-vocab`) has begun here: something is there that nobody else writes."""
        for folder in (self.vocab_path, *map(self.step_folder, self._complete_steps())):
            with contextlib.suppress(UserError):
                if manifest_names(folder):
                    return True
        with contextlib.suppress(UserError):
            if os.path.isfile(self.index_path) and read_json(self.index_path, CheckpointIndex).last is not None:
                return True
        try:  # text that somebody typed never reads quite like `dump_config`'s
            return self.config_path.is_file() and (
                self.config_path.read_text(encoding="utf-8") == dump_config(load_config(self.config_path))
            )
        except (UserError, OSError, ValueError):
            return False

    def check_own(self) -> None:
        """Raise `UserError` where the folder holds something, but no run. Hidden files, which no run has, may stay."""
        if self.path.is_dir() and not self.exists():
            others = sorted(name for name in os.listdir(self.path) if not name.startswith(".") and name != "lost+found")
            if others:
                raise UserError(
                    f"{self.path}: is not a run folder, and not empty (it holds {others[0]}); choose another with --out"
                )

    def check_way(self, index: CheckpointIndex) -> None:
        """Raise `UserError` where something that is not ours has the name of a checkpoint to come."""
        for entry in sorted(self.path.iterdir()):
            name = entry.name.removeprefix(REPLACED)
            if CHECKPOINT.fullmatch(name) and int(name.rpartition("-")[2]) > (index.last or 0) and not is_ours(entry):
                raise UserError(f"{entry}: holds what no run wrote; move it out of the run folder")
        for path in (self.metrics.path, self.config_path, self.path / "origin.json"):
            if os.path.lexists(path) and not path.is_file():
                raise UserError(f"{path}: is not a regular file, and no run wrote it; move it out of the run folder")

    def check_writable(self) -> None:
        """Raise `UserError` where the folder can be neither written to nor made. Makes nothing itself."""
        try:
            os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # else: a name that is too long, links in a circle, a folder on the way that is closed
        except OSError as error:
            raise not_writable(self.path, error) from None
        nearest = self.path.absolute()
        while not os.path.lexists(nearest) and nearest != nearest.parent:
            nearest = nearest.parent
        if not os.path.isdir(nearest):
            raise UserError(
                f"{self.path}: cannot be a run folder, {nearest} is not a folder; choose another with --out"
            )
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise UserError(f"{self.path}: cannot write here, {nearest} is not writable; choose another with --out")

    def create(self) -> None:
        """Make the folder, parents included, where it is not there yet; `UserError` where that is not allowed."""
        self.check_writable()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(self.path, error) from None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for one training process; `UserError` where another one holds it."""
        with hold(self.path / LOCK, "training", "choose another folder with --out") as self._lock:
            try:
                yield
            finally:
                self._lock = None

    def check_there(self) -> None:
        """Raise `FileNotFoundError` where the folder that is held has another name now, or is gone."""
        if self._lock is not None and not self._lock.is_there():
            raise FileNotFoundError(errno.ENOENT, "was renamed", str(self.path))

    # --- the index ------------------------------------------------------------------------------------------------

    def index(self) -> CheckpointIndex:
        """Return what `checkpoints.json` says, every folder it names being there and complete.

        Where the file is not there (a kill came between the first checkpoint and it), the complete steps found
        count. Raises `UserError` for a file that is garbage, contradicts itself or names what is missing.
        """
        index = self._read_index()
        for name in sorted(index.names()):
            if not is_complete(locate(self.path / name)):
                raise UserError(
                    f"{self.index_path}: names {name}, which is missing or incomplete in {self.path}; "
                    f"copy the whole folder again, or {self._way_back()}"
                )
        return index

    def check_last(self, index: CheckpointIndex) -> None:
        """Raise `UserError` where a file of the last checkpoint is damaged; it says how to continue from another."""
        if index.last is not None:
            try:
                verify(self.step_folder(index.last))
            except UserError as error:
                raise UserError(f"{error}, or {self._way_back()}") from None

    def _way_back(self) -> str:
        """Return how to continue from the newest whole checkpoint: never by itself, for updates may be lost."""
        damaged = [INDEX]  # without it, the complete steps found count
        for step in reversed(self._complete_steps()):
            folder = self.step_folder(step)
            try:
                verify(folder)
            except UserError:
                damaged.append(folder.name)
            else:
                return f"continue from step {step:,}, which is whole: move {' and '.join(damaged)} out of the folder"
        return "start again with --fresh"

    def write_index(self, index: CheckpointIndex) -> None:
        """Replace `checkpoints.json` atomically; every folder named must be published before."""
        assert {*index.best, index.last} <= {None, *index.steps}
        self.check_there()
        for name in index.names():
            assert is_complete(locate(self.path / name)), f"{name} is named before it is published"
        atomic_write(self.index_path, json.dumps(asdict(index), indent=2) + "\n")

    def _read_index(self) -> CheckpointIndex:
        if not os.path.lexists(self.index_path):
            steps = self._complete_steps()
            return CheckpointIndex(steps=steps, last=steps[-1] if steps else None)
        index = read_json(self.index_path, CheckpointIndex)
        twice = len({*index.steps}) < len(index.steps) or len({*index.best}) < len(index.best)
        if twice or not {*index.best, index.last} <= {None, *index.steps}:
            raise UserError(f"{self.index_path}: contradicts itself (steps, best, last); copy the folder again")
        return index

    def _complete_steps(self) -> list[int]:
        try:
            names = os.listdir(self.path) if os.path.isdir(self.path) else []
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None
        steps = [int(name.removeprefix("step-")) for name in names if STEP.fullmatch(name)]
        return sorted(step for step in steps if is_complete(self.path / step_name(step)))

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def step_folder(self, step: int) -> Path:
        """Return where the checkpoint of a step lies."""
        return locate(self.path / step_name(step))

    def publish(self, name: str, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a folder that appears under `name` once it is complete and on the disk."""
        self.check_there()
        return publish(self.path / name, write)

    def prune(self) -> None:
        """Delete the checkpoints (steps and averages) that the index does not name, and that are all ours."""
        kept = self._read_index().names()
        for entry in list(self.path.iterdir()):
            name = entry.name.removeprefix(REPLACED)
            if name not in kept and CHECKPOINT.fullmatch(name):
                remove(entry)

    def clean_temporaries(self) -> None:
        """Clear away what a kill left behind. Call it with the lock held, before anything is written."""
        clean(self.path, alone=True)
        for entry in list(self.path.glob(f"{REPLACED}*")):
            final = entry.with_name(entry.name.removeprefix(REPLACED))
            if os.path.lexists(final):
                remove(entry, final)
            elif (CHECKPOINT.fullmatch(final.name) or final.name in (VOCAB, HELD_OUT)) and is_complete(entry):
                os.replace(entry, final)

    def set_aside(self) -> Path:
        """Rename the folder to NAME.1, NAME.2, … (the first that is free) and return that. Call it without the lock.

        Raises `UserError` where it is not a run folder, is in use, or may not be renamed.
        """
        path = self.path.absolute()
        if not self.exists():
            raise UserError(f"{self.path}: is not a run folder, so it is not renamed; choose another folder with --out")
        if Path.cwd().is_relative_to(self.path.resolve()):
            raise UserError(f"{self.path}: cannot rename the folder you are in; run tfm from outside it")
        with self.lock():
            number = 1
            while os.path.lexists(aside := path.with_name(f"{path.name}.{number}")):
                number += 1
            try:
                os.rename(path, aside)
            except OSError as error:
                raise UserError(f"{self.path}: cannot be renamed to {aside.name}: {error.strerror}") from None
            with contextlib.suppress(OSError):
                (aside / LOCK).unlink()  # it went along, and its own path is gone
        sync_folder(path.parent)
        return self.path.with_name(aside.name)


def is_export(folder: Path) -> bool:
    """Return whether this is a folder of `tfm export --format ctranslate2`, which only CTranslate2 can search with."""
    return os.path.lexists(folder / EXPORTED) and not os.path.lexists(folder / WEIGHTS)


def find_model(path: str | Path) -> Path:
    """Return the checkpoint folder that MODEL means: itself, or a run's average, else its best step, else its last.

    Raises `UserError` where there is none.
    """
    run = RunFolder(locate(Path(path)))
    if not os.path.exists(run.path):
        raise UserError(f"{path}: no such folder; give a run folder or one of its checkpoints")
    if not os.path.isdir(run.path):
        raise UserError(f"{path}: is a file; give a run folder or one of its checkpoints")
    if not os.access(run.path, os.R_OK | os.X_OK):
        raise UserError(f"{path}: cannot be read: permission denied")
    if is_export(run.path):
        raise UserError(
            f"{path}: was exported for CTranslate2, without the weights that this needs; give the model that it was "
            "exported from"
        )
    files = {name for name in (WEIGHTS, MANIFEST) if os.path.lexists(run.path / name)}
    if len(files) == 2:
        return run.path
    if files:
        missing = MANIFEST if WEIGHTS in files else WEIGHTS
        raise UserError(f"{path}: is not a complete checkpoint, it has no {missing}; copy the whole folder again")
    index = run._read_index()
    steps = [*index.best, *([] if index.last is None else [index.last])]
    names = [*filter(None, [index.average]), *map(step_name, steps)]
    if not names and run.exists():
        raise UserError(f"{path}: has no checkpoint yet; train it with tfm train")
    if not names:
        raise UserError(f"{path}: is neither a run folder nor a checkpoint; give a folder that tfm train made")
    folder = locate(run.path / names[0])
    if not is_complete(folder):
        raise UserError(
            f"{run.index_path}: names {folder.name}, which is missing or incomplete; copy the whole folder again"
        )
    return folder
