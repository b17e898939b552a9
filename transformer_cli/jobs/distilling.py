"""Sequence-level knowledge distillation (Kim and Rush 2016): a training set whose targets a teacher wrote.

`tfm distill` calls it. The teacher's translations come from the parts that `sharding` keeps; here is what they become:
two text files, a recipe beside them that says what they were made of, and the choice by reference. No torch.
"""

import glob
import gzip
import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

from transformer_cli.config import Config
from transformer_cli.data.corpora import Corpus
from transformer_cli.errors import UserError
from transformer_cli.jobs.shards import RECIPE, Parts, Shard
from transformer_cli.storage.publishing import TEMPORARY, atomic_write, delete, is_complete, publish, read_bytes
from transformer_cli.text.lines import one_line

Recipe = Mapping[str, Any]  # what decides the training set, by names that a user knows


@dataclass(frozen=True)
class TrainingSet:
    """The two files of a distilled training set, in a folder that is there whole or not at all."""

    folder: Path
    source: str  # file names
    target: str

    @classmethod
    def of(cls, folder: Path, config: Config, *, compressed: bool = False) -> "TrainingSet":
        """Named after the config's languages: `train.de`, `train.en`."""
        names = [config.data.source_language, config.data.target_language]
        if names[0].lower() == names[1].lower():
            names = ["source", "target"]
        return cls(folder, *(f"train.{name}{'.gz' * compressed}" for name in names))

    @property
    def setting(self) -> str:
        """The option by which `tfm train` learns from it, quoted for a shell."""
        paths = [_yaml(str(self.folder / name)) for name in (self.source, self.target)]
        return "--set " + shlex.quote(f"data.train={{source: {paths[0]}, target: {paths[1]}}}")

    def is_finished(self, recipe: Recipe) -> bool:
        """Whether it is there, made by this recipe. Raises `UserError` where the folder holds anything else."""
        if not self.folder.is_dir() or not any(self.folder.iterdir()):
            return False
        if not (is_complete(self.folder) and (self.folder / RECIPE).is_file()):
            raise UserError(f"{self.folder}: holds something else than a distilled training set; name another --out")
        check_recipe(self.folder, recipe)
        return True


def begin(parts: Parts, recipe: Recipe) -> None:
    """Open the folder of the parts. Raises `UserError` where they were begun by another recipe, by name."""
    if (parts.folder / RECIPE).is_file():
        check_recipe(parts.folder, recipe)
    parts.open()
    atomic_write(parts.folder / RECIPE, json.dumps(recipe, indent=2))


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
            " or delete the folder to begin anew"
        )


def closest(shard: Shard, rows: list[str]) -> list[str]:
    """Of the n-best rows of each line (`number\\ttranslation`) the translation with the highest sentence chrF.

    Sequence-level interpolation (Kim and Rush 2016, section 3.3); of equals the one that the teacher ranks first.
    """
    from transformer_cli.decoding.mbr import chrf_table  # not at the top: numpy takes a while

    n_best = len(rows) // max(1, len(shard.lines))
    chosen = []
    for place, reference in enumerate(shard.references):
        found = [row.partition("\t")[2] for row in rows[place * n_best : (place + 1) * n_best]]
        likeness = chrf_table([*found, reference])[:-1, -1]  # (n-best,)
        chosen.append(found[int(likeness.argmax())])
    return chosen


def write_training_set(
    training_set: TrainingSet, recipe: Recipe, corpus: Corpus, translations: Iterable[str], *, with_original: bool
) -> list[str]:
    """Publish the corpus with these translations as its targets, in its order; what the user should know of it.

    with_original: all pairs of the corpus follow, as they were. Raises `OSError`.
    """
    counts: Counter[str] = Counter()
    for left in training_set.folder.parent.glob(f"{TEMPORARY}{glob.escape(training_set.folder.name)}-*"):
        delete(left)  # what a killed process had half written

    def write(folder: Path) -> None:
        with _open(folder / training_set.source) as sources, _open(folder / training_set.target) as targets:
            for source, target in _pairs(corpus, translations, with_original=with_original):
                counts.update(pairs=1, empty=not (source.strip() and target.strip()))
                for file, text in ((sources, source), (targets, target)):
                    file.write(one_line(text).encode("utf-8", errors="replace") + b"\n")
        (folder / RECIPE).write_text(json.dumps(recipe, indent=2), encoding="utf-8")

    publish(training_set.folder, write)
    if not counts["empty"]:
        return []
    have = "1 pair has" if counts["empty"] == 1 else f"{counts['empty']:,} pairs have"
    return [f"{have} an empty side; they stay in their places, and training leaves them out"]


def _pairs(corpus: Corpus, translations: Iterable[str], *, with_original: bool) -> Iterator[tuple[str, str]]:
    distilled = ((source, target) for (source, _), target in zip(corpus.pairs(), translations, strict=True))
    return chain(distilled, corpus.pairs() if with_original else ())


def _open(path: Path) -> IO[bytes]:
    """A file to write; .gz: compressed, with nothing in it that tells when."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(path, "wb", mtime=0))
    return open(path, "wb")


def _difference(name: str, before: object, now: object) -> str:
    """`another teacher`, or `beam_size 5 (now 4)`."""
    if any(isinstance(value, (list, dict)) or len(str(value)) > 20 for value in (before, now)):
        return f"another {name}"
    was, is_now = ("default" if value is None else value for value in (before, now))
    return f"{name} {was} (now {is_now})"


def _yaml(text: str) -> str:
    """A text inside of a YAML mapping on one line, in quotes where it needs them."""
    plain = all(character.isalnum() or character in "/._-+" for character in text) and text[:1] not in "-"
    return text if plain else json.dumps(text, ensure_ascii=False)
