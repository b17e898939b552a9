"""`tfm distill`: a teacher translates the training data, and a student learns from what it wrote."""

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_cli.cli.layout import Layout
from transformer_cli.cli.options import (
    BatchTokens,
    Beam,
    ComputeType,
    ConfigFile,
    Device,
    Engine,
    GlossaryFile,
    Greedy,
    Guard,
    LengthPenalty,
    MaxLength,
    Mbr,
    MinLength,
    NoRepeatNgram,
    Overrides,
    Protect,
    Quiet,
    Sample,
    Seed,
    Temperature,
    TopK,
    TopP,
    With,
    check_apart,
    check_needs,
    check_search,
    search_changes,
)
from transformer_cli.cli.settings import Settings
from transformer_cli.cli.streams import note
from transformer_cli.errors import UserError
from transformer_cli.jobs.torchrun import rank_and_size

if TYPE_CHECKING:
    from transformer_cli.config import Config
    from transformer_cli.data.corpora import Corpus
    from transformer_cli.jobs.distilling import TrainingSet
    from transformer_cli.jobs.shards import Parts


def distill(
    teacher: Annotated[
        Path,
        typer.Argument(metavar="TEACHER", help="The model that translates: a run folder or one checkpoint folder."),
    ],
    config: ConfigFile,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="The training set.  [default: data/<config name>-distilled]"),
    ] = None,
    overrides: Overrides = None,
    best_of: Annotated[
        int | None,
        typer.Option(
            "--best-of",
            min=2,
            max=1000,
            metavar="N",
            help="Take, of the N best translations, the one most like the reference, by chrF.  [default: the best]",
        ),
    ] = None,
    with_original: Annotated[
        bool, typer.Option("--with-original", help="Append the original pairs: twice as many in all.")
    ] = False,
    gzip: Annotated[bool, typer.Option("--gzip", help="Compress the two files.")] = False,
    beam: Beam = None,
    greedy: Greedy = False,
    sample: Sample = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    length_penalty: LengthPenalty = None,
    no_repeat_ngram: NoRepeatNgram = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    mbr: Mbr = None,
    with_: With = None,
    guard: Guard = True,
    protect: Protect = True,
    glossary: GlossaryFile = None,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=1000, metavar="N", help="Translate by N processes, over all GPUs.")
    ] = 1,
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help="Translate only the I-th of N shares, such as 2/8; without this option the shares are joined.",
        ),
    ] = None,
    batch_tokens: BatchTokens = None,
    engine: Engine = "auto",
    compute_type: ComputeType = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Let a teacher translate the training data of a student.

    Sequence-level knowledge distillation (Kim and Rush 2016): what a good model wrote is easier to learn than what many
    people wrote, for small, fast and non-autoregressive models above all. Writes FOLDER/train.SOURCE and
    FOLDER/train.TARGET, pair by pair as in data.train, whatever kind of source that is, and prints the option by which
    tfm train learns from them.

    What is done is kept in FOLDER.parts, so the same command goes on where it was interrupted. FOLDER appears when it
    is whole.

    \b
    tfm distill checkpoints/my student.yaml --out distilled
    tfm train student.yaml --set \\
        'data.train={source: distilled/train.de, target: distilled/train.en}'
    """
    from transformer_cli.config import load_config
    from transformer_cli.data.corpora import open_corpus
    from transformer_cli.jobs.distilling import TrainingSet

    check_search(beam=beam, greedy=greedy, sample=sample)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    check_needs("--sample", sample, **sampling)
    check_apart("--greedy", greedy, best_of=best_of, mbr=mbr)
    check_apart("--mbr", mbr, best_of=best_of)
    check_apart("--no-protect", not protect, glossary=glossary)
    candidates = mbr or best_of
    if candidates and beam is not None and candidates > beam:
        raise UserError(f"--{'mbr' if mbr else 'best-of'} {candidates}: --beam {beam} finds fewer; raise that")
    share = check_share(shard)
    settings = Settings(
        model=teacher,
        beside=tuple(with_ or ()),
        device=device,
        engine=engine,
        compute_type=compute_type,
        search=search_changes(
            beam=candidates if candidates and beam is None and not sample else beam,
            greedy=greedy,
            sample=sample,
            length_penalty=length_penalty,
            no_repeat_ngram=no_repeat_ngram,
            min_length=min_length,
            max_length=max_length,
            n_best=candidates or 1,
            **sampling,
        ),
        mbr=mbr is not None,
        guard=guard,
        batch_tokens=batch_tokens,
        layout=Layout(n_best=best_of or 1),
        protect=protect,
        glossary=glossary,
    )
    student = load_config(config, overrides or [])
    settings.check()
    check_languages(teacher, student)
    folder = out if out is not None else Path("data") / f"{config.name.removesuffix(config.suffix)}-distilled"
    check_folder(folder)
    training_set = TrainingSet.of(folder, student, compressed=gzip)
    corpus = open_corpus(student.data.train, student.data.source_language, student.data.target_language)
    _distill(
        settings, corpus, training_set, jobs, share, best_of=best_of is not None, original=with_original, quiet=quiet
    )


def _distill(
    settings: Settings,
    corpus: "Corpus",
    training_set: "TrainingSet",
    jobs: int,
    share: tuple[int, int] | None,
    *,
    best_of: bool,
    original: bool,
    quiet: bool,
) -> None:
    """Translate, join and publish, as far as that is not done; print how to train with it."""
    from itertools import tee

    from transformer_cli.cli.sharded import translate_parts, wait_for_parts
    from transformer_cli.decoding.translation import Tally
    from transformer_cli.jobs.distilling import begin, closest, write_training_set
    from transformer_cli.jobs.shards import Parts

    recipe = recipe_of(settings, corpus, training_set, best_of=best_of, original=original)
    parts = Parts(Path(os.path.realpath(training_set.folder)))
    if training_set.is_finished(recipe):
        if not rank_and_size()[0]:
            _tell_finished(training_set, parts, quiet)
        return
    total = sum(1 for _ in corpus.pairs())  # a fault in it shows before the long part
    begin(parts, recipe)
    first, second = tee(corpus.pairs())
    names = translate_parts(
        settings,
        (source for source, _ in first),
        parts,
        jobs,
        json.dumps(recipe),
        share or rank_and_size(),
        estimate=lambda: total,
        quiet=quiet,
        references=(target for _, target in second) if best_of else None,
        finish=closest if best_of else None,
    )
    if share is not None:
        _tell_missing(parts.folder, sum(not parts.has(name) for name in names), len(names), quiet)
        return
    if rank_and_size()[0]:
        return
    wait_for_parts(parts, names, quiet)
    if corpus.content_hash() != recipe["data.train"]:
        raise UserError(f"{corpus.describe()}: changed while it was translated; give the same command again")
    translations = (row for name in names for row in parts.rows(name))
    notes = write_training_set(training_set, recipe, corpus, translations, with_original=original)
    notes = [*corpus.notes, *Tally(parts.total(names)).notes, *notes]
    parts.remove()
    for warning in notes:
        note(f"warning: {warning}")
    print(training_set.setting)


def recipe_of(
    settings: Settings, corpus: "Corpus", training_set: "TrainingSet", *, best_of: bool, original: bool
) -> dict[str, Any]:
    """All that decides the training set, by the names that a refusal gives."""
    version, hashes, device, fields = json.loads(settings.fingerprint())
    teachers = 1 + len(settings.beside)
    return {
        "tfm": version,
        "teacher": hashes[:teachers],
        "glossary": hashes[teachers:],
        "data.train": corpus.content_hash(),
        "device": device,
        "files": [training_set.source, training_set.target],
        "best_of": best_of,
        "with_original": original,
        **{name: fields[name] for name in ("engine", "compute_type", "batch_tokens", "mbr", "guard", "protect")},
        **fields["search"],
    }


def check_share(shard: str | None) -> tuple[int, int] | None:
    """The share of `--shard I/N`, counted from 0, and of how many. Raises `UserError`."""
    if shard is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", shard)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"--shard {shard}: write it as I/N, the I-th of N shares, such as 2/8")
    if rank_and_size()[1] > 1:
        raise UserError("--shard and torchrun exclude each other: torchrun's processes share the data by themselves")
    return int(found[1]) - 1, int(found[2])


def check_languages(teacher: Path, student: "Config") -> None:
    """Raise `UserError` where the teacher translates between other languages than the student shall."""
    from transformer_cli.cli.loading import read_options

    config, _ = read_options(teacher, {})
    theirs, ours = [(data.source_language, data.target_language) for data in (config.data, student.data)]
    if theirs != ours:
        raise UserError(
            f"{teacher}: translates {theirs[0]} into {theirs[1]}, but the config {ours[0]} into {ours[1]};"
            " choose another teacher, or set data.source_language and data.target_language"
        )


def check_folder(folder: Path) -> None:
    """Raise `UserError` where the training set could not be put there, before time is spent on it."""
    if os.path.lexists(folder) and not folder.is_dir():
        raise UserError(f"{folder}: is no folder; name another --out")
    above = Path(os.path.realpath(folder)).parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: cannot be made in {above}: no permission; name another --out")


def _tell_finished(training_set: "TrainingSet", parts: "Parts", quiet: bool) -> None:
    if parts.folder.is_dir():
        parts.remove()  # a kill came before that
    if not quiet:
        note(f"{training_set.folder}: is finished; nothing is left to do")
    print(training_set.setting)


def _tell_missing(folder: Path, missing: int, parts: int, quiet: bool) -> None:
    if not quiet:
        rest = f"{missing:,} of {parts:,} parts are still missing" if missing else "none is missing"
        note(f"this share is done, in {folder}: {rest}; without --shard the same command joins them")
