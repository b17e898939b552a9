"""A long text in shards: translated anywhere and in any order, kept as they are done, joined in order. No torch.

`tfm translate --jobs` and `tfm distill` call it. A shard is named by a hash of its lines and of all that decides their
translation, so that an interrupted command finds what it did before, and never takes what another one did.
"""

import functools
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Line
from transformer_cli.decoding.devices import device_of, rank_and_size, usable_cores
from transformer_cli.decoding.translation import Tally, Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.layout import Layout
from transformer_cli.jobs.translating import TranslationOptions
from transformer_cli.storage.holding import Lock, clean, hold
from transformer_cli.storage.publishing import atomic_write, read_bytes, whole_file

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster

RECIPE = "recipe.json"  # beside the parts, and beside a finished training set: what they were made of, and how
SHARD_LINES = 2000
SHARD_CHARACTERS = 4_000_000  # so that very long lines stay within memory
NAME = re.compile(r"[0-9]{6,}-[0-9a-f]{32}")  # of a part
POLL_SECONDS = 0.2
NOTE_SECONDS = 30.0

# What a long translation reports to: entered while it runs, and called with the lines that are done, those of them that
# an earlier command did, and about how many there are in all, if that is known.
Progress = AbstractContextManager[Callable[[int, int, int | None], None]]
Note = Callable[[str], None]  # called with a sentence for the user
Recipe = Mapping[str, Any]  # what decides what is made, by names that a user knows
Translated = tuple[list[str], Counter[str], str]  # rows to keep of a shard, what was counted, which engine it was
UNSEEN: Progress = nullcontext(lambda *_: None)
UNHEARD: Note = lambda _: None  # noqa: E731


@dataclass(frozen=True)
class Shard:
    """Some lines of a text that stand together."""

    number: int
    first: int  # lines before it
    lines: list[Line]
    references: list[str] = field(default_factory=list)  # their known translations, where what is kept depends on them

    def name(self, recipe: str) -> str:
        """Return the name of its part, where `recipe` says all that decides what becomes of a line."""
        lines = [(line.text, None if line.constraints == NO_CONSTRAINTS else line.constraints) for line in self.lines]
        content = json.dumps([recipe, self.number, self.first, *lines, *self.references], default=asdict)
        digest = hashlib.sha256(content.encode())
        return f"{self.number:06}-{digest.hexdigest()[:32]}"


def shards(lines: Iterable[Line], references: Iterator[str] | None = None) -> Iterator[Shard]:
    """Yield the text in shards, each as soon as it is read, with its lines' references where they are given."""
    number = first = characters = 0
    gathered: list[Line] = []

    def shard() -> Shard:
        return Shard(number, first, gathered, [] if references is None else list(islice(references, len(gathered))))

    for line in lines:
        gathered.append(line)
        characters += len(line.text)
        if len(gathered) >= SHARD_LINES or characters >= SHARD_CHARACTERS:
            yield shard()
            number, first, characters, gathered = number + 1, first + len(gathered), 0, []
    if gathered:
        yield shard()


