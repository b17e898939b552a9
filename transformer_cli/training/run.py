"""A training run from config to finished model: `tfm train` calls `train`, and so can any program.

Here is the whole way up to the first update, and who makes what: where the run stands, the data, what learns. The dry
run goes the same way.
"""

import math
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from transformer_cli.build import build_model, build_objective, count_parameters, load_model, set_target_ids
from transformer_cli.config import Config, dump_config, load_config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.data.held_out import open_corpora
from transformer_cli.data.quality.judge import learn_languages
from transformer_cli.data.size import measure_corpus
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import load_scorers
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.checkpoint import load_training_state, load_training_values, load_weights
from transformer_cli.storage.origin import respelled
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder
from transformer_cli.training.averaging import MovingAverage
from transformer_cli.training.distributed import SINGLE_PROCESS, Interrupted, Ranks, join_ranks
from transformer_cli.training.hardware import Precision, compile_layers, tuned_process
from transformer_cli.training.loop import build_optimizer, probe_memory
from transformer_cli.training.parent import begin_as_parent
from transformer_cli.training.recorder import Profiling, Recorder, check_trace, load_tensorboard
from transformer_cli.training.saving import Learner, Progress, Saver, ranks_of, read_progress
from transformer_cli.training.session import Session, TrainingResult, result_of
from transformer_cli.training.start import (
    check_continuation,
    check_inputs,
    check_start,
    find_start,
    keep_warmup,
    load_or_build_codecs,
    resolve_split,
    take_folder,
    write_start,
)
from transformer_cli.training.training_data import TrainingData, prepare_training_data
from transformer_cli.training.validation import Validator
from transformer_cli.variants.embeddings import begin_near_translations, check_vector_files, load_vectors
from transformer_cli.variants.guided_attention import check_alignments
from transformer_cli.variants.lexicon import learn_lexicon

__all__ = ["Interrupted", "TrainingResult", "train"]

TRAINING_FILES = ("training.source_vectors", "training.target_vectors", "training.guided_attention")


def train(
    config: Config,
    path: str | Path,
    *,
    resume: bool | None = None,
    fresh: bool = False,
    device: str = "auto",
    quiet: bool = False,
    profile: Path | None = None,
    until: int | None = None,
) -> TrainingResult:
    """Train in the run folder `path`, or continue there where a run was interrupted.

    `resume` True: there must be something to continue. `fresh`: an old folder is renamed aside first. `profile`: the
    file for a trace of some updates. `until`: the step to pause after, with the state saved, rounded up to one that is
    validated; the run that continues from there is the one that never paused. Raises `UserError` before anything is
    written, and `Interrupted` after SIGINT or SIGTERM, with the state saved.
    """
    run = RunFolder(path)
    with join_ranks(device, config.training.compile) as (ranks, torch_device), ExitStack() as stack:
        quiet = quiet or not ranks.is_main
        stack.enter_context(tuned_process(torch_device))
        with ranks.main_process_first():
            if ranks.is_main:
                check_beforehand(run, config, fresh, profile)
            asked = config
            config, preset = resolve_preset(asked, partial(measure_corpus, progress=not quiet))
            for line in [] if quiet else preset:  # at once: what goes wrong later may come of these values
                print(line, file=sys.stderr)
            resuming = run.exists() and (not fresh or not ranks.is_main)
            if resuming and ranks.is_main:
                stack.enter_context(run.lock())  # from here on nobody else changes what is read
            config, sentences = resolve_split(config, run if resuming else None)
            state = find_run_state(run, asked, config, resuming, resume)
            config = state.config
            if state.finished:
                if not quiet:
                    _say_finished(state)
                return result_of(run, config, state.progress, state.finished)
            data = make_data(state, quiet, ranks)
            learner, learner_notes = make_learner(state, data, torch_device, quiet, ranks)
            probe_memory(learner.objective, learner.precision, data.costliest_batch(), config.training.batch_tokens)
            notes = [*sentences, *data.notes, *state.notes]
            if ranks.is_main:
                notes += take_folder(run, stack, fresh, begins=not resuming)
                write_start(run, state.saved, data.held_out, data.codecs, data.languages, resuming)
                progress = state.progress
                run.metrics.cut(progress.step, progress.skipped_in_row, validated=progress.step in progress.scores)
        check_ranks_agree(ranks, state, data)
        stack.enter_context(ranks.stop.catch_signals())
        last = data.last_step(learner.progress.decay_from)
        recorder = Recorder(run, config.training, learner.progress.step, last, quiet, ranks.is_main)
        stack.callback(recorder.close)
        profiling = Profiling(profile, torch_device, recorder.say) if profile and ranks.is_main else None
        validator = Validator(learner.objective, data.codecs, config, data.valid, learner.precision, ranks)
        saver = Saver(run, state.saved, data.codecs, state.index)
        every = config.training.validate_every
        pause = None if until is None else math.ceil(until / every) * every
        session = Session(data, learner, validator, saver, recorder, ranks, profiling, pause)
        return session.run_to_end([*notes, *learner_notes])


