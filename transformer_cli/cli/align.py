"""`tfm align`: which words of given sentence pairs belong together, as a Pharaoh file."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.score import Results, Source, Target, write_pairs
from transformer_cli.cli.streams import check_output

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Translator


def align(
    context: typer.Context,
    model: opt.Model,
    source: Source,
    target: Target,
    tokens: Annotated[bool, opt.option("--tokens", "Link the model's tokens instead of words.")] = False,
    output_file: Results = None,
    batch_tokens: opt.BatchTokens = None,
    engine: opt.Engine = "auto",
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
) -> None:
    """Align the words of given translations.

    N lines in give N lines out, in order: the links of each pair, source-target by the words' places from 0 (Pharaoh's
    format), by the attention of a model that reads both sides. A word is what stands between spaces.
    training.guided_attention reads such a file, of this or any aligner.

    \b
    tfm align checkpoints/my --source train.de --target train.en -o train.align
    """
    from transformer_cli.evaluation.alignments import align_texts

    def rows(translator: "Translator", first: int, sources: Sequence[str], targets: Sequence[str]) -> Iterator[str]:
        for links in align_texts(translator, sources, targets, words=not tokens):
            yield " ".join(f"{one}-{other}" for one, other in sorted(links))

    check_output(output_file, source, target)
    write_pairs(opt.translation_options(context, model), source, target, output_file, "aligned", rows, quiet=quiet)
