"""`tfm evaluate`: BLEU, chrF and TER of a model on a test set."""

import json
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.loading import load_translator
from transformer_cli.cli.options import (
    BatchTokens,
    Beam,
    ComputeType,
    Device,
    Engine,
    Greedy,
    Iterations,
    JsonOutput,
    LengthCandidates,
    LengthPenalty,
    Model,
    Quiet,
    References,
    check_search,
    search_changes,
)
from transformer_cli.cli.progress import Progress
from transformer_cli.cli.streams import align, check_output, note, open_results
from transformer_cli.errors import UserError


def evaluate(
    model: Model,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            metavar="FILE",
            help="Source sentences, a line each (plain or .gz).  [default: data.test of the model's config]",
        ),
    ] = None,
    reference: References = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", metavar="METRIC", help="bleu, chrf, chrf++ or ter. Repeatable.  [default: bleu, chrf, ter]"
        ),
    ] = None,
    json_output: JsonOutput = False,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the translations here.")
    ] = None,
    beam: Beam = None,
    greedy: Greedy = False,
    length_penalty: LengthPenalty = None,
    iterations: Iterations = None,
    length_candidates: LengthCandidates = None,
    batch_tokens: BatchTokens = None,
    engine: Engine = "auto",
    compute_type: ComputeType = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Translate a test set and score the result with sacreBLEU.

    Prints a line for each metric: its name, the score, and the signature that makes it comparable. Texts are raw,
    cased and detokenized; BLEU's tokenizer follows the target language (zh, ja-mecab, ko-mecab, else 13a).

    \b
    tfm evaluate checkpoints/multi30k_de_en
    tfm evaluate checkpoints/multi30k_de_en --source test.de \\
        --reference test.en --beam 5 --output test.hypothesis.en
    """
    from transformer_cli.evaluation import evaluate as evaluation_of
    from transformer_cli.evaluation.metrics import check_metrics

    metrics = list(dict.fromkeys(metric or ("bleu", "chrf", "ter")))
    check_metrics(metrics)
    check_search(beam=beam, greedy=greedy)
    check_output(output_file, source, *(reference or ()))
    if (source is None) != (not reference):
        raise UserError("--source and --reference belong together: give both, or neither for the config's data.test")
    test_set = evaluation_of.read_test_set(source, reference) if source and reference else None
    translator, options = load_translator(
        model,
        device,
        batch_tokens=batch_tokens,
        engine=engine,
        compute_type=compute_type,
        changes=search_changes(
            beam=beam,
            greedy=greedy,
            length_penalty=length_penalty,
            iterations=iterations,
            length_candidates=length_candidates,
        ),
    )
    test_set = test_set or evaluation_of.configured_test_set(translator.config)
    with Progress("translated", total=len(test_set.sources), quiet=quiet) as progress:
        evaluation = evaluation_of.evaluate(
            translator,
            test_set.sources,
            test_set.references,
            metrics=metrics,
            options=options,
            report=progress.reached,
        )
    if output_file is not None:
        with open_results(output_file) as write:
            for translation in evaluation.translations:
                write(translation)
    for warning in [*test_set.notes, *translator.notes]:
        note(f"warning: {warning}")
    if json_output:
        results = {
            "model": str(model),
            "sentences": len(test_set.sources),
            "references": len(test_set.references),
            "seconds": round(evaluation.seconds, 3),
            "scores": [
                {"metric": score.metric, "name": score.name, "score": score.score, "signature": score.signature}
                for score in evaluation.scores
            ],
        }
        print(json.dumps(results, indent=2))
    else:
        rows = [(score.name, f"{score.score:.2f}", score.signature) for score in evaluation.scores]
        print("\n".join(align(rows)))
