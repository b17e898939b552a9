"""The real command in two real processes: `torchrun … -m transformer_cli train`; what only it shows."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import yaml

from transformer_cli import Translator
from transformer_cli.config import Config
from transformer_cli.storage.checkpoint import load_training_state
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.training.run import train

ENDS_WITHIN = 60  # seconds, after a process has failed
SAVES_WITHIN = 20  # seconds, after a signal
OTHERS = ("W", "E", "Traceback", " ", "=", "-", "[", "torch.distributed", "transformer_cli FAILED", "Fail", "Root")

MakeTree = Callable[..., dict[str, Any]]


class Job:
    """One call of torchrun in a folder, and all the processes that come of it."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        options: Sequence[str] = ("--standalone", "--nproc-per-node", "2"),
        program: Sequence[str] = ("-m", "transformer_cli"),
        environment: Mapping[str, str] = MappingProxyType({}),
        before: Sequence[str] = (),
        out: str = "run",
    ) -> None:
        self.mark = f"TFM_TEST_JOB={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.stderr = folder / f"stderr-{value}.txt"  # a file can be read while the job runs
        command = [*before, sys.executable, "-m", "torch.distributed.run", *options, *program, "train", "config.yaml"]
        with open(self.stderr, "ab") as file:
            self.process = subprocess.Popen(
                [*command, "--out", out, *arguments],
                cwd=folder,
                env={**os.environ, **environment, "OMP_NUM_THREADS": "1", name: value},
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    def processes(self) -> dict[int, dict[str, str]]:
        """Those that still run, with their environment; torchrun itself is one."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                words = (
                    (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    if entry.name.isdigit()
                    else []
                )
                ended = bool(words) and "\nState:\tZ" in (entry / "status").read_text()
            except OSError:
                continue  # it ended meanwhile, or is not ours
            if self.mark in words and not ended:
                found[int(entry.name)] = dict(word.split("=", 1) for word in words if "=" in word)
        return found

    def rank(self, rank: int) -> int:
        """The process of a rank; the data's workers have the same environment, and a higher number."""
        return min(pid for pid, values in self.processes().items() if values.get("RANK") == str(rank))

    def end(self, within: float = 120.0) -> tuple[int, str]:
        """Exit code and stderr; nothing runs any more, and nothing was said on stdout."""
        said, _ = self.process.communicate(timeout=within)
        assert said == ""
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.processes() == {}, "orphans"
        return self.process.returncode, self.said()

    def said(self) -> str:
        """Stderr until now."""
        return self.stderr.read_text()

    def wait_for(self, metrics: Path, lines: int) -> None:
        """Until the run has noted so many events."""
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= lines):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def wait_for_error(self) -> None:
        """Until a process has reported its failure, or all have ended."""
        deadline = time.monotonic() + 120
        while not errors(self.said()) and self.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Call it with a config's tree and arguments: the job."""
    jobs: list[Job] = []

    def call(tree: dict[str, Any], *arguments: str, folder: Path = tmp_path, **named: Any) -> Job:
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))
        jobs.append(Job(folder, *arguments, **named))
        return jobs[-1]

    yield call
    for job in jobs:
        for pid in job.processes():
            os.kill(pid, signal.SIGKILL)
        job.process.communicate()


def own(said: str) -> list[str]:
    """What our processes said, without torchrun's report."""
    return [line for line in said.splitlines() if line.strip() and not line.startswith(OTHERS)]


def errors(said: str) -> list[str]:
    return [line for line in said.splitlines() if "error: " in line]


def weights(run: Path, step: int) -> bytes:
    return (RunFolder(run).step_folder(step) / WEIGHTS).read_bytes()


def position(run: Path, step: int) -> Any:
    return load_training_state(RunFolder(run).step_folder(step)).values["progress"]["position"]


@pytest.mark.medium
def test_two_processes_make_one_run(tmp_path: Path, tiny_tree: MakeTree, start: Start) -> None:
    code, said = start(tiny_tree(tmp_path)).end()
    assert code == 0, said
    lines = own(said)
    assert len(lines) == len(set(lines)), "each line once"
    assert sum("2 processes" in line for line in lines) == 1
    assert sum("finished" in line for line in lines) == 1
    steps = re.findall(r'^\{"step": (\d+), "epoch"', (tmp_path / "run" / "metrics.jsonl").read_text(), re.MULTILINE)
    assert steps == [str(step) for step in range(1, 13)]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["run"]
    assert not list((tmp_path / "run").glob(".*"))
    assert len(Translator.load(tmp_path / "run").translate(["balan demer", ""])) == 2


