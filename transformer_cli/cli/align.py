"""`tfm align`: which words of given sentence pairs belong together, as a Pharaoh file."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.loading import load_translator
from transformer_cli.cli.options import BatchTokens, Device, Engine, Model, Quiet
from transformer_cli.cli.progress import Progress
from transformer_cli.cli.score import check_lengths
from transformer_cli.cli.streams import check_output, note, open_results

WINDOW = 2048  # pairs aligned between two reports of progress


def align(
    model: Model,
    source: Annotated[
        Path, typer.Option("--source", metavar="FILE", help="Source sentences, a line each (plain or .gz).")
    ],
    target: Annotated[Path, typer.Option("--target", metavar="FILE", help="Their translations, aligned line by line.")],
    tokens: Annotated[bool, typer.Option("--tokens", help="Link the model's tokens, not words.")] = False,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here; whole, or not at all.")
    ] = None,
    batch_tokens: BatchTokens = None,
    engine: Engine = "auto",
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Align the words of given translations.

    N lines in give N lines out, in order: the links of each pair, source-target by the words' places from 0 (Pharaoh's
    format), by the attention of a model that reads both sides. A word is what stands between spaces.
    training.guided_attention reads such a file, of this or any aligner.

    \b
    tfm align checkpoints/my --source train.de --target train.en -o train.align
    """
    from transformer_cli.evaluation.alignments import align_texts
    from transformer_cli.evaluation.evaluate import read_test_set

    check_output(output_file, source, target)
    test_set = read_test_set(source, [target])
    sources, (targets,) = test_set.sources, test_set.references
    translator, _ = load_translator(model, device, batch_tokens=batch_tokens, engine=engine)
    check_lengths(translator, source, sources, target, targets)
    with open_results(output_file) as write, Progress("aligned", total=len(sources), quiet=quiet) as progress:
        for start in range(0, len(sources), WINDOW):
            end = min(start + WINDOW, len(sources))
            for links in align_texts(translator, sources[start:end], targets[start:end], words=not tokens):
                write(" ".join(f"{one}-{other}" for one, other in sorted(links)))
            progress.reached(end)
    for warning in test_set.notes:
        note(f"warning: {warning}")
