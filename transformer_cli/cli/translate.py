"""`tfm translate`: lines in, as many lines out, in order; from arguments, a file or stdin."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.inspect import check_trace, print_traces
from transformer_cli.cli.options import option
from transformer_cli.cli.streams import Progress, TextInput, check_output, is_file, note, open_input, open_results, warn
from transformer_cli.decoding.devices import rank_and_size
from transformer_cli.errors import UserError
from transformer_cli.jobs.layout import Below, Format, Layout

if TYPE_CHECKING:
    from transformer_cli.decoding.constraints import Line
    from transformer_cli.jobs.translating import TranslationOptions


JOBS = "Translate a big file with N processes, over all GPUs; given again, it continues where it was interrupted."
MIN_CONFIDENCE = (
    "Mark translations whose expected chrF (0 to 1) is below X; needs a model that tfm calibrate calibrated."
)


class InputOutput(opt.Options, panel="Input and output"):
    """Where lines come from, and what is printed of their translations."""

    input_file: Path | None = option("--input -i FILE", "Translate this file (plain or .gz).")
    output_file: Path | None = option("--output -o FILE", "Write to this file (.gz: compressed), whole or not at all.")
    format_: Format = option("--format FORMAT", "text, tsv (seven columns) or json (objects).", Format.TEXT)
    n_best: int = opt.search_option("--n-best N", "Print the N best translations of each line.", 1)
    scores: bool = option("--scores", "Print each translation's score too.", False)
    alignments: bool = option("--alignments", "Print which source token each target token is aligned to.", False)
    alignment_layer: int | None = option(
        "--alignment-layer N",
        "Decoder layer that --alignments reads, from 1.  [default: the last, or what learned to align]",
        min=1,
    )
    alignment_heads: str | None = option(
        "--alignment-heads NUMBERS", "Its heads, such as 1,3 or 2-4, from 1.  [default: all, or what learned to align]"
    )
    keep_unknown: bool = option("--keep-unknown", "Print <unk>, not the source word that it attends to most.", False)
    trace: bool = option("--trace", "Follow TEXT through the model: tokens, ids, shapes, each step.", False)
    stream: bool = option("--stream", "Answer each line at once.  [default on a terminal]", False)
    jobs: int | None = option("--jobs N", JOBS, min=1, max=1000)
    cluster: str | None = opt.CLUSTER
    quiet: bool = opt.QUIET


class Constraints(opt.Options, panel="Constraints"):
    """What must be in a translation, or must not."""

    prefix: str | None = option("--prefix TEXT", "Every translation begins with this text.")
    require: list[str] | None = option("--require WORDS", "Every translation contains these words. Repeatable.")
    forbid: list[str] | None = option("--forbid WORDS", "No translation contains these words. Repeatable.")
    constraints: Path | None = option(
        "--constraints FILE",
        'Constraints for each line: JSON lines such as {"prefix": "…", "require": ["…"], "forbid": ["…"]}.',
    )


class Confidence(opt.Options, panel="Confidence"):
    """What becomes of translations that the model is not sure of."""

    min_confidence: float | None = option("--min-confidence X", MIN_CONFIDENCE, min=0.0, max=1.0)
    below: Below | None = option(
        "--below WHAT", "With --min-confidence: mark ([?] before it) or drop (an empty line).  [default: mark]"
    )


def translate(
    context: typer.Context,
    model: opt.Model,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to translate, one line each.")] = None,
    *,
    given: InputOutput,
    search: opt.Search,
    more_search: opt.MoreSearch,
    asked: Constraints,
    protection: opt.Protection,
    confidence: Confidence,
    engine: opt.Engine,
) -> None:
    """Translate raw text to raw text, line by line.

    \b
    tfm translate checkpoints/multi30k_de_en "Ein Hund schläft."
    tfm translate checkpoints/multi30k_de_en -i test.de -o test.en --beam 5
    tfm translate checkpoints/multi30k_de_en --trace "Ein Hund schläft."

    Reads TEXT, a file (-i), or stdin. N lines in give N lines out, in order; an empty line gives an empty line.

    Columns of --format text, separated by tabs (tabs in translations become spaces then):

    \b
    (none)               translation
    --scores             translation, score
    --alignments         translation, [score,] i-j …: source token i with
                         target token j, counted from 0 (Pharaoh)
    --n-best N           line number from 1, translation, [score]; N lines
                         for each line read, best first

    --format tsv always has seven: line number, rank, translation, score, confidence, alignment, source. --format json
    prints an object for each line, with the tokens and the n-best list too.

    The score is the natural log-probability of the translation divided by its length in tokens to the power of the
    length penalty.
    """
    from transformer_cli.decoding.constraints import check_constraints, constrained

    if text and given.input_file is not None:
        raise UserError("TEXT and --input exclude each other: translate arguments, or a file")
    check_columns(given)
    rank, size = rank_and_size()
    in_shards = given.jobs is not None or given.cluster is not None or size > 1
    # In shards, the same command given again would translate what it had written.
    check_output(given.output_file, context.params, in_place=not in_shards)
    if given.trace:
        check_trace(context)
    every = check_constraints(asked.prefix, asked.require, asked.forbid, asked.constraints)
    if in_shards:
        reason = "--jobs" if given.jobs is not None else "torchrun" if given.cluster is None else "--cluster"
        check_places(reason, text, given)
    options = opt.translation_options(context, model, constrained=every is not None)
    if confidence.min_confidence is not None:
        from transformer_cli.decoding.translation import load_confidence

        if load_confidence(options.model.folder) is None:
            raise UserError(f"--min-confidence: {model} is not calibrated; run tfm calibrate {model} first")
    if given.trace:
        print_traces(replace(options, engine="torch"), text or [], quiet=given.quiet)
        return
    marks = confidence.min_confidence, confidence.below or Below.MARK
    layout = Layout(given.n_best, given.scores, given.alignments, given.format_, *marks)
    with open_input(text, given.input_file) as read:
        lines = constrained(read, every, asked.constraints)
        if not in_shards:
            notes = translate_here(options, read, lines, layout, given)
        else:
            from transformer_cli.jobs.shards import UNHEARD, translate_file

            assert given.output_file is not None
            quiet = given.quiet or rank > 0
            notes = translate_file(
                options,
                lines,
                given.output_file,
                layout,
                jobs=opt.workplace(context, options.files),
                progress=Progress("translated", quiet=quiet, estimate=lambda: (read.estimate() or 0) // size or None),
                note=UNHEARD if quiet else note,
            )
    warn(*read.warnings, *notes)


def check_columns(given: InputOutput) -> None:
    """Raise `UserError` where what is to be printed does not go together."""
    if given.alignments and given.n_best > 1 and given.format_ == Format.TEXT:
        raise UserError("--alignments: goes with the best translation only; leave out --n-best, or add --format json")
    if given.scores and given.format_ != Format.TEXT:
        raise UserError("--scores and --format json or tsv exclude each other: leave one out")


def check_places(reason: str, text: list[str] | None, given: InputOutput) -> None:
    """Raise `UserError` where what several processes translate cannot come from there, or go there."""
    if given.stream:
        raise UserError(f"--stream and {reason} exclude each other: answer lines at once, or share out a file")
    if given.output_file is None or not is_file(given.output_file):
        raise UserError(f"{reason}: needs --output FILE, beside which it keeps the parts that are done")
    if reason == "torchrun" and (given.input_file is None or not is_file(given.input_file)):
        raise UserError("torchrun: needs --input FILE, of which every process translates a part")


def translate_here(
    options: "TranslationOptions", read: TextInput, lines: "Iterable[Line]", layout: Layout, given: InputOutput
) -> list[str]:
    """Translate in this process, each line as it comes if asked to; return what the user should know of it."""
    typed = read.is_typed
    live = given.stream or typed
    loaded = options.load()
    if typed and not given.quiet:
        note("reading lines from the terminal; Ctrl-D ends")
    to_terminal = given.output_file is None and sys.stdout.isatty()
    silent = given.quiet or live or read.name == "TEXT" or to_terminal
    progress = Progress("translated", quiet=silent, estimate=read.estimate)
    with open_results(given.output_file, live) as write, progress as report:
        for number, translation in enumerate(loaded.translate(lines, live=live), start=1):
            if number == 1 and not given.quiet:  # not before: a fault of the first lines stands alone
                note(loaded.translator.engine_choice)
            for row in layout.rows(number, translation):
                write(row)
            report(number)
    return loaded.notes
