"""`tfm compare`: whether one system is better than another, and where."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.evaluate import check_language, hint_at_tokenizer
from transformer_cli.cli.streams import Progress, check_output, note, warn, write_report
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.evaluation.comparing import Measure
    from transformer_cli.evaluation.differences import Texts
    from transformer_cli.evaluation.systems import Material, System
    from transformer_cli.jobs.translating import TranslationOptions

SYSTEM = "A model, a file of translations, or NAME=RUN,RUN,…: several seeds of one system."
# What means something where nothing is translated.
WITHOUT_MODELS = (
    "systems",
    *("--source", "--reference", "--language", "--metric", "--scores", "--format", "--output", "--strict", "--quiet"),
)


class InputOutput(opt.Options, panel="Input and output"):
    """What is compared, by what, and how that is printed."""

    source: Path | None = opt.option(
        "--source FILE", "Source sentences, one per line (plain or .gz).  [default: data.test of the models' configs]"
    )
    reference: list[Path] | None = opt.REFERENCES
    language: str | None = opt.option(
        "--language CODE", "Without models: the target language (ja, zh, …), for BLEU's tokenizer."
    )
    metric: list[str] | None = opt.METRICS
    scores: list[str] | None = opt.option(
        "--scores NAME=FILE,FILE",
        "Another metric: a file for each run, one number a sentence, more is better. Repeatable.",
    )
    format_: Literal["text", "json", "html"] = opt.option("--format FORMAT", "text, json or html (a page).", "text")
    output_file: Path | None = opt.option("--output -o FILE", "Write the report to this file.")
    strict: bool = opt.option(
        "--strict", "Exit with code 1 unless a system is better than the first by the first metric.", False
    )
    quiet: bool = opt.QUIET


def compare(
    context: typer.Context,
    systems: Annotated[list[str], typer.Argument(metavar="SYSTEM", help=SYSTEM)],
    *,
    given: InputOutput,
    search: opt.Search,
    engine: opt.Engine,
) -> None:
    """Test whether one system is better than another.

    \b
    tfm compare checkpoints/one checkpoints/other
    tfm compare one.en other.en --reference test.en --source test.de
    tfm compare A=run1,run2,run3 B=run4,run5,run6 --format html -o page.html

    Says for each metric which system is better, by how much and with which 95 % interval, or how large a difference
    would have to be to show; then where they differ. More than two systems are compared with the first.

    One run a side: paired approximate randomization, two-sided, 10,000 trials, with a bootstrap interval. Several
    runs: a test that takes both the seeds and the sentences as noise. Several comparisons: Holm's correction.
    """
    from transformer_cli.data.held_out import split_tag
    from transformer_cli.evaluation.comparing import compare as compare_all
    from transformer_cli.evaluation.differences import count_in_training, find_where
    from transformer_cli.evaluation.evaluate import parse_metrics
    from transformer_cli.evaluation.systems import parse_systems, read_material
    from transformer_cli.report import comparison as reports

    only_numbers = given.scores and not (given.metric or given.reference or given.source)
    metrics = [] if only_numbers else parse_metrics(given.metric)
    sides = parse_systems(systems)
    runs = [run for side in sides for run in side.runs]
    numbers = [Path(path) for one in given.scores or [] for path in one.partition("=")[2].split(",")]
    read = {"runs": runs, "source": given.source, "reference": given.reference, "numbers": numbers}
    check_output(given.output_file, read)
    models = {run: opt.translation_options(context, run) for run in runs if os.path.isdir(run)}
    language = target_language(context, given, models)
    if not models and not given.reference and metrics:
        raise UserError("files of translations need --reference FILE, to compare them with")
    files = [run for run in runs if run not in models]
    material = read_material([one.model for one in models.values()], files, given.source, given.reference or [])
    if given.source is None:
        models = {run: one.tagged_as(split_tag(one.model.config, "test")) for run, one in models.items()}
        named = [opt.files_named(one.model.config.data, "test", one.model.folder) for one in models.values()]
        check_output(given.output_file, {"data": [path for paths in named for path in paths]})
    measures, texts = measure_all(given, sides, models, material, metrics, language)
    known = [one.model for one in models.values()]
    training, reason = count_in_training(known, material.sources or [], progress=not given.quiet)
    if reason is not None and not given.quiet:
        note(reason)
    where = [find_where(measures[0], b, texts, training) for b in range(1, len(sides))]
    comparisons = compare_all(measures)
    found = reports.Found(sides, measures, comparisons, where, len(material.references))
    if given.format_ == "text":
        text = "\n".join(reports.as_text(found))
    elif given.format_ == "json":
        text = reports.as_json(found)
    else:
        text = reports.as_html(found)
    write_report(given.output_file, text)
    if given.strict and not any(one.better == one.b for one in comparisons if one.metric == comparisons[0].metric):
        raise typer.Exit(1)


def target_language(context: typer.Context, given: InputOutput, models: "dict[Path, TranslationOptions]") -> str | None:
    """Return the language of the translations, where it is known. Raises `UserError` for what does not go together."""
    from transformer_cli.evaluation.systems import check_models

    if models and given.language is not None:
        raise UserError("--language: is for files alone; a model knows its target language")
    if models:
        return check_models([one.model for one in models.values()])
    others = [name for name in opt.given_options(context) if name not in WITHOUT_MODELS]
    if others:
        raise UserError(f"{others[0]}: needs a model; leave it out")
    check_language(given.language)
    return given.language


def measure_all(
    given: InputOutput,
    sides: "Sequence[System]",
    models: "dict[Path, TranslationOptions]",
    material: "Material",
    metrics: Sequence[str],
    language: str | None,
) -> "tuple[list[Measure], Texts]":
    """Return each metric of all runs, and their texts; models translate first, once everything has been checked."""
    from transformer_cli.evaluation import comparing
    from transformer_cli.evaluation.differences import Texts
    from transformer_cli.evaluation.evaluate import load_scorers
    from transformer_cli.evaluation.systems import read_numbers

    load_scorers(metrics, language or "")
    numbers = [read_numbers(one, sides, material.sentences) for one in given.scores or []]
    hint_at_tokenizer(language, metrics, material.references)
    warn(*material.notes)
    outputs = dict(material.outputs)
    for run, options in models.items():
        outputs[run] = translate(run, options, material.sources or [], given.quiet)
    texts = [[outputs[run] for run in side.runs] for side in sides]
    measures = [comparing.measure(metric, texts, material.references, language or "") for metric in metrics]
    measures += [comparing.measure_of_numbers(name, columns) for name, columns in numbers]
    reference = material.references[0] if material.references else None
    return measures, Texts(material.sources, reference, texts)


def translate(run: Path, options: "TranslationOptions", sources: Sequence[str], quiet: bool) -> list[str]:
    """Return a model's translations of the test set."""
    from transformer_cli.evaluation.evaluate import translate_all

    translator = options.load_translator()
    with Progress(f"{run}: translated", total=len(sources), quiet=quiet) as report:
        found = [one.text for one in translate_all(translator, sources, options.search_options, report)]
    warn(*(f"{run}: {one}" for one in translator.notes))
    return found
