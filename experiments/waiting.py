"""How long the machines of one training wait for each other: at the start, in validations, for checkpoints, in updates.

    python experiments/waiting.py WORK CONFIG [--machines 2 4] [--write]

As root, on Linux: "machines" in namespaces of this one (`tests/training/machines.py`), one process on each, which share
nothing but the folder of the run: each has a cache of its own, as where no file system is shared. CONFIG names its
files by absolute paths, and has a `max_steps`: n machines make 1/n of these updates, each n times as large. Every
call by which tfm's processes wait for each other is timed, with the little that is sent in it. What a process waits for
in the update after a validation or a checkpoint counts as theirs.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from page import describe_run, report

from tests.training.machines import machines
from transformer_cli.config import load_config

SCALING = ROOT / "docs" / "scaling.md"
PHASES = {  # by the file whose call waits, and what the table calls them
    "start": "the start: vocabulary, encoding, statistics of words",
    "validation": "validations",
    "checkpoint": "checkpoints",
    "update": "updates: for the slowest, and for the gradients",
}
CALLERS = {"run.py": "start", "validation.py": "validation", "averaging.py": "checkpoint", "session.py": "checkpoint"}
WAITS = ("gather", "copy_weights", "sum_gradients")  # methods of `Ranks`


class Waited(NamedTuple):
    """What a run took, and how many seconds of it each process waited, by phase."""

    updates: int
    validations: int
    seconds: float  # from when the processes were started
    by_rank: Sequence[dict[str, float]]


def main() -> None:
    """Train on each number of machines, and print the table; or be one of the processes that train."""
    if sys.argv[1:2] == ["--worker"]:
        sys.exit(work(Path(sys.argv[2]), sys.argv[3:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--machines", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--write", action="store_true", help="put the table into docs/scaling.md")
    given = parser.parse_args()
    found = [train(given.work.resolve() / str(count), given.config.resolve(), count) for count in given.machines]
    report([*describe(found), "", describe_run(1)], given.write, SCALING)


# --- measuring --------------------------------------------------------------------------------------------------------


def train(folder: Path, config: Path, count: int) -> Waited:
    """Train on so many machines, from nothing, and return how long they waited."""
    shutil.rmtree(folder, ignore_errors=True)
    place, disks = folder / "disk", [folder / f"disk{number}" for number in range(1, count + 1)]
    for path in (place, *disks):
        path.mkdir(parents=True)
    training = load_config(config).training
    assert training.max_steps is not None
    every = training.validate_every // count
    changes = {"max_steps": every * (training.max_steps // training.validate_every)}
    changes |= {"validate_every": every, "save_every": every}
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "machine1:29500", "--rdzv-id", "tfm"]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(count),
        "--nproc-per-node",
        "1",
        *meeting,
    ]
    worker = [str(Path(__file__).resolve()), "--worker", str(folder)]
    tfm = ["train", str(config), "--out", str(folder / "run"), "--device", "cpu", "--quiet"]
    tfm += [word for key, value in changes.items() for word in ("--set", f"training.{key}={value}")]
    environment = [f"TFM_CACHE={place / 'cache'}", f"PYTHONPATH={ROOT}", "OMP_NUM_THREADS=1"]
    with machines(count, [(disks, place)]) as found:
        began = time.monotonic()
        calls = [[*machine.enter(place), *environment, *torchrun, *worker, *tfm] for machine in found]
        processes = [subprocess.Popen(call) for call in calls]
        codes = [process.wait() for process in processes]
        assert not any(codes), codes
        seconds = time.monotonic() - began
    events = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
    return Waited(changes["max_steps"], sum("valid_bleu" in event for event in events), seconds, by_rank)


def work(folder: Path, arguments: list[str]) -> int:
    """Be `tfm` with these arguments, and write down what was waited for."""
    from transformer_cli.cli.app import main as tfm
    from transformer_cli.decoding.devices import rank_and_size
    from transformer_cli.training.distributed import Ranks

    clock = Clock()
    for name in WAITS:
        setattr(Ranks, name, clock.timed(getattr(Ranks, name)))
    code = tfm(arguments)
    (folder / f"{rank_and_size()[0]}.json").write_text(json.dumps(clock.seconds))
    return code


class Clock:
    """Adds up the seconds of calls by what they are for."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._before = "start"  # whose delays the next update waits for

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call, timed."""

        def timed_call(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*given, **named)
            finally:
                self._count(time.monotonic() - began)

        return timed_call

    def _count(self, seconds: float) -> None:
        frame, caller = sys._getframe(), ""
        while caller not in CALLERS and caller != "loop.py":
            assert frame.f_back is not None
            frame = frame.f_back
            caller = Path(frame.f_code.co_filename).name
        if caller == "loop.py":
            self.seconds[self._before] += seconds
            self._before = "update"
        else:
            phase = "start" if self._before == "start" else CALLERS[caller]
            self.seconds[phase] += seconds
            self._before = phase


# --- the table --------------------------------------------------------------------------------------------------------


def describe(found: Sequence[Waited]) -> Iterator[str]:
    """Yield the table: of each phase what a process waited, the least and the most, and the most as a share."""
    machines = [f"{len(one.by_rank)} machines" for one in found]
    yield "| seconds in which a process waits | " + " | ".join(machines) + " |"
    yield "| --- |" + " ---: |" * len(found)
    for phase, name in PHASES.items():
        yield f"| {name} | " + " | ".join(spread(one, [phase]) for one in found) + " |"
    every = [phase for phase in PHASES if phase != "update"]
    yield "| all but updates | " + " | ".join(spread(one, every) for one in found) + " |"
    whole = [f"{one.seconds:.0f} s: {one.updates:,} updates, {one.validations} validations" for one in found]
    yield "| the whole run | " + " | ".join(whole) + " |"


def spread(one: Waited, phases: Sequence[str]) -> str:
    """Return the least and the most that a process waited in these phases, and the most as a share of the run."""
    seconds = [sum(waited[phase] for phase in phases) for waited in one.by_rank]
    return f"{min(seconds):.1f} … {max(seconds):.1f} ({max(seconds) / one.seconds:.1%})"


if __name__ == "__main__":
    main()
