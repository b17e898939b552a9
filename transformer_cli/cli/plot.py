"""`tfm plot`: pictures of attention, positions, masks, learning-rate schedules and training, as PNG or SVG files."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import plot_attention
from transformer_cli.cli.options import Model, Overrides, Quiet
from transformer_cli.cli.pictures import Output, finish, output_path, report
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.config import Config
    from transformer_cli.text.codec import Codec

SENTENCES = 3  # of a mask picture

app = typer.Typer(rich_markup_mode=None)


def _print_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


# The option --help is our own, as that of `tfm` is.
@app.callback(invoke_without_command=True, add_help_option=False)
def plot(
    context: typer.Context,
    help_: Annotated[
        bool,
        typer.Option("--help", "-h", callback=_print_help, is_eager=True, help="Show this message and exit."),
    ] = False,
) -> None:
    """Draw attention, positions, masks, schedules and training.

    Every picture is a PNG or SVG file, by its suffix, and its name is printed. Needs matplotlib:
    pip install 'transformer-cli[plots]'
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command("attention")(plot_attention.attention)


@app.command("positions")
def positions(
    d_model: Annotated[
        int, typer.Option("--d-model", min=2, max=4096, metavar="N", help="Dimensions of the model, an even number.")
    ] = 128,
    length: Annotated[int, typer.Option("--length", min=1, max=2000, metavar="N", help="Positions.")] = 100,
    output_file: Output = None,
    quiet: Quiet = False,
) -> None:
    """Draw the sinusoids that tell a model where a token stands.

    Above all dimensions as a heat map, below a few of them as lines.

    \b
    tfm plot positions
    tfm plot positions --d-model 512 --length 200 -o positions.svg
    """
    if d_model % 2:
        raise UserError(f"--d-model {d_model}: sines and cosines come in pairs; give an even number")
    path = output_path(output_file, "positions.png")
    from transformer_cli import plots

    finish(plots.positions_figure(d_model, length), path, quiet)


@app.command("mask")
def mask(
    model: Model,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="Sentences of the batch.  [default: of the model's validation data]"),
    ] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="The first sentences of this file.")
    ] = None,
    side: Annotated[
        str, typer.Option("--side", metavar="SIDE", help="Tokens as the encoder (source) or the decoder sees them.")
    ] = "target",
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, max=32, metavar="N", help=f"Sentences to take from a file.  [default: {SENTENCES}]"
        ),
    ] = None,
    output_file: Output = None,
    quiet: Quiet = False,
) -> None:
    """Draw which positions of a batch may attend to which.

    For each sentence of the batch the padding mask (no position attends to <pad>), the causal mask (none attends to a
    later one) and both together, over its tokens.

    \b
    tfm plot mask checkpoints/my
    tfm plot mask checkpoints/my --side source -i test.de -n 4
    tfm plot mask checkpoints/my "A dog." "A dog runs through the snow."
    """
    if side not in ("source", "target"):
        raise UserError(f"--side {side!r}: unknown; give source or target")
    if sentences and input_file is not None:
        raise UserError("SENTENCE and --input exclude each other: give sentences, or a file")
    if sentences and count is not None:
        raise UserError("--count: is for sentences from a file; leave it out where the sentences are given")
    path = output_path(output_file, "mask.png")
    from transformer_cli.config import load_config
    from transformer_cli.storage.run_folder import CONFIG, find_model, verify

    folder = find_model(model)
    from transformer_cli import plots
    from transformer_cli.codecs import load_codecs

    verify(folder, [CONFIG])
    config = load_config(folder / CONFIG)
    if side == "target" and config.model.generation != "autoregressive":
        raise UserError(
            "a decoder's masks are drawn of models that write token by token;"
            f" this one has model.generation: {config.model.generation}; give --side source"
        )
    codecs = load_codecs(folder, config)
    codec = codecs.source if side == "source" else codecs.target
    if sentences:
        chosen = _encode(codec, sentences, "SENTENCE", len(sentences))
        if len(chosen) < len(sentences):
            raise UserError("SENTENCE: one has no tokens; give sentences with words in them")
    else:
        chosen = _first_sentences(config, codec, side, input_file, count or SENTENCES)
    finish(plots.mask_figure(chosen, codec, side), path, quiet)


@app.command("schedule")
def schedule(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML config files, a line each.")],
    overrides: Overrides = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps", min=1, max=10**9, metavar="N", help="Draw so many steps.  [default: training.max_steps]"
        ),
    ] = None,
    output_file: Output = None,
    quiet: Quiet = False,
) -> None:
    """Draw the learning rate over the steps of training.

    --set changes a value in all of the configs.

    \b
    tfm plot schedule my.yaml
    tfm plot schedule one.yaml two.yaml --set training.warmup_steps=8000
    """
    path = output_path(output_file, "schedule.png")
    from transformer_cli.config import load_config
    from transformer_cli.config.presets import resolve_preset

    settings = [resolve_preset(load_config(config, overrides or []))[0] for config in configs]
    from transformer_cli import plots

    names = plots.distinct_names(configs)
    finish(plots.schedule_figure(list(zip(names, settings, strict=True)), steps), path, quiet)


@app.command("training")
def training(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, a colour each.")],
    output_file: Output = None,
    quiet: Quiet = False,
) -> None:
    """Draw loss, BLEU and learning rate over the steps of training.

    \b
    tfm plot training checkpoints/my
    tfm plot training checkpoints/my checkpoints/other -o both.svg
    """
    path = output_path(output_file, "training.png")
    from transformer_cli import plots

    report(path, plots.plot_training(runs, path), quiet)


def _first_sentences(config: "Config", codec: "Codec", side: str, path: Path | None, count: int) -> list[list[int]]:
    """The ids of the first sentences of a file, else of the config's `data.valid`."""
    if path is not None:
        from transformer_cli.text.lines import read_lines

        return _encode(codec, read_lines(path), str(path), count)
    from transformer_cli.data.corpora import open_corpus

    data = config.data
    try:
        corpus = open_corpus(data.valid, data.source_language, data.target_language)
    except UserError as error:  # paths are relative, or the model came from another machine
        raise UserError(f"{error}; or give sentences, or a file with --input") from None
    return _encode(codec, (pair[side == "target"] for pair in corpus.pairs()), corpus.describe(), count)


def _encode(codec: "Codec", sentences: Iterable[str], where: str, count: int) -> list[list[int]]:
    """The ids of the first `count` sentences that have any."""
    encoded = (codec.encode(sentence) for sentence in sentences if sentence.strip())
    chosen = list(islice((ids for ids in encoded if ids), count))
    if not chosen:
        raise UserError(f"{where}: has no sentence to show; give one with words in it")
    return chosen
