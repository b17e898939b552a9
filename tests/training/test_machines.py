"""Training on several machines, each with a network, a clock and files of its own: what goes wrong between them."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load

from tests.training.machines import Machine, NotPossibleHere, machines
from tests.training.test_torchrun import ENDS_WITHIN, Job, MakeTree, errors, random_tree, weights
from transformer_cli.config import Config
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.run import train

pytestmark = pytest.mark.slow

ELASTIC = ("--max-restarts", "3", "--rdzv-conf", "last_call_timeout=3")
# Else processes of torch 2.13 that start again may look for those that were there before, and the job ends.
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# The command, but it gives a silent machine up after 10 seconds, not after minutes.
IMPATIENT = """
import sys
from datetime import timedelta
from transformer_cli.cli.app import main
from transformer_cli.training import distributed

distributed.LOST_AFTER, distributed.BEAT, distributed.TO_REPORT = timedelta(seconds=10), 1.0, 3.0
sys.exit(main())
"""
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (!failed && clock == CLOCK_REALTIME) now->tv_sec += atol(getenv("SECONDS_OFF"));
    return failed;
}
"""


class Cluster:
    """Machines that share nothing but the folder of the run; data, config and cache are copies at the same place."""

    def __init__(self, folder: Path, machines: list[Machine], place: Path) -> None:
        self.folder, self.machines, self.place = folder, machines, place
        self.run = RunFolder(folder / "run")
        self.jobs: list[Job] = []
        self.metrics = self.run.path / "metrics.jsonl"

    def config(self, **training: Any) -> Config:
        """What the machines train by, with these values."""
        tree = yaml.safe_load((self.folder / "here" / "config.yaml").read_text())
        return Config.model_validate(tree | {"training": tree["training"] | training})

    def start(self, number: int, nodes: str, *options: str, **named: Any) -> Job:
        """Call torchrun on a machine (from 1), with one process unless the options say otherwise."""
        named = {"environment": {}, "arguments": (), **named}
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "machine1:29500", "--rdzv-id", "tfm")
        self.jobs.append(
            Job(
                self.folder,
                *named.pop("arguments"),
                options=("--nnodes", nodes, "--nproc-per-node", "1", *meeting, *options),
                before=self.machines[number - 1].enter(self.place),
                out="../run",
                **named | {"environment": {"TFM_CACHE": str(self.place / "cache"), **named["environment"]}},
            )
        )
        return self.jobs[-1]

    def start_all(self, *options: str, nodes: str | None = None, **named: Any) -> list[Job]:
        """The same call on every machine."""
        numbers = range(1, len(self.machines) + 1)
        return [self.start(number, nodes or str(len(self.machines)), *options, **named) for number in numbers]


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def cluster(tmp_path: Path, tiny_tree: MakeTree) -> Iterator[MakeCluster]:
    """Call it with the number of machines and values of the config's section `training`.

    All is random that can be, or nothing.
    """
    with ExitStack() as stack:

        def make(count: int, random: bool = True, **training: Any) -> Cluster:
            place = tmp_path / "here"
            place.mkdir()
            (place / "impatient.py").write_text(IMPATIENT)
            tree = random_tree(tiny_tree, place) if random else tiny_tree(place)
            tree["model"].setdefault("dropout", 0.0)
            tree["training"] |= {"keep_last": 1000, **training}
            (place / "config.yaml").write_text(yaml.safe_dump(tree))
            copies = [Path(shutil.copytree(place, tmp_path / f"disk{number}")) for number in range(1, count + 1)]
            try:
                found = stack.enter_context(machines(count, [(copies, place)]))
            except NotPossibleHere as error:
                pytest.skip(f"no namespaces here: {error}")
            made = Cluster(tmp_path, found, place)
            stack.callback(end_all, made.jobs)
            return made

        yield make


def end_all(jobs: list[Job]) -> None:
    for job in jobs:
        kill(job)
        job.process.communicate()


def kill(job: Job) -> None:
    """End all of a machine's processes at once, torchrun too: none has time to see another's end."""
    for process in stop(job):
        os.kill(process, signal.SIGKILL)


def stop(job: Job) -> list[int]:
    """Let none of a machine's processes do anything until they get SIGCONT; return them."""
    found = list(job.processes())
    for process in found:
        os.kill(process, signal.SIGSTOP)
    return found


def wait_until(condition: Callable[[], object], job: Job, within: float = 120.0) -> None:
    """Return when it is so; `job` has to run on until then."""
    deadline = time.monotonic() + within
    while not condition():
        assert job.process.poll() is None, job.said()
        assert time.monotonic() < deadline, job.said()
        time.sleep(0.05)


