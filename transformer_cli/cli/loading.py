"""MODEL becomes a `Translator` with what the options change. Called by the commands that translate or score."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli.generation import fit_to_generation
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.config import Config
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Translator


def read_options(model: Path, changes: Mapping[str, Any]) -> "tuple[Config, SearchOptions]":
    """The model's config, and its own way to search with some values changed; no weights are looked at.

    Raises `UserError` where there is no such model, its config is damaged, or options do not go together.
    """
    from transformer_cli.config import load_config
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.storage.publishing import verify
    from transformer_cli.storage.run_folder import CONFIG, find_model

    folder = find_model(model)
    verify(folder, [CONFIG])
    config = load_config(folder / CONFIG)
    return config, SearchOptions.from_config(config.decoding, **fit_to_generation(model, config, changes))


def load_translator(
    model: Path,
    device: str,
    *,
    batch_tokens: int | None = None,
    keep_unknown: bool = False,
    changes: Mapping[str, Any] | None = None,
    engine: str = "auto",
    compute_type: str | None = None,
    needs: Sequence[str] = (),
    guard: bool = True,
    beside: Sequence[Path] = (),
) -> "tuple[Translator, SearchOptions]":
    """The model, and its own way to search with some values changed.

    needs: what is asked for, beside such values, that only the torch engine has, by name. beside: models that decide on
    each token together with this one. Raises `UserError` where there is no such model, device or engine, files are
    damaged, or options do not go together.
    """
    _, options = read_options(model, changes or {})  # before the seconds that loading torch takes
    from transformer_cli.decoding.engines.protocol import torch_needs
    from transformer_cli.decoding.translator import Translator

    if beside:
        check_engine(engine, compute_type)
        translator = _load_ensemble([model, *beside], device, guard=guard)
    else:
        needed = [*needs, *torch_needs(options)]
        translator = Translator.load(model, device, engine=engine, needs=needed, compute_type=compute_type, guard=guard)
    decoding: dict[str, Any] = {}
    if batch_tokens is not None:
        decoding["batch_tokens"] = batch_tokens
    if keep_unknown:
        decoding["copy_unknown"] = False
    config = translator.config
    translator.config = config.model_copy(update={"decoding": config.decoding.model_copy(update=decoding)})
    return translator, options


def check_engine(engine: str, compute_type: str | None) -> None:
    """Raise `UserError` where the wish for an engine cannot go with several models."""
    if engine == "ctranslate2" or compute_type not in (None, "float32"):
        raise UserError(
            "--with: several models need the torch engine, in float32; leave out --engine and --compute-type"
        )


def _load_ensemble(models: Sequence[Path], device: str, *, guard: bool) -> "Translator":
    from transformer_cli.decoding.ensemble import load_ensemble
    from transformer_cli.decoding.translator import Translator

    translator = Translator(*load_ensemble(models, device), guard=guard)
    translator.engine_choice = f"engine: torch ({len(models)} models)"
    return translator
