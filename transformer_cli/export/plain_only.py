"""Other programs' formats hold the plain Transformer: the exports ask here before they write anything."""

from transformer_cli.config import ModelConfig
from transformer_cli.errors import UserError


def check_plain(shape: ModelConfig, format_name: str) -> None:
    """Raise `UserError` for a model that only our own code can be."""
    if shape.own_variant:
        raise UserError(
            f"--format {format_name}: has no place for a model with {shape.own_variant}; "
            "give --format safetensors, or train the plain model"
        )
