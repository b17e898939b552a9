"""Where the paths of a saved config start: in the folder that a run was first started in.

A config names files as the user wrote them, from the working directory. `origin.json` in the run folder keeps which
that was, so that they are found from any other; no checkpoint holds it, whose bytes must not depend on the place.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from transformer_cli.config import Config, DataConfig, config_of_tree, load_config
from transformer_cli.config.paths import paths_of, with_paths
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import atomic_write, read_json
from transformer_cli.storage.run_folder import CHECKPOINT, CONFIG

ORIGIN = "origin.json"


@dataclass(frozen=True)
class Origin:
    """Where the relative paths of a run's config start."""

    working_directory: str  # absolute
    from_run: str  # the same, from the run folder on: where both have moved together

    def candidates(self, run: Path, path: str) -> list[str]:
        """Return the places where a relative path of the config may be, in the order in which they are tried."""
        moved = os.path.normpath(os.path.join(os.path.realpath(run), self.from_run, path))
        return [os.path.join(self.working_directory, path), moved, path]


def read_origin(folder: Path) -> tuple[Path, Origin] | None:
    """Return the run folder that a run folder or checkpoint folder belongs to, and its origin.

    None: it has none, as older runs have not, and checkpoints that were copied out of their run.
    """
    run = folder
    if CHECKPOINT.fullmatch(folder.name):
        run = folder.parent
    return (run, read_json(run / ORIGIN, Origin)) if os.path.isfile(run / ORIGIN) else None


def keep_origin(run: Path, config: Config) -> None:
    """Write `origin.json` for a run that has this config, unless there is one from which its data is still found."""
    known = read_origin(run)
    named = paths_of(config.model_dump(mode="json"))
    paths = [path for key, path in named.items() if key.startswith("data.train.") and not key.endswith(".dataset")]
    if known is not None:
        gone = not all(any(map(os.path.exists, known[1].candidates(run, path)[:2])) for path in paths)
        if not gone or not all(map(os.path.exists, paths)):
            return
    here = os.getcwd()
    origin = Origin(here, os.path.relpath(here, os.path.realpath(run)))
    atomic_write(run / ORIGIN, json.dumps(asdict(origin), indent=2, ensure_ascii=False) + "\n")


def find_path(folder: Path, key: str, path: str) -> str:
    """Return how to open, from here, what a path in the config of a run or checkpoint folder names.

    Where it is nowhere, that is the place where it was at first.
    """
    known = read_origin(folder)
    if known is None or os.path.isabs(path):
        return path
    candidates = known[1].candidates(known[0], path)
    found = next(filter(os.path.exists, candidates), path if key.endswith(".dataset") else candidates[0])
    return path if os.path.abspath(found) == os.path.abspath(path) else found


def load_found_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a CONFIG as `load_config` does; the paths in one that a run has saved are found from any folder."""
    if path.name != CONFIG:
        return load_config(path, overrides)
    return load_config(path, overrides, find=lambda key, written: find_path(path.parent, key, written))


def find_data(data: DataConfig, split: str, folder: Path) -> DataConfig:
    """Return the data of a model in `folder` with paths that can be opened from here.

    Raises `UserError` where a file of `data.train`, `valid` or `test` (the split) is gone, with where it was.
    """
    written = {"data": data.model_dump(mode="json")}
    found = with_paths(written, lambda key, path: find_path(folder, key, path))
    known = read_origin(folder)
    for key, path in paths_of(found).items():
        if known and key.startswith(f"data.{split}.") and not key.endswith(".dataset") and not os.path.exists(path):
            raise UserError(
                f"{key}: {paths_of(written)[key]} is not in {known[1].working_directory} any more, where the run began"
            )
    return DataConfig.model_validate_json(json.dumps(found["data"]))


def respelled(new: Config, old: Config, run: Path) -> Config:
    """Return the new config of a run with each path spelled as in the old one where both lead to the same file."""
    before, known = paths_of(old.model_dump(mode="json")), read_origin(run)
    moved = known is not None and os.path.realpath(known[1].working_directory) != os.path.realpath(".")

    def spell(key: str, path: str) -> str:
        if key in before and os.path.realpath(find_path(run, key, before[key])) == os.path.realpath(path):
            return before[key]
        other = moved and path != before.get(key) and not key.endswith(".dataset")
        return os.path.abspath(path) if other else path  # what origin.json says is not so of this one

    return config_of_tree(with_paths(new.model_dump(mode="json", exclude_unset=True), spell), str(run / CONFIG))
