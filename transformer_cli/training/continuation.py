"""What a run may continue from: its own folder, under which config, or another model (`training.init_from`).

`run` asks before anything is touched; a run that resumes from a checkpoint needs the other model no more.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from transformer_cli.build import count_parameters
from transformer_cli.codecs import load_codecs
from transformer_cli.config import Config, load_config
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.checkpoint import load_weights
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import CONFIG, RunFolder, find_model
from transformer_cli.text.codec import Codecs

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

# What a run and the model that it starts from have in common, and how that model was trained, not what it is.
START_KEYS = ("vocabulary", "model", "data.source_language", "data.target_language")
TRAINED_WITH = (
    "model.preset",
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.embedding_dropout",
    "model.embedding",
)


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted key, old and new value of every leaf in which two configs, or parts of them, differ."""
    old, new = (side.model_dump(mode="json") if isinstance(side, Config) else side for side in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _within(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)


def _show(value: Any) -> str:
    """Return a value as YAML reads it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


# --- the run's own folder -----------------------------------------------------------------------------------------


def check_continuation(
    run: RunFolder, old: Config, new: Config, has_checkpoint: bool, asked: Config | None = None
) -> list[str]:
    """Return what changed, as lines to show; raise `UserError` naming the first key that may not change.

    `asked`: the new config as it was before its preset was resolved.
    """
    notes = []
    for key, before, after in _differences(old, new):
        fixed = not _within(key, MAY_CHANGE) if has_checkpoint else _within(key, VOCABULARY_KEYS)
        if key == "training.max_steps" and new.training.schedule == "cosine" and has_checkpoint:
            fixed = True  # the cosine schedule's shape depends on it
        if fixed:
            reason = "the run was trained" if has_checkpoint else "its vocabulary was built"
            origin = _origin(key, asked or new, new)
            raise UserError(
                f"{run.path}: {reason} with {key} = {_show(before)}, the config now says {_show(after)}{origin}; set "
                "it back, choose another folder with --out, or start again with --fresh"
            )
        notes.append(f"{key} changed from {_show(before)} to {_show(after)}")
    return notes


def _origin(key: str, asked: Config, new: Config) -> str:
    """Return words on where the value of a key comes from that was not set; "" where it was."""
    section, _, name = key.partition(".")
    given, filled = (getattr(config, section).model_fields_set for config in (asked, new))
    if asked.model.preset is None or name in given or name not in filled:
        return ""
    why = " for the number of pairs in data.train: did the text there change?" * (asked.model.preset == "auto")
    return f" (chosen by model.preset = {asked.model.preset}{why})"


# --- another model ------------------------------------------------------------------------------------------------


def check_start(config: Config, run: RunFolder) -> None:
    """Raise `UserError` where `training.init_from` is the run's own folder, or in it: --fresh would rename it first."""
    start = config.training.init_from
    if start is None or not os.path.exists(start):  # what is not there is reported later
        return
    if Path(os.path.realpath(start)).is_relative_to(os.path.realpath(run.path)):
        raise UserError(
            f"training.init_from: {start} is in the folder of this run itself; leave it out to continue the run, or "
            "choose another folder with --out to start a new one from that model"
        )


def load_start_codecs(config: Config, own: Codecs | None) -> tuple[Codecs, list[str]]:
    """Return the codecs of the model in `training.init_from`, and lines to show; `own`: those that the run has already.

    Raises `UserError` where the config describes another model, or the run's own vocabulary is another.
    """
    folder = _find_start(config)
    verify(folder, [CONFIG])
    may_differ = TRAINED_WITH + (("model.max_positions",) if config.model.positions == "sinusoidal" else ())
    differences = [
        (key, _show(ours), _show(theirs))
        for key, ours, theirs in _differences(config, load_config(folder / CONFIG))
        if _within(key, START_KEYS) and not _within(key, may_differ)
    ]
    if differences:
        key, ours, theirs = differences[0]
        others = f", and {len(differences) - 1} more keys differ" if len(differences) > 1 else ""
        raise UserError(
            f"training.init_from: {folder} has {key} = {theirs}, the config says {ours}{others}; a run takes over the "
            f"vocabulary and shape of the model that it starts from, so set {key}: {theirs}, or copy the sections "
            f"vocabulary and model from {folder / CONFIG}"
        )
    codecs = load_codecs(folder, config)
    if own is not None and own.fingerprint != codecs.fingerprint:
        raise UserError(
            f"training.init_from: {folder} has another vocabulary than the run has built already; start again with "
            "--fresh, and the run takes over that one"
        )
    return codecs, [f"start        weights and vocabulary of {folder} (training.init_from)"]


def load_start(config: Config, model: Transformer) -> None:
    """Give a model that is about to be trained the weights in `training.init_from`, in float32."""
    load_weights(_find_start(config), model)
    model.float()


def _find_start(config: Config) -> Path:
    assert config.training.init_from is not None
    try:
        return find_model(config.training.init_from)
    except UserError as error:
        raise UserError(f"training.init_from: {error}") from None


def freeze_parts(model: Transformer, parts: tuple[str, ...]) -> list[str]:
    """Let the weights of these parts (`training.freeze`) stay as they are; return lines to show.

    A matrix that two parts share stays if one of them does. Dropout acts in frozen parts too. Raises `UserError` where
    nothing is left to learn.
    """
    modules: dict[str, tuple[nn.Module, ...]] = {
        "embeddings": (model.source_embedding, model.target_embedding),
        "source_embedding": (model.source_embedding,),
        "target_embedding": (model.target_embedding,),
        "encoder": (model.encoder,),
        "decoder": (model.decoder,),
        "generator": (model.generator,),
    }
    for module in (module for part in parts for module in modules[part]):
        module.requires_grad_(False)
    if not parts:
        return []
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    count = count_parameters(model)
    if frozen == count:
        raise UserError(
            f"training.freeze: {', '.join(parts)} leave nothing to learn, for embeddings and generator share a matrix "
            "(model.tie_embeddings); leave out a part"
        )
    lines = [f"frozen       {', '.join(parts)}: {frozen:,} of {count:,} parameters stay as they are"]
    halves = {"source_embedding", "target_embedding"}
    embeddings = set() if "embeddings" in parts else halves if halves & set(parts) else {"embeddings"}
    for part in sorted({"generator", *embeddings} - set(parts)):
        if not all(parameter.requires_grad for module in modules[part] for parameter in module.parameters()):
            name = f"{part.replace('_', ' ')} share{'s' * (part[-1] != 's')}"
            lines.append(f"             the matrix that the {name} with them stays too")
    return lines
