"""Every help reads well on a terminal of 80 columns."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from transformer_cli.cli.app import PANELS, app, main


def paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths(inner, (*path, name))


COMMANDS = [*paths(typer.main.get_command(app))]


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
    headings = ["Arguments:", "Options:", "Commands:", *(f"{panel}:" for panel in PANELS)]
    assert starts[1:] == [heading for heading in headings if heading in starts]


def test_everything_is_explained_and_nothing_is_cut(shown: str) -> None:
    _, _, lists = shown.partition("Options:\n")
    for line in lists.splitlines():
        if line.startswith("  ") and line[2] != " ":
            name, _, meaning = line.strip().partition("  ")
            assert len(meaning.strip()) > 5, name
            assert not meaning.endswith("..."), name


def test_no_types_of_python_and_no_braces(shown: str) -> None:
    """MODEL is explained in words; that it is a `Path` is no help."""
    usage, arguments = shown.splitlines()[0], shown.partition("Arguments:")[2].partition("Options:")[0]
    assert not set("{}<>") & set(usage)
    assert not any(word.startswith("<") for line in arguments.splitlines() for word in line[:20].split())


def test_all_commands_are_there() -> None:
    assert {("train",), ("translate",), ("plot", "attention")} <= set(COMMANDS)
    assert {name for names in PANELS.values() for name in names} == {path[0] for path in COMMANDS if path}