def resumed(job: Job) -> list[int]:
    """The steps that it has continued from."""
    return [int(step.replace(",", "")) for step in re.findall(r"resumed after step ([0-9,]+)", job.said())]


@pytest.mark.parametrize("count", [2, 4])
def test_machines_make_one_run(cluster: MakeCluster, count: int) -> None:
    """The one that a process makes by itself, with as many batches in an update. The last machine comes late."""
    rate = {"schedule": "constant", "warmup_steps": 0, "peak_learning_rate": 0.01, "epsilon": 1e-4}
    made = cluster(count, random=False, batch_tokens=82, **rate)
    jobs = [made.start(number, str(count)) for number in range(1, count)]
    listening = Path(f"/proc/{made.machines[0].shell}/net/tcp6"), f":{29500:04X} "
    wait_until(lambda: listening[1] in listening[0].read_text(), jobs[0])
    assert not made.run.path.exists()
    jobs.append(made.start(count, str(count)))
    ends = [job.end() for job in jobs]
    assert [code for code, _ in ends] == [0] * count, ends
    assert sum(said.count("finished  ") for _, said in ends) == 1
    assert sum(f"{count} processes" in said for _, said in ends) == 1
    assert made.run.index().last == 12
    assert all(any((made.folder / f"disk{number}" / "cache").iterdir()) for number in range(1, count + 1))
    train(made.config(accumulation=count), made.folder / "alone", quiet=True)
    ours, theirs = (load(weights(run, 12)) for run in (made.run.path, made.folder / "alone"))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("count", "number"), [(2, 1), (2, 2), (4, 1), (4, 3)])
def test_a_machine_that_dies(cluster: MakeCluster, count: int, number: int) -> None:
    """The others end; the same command continues from the last checkpoint, as if nothing had been."""
    made = cluster(count)
    assert [job.end()[0] for job in made.start_all()] == [0] * count
    made.run.path.rename(made.folder / "whole")
    jobs = made.start_all()
    jobs[0].wait_for(made.metrics, 50)
    kill(jobs.pop(number - 1))
    for job in jobs:
        code, said = job.end(ENDS_WITHIN)
        assert code != 0
        assert ["another process of this training ended" in line for line in errors(said)] in ([True], [])
    last = made.run.index().last
    assert last is not None
    assert last < 240
    jobs = made.start_all()
    assert [job.end()[0] for job in jobs] == [0] * count
    assert resumed(jobs[0]) == [last]
    assert weights(made.run.path, 240) == weights(made.folder / "whole", 240)


def test_the_machines_that_are_left_continue(cluster: MakeCluster) -> None:
    """As many processes as are left would, from the same checkpoint."""
    made = cluster(3)
    jobs = made.start_all(*ELASTIC, nodes="1:3")
    jobs[0].wait_for(made.metrics, 50)
    kill(jobs[1])
    kill(jobs[2])
    code, said = jobs[0].end()
    assert code == 0, said
    assert "processes changed from 3 to 1: an update takes 1 batches, not 3" in said
    (step,) = resumed(jobs[0])
    assert step >= 40
    copy = RunFolder(shutil.copytree(made.run.path, made.folder / "copy"))
    index = json.loads(copy.index_path.read_text())
    index |= {"steps": [n for n in index["steps"] if n <= step], "last": step, "finished": None}
    index |= {"best": [n for n in index["best"] if n <= step], "average": None, "average_score": None}
    copy.index_path.write_text(json.dumps(index))
    train(made.config(), copy.path, quiet=True)
    assert weights(copy.path, 240) == weights(made.run.path, 240)


def test_machines_are_added(cluster: MakeCluster) -> None:
    """The others save, and all continue together from there."""
    made = cluster(4, max_steps=1_000_000, save_every=1000)
    jobs = [made.start(number, "1:4", *ELASTIC, environment=OWN_STORES) for number in (1, 2)]
    jobs[0].wait_for(made.metrics, 20)
    jobs += [made.start(number, "1:4", *ELASTIC, environment=OWN_STORES) for number in (3, 4)]
    wait_until(lambda: "4 processes, each" in jobs[0].said(), jobs[0])
    steps = resumed(jobs[0])
    assert steps[0] >= 15, "not from the start: they were stopped, and saved"
    assert made.run.index().last == steps[-1]


