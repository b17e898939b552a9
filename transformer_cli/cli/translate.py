"""`tfm translate`: lines in, as many lines out, in order; from arguments, a file or stdin."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.constraints import check_constraints
from transformer_cli.cli.layout import Below, Format, Layout
from transformer_cli.cli.options import (
    AlignmentHeads,
    AlignmentLayer,
    BatchTokens,
    Beam,
    BelowConfidence,
    ComputeType,
    ConstraintsFile,
    CoveragePenalty,
    Device,
    DiverseGroups,
    Diversity,
    Engine,
    Forbid,
    GlossaryFile,
    Greedy,
    Guard,
    Iterations,
    LengthCandidates,
    LengthPenalty,
    MaxLength,
    Mbr,
    MinConfidence,
    MinLength,
    Model,
    NBest,
    NoRepeatNgram,
    Prefix,
    Protect,
    Quiet,
    Require,
    Sample,
    Seed,
    Temperature,
    TopK,
    TopP,
    With,
    check_apart,
    check_needs,
    check_search,
    parse_numbers,
    search_changes,
)
from transformer_cli.cli.progress import Progress
from transformer_cli.cli.settings import Settings
from transformer_cli.cli.streams import TextInput, check_output, is_file, note, open_input, open_results
from transformer_cli.cli.tracing import check_trace, print_traces
from transformer_cli.errors import UserError
from transformer_cli.jobs.torchrun import rank_and_size


def translate(
    model: Model,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Text to translate, a line each.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", "-i", metavar="FILE", help="Translate this file (plain or .gz).")
    ] = None,
    output_file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here (.gz: compressed); whole, or not at all."),
    ] = None,
    format_: Annotated[
        Format, typer.Option("--format", metavar="FORMAT", help="text, tsv or json; see above.")
    ] = Format.TEXT,
    beam: Beam = None,
    greedy: Greedy = False,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    length_penalty: LengthPenalty = None,
    coverage_penalty: CoveragePenalty = None,
    diverse_groups: DiverseGroups = None,
    diversity: Diversity = None,
    no_repeat_ngram: NoRepeatNgram = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    iterations: Iterations = None,
    length_candidates: LengthCandidates = None,
    prefix: Prefix = None,
    require: Require = None,
    forbid: Forbid = None,
    constraints: ConstraintsFile = None,
    mbr: Mbr = None,
    with_: With = None,
    guard: Guard = True,
    protect: Protect = True,
    glossary: GlossaryFile = None,
    n_best: NBest = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Print each translation's score too.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Print which source token each target token belongs to.")
    ] = False,
    alignment_layer: AlignmentLayer = None,
    alignment_heads: AlignmentHeads = None,
    min_confidence: MinConfidence = None,
    below: BelowConfidence = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Answer each line at once.  [default on a terminal]")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            max=1000,
            metavar="N",
            help="Translate a big file by N processes, over all GPUs; begun anew, it goes on where it was interrupted.",
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    keep_unknown: Annotated[
        bool, typer.Option("--keep-unknown", help="Print <unk>, not the source word that it attends to most.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show TEXT's way through the model: tokens, ids, shapes, each step.")
    ] = False,
    engine: Engine = "auto",
    compute_type: ComputeType = None,
    device: Device = "auto",
    quiet: Quiet = False,
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
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    of_beam = {"coverage_penalty": coverage_penalty, "diverse_groups": diverse_groups}
    check_search(beam=beam, greedy=greedy, sample=sample)
    check_needs("--sample", sample, **sampling)
    check_apart("--greedy", greedy, **of_beam)
    check_apart("--sample", sample, **of_beam)
    check_needs("--diverse-groups", diverse_groups, diversity=diversity)
    check_apart("--mbr", mbr, greedy=greedy or None)
    check_needs("--alignments", alignments, alignment_layer=alignment_layer, alignment_heads=alignment_heads)
    check_needs("--min-confidence", min_confidence is not None, below=below)
    check_apart("--no-protect", not protect, glossary=glossary)
    if mbr is not None and n_best > mbr:
        raise UserError(f"--n-best {n_best} is more than the {mbr} candidates of --mbr: raise that, or lower this")
    if mbr is not None and beam is not None and mbr > beam:
        raise UserError(f"--mbr {mbr}: --beam {beam} finds fewer candidates; raise that, or lower this")
    if alignments and n_best > 1 and format_ == Format.TEXT:
        raise UserError("--alignments: goes with the best translation only; leave out --n-best, or add --format json")
    check_apart("--format json or tsv", format_ != Format.TEXT, scores=scores or None)
    if trace:
        check_trace(
            text,
            engine,
            input=input_file,
            output=output_file,
            format=format_ != Format.TEXT,
            sample=sample,
            prefix=prefix,
            require=require,
            forbid=forbid,
            constraints=constraints,
            mbr=mbr,
            with_=with_,
            glossary=glossary,
            n_best=n_best > 1,
            scores=scores,
            alignments=alignments,
            min_confidence=min_confidence is not None,
            stream=stream,
            jobs=jobs,
        )
    line_constraints = check_constraints(prefix, require, forbid, constraints)
    check_places(text, input_file, output_file, stream=stream, jobs=jobs)
    if mbr is not None and beam is None and not sample:
        beam = mbr
    settings = Settings(
        model=model,
        beside=tuple(with_ or ()),
        device=device,
        engine=engine,
        compute_type=compute_type,
        search=search_changes(
            beam=beam,
            greedy=greedy,
            sample=sample,
            length_penalty=length_penalty,
            coverage_penalty=coverage_penalty,
            diversity_groups=diverse_groups,
            diversity_strength=diversity,
            no_repeat_ngram=no_repeat_ngram,
            min_length=min_length,
            max_length=max_length,
            iterations=iterations,
            length_candidates=length_candidates,
            n_best=mbr or n_best,
            **sampling,
        ),
        mbr=mbr is not None,
        guard=guard,
        alignment_layer=alignment_layer,
        alignment_heads=tuple(parse_numbers(alignment_heads, "--alignment-heads") or ()) or None,
        batch_tokens=batch_tokens,
        keep_unknown=keep_unknown,
        layout=Layout(n_best, scores, alignments, format_, min_confidence, below or Below.MARK),
        constraints=line_constraints,
        constraints_file=constraints,
        protect=protect,
        glossary=glossary,
    )
    if trace:
        print_traces(settings, text or [], quiet=quiet)
        return
    with open_input(text, input_file) as lines:
        settings.check()
        if jobs is not None or rank_and_size()[1] > 1:
            from transformer_cli.cli.sharded import translate_in_shards

            assert output_file is not None
            warnings = translate_in_shards(settings, lines, output_file, jobs or 1, quiet=quiet)
        else:
            warnings = translate_here(settings, lines, output_file, stream=stream, quiet=quiet)
    for warning in [*lines.warnings, *warnings]:
        note(f"warning: {warning}")


def check_places(
    text: list[str] | None, input_file: Path | None, output_file: Path | None, *, stream: bool, jobs: int | None
) -> None:
    """Raise `UserError` where the results cannot go, or not be made, as the options say."""
    if text and input_file is not None:
        raise UserError("TEXT and --input exclude each other: translate arguments, or a file")
    check_output(output_file)  # which may be the input: it is read before, and replaced when all is done
    reason = "--jobs" if jobs is not None else "torchrun" if rank_and_size()[1] > 1 else None
    if reason is None:
        return
    if stream:
        raise UserError(f"--stream and {reason} exclude each other: answer lines at once, or share out a file")
    if output_file is None or not is_file(output_file):
        raise UserError(f"{reason}: needs --output FILE, beside which it keeps the parts that are done")
    if reason == "torchrun" and (input_file is None or not is_file(input_file)):
        raise UserError("torchrun: needs --input FILE, of which every process translates a part")


def translate_here(
    settings: Settings, lines: TextInput, output: Path | None, *, stream: bool, quiet: bool
) -> list[str]:
    """Translate by this process, each line as it comes where that is asked for; what the user should know of it."""
    typed = lines.is_typed
    live = stream or typed
    loaded = settings.load()
    if typed and not quiet:
        note("reading lines from the terminal; Ctrl-D ends")
    silent = quiet or live or lines.name == "TEXT" or (output is None and sys.stdout.isatty())
    progress = Progress("translated", quiet=silent, estimate=lines.estimate)
    with open_results(output, live) as write, progress:
        for done, rows in enumerate(loaded.rows(settings.with_constraints(lines), live=live), start=1):
            if done == 1 and not quiet:  # not before: a fault of the first lines is told alone
                note(loaded.translator.engine_choice)
            for row in rows:
                write(row)
            progress.reached(done)
    return loaded.notes