@pytest.mark.slow
def test_a_finished_run_and_a_fresh_one(tmp_path: Path, tiny_tree: MakeTree, start: Start) -> None:
    tree = tiny_tree(tmp_path, max_steps=2)
    code, said = start(tree, "--resume").end()
    assert code != 0
    assert [error.partition(";")[0] for error in errors(said)] == ["error: run: nothing to resume here"]
    assert not (tmp_path / "run").exists()
    assert start(tree).end()[0] == 0
    code, said = start(tree, "--resume").end()
    assert code == 0
    assert len([line for line in own(said) if "this run is finished" in line]) == len(own(said)) == 1
    code, said = start(tree, "--fresh", "--set", "training.seed=2").end()
    assert code == 0, said
    assert weights(tmp_path / "run", 2) != weights(tmp_path / "run.1", 2)
    assert not (tmp_path / "run.2").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_two_machines(tmp_path: Path, tiny_tree: MakeTree, start: Start, shared: bool) -> None:
    """Two calls of torchrun that find each other; without the same files they must not train."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"localhost:{free.getsockname()[1]}"
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "tfm")
    folders = [tmp_path, tmp_path if shared else tmp_path / "other"]
    folders[1].mkdir(exist_ok=True)
    trees = [tiny_tree(folder, pairs=200 + number * (not shared)) for number, folder in enumerate(folders)]
    jobs = [
        start(tree, folder=folder, options=(*options, "--rdzv-endpoint", endpoint))
        for tree, folder in zip(trees, folders, strict=True)
    ]
    ends = [job.end() for job in jobs]
    if shared:
        assert [code for code, _ in ends] == [0, 0], ends
        assert sum(said.count("finished  ") for _, said in ends) == 1
        assert RunFolder(tmp_path / "run").index().last == 12
    else:
        assert all(code != 0 for code, _ in ends)
        assert any("not every machine finds the same data" in said for _, said in ends)
        assert not any("step 1/" in said for _, said in ends)


@pytest.mark.slow
def test_processes_started_as_different_numbers_are_refused(tmp_path: Path, tiny_tree: MakeTree) -> None:
    """Without torchrun, which would not let them begin: each of them says it in one line."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(tiny_tree(tmp_path)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "transformer_cli", "train", "config.yaml", "--out", "run"],
            cwd=tmp_path,
            env=os.environ | shared | {"RANK": str(rank), "WORLD_SIZE": str(count)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, count in enumerate((2, 3, 3))
    ]
    for process, count in zip(processes, (2, 3, 3), strict=True):
        said, error = process.communicate(timeout=120)
        assert (process.returncode, said, error.count("\n")) == (2, "", 1), error
        assert error.startswith(f"error: this process was started as one of {count}, another one as one of {5 - count}")
    assert not (tmp_path / "run").exists()


def random_tree(make: MakeTree, folder: Path, workers: int = 0) -> dict[str, Any]:
    """A run with everything random in it: dropout, subword sampling, noise, shuffling; long enough to be killed."""
    tree = make(folder, max_steps=240, save_every=20, validate_every=100, batch_tokens=120, subword_sampling=0.2)
    tree["data"]["workers"] = workers
    tree["training"]["noise"] = {"capitals": 0.2, "typos": 0.2}
    tree["vocabulary"] = {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 300}
    tree["model"]["dropout"] = 0.3
    return tree


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "killed_by", "twice"),
    [(0, signal.SIGTERM, False), (2, signal.SIGTERM, True), (0, signal.SIGINT, False)],
)
def test_a_stopped_run_continues_bit_for_bit(
    tmp_path: Path, tiny_tree: MakeTree, start: Start, workers: int, killed_by: signal.Signals, twice: bool
) -> None:
    """`twice`: each process gets the signal by itself too, as some schedulers send it."""
    tree = random_tree(tiny_tree, tmp_path, workers)
    tree["training"]["ema_decay"] = 0.9
    code, said = start(tree).end()
    assert code == 0, said
    (tmp_path / "run").rename(tmp_path / "whole")

    job = start(tree)
    job.wait_for(tmp_path / "run" / "metrics.jsonl", 30)
    ranks = [job.rank(rank) for rank in range(2)] if twice else []
    for pid in ranks:
        os.kill(pid, killed_by)
    job.process.send_signal(killed_by)
    code, said = job.end(SAVES_WITHIN)
    assert code != 0, "torchrun's own code"
    assert "forcefully" not in said
    assert errors(said) == []
    saved = RunFolder(tmp_path / "run").index().last
    assert saved is not None
    assert 30 <= saved < 240, "the signal came too late to show anything"
    assert f"interrupted; saved step {saved:,}" in said

    code, said = start(tree).end()
    assert code == 0, said
    assert f"resumed after step {saved}" in said
    assert weights(tmp_path / "run", 240) == weights(tmp_path / "whole", 240)
    ours, theirs = (load_training_state(RunFolder(tmp_path / run).step_folder(240)) for run in ("run", "whole"))
    assert {"random.cpu", "random.cpu.1"} <= ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        assert torch.equal(tensor, theirs.tensors[name]), name


