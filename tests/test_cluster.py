"""Workers get items one by one, whoever is the fastest. Ray is a stand-in; `cli/test_cluster.py` has true clusters."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

machines = pytest.importorskip("transformer_cli.cluster", reason="needs Ray", exc_type=ImportError)

ONE, TWO = "1" * 56, "2" * 56  # machines, as Ray names them


class StandIn:
    """Ray, as far as `Cluster` knows it: each call is done when its result is asked for, the last call first."""

    def __init__(self) -> None:
        self.exceptions = machines.ray.exceptions
        self.workers: list[Any] = []
        self.ended: list[Any] = []
        self.most = 0  # calls under way at once
        self.asked: list[dict[str, Any]] = []  # of Ray, for each kind of worker
        self.alive = True
        self.connected = 0  # how often
        self._private = SimpleNamespace(worker=SimpleNamespace())
        self.silent = 0  # of the machines, the last ones
        self.machines: dict[str, dict[str, Any]] = {}

    def remote(self, actor: Any = None, **asked_at_once: Any) -> Any:
        if asked_at_once:
            return lambda call: SimpleNamespace(options=lambda **where: self._place(call, **where))

        def start() -> Any:
            worker = actor()
            calls = {name: self._method(getattr(worker, name)) for name in ("do", "run", "terminate")}
            self.workers.append(SimpleNamespace(**calls))
            return self.workers[-1]

        def options(**asked: Any) -> Any:
            self.asked.append(asked)
            return SimpleNamespace(remote=start)

        return SimpleNamespace(options=options)

    def _place(self, call: Callable[..., Any], scheduling_strategy: Any) -> Any:
        """Return what `ray.remote` does for a call on one machine; some have a way of their own to answer."""
        machine = self.machines[scheduling_strategy.node_id]
        return self._method(machine.get("answers", call))

    def _method(self, call: Callable[..., Any]) -> Any:
        return SimpleNamespace(remote=lambda *given: lambda: call(*given))

    def put(self, value: Any) -> Any:
        return lambda: value

    def get(self, reference: Any) -> Any:
        return reference()

    def wait(self, references: list[Any], timeout: float = 0, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(references))
        if num_returns > 1:
            return references[: len(self.machines) - self.silent], references[len(self.machines) - self.silent :]
        return (references[-1:] if self.alive else []), []

    def is_initialized(self) -> bool:
        return self.connected > 0

    def init(self, address: str, **_: Any) -> None:
        self.connected += 1
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Ray has a handler of its own

    def kill(self, worker: Any) -> None:
        self.ended.append(worker)

    def get_gpu_ids(self) -> list[int]:
        return []

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "NodeID": name,
                "NodeManagerAddress": f"10.0.0.{name[0]}",
                "Alive": True,
                "Resources": {"CPU": 2.0},
                **more,
            }
            for name, more in self.machines.items()
        ]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(machines, "ray", stand_in)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # which a worker without a GPU hides
    return stand_in


def cluster(workers: int) -> Any:
    return machines.Cluster(workers, False, machines.Needs.here())


def squares(number: int) -> Callable[[int], int]:
    return lambda item: item * item + number


@pytest.mark.parametrize(("items", "workers", "started"), [(7, 3, 3), (2, 5, 2), (0, 2, 0), (4, 1, 1)])
def test_each_item_is_done_once_and_no_worker_is_left(items: int, workers: int, started: int, ray: StandIn) -> None:
    prepared = []

    def prepare(number: int) -> Callable[[int], int]:
        prepared.append(number)
        return squares(number)

    found = list(cluster(workers).map(prepare, range(10, 10 + items)))
    assert sorted(found) == [(number, 10 + number, (10 + number) ** 2) for number in range(items)]
    assert len(ray.workers) == ray.most == started
    assert prepared == [0] * started, "once by each, however many items it does"
    assert all(worker in ray.ended for worker in ray.workers)
    assert list(cluster(workers).map_in_order(squares, range(items))) == [item * item for item in range(items)]


def test_no_more_is_read_than_there_are_workers(ray: StandIn) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(9):
            read.append(item)
            yield item

    results = cluster(2).map(squares, items())
    for done in range(3):
        next(results)
        assert len(read) == done + 2
    results.close()
    assert len(ray.ended) == 2


def test_a_worker_without_work_makes_room_before_the_last_part_is_done(ray: StandIn) -> None:
    results = cluster(3).map(squares, range(4))
    next(results), next(results), next(results)
    assert len(ray.ended) == 1, "one of a machine that was lost may wait for its place"
    list(results)


def test_what_fails_ends_all_workers(ray: StandIn) -> None:
    def refuse(number: int) -> Any:
        def work(item: int) -> None:
            raise ray.exceptions.RayTaskError("work", "…", machines.UserError(f"item {item}"))

        return work

    with pytest.raises(machines.UserError, match=r"item 2$"):
        list(cluster(2).map(refuse, [1, 2, 3]))
    assert sorted(map(id, ray.ended)) == sorted(map(id, ray.workers))


def test_where_no_machine_is_left_nobody_waits(ray: StandIn) -> None:
    ray.alive = False
    with pytest.raises(ChildProcessError, match="no machine of the cluster is left"):
        list(cluster(2).map(squares, [1]))


def test_a_worker_says_what_its_machine_lacks(ray: StandIn) -> None:
    other = machines.Cluster(1, False, machines.Needs("/", {**machines.Needs.here().versions, "tfm": "0"}, {}))
    with pytest.raises(machines.UserError, match=r"has tfm .*, not 0; install the same on all machines"):
        list(other.map(squares, [1]))


@pytest.mark.parametrize("gpu", [False, True])
def test_a_worker_takes_a_gpu_where_it_is_to_use_one(gpu: bool, ray: StandIn) -> None:
    """Whether it does parts or starts a process."""
    connected = machines.Cluster(1, gpu, machines.Needs.here())
    list(connected.map(squares, [1]))
    machines.RemoteProcess(connected, lambda: SimpleNamespace(wait=lambda: 0))
    assert [(asked["num_cpus"], asked["num_gpus"]) for asked in ray.asked] == [(1, int(gpu))] * 2


def test_a_process_of_a_worker_is_one(ray: StandIn) -> None:
    process = machines.RemoteProcess(cluster(1), lambda: SimpleNamespace(wait=lambda: 7))
    ray.alive = False
    assert process.poll() is None
    ray.alive = True
    assert process.poll() == process.returncode == 7
    assert ray.ended == ray.workers
    process = machines.RemoteProcess(cluster(1), lambda: SimpleNamespace(wait=lambda: 7))
    process.terminate()
    process.wait()
    assert ray.ended == ray.workers


def test_a_machine_has_the_same_files_and_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "file"
    file.write_text("a")
    needs = machines.Needs.here([Path("file")])
    monkeypatch.chdir("/")
    assert needs.lack() == ""
    assert Path.cwd() == tmp_path
    file.write_text("b")
    assert needs.lack().startswith("has another file;")
    file.unlink()
    assert needs.lack().startswith("cannot read file: No such file or directory; it must be in a folder")
    assert machines.Needs(str(tmp_path / "none"), {**needs.versions, "torch": "0"}, {}).lack().startswith("has torch ")


def lost(*_: object) -> Any:
    raise machines.ray.exceptions.WorkerCrashedError


def unlike(*_: object) -> Any:
    raise machines.ray.exceptions.RaySystemError("No module named 'transformer_cli'")


def test_only_machines_that_have_room_are_counted_and_asked(ray: StandIn, tmp_path: Path) -> None:
    """One that is lost just then is no fault of the others."""
    ray.machines = {ONE: {}, TWO: {"answers": lost}, "3": {"Resources": {}, "answers": unlike}, "4": {"Alive": False}}
    assert machines._machines(False) == {ONE: 2.0, TWO: 2.0}
    assert machines._machines(True) == {}
    file = tmp_path / "file"
    file.write_text("a")
    needs = cluster(1).requiring([file]).requiring([]).needs
    assert [*needs.files] == [str(file)]


@pytest.mark.parametrize(
    ("machine", "silent", "reason"),
    [
        ({"answers": lambda _: "has torch 1"}, 0, "has torch 1"),
        (
            {"answers": unlike},
            0,
            "cannot run tfm (System error: No module named 'transformer_cli'); install the same version there",
        ),
        ({}, 1, "does not answer; restart Ray there"),
    ],
)
def test_a_machine_that_lacks_something_is_named(machine: Any, silent: int, reason: str, ray: StandIn) -> None:
    ray.machines, ray.silent = {ONE: {}, TWO: machine}, silent
    with pytest.raises(machines.UserError) as refusal:
        cluster(1).requiring([])
    assert str(refusal.value) == f"--cluster: 10.0.0.2 {reason}"


def test_connecting_leaves_sigterm_as_it_was(ray: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are as many as there is room for, where nobody says how many."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(machines, "_find", lambda address: None)
    ray.machines = {ONE: {}, TWO: {"Resources": {"CPU": 3.0, "GPU": 1.0}}}
    assert machines.connect("auto", "cpu").workers == 5
    assert machines.connect("auto", "cuda").workers == 1
    assert machines.connect("auto", "cuda", 7).workers == 7
    assert signal.getsignal(signal.SIGTERM) == before
    assert ray.connected == 1
    del ray.machines[TWO]
    with pytest.raises(machines.UserError, match=r"--cluster auto: has no GPU to work with"):
        machines.connect("auto", "cuda")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "Version mismatch: The cluster was started with: Ray: 2.9 Python: 3.10 "
            "This process was started with: Ray: 2.60 Python: 3.11",
            "runs Ray 2.9 on Python 3.10, but here is Ray 2.60 on Python 3.11; install the same on all machines",
        ),
        ("none\nno such thing", "no Ray cluster can be reached there (no such thing); start one by ray start --head"),
    ],
)
def test_why_a_cluster_cannot_be_had(said: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines.subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=said))
    with pytest.raises(machines.UserError) as refusal:
        machines._find("auto")
    assert message in str(refusal.value)


@pytest.mark.parametrize(("command", "code", "paused"), [("kill -9 $$", -9, True), ("exit 7", 7, False)])
def test_a_process_that_is_killed_may_be_that_of_a_machine_that_is_lost(
    command: str, code: int, paused: bool, ray: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray then kills the worker, too, before it could say what became of the process, and another one begins anew."""
    pauses: list[float] = []
    monkeypatch.setattr(machines.time, "sleep", pauses.append)
    worker = machines._Worker()
    assert worker.run(machines.Needs.here(), lambda: subprocess.Popen(["sh", "-c", command])) == code
    assert pauses == paused * [machines.LOST_SECONDS]