def test_torchrun_starts_all_machines_again(cluster: MakeCluster) -> None:
    made = cluster(2)
    assert [job.end()[0] for job in made.start_all()] == [0, 0]
    made.run.path.rename(made.folder / "whole")
    jobs = made.start_all("--max-restarts", "1", environment=OWN_STORES)
    jobs[0].wait_for(made.metrics, 50)
    os.kill(jobs[1].rank(1), signal.SIGKILL)
    assert [job.end()[0] for job in jobs] == [0, 0]
    assert resumed(jobs[0])[0] >= 40
    assert weights(made.run.path, 240) == weights(made.folder / "whole", 240)


@pytest.mark.parametrize(("count", "cable"), [(2, True), (2, False), (4, True), (4, False)])
def test_a_machine_that_hangs(cluster: MakeCluster, count: int, cable: bool) -> None:
    """The others end, and so does the stale one when it wakes up, which has not written meanwhile.

    `cable` False: its network is gone for good, and it runs on.
    """
    made = cluster(count, max_steps=1_000_000)
    # Not the machine of the rendezvous: for that one torchrun itself would wait.
    jobs = made.start_all("--rdzv-endpoint", "machine2:29500", program=("impatient.py",))
    jobs[0].wait_for(made.metrics, 50)
    stopped = stop(jobs[0]) if cable else []
    if not cable:
        made.machines[0].set_link(False)
    ends = [job.end(ENDS_WITHIN) for job in jobs[1:]]
    assert all(code != 0 for code, _ in ends), ends
    # Where the machine of the rendezvous ends first, torchrun may end those on the others before they can say anything.
    found = [error for _, said in ends for error in errors(said)]
    assert 1 <= len(found) < count
    assert all("another process of this training ended or cannot be reached" in error for error in found)
    before = made.metrics.read_bytes(), made.run.index()
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    wait_until(lambda: not any("RANK" in values for values in jobs[0].processes().values()), jobs[0], ENDS_WITHIN)
    assert (made.metrics.read_bytes(), made.run.index()) == before


@pytest.mark.parametrize("count", [2, 4])
def test_a_network_that_is_gone_for_half_a_minute(cluster: MakeCluster, count: int) -> None:
    made = cluster(count, max_steps=1_000_000)
    jobs = made.start_all()
    jobs[0].wait_for(made.metrics, 50)
    made.machines[1].set_link(False)
    time.sleep(30)
    lines = made.metrics.read_bytes().count(b"\n")
    made.machines[1].set_link(True)
    jobs[0].wait_for(made.metrics, lines + 50)
    assert [job.process.poll() for job in jobs] == [None] * count


@pytest.mark.parametrize(
    ("seconds", "options"), [(3600, ()), (-3600, ("--rdzv-conf", "keep_alive_max_attempt=100000"))]
)
def test_a_wrong_clock(cluster: MakeCluster, tmp_path: Path, seconds: int, options: tuple[str, ...]) -> None:
    """The run is not touched; torchrun, whose machines tell each other the time, may wait for minutes afterwards.

    By that time it takes a machine whose clock is behind for dead, and trains without it, unless it is told not to.
    """
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here, for a clock of one's own")
    made = cluster(2, max_steps=12)
    assert [job.end()[0] for job in made.start_all()] == [0, 0]
    made.run.path.rename(made.folder / "right")
    command = ["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(tmp_path / "clock.so"), "-ldl"]
    subprocess.run(command, input=WRONG_CLOCK, text=True, check=True)
    wrong = {"LD_PRELOAD": str(tmp_path / "clock.so"), "SECONDS_OFF": str(seconds)}
    jobs = [made.start(1, "2", *options), made.start(2, "2", *options, environment=wrong)]
    wait_until(lambda: "finished  " in jobs[0].said(), jobs[0])
    assert made.run.index().last == 12
    assert weights(made.run.path, 12) == weights(made.folder / "right", 12)


def test_a_second_group_is_refused(cluster: MakeCluster) -> None:
    """Also where the first one hangs: it might wake up. Only its end lets go of the run."""
    made = cluster(2, max_steps=1_000_000)
    first = made.start(1, "1")
    first.wait_for(made.metrics, 30)
    stopped = stop(first)
    second = made.start(2, "1", "--rdzv-endpoint", "machine2:29500", "--rdzv-id", "other")
    code, said = second.end(ENDS_WITHIN)
    assert code != 0
    (error,) = errors(said)
    assert re.search(r"another tfm is training here \(process \d+ on machine1\); wait for it", error)
    for process in stopped:
        os.kill(process, signal.SIGCONT)
    first.wait_for(made.metrics, made.metrics.read_bytes().count(b"\n") + 20)
    kill(first)
    third = made.start(2, "1", "--rdzv-endpoint", "machine2:29500", "--rdzv-id", "third")
    wait_until(lambda: resumed(third), third)
