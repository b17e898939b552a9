"""The paths in a config: which of its values they are, and where those of a saved one start.

A config names files as the user wrote them, from the working directory. `origin.json` in the run folder keeps which
that was, so that they are found from any other; no checkpoint holds it, whose bytes must not depend on the place.
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformer_cli.config import Config, DataConfig, HubDataset, Section, config_of_tree, load_config
from transformer_cli.config.yaml_file import parse_tree, read_config_text
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import atomic_write, read_json
from transformer_cli.storage.run_folder import CHECKPOINT, CONFIG

ORIGIN = "origin.json"
_IS_PATH = re.compile(
    r"data\.(train|valid|test)(\.[0-9]+)?\.(source|target|file|tmx|moses|dataset)"
    r"|training\.(init_from|source_vectors|target_vectors|guided_attention\.alignments)"
)


def paths_of(config: Section, key: str = "") -> dict[str, str]:
    """Return the paths in a config, or in the section of it that has this key, by their keys (`data.train.source`).

    `data.….dataset` is among them: a folder, or the name of a dataset on the hub.
    """
    paths: dict[str, str] = {}
    with_paths(config.model_dump(mode="json"), paths.setdefault, key)
    return paths


def with_paths(node: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """Return a copy of a config's tree, or of the node in it that has this key, `change(key, path)` for each path."""
    if isinstance(node, dict):
        return {name: with_paths(value, change, f"{key}.{name}".lstrip(".")) for name, value in node.items()}
    if isinstance(node, list):
        return [with_paths(value, change, f"{key}.{place}") for place, value in enumerate(node)]
    return change(key, node) if isinstance(node, str) and _IS_PATH.fullmatch(key) else node


@dataclass(frozen=True)
class Origin:
    """Where the relative paths of a run's config start."""

    working_directory: str  # absolute
    from_run: str  # the same, from the run folder on: where both have moved together; once read, absolute too

    def candidates(self, path: str) -> list[str]:
        """Return the places where a relative path of the config may be, in the order in which they are tried."""
        moved = os.path.normpath(os.path.join(self.from_run, path))
        return [os.path.join(self.working_directory, path), moved, path]


def read_origin(folder: Path) -> Origin | None:
    """Return the origin of the run that a run folder or checkpoint folder belongs to.

    None: it has none, as older runs have not, and checkpoints that were copied out of their run.
    """
    run = folder.parent if CHECKPOINT.fullmatch(folder.name) else folder
    if not os.path.isfile(run / ORIGIN):
        return None
    origin = read_json(run / ORIGIN, Origin)
    return replace(origin, from_run=os.path.join(os.path.realpath(run), origin.from_run))


def keep_origin(run: Path, config: Config) -> None:
    """Write `origin.json` for a run that has this config, unless there is one from which its data is still found."""
    known = read_origin(run)
    paths = [
        path for key, path in paths_of(config).items() if key.startswith("data.train.") and not key.endswith(".dataset")
    ]
    if known is not None:
        gone = not all(any(map(os.path.exists, known.candidates(path)[:2])) for path in paths)
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
    candidates = known.candidates(path)
    found = next(filter(os.path.exists, candidates), path if key.endswith(".dataset") else candidates[0])
    return path if os.path.abspath(found) == os.path.abspath(path) else found


def load_found_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a CONFIG as `load_config` does; the paths in one that a run has saved are found from any folder."""
    if path.name != CONFIG:
        return load_config(path, overrides)
    tree = parse_tree(read_config_text(path), str(path))
    return config_of_tree(with_paths(tree, partial(find_path, path.parent)), str(path), overrides)


def is_on_hub(source: object) -> bool:
    """Return whether a source of a config is a data set of the Hugging Face hub, and not a folder that holds one."""
    return isinstance(source, HubDataset) and not os.path.exists(source.dataset)


def find_data(data: DataConfig, split: str, folder: Path) -> DataConfig:
    """Return the data of a model in `folder` with paths that can be opened from here.

    Raises `UserError` where a file of `data.train`, `valid` or `test` (the split) is gone, with where it was.
    """
    opened = DataConfig.model_validate_json(
        json.dumps(with_paths(data.model_dump(mode="json"), partial(find_path, folder), "data"))
    )
    known, written = read_origin(folder), paths_of(data, "data")
    for key, path in paths_of(opened, "data").items():
        if known and key.startswith(f"data.{split}.") and not key.endswith(".dataset") and not os.path.exists(path):
            raise UserError(f"{key}: {written[key]} is not in {known.working_directory} any more, where the run began")
    return opened


def respelled(new: Config, old: Config, run: Path) -> Config:
    """Return the new config of a run with each path spelled as in the old one where both lead to the same file."""
    before, known = paths_of(old), read_origin(run)
    moved = known is not None and os.path.realpath(known.working_directory) != os.path.realpath(".")

    def spell(key: str, path: str) -> str:
        if key in before and os.path.realpath(find_path(run, key, before[key])) == os.path.realpath(path):
            return before[key]
        other = moved and path != before.get(key) and not key.endswith(".dataset")
        return os.path.abspath(path) if other else path  # what origin.json says is not so of this one

    return config_of_tree(with_paths(new.model_dump(mode="json", exclude_unset=True), spell), str(run / CONFIG))
