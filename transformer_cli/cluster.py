"""The machines of a Ray cluster, which do what processes of this one do otherwise: `--cluster`. No torch.

`connect` finds the cluster and whether its machines have what they need, before any work begins; `Cluster.map` is
`processes.map_in_processes` on it. What workers find comes back to this process, which alone writes. Only
`--cluster` imports this module, for it imports Ray.
"""

import errno
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from transformer_cli import __version__
from transformer_cli.errors import UserError
from transformer_cli.processes import Item, Prepare, Result

REACH_SECONDS = 5.0  # for something to answer at an address …
CONNECT_SECONDS = 30.0  # … for that to be a Ray cluster …
CHECK_SECONDS = 60.0  # … and for each of its machines to start a process
RESTARTS = 10  # of each worker that is lost, before that is taken to be the fault of what it does
END_SECONDS = 60.0  # for a process that is terminated, to save its state
LOST_SECONDS = 5.0  # after the process of a worker was killed, in which the worker is, too, if its machine was lost
LOOK_SECONDS = 30.0  # between two looks at whether there are machines left
PACKAGES = ("ctranslate2", "torch", "sentencepiece")  # whose versions may decide a translation
HASHED = 1 << 20  # bytes of a file by which it is known again
QUIET = {"log_to_driver": False, "logging_level": "CRITICAL", "configure_logging": True}
PROBE = f"""
import sys, ray
try:
    ray.init(sys.argv[1], **{QUIET})
except Exception as error:
    sys.exit(" ".join(str(error).split()))
"""
VERSIONS = re.compile(r"Version mismatch:.* Ray: (\S+) Python: (\S+) .* Ray: (\S+) Python: (\S+)")


@dataclass(frozen=True)
class Needs:
    """What a worker must have: the same programs and files as the process that it works for."""

    folder: str  # in which that runs, and relative paths begin
    versions: dict[str, str]
    files: dict[str, str]  # path → what is in it

    @classmethod
    def here(cls, files: Iterable[Path] = ()) -> "Needs":
        """Return what this process has. Raises `OSError` where it cannot read one of the files."""
        return cls(os.getcwd(), _versions(), {str(path): _content(str(path)) for path in files})

    def lack(self) -> str:
        """Go to the folder, if it is here; return what this machine lacks, and what to do about that, or nothing."""
        with suppress(OSError):
            os.chdir(self.folder)
        for name, here in _versions().items():
            if here != self.versions[name]:
                return f"has {name} {here}, not {self.versions[name]}; install the same on all machines"
        for path, content in self.files.items():
            try:
                same = _content(path) == content
            except OSError as error:
                return f"cannot read {path}: {error.strerror}; it must be in a folder that all machines share"
            if not same:
                return f"has another {path}; it must be in a folder that all machines share"
        return ""


def _versions() -> dict[str, str]:
    found = {"tfm": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name).partition("+")[0]  # torch's name their CUDA after that
        except PackageNotFoundError:
            found[name] = "(none)"
    return found


def _content(path: str) -> str:
    with open(path, "rb") as file:
        return f"{os.fstat(file.fileno()).st_size} {hashlib.sha256(file.read(HASHED)).hexdigest()}"


