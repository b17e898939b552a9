"""`tfm translate`: lines in, as many lines out, in order; from arguments, a file or stdin."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.inspect import check_trace, print_traces
from transformer_cli.cli.layout import Below, Format, Layout
from transformer_cli.cli.streams import Progress, TextInput, check_output, is_file, note, open_input, open_results, warn
from transformer_cli.decoding.devices import rank_and_size
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.decoding.constraints import Line
    from transformer_cli.jobs.translating import TranslationOptions


def translate(
    context: typer.Context,
    model: opt.Model,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to translate, one line each.")] = None,
    input_file: Annotated[Path | None, opt.option("--input -i FILE", "Translate this file (plain or .gz).")] = None,
    output_file: Annotated[
        Path | None, opt.option("--output -o FILE", "Write to this file (.gz: compressed), completely or not at all.")
    ] = None,
    format_: Annotated[Format, opt.option("--format FORMAT", "text, tsv or json; see above.")] = Format.TEXT,
    beam_size: opt.Beam = None,
    greedy: opt.Greedy = False,
    sample: opt.Sample = False,
    temperature: opt.Temperature = None,
    top_k: opt.TopK = None,
    top_p: opt.TopP = None,
    seed: opt.Seed = None,
    length_penalty: opt.LengthPenalty = None,
    coverage_penalty: opt.CoveragePenalty = None,
    diversity_groups: opt.DiverseGroups = None,
    diversity_strength: opt.Diversity = None,
    no_repeat_ngram: opt.NoRepeatNgram = None,
    min_length: opt.MinLength = None,
    max_length: opt.MaxLength = None,
    iterations: opt.Iterations = None,
    length_candidates: opt.LengthCandidates = None,
    prefix: opt.Prefix = None,
    require: opt.Require = None,
    forbid: opt.Forbid = None,
    constraints: opt.ConstraintsFile = None,
    mbr: opt.Mbr = None,
    with_: opt.With = None,
    guard: opt.Guard = True,
    protect: opt.Protect = True,
    glossary: opt.GlossaryFile = None,
    n_best: opt.NBest = 1,
    scores: Annotated[bool, opt.option("--scores", "Print each translation's score too.")] = False,
    alignments: Annotated[
        bool, opt.option("--alignments", "Print which source token each target token is aligned to.")
    ] = False,
    alignment_layer: opt.AlignmentLayer = None,
    alignment_heads: opt.AlignmentHeads = None,
    min_confidence: opt.MinConfidence = None,
    below: opt.BelowConfidence = None,
    stream: Annotated[bool, opt.option("--stream", "Answer each line at once.  [default on a terminal]")] = False,
    jobs: Annotated[
        int | None,
        opt.option(
            "--jobs N",
            "Translate a big file by N processes, over all GPUs; given again, it continues where it was interrupted.",
            min=1,
            max=1000,
        ),
    ] = None,
    batch_tokens: opt.BatchTokens = None,
    keep_unknown: Annotated[
        bool, opt.option("--keep-unknown", "Print <unk>, not the source word that it attends to most.")
    ] = False,
    trace: Annotated[
        bool, opt.option("--trace", "Follow TEXT through the model: tokens, ids, shapes, each step.")
    ] = False,
    engine: opt.Engine = "auto",
    compute_type: opt.ComputeType = None,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
) -> None:
    """Translate raw text to raw text, line by line.

    Reads TEXT, a file (-i), or stdin. N lines in give N lines out, in order; an empty line gives an empty line.

    \b
    tfm translate checkpoints/multi30k_de_en "Ein Hund schläft."
    tfm translate checkpoints/multi30k_de_en -i test.de -o test.en --beam 5
    tfm translate checkpoints/multi30k_de_en --trace "Ein Hund schläft."

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

    if text and input_file is not None:
        raise UserError("TEXT and --input exclude each other: translate arguments, or a file")
    if alignments and n_best > 1 and format_ == Format.TEXT:
        raise UserError("--alignments: goes with the best translation only; leave out --n-best, or add --format json")
    if scores and format_ != Format.TEXT:
        raise UserError("--scores and --format json or tsv exclude each other: leave one out")
    rank, size = rank_and_size()
    in_shards = jobs is not None or size > 1
    # In shards, the same command given again would translate what it had written.
    check_output(output_file, context.params, in_place=not in_shards)
    if trace:
        check_trace(context)
    every = check_constraints(prefix, require, forbid, constraints)
    if in_shards:
        check_places("torchrun" if jobs is None else "--jobs", text, input_file, output_file, stream)
    options = opt.translation_options(context, model, constrained=every is not None)
    if min_confidence is not None:
        from transformer_cli.decoding.translation import load_confidence

        if load_confidence(options.model.folder) is None:
            raise UserError(f"--min-confidence: {model} is not calibrated; run tfm calibrate {model} first")
    if trace:
        print_traces(replace(options, engine="torch"), text or [], quiet=quiet)
        return
    layout = Layout(n_best, scores, alignments, format_, min_confidence, below or Below.MARK)
    with open_input(text, input_file) as read:
        lines = constrained(read, every, constraints)
        if not in_shards:
            notes = translate_here(options, read, lines, output_file, layout, stream=stream, quiet=quiet)
        else:
            from transformer_cli.jobs.shards import UNHEARD, translate_file

            assert output_file is not None
            quiet = quiet or rank > 0
            notes = translate_file(
                options,
                lines,
                output_file,
                layout,
                jobs=jobs or 1,
                progress=Progress("translated", quiet=quiet, estimate=lambda: (read.estimate() or 0) // size or None),
                note=UNHEARD if quiet else note,
            )
    warn(*read.warnings, *notes)


def check_places(
    reason: str, text: list[str] | None, input_file: Path | None, output_file: Path | None, stream: bool
) -> None:
    """Raise `UserError` where what several processes translate cannot come from there, or go there."""
    if stream:
        raise UserError(f"--stream and {reason} exclude each other: answer lines at once, or share out a file")
    if output_file is None or not is_file(output_file):
        raise UserError(f"{reason}: needs --output FILE, beside which it keeps the parts that are done")
    if reason == "torchrun" and (input_file is None or not is_file(input_file)):
        raise UserError("torchrun: needs --input FILE, of which every process translates a part")


def translate_here(
    options: "TranslationOptions",
    read: TextInput,
    lines: "Iterable[Line]",
    output: Path | None,
    layout: Layout,
    *,
    stream: bool,
    quiet: bool,
) -> list[str]:
    """Translate in this process, each line as it comes if asked to; return what the user should know of it."""
    typed = read.is_typed
    live = stream or typed
    loaded = options.load()
    if typed and not quiet:
        note("reading lines from the terminal; Ctrl-D ends")
    silent = quiet or live or read.name == "TEXT" or (output is None and sys.stdout.isatty())
    progress = Progress("translated", quiet=silent, estimate=read.estimate)
    with open_results(output, live) as write, progress as report:
        for number, translation in enumerate(loaded.translate(lines, live=live), start=1):
            if number == 1 and not quiet:  # not before: a fault of the first lines stands alone
                note(loaded.translator.engine_choice)
            for row in layout.rows(number, translation):
                write(row)
            report(number)
    return loaded.notes
