"""`tfm init`: one call of `data.initialize`, and what it found, left out and wrote."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli.options import QUIET, option

if TYPE_CHECKING:
    from transformer_cli.data.initialize import Initialized

MEANS = "Two text files, a TMX, TSV, CSV or JSONL file, or a Moses zip, plain, .gz or .zip."
FEW = 100  # test pairs
Files = Annotated[list[Path], typer.Argument(metavar="FILE", help=MEANS)]


def init(
    files: Files,
    source_language: str | None = option("--from LANGUAGE", "The source language, such as de."),
    target_language: str | None = option("--to LANGUAGE", "The target language, such as en."),
    out: str | None = option("--out NAME", "Write NAME.yaml and data/NAME/.  [default: by the files' names]"),
    seed: int = option("--seed N", "Another seed draws other validation and test pairs.", 1, min=0),
    quiet: bool = QUIET,
) -> None:
    """Make a config, and training, validation and test files, from the files you have.

    \b
    tfm init memory.tmx
    tfm init train.de train.en --out mine
    tfm init sentences.csv --from de --to en

    Writes NAME.yaml, and to data/NAME/ text files for training, validation and test: 5 % of the pairs each for the last
    two, at most 1,000. No sentence of theirs, compared without case and with white space collapsed, stays on either
    side of the training pairs. Files called train, valid (or dev) and test keep their parts: the config names them
    where they are. Languages come from file names, TMX headers, the first line of a table, or the options. Nothing that
    exists is written over.
    """
    from transformer_cli.data.initialize import initialize

    done = initialize(files, (source_language, target_language), out, seed, progress=not quiet)
    print("\n".join(report(done)))


def report(done: "Initialized") -> list[str]:
    """Return what was found, left out and written, and the next command, line by line."""
    languages = done.languages
    rows = [("found", f"{where}" + f" ({split})" * (len(done.found) > 1)) for split, where in done.found.items()]
    rows.append(
        ("languages", f"{languages[0]} to {languages[1]} (the other way: --from {languages[1]} --to {languages[0]})")
    )
    rows += [("left out", text) for text in done.left_out]
    rows += [("note", text) for text in done.notes]
    for split, size in done.sizes.items():
        where = f"  {done.files[split][0]}, {done.files[split][1].name}" if split in done.files else ""
        rows.append((split, f"{size:,} pair{'s' * (size != 1)}{where}"))
    if done.sizes.get("test", FEW) < FEW:
        rows.append(("note", "so few test pairs say little: a score may be far off"))
    config = shlex.quote(str(done.config))
    rows += [("wrote", str(done.config)), ("next", f"tfm train {config}")]
    names = ["" if place and row[0] == rows[place - 1][0] else row[0] for place, row in enumerate(rows)]
    return [f"{name:<9}  {text}" for name, (_, text) in zip(names, rows, strict=True)]
