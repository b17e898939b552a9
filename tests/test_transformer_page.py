"""docs/the-transformer.md names what is there, and its translation says the same; test_readme.py runs its snippets."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from transformer_cli.config import Config
from transformer_cli.data.batch import Batch
from transformer_cli.model.masks import causal_mask
from transformer_cli.text.vocabulary import EOS, SPECIALS

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = ROOT / "docs" / "the-transformer.md", ROOT / "docs" / "the-transformer.zh.md"
TUTORIALS = ROOT / "tests" / "model" / "test_what_tutorials_do.py"
PAGES = pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=lambda page: page.name)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"\[([\w.]+)\]\(\.\./([\w/]+)\.py\)[:：]\s*((?:`[\w.]+`(?:, |、)?)+)")


class Part(NamedTuple):
    """What stands below one heading, the heading with it."""

    level: int
    heading: str
    text: str  # without blocks
    blocks: list[str]

    @property
    def links(self) -> list[str]:
        return sorted(re.findall(r"\]\(([^)]+)\)", self.text))

    @property
    def inline_code(self) -> set[str]:
        return set(re.findall(r"`([^`\n]+)`", self.text))


def parts(page: Path) -> list[Part]:
    found: list[Part] = []
    blocks: list[str] = []

    def hide(block: re.Match[str]) -> str:
        blocks.append(block[0])
        return f"BLOCK {len(blocks) - 1}"

    text = FENCED.sub(hide, page.read_text(encoding="utf-8"))
    for below in re.split(r"^(?=#+ )", text, flags=re.MULTILINE)[1:]:
        hashes, heading = re.findall(r"^(#+) (.*)$", below, re.MULTILINE)[0]
        own = [blocks[int(number)] for number in re.findall(r"^BLOCK (\d+)$", below, re.MULTILINE)]
        found.append(Part(len(hashes), heading, below, own))
    return found


def both() -> Iterator[tuple[Part, Part]]:
    return zip(parts(ENGLISH), parts(CHINESE), strict=True)


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- the translation ----------------------------------------------------------------------------------------------


def test_the_translation_has_the_same_headings() -> None:
    assert [one.level for one in parts(ENGLISH)] == [one.level for one in parts(CHINESE)]
    for one, other in both():
        assert re.search(r"[\u4e00-\u9fff]", other.heading), other.heading
        assert one.heading != other.heading


def test_its_formulas_and_programs_are_the_same_so_that_running_one_page_is_enough() -> None:
    assert sum(len(one.blocks) for one in parts(ENGLISH)) > 40
    for one, other in both():
        assert one.blocks == other.blocks, one.heading


def test_it_names_the_same_keys_classes_and_tests() -> None:
    for one, other in both():
        assert one.inline_code == other.inline_code, one.heading


def test_it_links_to_the_same_places() -> None:
    """Links within a page lead to headings of its own, at the same place of both."""
    names = [
        {f"#{anchor(part.heading)}": number for number, part in enumerate(parts(page))} for page in (ENGLISH, CHINESE)
    ]
    for one, other in list(both())[1:]:
        places = [[names[side].get(link, link) for link in part.links] for side, part in enumerate((one, other))]
        assert places[0] == places[1], one.heading
        assert not any(str(place).startswith("#") for place in places[0])
    assert [part.links for part in next(both())] == [["the-transformer.zh.md"], ["the-transformer.md"]]


def test_its_tables_hold_the_same_signs() -> None:
    for one, other in both():
        rows = [re.findall(r"^\|.*\|$", part.text, re.MULTILINE) for part in (one, other)]
        signs = [[re.findall(r"[|✓·]|\b[\d,]+\b", row) for row in side] for side in rows]
        assert signs[0] == signs[1], one.heading


def test_a_paragraph_of_it_is_one_line() -> None:
    """A line break would be shown as a space, which Chinese does not have."""
    for part in parts(CHINESE):
        for first, second in zip(part.text.splitlines(), part.text.splitlines()[1:], strict=False):
            assert not first or not second or first[0] in "#-|" or second[0] in "-|", first


# --- what both name -----------------------------------------------------------------------------------------------


@PAGES
def test_every_class_and_function_is_in_the_file_beside_it(page: Path) -> None:
    found = NAMED.findall(page.read_text(encoding="utf-8"))
    assert len(found) > 20
    known = set()
    for link, file, names in found:
        assert f"/{link}" in f"/{file}.py"
        module = importlib.import_module(file.replace("/", "."))
        for name in re.findall(r"`([\w.]+)`", names):
            value = module
            for step in name.split("."):
                value = getattr(value, step)
            assert getattr(value, "__module__", module.__name__) == module.__name__, f"{name} is imported there"
            known.add(name)
    classes = {name for part in parts(page) for name in part.inline_code if re.fullmatch(r"([A-Z][a-z]+)+", name)}
    assert classes <= known


@PAGES
def test_every_config_key_is_one(page: Path) -> None:
    """But for the last part's, of variants."""
    keys = {key for part in parts(page)[:-1] for key in part.inline_code if re.fullmatch(r"[a-z]+\.[a-z_]+", key)}
    keys = {key for key in keys if key.partition(".")[0] in Config.model_fields}
    assert len(keys) >= 5
    for key in keys:
        section, name = key.split(".")
        assert name in Config.model_fields[section].annotation.model_fields, key  # type: ignore[union-attr]


@PAGES
def test_every_test_of_what_tutorials_do_is_named(page: Path) -> None:
    tree = ast.parse(TUTORIALS.read_text(encoding="utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert there == {name for part in parts(page) for name in part.inline_code if name.startswith("test_")}


@PAGES
def test_the_table_of_letters_is_what_the_model_is_given(page: Path) -> None:
    letters = [*SPECIALS, "h", "a", "t"]
    batch = Batch.from_ids([([], [4, 5, 6])])
    given, wanted = (
        [letters[number] for number in row[0].tolist()] for row in (batch.target_input, batch.target_output)
    )
    assert wanted[-1] == SPECIALS[EOS]
    signs = [" | ".join("✓" if sees else "·" for sees in row) for row in causal_mask(4, 4).tolist()]
    rows = [f"| {place} | `{given[place]}` | {signs[place]} | `{wanted[place]}` |" for place in range(4)]
    text = page.read_text(encoding="utf-8")
    assert "\n".join(rows) in text
    assert re.findall(r"(?:sees|看见) `([^`]+)` \|", text) == given
