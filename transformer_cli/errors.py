"""The one exception whose message reaches the user.

Every layer raises it; only the command line catches it, prints ``error: …`` and leaves with exit code 2.
"""


class UserError(Exception):
    """The user's input is at fault: one line that says what is wrong, where, and what to do."""


def one_of(names: "list[str]", limit: int = 200) -> str:
    """``a, b or c``: the choices a message offers, shortened to `limit` characters."""
    text = " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return text if len(text) <= limit else text[: limit - 1].rsplit(",", 1)[0] + ", …"
