"""A big file translated in shards: by several processes, on several devices or under torchrun, and joined in order.

`tfm translate --jobs` and `tfm distill` call it. What is done is kept in a folder beside the output, so that the same
command goes on where it was interrupted.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_cli.cli.progress import LOG_SECONDS, Progress
from transformer_cli.cli.settings import Settings
from transformer_cli.cli.streams import TextInput, note, open_results
from transformer_cli.jobs.pool import run_jobs
from transformer_cli.jobs.torchrun import device_of, rank_and_size

if TYPE_CHECKING:
    from transformer_cli.jobs.shards import Parts, Shard

POLL_SECONDS = 0.2
Finish = Callable[["Shard", list[str]], list[str]]  # what a shard's rows become before they are kept
Share = tuple[int, int]  # (i, n): of every n shards the i-th, counted from 0


@dataclass(frozen=True)
class Prepare:
    """Called in each process with its number: loads the model, and gives what translates a shard there."""

    settings: Settings
    parts: "Parts"
    recipe: str
    quiet: bool
    finish: "Finish | None" = None

    def __call__(self, number: int) -> "Callable[[Shard], int]":
        loaded = self.settings.load(device_of(self.settings.device, number))
        told: list[str] = []

        def work(shard: "Shard") -> int:
            """Translate and keep it; how many lines it has."""
            before = loaded.counts
            rows = [row for rows in loaded.rows(shard.lines, first=shard.first) for row in rows]
            if self.finish is not None:
                rows = self.finish(shard, rows)
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
    from transformer_cli.decoding.translation import Tally
    from transformer_cli.jobs.shards import Parts

    parts = Parts(Path(os.path.realpath(output)))
    recipe, share = settings.fingerprint(), rank_and_size()
    parts.open()
    names = translate_parts(settings, lines, parts, jobs, recipe, share, estimate=lines.estimate, quiet=quiet)
    if share[0]:
        return []
    wait_for_parts(parts, names, quiet)
    with open_results(output) as write:
        for name in names:
            for row in parts.rows(name):
                write(row)
    notes = Tally(parts.total(names)).notes
    parts.remove()
    return notes


def translate_parts(
    settings: Settings,
    lines: Iterable[str],
    parts: "Parts",
    jobs: int,
    recipe: str,
    share: Share,
    *,
    estimate: Callable[[], int | None],
    quiet: bool,
    references: Iterator[str] | None = None,
    finish: Finish | None = None,
) -> list[str]:
    """Translate a share of the shards, `jobs` at a time, but for those that are there already; the names of all parts.

    recipe: all that decides what is kept of a line. estimate: about how many lines there are. references: of the lines,
    for `finish`, which is called in the process that translates. Raises as `translate_in_shards` does.
    """
    from transformer_cli.jobs.shards import shards

    rank, size = share
    names: list[str] = []
    silent = quiet or rank_and_size()[0] > 0
    progress = Progress("translated", quiet=silent, estimate=lambda: _share(estimate(), size))

    def missing() -> "Iterator[Shard]":
        for shard in shards(settings.with_constraints(lines), references):
            names.append(shard.name(recipe))
            if shard.number % size == rank and not parts.has(names[-1]):
                yield shard
            elif shard.number % size == rank:
                progress.kept(len(shard.lines))
                progress.reached(progress.done + len(shard.lines))

    try:
        with progress:
            for count in run_jobs(Prepare(settings, parts, recipe, silent, finish), missing(), jobs):
                progress.reached(progress.done + count)
    except BaseException:
        parts.close()  # with nothing done, no trace is left
        raise
    return names


def wait_for_parts(parts: "Parts", names: list[str], quiet: bool) -> None:
    """Until the other processes of torchrun have done their shares; where one fails, torchrun ends this one too."""
    told = time.monotonic()
    while waiting := sum(not parts.has(name) for name in names):
        time.sleep(POLL_SECONDS)
        if not quiet and time.monotonic() - told >= LOG_SECONDS:
            told = time.monotonic()
            note(f"waiting for {waiting:,} of {len(names):,} parts, which other processes translate")


def _share(total: int | None, size: int) -> int | None:
    return None if total is None else total // size
