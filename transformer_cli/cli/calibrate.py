"""`tfm calibrate`: learn from known translations how far a model's scores can be trusted."""

import json
import os
from pathlib import Path

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, align, warn


def calibrate(
    context: typer.Context,
    model: opt.Model,
    source: Path | None = opt.option(
        "--source FILE", "Source sentences, one per line (plain or .gz).  [default: the model's validation data]"
    ),
    reference: list[Path] | None = opt.REFERENCES,
    json_output: bool = opt.JSON,
    tag: str | None = opt.Search.tag,
    batch_tokens: int | None = opt.Engine.batch_tokens,
    device: str = opt.DEVICE,
    quiet: bool = opt.QUIET,
) -> None:
    """Calibrate a model's confidence in its translations.

    \b
    tfm calibrate checkpoints/multi30k_de_en
    tfm calibrate checkpoints/multi30k_de_en --source valid.de \\
        --reference valid.en

    Translates sentences that the model was not trained on, and fits chrF to the model's score on every other one
    (isotonic regression). From then on each translation has a confidence: the sentence chrF to expect, from 0 to 1.
    The fit is kept with the model, in confidence.json.

    Prints the calibration error: the mean |predicted - observed| chrF over ten bins of the other half.
    """
    from transformer_cli.evaluation import calibration
    from transformer_cli.evaluation.evaluate import find_test_set

    options = opt.translation_options(context, model)
    folder = Path(os.path.realpath(options.model.folder))
    calibration.check_folder(folder)
    known = find_test_set(options.model, source, reference, "valid")
    calibration.check_calibration_set(known)
    translator = options.tagged_as(known.tag).load_translator()
    with Progress("translated", total=len(known.sources), quiet=quiet) as report:
        confidence = calibration.calibrate(translator, known.sources, known.references, report=report)
    calibration.keep_confidence(folder, confidence)
    warn(*known.notes, *translator.notes)
    figures = {
        "calibration_error": confidence.error,
        "sentences_fitted": confidence.sentences,
        "sentences_measured": confidence.measured,
    }
    if json_output:
        print(json.dumps({"model": str(model), **figures}, indent=2))
    else:
        rows = [("calibration error", f"{confidence.error:.4f}")]
        rows += [("sentences fitted", f"{confidence.sentences:,}"), ("sentences measured", f"{confidence.measured:,}")]
        print("\n".join(align(rows)))
