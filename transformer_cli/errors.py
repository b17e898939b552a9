"""The one exception whose message reaches the user, and what its messages have in common.

Every layer raises it; only the command line catches it, prints ``error: …`` and leaves with exit code 2.
"""

from traceback import walk_tb

TRAIN = "pip install 'transformer-cli[train]'"  # what training needs, and using models does not
PACKAGES = {"torch": "PyTorch", "pyarrow": "pyarrow", "iso639": "iso639-lang"}  # that it installs


class UserError(Exception):
    """The user's input is at fault: one line that says what is wrong, where, and what to do."""


def one_of(names: "list[str]", limit: int = 200, last: str = "or") -> str:
    """``a, b or c``: the choices a message offers, shortened to `limit` characters; last: what is before the last."""
    text = f" {last} ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return text if len(text) <= limit else text[: limit - 1].rsplit(",", 1)[0] + ", …"


def not_importable(error: BaseException) -> str | None:
    """Return which package of the extra `train` could not be imported, why, and what to do; None: it is not that.

    Like ``PyTorch, which is not installed; pip install …``, to follow "needs".
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>"]
    begun = {frame.f_globals.get("__name__") for frame in frames}
    for package, name in PACKAGES.items():
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            return f"{name}, which is not installed; {TRAIN}"
        if package in begun:  # its own import failed, for a library of the system that is missing for instance
            reason = " ".join(str(error).split())[:200]
            return f"{name}, which cannot be imported ({reason}); install it again"
    return None