# --- connecting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster that this process is connected to."""

    workers: int  # that work at once, of a CPU core each …
    gpu: bool  # … and a GPU
    needs: Needs

    def __str__(self) -> str:
        return f"{self.workers} {'worker' if self.workers == 1 else 'workers'} of the cluster"

    def requiring(self, files: Sequence[Path]) -> "Cluster":
        """Return the same, whose workers must also have these files. Raises `UserError` where they don't."""
        needs = Needs.here(files)
        more = replace(self, needs=replace(needs, files=self.needs.files | needs.files))
        _check(more)
        return more

    def map_in_order(self, prepare: Prepare[Item, Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield a result for each item, in order, as `processes.map_in_processes` does; else as `map`."""
        early: dict[int, Result] = {}
        first = 0
        for number, _, result in self.map(prepare, items):
            early[number] = result
            while first in early:
                yield early.pop(first)
                first += 1

    def map(self, prepare: Prepare[Item, Result], items: Iterable[Item]) -> Iterator[tuple[int, Item, Result]]:
        """Yield each item with its number, from 0, and its result, as soon as that is there.

        Each worker calls `prepare(0)` before its first item, and what that returns for each item. Of an item whose
        worker is lost Ray takes care. What fails for another reason is raised here, and ends the workers;
        `ChildProcessError` where an item loses all its workers, or the cluster its machines.
        """
        actor = ray.remote(_Worker).options(**self._resources())
        todo, shared = enumerate(items), ray.put(prepare)
        workers: list[Any] = []
        free: deque[Any] = deque([None] * self.workers)  # None: not started yet
        under_way: dict[Any, tuple[Any, int, Item]] = {}
        try:
            while True:
                for number, item in islice(todo, len(free)):
                    worker = free.popleft()
                    if worker is None:
                        workers.append(worker := actor.remote())
                    under_way[worker.do.remote(self.needs, [shared], item)] = worker, number, item
                while free:  # nothing is left to do: another worker, one that was lost, may need its place
                    if (worker := free.popleft()) is not None:
                        ray.kill(worker)
                if not under_way:
                    return
                reference = self._first_of(under_way)
                worker, number, item = under_way.pop(reference)
                # A copy, for Ray's own lies in memory that all share, and that would fill.
                yield number, item, deepcopy(_result(reference))
                free.append(worker)
        finally:
            for worker in workers:
                ray.kill(worker)

    def _resources(self) -> dict[str, Any]:
        return {"num_cpus": 1, "num_gpus": int(self.gpu), "max_restarts": RESTARTS, "max_task_retries": -1}

    def _first_of(self, references: Iterable[Any]) -> Any:
        while not (done := ray.wait([*references], timeout=LOOK_SECONDS)[0]):
            if not _machines(self.gpu):
                raise ChildProcessError(errno.ECHILD, "no machine of the cluster is left")
        return done[0]


class _Worker:
    """A process on the cluster."""

    work: Callable[[Any], Any] | None = None
    process: "subprocess.Popen[Any] | None" = None

    def do(self, needs: Needs, prepare: list[Any], item: Any) -> Any:
        """Return what becomes of an item; prepare: a reference to it, in a list so that Ray leaves it one."""
        if self.work is None:  # here, not when it starts, so that what it raises reaches the caller
            _settle(needs)
            self.work = ray.get(prepare[0])(0)
        return self.work(item)

    def run(self, needs: Needs, start: "Callable[[], subprocess.Popen[Any]]") -> int:
        """Start a process, and return its exit code when it has ended."""
        _settle(needs)
        self.process = start()
        code = self.process.wait()
        if code == -signal.SIGKILL:  # where a machine is lost, Ray kills first this, then the worker: no result of ours
            time.sleep(LOST_SECONDS)
        return code

    def terminate(self) -> None:
        """End the process, as gently as SIGTERM does."""
        if self.process is not None:
            self.process.terminate()


class RemoteProcess:
    """A process that a worker of the cluster has started, with what `subprocess.Popen` has for one of this machine.

    Where the worker is lost, Ray has another one start it again. Raises as `Cluster.map` does.
    """

    def __init__(self, cluster: Cluster, start: "Callable[[], subprocess.Popen[Any]]") -> None:
        options = {**cluster._resources(), "max_concurrency": 2}  # to be terminated while it runs
        self._worker = ray.remote(_Worker).options(**options).remote()
        self._code = self._worker.run.remote(cluster.needs, start)
        self.returncode: int = 0

    def poll(self) -> int | None:
        """Return its exit code, if it has ended."""
        if not ray.wait([self._code], timeout=0)[0]:
            return None
        self.returncode = _result(self._code)
        ray.kill(self._worker)  # what it had is for others now
        return self.returncode

    def terminate(self) -> None:
        """End it, as gently as SIGTERM does."""
        self._worker.terminate.remote()

    def wait(self) -> None:
        """Wait until it has ended, but not for ever for a worker that may never have started."""
        ray.wait([self._code], timeout=END_SECONDS)
        ray.kill(self._worker)


def _settle(needs: Needs) -> None:
    """Make this worker one that has no more than Ray gave it. Raises `UserError` where it lacks something."""
    if not ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if lack := needs.lack():
        raise UserError(f"--cluster: {socket.gethostname()} {lack}")


def _result(reference: Any) -> Any:
    """Return what became of an item. Raises what its work raised; `ChildProcessError` where that was never finished."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = " ".join(str(error).split())[:200]
        raise ChildProcessError(
            errno.ECHILD, f"a part was given up, its worker was lost {RESTARTS + 1} times: {reason}"
        ) from None


def connect(address: str, device: str, workers: int | None = None, files: Sequence[Path] = ()) -> Cluster:
    """Connect this process, if it is not yet, to the Ray cluster at `HOST:PORT`, or `auto`: that of this machine.

    device: `cuda` takes a GPU for each worker. workers: None: as many as the cluster has CPU cores, or GPUs. files:
    what all of them must be able to read. Raises `UserError` where there is no such cluster, or machines of it lack
    something.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"--device {device}: with --cluster give cpu (the default) or cuda; Ray says which GPU")
    if not ray.is_initialized():
        _find(address)
        before = signal.getsignal(signal.SIGTERM)
        vars(ray._private.worker)["print_to_stdstream"] = lambda *_, **__: None  # to stdout, of machines that were lost
        ray.init(address, **QUIET)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own exits with another code
    gpu = device == "cuda"
    machines = _machines(gpu)
    if not machines:
        raise UserError(f"--cluster {address}: has no {'GPU' if gpu else 'CPU core'} to work with")
    return Cluster(workers or int(sum(machines.values())), gpu, Needs.here()).requiring(files)


def _find(address: str) -> None:
    """Raise `UserError` where there is no cluster of this Ray's version. Ray itself would wait for minutes."""
    nothing = f"--cluster {address}: no Ray cluster can be reached there"
    advice = "start one by ray start --head, and join each machine to it by ray start --address HOST:PORT, this one too"
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        command = [sys.executable, "-c", PROBE, address]
        found = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=CONNECT_SECONDS)
    except subprocess.TimeoutExpired:
        raise UserError(f"{nothing} (what answers is no cluster that this machine has joined); {advice}") from None
    except (OSError, OverflowError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "give auto or HOST:PORT"
        raise UserError(f"{nothing} ({reason}); {advice}") from None
    if found.returncode == 0:
        return
    said = (found.stderr.splitlines() or [""])[-1]
    if other := VERSIONS.search(said):
        theirs, ours = (f"Ray {ray} on Python {python}" for ray, python in (other.groups()[:2], other.groups()[2:]))
        raise UserError(f"--cluster {address}: runs {theirs}, but here is {ours}; install the same on all machines")
    raise UserError(f"{nothing} ({said[:200]}); {advice}")


def _machines(gpu: bool) -> dict[str, float]:
    """Return how many workers each machine of the cluster has room for, by Ray's name of it; none that has no room."""
    kind = "GPU" if gpu else "CPU"
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: node["Resources"][kind] for node in nodes if node["Resources"].get(kind, 0) >= 1}


def _check(cluster: Cluster) -> None:
    """Raise `UserError` where a machine of the cluster lacks something that workers need."""
    names = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    ask = ray.remote(num_cpus=0, max_retries=0)(Needs.lack)
    asked = {}
    for machine in _machines(cluster.gpu):
        only = NodeAffinitySchedulingStrategy(machine, soft=False)
        asked[ask.options(scheduling_strategy=only).remote(cluster.needs)] = f"--cluster: {names[machine]}"
    _, waiting = ray.wait([*asked], num_returns=len(asked), timeout=CHECK_SECONDS)
    for reference in waiting:
        raise UserError(f"{asked[reference]} does not answer; restart Ray there")
    for reference, machine in asked.items():
        try:
            lack = ray.get(reference)
        except (ray.exceptions.TaskUnschedulableError, ray.exceptions.WorkerCrashedError):
            continue  # the machine was lost just then
        except ray.exceptions.RayError as error:
            reason = (str(error).strip().splitlines() or [""])[-1][:200]
            lack = f"cannot run tfm ({reason}); install the same version there"
        if lack:
            raise UserError(f"{machine} {lack}")
