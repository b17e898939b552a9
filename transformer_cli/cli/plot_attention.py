"""`tfm plot attention`: what the heads of a model attend to."""

from typing import Annotated

import typer

from transformer_cli.cli.arguments import Device, Model, Quiet, parse_numbers
from transformer_cli.cli.pictures import Output, output_path, report
from transformer_cli.errors import UserError, one_of

KINDS = ["encoder", "decoder", "cross"]


def attention(
    model: Model,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="A sentence to translate.")],
    target: Annotated[
        str | None, typer.Option("--target", metavar="TEXT", help="Show this translation, not the model's own.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="encoder, decoder (self-attention) or cross.")
    ] = "cross",
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="NUMBERS", help="Such as 1,3 or 2-4, counted from 1.  [default: all]"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="NUMBERS", help="Such as 1,3 or 2-4, counted from 1.  [default: all]"),
    ] = None,
    mean: Annotated[bool, typer.Option("--mean", help="One map a layer: the mean of the heads.")] = False,
    output_file: Output = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw which tokens a model attends to while it translates.

    A heat map for each layer and head. A row is the token that is predicted (encoder: that is encoded), a column one
    that it attends to; the weights of a row sum to one.

    \b
    tfm plot attention checkpoints/my "Ein Hund schläft."
    tfm plot attention checkpoints/my "Ein Hund schläft." --kind encoder \\
        --layers 1-2 --heads 1,4 -o encoder.svg
    tfm plot attention checkpoints/my "Ein Hund schläft." --mean
    """
    chosen_layers, chosen_heads = parse_numbers(layers, "--layers"), parse_numbers(heads, "--heads")
    if kind not in KINDS:
        raise UserError(f"--kind {kind[:40]!r}: unknown; give {one_of(KINDS)}")
    path = output_path(output_file, f"attention-{kind}.png")
    from transformer_cli.run_folder import find_model

    find_model(model)  # before the seconds that loading torch takes
    from transformer_cli import plots

    notes = plots.plot_attention(
        model,
        sentence,
        path,
        target=target,
        kind=kind,
        layers=chosen_layers,
        heads=chosen_heads,
        mean=mean,
        device=device,
    )
    report(path, notes, quiet)
