"""Training that begins with a model's weights (`training.init_from`), and parts that stay as they are (`freeze`).

`preparation` asks for the vocabulary, `session` for the weights; a run that goes on from a checkpoint asks for neither.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

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

# How the model was or will be trained, not what it is.
MAY_DIFFER = {"preset", "dropout", "attention_dropout", "activation_dropout", "embedding_dropout", "embedding"}


def check_start(config: Config, run: RunFolder) -> None:
    """Raise `UserError` where `training.init_from` is the run's own folder, or in it: --fresh would rename it first."""
    start = config.training.init_from
    if start is None or not os.path.exists(start):  # what is not there is told later
        return
    if Path(os.path.realpath(start)).is_relative_to(os.path.realpath(run.path)):
        raise UserError(
            f"training.init_from: {start} is in the folder of this run itself; leave it out to go on with the run, or "
            "choose another folder with --out to start a new one from that model"
        )


def load_start_codecs(config: Config, own: Codecs | None) -> tuple[Codecs, list[str]]:
    """The codecs of the model in `training.init_from`, and lines to show. `own`: those that the run has already.

    Raises `UserError` where the config describes another model, or the run's own vocabulary is another.
    """
    folder = _find_start(config)
    _check_alike(config, folder)
    codecs = load_codecs(folder, config)
    if own is not None and own.fingerprint != codecs.fingerprint:
        raise UserError(
            f"training.init_from: {folder} has another vocabulary than the run has built already; begin anew with "
            "--fresh, and the run takes over that one"
        )
    return codecs, [f"start        weights and vocabulary of {folder} (training.init_from)"]


def load_start(config: Config, model: Transformer) -> None:
    """Give a model that is about to be trained the weights in `training.init_from`, in float32."""
    load_weights(_find_start(config), model)
    model.float()


def freeze_parts(model: Transformer, parts: tuple[str, ...]) -> list[str]:
    """Let the weights of these parts (`training.freeze`) stay as they are; returns lines to show.

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
    told = modules.keys() - set(parts) - ({"embeddings"} if halves & set(parts) else halves)
    for part in sorted(told - (halves if "embeddings" in parts else set())):
        if not all(parameter.requires_grad for module in modules[part] for parameter in module.parameters()):
            name = f"{part.replace('_', ' ')} share{'s' * (part[-1] != 's')}"
            lines.append(f"             the matrix that the {name} with them stays too")
    return lines


def _find_start(config: Config) -> Path:
    assert config.training.init_from is not None
    try:
        return find_model(config.training.init_from)
    except UserError as error:
        raise UserError(f"training.init_from: {error}") from None


def _check_alike(config: Config, folder: Path) -> None:
    verify(folder, [CONFIG])
    differences = list(_differences(config, load_config(folder / CONFIG)))
    if differences:
        key, ours, theirs = differences[0]
        others = f", and {len(differences) - 1} more keys differ" if len(differences) > 1 else ""
        raise UserError(
            f"training.init_from: {folder} has {key} = {theirs}, the config says {ours}{others}; a run takes over the "
            f"vocabulary and shape of the model that it starts from, so set {key}: {theirs}, or copy the sections "
            f"vocabulary and model from {folder / CONFIG}"
        )


def _differences(config: Config, start: Config) -> Iterator[tuple[str, str, str]]:
    """Key, value here, value there of what must be the same in both."""
    may_differ = MAY_DIFFER | ({"max_positions"} if config.model.positions == "sinusoidal" else set())
    keys = [
        ("data", ["source_language", "target_language"]),
        ("vocabulary", type(config.vocabulary).model_fields),
        ("model", [key for key in type(config.model).model_fields if key not in may_differ]),
    ]
    for section, names in keys:
        for name in names:
            ours, theirs = (getattr(getattr(side, section), name) for side in (config, start))
            if ours != theirs:
                yield f"{section}.{name}", _show(ours), _show(theirs)


def _show(value: object) -> str:
    return json.dumps(value)  # which YAML reads too
