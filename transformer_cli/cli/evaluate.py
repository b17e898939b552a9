"""`tfm evaluate`: BLEU, chrF and TER of a model on a test set."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, align, check_output, open_results, warn


def evaluate(
    context: typer.Context,
    model: opt.Model,
    source: Annotated[
        Path | None,
        opt.option(
            "--source FILE",
            "Source sentences, one per line (plain or .gz).  [default: data.test of the model's config]",
        ),
    ] = None,
    reference: opt.References = None,
    metric: Annotated[
        list[str] | None,
        opt.option("--metric METRIC", "bleu, chrf, chrf++ or ter. Repeatable.  [default: bleu, chrf, ter]"),
    ] = None,
    json_output: opt.JsonOutput = False,
    output_file: Annotated[Path | None, opt.option("--output -o FILE", "Write the translations to this file.")] = None,
    beam_size: opt.Beam = None,
    greedy: opt.Greedy = False,
    length_penalty: opt.LengthPenalty = None,
    iterations: opt.Iterations = None,
    length_candidates: opt.LengthCandidates = None,
    batch_tokens: opt.BatchTokens = None,
    engine: opt.Engine = "auto",
    compute_type: opt.ComputeType = None,
    device: opt.Device = "auto",
    quiet: opt.Quiet = False,
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

    metrics = list(dict.fromkeys(metric or ("bleu", "chrf", "ter")))
    evaluation_of.check_metrics(metrics)
    check_output(output_file, context.params)
    options = opt.translation_options(context, model)
    if source is None:
        check_output(output_file, {"data": opt.files_named(options.model.config.data, "test", options.model.folder)})
    test_set = evaluation_of.find_test_set(options.model, source, reference, "test")
    translator = options.load_translator()
    with Progress("translated", total=len(test_set.sources), quiet=quiet) as report:
        evaluation = evaluation_of.evaluate(
            translator,
            test_set.sources,
            test_set.references,
            metrics=metrics,
            options=options.search_options,
            report=report,
        )
    if output_file is not None:
        with open_results(output_file) as write:
            for translation in evaluation.translations:
                write(translation)
    warn(*test_set.notes, *translator.notes)
    if json_output:
        results = {
            "model": str(model),
            "sentences": len(test_set.sources),
            "references": len(test_set.references),
            "seconds": round(evaluation.seconds, 3),
            "scores": [asdict(score) for score in evaluation.scores],
        }
        print(json.dumps(results, indent=2))
    else:
        rows = [(score.name, f"{score.score:.2f}", score.signature) for score in evaluation.scores]
        print("\n".join(align(rows)))
