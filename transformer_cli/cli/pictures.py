"""Where the pictures of `tfm plot` go, and what is told of them. Called by its commands."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli.streams import check_output, note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="The picture, .png or .svg.  [default: here, named after what it shows]"
    ),
]


def output_path(given: Path | None, default: str) -> Path:
    """Where the picture goes; raises `UserError` where it cannot, or where matplotlib is not installed."""
    from transformer_cli import plots

    path = given if given is not None else Path(default)
    plots.check_picture(path)
    check_output(path)
    return path


def finish(figure: "Figure", path: Path, quiet: bool) -> None:
    """Write the picture and tell of it."""
    from transformer_cli import plots

    report(path, plots.save(figure, path), quiet)


def report(path: Path, notes: Sequence[str], quiet: bool) -> None:
    """Print the picture's name, and what the user should know of it."""
    print(path)
    for text in [] if quiet else notes:
        note(f"note: {text}")
