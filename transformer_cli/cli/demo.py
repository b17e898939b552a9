"""`tfm demo`: one call of `demo.run.demo`, and what it found, shown."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from transformer_cli.cli.options import DEVICE, QUIET, option

if TYPE_CHECKING:
    from transformer_cli.demo.run import DemoResult


def demo(
    out: Path = option("--out DIR", "The folder for corpus, model and plots.", Path("demo")),
    device: str = DEVICE,
    quiet: bool = QUIET,
) -> None:
    """Train a small German-English translator, and try it.

    \b
    tfm demo
    tfm demo --out /tmp/demo

    Writes a corpus of 20,000 everyday sentences with their translations into DIR, trains on it, scores the model on
    sentences it has not seen, shows translations and draws pictures. The same command again continues where it stopped.
    """
    from transformer_cli.demo import run
    from transformer_cli.training.run import Interrupted

    try:
        result = run.demo(out, device=device, quiet=quiet)
    except Interrupted as interrupted:
        raise typer.Exit(128 + interrupted.signal_number) from None
    print("\n".join(report(out, result)))


def report(folder: Path, result: "DemoResult") -> list[str]:
    """Return what the demo shows at its end, line by line."""
    model, corpus, tfm = shlex.quote(str(folder / "model")), shlex.quote(str(folder / "corpus")), own_command()
    lines = []
    for example in result.examples:
        lines += [f"source       {example.source}", f"translation  {example.translation}"]
        lines += [] if example.translation == example.reference else [f"reference    {example.reference}"]
        lines.append("")
    lines += [
        f"BLEU         {result.test.bleu:.1f} on {result.test.sentences} test sentences, none of them in training",
        f"             {result.unseen.bleu:.1f} on the {result.unseen.sentences} of them whose verb and noun never met "
        "in training",
        f"model        {folder / 'model'}",
        f"pictures     {', '.join(map(str, result.pictures))}"
        if result.pictures
        else "pictures     need matplotlib: pip install 'transformer-cli[plots]', then tfm demo again",
        "",
        "Now try:",
        f'  {tfm} translate {model} "Meine Schwester hat heute zwei rote Äpfel gekauft."',
        f"  {tfm} evaluate {model} --source {corpus}/test.de --reference {corpus}/test.en",
        f'  {tfm} plot attention {model} "Wo ist das blaue Buch?"',
        f"  {tfm} train YOUR.yaml         # a copy of {folder / 'config.yaml'} with the names of your own files",
    ]
    return lines


def own_command() -> str:
    """Return what to type in this shell to run this very `tfm`: its name if the PATH leads there, else where it is."""
    called = Path(sys.argv[0])
    program = called if called.stem == "tfm" and called.is_file() else Path(sys.executable).with_name("tfm")
    if not program.is_file():
        return f"{shlex.quote(sys.executable)} -m transformer_cli"
    found = shutil.which("tfm")
    if found is not None and os.path.samefile(found, program):
        return "tfm"
    path = program.absolute()
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
