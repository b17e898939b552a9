"""`tfm evaluate`: BLEU, chrF and TER, with intervals, of a model on a test set or of a file of translations."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, align, check_output, note, open_results, warn
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.evaluation.evaluate import Evaluation, EvaluationSet, Score, SubsetScore
    from transformer_cli.evaluation.overlap import Overlap

WITH_HYPOTHESIS = ("--hypothesis", "--reference", "--language", "--metric", "--json", "--quiet")
LANGUAGE = re.compile("[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*")  # ISO 639's own table comes with the extra `train` alone


class InputOutput(opt.Options, panel="Input and output"):
    """What is scored, and how the scores are printed."""

    source: Path | None = opt.option(
        "--source FILE", "Source sentences, one per line (plain or .gz).  [default: data.test of the model's config]"
    )
    reference: list[Path] | None = opt.REFERENCES
    hypothesis: Path | None = opt.option("--hypothesis FILE", "Score these translations, without a model.")
    language: str | None = opt.option(
        "--language CODE", "With --hypothesis: its language (ja, zh, …), for BLEU's tokenizer."
    )
    metric: list[str] | None = opt.METRICS
    overlap: bool = opt.option(
        "--overlap/--no-overlap", "Also score without the lines that the training data has.", True
    )
    json_output: bool = opt.JSON
    output_file: Path | None = opt.option("--output -o FILE", "Write the translations to this file.")
    quiet: bool = opt.QUIET


def evaluate(
    context: typer.Context,
    model: Annotated[Path | None, typer.Argument(metavar="MODEL", help=f"{opt.MODEL} Not with --hypothesis.")] = None,
    *,
    given: InputOutput,
    search: opt.Search,
    engine: opt.Engine,
) -> None:
    """Score a model's or a file's translations with sacreBLEU.

    \b
    tfm evaluate checkpoints/multi30k_de_en
    tfm evaluate checkpoints/multi30k_de_en --source test.de \\
        --reference test.en --beam 5 --output test.hypothesis.en
    tfm evaluate --hypothesis test.hypothesis.en --reference test.en

    Prints each metric's name and score; in brackets the mean and the 95 % interval of 1,000 bootstrap resamples, which
    are those of `sacrebleu --confidence`; and below them the signature, in sacreBLEU's short names, which makes scores
    comparable. Higher is better for BLEU and chrF, lower for TER.

    Texts are raw and detokenized. BLEU and chrF are cased, TER is not, as is sacreBLEU's default (c:mixed and c:lc in
    the signatures). BLEU's tokenizer follows the target language: zh, ja-mecab, ko-mecab, else 13a.

    Then the training data of the model's run is read. Where test lines also occur in it (the source or a reference, but
    for case, punctuation or a word or two), the scores without them follow.
    """
    from transformer_cli.evaluation import evaluate as evaluation_of

    metrics = evaluation_of.parse_metrics(given.metric)
    if given.hypothesis is not None:
        test_set, scores = score_file(context, model, given, metrics)
        if given.json_output:
            print_json({"hypothesis": str(given.hypothesis)}, test_set, scores, {})
        else:
            print_table(scores)
        return
    if model is None:
        raise UserError("missing argument 'MODEL': give a model, or translations with --hypothesis")
    if given.language is not None:
        raise UserError("--language: belongs to --hypothesis; a model knows its target language")
    check_output(given.output_file, context.params)
    options = opt.translation_options(context, model)
    test_set = evaluation_of.find_test_set(options.model, given.source, given.reference, "test")
    options = options.tagged_as(test_set.tag)
    models = [options.model, *options.beside]
    files = opt.files_named(options.model.config.data, "test", options.model.folder) if given.source is None else []
    for one in models if given.overlap else []:
        files += opt.files_named(one.config.data, "train", one.folder)
    check_output(given.output_file, {"data": files})
    translator = options.load_translator()
    with Progress("translated", total=len(test_set.sources), quiet=given.quiet) as report:
        evaluation = evaluation_of.evaluate(
            translator,
            test_set.sources,
            test_set.references,
            metrics=metrics,
            options=options.search_options,
            report=report,
        )
    if given.output_file is not None:
        with open_results(given.output_file) as write:
            for translation in evaluation.translations:
                write(translation)
    warn(*test_set.notes, *translator.notes)
    hint_at_short_lines(evaluation.scores, evaluation.translations)
    if not given.json_output:  # before the training data is read, which may take a while
        print_table(evaluation.scores)
    more = {"overlap": check_overlap(models, test_set, evaluation, given)} if given.overlap else {}
    if given.json_output:
        what = {"model": str(model), "seconds": round(evaluation.seconds, 3)}
        print_json(what, test_set, evaluation.scores, more)


def score_file(
    context: typer.Context, model: Path | None, given: InputOutput, metrics: Sequence[str]
) -> "tuple[EvaluationSet, list[Score]]":
    """Return the translations of --hypothesis with their references, and their scores. Raises `UserError`."""
    from transformer_cli.evaluation import evaluate as evaluation_of

    assert given.hypothesis is not None
    others = [name for name in opt.given_options(context) if name not in WITH_HYPOTHESIS]
    if model is not None or others:
        raise UserError(
            f"--hypothesis and {'MODEL' if model is not None else others[0]} exclude each other: score a file, or"
            " translate with a model"
        )
    if not given.reference:
        raise UserError("--hypothesis: needs --reference FILE, to compare the translations with")
    check_language(given.language)
    evaluation_of.load_scorers(metrics, given.language or "")  # before files are read
    test_set = evaluation_of.read_test_set(given.hypothesis, given.reference)
    evaluation_of.check_references(test_set.references, given.reference)
    hint_at_tokenizer(given.language, metrics, test_set.references)
    warn(*test_set.notes)
    scores = evaluation_of.corpus_scores(
        test_set.sources, test_set.references, given.language or "", metrics, intervals=True
    )
    hint_at_short_lines(scores, test_set.sources)
    return test_set, scores


def check_language(language: str | None) -> None:
    """Raise `UserError` where it is no language code."""
    if language is not None and not LANGUAGE.fullmatch(language):
        raise UserError(f"--language {language[:40]!r}: is not a language code; give one such as ja")


def hint_at_tokenizer(language: str | None, metrics: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    """Warn where BLEU is asked for, but not the tokenizer that the references seem to need."""
    from transformer_cli.evaluation.evaluate import suggests_language

    if language is None and "bleu" in metrics and suggests_language(references[0]):
        warn("BLEU's tokenizer is 13a, which does not separate Chinese, Japanese or Korean words; give --language")


def hint_at_short_lines(scores: "Sequence[Score]", translations: Sequence[str]) -> None:
    """Warn where BLEU is 0, however good the translations are, because none is long enough for it."""
    from transformer_cli.evaluation.evaluate import suggests_language

    zero = any(score.metric == "bleu" and score.score == 0.0 for score in scores)
    if zero and all(len(text.split()) < 4 for text in translations) and not suggests_language(translations):
        warn("BLEU is 0 because no translation has four words; go by chrF, as for all lines so short")


def print_json(
    what: Mapping[str, object], test_set: "EvaluationSet", scores: "Sequence[Score]", more: Mapping[str, object]
) -> None:
    """Print scores as one JSON object, with other keys before and after them."""
    sizes = {"sentences": len(test_set.sources), "references": len(test_set.references)}
    print(json.dumps({**what, **sizes, "scores": [asdict(score) for score in scores], **more}, indent=2))


def print_table(scores: "Sequence[Score]", signatures: bool = True) -> None:
    """Print two lines for each score: the score, and its signature."""
    rows = [(one.name, f"{one.score:.2f}", f"(mean {one.mean:.2f} ± {one.interval:.2f})") for one in scores]
    width = max(len(score.name) for score in scores)
    for row, score in zip(align(rows), scores, strict=True):
        print(f"{row}\n{'':{width}}  {score.short_signature}" if signatures else row)


def check_overlap(
    models: "Sequence[FoundModel]", test_set: "EvaluationSet", evaluation: "Evaluation", given: InputOutput
) -> dict[str, object]:
    """Print, for people, and return, for programs, which lines the training data has and the scores without them."""
    from transformer_cli.evaluation.overlap import find_overlap, scores_without

    overlap = find_overlap(models, test_set, progress=not given.quiet)
    if overlap.unknown is not None:
        if not given.quiet:
            note(f"overlap with the training data was not checked: {overlap.unknown}")
        return {"checked": False, "reason": overlap.unknown, "lines": None, "sentences": None, "scores": None}
    scores = scores_without(overlap, evaluation, test_set, models[0].config.data.target_language)
    if not given.json_output:
        print_overlap(overlap, scores)
    found = [{**asdict(score), "differs": score.differs} for score in scores]
    return {"checked": True, "lines": overlap.lines, "sentences": len(overlap.rest), "scores": found}


def print_overlap(overlap: "Overlap", scores: "Sequence[SubsetScore]") -> None:
    """Print the scores of the lines that the training data does not have, and whether the difference matters."""
    count, total = len(overlap.lines), overlap.sentences
    if not count:
        print("no test line also occurs in the training data")
    elif count == total:
        print("every test line also occurs in the training data: nothing is left to score without them")
    else:
        lines, occur = ("test line", "occurs") if count == 1 else (f"{count:,} test lines", "occur")
        print(f"\nwithout the {lines} ({100 * count / total:.1f} %) that also {occur} in the training data:")
        print_table(scores, signatures=False)
        differing = [score.name for score in scores if score.differs]
        print(
            f"The difference matters ({', '.join(differing)}): it is more than chance; report these scores."
            if differing
            else "The difference does not matter: leaving out as many random lines does as much."
        )
