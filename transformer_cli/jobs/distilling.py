"""Sequence-level knowledge distillation (Kim and Rush 2016): a training set whose targets a teacher wrote.

`tfm distill` calls `distill`, and so can any program. The teacher's translations are parts that `shards` keeps; a
recipe beside them, and beside the finished files, says what they were made of. No torch.
"""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, tee
from pathlib import Path
from typing import Any

from transformer_cli.config import Config
from transformer_cli.data.corpora import Corpus
from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.devices import rank_and_size
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.translation import Tally, Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.shards import (
    UNHEARD,
    UNSEEN,
    Note,
    Parts,
    Progress,
    Shard,
    ShardWork,
    best,
    shards,
    translate_shards,
    wait_for_parts,
)
from transformer_cli.jobs.translating import TranslationOptions
from transformer_cli.storage.publishing import atomic_write, is_complete, publish, read_bytes, whole_file
from transformer_cli.text.lines import one_line

Recipe = Mapping[str, Any]  # what decides the training set, by names that a user knows
RECIPE = "recipe.json"  # beside the parts, and beside the finished files: what they were made of, and how


@dataclass(frozen=True)
class TrainingSet:
    """The two files of a distilled training set, in a folder that is there whole or not at all."""

    folder: Path
    source: str  # file names
    target: str

    @classmethod
    def of(cls, folder: Path, config: Config, *, compressed: bool = False) -> "TrainingSet":
        """Name the files after the config's languages: `train.de`, `train.en`."""
        names = [config.data.source_language, config.data.target_language]
        if names[0].lower() == names[1].lower():
            names = ["source", "target"]
        return cls(folder, *(f"train.{name}{'.gz' * compressed}" for name in names))

    def check_place(self) -> None:
        """Raise `UserError` where the folder could not be put there, before time is spent on it."""
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise UserError(f"{self.folder}: is not a folder; name another --out")
        above = Path(os.path.realpath(self.folder)).parent
        while not above.exists():
            above = above.parent
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise UserError(f"{self.folder}: cannot be made in {above}: no permission; name another --out")

    @property
    def setting(self) -> str:
        """The option by which `tfm train` learns from it, quoted for a shell."""
        paths = [_yaml(str(self.folder / name)) for name in (self.source, self.target)]
        return "--set " + shlex.quote(f"data.train={{source: {paths[0]}, target: {paths[1]}}}")

    def is_finished(self, recipe: Recipe) -> bool:
        """Return whether it is there, made by this recipe. Raises `UserError` where the folder holds anything else."""
        if not self.folder.is_dir() or not any(self.folder.iterdir()):
            return False
        if not (is_complete(self.folder) and (self.folder / RECIPE).is_file()):
            raise UserError(f"{self.folder}: does not hold a distilled training set; name another --out")
        check_recipe(self.folder, recipe)
        return True


def distill(
    options: TranslationOptions,
    corpus: Corpus,
    training_set: TrainingSet,
    *,
    best_of: bool = False,
    with_original: bool = False,
    jobs: int = 1,
    share: tuple[int, int] | None = None,
    progress: Progress = UNSEEN,
    note: Note = UNHEARD,
) -> list[str] | None:
    """Translate a corpus by a teacher and publish the training set, as far as that is not done.

    best_of: of the n-best translations that `options` ask for, take the one most like the target. with_original: all
    pairs of the corpus follow. share: do no more than translate these parts. Returns what the user should know of it;
    None: the training set is not there yet, other shares or processes are missing. Raises as `translate_shards` does.
    """
    recipe = recipe_of(options, corpus, training_set, best_of=best_of, with_original=with_original)
    parts, here = Parts(training_set.folder), share or rank_and_size()
    finished = f"{training_set.folder}: is finished; nothing is left to do"
    if training_set.is_finished(recipe) and not parts.folder.is_dir():
        note(finished)
        return None if here[0] else []
    with parts.held(here) as lock, kept(recipe, parts):
        if training_set.is_finished(recipe):  # a kill came before the parts were removed
            parts.remove()
            note(finished)
            return None if here[0] else []
        total = sum(1 for _ in corpus.pairs())  # a fault in it shows before the long part
        first, second = tee(corpus.pairs())
        text = shards((Line(source) for source, _ in first), (target for _, target in second) if best_of else None)
        work = ShardWork(options, parts, json.dumps(recipe), closest if best_of else best, jobs)
        names = translate_shards(work, text, share=here, total=total, progress=progress, note=note)
        if share is not None:
            missing = sum(not parts.has(name) for name in names)
            rest = f"{missing:,} of {len(names):,} parts are still missing" if missing else "none is missing"
            note(f"this share is done, in {parts.folder}: {rest}; without --shard the same command joins them")
        if here[0] or share is not None:
            return None
        wait_for_parts(parts, names, note)
        if corpus.content_hash() != recipe["data.train"]:
            raise UserError(f"{corpus.describe()}: changed while it was translated; give the same command again")
        notes = write_training_set(training_set, recipe, corpus, parts.rows(names), with_original=with_original)
        notes = [*corpus.notes, *Tally(parts.total(names)).notes, *notes]
        lock.wait_for_others()
        parts.remove()
        return notes


