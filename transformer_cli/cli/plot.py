"""`tfm plot`: pictures of attention, positions, masks, learning-rate schedules and training, as PNG or SVG files."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from transformer_cli.cli.help import full_help
from transformer_cli.cli.options import (
    DEVICE,
    OVERRIDES,
    QUIET,
    Model,
    Search,
    check_together,
    files_named,
    option,
    parse_numbers,
    with_options,
)
from transformer_cli.cli.streams import check_output, note
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_cli.config import Config

Kind = Literal["encoder", "decoder", "cross"]
ENTROPY_SENTENCES, MASK_SENTENCES = 20, 3  # of a file
FROM_ONE = "Such as 1,3 or 2-4, counted from 1.  [default: all]"

OUTPUT = option("--output -o FILE", "The picture, .png or .svg.  [default: here, named after what it shows]")
app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True, add_help_option=False)
@with_options
def plot(context: typer.Context) -> None:
    """Plot attention, positions, masks, schedules and training.

    Every picture is a PNG or SVG file, by its suffix, and its name is printed. Needs matplotlib:
    pip install 'transformer-cli[plots]'
    """
    if context.invoked_subcommand is None:
        print(full_help(context))


@app.command("attention", add_help_option=False)
@with_options
def attention(
    context: typer.Context,
    model: Model,
    sentences: Annotated[
        list[str] | None, typer.Argument(metavar="SENTENCE", help="A sentence to translate; with --entropy several.")
    ] = None,
    target: str | None = option("--target TEXT", "Show this translation, not the model's own."),
    kind: Kind | None = option(
        "--kind KIND", "encoder, decoder (self-attention) or cross.  [default: cross; with --entropy all three]"
    ),
    layers: str | None = option("--layers NUMBERS", FROM_ONE),
    heads: str | None = option("--heads NUMBERS", FROM_ONE),
    mean: bool = option("--mean", "One map per layer: the mean of its heads.", False),
    grid: bool = option("--grid", "Small maps without tokens, to see all heads at once.", False),
    entropy: bool = option("--entropy", "One number per head: how widely it attends, as a mean over positions.", False),
    input_file: Path | None = option("--input -i FILE", "With --entropy: the first sentences of this file."),
    count: int | None = option(
        "--count -n N", f"Sentences of the file.  [default: {ENTROPY_SENTENCES}]", min=1, max=1000
    ),
    tag: str | None = Search.tag,
    output_file: Path | None = OUTPUT,
    device: str = DEVICE,
    quiet: bool = QUIET,
) -> None:
    """Plot which tokens a model attends to while it translates.

    \b
    tfm plot attention checkpoints/my "Ein Hund schläft."
    tfm plot attention checkpoints/my "Ein Hund schläft." --kind encoder \\
        --layers 1-2 --heads 1,4 -o encoder.svg
    tfm plot attention checkpoints/my "Ein Hund schläft." --mean
    tfm plot attention checkpoints/my "Ein Hund schläft." --grid --kind decoder
    tfm plot attention checkpoints/my --entropy -i test.de -n 5

    A heat map for each layer and head. A row is the token that is predicted (encoder: that is encoded), a column one
    that it attends to; the weights of a row sum to one. --grid draws the same as small maps, layers downwards and
    heads across.

    --entropy draws layers by heads: −Σ p ln p of the weights p of a position, in nats, the mean over all positions of
    the sentences. It is 0 where all weight is on one position, and ln S where each of S positions has the same.
    """
    chosen = parse_numbers(layers, "--layers"), parse_numbers(heads, "--heads")
    check_together(context)
    _check_sentences(sentences, input_file, count)
    if input_file is not None and not entropy:
        raise UserError("--input: belongs to --entropy; give that too, or a SENTENCE instead")
    if input_file is None and not sentences:
        raise UserError("missing SENTENCE: give a sentence to translate")
    if sentences and len(sentences) > 1 and not entropy:
        raise UserError(f"{len(sentences)} sentences: only --entropy takes several; give one, in quotation marks")
    shown = "entropy" if entropy else kind or "cross"
    path = _output_path(context, f"attention-{shown}-heads.png" if grid else f"attention-{shown}.png")
    from transformer_cli.decoding.constraints import tag_before
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.storage.run_folder import find_model

    find_model(model)  # before the seconds that loading torch takes
    found = FoundModel.at(model)
    tag_before(found.config, tag)
    if input_file is not None:
        lines, where = _read(input_file)
        sentences = _first(lines, count or ENTROPY_SENTENCES, where)
    from transformer_cli.decoding.translator import Translator
    from transformer_cli.inside.attention import attend
    from transformer_cli.plots.attention import attention_figure, entropy_figure, heads_figure

    translator = Translator.load(found, device, engine="torch")
    attentions = [attend(translator, sentence, target, tag=tag) for sentence in sentences or ()]
    if entropy:
        figure = entropy_figure(attentions, get_args(Kind) if kind is None else [kind], *chosen)
    elif grid:
        figure = heads_figure(attentions[0], shown, *chosen)
    else:
        figure = attention_figure(attentions[0], shown, *chosen, mean=mean)
    _save(figure, path, quiet)


@app.command("positions", add_help_option=False)
@with_options
def positions(
    context: typer.Context,
    d_model: int = option("--d-model N", "Dimensions of the model, an even number.", 128, min=2, max=4096),
    length: int = option("--length N", "Positions.", 100, min=1, max=2000),
    output_file: Path | None = OUTPUT,
    quiet: bool = QUIET,
) -> None:
    """Plot the sinusoids that encode a token's position.

    \b
    tfm plot positions
    tfm plot positions --d-model 512 --length 200 -o positions.svg

    Above all dimensions as a heat map, below a few of them as lines.
    """
    if d_model % 2:
        raise UserError(f"--d-model {d_model}: sines and cosines come in pairs; give an even number")
    path = _output_path(context, "positions.png")
    from transformer_cli.plots.diagrams import positions_figure

    _save(positions_figure(d_model, length), path, quiet)


@app.command("mask", add_help_option=False)
@with_options
def mask(
    context: typer.Context,
    model: Model,
    sentences: Annotated[
        list[str] | None,
        typer.Argument(metavar="SENTENCE", help="Sentences of the batch.  [default: of the model's validation data]"),
    ] = None,
    input_file: Path | None = option("--input -i FILE", "The first sentences of this file."),
    side: Literal["source", "target"] = option(
        "--side SIDE", "Tokens as the encoder (source) or the decoder sees them.", "target"
    ),
    count: int | None = option(
        "--count -n N", f"Sentences to take from a file.  [default: {MASK_SENTENCES}]", min=1, max=32
    ),
    tag: str | None = Search.tag,
    output_file: Path | None = OUTPUT,
    quiet: bool = QUIET,
) -> None:
    """Plot which positions of a batch may attend to which.

    \b
    tfm plot mask checkpoints/my
    tfm plot mask checkpoints/my --side source -i test.de -n 4
    tfm plot mask checkpoints/my "A dog." "A dog runs through the snow."

    For each sentence of the batch the padding mask (no position attends to <pad>), the causal mask (none attends to a
    later one) and both together, over its tokens. The encoder (--side source) reads in both directions and has no
    causal mask.
    """
    _check_sentences(sentences, input_file, count, from_data=True)
    path = _output_path(context, "mask.png")
    from transformer_cli.config import load_config
    from transformer_cli.storage.publishing import verify
    from transformer_cli.storage.run_folder import CONFIG, find_model

    folder = find_model(model)
    verify(folder, [CONFIG])
    config = load_config(folder / CONFIG)
    if side == "target" and config.model.generation != "autoregressive":
        raise UserError(
            "a decoder's masks are drawn of models that write token by token;"
            f" this one has model.generation: {config.model.generation}; give --side source"
        )
    from transformer_cli.codecs import load_codecs
    from transformer_cli.data.held_out import split_tag
    from transformer_cli.decoding.constraints import tag_before
    from transformer_cli.plots.diagrams import mask_figure
    from transformer_cli.text.lines import with_tag

    if tag is not None and side == "target":
        raise UserError("--tag: stands before source sentences; give --side source too, or leave it out")
    if tag is None and not sentences and input_file is None:
        tag = split_tag(config, "valid") or ""
    before = tag_before(config, tag) if side == "source" else ""
    codecs = load_codecs(folder, config)
    codec = codecs.source if side == "source" else codecs.target
    if sentences:
        if not all(sentence.strip() and codec.encode(sentence) for sentence in sentences):
            raise UserError("SENTENCE: one has no tokens; give sentences with words in them")
    else:
        check_output(path, {"data": files_named(config.data, "valid", folder)})
        lines, where = _validation_data(config, folder, side) if input_file is None else _read(input_file)
        with_tokens = (line for line in lines if codec.encode(line))
        sentences = _first(with_tokens, count or MASK_SENTENCES, where)
    ids = [codec.encode(with_tag(sentence, before)) for sentence in sentences]
    _save(mask_figure(ids, codec, side), path, quiet)


@app.command("schedule", add_help_option=False)
@with_options
def schedule(
    context: typer.Context,
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG", help="YAML config files, one curve for each.")],
    overrides: list[str] | None = OVERRIDES,
    steps: int | None = option("--steps N", "Draw this many steps.  [default: training.max_steps]", min=1, max=10**9),
    output_file: Path | None = OUTPUT,
    quiet: bool = QUIET,
) -> None:
    """Plot the learning rate over the steps of training.

    \b
    tfm plot schedule my.yaml
    tfm plot schedule one.yaml two.yaml --set training.warmup_steps=8000

    --set changes a value in all of the configs.
    """
    path = _output_path(context, "schedule.png")
    from transformer_cli.config.presets import resolve_preset
    from transformer_cli.data.size import measure_corpus
    from transformer_cli.plots.diagrams import schedule_figure
    from transformer_cli.plots.style import distinct_names
    from transformer_cli.storage.origin import load_found_config

    settings = [resolve_preset(load_found_config(config, overrides or []), measure_corpus)[0] for config in configs]
    _save(schedule_figure(list(zip(distinct_names(configs), settings, strict=True)), steps), path, quiet)


@app.command("training", add_help_option=False)
@with_options
def training(
    context: typer.Context,
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; each has its own colour.")],
    output_file: Path | None = OUTPUT,
    quiet: bool = QUIET,
) -> None:
    """Plot loss, BLEU and learning rate over the steps of training.

    \b
    tfm plot training checkpoints/my
    tfm plot training checkpoints/my checkpoints/other -o both.svg
    """
    path = _output_path(context, "training.png")
    from transformer_cli.plots.training import training_figure

    _save(training_figure(runs), path, quiet)


def _check_sentences(
    sentences: list[str] | None, input_file: Path | None, count: int | None, *, from_data: bool = False
) -> None:
    """Raise `UserError` for sentences given twice, or a count of sentences that come from no file (or from_data)."""
    if sentences and input_file is not None:
        raise UserError("SENTENCE and --input exclude each other: give sentences, or a file")
    if count is not None and input_file is None and (sentences or not from_data):
        raise UserError("--count: is for sentences from a file; give one with --input, or leave it out")


def _output_path(context: typer.Context, default: str) -> Path:
    """Return where the picture goes; raise `UserError` where it cannot, or where matplotlib is not installed."""
    from transformer_cli.plots.style import check_free, check_picture

    given: Path | None = context.params["output_file"]
    path = given if given is not None else Path(default)
    check_picture(path)
    check_output(path, context.params)
    if given is None:
        check_free(path)
    return path


def _save(figure: "Figure", path: Path, quiet: bool) -> None:
    """Write the picture, and print its name and what the user should know of it."""
    from transformer_cli.plots.style import save

    notes = save(figure, path)
    print(path)
    for text in [] if quiet else notes:
        note(f"note: {text}")


def _read(path: Path) -> tuple[Iterable[str], str]:
    """Return the lines of a file, and what to call it."""
    from transformer_cli.text.lines import read_lines

    return read_lines(path), str(path)


def _validation_data(config: "Config", folder: Path, side: str) -> tuple[Iterable[str], str]:
    """Return one side of a model's `data.valid`, and what to call it."""
    from transformer_cli.data.held_out import open_saved

    try:
        corpus = open_saved(config.data, "valid", folder)
    except UserError as error:
        raise UserError(f"{error}; give sentences, or a file with --input") from None
    return (pair[side == "target"] for pair in corpus.pairs()), corpus.describe()


def _first(lines: Iterable[str], count: int, where: str) -> list[str]:
    """Return the first `count` lines with text; raise `UserError` where there is none."""
    chosen = list(islice((line for line in lines if line.strip()), count))
    if not chosen:
        raise UserError(f"{where}: has no sentence to show; give one with words in it")
    return chosen
