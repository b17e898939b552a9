"""A big file translated in shards: by several processes, on several devices or under torchrun, and joined in order.

`tfm translate --jobs` calls it. What is done is kept in a folder beside the output, so that the same command goes on
where it was interrupted.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.cli.jobs import run_jobs
from transformer_cli.cli.output import Write, note, open_results
from transformer_cli.cli.progress import LOG_SECONDS, Progress
from transformer_cli.cli.settings import Settings
from transformer_cli.cli.text_input import TextInput
from transformer_cli.cli.torchrun import device_of, rank_and_size

if TYPE_CHECKING:
    from transformer_cli.decoding.sharding import Parts, Shard

POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Prepare:
    """Called in each process with its number: loads the model, and gives what translates a shard there."""

    settings: Settings
    parts: "Parts"
    recipe: str
    quiet: bool

    def __call__(self, number: int) -> "Callable[[Shard], int]":
        loaded = self.settings.load(device_of(self.settings.device, number))
        told: list[str] = []

        def work(shard: "Shard") -> int:
            """Translate and keep it; how many lines it has."""
            before = loaded.counts
            rows = [row for rows in loaded.rows(shard.lines, first=shard.first) for row in rows]
            self.parts.keep(shard.name(self.recipe), rows, loaded.counts - before)
            if not (told or number or self.quiet):
                told.append(loaded.translator.engine_choice)
                note(told[0])
            return len(shard.lines)

        return work


def translate_in_shards(settings: Settings, lines: TextInput, output: Path, jobs: int, *, quiet: bool) -> list[str]:
    """Translate all lines into a file that appears when it is whole; what the user should know of them.

    Under torchrun each process takes its share, and the first one joins them; the folder of the output must be one that
    all of them see. Raises `UserError`; `ChildProcessError` where a process dies.
    """
    from transformer_cli.decoding.sharding import Parts
    from transformer_cli.decoding.tally import Tally

    parts = Parts(Path(os.path.realpath(output)))
    parts.open()
    try:
        names = _translate_parts(settings, lines, parts, jobs, quiet=quiet)
    except BaseException:
        parts.close()  # with nothing done, no trace is left
        raise
    if rank_and_size()[0]:
        return []
    _wait(parts, names, quiet)
    with open_results(output) as write:
        counts = _join(parts, names, write)
    parts.remove()
    return Tally(counts).notes


def _translate_parts(settings: Settings, lines: TextInput, parts: "Parts", jobs: int, *, quiet: bool) -> list[str]:
    """Translate this process' share of the shards; the names of all parts."""
    from transformer_cli.decoding.sharding import shards

    rank, size = rank_and_size()
    recipe = settings.fingerprint()
    names: list[str] = []
    progress = Progress("translated", quiet=quiet or rank > 0, estimate=lambda: _share(lines.estimate(), size))

    def missing() -> "Iterator[Shard]":
        """This process' share of the shards, but for those that are there already."""
        for shard in shards(settings.with_demands(lines)):
            names.append(shard.name(recipe))
            if shard.number % size == rank and not parts.has(names[-1]):
                yield shard
            elif shard.number % size == rank:
                progress.kept(len(shard.lines))
                progress.reached(progress.done + len(shard.lines))

    with progress:
        for count in run_jobs(Prepare(settings, parts, recipe, quiet or rank > 0), missing(), jobs):
            progress.reached(progress.done + count)
    return names


def _share(total: int | None, size: int) -> int | None:
    return None if total is None else total // size


def _wait(parts: "Parts", names: list[str], quiet: bool) -> None:
    """Until the other processes of torchrun have done their shares; where one fails, torchrun ends this one too."""
    told = time.monotonic()
    while waiting := sum(not parts.has(name) for name in names):
        time.sleep(POLL_SECONDS)
        if not quiet and time.monotonic() - told >= LOG_SECONDS:
            told = time.monotonic()
            note(f"waiting for {waiting:,} of {len(names):,} parts, which other processes translate")


def _join(parts: "Parts", names: list[str], write: Write) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name in names:
        counts += parts.counts(name)
        for row in parts.rows(name):
            write(row)
    return counts
