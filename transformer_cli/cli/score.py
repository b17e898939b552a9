"""What a model makes of given translations: `tfm score`, how likely they are; `tfm align`, which words go together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, check_output, open_results, warn
from transformer_cli.errors import UserError
from transformer_cli.jobs.layout import to_json

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Scored, Translator
    from transformer_cli.jobs.translating import TranslationOptions


SOURCE = opt.option("--source FILE", "Source sentences, one per line (plain or .gz).", ...)
TARGET = opt.option("--target FILE", "Their translations, aligned line by line.", ...)
OUTPUT = opt.option("--output -o FILE", "Write to this file, completely or not at all.")


class Format(StrEnum):
    """What `--format` may be."""

    TEXT = "text"
    JSON = "json"


def score(
    context: typer.Context,
    model: opt.Model,
    source: Path = SOURCE,
    target: Path = TARGET,
    tokens: bool = opt.option("--tokens", "Print each target token's log-probability too.", False),
    format_: Format = opt.option("--format FORMAT", "text, or json: an object for each pair.", Format.TEXT),
    output_file: Path | None = OUTPUT,
    length_penalty: float | None = opt.Search.length_penalty,
    tag: str | None = opt.Search.tag,
    batch_tokens: int | None = opt.Engine.batch_tokens,
    engine: str = opt.Engine.engine,
    compute_type: str = opt.option("--compute-type TYPE", opt.TYPES, "float32"),
    device: str = opt.DEVICE,
    quiet: bool = opt.QUIET,
) -> None:
    """Score given translations by their log-probability.

    \b
    tfm score checkpoints/multi30k_de_en --source test.de --target test.en

    N lines in give N lines out, in order; columns, separated by tabs:

    \b
    1  natural log-probability of the target given the source: the sum over
       its tokens and the end of the sentence
    2  the same, divided by the number of target tokens, </s> not counted,
       to the power of the length penalty; what beam search ranks by
    3  with --tokens: the tokens, separated by spaces, and </s>
    4  with --tokens: their log-probabilities, separated by spaces

    Objects of --format json: line, source, target, log_probability, score, tokens, log_probabilities.
    """
    if tokens and format_ == Format.JSON:
        raise UserError("--tokens and --format json exclude each other: JSON always has the tokens; leave one out")
    check_output(output_file, context.params)
    options = opt.translation_options(context, model)
    row = _object if format_ == Format.JSON else _row_with_tokens if tokens else _row

    def rows(translator: "Translator", first: int, sources: Sequence[str], targets: Sequence[str]) -> Iterable[str]:
        found = translator.score(sources, targets, options.search_options)
        return map(row, range(first + 1, first + 1 + len(found)), sources, targets, found)

    write_pairs(options, source, target, output_file, "scored", rows, quiet=quiet)


def align(
    context: typer.Context,
    model: opt.Model,
    source: Path = SOURCE,
    target: Path = TARGET,
    tokens: bool = opt.option("--tokens", "Link the model's tokens instead of words.", False),
    output_file: Path | None = OUTPUT,
    tag: str | None = opt.Search.tag,
    batch_tokens: int | None = opt.Engine.batch_tokens,
    engine: str = opt.Engine.engine,
    device: str = opt.DEVICE,
    quiet: bool = opt.QUIET,
) -> None:
    """Align the words of given translations.

    \b
    tfm align checkpoints/my --source train.de --target train.en -o train.align

    N lines in give N lines out, in order: the links of each pair, source-target, by word positions from 0 (Pharaoh's
    format), from the attention of a model that reads both sides. Words are separated by spaces.
    training.guided_attention reads such a file, from this or any other aligner.
    """

    def rows(translator: "Translator", first: int, sources: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
        for links in translator.align(sources, targets, words=not tokens):
            yield " ".join(f"{one}-{other}" for one, other in sorted(links))

    check_output(output_file, context.params)
    write_pairs(opt.translation_options(context, model), source, target, output_file, "aligned", rows, quiet=quiet)


def write_pairs(
    options: "TranslationOptions",
    source: Path,
    target: Path,
    output: Path | None,
    doing: str,
    rows: "Callable[[Translator, int, Sequence[str], Sequence[str]], Iterable[str]]",
    *,
    quiet: bool,
) -> None:
    """Load a model, read the pairs of two files, and write what it makes of them.

    rows: gives a line for each of some pairs, by the translator, how many pairs came before, sources and targets.
    """
    from transformer_cli.evaluation.evaluate import WINDOW, read_test_set

    test_set = read_test_set(source, [target])
    sources, (targets,) = test_set.sources, test_set.references
    translator = options.load_translator()
    encode, encode_target = translator.codecs.source.encode, translator.codecs.target.encode
    translator.check_lengths(
        map(encode, translator.tagged(sources)), map(encode_target, targets), (f"{source}:", f"{target}:")
    )
    with open_results(output) as write, Progress(doing, total=len(sources), quiet=quiet) as report:
        for start in range(0, len(sources), WINDOW):
            end = min(start + WINDOW, len(sources))
            for row in rows(translator, start, sources[start:end], targets[start:end]):
                write(row)
            report(end)
    warn(*test_set.notes)


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
