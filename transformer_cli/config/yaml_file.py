"""Config files as trees: reading, merging `--set` into them, saying what is wrong with them, writing. No torch.

`config` knows the keys and calls this; nothing here does.
"""

import math
import re
import reprlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from transformer_cli.errors import UserError

MAX_CONFIG_BYTES = 1_000_000
MAX_ALIASES = 100
MAX_DEPTH = 50
MAX_VALUES = 20_000  # of a file, each as often as aliases repeat it
SHOWN = 60  # characters of a key or value in a message
NAMES_TEXTS = "a config is a YAML file that names texts, as data: {train: {source: train.de, target: train.en}, …}"

_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # escapes can spell it, but no file and no path can hold it

Tree = dict[str, Any]


def read_config_text(path: str | Path) -> str:
    """Return the text of a config file; raise `UserError` where it cannot be read or is not a config."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot read the config: {error.strerror}") from None
    for start, kind in ((b"\x1f\x8b", "gzip data"), (b"PK\x03\x04", "a zip file"), (b"PAR1", "a Parquet file")):
        if content.startswith(start):
            raise UserError(f"{path}: is {kind}, not a config; {NAMES_TEXTS}")
    if len(content) > MAX_CONFIG_BYTES:
        _refuse_text(content.decode("utf-8-sig", errors="ignore"), str(path))
        raise UserError(f"{path}: is larger than {MAX_CONFIG_BYTES:,} bytes, which no config is; {NAMES_TEXTS}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text (byte {error.start}), as a config is; {NAMES_TEXTS}") from None


def parse_tree(text: str, where: str) -> Tree:
    """Return the sections of a config file; keys and values as they stand there."""
    try:
        tree = parse_yaml(text, where)
    except UserError:
        _refuse_text(text, where)
        raise
    if not isinstance(tree, dict) or "data" not in tree:
        _refuse_text(text, where)
    if not isinstance(tree, dict):
        what = "is empty" if tree is None else f"holds a {type(tree).__name__}, not sections"
        raise UserError(f"{where}: {what}; a config has the sections data, vocabulary, model, training, decoding")
    return tree


def _refuse_text(text: str, where: str) -> None:
    """Raise `UserError` where most of the first lines are not YAML but sentences, rows of a table or JSON objects."""
    lines = [line for line in text[:100_000].split("\n")[:100] if line.strip() and not line.lstrip().startswith("#")]
    rows = [line for line in lines if not _OF_YAML.match(line) or _JSON_LINE.fullmatch(line)]
    if len(rows) * 2 > len(lines) and (len(lines) > 1 or "\t" in text.strip()):
        raise UserError(f"{where}: holds text, not a config; {NAMES_TEXTS}")


_OF_YAML = re.compile(r"""\s*(?:[-\w."']+\s*:(?:\s|$)|[-?]\s|["']?[][{}?!&*%@`|>]|-{3})""")
_JSON_LINE = re.compile(r"""\{".*"\}\s*""")


def merge(tree: Tree, override: str) -> None:
    """Set one `section.key=value` in the tree; a mapping replaces the whole mapping."""
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"--set {shown(override)}: write it as section.key=value, for example training.max_steps=1000")
    value = parse_yaml(text, f"--set {key}")
    *parents, last = key.split(".")
    node = tree
    for parent in parents:
        child = node.get(parent, {})
        if not isinstance(child, dict):
            raise UserError(f"--set {key}: {parent} is a value, not a section")
        node[parent] = node = dict(child)  # a copy: aliases may have put the same mapping elsewhere too
    node[last] = value


def dump_tree(tree: Tree) -> str:
    """Return YAML that `parse_tree` reads back to an equal tree."""
    return str(yaml.dump(tree, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True))


def dump_flow(value: Any) -> str:
    """Return a value as YAML on one line, which reads back as an equal value in any config."""
    text = str(
        yaml.dump(
            value, Dumper=_CoreDumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf
        )
    )
    return text.removesuffix("\n").removesuffix("\n...")


def explain(error: ValidationError, hint: Callable[[tuple[str | int, ...]], str]) -> str:
    """Return what to say of the first fault of a config: key, what is wrong, what is allowed.

    `hint` says of a key that there is not, by its place in the tree, which was meant.
    """
    first = error.errors()[0]
    location = first["loc"]
    parts = _as_written(location)
    key = ".".join(part if len(part) <= SHOWN else f"{part[: SHOWN - 1]}…" for part in parts)
    if first["type"] == "extra_forbidden":
        return f"{key}: unknown key; {hint(location)}"
    if first["type"] == "missing":
        return f"{key}: is missing; add it"
    if first["type"] == "value_error":
        message = str(first["ctx"]["error"])
        return f"{key}.{message}" if key else message
    message, value = first["msg"].removeprefix("Input "), first["input"]
    several = isinstance(value, list) or (isinstance(value, str) and _SEVERAL.fullmatch(value))
    one = first["type"] in ("int_type", "float_type", "bool_type", "literal_error", "string_type")
    more = "; it has one value: train a run for each, with an --out of its own" if several and one else ""
    return f"{key}: {message}, got {shown(value)}{more}"


def _as_written(location: tuple[str | int, ...]) -> list[str]:
    """Return the place of a fault by the keys of the file, without the kinds of a value that pydantic tells apart."""
    parts = [str(part) for part in location if not re.match(r"(literal|dict)\[", str(part))]
    if parts[:2] == ["data", "train"]:  # one source, or a list of them; each then has its kind
        several = parts[2:3] == ["list"]
        return [*parts[:2], *parts[3 : 3 + several], *parts[4 + several :]]
    return [*parts[:2], *parts[3:]] if parts[:2] in (["data", "valid"], ["data", "test"]) else parts


_SEVERAL = re.compile(r"(?!\d{1,3}(?:,\d{3})+$)[^,]+(?:,[^,]+)+")  # but 4,000 is a number that someone wrote for people


def shown(value: Any) -> str:
    """Return a value as a message shows it: short, whatever it is."""
    text = _brief.repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


_brief = reprlib.Repr()  # never writes out all of a tree, which aliases may have made as large as they like
_brief.maxstring = _brief.maxother = _brief.maxlong = SHOWN


# --- YAML ---------------------------------------------------------------------------------------------------------


class _CoreLoader(yaml.SafeLoader):
    """YAML 1.2's core rules (`no` is text, `1e-4` a number) and no other tags, no duplicate keys, and few aliases."""

    yaml_implicit_resolvers = {}  # those below
    yaml_constructors = {None: yaml.SafeLoader.construct_undefined}
    aliases = 0
    values = 0
    depth = 0

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[int, int] = {}  # by node: how many values it holds, those of its aliases too

    def compose_node(self, parent: Any, index: Any) -> Any:
        before, is_alias = self.values, self.check_event(yaml.AliasEvent)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.YAMLError("nested too deeply")
        node = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias:
            self.aliases += 1
            if id(node) not in self._sizes:
                raise yaml.YAMLError("an alias stands inside of what it names")
        self.values += self._sizes[id(node)] if is_alias else 1
        self._sizes[id(node)] = self.values - before
        if self.aliases > MAX_ALIASES:
            raise yaml.YAMLError(f"more than {MAX_ALIASES} aliases")
        if self.values > MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES:,} values")
        return node

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if isinstance(value, str) and _NO_TEXT.search(value):
            raise yaml.MarkedYAMLError(problem="a character that no text holds", problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key.value, str):
                raise yaml.MarkedYAMLError(problem="a key that is not a plain word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key {shown(key.value)} stands here twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _FastLoader(_CoreLoader):
    """The same, where libyaml reads the text: three times as fast, but it says worse what is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__("")
        parser = yaml.CSafeLoader(text)
        for name in ("check_event", "peek_event", "get_event"):
            setattr(self, name, getattr(parser, name))


def _construct_int(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _construct_float(loader: Any, node: Any) -> float:
    text = loader.construct_scalar(node).lower()
    return math.nan if text == ".nan" else float(text.replace(".inf", "inf"))


_SAFE: Any = yaml.SafeLoader
_FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
for _kind, _construct, _pattern, _first in [
    ("bool", _SAFE.construct_yaml_bool, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", _SAFE.construct_yaml_null, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", _construct_int, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", _construct_float, _FLOAT, "-+.0123456789"),
    ("str", _SAFE.construct_yaml_str, None, ""),
    ("seq", _SAFE.construct_yaml_seq, None, ""),
    ("map", _SAFE.construct_yaml_map, None, ""),
]:
    _CoreLoader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct)
    if _pattern is not None:
        _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), list(_first))


class _CoreDumper(yaml.SafeDumper):
    """Quotes every text that `_CoreLoader` would not read back as the same text."""


def _represent_text(dumper: Any, text: str) -> yaml.ScalarNode:
    resolvers = [pattern for entries in _CoreLoader.yaml_implicit_resolvers.values() for _, pattern in entries]
    plain = text.isprintable() and not any(pattern.match(text) for pattern in resolvers)
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')
    return node


_CoreDumper.add_representer(str, _represent_text)


_READ_OTHERWISE = re.compile("[\t?!\ufeff]")  # where libyaml and PyYAML's own parser do not agree
_FAULTS = (ValueError, TypeError, KeyError, AttributeError)  # what PyYAML lets through


def parse_yaml(text: str, where: str) -> Any:
    """Return what a YAML text holds, by the 1.2 core rules; `UserError` with the line where it is not valid."""
    try:
        if hasattr(yaml, "CSafeLoader") and not _READ_OTHERWISE.search(text):  # PyYAML was built with libyaml
            with suppress(yaml.YAMLError, *_FAULTS):
                return yaml.load(text, Loader=_FastLoader)  # noqa: S506  (a SafeLoader with stricter rules)
        return yaml.load(text, Loader=_CoreLoader)  # noqa: S506
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{where}:{line} is not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, *_FAULTS) as error:
        raise UserError(f"{where}: is not valid YAML: {' '.join(str(error).split())[:150]}") from None
