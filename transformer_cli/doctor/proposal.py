"""The filters that `tfm doctor` proposes: for which sources, and written into a config, whose comments stay."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from transformer_cli.config import DataConfig
from transformer_cli.config.sections import Source
from transformer_cli.config.yaml_file import dump_flow, dump_tree, parse_tree
from transformer_cli.doctor.findings import Report
from transformer_cli.errors import UserError

Kinds = list[Any]  # names of kinds, and a mapping for one with a threshold

# What may be natural, and what training leaves out anyway, is not filtered unasked.
FILTERED = (
    "misaligned",
    "swapped_sides",
    "identical_sides",
    "wrong_language",
    "overlap_test",
    "overlap_valid",
    "length_ratio",
    "encoding_damage",
    "control_characters",
    "markup",
    "number_mismatch",
    "url_mismatch",
    "mixed_scripts",
    "duplicate_source",
    "duplicate_pair",
    "template",
)


def filters(report: Report) -> dict[str, Kinds]:
    """Return, for each source, the filters that leave out what should not be trained on, and nothing that may be right.

    The worst comes first; keys are the names of the sources, `train` or `train.0`, `train.1`, …
    """
    proposed: dict[str, Kinds] = {name: [] for name in report.sources}
    for one in report.findings:
        if one.corpus in proposed and one.left_out and one.kind in FILTERED:
            bound = round(report.judgements[one.corpus].length_ratio, 2)
            proposed[one.corpus].append({one.kind: bound} if one.kind == "length_ratio" else one.kind)
    return proposed


def as_yaml(data: DataConfig, proposed: Mapping[str, Kinds]) -> str:
    """Return lines for a config's `data` section: `filters`, or all of `train` where they differ by source."""
    sources = [*data.sources.values()]
    common, own = _settled([], [source.filters for source in sources], [*proposed.values()])
    if all(kinds is None for kinds in own):
        return f"  filters: {dump_flow(common)}\n"
    lines = ["  train:\n"]
    for source, kinds in zip(sources, own, strict=True):
        values = source.model_dump(mode="json", exclude_unset=True, exclude={"filters"})
        ordered = sorted(values, key=[*type(source).__annotations__, *Source.model_fields].index)
        items = [dump_tree({key: values[key]}) for key in ordered]
        items += [] if kinds is None else [f"filters: {dump_flow(kinds)}\n"]
        margins = ["    - ", *["      "] * len(items)] if isinstance(data.train, list) else ["    "] * len(items)
        lines += [margin + item for margin, item in zip(margins, items, strict=False)]
    return "".join(lines)


def check_sources(text: str, where: str, keys: Sequence[str]) -> None:
    """Raise `UserError` where a config's text has other sources than those that were judged, by their keys."""
    data = parse_tree(text, where).get("data")
    train = data.get("train") if isinstance(data, dict) else None
    its = [f"data.train.{place}" for place in range(len(train))] if isinstance(train, list) else ["data.train"]
    if its != [*keys]:
        raise UserError(f"--write: {where} has other sources than --set data.train; name them in the config")


def filtered_config(text: str, where: str, proposed: Mapping[str, Kinds]) -> str:
    """Return a config's text with these filters beside those that it has: `data.filters` where all sources need the
    same, otherwise those of sources.

    Comments stay, unless the section is written in another way than one key per line; then all is written anew.
    """
    tree = parse_tree(text, where)
    data = tree["data"]
    several = isinstance(data.get("train"), list)
    sources = [dict(one or {}) for one in (data["train"] if several else [data.get("train")])]
    common, own = _settled(data.get("filters") or [], [one.get("filters") for one in sources], [*proposed.values()])
    changed: str | None
    if all(kinds is None for kinds in own):
        data["filters"] = common
        changed = _with_common(text, common)
    else:
        for source, kinds in zip(sources, own, strict=True):
            source |= {} if kinds is None else {"filters": kinds}
        data["train"] = sources if several else sources[0]
        changed = _with_own(text, own, several)
    return changed if changed is not None and parse_tree(changed, where) == tree else dump_tree(tree)


def _settled(common: Kinds, own: Sequence[Kinds | None], proposed: Sequence[Kinds]) -> tuple[Kinds, list[Kinds | None]]:
    """Return `data.filters`, and those of each source (None: `data.filters`), with what is proposed for each source."""
    before = [common if kinds is None else kinds for kinds in own]
    after = [_together(kinds, new) for kinds, new in zip(before, proposed, strict=True)]
    if all(kinds is None for kinds in own) and len({json.dumps(sorted(map(json.dumps, one))) for one in after}) == 1:
        return after[0], [None] * len(own)
    return common, [kinds if new == old else new for kinds, old, new in zip(own, before, after, strict=True)]


def _together(own: Kinds, new: Kinds) -> Kinds:
    """Return filters, with those of other kinds after them: their own thresholds stay."""
    named = {_name(kind) for kind in own}
    return [*own, *(kind for kind in new if _name(kind) not in named)]


def _name(kind: str | dict[str, float]) -> str:
    return kind if isinstance(kind, str) else next(iter(kind))


def _with_common(text: str, kinds: Kinds) -> str | None:
    """Return the text with `data.filters`; None: it is written otherwise than one key per line."""
    key = re.search(r"^data:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*([ \t]+)", text, re.MULTILINE)
    if key is None:
        return None
    rest = re.sub(
        rf"^{key[1]}filters:.*\n(?:{key[1]}[ \t]+.*\n|{key[1]}-.*\n)*", "", text[key.start() :], count=1, flags=re.M
    )
    start = rest.index("\n") + 1
    return f"{text[: key.start()]}{rest[:start]}{key[1]}filters: {dump_flow(kinds)}\n{rest[start:]}"


def _with_own(text: str, own: Sequence[Kinds | None], several: bool) -> str | None:
    """Return the text with the filters of sources, as far as they have some; None: it cannot be told where."""
    train = _value(_value(yaml.compose(text, Loader=yaml.SafeLoader), "data"), "train")
    nodes = train.value if several and isinstance(train, yaml.SequenceNode) else [train]
    for node, kinds in reversed([*zip(nodes, own, strict=True)]):  # places before a change stay as they are
        if kinds is None:
            continue
        if not isinstance(node, yaml.MappingNode) or nodes.count(node) > 1:  # an alias, or what it names
            return None
        present = _value(node, "filters")
        if present is not None:
            start, end = present.start_mark.index, present.end_mark.index
            end = start + len(text[start:end].rstrip())  # a list with a line for each ends where the next key begins
            new = dump_flow(kinds)
        elif node.flow_style:
            start = end = node.value[-1][1].end_mark.index
            new = f", filters: {dump_flow(kinds)}"
        else:  # beside its first key, or below its last one where that is in one line
            start = end = node.start_mark.index
            new, margin = f"filters: {dump_flow(kinds)}", f"\n{' ' * node.start_mark.column}"
            last = node.value[-1][1]
            if isinstance(last, yaml.ScalarNode) and last.style not in ("|", ">"):
                start = end = last.end_mark.index + len(text[last.end_mark.index :].partition("\n")[0])
                new = margin + new
            else:
                new += margin
        text = text[:start] + new + text[end:]
    return text


def _value(node: yaml.Node | None, key: str) -> yaml.Node | None:
    """Return the value of a key in a mapping; None: it has none."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)