def check_ranks_agree(ranks: Ranks, state: "RunState", data: TrainingData) -> None:
    """Raise `UserError`, on every rank, where they don't all read the same text, config and checkpoint."""
    own = data.train.key, data.valid.key, state.index.last, dump_config(state.config)
    if len({*ranks.gather(own)}) > 1:
        raise UserError(
            f"{state.run.path}: not every machine finds the same data, vocabulary, config and checkpoint there; give "
            "all of them the same files, best by a shared file system (docs/scaling.md)"
        )


# --- where the run stands -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunState:
    """Where a run stands."""

    run: RunFolder
    config: Config  # its preset and split resolved
    saved: Config  # the same, with its paths as the run's folder has them
    resuming: bool  # what is in the folder is continued; else nothing of it is read
    index: CheckpointIndex
    progress: Progress
    finished: str | None  # why nothing is left to do
    notes: list[str]  # what the config changes, for the user to see


def check_beforehand(run: RunFolder, config: Config, fresh: bool, trace: Path | None = None) -> None:
    """Raise `UserError` for what can be found at once, before time is spent on the data."""
    run.check_writable()
    run.check_own()
    check_start(config, run)
    begins = fresh or not run.exists()
    if begins or config.model.preset == "auto":  # else `make_data` does: a finished run needs no data
        check_inputs(config, run, begins, TRAINING_FILES if begins else ())
    if begins:
        check_alignments(config)
    load_scorers(("bleu", "chrf"), config.data.target_language)
    if config.training.tensorboard:
        load_tensorboard()
    if trace is not None:
        check_trace(trace)


def find_run_state(run: RunFolder, asked: Config, config: Config, resuming: bool, resume: bool | None) -> RunState:
    """Return where the run stands; `asked` is the config before its preset was resolved.

    `resume` True: there must be something to continue. Raises `UserError` also where the config may not continue what
    is there.
    """
    index, progress, notes, saved = CheckpointIndex(), Progress(), [], config
    if resuming:
        index = run.index()
        run.check_way(index)
        if index.last is not None:
            run.check_last(index)
            progress = read_progress(load_training_values(run.step_folder(index.last)))
        if run.config_path.exists():
            old = load_config(run.config_path)
            resolved = config
            if index.last is not None:
                config = keep_warmup(resolved, old, asked)
            saved = respelled(config, old, run.path)
            falling = progress.decay_from is not None
            notes = check_continuation(run, old, saved, math.inf if falling else index.last, asked)
            if config is not resolved:
                notes.append(f"training.warmup_steps stays {config.training.warmup_steps:,}, with which the run began")
    if resume and index.last is None:
        raise UserError(f"{run.path}: nothing to resume here; leave --resume out to start")
    finished = progress.finished_because(config.training) if index.finished else None
    return RunState(run, config, saved, resuming, index, progress, finished, notes)


def _say_finished(state: RunState) -> None:
    schedule = state.config.training.schedule
    if schedule in ("cosine", "wsd") and not (state.finished or "").startswith("max_epochs"):
        advice = f"its {schedule} schedule has come down to zero: start again with --fresh or in another folder"
    else:
        advice = "raise the limit to continue, or start again with --fresh"
    print(f"{state.run.path}: this run is finished ({state.finished}); {advice}", file=sys.stderr)
    for note in state.notes:
        print(f"not applied, for nothing was left to do: {note}", file=sys.stderr)


# --- the parts ----------------------------------------------------------------------------------------------------


