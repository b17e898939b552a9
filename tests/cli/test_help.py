"""Every help reads well on a terminal of 80 columns: `-h` in one screen, `--help` with everything, in groups."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from transformer_cli.cli.app import PANELS, app, main
from transformer_cli.cli.help import FEW, MOST_USED
from transformer_cli.cli.options import Options, option, with_options


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths(inner, (*path, name))


COMMANDS = [*paths(typer.main.get_command(app))]


GROUPS = [
    "Input and output:",
    "Server:",
    "Limits:",
    "Filters:",
    "Search:",
    "Constraints:",
    "Confidence:",
    "Engine:",
    "Options:",
    "Help:",
]


@pytest.fixture(params=COMMANDS, ids=" ".join)
def brief(request: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*request.param, "-h"]) == 0
    return capsys.readouterr().out


@pytest.fixture(params=COMMANDS, ids=" ".join)
def shown(request: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*request.param, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert help_text.startswith(" ".join(["Usage: tfm", *request.param]))
    return help_text


def test_no_line_is_wider_than_80_columns(shown: str) -> None:
    assert max(map(len, shown.splitlines())) <= 80


def test_no_line_is_left_of_what_it_belongs_to(shown: str) -> None:
    """Texts are indented, and a heading of its own stands alone; nothing else begins in the first column."""
    starts = [line for line in shown.splitlines() if line and not line.startswith("  ")]
    assert starts[0].startswith("Usage: ")
    commands = ["Commands:", *(f"{panel}:" for panel in PANELS)]
    headings = ["Examples:", "Details:", *commands, "Arguments:", *GROUPS]
    assert starts[1:] == [heading for heading in headings if heading in starts]


def test_everything_is_explained_and_nothing_is_cut(shown: str) -> None:
    _, _, lists = shown.partition("Arguments:\n")
    for line in lists.splitlines():
        if line.startswith("  ") and line[2] != " ":
            name, _, meaning = line.strip().partition("  ")
            assert len(meaning.strip()) > 5, name
            assert not meaning.endswith("..."), name


def test_no_types_of_python_and_no_braces(shown: str) -> None:
    """MODEL is explained in words; that it is a `Path` is no help."""
    usage, arguments = shown.splitlines()[0], shown.partition("Arguments:")[2].partition(":\n")[0]
    assert not set("{}<>") & set(usage)
    assert not any(word.startswith("<") for line in arguments.splitlines() for word in line[:20].split())


def test_all_commands_are_there() -> None:
    assert {("train",), ("translate",), ("plot", "attention")} <= set(COMMANDS)
    assert {name for names in PANELS.values() for name in names} == {path[0] for path in COMMANDS if path}


def test_examples_come_first(shown: str) -> None:
    """Right after the summary; only `tfm plot` has none, for each of its commands has."""
    paragraphs = shown.split("\n\n")
    assert paragraphs[2].startswith("Examples:\n  tfm ") or shown.startswith("Usage: tfm plot [")
    assert not any(line.startswith("  tfm ") for part in paragraphs[3:] for line in part.splitlines())


def test_no_bound_is_a_formula(shown: str) -> None:
    assert "<=x" not in shown
    assert "x>=" not in shown


def test_the_short_help_fits_a_screen(brief: str) -> None:
    lines = brief.splitlines()
    assert len(lines) <= 40
    assert not re.search("<=x|x>=| to 1000", brief)  # bounds are in the long one
    assert max(map(len, lines)) <= 80
    assert len(re.findall(r"^  tfm ", brief, re.MULTILINE)) <= 3
    command = " ".join(lines[0].split("[")[0].split()[1:])
    assert lines[-1] == f"All options and details: {command} --help"
    assert len(re.findall(r"^  -", brief, re.MULTILINE)) <= 10


def test_the_short_help_is_a_part_of_the_long_one(
    brief: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = brief.splitlines()[-1].partition(": tfm")[2].split()
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    everything = capsys.readouterr().out
    options = re.findall(r"^  (-.*?)  ", brief, re.MULTILINE)
    assert {*options} <= {*re.findall(r"^  (-.*?)(?:  |$)", everything, re.MULTILINE)}
    assert options or command in (["--help"], ["plot", "--help"])  # which show commands instead


def test_few_options_are_all_in_the_short_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-h"]) == 0
    shown = capsys.readouterr().out
    command: Any = typer.main.get_command(app)
    names = {option.opts[0] for option in command.commands["train"].params if option.opts[0].startswith("--")}
    assert {name for name in names if f"{name} " in shown} == names - {"--help"}


def test_the_most_used_options_are_options_that_need_to_be_chosen() -> None:
    """Each is an option of a command that has more than the short help shows; else the table tells of nothing."""
    chosen: set[str] = set()
    for path in COMMANDS:
        command: Any = typer.main.get_command(app)
        for name in path:
            command = command.commands[name]
        options = [option for option in command.params if option.opts[0].startswith("--")]
        if len(options) > FEW:
            chosen |= {name for option in options for name in option.opts}
    assert chosen >= MOST_USED


def test_a_command_that_takes_a_group_takes_its_options_and_gets_their_values() -> None:
    class Colours(Options, panel="Colours"):
        red: int = option("--red N", "How red.", 3)
        blue: bool = option("--blue", "Whether it is blue.", False)

    got: list[tuple[str, int, bool]] = []

    def paint(wall: str, *, colours: Colours, quiet: bool = option("--quiet", "Nothing said.", False)) -> None:
        """Paint a wall."""
        got.append((wall, colours.red, colours.blue))

    tried = typer.Typer(rich_markup_mode=None, add_completion=False)
    tried.command(add_help_option=False)(with_options(paint))
    command: Any = typer.main.get_command(tried)
    assert [parameter.opts[0] for parameter in command.params] == ["wall", "--red", "--blue", "--quiet", "-h", "--help"]
    assert [parameter.rich_help_panel for parameter in command.params][1:4] == ["Colours", "Colours", None]
    command.main(["north"], standalone_mode=False)
    command.main(["south", "--blue", "--red", "7"], standalone_mode=False)
    assert got == [("north", 3, False), ("south", 7, True)]
