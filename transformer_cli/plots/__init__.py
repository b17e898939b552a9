"""Pictures of a model, its training and its parts, by matplotlib: functions from plain data to a `Figure`, and `save`.

`cli.plot` and the demo call it. Importing it raises `UserError` where matplotlib is not installed. Names are looked up
when they are first asked for, so that pictures without a model need no torch.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from transformer_cli.errors import UserError

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no word on font caches: `save` says what a user can act on
try:
    import matplotlib.ft2font
except ImportError:
    raise UserError("pictures need matplotlib, which is not installed: pip install 'transformer-cli[plots]'") from None
except ValueError as error:
    first = str(error).split(";")[0]
    raise UserError(f"matplotlib does not start: {first}; mend or unset MPLBACKEND and your matplotlibrc") from None
if not hasattr(matplotlib.ft2font, "__libraqm_version__"):
    raise UserError(
        f"pictures need matplotlib 3.11 or newer, this is {matplotlib.__version__}: "
        "pip install --upgrade 'transformer-cli[plots]'"
    )

if TYPE_CHECKING:
    from transformer_cli.plots.attention import Attention, attend, attention_figure, plot_attention
    from transformer_cli.plots.heads import entropy, entropy_figure, heads_figure, plot_entropy, plot_heads
    from transformer_cli.plots.masks import mask_figure
    from transformer_cli.plots.positions import positions_figure
    from transformer_cli.plots.schedule import schedule_figure
    from transformer_cli.plots.style import check_picture, distinct_names, save
    from transformer_cli.plots.training import plot_training, read_metrics, training_figure

_PLACES = {
    "attention": ("Attention", "attend", "attention_figure", "plot_attention"),
    "heads": ("entropy", "entropy_figure", "heads_figure", "plot_entropy", "plot_heads"),
    "masks": ("mask_figure",),
    "positions": ("positions_figure",),
    "schedule": ("schedule_figure",),
    "style": ("check_picture", "distinct_names", "save"),
    "training": ("plot_training", "read_metrics", "training_figure"),
}

__all__ = [
    "Attention",
    "attend",
    "attention_figure",
    "check_picture",
    "distinct_names",
    "entropy",
    "entropy_figure",
    "heads_figure",
    "mask_figure",
    "plot_attention",
    "plot_entropy",
    "plot_heads",
    "plot_training",
    "positions_figure",
    "read_metrics",
    "save",
    "schedule_figure",
    "training_figure",
]


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(f"transformer_cli.plots.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