class Parts:
    """The translated shards of one output, in a folder beside it; each is there whole or not at all."""

    def __init__(self, output: Path) -> None:
        output = Path(os.path.realpath(output))
        self.folder = output.with_name(output.name + ".parts")

    @contextmanager
    def held(self, share: tuple[int, int] = (0, 1)) -> Iterator[Lock]:
        """Make the folder, and hold it, or one share of it, for this process; at the end it goes if it is empty.

        Raises `UserError` where another process holds it, where something else has its name, or it cannot be.
        """
        with ExitStack() as stack:
            stack.callback(self._leave)
            while True:
                try:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    doing = hold(self.folder / ".lock", "translating", "name another output", share)
                    lock = stack.enter_context(doing)
                    break
                except OSError as error:
                    raise UserError(
                        f"{self.folder}: cannot be made, and the parts of the output are kept there: {error.strerror};"
                        " name another output"
                    ) from None
                except UserError:
                    if self.folder.is_dir():
                        raise  # else: who held it removed it just then
            clean(self.folder)
            yield lock

    def _leave(self) -> None:
        with suppress(OSError):
            self.folder.rmdir()

    def has(self, name: str) -> bool:
        """Return whether this part is done."""
        return (self.folder / name).is_file()

    def keep(self, name: str, rows: Iterable[str], counts: Counter[str]) -> None:
        """Write one part: a line of what was counted as it was made and a hash of its lines, then these."""
        content = "".join(f"{row}\n" for row in rows).encode("utf-8", errors="replace")
        header = {"counts": counts, "sha256": hashlib.sha256(content).hexdigest()}
        atomic_write(self.folder / name, json.dumps(header).encode() + b"\n" + content)

    def total(self, names: Iterable[str]) -> Counter[str]:
        """Return what was counted as these parts were made."""
        return sum((Counter(self._read(name)[0]) for name in names), Counter())

    def rows(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the lines of these parts, one part after the other. Raises `UserError` where one is damaged."""
        for name in names:
            yield from self._read(name)[1]

    def _read(self, name: str) -> tuple[dict[str, int], list[str]]:
        header, _, content = (self.folder / name).read_bytes().partition(b"\n")
        try:
            said = json.loads(header)
            if said["sha256"] == hashlib.sha256(content).hexdigest():
                return said["counts"], content.decode().split("\n")[:-1]
        except (ValueError, KeyError, TypeError):
            pass
        raise UserError(f"{self.folder / name}: is damaged; delete it, and give the same command again")

    def names(self) -> list[str]:
        """Return the parts that are there, of whatever recipe."""
        return [path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name) and path.is_file()]

    def remove(self) -> None:
        """Delete all parts, others than those that were joined too; nothing that is not a part, whole."""
        for name in self.names():
            with suppress(UserError):
                self._read(name)
                (self.folder / name).unlink()


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
        raise UserError(f"{folder / RECIPE}: is damaged; delete {folder}, or name another output")
    now = json.loads(json.dumps(recipe))
    advice = "give the same command as then, name another output, or delete the folder to start again"
    if before.get("command") != now.get("command"):
        raise UserError(f"{folder}: was made by another command of tfm; {advice}")
    differences = [
        _difference(name, before.get(name), now.get(name))
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise UserError(f"{folder}: was made with {', '.join(differences)}; {advice}")


def _difference(name: str, before: object, now: object) -> str:
    """Return `another teacher`, or `beam_size 5 (now 4)`."""
    if any(isinstance(value, (list, dict)) or len(str(value)) > 20 for value in (before, now)):
        return f"another {name}"
    was, is_now = ("default" if value is None else value for value in (before, now))
    return f"{name} {was} (now {is_now})"


@dataclass(frozen=True)
class ShardWork:
    """What each process does with a shard: translate it, and keep what becomes of it as a part."""

    options: TranslationOptions
    parts: Parts
    recipe: str  # all that decides what is kept of a line
    rows: Callable[[Shard, Iterable[Translation]], Iterable[str]]  # what is kept of a shard
    jobs: "int | Cluster" = 1  # processes that share the machine, or machines

    def __call__(self, number: int) -> Callable[[Shard], tuple[int, str]]:
        """Load the model, in the process of this number, and return what translates a shard and keeps it.

        That gives the number of its lines, and in the first process a sentence about the engine.
        """
        if isinstance(self.jobs, int) and self.jobs > 1:
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // self.jobs)))  # before torch looks
        translate = self.load(number)
        return lambda shard: self.keep(shard, *translate(shard))

    def load(self, number: int) -> Callable[[Shard], Translated]:
        """Load the model, and return what translates a shard."""
        loaded = self.options.load(device_of(self.options.device, number))

        def translate(shard: Shard) -> Translated:
            before = loaded.counts
            rows = [*self.rows(shard, loaded.translate(shard.lines, first=shard.first))]
            return rows, loaded.counts - before, "" if number else loaded.translator.engine_choice

        return translate

    def keep(self, shard: Shard, rows: list[str], counts: Counter[str], engine: str) -> tuple[int, str]:
        """Keep what became of a shard; return the number of its lines, and the sentence about the engine."""
        self.parts.keep(shard.name(self.recipe), rows, counts)
        return len(shard.lines), engine


def translate_shards(
    work: ShardWork,
    text: Iterable[Shard],
    *,
    share: tuple[int, int] = (0, 1),
    total: int | None = None,
    progress: Progress = UNSEEN,
    note: Note = UNHEARD,
) -> list[str]:
    """Translate the shards of a text, by several processes, but for those that are there; return the names of all.

    share: (i, n), of every n shards the i-th, counted from 0. total: of the text's lines. Raises `UserError`,
    `OSError`; `ChildProcessError` where a process dies.
    """
    names: list[str] = []
    done = kept = 0
    expected = None if total is None else total // share[1]
    engine = ""

    def missing() -> Iterator[Shard]:
        nonlocal done, kept
        for shard in text:
            names.append(shard.name(work.recipe))
            if shard.number % share[1] == share[0]:
                if not work.parts.has(names[-1]):
                    yield shard
                else:
                    done, kept = done + len(shard.lines), kept + len(shard.lines)
                    report(done, kept, expected)

    with progress as report:
        for lines, chosen in run_jobs(work, missing()):
            if chosen and not engine:
                note(engine := chosen)
            done += lines
            report(done, kept, expected)
    return names


def run_jobs(work: ShardWork, shards: Iterable[Shard]) -> Iterator[tuple[int, str]]:
    """Yield what `work` gives for each shard. One job needs no process beside this one, and no model without a shard.

    Raises what the work raises, and `ChildProcessError` where a process dies.
    """
    if work.jobs != 1:
        from transformer_cli.processes import map_in_processes

        try:
            if isinstance(work.jobs, int):
                yield from map_in_processes(work, shards, work.jobs)
                return
            for _, shard, translated in work.jobs.map(work.load, shards):
                lines, engine = work.keep(shard, *translated)
                yield lines, f"{engine}, on {work.jobs}"
        except ChildProcessError as error:
            what = f"{error.strerror}; what is done is kept: give the same command again, with fewer --jobs"
            raise ChildProcessError(error.errno, what) from None
        return
    translate = None
    for shard in shards:
        translate = translate or work(0)
        yield translate(shard)


def wait_for_parts(parts: Parts, names: list[str], note: Note) -> None:
    """Wait for the shares of torchrun's other processes; where one of them fails, torchrun ends this one too."""
    noted = time.monotonic()
    while waiting := sum(not parts.has(name) for name in names):
        time.sleep(POLL_SECONDS)
        if time.monotonic() - noted >= NOTE_SECONDS:
            noted = time.monotonic()
            note(f"waiting for {waiting:,} of {len(names):,} parts, which other processes translate")


def translate_file(
    options: TranslationOptions,
    lines: Iterable[Line],
    output: Path,
    layout: Layout | None = None,
    *,
    jobs: "int | Cluster" = 1,
    progress: Progress = UNSEEN,
    note: Note = UNHEARD,
) -> list[str]:
    """Translate all lines into a file that appears when it is whole; return what the user should know of them.

    layout: of the file; None: the best translation of each line. Parts are kept beside it until then, and the same
    call continues where it was interrupted. Under torchrun each process takes its share, and the first one joins them;
    the folder of the output must be one that all of them see. Raises as `translate_shards` does, and `UserError` where
    there are parts that another command made.
    """
    parts, share = Parts(output), rank_and_size()
    recipe = _recipe(options, layout)
    work = ShardWork(options, parts, json.dumps(recipe), functools.partial(_rows, layout) if layout else best, jobs)
    with parts.held(share) as lock, kept(recipe, parts):
        names = translate_shards(work, shards(lines), share=share, progress=progress, note=note)
        if share[0]:
            return []
        wait_for_parts(parts, names, note)
        with whole_file(output) as write:
            for row in parts.rows(names):
                write(row)
        notes = Tally(parts.total(names)).notes
        lock.wait_for_others()
        parts.remove()
    return notes


def _recipe(options: TranslationOptions, layout: Layout | None) -> Recipe:
    """Return what decides the translation of a line and what is written of it; the text may change between commands."""
    fields = options.fingerprint()
    search = fields.pop("search")
    values = {"command": "translate", **fields, **search, "output format": repr(layout)}
    recipe: Recipe = json.loads(json.dumps(values, default=str))
    return recipe


def best(shard: Shard, translations: Iterable[Translation]) -> Iterator[str]:
    """Yield the best translation of each line."""
    return (translation.text for translation in translations)


def _rows(layout: Layout, shard: Shard, translations: Iterable[Translation]) -> Iterator[str]:
    for number, translation in enumerate(translations, start=shard.first + 1):
        yield from layout.rows(number, translation)