def make_data(state: RunState, quiet: bool, ranks: Ranks = SINGLE_PROCESS) -> TrainingData:
    """Read, encode and plan what the run trains on; raises `UserError` for whatever is wrong with it."""
    run, config, last = state.run, state.config, state.index.last
    if state.resuming:
        check_inputs(config, run, begins=False)
    if last is None:
        check_vector_files(config)
    corpora = open_corpora(config, run, resuming=state.resuming, progress=not quiet)
    own = run if state.resuming else None
    codecs, notes = load_or_build_codecs(config, corpora.train, own, last, progress=not quiet)
    data = prepare_training_data(config, corpora, codecs, notes, progress=not quiet, ranks=ranks.count)
    if ranks.is_main and not (state.resuming and run.vocab_path.exists()):
        languages = config.data.source_language, config.data.target_language
        known = corpora.untagged
        learned = None if known is None else learn_languages(known, languages, config.training.seed)
        data = replace(data, languages=learned)
    if state.progress.train_corpus not in ("", data.train.key):
        raise UserError(
            f"{run.path}: data.train names the same place, but the text there, or the file of alignments beside it, is "
            "not what the run was trained on; put the old one back, choose another folder with --out, or start again "
            "with --fresh"
        )
    if state.progress.valid_corpus not in ("", data.valid.key):
        data.notes.append("the text of data.valid changed: scores before and after cannot be compared")
    return data


def make_learner(
    state: RunState, data: TrainingData, device: torch.device, quiet: bool = True, ranks: Ranks = SINGLE_PROCESS
) -> tuple[Learner, list[str]]:
    """Build model, objective and optimizer, and restore the last checkpoint into them; return lines to show too."""
    config, codecs, last = state.config, data.codecs, state.index.last
    torch.manual_seed(config.training.seed)
    model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary))
    set_target_ids(model, codecs)
    notes = []
    if last is None:
        if config.training.takes_vocabulary:
            load_weights(find_start(config), model)
            model.float()
        elif config.training.init_from is not None:
            notes += begin_as_parent(model, codecs, config, load_model(find_start(config)))
        notes += load_vectors(config, model, codecs, progress=not quiet)
    guide, fresh = config.training.guided_attention, last is None and config.training.init_from is None
    starts_near = fresh and config.training.init_embeddings == "lexicon"
    lexicon = learn_lexicon(data.train) if starts_near or (guide and guide.needs_lexicon) else None
    if starts_near:
        assert lexicon is not None
        notes += begin_near_translations(config, model, codecs, lexicon)
    notes += freeze_parts(model, config.training.freeze)
    model.to(device)
    if config.training.compile:
        compile_layers(model)
    objective = build_objective(model, config, lexicon)
    learner = Learner(
        objective,
        build_optimizer(objective, config.training),
        Precision(config.training.precision, device),
        MovingAverage(model, config.training.ema_decay),
    )
    torch.manual_seed(ranks.seed(config.training.seed))  # each rank drops out for itself
    if last is not None:
        notes += _restore(learner, state.run.step_folder(last), config, ranks)
    learner.progress.train_corpus, learner.progress.valid_corpus = data.train.key, data.valid.key
    return learner, notes


def _restore(learner: Learner, folder: Path, config: Config, ranks: Ranks) -> list[str]:
    load_weights(folder, learner.model)
    state = load_training_state(folder)
    learner.restore(state, ranks.rank)
    before, now, batches = ranks_of(state.values), ranks.count, config.training.accumulation
    if before == now:
        return []
    return [
        f"processes changed from {before} to {now}: an update takes {batches * now} batches, not {batches * before}; "
        "training continues at the same place, but not as it would have"
    ]


def freeze_parts(model: Transformer, parts: tuple[str, ...]) -> list[str]:
    """Let the weights of these parts (`training.freeze`) stay as they are; return lines to show.

    A matrix that two parts share stays if one of them does. Dropout acts in frozen parts too. Raises `UserError` where
    nothing is left to learn.
    """
    halves = {"source_embedding", "target_embedding"}

    def parameters(part: str) -> list[nn.Parameter]:
        names = halves if part == "embeddings" else {part}
        return [parameter for name in names for parameter in model.get_submodule(name).parameters()]

    for parameter in (parameter for part in parts for parameter in parameters(part)):
        parameter.requires_grad_(False)
    if not parts:
        return []
    frozen = sum(parameter.numel() for parameter in model.parameters() if not parameter.requires_grad)
    count = count_parameters(model)
    if frozen == count:
        raise UserError(
            f"training.freeze: {', '.join(parts)} leave nothing to learn, for embeddings and generator share a matrix "
            "(model.tie_embeddings); leave out a part"
        )
    lines = [f"frozen       {', '.join(parts)}: {frozen:,} of {count:,} parameters stay as they are"]
    embeddings = set() if "embeddings" in parts else halves if halves & set(parts) else {"embeddings"}
    for part in sorted({"generator", *embeddings} - set(parts)):
        if not all(parameter.requires_grad for parameter in parameters(part)):
            name = f"{part.replace('_', ' ')} share{'s' * (part[-1] != 's')}"
            lines.append(f"             the matrix that the {name} with them stays too")
    return lines
