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
        "--max-ratio R",
        "Leave out pairs of which one side has R times the tokens of the other.",
        2.0,
        min=1.0,
        max=1000.0,
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
    tfm backtranslate checkpoints/reverse --input news.en --out synthetic
    tfm backtranslate checkpoints/reverse --input news.en --out sampled \\
        --config my.yaml --sample --top-k 10

    Back-translation (Sennrich et al. 2016). To improve German to English by more English text, a model from English to
    German translates that text. Each pair has the translation as its source and the text itself as its target, in
    FOLDER/train.de and FOLDER/train.en, in the order of the text.

    Not translated are lines that are empty, longer than MODEL takes, in the language that it writes, repeated, or in
    the validation and test data of MODEL's run, of --config, or in --exclude (but for case, spaces, punctuation and a
    word or two). Left out after that are pairs whose translation is empty, too long or cut off (too_long), much longer
    or shorter than the text (length_ratio), repeats itself (repetition), copies the text (identical_sides) or is in
    another language (wrong_language). All are counted.

    Prints an element of the list data.train: the files, and a tag for their sources (Caswell et al. 2019). With
    --config it prints the whole list, the config's own data first, as an option of tfm train, such as

    \b
    --set 'data.train=[{source: train.de, target: train.en},
      {source: synthetic/train.de, target: synthetic/train.en, tag: <bt>}]'

    With millions of pairs, models learned more from text translated with --sample than with beam search; with few, less
    (Edunov et al. 2018).

    What is done is kept in FOLDER.parts, so the same command continues where it was interrupted. FOLDER appears when it
    is complete.
    """
    from transformer_cli.codecs import load_codecs
    from transformer_cli.config.yaml_file import dump_flow
    from transformer_cli.data.monolingual import Monolingual
    from transformer_cli.data.quality.languages import find_identifier
    from transformer_cli.jobs import backtranslating
    from transformer_cli.jobs.shards import UNHEARD
    from transformer_cli.jobs.training_set import TrainingSet, setting
    from transformer_cli.storage.origin import load_found_config

    share = shares.parse()
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
    quiet = shares.quiet or rank_and_size()[0] > 0
    corpus = Monolingual(
        given.input_files,
        load_codecs(found.folder, found.config).source,
        most,
        held_out=backtranslating.held_out_texts(found, config, given.exclude or ()),
        languages=identifier,
        progress=not quiet,
    )
    warnings = backtranslating.backtranslate(
        options,
        corpus,
        training_set,
        filters,
        jobs=opt.workplace(context, options.files),
        share=share,
        progress=Progress("translated", quiet=quiet),
        note=UNHEARD if quiet else note,
    )
    if warnings is None:
        return
    if identifier is None:
        warnings.append(f"{found.name}: its run has nothing that tells its languages apart, so they were not checked")
    warn(*warnings)
    made = {**training_set.files, "tag": backtranslating.TAG}
    if config is not None:
        print(setting(backtranslating.beside(config, made)))
        return
    print(dump_flow(made))
    if not quiet:
        note("this is an element of the list data.train; with --config CONFIG, all of the list is printed")
