"""MODEL becomes a `Translator` with what the options change. Called by the commands that translate or score."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Translator


def load_translator(
    model: Path,
    device: str,
    *,
    batch_tokens: int | None = None,
    keep_unknown: bool = False,
    changes: dict[str, Any] | None = None,
) -> "tuple[Translator, SearchOptions]":
    """The model, and its own way to search with some values changed.

    Raises `UserError` where there is no such model or device, its files are damaged, or options do not go together.
    """
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Translator
    from transformer_cli.run_folder import find_model

    find_model(model)  # before the seconds that loading torch takes
    translator = Translator.load(model, device)
    decoding: dict[str, Any] = {}
    if batch_tokens is not None:
        decoding["batch_tokens"] = batch_tokens
    if keep_unknown:
        decoding["copy_unknown"] = False
    config = translator.config
    translator.config = config.model_copy(update={"decoding": config.decoding.model_copy(update=decoding)})
    return translator, SearchOptions.from_config(config.decoding, **(changes or {}))
