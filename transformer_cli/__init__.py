"""The encoder-decoder Transformer as a command-line tool, and `Translator` for other programs.

`Translator` is looked up when it is first asked for, so that `import transformer_cli` stays light.
"""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

    from transformer_cli.decoding.translator import Translation, Translator

__version__ = "0.1.0"

__all__ = ["Translation", "Translator", "__version__"]

# Modules that programs may know by a name of before, and names in them that have changed since.
MOVED: dict[str, tuple[str, dict[str, str]]] = {
    "transformer_cli.decoding.demands": ("transformer_cli.decoding.constraints", {"TextDemands": "Constraints"}),
    "transformer_cli.decoding.options": ("transformer_cli.decoding.engines.protocol", {}),
    "transformer_cli.decoding.protecting": ("transformer_cli.protected.protector", {}),
    "transformer_cli.model.build": ("transformer_cli.build", {}),
    "transformer_cli.model.one_hot": ("transformer_cli.variants.embeddings", {}),
    "transformer_cli.model.positions": ("transformer_cli.model.embedding", {}),
    "transformer_cli.protected.glossary": ("transformer_cli.protected.spans", {}),
    "transformer_cli.text.glossary": ("transformer_cli.protected.spans", {}),
    "transformer_cli.training.losses": ("transformer_cli.training.objective", {}),
}


class _MovedModules:
    """Answer an import of a module's earlier name with one that looks everything up at its place of today."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, cast("Loader", _MovedModules)) if name in MOVED else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None  # Python makes an empty one

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        place, renamed = MOVED[module.__name__]
        today = import_module(place)

        def look_up(name: str) -> Any:
            return getattr(today, renamed.get(name, name))

        vars(module)["__getattr__"] = look_up


sys.meta_path.append(_MovedModules)


def __getattr__(name: str) -> Any:
    if name in ("Translation", "Translator"):
        from transformer_cli.decoding import translator

        return getattr(translator, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