@pytest.mark.slow
def test_another_number_of_processes_continues_at_the_same_place(
    tmp_path: Path, tiny_tree: MakeTree, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tiny_tree(tmp_path, batch_tokens=82, max_steps=6)  # 13 batches per epoch
    longer = Config.model_validate(tree | {"training": tree["training"] | {"max_steps": 10}})
    assert start(tree).end()[0] == 0
    assert position(tmp_path / "run", 6) == [0, 12]
    train(longer, tmp_path / "run")
    assert "processes changed from 2 to 1: an update takes 1 batches, not 2" in capsys.readouterr().err
    assert position(tmp_path / "run", 10) == [1, 3]

    (tmp_path / "run").rename(tmp_path / "first")
    train(Config.model_validate(tree), tmp_path / "run", quiet=True)
    assert position(tmp_path / "run", 6) == [0, 6]
    code, said = start(longer.model_dump(mode="json")).end()
    assert code == 0, said
    assert sum("processes changed from 1 to 2: an update takes 2 batches, not 1" in line for line in own(said)) == 1
    assert position(tmp_path / "run", 10) == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["config", "data", "disk"])
def test_an_error_is_reported_once_and_ends_all(tmp_path: Path, tiny_tree: MakeTree, start: Start, fault: str) -> None:
    tree = tiny_tree(tmp_path)
    if fault == "config":
        tree["training"]["batch_tokens"] = -1
    if fault == "data":
        (tmp_path / "train.de").unlink()
    if fault == "disk":
        (tmp_path / "run").write_text("no folder")
    job = start(tree)
    job.wait_for_error()
    code, said = job.end(ENDS_WITHIN)
    assert code != 0
    (error,) = errors(said)
    assert {"config": "training.batch_tokens", "data": "train.de: no such file", "disk": "not a folder"}[fault] in error
    assert own(said) == [error]
    assert re.search(r"Root Cause.*rank +: 0.*exitcode +: 2 ", said, re.DOTALL), "the cause, not who was ended for it"


RAISES = """
import os, sys
from transformer_cli.cli.app import main
from transformer_cli.training.objective import TranslationObjective

real, calls, rank = TranslationObjective.forward, 0, sys.argv.pop(1)

def forward(self, batch):
    global calls
    calls += 1
    if calls == 40 and os.environ["RANK"] == rank:
        raise RuntimeError("shapes do not fit")
    return real(self, batch)

TranslationObjective.forward = forward
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_raises_ends_the_job_and_says_why(
    tmp_path: Path, tiny_tree: MakeTree, start: Start, rank: int
) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    job = start(random_tree(tiny_tree, tmp_path), program=("raises.py", str(rank)))
    job.wait_for_error()
    code, said = job.end(ENDS_WITHIN)
    assert code != 0
    assert any(line.startswith("error: internal: RuntimeError: shapes do not fit") for line in own(said))
    assert len(errors(said)) <= 2
    assert said.count("Traceback") <= 1, "torchrun's own"


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_job(tmp_path: Path, tiny_tree: MakeTree, start: Start, rank: int) -> None:
    tree = random_tree(tiny_tree, tmp_path, workers=2)
    tree["training"]["max_steps"] = 100_000
    job = start(tree)
    job.wait_for(tmp_path / "run" / "metrics.jsonl", 10)
    os.kill(job.rank(rank), signal.SIGKILL)
    code, said = job.end(ENDS_WITHIN)
    assert code != 0
    assert "Signal 9 (SIGKILL)" in said
    assert len(errors(said)) <= 1
    if rank == 1:
        assert "another process of this training ended" in errors(said)[0]
    assert said.count("Traceback") <= 1, "torchrun's own"


@pytest.mark.slow
def test_torchrun_starts_a_failed_job_again(tmp_path: Path, tiny_tree: MakeTree, start: Start) -> None:
    options = ("--standalone", "--max-restarts", "1", "--nproc-per-node", "2")
    job = start(
        random_tree(tiny_tree, tmp_path), options=options, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    )
    job.wait_for(tmp_path / "run" / "metrics.jsonl", 30)
    os.kill(job.rank(1), signal.SIGKILL)
    code, said = job.end()
    assert code == 0, said
    assert re.search(r"resumed after step \d+", said)
    assert RunFolder(tmp_path / "run").index().last == 240
