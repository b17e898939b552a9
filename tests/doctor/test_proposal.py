"""Filters: proposed for what was found, and written into a config beside what stands there."""

from collections.abc import Iterator
from typing import Any

import pytest

from transformer_cli.config import parse_config
from transformer_cli.config.yaml_file import parse_tree
from transformer_cli.doctor.findings import Report
from transformer_cli.doctor.proposal import as_yaml, check_sources, filtered_config, filters
from transformer_cli.errors import UserError


def test_filters_are_proposed_for_what_was_found_in_training(report: Report) -> None:
    kinds = filters(report)["train"]
    names = [one if isinstance(one, str) else next(iter(one)) for one in kinds]
    assert {"identical_sides", "overlap_valid", "control_characters", "duplicate_pair", "length_ratio"} <= {*names}
    assert not {"empty_side", "too_small", "vocabulary"} & {*names}
    data = parse_config(BLOCK.replace("data:", "data:\n  source_language: de\n  target_language: en"), "a.yaml").data
    assert as_yaml(data, {"train": ["markup", {"length_ratio": 2.5}]}) == "  filters: [markup, {length_ratio: 2.5}]\n"


BLOCK = """# mine
data:  # where
  # first
  train: {source: a, target: b}  # text
  max_length: 9
model: {preset: auto}
"""


def configs() -> Iterator[tuple[str, list[object]]]:
    yield BLOCK, []
    yield BLOCK.replace("  max_length: 9\n", "  max_length: 9\n  filters: [template]\n"), ["template"]
    yield (
        BLOCK.replace("  max_length: 9\n", "  filters:\n    - template\n    - markup\n  max_length: 9\n"),
        ["template", "markup"],
    )
    yield (
        BLOCK.replace("  max_length: 9\n", "  filters:\n  - length_ratio: 3.0\n  max_length: 9\n"),
        [{"length_ratio": 3.0}],
    )
    yield "model: {}\ndata: {train: {source: a, target: b}, filters: [template]}\n", ["template"]


@pytest.mark.parametrize(("text", "own"), [*configs()])
def test_filters_are_written_beside_what_stands_there(text: str, own: list[object]) -> None:
    before = parse_tree(text, "a.yaml")
    new = filtered_config(text, "a.yaml", {"train": ["markup", {"length_ratio": 2.5}]})
    tree = parse_tree(new, "a.yaml")
    kinds = tree["data"].pop("filters")
    before["data"].pop("filters", None)
    assert tree == before
    names = [kind if isinstance(kind, str) else next(iter(kind)) for kind in kinds]
    assert kinds[: len(own)] == own
    assert sorted({*names}) == sorted(names)
    assert {"markup", "length_ratio"} <= {*names}
    assert new.count("#") == text.count("#")


HEAD = "data:\n  source_language: de\n  target_language: en\n"
SOURCES = (
    HEAD
    + """  train:  # two
    - {source: a, target: b, weight: 2}  # ours
    # the other way
    - source: c
      target: d
      tag: <2de>  # to German
  max_length: 9
"""
)
OWN = SOURCES.replace("weight: 2", "filters: [template]").replace("      tag", "      filters: []  # none\n      tag")
NESTED = SOURCES.replace(
    "{source: a, target: b, weight: 2}", "filters:\n        - template\n      source: a\n      target: b"
)
LITERAL = (
    SOURCES.replace("tag: <2de>", "weight: 2.0\n      target_: |\n        d")
    .replace("target: d\n      ", "")
    .replace("target_", "target")
)
ANCHORS = (
    SOURCES.replace("{source: a, target: b, weight: 2}", "&a {source: a, target: b}")
    .replace("source: c\n", "*a\n")
    .replace("      target: d\n", "")
    .replace("      tag: <2de>  # to German\n", "")
)
DIFFERENT: dict[str, list[Any]] = {"train.0": ["markup", {"length_ratio": 2.5}], "train.1": ["template"]}


@pytest.mark.parametrize("text", [SOURCES, OWN, NESTED, LITERAL, ANCHORS, SOURCES.replace("\n  max_length: 9\n", "")])
def test_sources_that_differ_get_filters_of_their_own(text: str) -> None:
    new = filtered_config(text, "a.yaml", DIFFERENT)
    before, after = parse_tree(text, "a.yaml")["data"], parse_tree(new, "a.yaml")["data"]
    for place, (old, source) in enumerate(zip(before["train"], after["train"], strict=True)):
        own = old.get("filters") or []
        assert source["filters"] == own + [kind for kind in DIFFERENT[f"train.{place}"] if kind not in own]
        assert {**source, "filters": 0} == {**old, "filters": 0}
    assert {**after, "train": 0} == {**before, "train": 0}
    assert new.count("#") == (0 if text == ANCHORS else text.count("#"))  # a source that is named twice is written anew


def test_sources_that_agree_get_common_filters() -> None:
    agreed = {"train.0": ["markup", "template"], "train.1": ["template", "markup"]}
    new = filtered_config(SOURCES, "a.yaml", agreed)
    assert new == SOURCES.replace("data:\n", "data:\n  filters: [markup, template]\n")
    data = parse_config(SOURCES, "a.yaml").data
    assert as_yaml(data, agreed) == "  filters: [markup, template]\n"
    common = new.replace("markup, template", "swapped_sides")
    again = parse_tree(
        filtered_config(common, "a.yaml", {"train.0": ["swapped_sides"], "train.1": ["markup"]}), "a.yaml"
    )
    assert again["data"]["filters"] == ["swapped_sides"]
    assert "filters" not in again["data"]["train"][0]
    assert again["data"]["train"][1]["filters"] == ["swapped_sides", "markup"]


@pytest.mark.parametrize("text", [SOURCES, OWN])
def test_what_is_printed_for_sources_is_their_list(text: str) -> None:
    data = parse_config(text, "a.yaml").data
    printed = HEAD + as_yaml(data, DIFFERENT)
    written = parse_config(filtered_config(text, "a.yaml", DIFFERENT), "a.yaml").data
    assert parse_config(printed, "b.yaml").data.train == written.train
    assert printed.index("source: a") < printed.index("filters:")


def test_the_filters_of_a_single_source_are_its_own() -> None:
    """`data.filters` would not count for it."""
    text = HEAD + "  train: {source: a, target: b, filters: [template]}  # text\n"
    new = filtered_config(text, "a.yaml", {"train": ["markup"]})
    assert new == text.replace("[template]", "[template, markup]")
    printed = HEAD + as_yaml(parse_config(text, "a.yaml").data, {"train": ["markup"]})
    assert parse_config(printed, "b.yaml").data.filters == []
    assert parse_config(printed, "b.yaml").data.sources["data.train"].filters == ["template", "markup"]


def test_the_sources_that_are_judged_are_those_of_the_config() -> None:
    check_sources(SOURCES, "a.yaml", ["data.train.0", "data.train.1"])
    check_sources(BLOCK, "a.yaml", ["data.train"])
    check_sources("model: {}", "a.yaml", ["data.train"])
    for text, keys in ((SOURCES, ["data.train"]), (SOURCES, ["data.train.0"]), (BLOCK, ["data.train.0"])):
        with pytest.raises(UserError, match=r"a.yaml has other sources than --set data.train"):
            check_sources(text, "a.yaml", keys)
