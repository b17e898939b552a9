"""The encoder-decoder Transformer as a command-line tool, and `Translator` for other programs.

`Translator` is looked up when it is first asked for, so that `import transformer_cli` stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Translation, Translator

__version__ = "0.1.0"

__all__ = ["Translation", "Translator", "__version__"]


def __getattr__(name: str) -> Any:
    if name in ("Translation", "Translator"):
        from transformer_cli.decoding import translator

        return getattr(translator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
