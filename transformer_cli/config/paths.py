"""Which values of a config are paths: what reads a config somewhere else than it was written has to change these."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from transformer_cli.config.yaml_file import Tree

_IS_PATH = re.compile(
    r"data\.(train|valid|test)(\.[0-9]+)?\.(source|target|file|dataset)"
    r"|training\.(init_from|source_vectors|target_vectors|guided_attention\.alignments)"
)


def paths_of(tree: Tree) -> dict[str, str]:
    """Return the paths in a config's tree, by their keys (`data.train.source`).

    `data.….dataset` is among them: a folder, or the name of a dataset on the hub.
    """
    return dict(_walk(tree, ""))


def with_paths(tree: Tree, change: Callable[[str, str], str]) -> Tree:
    """Return a copy of the tree with `change(key, path)` in place of each path."""
    changed: Tree = _replaced(tree, "", change)
    return changed


def _children(node: Any) -> Iterator[tuple[str, Any]]:
    yield from node.items() if isinstance(node, dict) else ((str(place), value) for place, value in enumerate(node))


def _walk(node: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, dict | list):
        for name, value in _children(node):
            yield from _walk(value, f"{key}.{name}" if key else name)
    elif isinstance(node, str) and _IS_PATH.fullmatch(key):
        yield key, node


def _replaced(node: Any, key: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(node, dict | list):
        values = {name: _replaced(value, f"{key}.{name}" if key else name, change) for name, value in _children(node)}
        return values if isinstance(node, dict) else [*values.values()]
    return change(key, node) if isinstance(node, str) and _IS_PATH.fullmatch(key) else node
