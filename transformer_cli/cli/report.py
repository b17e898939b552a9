"""`tfm report`: runs side by side, one page about them, and their model cards."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, align, check_output, is_file, note, warn, write_report

if TYPE_CHECKING:
    from transformer_cli.report.outputs import Examined
    from transformer_cli.report.runs import Run

WIDTH = 120  # characters, where there is no terminal
PAGES = (".html", ".htm")


def report(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; other folders are skipped.")],
    format_: Literal["text", "json", "html"] | None = opt.option(
        "--format FORMAT", "text, json or html (a page).  [default: html where --output ends in .html, else text]"
    ),
    output_file: Path | None = opt.option("--output -o FILE", "Write the report to this file."),
    card: bool = opt.option("--card", "Write a model card, README.md, into each run folder.", False),
    sentences: int | None = opt.option(
        "--sentences N", "Translate only the first N of each set.  [default: all of the test set]", min=1
    ),
    evaluate: bool = opt.option("--evaluate/--no-evaluate", "Translate test and validation set.", True),
    doctor: bool = opt.option("--doctor/--no-doctor", "Let the card say what tfm doctor finds in the data.", True),
    device: str = opt.DEVICE,
    quiet: bool = opt.QUIET,
) -> None:
    """Compare runs in a table, or write a page or a model card.

    \b
    tfm report checkpoints/*
    tfm report checkpoints/my -o report.html
    tfm report checkpoints/my --card

    The table has the settings in which the runs differ, steps, time, parameters and the validation scores of the best
    step. The page and the card translate the test set once, and measure speed with it. The page needs no network.

    A README.md that tfm did not write is never replaced. The card states the license that data.license names.
    """
    from transformer_cli.report import runs as of_runs

    kind = format_ or ("html" if output_file is not None and output_file.suffix.lower() in PAGES else "text")
    check_output(output_file, context.params)
    chosen = of_runs.in_order(read_runs(runs, quiet))
    found: list[Examined] = []
    if card:
        from transformer_cli.report.card import check_card

        for run in chosen:
            check_card(run.path)
    if card or kind == "html":
        found = [examine(run, device, sentences, evaluate, quiet) for run in chosen]
        if not quiet:
            warn(*(text for one in found for text in one.notes))
    printed = not card or output_file is not None or format_ is not None
    if card:
        for path in write_cards(found, doctor, quiet):
            if not printed or (output_file is not None and is_file(output_file)):
                print(path)
            elif not quiet:
                note(f"wrote {path}")  # stdout is the report's
    if printed:
        text = of_runs.as_json(chosen) if kind == "json" else as_table(of_runs.table(chosen))
        if kind == "html":
            from transformer_cli.report.run_page import as_html

            text = as_html(found, chosen[0].name if len(chosen) == 1 else f"{len(chosen)} runs")
        write_report(output_file, text)


def read_runs(paths: Sequence[Path], quiet: bool) -> "list[Run]":
    """Return the runs among folders, each once; others are noted. Raises `UserError` where none is a run."""
    from transformer_cli.report.runs import NotARun, read_run

    runs, others = [], []
    for path in dict.fromkeys(paths):
        try:
            runs.append(read_run(path))
        except NotARun as error:
            others.append(error)
    if not runs:
        raise others[0]
    for other in [] if quiet else others:
        note(f"skipped: {other}")
    return runs


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the table of runs as text, with a line for each run.

    One run alone, and what is wider than the terminal, has a column for each run, below each other as many as fit.
    """
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    names, *columns = rows
    lines = align(rows)
    if len(columns) > 1 and max(map(len, lines)) <= width:
        return "\n".join(lines)
    blocks = []
    while columns:
        for count in range(len(columns), 0, -1):
            block = align(list(zip(names, *columns[:count], strict=True)), left=count + 1)
            if max(map(len, block)) <= width:
                break
        blocks.append("\n".join(block))
        del columns[:count]
    return "\n\n".join(blocks)


def examine(run: "Run", device: str, most: int | None, evaluate: bool, quiet: bool) -> "Examined":
    """Return a run with what its model does, or, without evaluating, the run alone."""
    from transformer_cli.report.outputs import Examined, examine_run

    if not evaluate:
        return Examined(run)
    return examine_run(run, device, most, lambda what, total: Progress(what, total=total, quiet=quiet))


def write_cards(found: "Sequence[Examined]", doctor: bool, quiet: bool) -> Iterator[Path]:
    """Write the card of each run, and yield its files."""
    from transformer_cli.report.card import RESULTS, judge_data, write_card
    from transformer_cli.storage.origin import is_on_hub

    for one in found:
        said = judge_data(one.run, progress=not quiet) if doctor else []
        yield from write_card(one, said)
        if quiet:
            continue
        if one.run.config.data.license is None:
            note(f"note: {one.run.path}: states no license; set data.license in its config.yaml")
        if one.outputs and not is_on_hub(one.run.config.data.test):
            note(f"note: {one.run.path}: no {RESULTS}, which is for test sets on the Hugging Face hub")
