"""The environment of processes that tests start."""

import os


def unmeasured(**more: str) -> dict[str, str]:
    """Ours, without what makes coverage measure a new process, and with `more`.

    For processes that are killed (coverage's lock would stay held), that may not write (nor may coverage), or that do
    much which others measure: coverage makes plain Python several times slower.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COV")} | more
