"""`tfm score`: how likely a model finds given translations (forced decoding)."""

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli.layout import to_json
from transformer_cli.cli.loading import load_translator
from transformer_cli.cli.options import (
    BatchTokens,
    Device,
    Engine,
    LengthPenalty,
    Model,
    Quiet,
    ScoringType,
    search_changes,
)
from transformer_cli.cli.progress import Progress
from transformer_cli.cli.streams import Write, check_output, note, open_results
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Scored, Translator

WINDOW = 2048  # pairs scored between two reports of progress


class Format(StrEnum):
    """What `--format` may be."""

    TEXT = "text"
    JSON = "json"


def score(
    model: Model,
    source: Annotated[
        Path, typer.Option("--source", metavar="FILE", help="Source sentences, a line each (plain or .gz).")
    ],
    target: Annotated[Path, typer.Option("--target", metavar="FILE", help="Their translations, aligned line by line.")],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print each target token's log-probability too.")] = False,
    format_: Annotated[
        Format, typer.Option("--format", metavar="FORMAT", help="text, or json: an object for each pair.")
    ] = Format.TEXT,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here; whole, or not at all.")
    ] = None,
    length_penalty: LengthPenalty = None,
    batch_tokens: BatchTokens = None,
    engine: Engine = "auto",
    compute_type: ScoringType = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Score given translations by their log-probability.

    N lines in give N lines out, in order; columns, separated by tabs:

    \b
    1  natural log-probability of the target given the source: the sum over
       its tokens and the end of the sentence
    2  the same, divided by the number of target tokens to the power of the
       length penalty; what beam search ranks by
    3  with --tokens: the tokens, separated by spaces, </s> last
    4  with --tokens: their log-probabilities, separated by spaces

    Objects of --format json: line, source, target, log_probability, score, tokens, log_probabilities.

    \b
    tfm score checkpoints/multi30k_de_en --source test.de --target test.en
    """
    from transformer_cli.evaluation.evaluate import read_test_set

    if tokens and format_ == Format.JSON:
        raise UserError("--tokens and --format json exclude each other: JSON always has the tokens; leave one out")
    check_output(output_file, source, target)
    test_set = read_test_set(source, [target])
    sources, (targets,) = test_set.sources, test_set.references
    changes = search_changes(beam=None, greedy=False, length_penalty=length_penalty)
    translator, options = load_translator(
        model, device, batch_tokens=batch_tokens, changes=changes, engine=engine, compute_type=compute_type or "float32"
    )
    check_lengths(translator, source, sources, target, targets)
    with open_results(output_file) as write, Progress("scored", total=len(sources), quiet=quiet) as progress:
        row = _object if format_ == Format.JSON else _row_with_tokens if tokens else _row
        score_lines(translator, sources, targets, write, options, row=row, report=progress.reached)
    for warning in test_set.notes:
        note(f"warning: {warning}")


def check_lengths(
    translator: "Translator", source: Path, sources: Sequence[str], target: Path, targets: Sequence[str]
) -> None:
    """Raise `UserError`, with file and line, where a model with learned positions cannot take a line."""
    codecs, engine = translator.codecs, translator.engine
    for path, lines, codec, most in (
        (source, sources, codecs.source, engine.max_source_length),
        (target, targets, codecs.target, engine.max_target_length),
    ):
        if most is not None:
            for number, line in enumerate(lines, start=1):
                if (length := len(codec.encode(line))) > most:
                    raise UserError(
                        f"{path}:{number}: {length:,} tokens, but this model's learned positions end at {most:,};"
                        " shorten it, or leave the pair out"
                    )


def score_lines(
    translator: "Translator",
    sources: Sequence[str],
    targets: Sequence[str],
    write: Write,
    options: "SearchOptions",
    *,
    row: Callable[[int, str, str, "Scored"], str],
    report: Callable[[int], None] | None = None,
) -> None:
    """Write one line a pair, as `row` makes it. report: called with the number of pairs done."""
    for start in range(0, len(sources), WINDOW):
        end = min(start + WINDOW, len(sources))
        found = translator.score(sources[start:end], targets[start:end], options)
        for number, scored in enumerate(found, start=start):
            write(row(number + 1, sources[number], targets[number], scored))
        if report is not None:
            report(end)


def _row(number: int, source: str, target: str, scored: "Scored") -> str:
    return f"{scored.log_probability:.6f}\t{scored.score:.6f}"


def _row_with_tokens(number: int, source: str, target: str, scored: "Scored") -> str:
    from transformer_cli.text.lines import one_line

    tokens = " ".join("\u2423" if token.isspace() else "".join(token.split()) for token in scored.tokens)
    values = " ".join(f"{value:.6f}" for value in scored.log_probabilities)
    return one_line("\t".join([_row(number, source, target, scored), tokens, values]))


def _object(number: int, source: str, target: str, scored: "Scored") -> str:
    return to_json(
        {
            "line": number,
            "source": source,
            "target": target,
            "log_probability": round(scored.log_probability, 6),
            "score": round(scored.score, 6),
            "tokens": scored.tokens,
            "log_probabilities": [round(value, 6) for value in scored.log_probabilities],
        }
    )
