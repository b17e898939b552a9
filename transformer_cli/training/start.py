"""What a run starts with, before a model is made: its config and its vocabulary.

They are those of its own folder, if the config may continue that; those of another model (`training.init_from`,
unless `init_vocabulary` is `own`); or new. `run` asks before anything is touched; `tfm build-vocab` makes the
vocabulary alone. No torch.
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from transformer_cli.codecs import load_codecs, model_codecs
from transformer_cli.config import Config, config_of_tree, dump_config, load_config
from transformer_cli.config.languages import check_languages
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.corpora import Corpus, open_corpus, open_split
from transformer_cli.data.held_out import HeldOut, open_corpora
from transformer_cli.data.noise import noise_of, with_noise
from transformer_cli.data.quality.judge import learn_languages
from transformer_cli.data.quality.languages import FILE, LanguageIdentifier
from transformer_cli.data.size import may_fit, measure_corpus
from transformer_cli.errors import UserError
from transformer_cli.storage.origin import find_path, keep_origin, paths_of, read_origin
from transformer_cli.storage.publishing import atomic_write, verify
from transformer_cli.storage.run_folder import CONFIG, HELD_OUT, VOCAB, RunFolder, find_model
from transformer_cli.text.build import Pairs, build_codecs, describe, vocabulary_warnings
from transformer_cli.text.codec import Codecs, vocabulary_files
from transformer_cli.text.sentences import share_of_several
from transformer_cli.training.schedules import DECAY, last_free_step

# What decides when to stop, what to keep and how fast to read, never what the next update is.
MAY_CHANGE = (
    "training.max_steps",
    "training.max_epochs",
    "training.patience",
    "training.keep_last",
    "training.keep_best",
    "training.average_last",
    "training.average_best",
    "training.save_every",
    "training.max_skipped",
    "data.workers",
    "data.license",
    "decoding",
)

MOST = 0.5  # of the training lines hold several sentences: only beyond that they are better translated as they are

# All that a vocabulary depends on: a run that has only that may change everything else.
VOCABULARY_KEYS = ("vocabulary", "data.source_language", "data.target_language", "data.train", "training.noise")

# What a run and the model that it starts from have in common, and how that model was trained, not what it is.
START_KEYS = ("vocabulary", "model", "data.source_language", "data.target_language")
TRAINED_WITH = (
    "model.preset",
    "model.dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.embedding_dropout",
    "model.embedding",
)
TIES = ("none", "decoder", "all")  # `model.tie_embeddings`, from many tables to one


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted key, old and new value of every leaf in which two configs, or parts of them, differ."""
    old, new = (side.model_dump(mode="json") if isinstance(side, Config) else side for side in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def _within(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)


def _show(value: Any) -> str:
    """Return a value as YAML reads it, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


# --- what it reads ----------------------------------------------------------------------------------------------------


def check_inputs(config: Config, run: RunFolder, begins: bool, more: tuple[str, ...] = ()) -> None:
    """Raise `UserError` for languages that are none, and for data that cannot be read, before anything is computed.

    All pairs of `data.valid` are read, and the first of `data.train`. begins: the run is a new one; one that continues
    has the languages that it began with, whatever they are called. more: other keys whose files are read.
    """
    if begins and not config.training.takes_vocabulary:  # else they are that model's, or refused as such
        check_languages(config.data)
    if begins and config.training.init_from is not None:
        find_start(config)
    for key, path in paths_of(config).items():
        read = _within(key, ("data.train", "data.valid", *more)) and not key.endswith(".dataset")
        if read and not os.path.exists(path):
            raise UserError(f"{key}: {path}: no such file{_found_elsewhere(run, key, path)}")
    for source in config.data.sources.values():
        next(open_corpus(source, config.data.source_language, config.data.target_language).pairs(), None)
    if config.data.valid is not None:
        for _ in open_split(config.data, "valid").pairs():
            pass


def _found_elsewhere(run: RunFolder, key: str, path: str) -> str:
    """Return what to do about a file that is not there, but was where the run began; "" where it was not."""
    known, found = read_origin(run.path), find_path(run.path, key, path)
    if known is None or found == path:
        return ""
    folder = known.working_directory
    if not os.path.exists(found):
        return f"; nor is it in {folder}, where the run in {run.path} began"
    return f", but in {folder}, where the run in {run.path} began: start tfm there, or give {run.config_path} as CONFIG"


# --- its own folder ---------------------------------------------------------------------------------------------


def check_continuation(
    run: RunFolder, old: Config, new: Config, last: float | None, asked: Config | None = None
) -> list[str]:
    """Return what changed, as lines to show; raise `UserError` naming the first key that may not change.

    last: the step of the last checkpoint, inf where its rate falls since patience was over; None: there is none.
    `asked`: the new config as it was before its preset was resolved.
    """
    notes, has_checkpoint = [], last is not None
    for key, before, after in differences(old, new):
        fixed = not _within(key, MAY_CHANGE) if has_checkpoint else _within(key, VOCABULARY_KEYS)
        fixed |= key == "data.valid"  # from or to null: pairs are held out of data.train, or no longer
        origin = _origin(key, asked or new, new)
        if key == "training.max_steps" and last is not None and old.training.schedule == new.training.schedule:
            fixed |= last > min(last_free_step(config.training) for config in (old, new))
            if fixed and last <= last_free_step(old.training):  # another one would do
                origin += f" (after {last:,.0f} steps, it must be at least {math.ceil(last / (1 - DECAY)):,})"
        if fixed:
            reason = "the run was trained" if has_checkpoint else "its vocabulary was built"
            raise UserError(
                f"{run.path}: {reason} with {key} = {_show(before)}, the config now says {_show(after)}{origin}; set "
                "it back, choose another folder with --out, or start again with --fresh"
            )
        notes.append(f"{key} changed from {_show(before)} to {_show(after)}")
    return notes


def _origin(key: str, asked: Config, new: Config) -> str:
    """Return words on where the value of a key comes from that was not set; "" where it was."""
    section, _, name = key.partition(".")
    given, filled = (getattr(config, section).model_fields_set for config in (asked, new))
    if asked.model.preset is None or name in given or name not in filled:
        return ""
    # Those two change with a limit that was set, or was set before, rather than with the text.
    text = asked.model.preset == "auto" and key not in ("training.schedule", "training.max_steps")
    why = " for the text in data.train: did it, or the version of tfm, change?" * text
    return f" (chosen by model.preset = {asked.model.preset}{why})"


def keep_warmup(config: Config, old: Config, asked: Config) -> Config:
    """Return the config with the warmup that the run began with, unless the new one sets it: a preset shortens that of
    a trial, which may then go on for longer.

    old: the run's config; asked: the new one before its preset was resolved. Raises `UserError` where the warmup is
    longer than what is now wanted.
    """
    chosen = asked.model.preset is not None and "warmup_steps" not in asked.training.model_fields_set
    same = config.training.warmup_steps == old.training.warmup_steps
    if not chosen or same or config.training.schedule != old.training.schedule:
        return config
    sections = config.model_dump(mode="json", exclude_unset=True)
    warmup = f"training.warmup_steps={old.training.warmup_steps}"
    return config_of_tree(sections, f"{warmup}, with which the run began", [warmup])


def take_folder(run: RunFolder, stack: ExitStack, fresh: bool, begins: bool) -> list[str]:
    """Make the run folder ready for writing, and hold it in the stack; return lines to show.

    begins: the run was not there, or to be renamed (`fresh`), when its data was first looked at; else it is held.
    """
    notes = [f"renamed {run.path} to {run.set_aside()}"] if fresh and run.exists() else []
    run.create()
    if begins:
        stack.enter_context(run.lock())
        if run.exists():
            raise UserError(f"{run.path}: another tfm started a run here meanwhile; choose another folder with --out")
        run.check_own()  # what came since the first look
    run.clean_temporaries()
    return notes


def write_start(
    run: RunFolder,
    config: Config,
    held_out: HeldOut | None,
    codecs: Codecs,
    identifier: LanguageIdentifier | None,
    resuming: bool,
) -> None:
    """Write the config, held-out pairs and vocabulary of a run, as they are now; resuming: where they differ.

    identifier: what tells the run's languages apart, which lies beside the vocabulary.
    """
    written = resuming and run.config_path.exists() and load_config(run.config_path) == config
    if not written:  # else it may have comments by now
        atomic_write(run.config_path, dump_config(config))
    keep_origin(run.path, config)
    if held_out is not None and not (resuming and run.held_out_path.exists()):
        run.publish(HELD_OUT, held_out.save)
    if not (resuming and run.vocab_path.exists()):

        def write(folder: Path) -> None:
            codecs.save_into(folder)
            if identifier is not None:
                identifier.save(folder / FILE)

        run.publish(VOCAB, write)


# --- lines of several sentences -----------------------------------------------------------------------------------


def resolve_split(config: Config, run: RunFolder | None) -> tuple[Config, list[str]]:
    """Return the config with `decoding.split` decided by the training text where it is `auto`, and lines to show.

    run: one to continue; what it has trained with stays, `auto` too, if it is from before this was asked. Reads the
    first lines of `data.train`, and raises `UserError` for a fault in them.
    """
    if config.decoding.split != "auto":
        return config, []
    if run is not None and run.config_path.is_file() and run.index().last is not None:
        return _with_split(config, load_config(run.config_path).decoding.split), []
    pairs = open_split(config.data, "train").pairs()
    share = share_of_several((source for source, _ in pairs), config.data.source_language)
    split = "never" if share > MOST else "always"
    how = "sentence by sentence" if split == "always" else "whole, as in training"
    line = f"sentences    {share:.1%} of the training lines hold several; decoding.split = {split}: translated {how}"
    return _with_split(config, split), [line]


def _with_split(config: Config, split: str) -> Config:
    return config.model_copy(update={"decoding": config.decoding.model_copy(update={"split": split})})


# --- another model ------------------------------------------------------------------------------------------------


def check_start(config: Config, run: RunFolder) -> None:
    """Raise `UserError` where `training.init_from` is the run's own folder, or in it: --fresh would rename it first."""
    start = config.training.init_from
    if start is None or not os.path.exists(start):  # what is not there is reported later
        return
    if Path(os.path.realpath(start)).is_relative_to(os.path.realpath(run.path)):
        raise UserError(
            f"training.init_from: {start} is in the folder of this run itself; leave it out to continue the run, or "
            "choose another folder with --out to start a new one from that model"
        )


def load_start_codecs(config: Config, own: Codecs | None) -> tuple[Codecs, list[str]]:
    """Return the codecs of the model in `training.init_from`, and lines to show; `own`: those that the run has already.

    Raises `UserError` where the run's own vocabulary is another.
    """
    folder = find_start(config)
    codecs = load_codecs(folder, config)
    if own is not None and own.fingerprint != codecs.fingerprint:
        raise UserError(
            f"training.init_from: {folder} has another vocabulary than the run has built already; start again with "
            "--fresh, and the run takes over that one, or set training.init_vocabulary: own"
        )
    return codecs, [f"start        weights and vocabulary of {folder} (training.init_from)"]


def check_parent(config: Config) -> None:
    """Raise `UserError` where the config describes another model than that in `training.init_from`.

    With a vocabulary of its own, a run may have other languages, and tables of its own for what the parent ties.
    """
    folder = find_start(config)
    verify(folder, [CONFIG])
    parent, takes_vocabulary = load_config(folder / CONFIG), config.training.takes_vocabulary
    may_differ = TRAINED_WITH + (("model.max_positions",) if config.model.positions != "learned" else ())
    if not takes_vocabulary:
        may_differ += ("vocabulary", "data")
        if TIES.index(config.model.tie_embeddings) < TIES.index(parent.model.tie_embeddings):
            may_differ += ("model.tie_embeddings",)
    others = [
        (key, _show(ours), _show(theirs))
        for key, ours, theirs in differences(config, parent)
        if _within(key, START_KEYS) and not _within(key, may_differ)
    ]
    if others:
        key, ours, theirs = others[0]
        more = f", and {len(others) - 1} more keys differ" if len(others) > 1 else ""
        what, sections = ("vocabulary and shape", "sections vocabulary and model")
        if not takes_vocabulary:
            what, sections = ("shape", "section model")
        own = "" if key.startswith("model.") else "; training.init_vocabulary: own builds a new vocabulary"
        raise UserError(
            f"training.init_from: {folder} has {key} = {theirs}, the config says {ours}{more}; a run takes over the "
            f"{what} of the model that it starts from, so set {key}: {theirs}, or copy the {sections} from "
            f"{folder / CONFIG}{own}"
        )


def find_start(config: Config) -> Path:
    """Return the checkpoint folder that `training.init_from` means; `UserError` where there is none."""
    assert config.training.init_from is not None
    try:
        return find_model(config.training.init_from)
    except UserError as error:
        raise UserError(f"training.init_from: {error}") from None


# --- the vocabulary -----------------------------------------------------------------------------------------------


def load_or_build_codecs(
    config: Config, train: Corpus, run: RunFolder | None, last_step: int | None, progress: bool
) -> tuple[Codecs, list[str]]:
    """Return the codecs of a run's last checkpoint, else of `build-vocab` there, else new ones of `train`; with notes.

    `run` None: there is nothing yet. A run that starts from a model (`training.init_from`) has that model's, unless it
    is to have its own. Every file is checked against its hash before it is read. Raises `UserError`, also where the
    config describes another model than the one to start from.
    """
    if run is not None and last_step is not None:
        return load_codecs(run.step_folder(last_step), config), []
    if config.training.init_from is not None:
        check_parent(config)
    own = None
    if run is not None and run.vocab_path.exists():
        verify(run.vocab_path, [Path(name).name for name in vocabulary_files(config.vocabulary)])
        own = model_codecs(Codecs.load(run.path, config), config)
    if config.training.takes_vocabulary:
        return load_start_codecs(config, own)
    if own is not None:
        return own, []
    codecs, notes = build_codecs(config, _vocabulary_text(config, train), progress=progress)
    return model_codecs(codecs, config), notes


def _vocabulary_text(config: Config, train: Corpus) -> Callable[[], Pairs]:
    """Return what gives the text of a vocabulary: the training pairs, with the noise that the model will see.

    What is surely left out for its length gives nothing: a few lines of a thousand words would have most subwords.
    """
    noise, most = noise_of(config), config.data.max_length

    def pairs() -> Pairs:
        some = train.pairs() if noise is None else with_noise(train.pairs(), noise, config.training.seed)
        return ((source, target) for source, target in some if may_fit(source, most) and may_fit(target, most))

    return pairs


def build_vocabulary(
    config: Config,
    path: Path,
    *,
    fresh: bool = False,
    progress: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> list[list[str]]:
    """Build and save the vocabularies of a run; return the rows of the table of sizes and coverage.

    Nothing is written before all data was read. Raises `UserError` for bad data, and where the run has a vocabulary
    already and `fresh` is false: its checkpoints, or a copy of it elsewhere, may depend on it.
    note: called with each sentence for the user.
    """
    if config.training.takes_vocabulary:
        raise UserError(
            "training.init_from: a run has the vocabulary of the model that it starts from, so there is none to build; "
            "continue with tfm train, or set training.init_vocabulary: own"
        )
    run = RunFolder(path)
    run.check_writable()
    run.check_own()
    begins = fresh or not run.exists()
    with ExitStack() as stack:
        if not begins:
            stack.enter_context(run.lock())  # from here on nobody else changes what is there
            if run.vocab_path.exists() or run.index().steps:
                raise UserError(
                    f"{path}: this run has a vocabulary already; name another folder with --out, or give --fresh to "
                    "rename this one aside and build again"
                )
        check_inputs(config, run, begins)
        config, preset = resolve_preset(config, partial(measure_corpus, progress=progress))
        config, _ = resolve_split(config, None)
        for line in preset:
            note(line)
        if config.training.init_from is not None:
            check_parent(config)
        corpora = open_corpora(config, run, resuming=False, progress=progress)
        train, valid = corpora.train, corpora.valid
        codecs, notes = build_codecs(config, _vocabulary_text(config, train), progress=progress)
        rows = describe(codecs, valid.pairs())
        languages = config.data.source_language, config.data.target_language
        known = corpora.untagged
        identifier = None if known is None else learn_languages(known, languages, config.training.seed)
        notes += take_folder(run, stack, fresh, begins)
        write_start(run, config, corpora.held_out, codecs, identifier, resuming=False)
    for line in [*corpora.notes, *train.notes, *valid.notes, *notes, *vocabulary_warnings(codecs, config.vocabulary)]:
        note(line)
    return [[str(cell) for cell in row] for row in rows]
