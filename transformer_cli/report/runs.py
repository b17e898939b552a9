"""Runs side by side: in which settings they differ, how long they trained, how large and how good they are. No torch.

`tfm report` prints this as a table; its page and its card begin with it.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_cli.config import Config, load_config
from transformer_cli.config.yaml_file import dump_flow
from transformer_cli.errors import UserError
from transformer_cli.report.page import duration, printable
from transformer_cli.storage.metrics import Series, read_metrics
from transformer_cli.storage.publishing import locate, read_json
from transformer_cli.storage.run_folder import CONFIG, STATE_VALUES, WEIGHTS, CheckpointIndex, RunFolder, find_model

SHOWN = 24  # characters of a setting in a table, more where that does not tell settings apart
BEST = {"valid_bleu": "valid BLEU", "valid_chrf": "valid chrF", "valid_loss": "valid loss"}


class NotARun(UserError):
    """A folder or file that is not the folder of a run, though it is there."""


@dataclass(frozen=True)
class Run:
    """What the folder of a run says of it."""

    path: Path
    config: Config
    steps: int
    model: Path | None  # the checkpoint folder that stands for it; None: there is none yet
    seconds: float | None  # of training, validations included; None: not known
    parameters: int | None
    bytes: int | None  # of the weights' file
    finished: str | None  # why training ended
    hardware: list[str] = field(default_factory=list)
    metrics: Mapping[str, Series] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)  # of the best step, as BEST names it

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.absolute().name


def read_run(path: Path) -> Run:
    """Read the folder of a run. Raises `NotARun` where it is something else, `UserError` where it is damaged."""
    folder = RunFolder(locate(path))
    if not os.path.exists(folder.path):
        raise UserError(f"{path}: no such folder; give a run folder, as tfm train made it")
    if os.path.lexists(folder.path / WEIGHTS):
        raise NotARun(f"{path}: is one checkpoint; give the run folder that it is in")
    if not os.path.isdir(folder.path) or not folder.exists():
        raise NotARun(f"{path}: is not a run folder; give one that tfm train made")
    index = folder.index()
    model = find_model(folder.path) if index.names() else None
    config = load_config(folder.config_path if folder.config_path.is_file() or model is None else model / CONFIG)
    metrics = read_metrics(folder.path) if os.path.isfile(folder.metrics.path) else {}
    progress = _progress(folder, index)
    steps = max([0, index.last or 0, *(series.steps[-1] for series in metrics.values() if series.steps)])
    return Run(
        path=path,
        config=config,
        steps=int(progress.get("step", steps)),
        model=model,
        seconds=progress.get("seconds"),
        parameters=None if model is None else count_parameters(model / WEIGHTS),
        bytes=None if model is None else os.path.getsize(model / WEIGHTS),
        finished=index.finished,
        hardware=list(dict.fromkeys(folder.metrics.hardware())),
        metrics=metrics,
        best=_best(index, config, metrics),
    )


def _progress(run: RunFolder, index: CheckpointIndex) -> dict[str, Any]:
    """Return how far training had come by the last checkpoint; nothing where its state was left out of a copy."""
    path = run.path if index.last is None else run.step_folder(index.last) / STATE_VALUES
    if not path.is_file():
        return {}
    progress = read_json(path, dict[str, Any]).get("progress")
    return progress if isinstance(progress, dict) else {}


def count_parameters(path: Path) -> int:
    """Return how many weights a file holds, tied ones once; raises `UserError` where it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as weights:
            return sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())[:80]}); copy it again") from None


def _best(index: CheckpointIndex, config: Config, metrics: Mapping[str, Series]) -> dict[str, float]:
    """Return the validation scores of the best step; of averaged weights that are better, the one score there is."""
    if index.average is not None and index.average_score is not None:
        return {f"valid_{config.training.best_metric}": abs(index.average_score)}
    best = index.best[0] if index.best else None
    found = {}
    for key in BEST:
        series = metrics.get(key, Series([], []))
        values = [value for step, value in zip(series.steps, series.values, strict=True) if step == best]
        if values and math.isfinite(values[-1]):
            found[key] = values[-1]
    return found


# --- side by side -------------------------------------------------------------------------------------------------


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, the highest validation BLEU first, those without last, by their names."""
    return sorted(runs, key=lambda run: (-run.best.get("valid_bleu", -math.inf), str(run.path)))


def differing_keys(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the keys of which configs, defaults filled in, have different values; and these.

    Where not all of them have a mapping, such as one source and a list of sources, that is one value.
    """
    return dict(_differing([config.model_dump(mode="json") for config in configs]))


def _differing(values: Sequence[Any], key: str = "") -> Iterator[tuple[str, list[Any]]]:
    if all(isinstance(value, dict) for value in values):
        for name in dict.fromkeys(name for value in values for name in value):
            yield from _differing([value.get(name) for value in values], f"{key}.{name}".lstrip("."))
    elif any(value != values[0] for value in values):
        yield key, list(values)


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Return a heading and a row for each run: what differs, steps, time, parameters, scores; no empty columns."""
    different = differing_keys([run.config for run in runs])
    columns: dict[str, list[str]] = {"run": [printable(str(run.path)) for run in runs]}
    columns |= {key: shortened(values) for key, values in different.items()}
    columns["steps"] = ["" if run.config.data.train is None else f"{run.steps:,}" for run in runs]
    columns["time"] = ["" if run.seconds is None else duration(run.seconds) for run in runs]
    columns["parameters"] = ["" if run.parameters is None else f"{run.parameters:,}" for run in runs]
    columns |= {name: [_number(run.best.get(key)) for run in runs] for key, name in BEST.items()}
    kept = {name: cells for name, cells in columns.items() if any(cells)}
    return [list(kept), *(list(row) for row in zip(*kept.values(), strict=True))]


def as_json(runs: Sequence[Run]) -> str:
    """Return a list with an object for each run."""
    different = differing_keys([run.config for run in runs])
    objects = [
        {
            "run": str(run.path),
            "config": {key: values[place] for key, values in different.items()},
            "steps": run.steps,
            "seconds": run.seconds,
            "parameters": run.parameters,
            "bytes": run.bytes,
            "model": None if run.model is None else str(run.model),
            "finished": run.finished,
            "hardware": run.hardware,
            "valid": {key.removeprefix("valid_"): value for key, value in run.best.items()},
        }
        for place, run in enumerate(runs)
    ]
    return json.dumps(objects, ensure_ascii=False, indent=2)


def shortened(values: Sequence[Any]) -> list[str]:
    """Return settings as YAML has them; long ones without the folders that all begin with, and without their middle."""
    texts = [
        "" if value is None else printable(value if isinstance(value, str) else dump_flow(_given(value)))
        for value in values
    ]
    different = {text for text in texts if text}
    start = os.path.commonprefix([*different]).rfind("/") + 1 if len(different) > 1 else 0  # noqa: RUF071  (as meant)
    most, cut = SHOWN, texts
    while most == SHOWN or len({*cut}) < len({*texts}):  # until those that differ are shown to differ
        cut = [
            text if len(text) <= most else _without_middle(f"…{text[start:]}" if start else text, most)
            for text in texts
        ]
        most += 8
    return cut


def _given(value: Any) -> Any:
    """Return a value without what its mappings mostly leave to the default: null, and a weight of 1."""
    if isinstance(value, dict):
        return {name: _given(one) for name, one in value.items() if one not in (None, 1.0)}
    return [_given(one) for one in value] if isinstance(value, list) else value


def _without_middle(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[1 + most // 2 - most :]}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
