"""`tfm distill`: a teacher translates the training data, and a student learns from what it wrote."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, note, warn
from transformer_cli.decoding.devices import rank_and_size
from transformer_cli.errors import UserError

BEST_OF = "Of the N best translations, take the one most similar to the reference, by chrF.  [default: the best]"


class InputOutput(opt.Options, panel="Input and output"):
    """What is written, and by whom."""

    out: Path | None = opt.option("--out FOLDER", "The training set.  [default: data/<config name>-distilled]")
    overrides: list[str] | None = opt.OVERRIDES
    best_of: int | None = opt.option("--best-of N", BEST_OF, min=2, max=1000)
    with_original: bool = opt.option("--with-original", "Append the original pairs: twice as many in all.", False)


def distill(
    context: typer.Context,
    teacher: Annotated[
        Path,
        typer.Argument(metavar="TEACHER", help="The model that translates: a run folder or one checkpoint folder."),
    ],
    config: opt.ConfigFile,
    *,
    given: InputOutput,
    shares: opt.Shares,
    search: opt.Search,
    more_search: opt.MoreSearch,
    protection: opt.Protection,
    engine: opt.Engine,
) -> None:
    """Let a teacher translate the training data of a student.

    \b
    tfm distill checkpoints/my student.yaml --out distilled
    tfm train student.yaml --set \\
        'data.train={source: distilled/train.de, target: distilled/train.en}'

    Sequence-level knowledge distillation (Kim and Rush 2016): what a good model wrote is easier to learn than what many
    people wrote, for small, fast and non-autoregressive models above all. Writes FOLDER/train.SOURCE and
    FOLDER/train.TARGET, pair by pair as in data.train, whatever kind of source that is, and prints the option by which
    tfm train learns from them.

    What is done is kept in FOLDER.parts, so the same command continues where it was interrupted. FOLDER appears when it
    is complete.
    """
    from transformer_cli.data.corpora import open_split
    from transformer_cli.data.held_out import WithoutHeldOut, find_held_out
    from transformer_cli.jobs import distilling
    from transformer_cli.jobs.shards import UNHEARD
    from transformer_cli.jobs.training_set import TrainingSet, setting
    from transformer_cli.storage.origin import load_found_config

    share = shares.parse()
    options = opt.translation_options(context, teacher)
    student = load_found_config(config, given.overrides or [])
    distilling.check_languages(options.model, student)
    if student.data.tags:
        tags = ", ".join(student.data.tags)
        raise UserError(f"{config}: data.train has tags ({tags}), which distilled text would lose; leave them out")
    folder = given.out or Path("data") / f"{config.name.removesuffix(config.suffix)}-distilled"
    languages = student.data.source_language, student.data.target_language
    training_set = TrainingSet.of(folder, languages, compressed=shares.gzip)
    training_set.check_place()
    corpus = open_split(student.data, "train")
    if held_out := find_held_out(options.model.config.data, options.model.folder):
        corpus = WithoutHeldOut(corpus, held_out)  # so that the student can be validated on them too
    quiet = shares.quiet or rank_and_size()[0] > 0
    warnings = distilling.distill(
        options,
        corpus,
        training_set,
        best_of=given.best_of is not None,
        with_original=given.with_original,
        jobs=opt.workplace(context, options.files),
        share=share,
        progress=Progress("translated", quiet=quiet),
        note=UNHEARD if quiet else note,
    )
    if warnings is not None:
        warn(*warnings)
        print(setting(training_set.files))
