"""May this config go on with that run? Which keys may change between sessions, and which may not.

`beginning` asks before anything is touched.
"""

from collections.abc import Iterator
from typing import Any

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.state import Progress

# What decides when to stop, what to keep and how fast to read, never what the next update is.
MAY_CHANGE = (
    "training.max_steps",
    "training.max_epochs",
    "training.patience",
    "training.keep_last",
    "training.keep_best",
    "training.average_last",
    "training.average_best",
    "training.save_every",
    "training.max_skipped",
    "data.workers",
    "decoding",
)

# All that a vocabulary depends on: a run that has only that may change everything else.
VOCABULARY_KEYS = ("vocabulary", "data.source_language", "data.target_language", "data.train")


def check_continuation(
    run: RunFolder, old: Config, new: Config, has_checkpoint: bool, asked: Config | None = None
) -> list[str]:
    """What changed, as lines to show; raises `UserError` naming the first key that may not change.

    `asked`: the new config as it was before its preset was resolved.
    """
    notes = []
    for key, before, after in _differences(old.model_dump(mode="json"), new.model_dump(mode="json")):
        fixed = not _within(key, MAY_CHANGE) if has_checkpoint else _within(key, VOCABULARY_KEYS)
        if key == "training.max_steps" and new.training.schedule == "cosine" and has_checkpoint:
            fixed = True  # the cosine schedule's shape depends on it
        if fixed:
            reason = "the run was trained" if has_checkpoint else "its vocabulary was built"
            origin = _origin(key, asked or new, new)
            raise UserError(
                f"{run.path}: {reason} with {key} = {_show(before)}, the config now says {_show(after)}{origin}; set "
                "it back, choose another folder with --out, or begin anew with --fresh"
            )
        notes.append(f"{key} changed from {_show(before)} to {_show(after)}")
    return notes


def check_corpora(run: RunFolder, progress: Progress, train_corpus: str, valid_corpus: str) -> list[str]:
    """Lines to show about data that changed under its name; raises `UserError` where training's own did."""
    if progress.train_corpus not in ("", train_corpus):
        raise UserError(
            f"{run.path}: data.train names the same place, but the text there, or the file of alignments beside it, is "
            "not what the run was trained on; put the old one back, choose another folder with --out, or begin anew "
            "with --fresh"
        )
    if progress.valid_corpus not in ("", valid_corpus):
        return ["the text of data.valid changed: scores before and after cannot be compared"]
    return []


def finished_because(config: Config, progress: Progress) -> str | None:
    """Why training is over, None while it goes on: a pure function of the config and the progress."""
    training = config.training
    if training.max_steps is not None and progress.step >= training.max_steps:
        return f"max_steps = {training.max_steps:,} reached"
    if training.max_epochs is not None and progress.position.epoch >= training.max_epochs:
        return f"max_epochs = {training.max_epochs:,} reached"
    if training.patience is not None and progress.validations_without_best >= training.patience:
        return f"no new best {training.best_metric} in {training.patience:,} validations (patience)"
    return None


def _origin(key: str, asked: Config, new: Config) -> str:
    """Words on where the value of a key comes from that was not set; "" where it was."""
    section, _, name = key.partition(".")
    given, filled = (getattr(config, section).model_fields_set for config in (asked, new))
    if asked.model.preset is None or name in given or name not in filled:
        return ""
    why = " for the number of pairs in data.train: did the text there change?" * (asked.model.preset == "auto")
    return f" (chosen by model.preset = {asked.model.preset}{why})"


def _within(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted key, old and new value of every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _show(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
