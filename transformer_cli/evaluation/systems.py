"""What `tfm compare` compares: systems with one or more runs, their outputs, scores, and the test set they share.

A run is a model, which translates the test set, or a file of translations. No torch.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import EvaluationSet, check_references, find_test_set, read_test_set
from transformer_cli.text.lines import read_lines

if TYPE_CHECKING:
    from transformer_cli.decoding.loading import FoundModel


@dataclass(frozen=True)
class System:
    """One side of a comparison."""

    name: str
    runs: list[Path]  # a model's folder, or a file of translations


def parse_systems(texts: Sequence[str]) -> list[System]:
    """Return the systems that `[NAME=]RUN[,RUN…]` name; a path that there is may have `=` and `,` in it.

    Raises `UserError` for fewer than two systems, a run that is missing or given twice, two of the same name.
    """
    systems = []
    for text in texts:
        name, equals, runs = text.partition("=")
        if not equals or os.path.exists(text) or os.sep in name:
            name = runs = text
        paths = [runs] if os.path.exists(runs) else runs.split(",")
        systems.append(System(name, [Path(path) for path in paths]))
        if not name or not all(paths):
            raise UserError(f"{text!r}: is not a system; give a model or a file, or NAME=RUN,RUN for several seeds")
    if len(systems) < 2:
        raise UserError(f"{systems[0].name}: is only one system; give two or more to compare")
    seen: dict[str, Path] = {}
    for path in (run for system in systems for run in system.runs):
        if not os.path.exists(path):
            raise UserError(f"{path}: no such file or folder; give a model, or a file of translations")
        before = seen.setdefault(os.path.realpath(path), path)
        if before is not path:
            raise UserError(f"{path}: is given twice; each run must be a different model or file")
    names = [system.name for system in systems]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{twice[0]}: two systems have this name; give them different ones (NAME=RUN)")
    return systems


def check_models(models: "Sequence[FoundModel]") -> str:
    """Return the target language of models; raise `UserError` where one translates other languages than the first."""
    spoken = [(model.config.data.source_language, model.config.data.target_language) for model in models]
    folders = [os.path.realpath(model.folder) for model in models]
    for place, (model, languages, folder) in enumerate(zip(models, spoken, folders, strict=True)):
        if languages != spoken[0]:
            raise UserError(
                f"{model.name}: translates {'–'.join(languages)}, but {models[0].name} {'–'.join(spoken[0])}; compare "
                "models of the same languages"
            )
        if folder in folders[:place]:
            raise UserError(
                f"{model.name}: is the same model as {models[folders.index(folder)].name}; give a different one"
            )
    return spoken[0][1]


@dataclass(frozen=True)
class Material:
    """The test set, and what the files of translations say for it."""

    sources: list[str] | None
    references: list[list[str]]  # may be none, where only numbers are compared
    outputs: dict[Path, list[str]]  # of each run that is a file
    notes: list[str]  # what was dropped while reading

    @property
    def sentences(self) -> int:
        """How many lines all of them have."""
        return len(next(iter([*self.references, *self.outputs.values()])))


def read_material(
    models: "Sequence[FoundModel]", files: Sequence[Path], source: Path | None, references: Sequence[Path]
) -> Material:
    """Read the test set (by its files, else that of the models' configs) and files of translations, line by line.

    references: may be empty without models, where only numbers are compared. Raises `UserError` where files are not
    aligned or empty, or models name different test sets.
    """
    if models and source is not None and not references:
        raise UserError("--source and --reference belong together: give both, or neither for the config's test set")
    if not models or source is not None:
        first = [source] if source is not None else []
        lines, notes = _read_aligned([*first, *references, *files])
        sources = lines.pop(0) if first else None
        outputs = dict(zip(files, lines[len(references) :], strict=True))
        found = Material(sources, lines[: len(references)], outputs, notes)
    else:
        known = _shared_test_set(models, references)
        lines, notes = _read_aligned(files)
        if lines and len(lines[0]) != len(known.sources):
            raise UserError(
                f"{files[0]}: has {len(lines[0]):,} lines, but the test set of {models[0].name} has "
                f"{len(known.sources):,}; give translations of that, or --source and --reference"
            )
        found = Material(known.sources, known.references, dict(zip(files, lines, strict=True)), [*known.notes, *notes])
    check_references(found.references, references)
    return found


def _read_aligned(paths: Sequence[Path]) -> tuple[list[list[str]], list[str]]:
    """Return the lines of files that have as many each, and notes."""
    if not paths:
        return [], []
    texts = read_test_set(paths[0], paths[1:])
    return [texts.sources, *texts.references], texts.notes


def _shared_test_set(models: "Sequence[FoundModel]", references: Sequence[Path]) -> EvaluationSet:
    """Return the test set that the configs of all models name."""
    first = find_test_set(models[0], None, references, "test")
    for model in models[1:]:
        other = find_test_set(model, None, references, "test")
        if (other.sources, other.references) != (first.sources, first.references):
            raise UserError(
                f"{model.name}: its config names another test set than that of {models[0].name}; give --source and "
                "--reference"
            )
    return first


def read_numbers(text: str, systems: Sequence[System], sentences: int) -> tuple[str, list[list[list[float]]]]:
    """Return what `NAME=FILE,FILE…` names: numbers of sentences, a file for each run, in the order of the systems.

    Raises `UserError` for another number of files or lines, and for a line that is not a finite number.
    """
    name, _, rest = text.partition("=")
    paths = [Path(path) for path in rest.split(",")]
    count = sum(len(system.runs) for system in systems)
    if not name or not rest or not all(rest.split(",")):
        raise UserError(f"--scores {text!r}: give NAME=FILE,FILE: a file of numbers for each run")
    if len(paths) != count:
        raise UserError(
            f"--scores {name}: names {len(paths)} file{'s' * (len(paths) > 1)} for {count} runs; give one for each, in "
            "their order"
        )
    columns = iter([_read_numbers(path, sentences) for path in paths])
    return name, [[next(columns) for _ in system.runs] for system in systems]


def _read_numbers(path: Path, sentences: int) -> list[float]:
    """Return the numbers of a file, one a line."""
    with read_lines(path) as lines:
        texts = [*lines]
    if len(texts) != sentences:
        raise UserError(f"{path}: has {len(texts):,} lines for {sentences:,} sentences; give a number for each")
    numbers = []
    for place, text in enumerate(texts, start=1):
        try:
            numbers.append(float(text))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise UserError(f"{path}:{place}: {text[:40]!r} is not a finite number; give one number a sentence")
    return numbers
