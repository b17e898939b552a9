"""Training on several machines, each with a network, a clock and files of its own: what goes wrong between them."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.machines import Machine, NotPossibleHere, machines
from tests.training.test_torchrun import Job, MakeTree
from transformer_cli.storage.run_folder import RunFolder

pytestmark = pytest.mark.slow


class Cluster:
    """Machines that share nothing but the folder of the run; data, config and cache are copies at the same place."""

    def __init__(self, folder: Path, machines: list[Machine], place: Path) -> None:
        self.folder, self.machines, self.place = folder, machines, place
        self.run = RunFolder(folder / "run")
        self.jobs: list[Job] = []

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
    """Call it with the number of machines and values of the config's section `training`."""
    with ExitStack() as stack:

        def make(count: int, **training: Any) -> Cluster:
            place = tmp_path / "here"
            place.mkdir()
            (place / "config.yaml").write_text(yaml.safe_dump(tiny_tree(place, **training)))
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
    found = job.processes()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in found:
            os.kill(process, number)


@pytest.mark.parametrize("count", [2, 4])
def test_machines_make_one_run(cluster: MakeCluster, count: int) -> None:
    made = cluster(count)
    ends = [job.end() for job in made.start_all()]
    assert [code for code, _ in ends] == [0] * count, ends
    assert sum(said.count("finished  ") for _, said in ends) == 1
    assert sum(f"{count} processes" in said for _, said in ends) == 1
    assert made.run.index().last == 12
