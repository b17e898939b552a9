"""Pictures of a model, its training and its parts, by matplotlib: functions from plain data to a `Figure`, and `save`.

`tfm plot` and the demo call them. Importing any of the modules raises `UserError` where matplotlib is not installed.
"""

import logging

from transformer_cli.errors import UserError

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # no word on font caches: `save` says what a user can act on
try:
    import matplotlib.ft2font
except ImportError:
    raise UserError("pictures need matplotlib, which is not installed: pip install 'transformer-cli[plots]'") from None
except ValueError as error:
    first = str(error).split(";")[0]
    raise UserError(f"matplotlib does not start: {first}; fix or unset MPLBACKEND and your matplotlibrc") from None
if not hasattr(matplotlib.ft2font, "__libraqm_version__"):
    raise UserError(
        f"pictures need matplotlib 3.11 or newer, this is {matplotlib.__version__}: "
        "pip install --upgrade 'transformer-cli[plots]'"
    )
