"""`tfm translate`: lines in, as many lines out, in order; from arguments, a file or stdin."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, cast

import typer

from transformer_cli.cli.arguments import (
    BatchTokens,
    Beam,
    Device,
    Greedy,
    LengthPenalty,
    Model,
    Quiet,
    check_search,
    search_changes,
)
from transformer_cli.cli.loading import load_translator
from transformer_cli.cli.output import Write, check_output, note, open_results
from transformer_cli.cli.progress import Progress
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Candidate, Translation, Translator
    from transformer_cli.text.lines import LineReader


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
    beam: Beam = None,
    greedy: Greedy = False,
    sample: Annotated[bool, typer.Option("--sample", help="Draw each token from the model's distribution.")] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.0,
            max=1000.0,
            metavar="T",
            help="Of --sample: above 1 more varied, below 1 safer.  [default: 1.0]",
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option("--top-k", min=1, metavar="K", help="--sample from the K most probable tokens.  [default: all]"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            min=0.0,
            max=1.0,
            metavar="P",
            help="--sample from the most probable tokens that make up P.  [default: 1.0]",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, metavar="N", help="Of --sample: the same seed draws the same.  [default: 1]"),
    ] = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int, typer.Option("--n-best", min=1, max=1000, metavar="N", help="Print the N best translations of each line.")
    ] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Print each translation's score too.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Print which source tokens each target token attends to most.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Answer each line at once.  [default on a terminal]")
    ] = False,
    batch_tokens: BatchTokens = None,
    keep_unknown: Annotated[
        bool, typer.Option("--keep-unknown", help="Print <unk>, not the source word that it attends to most.")
    ] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Translate raw text to raw text, line by line.

    Reads TEXT, a file (-i), or stdin. N lines in give N lines out, in order; an empty line gives an empty line.

    \b
    tfm translate checkpoints/multi30k_de_en "Ein Hund schläft."
    tfm translate checkpoints/multi30k_de_en -i test.de -o test.en --beam 5

    Columns, separated by tabs (tabs in translations become spaces then):

    \b
    (none)               translation
    --scores             translation, score
    --alignments         translation, [score,] i-j …: source token i with
                         target token j, counted from 0 (Pharaoh)
    --n-best N           line number from 1, translation, [score]; N lines
                         for each line read, best first

    The score is the natural log-probability of the translation divided by its length in tokens to the power of the
    length penalty.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    check_search(beam=beam, greedy=greedy, sample=sample, **sampling)
    if alignments and n_best > 1:
        raise UserError("--alignments: goes with the best translation only; leave out --n-best")
    if text and input_file is not None:
        raise UserError("TEXT and --input exclude each other: translate arguments, or a file")
    check_output(output_file)
    changes = search_changes(
        beam=beam, greedy=greedy, sample=sample, length_penalty=length_penalty, n_best=n_best, **sampling
    )
    layout = Layout(n_best, scores, alignments)
    from_stdin = not text and (input_file is None or str(input_file) == "-")
    if from_stdin and sys.stdin is None:
        raise UserError("stdin is closed; give TEXT, or a file with --input")
    typed = from_stdin and sys.stdin.isatty()
    live = stream or typed
    with _open_input(text, input_file) as lines:
        translator, options = load_translator(
            model, device, batch_tokens=batch_tokens, keep_unknown=keep_unknown, changes=changes
        )
        if typed and not quiet:
            note("reading lines from the terminal; Ctrl-D ends")
        silent = quiet or live or bool(text) or (output_file is None and sys.stdout.isatty())
        with open_results(output_file, live) as write, Progress("translated", quiet=silent) as progress:
            translate_lines(translator, lines, write, options, layout, live=live, report=progress.reached)
    for warning in [*_input_warnings(lines.reader), *translator.notes]:
        note(f"warning: {warning}")


@dataclass(frozen=True)
class Layout:
    """Which columns are printed."""

    n_best: int = 1
    scores: bool = False
    alignments: bool = False

    def rows(self, number: int, translation: "Translation") -> list[str]:
        """The output lines of input line `number`: always `n_best`, whatever the search found."""
        found = translation.hypotheses
        chosen = [found[min(rank, len(found) - 1)] for rank in range(self.n_best)]
        return ["\t".join(self._columns(number, candidate)) for candidate in chosen]

    def _columns(self, number: int, candidate: "Candidate") -> Iterator[str]:
        if self.n_best > 1:
            yield str(number)
        more = self.n_best > 1 or self.scores or self.alignments
        yield candidate.text.replace("\t", " ") if more else candidate.text
        if self.scores:
            yield f"{candidate.score:.6f}"
        if self.alignments:
            yield " ".join(f"{place}-{token}" for token, place in enumerate(candidate.alignment or ()))


def translate_lines(
    translator: "Translator",
    lines: Iterable[str],
    write: Write,
    options: "SearchOptions",
    layout: Layout | None = None,
    *,
    live: bool = False,
    report: Callable[[int], None] | None = None,
) -> None:
    """Write the translations of all lines, in order. live: each before the next line is read.

    report: called with the number of lines done.
    """
    layout = layout or Layout()
    ahead = {"window": 1} if live else {}
    found = translator.translate_lines(lines, options, alignments=layout.alignments, **ahead)
    for number, translation in enumerate(found, start=1):
        for row in layout.rows(number, translation):
            write(row)
        if report is not None:
            report(number)


class _Input:
    """The lines to translate, with the reader that counts what was odd in them."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        from transformer_cli.text.lines import LineReader

        self.reader = LineReader(stream)
        self.name = name

    def __iter__(self) -> Iterator[str]:
        from transformer_cli.text.lines import READ_ERRORS, read_fault

        try:
            yield from self.reader
        except READ_ERRORS as error:
            raise UserError(f"{self.name}:{self.reader.lines + 1}: {read_fault(error)}") from None


@contextlib.contextmanager
def _open_input(text: Sequence[str] | None, path: Path | None) -> Iterator[_Input]:
    """Arguments, else the file, else stdin."""
    if text:
        yield _Input(io.BytesIO(b"".join(os.fsencode(argument) + b"\n" for argument in text)), "TEXT")
    elif path is None or str(path) == "-":
        yield _Input(cast(BinaryIO, sys.stdin.buffer), "stdin")
    else:
        from transformer_cli.text.lines import open_bytes

        with open_bytes(path) as stream:
            yield _Input(stream, str(path))


def _input_warnings(reader: "LineReader") -> list[str]:
    found = []
    if reader.invalid:
        found.append(f"{_lines(reader.invalid)} held invalid UTF-8: what could not be read became U+FFFD")
    if reader.carriage_returns:
        found.append(f"{_lines(reader.carriage_returns)} ended in a carriage return, which was dropped")
    if reader.byte_order_mark:
        found.append("the text began with a byte-order mark, which was dropped")
    return found


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"
