"""The documentation tells the truth: the generated pages are those of the code, names and links lead somewhere."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from transformer_cli.cli.app import PANELS, app, main
from transformer_cli.config import Config, load_config, parse_config
from transformer_cli.errors import UserError

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("*/README.md"))]
SMALLEST = """
data:
  source_language: de
  target_language: en
  train: {source: a.de, target: a.en}
"""


def load_generator() -> Any:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> Any:
    return load_generator()


@pytest.mark.parametrize("name", ["cli.md", "config.md"])
def test_a_generated_page_is_that_of_the_code(name: str, generator: Any) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == generator.pages()[name], (
        f"docs/{name} is not what the code says: run `make docs` (python docs/generate.py) and commit the page"
    )


# --- config.md ----------------------------------------------------------------------------------------------------


def rows(page: str, words: str = r"[a-z_]+\.[a-z_]+") -> dict[str, list[str]]:
    """key → the other cells of its row."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(rf"^\| `({words})` \| (.*) \|$", text, re.MULTILINE)
    assert len(dict(found)) == len(found), "a key has two rows"
    return {key: [cell.strip() for cell in cells.split(" | ")] for key, cells in found}


def leaves(tree: dict[str, Any]) -> list[str]:
    return [f"{section}.{key}" for section, values in tree.items() for key in values]


def test_every_key_of_a_config_has_a_row_and_no_other() -> None:
    assert list(rows("config.md")) == leaves(parse_config(SMALLEST, "smallest").model_dump())


@pytest.mark.parametrize("key", [key for key in rows("config.md") if not key.startswith("data.t")])
def test_bounds_are_what_the_validator_holds(key: str) -> None:
    """The bound itself is taken, or refused for another reason than its size; what lies past it is refused."""
    kind, bound, _, meaning = rows("config.md")[key]
    assert len(meaning) > 10
    for sign, written in re.findall(r"([≥>≤<]) ([0-9.,^]+)", bound):
        limit = 2.0**32 if written == "2^32" else float(written.replace(",", ""))
        past = {"≥": -1, ">": 0, "≤": 1, "<": 0}[sign]
        for value, within in ((limit + past, False), (limit, sign in "≥≤")):
            number = f"{value:.0f}" if kind.startswith("integer") else f"{value}"
            given = f"[{number}, {number}]" if kind.startswith("list") else number
            try:
                parse_config(SMALLEST, "smallest", [f"{key}={given}"])
                message = ""
            except UserError as error:
                message = str(error)
            assert (f"{key}" in message and "should be" in message) is not within, (key, given, message)


def test_defaults_are_those_of_an_empty_section() -> None:
    """Read back as YAML, the defaults of the page make the config that leaving them out makes."""
    changes = [f"{key}={row[2].strip('`')}" for key, row in rows("config.md").items() if row[2] != "required"]
    assert len(changes) > 60
    assert parse_config(SMALLEST, "page", changes) == parse_config(SMALLEST, "none")


def test_the_page_has_a_heading_for_each_section() -> None:
    headings = re.findall(r"^## (.*)$", (DOCS / "config.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:5] == list(Config.model_fields)


# --- cli.md -------------------------------------------------------------------------------------------------------


def test_what_the_help_shows_is_on_the_page(generator: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Every command, nested ones too, and every option that its `--help` lists."""
    sections = re.split(r"^## (tfm.*)\n", (DOCS / "cli.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    page = dict(zip(sections[::2], sections[1::2], strict=True))
    commands = dict(generator.walk(get_command(app), "tfm"))
    assert list(page) == list(commands)
    for path in commands:
        assert main([*path.split()[1:], "--help"]) == 0
        help_text = capfd.readouterr().out
        listed = {word for line in help_text.splitlines() for word in re.findall(r"^  (?:-\w, )?(--[a-z-]+)  ", line)}
        shown = {word for row in re.findall(r"^\| (`--.*?) \|", page[path], re.MULTILINE) for word in row.split("`")}
        assert listed - {"--help"} <= shown, path
        headings = re.findall(r"^([A-Z].*):$", help_text, re.MULTILINE)
        groups = [heading for heading in headings if heading in re.findall(r"^(.*):$", page[path], re.MULTILINE)]
        own = {*headings} - {"Examples", "Details", "Arguments", "Options", "Help", "Commands", *PANELS}
        assert groups == [heading for heading in headings if heading in own], path


def test_the_long_help_is_on_the_page_in_groups() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8").partition("## tfm translate\n")[2].partition("\n## ")[0]
    assert re.findall(r"^([A-Z].*):$", page, re.MULTILINE)[-5:] == [
        *("Input and output", "Search", "Constraints", "Confidence", "Engine")
    ]


def test_nested_commands_get_a_section_each(generator: Any) -> None:
    import typer

    outer, inner = typer.Typer(), typer.Typer(help="Pictures.")

    @inner.command()
    def mask(width: int = typer.Option(3, "--width", min=1, help="How wide.")) -> None:
        """A picture of the mask."""

    outer.add_typer(inner, name="plot")
    outer.command("other")(lambda: None)
    found = dict(generator.walk(get_command(outer), "tfm"))
    assert list(found) == ["tfm", "tfm other", "tfm plot", "tfm plot mask"]
    assert generator.parameter_row(found["tfm plot mask"].params[0]) == (
        "`--width`",
        "integer",
        "≥ 1",
        "`3`",
        "How wide.",
    )


# --- names and links ----------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", text):
        if "://" not in target:
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(file), f"{page.name} links to {target}#{anchor}"
    for name in re.findall(r"`((?:configs|docs|tests|benchmarks|transformer_cli)/[A-Za-z0-9_./-]+\.[a-z]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_shipped_configs_load_and_are_commented(path: Path) -> None:
    load_config(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert f"tfm train configs/{path.name}" in text
    assert all(len(line) <= 120 for line in text.splitlines())
    for name in re.findall(r"docs/[a-z-]+\.md", text):
        assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_wmt_configs_hold_the_papers_numbers() -> None:
    base, big = (load_config(ROOT / "configs" / f"wmt14_en_de_{size}.yaml") for size in ("base", "big"))
    shapes = [
        (c.model.encoder_layers, c.model.d_model, c.model.d_ff, c.model.heads, c.model.dropout) for c in (base, big)
    ]
    assert shapes == [(6, 512, 2048, 8, 0.1), (6, 1024, 4096, 16, 0.3)]  # table 3
    assert [c.training.max_steps for c in (base, big)] == [100_000, 300_000]
    assert [c.training.average_last for c in (base, big)] == [5, 20]  # section 6.1
    for each in (base, big):
        assert each.training.batch_tokens * each.training.accumulation == 25_000  # section 5.1
        assert (each.training.warmup_steps, each.training.label_smoothing, each.vocabulary.size) == (4000, 0.1, 37_000)
        assert (each.decoding.beam_size, each.decoding.length_penalty) == (4, 0.6)
        assert (each.model.norm, each.model.tie_embeddings, each.model.positions) == ("post", "all", "sinusoidal")
