"""`tfm backtranslate`: a model of the other direction makes training pairs of text in one language."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import Progress, note, warn
from transformer_cli.decoding.devices import rank_and_size

MODEL = "The model of the other direction: a run folder or one checkpoint folder."
INPUT = "Text in the language to be translated into, one sentence per line (plain or .gz). Repeatable."
CONFIG = "Config of the model to train: leave out lines of its data.valid and data.test; print all of its data.train."
KEEP = "Keep pairs with this fault: too_long, length_ratio, repetition, identical_sides or wrong_language. Repeatable."


class InputOutput(opt.Options, panel="Input and output"):
    """What is read, and where the pairs go."""

    input_files: list[Path] = opt.option("--input -i FILE", INPUT, ...)
    out: Path = opt.option("--out FOLDER", "The training set.", ...)
    config: Path | None = opt.option("--config CONFIG", CONFIG)
    exclude: list[Path] | None = opt.option("--exclude FILE", "Leave out lines that are in this text. Repeatable.")


class Filters(opt.Options, panel="Filters"):
    """Which pairs are left out."""

    max_ratio: float = opt.option(
        "--max-ratio R", "Leave out pairs of which one side has R times the tokens of the other.", 2.0, min=1.0
    )
    min_score: float | None = opt.option(
        "--min-score S", "Leave out pairs whose translation has a lower score, such as -1.5.", max=0.0
    )
    keep: list[str] | None = opt.option("--keep FAULT", KEEP)


def backtranslate(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)],
    *,
    given: InputOutput,
    shares: opt.Shares,
    limits: Filters,
    search: opt.Search,
    more_search: opt.MoreSearch,
    protection: opt.Protection,
    engine: opt.Engine,
) -> None:
    """Make training pairs of text in one language, by a model of the other direction.

    \b
    tfm backtranslate checkpoints/en-de --input news.en --out synthetic
    tfm backtranslate checkpoints/en-de --input news.en --out synthetic \\
        --config de-en.yaml --sample

    Back-translation (Sennrich et al. 2016). To improve German to English with more English text, a model from English
    to German translates that text. Each pair has its translation as the source and the text itself as the target, in
    the order of the text, in FOLDER/train.de and FOLDER/train.en.

    Before that, lines are left out that are empty, longer than MODEL takes, in MODEL's target language, repeated, or
    that occur in valid or test of MODEL's run, of --config or in --exclude: but for case, spaces, punctuation and a
    word or two. After that, pairs are left out whose translation is empty, has no end or too many tokens (too_long),
    is much longer or shorter than the text (length_ratio), repeats itself (repetition), copies the text
    (identical_sides) or is in another language than MODEL's target (wrong_language).

    Prints the pairs as an element of the list data.train, with a tag before their sources (Caswell et al. 2019). With
    --config it prints the option by which tfm train learns from the config's own pairs and these:

    \b
    --set 'data.train=[{source: train.de, target: train.en},
      {source: synthetic/train.de, target: synthetic/train.en, tag: <bt>}]'

    --sample was better than beam search with much text in two languages, and worse with little (Edunov et al. 2018);
    --sample --top-k 10 lies between. What is done is kept in FOLDER.parts, so the same command continues where it was
    interrupted. FOLDER appears when it is complete.
    """
    from transformer_cli.codecs import load_codecs
    from transformer_cli.config.yaml_file import dump_flow
    from transformer_cli.data.monolingual import Monolingual
    from transformer_cli.data.quality.languages import find_identifier
    from transformer_cli.jobs import backtranslating
    from transformer_cli.jobs.shards import UNHEARD
    from transformer_cli.jobs.training_set import TrainingSet, setting
    from transformer_cli.storage.origin import load_found_config
    from transformer_cli.text.lines import read_lines

    share, first = shares.parse(), rank_and_size()[0] == 0
    options = opt.translation_options(context, model)
    found, most = options.model, options.model.config.data.max_length
    config = None if given.config is None else load_found_config(given.config)
    languages = backtranslating.final_languages(found, config)
    training_set = TrainingSet.of(given.out, languages, compressed=shares.gzip)
    training_set.check_place()
    identifier = find_identifier(found.folder)
    filters = backtranslating.PairFilters(
        most, identifier, limits.max_ratio, limits.min_score, frozenset(limits.keep or ())
    )
    held_out, unknown = backtranslating.held_out_texts(found, config)
    quiet = shares.quiet or not first
    corpus = Monolingual(
        given.input_files,
        load_codecs(found.folder, found.config).source,
        most,
        held_out=[*held_out, *(line for path in given.exclude or () for line in read_lines(path))],
        languages=identifier,
        progress=not quiet,
    )
    if identifier is None:
        unknown.append(
            f"{found.name}: its run has nothing that tells its languages apart; no text's language is checked"
        )
    if first:
        warn(*unknown)
    warnings = backtranslating.backtranslate(
        options,
        corpus,
        training_set,
        filters,
        jobs=shares.jobs,
        share=share,
        progress=Progress("translated", quiet=quiet),
        note=UNHEARD if quiet else note,
    )
    if warnings is None:
        return
    warn(*warnings)
    made = {**training_set.files, "tag": backtranslating.TAG}
    if config is not None:
        print(setting(backtranslating.beside(config, made)))
        return
    print(dump_flow(made))
    if not quiet:
        note("this is an element of the list data.train; with --config CONFIG, all of the list is printed")
