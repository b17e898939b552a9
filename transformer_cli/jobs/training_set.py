"""A training set one side of which a model writes: two files in a folder that is there whole or not at all.

`distilling` and `backtranslating` say what is translated and which pairs become of it. The translations are parts that
`shards` keeps; a recipe beside them, and beside the finished files, says what they were made of. No torch.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from transformer_cli.config.yaml_file import dump_flow
from transformer_cli.data.corpora import Corpus
from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.devices import rank_and_size
from transformer_cli.decoding.translation import Tally, Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.shards import (
    RECIPE,
    UNHEARD,
    UNSEEN,
    Note,
    Parts,
    Progress,
    Recipe,
    Shard,
    ShardWork,
    best,
    check_recipe,
    kept,
    shards,
    translate_shards,
    wait_for_parts,
)
from transformer_cli.jobs.translating import TranslationOptions
from transformer_cli.storage.holding import clean
from transformer_cli.storage.publishing import is_complete, publish, whole_file
from transformer_cli.text.lines import one_line

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster

Pair = tuple[str, str]


@dataclass(frozen=True)
class TrainingSet:
    """The two files of a training set, in a folder that is there whole or not at all."""

    folder: Path
    source: str  # file names
    target: str

    @classmethod
    def of(cls, folder: Path, languages: Pair, *, compressed: bool = False) -> "TrainingSet":
        """Name the files after the languages: `train.de`, `train.en`."""
        if languages[0].lower() == languages[1].lower():
            languages = ("source", "target")
        return cls(folder, *(f"train.{language}{'.gz' * compressed}" for language in languages))

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
    def files(self) -> dict[str, str]:
        """The training set as a source of `data.train`."""
        return {"source": str(self.folder / self.source), "target": str(self.folder / self.target)}

    def is_finished(self, recipe: Recipe) -> bool:
        """Return whether it is there, made by this recipe. Raises `UserError` where the folder holds anything else."""
        if not self.folder.is_dir() or not any(self.folder.iterdir()):
            return False
        if not (is_complete(self.folder) and (self.folder / RECIPE).is_file()):
            raise UserError(f"{self.folder}: does not hold a training set that tfm made; name another --out")
        check_recipe(self.folder, recipe)
        return True

    def write(self, recipe: Recipe, pairs: Iterable[Pair]) -> int:
        """Publish these pairs, and the recipe beside them; return how many have an empty side. Raises `OSError`."""
        empty = 0

        def write(folder: Path) -> None:
            nonlocal empty
            with whole_file(folder / self.source) as sources, whole_file(folder / self.target) as targets:
                for source, target in pairs:
                    empty += not (source.strip() and target.strip())
                    sources(one_line(source))
                    targets(one_line(target))
            (folder / RECIPE).write_text(json.dumps(recipe, indent=2), encoding="utf-8")

        publish(self.folder, write, replace=False)
        return empty


def setting(train: object) -> str:
    """Return the option by which `tfm train` learns from this `data.train`, quoted for a shell."""
    return "--set " + shlex.quote(f"data.train={dump_flow(train)}")


@dataclass(frozen=True)
class Making:
    """How a training set is made: what is translated, what is kept of it, and which pairs become of that."""

    options: TranslationOptions
    corpus: Corpus  # whose source side is translated
    content: str  # the corpus' hash, which is in the recipe
    recipe: Recipe
    pairs: Callable[[Iterable[str]], Iterable[Pair]]  # of the rows that are kept, as many as the corpus has pairs
    rows: Callable[[Shard, Iterable[Translation]], Iterable[str]] = best  # one for each line of a shard
    references: bool = False  # whether they need the corpus' targets


class How(TypedDict, total=False):
    """Options of `make` that whatever calls it passes on."""

    jobs: "int | Cluster"
    share: tuple[int, int] | None
    progress: Progress
    note: Note


def make(
    training_set: TrainingSet,
    making: Making,
    *,
    jobs: "int | Cluster" = 1,
    share: tuple[int, int] | None = None,
    progress: Progress = UNSEEN,
    note: Note = UNHEARD,
) -> list[str] | None:
    """Translate a corpus and publish the training set, as far as that is not done.

    share: do no more than translate these parts. Returns what the user should know of it; None: the training set is not
    there yet, other shares or processes are missing. Raises as `translate_shards` does.
    """
    corpus, recipe = making.corpus, making.recipe
    parts, here = Parts(training_set.folder), share or rank_and_size()
    finished = f"{training_set.folder}: is finished; nothing is left to do"
    if training_set.is_finished(recipe) and not parts.folder.is_dir():
        note(finished)
        return None if here[0] else []
    with parts.held(here) as lock, kept(recipe, parts):
        if training_set.is_finished(recipe):  # a kill came before the parts were removed
            parts.remove()
            clean(parts.folder.parent)  # of what the kill left of publishing
            note(finished)
            return None if here[0] else []
        total = sum(1 for _ in corpus.pairs())  # a fault in it shows before the long part
        references = (target for _, target in corpus.pairs()) if making.references else None
        text = shards((Line(source) for source, _ in corpus.pairs()), references)
        work = ShardWork(making.options, parts, json.dumps(recipe), making.rows, jobs)
        names = translate_shards(work, text, share=here, total=total, progress=progress, note=note)
        if share is not None:
            missing = sum(not parts.has(name) for name in names)
            rest = f"{missing:,} of {len(names):,} parts are still missing" if missing else "none is missing"
            note(f"this share is done, in {parts.folder}: {rest}; without --shard the same command joins them")
        if here[0] or share is not None:
            return None
        wait_for_parts(parts, names, note)
        if corpus.content_hash() != making.content:
            raise UserError(f"{corpus.describe()}: changed while it was translated; give the same command again")
        empty = training_set.write(recipe, making.pairs(parts.rows(names)))
        notes = [*corpus.notes, *Tally(parts.total(names)).notes]
        if empty:
            have = "1 pair has" if empty == 1 else f"{empty:,} pairs have"
            notes.append(f"{have} an empty side; they stay in their places, and training leaves them out")
        lock.wait_for_others()
        parts.remove()
        return notes


def recipe_of(options: TranslationOptions, training_set: TrainingSet) -> dict[str, Any]:
    """Return what decides any training set, by the names that a refusal gives; the model is not in it."""
    fields = options.fingerprint()
    return {
        "tfm": fields["tfm"],
        "glossary": fields["glossary"],
        "device": fields["device"],
        "files": [training_set.source, training_set.target],
        **{name: fields[name] for name in ("engine", "compute_type", "batch_tokens", "mbr", "guard", "protect", "tag")},
        **fields["search"],
    }
