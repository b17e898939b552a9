"""The report: the worst first, in text, JSON and HTML; filters written into a config beside what stands there."""

import html.parser
import json
from collections.abc import Iterator

import pytest

from tests.data.quality.conftest import Pairs
from transformer_cli.config.yaml_file import parse_tree
from transformer_cli.data.quality.judge import KINDS as JUDGED
from transformer_cli.data.quality.judge import Bounds
from transformer_cli.doctor.findings import KINDS, Report, examine
from transformer_cli.doctor.report import FILTERED, as_html, as_json, as_text, as_yaml, filtered_config, filters

COPY = "ein Hund <script>alert(1)</script> schläft im Garten"


@pytest.fixture(scope="module")
def report() -> Report:
    pairs = [
        (f"der Hund Nummer {'a' * place} bellt laut", f"dog number {'a' * place} barks loudly") for place in range(90)
    ]
    pairs[20:24] = [(COPY, COPY)] * 4
    pairs[40] = ("a\x1b[31m b c d", "a b c d" + " long" * 60)
    return examine({"train": Pairs(pairs), "valid": Pairs([("x", ""), pairs[3]])}, Bounds())


def found(report: Report, kind: str, corpus: str = "train") -> dict[str, object]:
    return next(
        one for one in json.loads(as_json(report))["findings"] if (one["kind"], one["corpus"]) == (kind, corpus)
    )


def test_every_kind_is_explained_and_filtered_or_not_for_a_reason() -> None:
    assert {*KINDS} == {*JUDGED, "vocabulary", "too_small"}
    assert {*JUDGED} - {*FILTERED} == {"empty_side", "too_long", "duplicate_source"}
    assert not {*FILTERED} - {*JUDGED}


def test_json_has_all_lines(report: Report) -> None:
    copies = found(report, "identical_sides")
    assert copies["lines"] == [21, 22, 23, 24]
    assert copies["count"] == 4
    assert copies["examples"][0] == {"line": 21, "source": COPY, "target": COPY}  # type: ignore[index]
    assert copies["is_serious"]
    assert found(report, "overlap_valid")["lines"] == [4]
    assert found(report, "too_small")["lines"] == []
    assert "filter" not in str(found(report, "empty_side", "valid")["advice"]).removesuffix("filters do not apply here")
    assert json.loads(as_json(report))["pairs"] == {"train": 90, "valid": 2}


def test_the_worst_comes_first(report: Report) -> None:
    serious = [one.is_serious for one in report.findings]
    assert serious == sorted(serious, reverse=True)
    assert report.findings[0].kind == "identical_sides"
    assert report.is_serious


def test_text_fits_a_terminal_and_cannot_steer_it(report: Report) -> None:
    lines = [*as_text(report)]
    examples = {line for line in lines if COPY in line or "long long" in line}
    assert max(len(line) for line in lines if line not in examples) <= 80
    assert not any(character < " " for line in lines for character in line)
    assert any("\\x1b[31m" in line for line in lines)
    assert [*as_text(Report([], {"train": 3}))][-1] == "Nothing found that is wrong."


class Page(html.parser.HTMLParser):
    """Collects tags, and knows those that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_runs_nothing(report: Report) -> None:
    text = as_html(report, "a & <b>")
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert "script" not in page.tags
    assert page.links == []
    assert "svg" in page.tags
    assert "&lt;script&gt;alert(1)" in text
    assert "<title>a &amp; &lt;b&gt;</title>" in text


def test_filters_are_proposed_for_what_was_found_in_training(report: Report) -> None:
    kinds = filters(report)
    names = [one if isinstance(one, str) else next(iter(one)) for one in kinds]
    assert {"identical_sides", "overlap_valid", "control_characters", "duplicate_pair", "length_ratio"} <= {*names}
    assert not {"empty_side", "too_small", "vocabulary"} & {*names}
    assert as_yaml(["markup", {"length_ratio": 2.5}]) == "  filters: [markup, {length_ratio: 2.5}]\n"


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
    new = filtered_config(text, "a.yaml", ["markup", {"length_ratio": 2.5}])
    tree = parse_tree(new, "a.yaml")
    kinds = tree["data"].pop("filters")
    before["data"].pop("filters", None)
    assert tree == before
    names = [kind if isinstance(kind, str) else next(iter(kind)) for kind in kinds]
    assert kinds[: len(own)] == own
    assert sorted({*names}) == sorted(names)
    assert {"markup", "length_ratio"} <= {*names}
    assert new.count("#") == text.count("#")
