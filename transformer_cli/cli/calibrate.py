"""`tfm calibrate`: learn from known translations how far a model's scores can be trusted."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.loading import load_translator
from transformer_cli.cli.options import BatchTokens, Device, JsonOutput, Model, Quiet, References
from transformer_cli.cli.progress import Progress
from transformer_cli.cli.streams import align, note
from transformer_cli.errors import UserError


def calibrate(
    model: Model,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            metavar="FILE",
            help="Source sentences, a line each (plain or .gz).  [default: data.valid of the model's config]",
        ),
    ] = None,
    reference: References = None,
    json_output: JsonOutput = False,
    batch_tokens: BatchTokens = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Learn how good a translation by this model is likely to be.

    Translates sentences that the model was not trained on, and fits to every other one how its chrF goes with the
    model's score (isotonic regression). From then on each translation has a confidence: the sentence chrF to expect
    of it, 0 to 1. It is kept with the model, in confidence.json.

    Prints the calibration error: the mean |predicted - observed| chrF over ten bins of the sentences between.

    \b
    tfm calibrate checkpoints/multi30k_de_en
    tfm calibrate checkpoints/multi30k_de_en --source valid.de \\
        --reference valid.en
    """
    from transformer_cli.evaluation import calibration
    from transformer_cli.evaluation.evaluate import read_test_set
    from transformer_cli.storage.run_folder import find_model

    if (source is None) != (not reference):
        raise UserError("--source and --reference belong together: give both, or neither for the config's data.valid")
    folder = Path(os.path.realpath(find_model(model)))
    check_replaceable(folder)
    calibration.check_files(folder)
    known = read_test_set(source, reference) if source and reference else None
    if known is not None:
        calibration.check_calibration_set(known)
    translator, _ = load_translator(folder, device, batch_tokens=batch_tokens)
    if known is None:
        known = calibration.validation_set(translator.config)
        calibration.check_calibration_set(known)
    with Progress("translated", total=len(known.sources), quiet=quiet) as progress:
        confidence = calibration.calibrate(translator, known.sources, known.references, report=progress.reached)
    calibration.keep_confidence(folder, confidence)
    for warning in [*known.notes, *translator.notes]:
        note(f"warning: {warning}")
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


def check_replaceable(folder: Path) -> None:
    """Raise `UserError` where a checkpoint folder could not be replaced by one that holds its confidence too."""
    if not os.access(folder.parent, os.W_OK | os.X_OK) or not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(
            f"{folder}: cannot be written, but the confidence is kept in it; copy the model elsewhere first"
        )
    if Path.cwd().is_relative_to(folder):
        raise UserError(f"{folder}: cannot be replaced while you are in it; run tfm from outside it")