def check_languages(teacher: FoundModel, student: Config) -> None:
    """Raise `UserError` where the teacher translates between other languages than the student shall."""
    theirs, ours = [(data.source_language, data.target_language) for data in (teacher.config.data, student.data)]
    if theirs != ours:
        raise UserError(
            f"{teacher.name}: translates {theirs[0]} into {theirs[1]}, but the config {ours[0]} into {ours[1]};"
            " choose another teacher, or set data.source_language and data.target_language"
        )


def recipe_of(
    options: TranslationOptions, corpus: Corpus, training_set: TrainingSet, *, best_of: bool, with_original: bool
) -> dict[str, Any]:
    """Return all that decides the training set, by the names that a refusal gives."""
    fields = options.fingerprint()
    return {
        "tfm": fields["tfm"],
        "teacher": fields["model"],
        "glossary": fields["glossary"],
        "data.train": corpus.content_hash(),
        "device": fields["device"],
        "files": [training_set.source, training_set.target],
        "best_of": best_of,
        "with_original": with_original,
        **{name: fields[name] for name in ("engine", "compute_type", "batch_tokens", "mbr", "guard", "protect")},
        **fields["search"],
    }


@contextmanager
def kept(recipe: Recipe, parts: Parts) -> Iterator[None]:
    """Keep the recipe beside the parts for as long as there are any. Raises `UserError` where they have another."""
    path = parts.folder / RECIPE
    if os.path.lexists(path):
        check_recipe(parts.folder, recipe)
    else:
        atomic_write(path, json.dumps(recipe, indent=2))
    try:
        yield
    finally:
        if not parts.names():
            path.unlink(missing_ok=True)


def check_recipe(folder: Path, recipe: Recipe) -> None:
    """Raise `UserError` that names what differs from the recipe kept in a folder."""
    try:
        before = json.loads(read_bytes(folder / RECIPE))
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise UserError(f"{folder / RECIPE}: is damaged; delete {folder}, or name another --out")
    now = json.loads(json.dumps(recipe))
    differences = [
        _difference(name, before.get(name), now.get(name))
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise UserError(
            f"{folder}: was made with {', '.join(differences)}; give the same command as then, name another --out,"
            " or delete the folder to start again"
        )


def closest(shard: Shard, translations: Iterable[Translation]) -> Iterator[str]:
    """Yield, of the n-best translations of each line, the one with the highest sentence chrF, tabs made spaces.

    Sequence-level interpolation (Kim and Rush 2016, section 3.3); of equals the one that the teacher ranks first.
    """
    from transformer_cli.decoding.mbr import chrf_table  # not at the top: numpy takes a while

    for reference, translation in zip(shard.references, translations, strict=True):
        found = [candidate.text.replace("\t", " ") for candidate in translation.hypotheses]
        likeness = chrf_table([*found, reference])[:-1, -1]  # (n-best,)
        yield found[int(likeness.argmax())]


def write_training_set(
    training_set: TrainingSet, recipe: Recipe, corpus: Corpus, translations: Iterable[str], *, with_original: bool
) -> list[str]:
    """Publish the corpus with these translations as its targets, in its order; return what the user should know of it.

    with_original: all pairs of the corpus follow, as they were. Raises `OSError`.
    """
    distilled = ((source, target) for (source, _), target in zip(corpus.pairs(), translations, strict=True))
    empty = 0

    def write(folder: Path) -> None:
        nonlocal empty
        with whole_file(folder / training_set.source) as sources, whole_file(folder / training_set.target) as targets:
            for source, target in chain(distilled, corpus.pairs() if with_original else ()):
                empty += not (source.strip() and target.strip())
                sources(one_line(source))
                targets(one_line(target))
        (folder / RECIPE).write_text(json.dumps(recipe, indent=2), encoding="utf-8")

    publish(training_set.folder, write, replace=False)
    have = "1 pair has" if empty == 1 else f"{empty:,} pairs have"
    return [] if not empty else [f"{have} an empty side; they stay in their places, and training leaves them out"]


def _difference(name: str, before: object, now: object) -> str:
    """Return `another teacher`, or `beam_size 5 (now 4)`."""
    if any(isinstance(value, (list, dict)) or len(str(value)) > 20 for value in (before, now)):
        return f"another {name}"
    was, is_now = ("default" if value is None else value for value in (before, now))
    return f"{name} {was} (now {is_now})"


def _yaml(text: str) -> str:
    """Return a text as it stands in a YAML mapping on one line, in quotes where it needs them."""
    plain = all(character.isalnum() or character in "/._-+" for character in text) and text[:1] not in "-"
    return text if plain else json.dumps(text, ensure_ascii=False)
