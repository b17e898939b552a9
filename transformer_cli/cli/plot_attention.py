"""`tfm plot attention`: what the heads of a model attend to, and how widely."""

from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from transformer_cli.cli.options import Device, Model, Quiet, check_apart, parse_numbers
from transformer_cli.cli.pictures import Output, output_path, report
from transformer_cli.errors import UserError, one_of

KINDS = ["encoder", "decoder", "cross"]
SENTENCES = 20  # of a file


def attention(
    model: Model,
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="SENTENCE", help="A sentence to translate; with --entropy several.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TEXT", help="Show this translation, not the model's own.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="encoder, decoder (self-attention) or cross.  [default: cross; with --entropy all three]",
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", metavar="NUMBERS", help="Such as 1,3 or 2-4, counted from 1.  [default: all]"),
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="NUMBERS", help="Such as 1,3 or 2-4, counted from 1.  [default: all]"),
    ] = None,
    mean: Annotated[bool, typer.Option("--mean", help="One map a layer: the mean of the heads.")] = False,
    grid: Annotated[bool, typer.Option("--grid", help="Small maps without tokens, to see all heads at once.")] = False,
    entropy: Annotated[
        bool, typer.Option("--entropy", help="One number a head: how widely it attends, as a mean over positions.")
    ] = False,
    input_file: Annotated[
        Path | None,
        typer.Option("--input", "-i", metavar="FILE", help="Of --entropy: the first sentences of this file."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, max=1000, metavar="N", help=f"Sentences of the file.  [default: {SENTENCES}]"
        ),
    ] = None,
    output_file: Output = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Draw which tokens a model attends to while it translates.

    A heat map for each layer and head. A row is the token that is predicted (encoder: that is encoded), a column one
    that it attends to; the weights of a row sum to one. --grid draws the same as small maps, layers downwards and
    heads across.

    --entropy draws layers by heads: −Σ p ln p of the weights p of a position, in nats, the mean over all positions of
    the sentences. It is 0 where all weight is on one position, and ln S where each of S positions has the same.

    \b
    tfm plot attention checkpoints/my "Ein Hund schläft."
    tfm plot attention checkpoints/my "Ein Hund schläft." --kind encoder \\
        --layers 1-2 --heads 1,4 -o encoder.svg
    tfm plot attention checkpoints/my "Ein Hund schläft." --mean
    tfm plot attention checkpoints/my "Ein Hund schläft." --grid --kind decoder
    tfm plot attention checkpoints/my --entropy -i test.de -n 5
    """
    chosen_layers, chosen_heads = parse_numbers(layers, "--layers"), parse_numbers(heads, "--heads")
    if kind is not None and kind not in KINDS:
        raise UserError(f"--kind {kind[:40]!r}: unknown; give {one_of(KINDS)}")
    check_apart("--entropy", entropy, mean=mean or None, grid=grid or None, target=target)
    check_apart("--grid", grid, mean=mean or None)
    chosen = _sentences(sentences, input_file, count, entropy=entropy)
    shown = "entropy" if entropy else kind or "cross"
    path = output_path(output_file, f"attention-{shown}-heads.png" if grid else f"attention-{shown}.png")
    from transformer_cli.storage.run_folder import find_model

    find_model(model)  # before the seconds that loading torch takes
    if chosen is None:
        assert input_file is not None
        chosen = _first_sentences(input_file, count or SENTENCES)
    from transformer_cli import plots

    common: dict[str, Any] = {"layers": chosen_layers, "heads": chosen_heads, "device": device}
    if entropy:
        notes = plots.plot_entropy(model, chosen, path, kinds=KINDS if kind is None else [kind], **common)
    elif grid:
        notes = plots.plot_heads(model, chosen[0], path, target=target, kind=shown, **common)
    else:
        notes = plots.plot_attention(model, chosen[0], path, target=target, kind=shown, mean=mean, **common)
    report(path, notes, quiet)


def _sentences(given: list[str] | None, path: Path | None, count: int | None, *, entropy: bool) -> list[str] | None:
    """The sentences of the command line; None: those of the file. Raises `UserError` where it has too few or many."""
    if given and path is not None:
        raise UserError("SENTENCE and --input exclude each other: give sentences, or a file")
    if path is None and count is not None:
        raise UserError("--count: is for sentences from a file; give one with --input, or leave it out")
    if path is not None and not entropy:
        raise UserError("--input: belongs to --entropy; give that too, or a SENTENCE instead")
    if path is None and not given:
        raise UserError("missing SENTENCE: give a sentence to translate")
    if given and len(given) > 1 and not entropy:
        raise UserError(f"{len(given)} sentences: only --entropy takes several; give one, in quotation marks")
    return given


def _first_sentences(path: Path, count: int) -> list[str]:
    from transformer_cli.text.lines import read_lines

    found = list(islice((line for line in read_lines(path) if line.strip()), count))
    if not found:
        raise UserError(f"{path}: has no sentence to show; give one with words in it")
    return found
