"""`--cluster` gives what `--jobs` gives, whatever dies; what machines lack is found before anything is written.

The clusters are Ray's own for tests: several "machines" on this one.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.environment import unmeasured
from transformer_cli.jobs import shards as sharding

machines = pytest.importorskip("transformer_cli.cluster", reason="needs Ray", exc_type=ImportError)

TFM = [sys.executable, "-m", "transformer_cli"]
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Any]]:
    """Start a cluster of so many machines; it has their `address`.

    Of one core each, but for the first; GPUs, of the first, are pretended.
    """
    from ray import cluster_utils

    started = []

    def start(count: int, cores_of_first: int = 1, gpus_of_first: int = 0) -> Any:
        head = {"num_cpus": cores_of_first, "num_gpus": gpus_of_first, "include_dashboard": False}
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        started.append(cluster)
        for _ in range(count - 1):
            cluster.add_node(num_cpus=1)
        return cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield start
    for cluster in started:
        cluster.shutdown()


@pytest.fixture(scope="module")
def address(start: Callable[..., Any]) -> str:
    return str(start(2).address)


@pytest.fixture
def on(tfm: Any) -> Iterator[Callable[..., Any]]:
    """Run a command in this process, on the cluster with this address."""
    import ray

    def run(address: str, *arguments: object) -> Any:
        ray.shutdown()
        return tfm(*arguments, "--cluster", address)

    yield run
    ray.shutdown()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """43 lines, in 9 shards."""
    monkeypatch.setattr(sharding, "SHARD_LINES", 5)
    path = tmp_path / "source"
    path.write_text("".join(f"{'ein hund sieht ' * (number % 4)}{'zwei ' * (number % 9)}\n" for number in range(43)))
    return path


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the parts that are kept, one after the other."""
    names: list[str] = []
    keep = sharding.Parts.keep

    def noting(self: sharding.Parts, name: str, *content: Any) -> None:
        keep(self, name, *content)
        names.append(name)

    monkeypatch.setattr(sharding.Parts, "keep", noting)
    return names


# --- the same, byte for byte --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_machines_continue_what_processes_began(
    address: str,
    on: Any,
    tfm: Any,
    trial: Any,
    source: Path,
    kept: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They make the same parts."""
    monkeypatch.chdir(tmp_path)  # in which relative paths begin on the machines too
    shutil.copytree(trial.run, "run")
    run = ["translate", "run", "-i", source, "--n-best", "2", "--scores"]
    assert tfm(*run, "-o", "whole", "--jobs", "1").code == 0
    names = [*kept]

    def interrupted(self: sharding.Parts, name: str, *content: Any) -> None:
        if name == names[3]:
            raise KeyboardInterrupt
        keep(self, name, *content)

    keep = sharding.Parts.keep
    with monkeypatch.context() as patch:
        patch.setattr(sharding.Parts, "keep", interrupted)
        assert tfm(*run, "-o", "joined", "--jobs", "1").code == 130
    kept.clear()
    done = on(address, *run, "-o", "joined")
    assert done.code == 0, done.err
    assert sorted(kept) == names[3:]
    assert "translated: 43 lines (15 of them before)" in done.err
    assert ", on 2 workers of the cluster\n" in done.err
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["joined", "run", "source", "whole"]


@pytest.mark.slow
def test_training_sets_are_those_of_one_process(
    address: str, on: Any, tfm: Any, trial: Any, source: Path, tmp_path: Path
) -> None:
    keep = [word for fault in ("too_long", "length_ratio", "repetition") for word in ("--keep", fault)]
    commands = {
        "distill": ["distill", trial.run, trial.config, "--best-of", "2"],
        "backtranslate": ["backtranslate", trial.run, "--input", source, *keep],
    }
    for name, command in commands.items():
        here, there = tmp_path / f"{name}-here", tmp_path / f"{name}-there"
        one = tfm(*command, "--out", here, "--quiet")
        assert one.code == 0, one.err
        other = on(address, *command, "--out", there, "--quiet")
        assert other.code == 0, other.err
        assert other.out == one.out.replace(str(here), str(there))
        assert {file.name: file.read_bytes() for file in here.iterdir()} == {
            file.name: file.read_bytes() for file in there.iterdir()
        }
    changed = on(address, *commands["distill"], "--out", tmp_path / "distill-there", "--beam", "4").refused()
    assert "was made with beam_size" in changed


@pytest.mark.slow
def test_a_corpus_is_judged_alike(address: str, on: Any, tfm: Any, tmp_path: Path) -> None:
    """In parts, whose lines are counted on from one to the next."""
    for language, word in (("de", "haus"), ("en", "house")):
        lines = [f"{word} {number % 700} {number % 90 * 'x'}" for number in range(12_000)]
        lines[7_000] = "" if language == "de" else "house"
        (tmp_path / language).write_text("\n".join(lines) + "\n")
    command = ["doctor", "--source", tmp_path / "de", "--target", tmp_path / "en", "--format", "json", "--quiet"]
    here, there = tfm(*command, "--jobs", "1"), on(address, *command)
    assert (here.code, there.code) == (0, 0), there.err
    assert there.out == here.out
    assert "7001" in there.out


@pytest.mark.slow
def test_a_search_comes_to_the_same_end(address: str, on: Any, tfm: Any, trial: Any, tmp_path: Path) -> None:
    changes = ["--set", "training={max_steps: 4, validate_every: 2, warmup_steps: 1, batch_tokens: 64}"]
    varied = ["--vary", "model.dropout=0.1,0.2", "--budget", "6steps", "--reduction", "2", "--json", "--quiet"]
    command = ["tune", trial.config, *changes, *varied]
    here = tfm(*command, "--out", tmp_path / "here", "--jobs", "2", "--device", "cpu")
    assert here.code == 0, here.err
    there = on(address, *command, "--out", tmp_path / "there")
    assert there.code == 0, there.err
    ours, theirs = (json.loads(answer.out) for answer in (here, there))
    for answer in (ours, theirs):
        assert len(answer["trials"]) == 2
        for one in (answer["best"], *answer["trials"]):
            one.pop("config", None), one.pop("seconds", None)
    assert theirs == ours


# --- workers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("device", "found"), [("cuda", ["0", "1"]), ("cpu", ["", "", ""])])
def test_each_worker_prepares_once_and_has_a_gpu_of_its_own_or_none(
    start: Callable[..., Any], device: str, found: list[str], tmp_path: Path
) -> None:
    """However many parts it does, there where the command was called."""
    import ray

    log = tmp_path / "log"

    def prepare(_: int) -> Callable[[int], int]:
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {os.environ['CUDA_VISIBLE_DEVICES']}\n")
        return lambda _: os.getpid()

    ray.shutdown()
    connected = machines.connect(start(1, cores_of_first=3, gpus_of_first=2).address, device)
    done = list(connected.map_in_order(prepare, range(12)))
    ray.shutdown()
    workers, gpus = zip(*(line.split(" ") for line in log.read_text().splitlines()), strict=True)
    assert sorted(gpus) == found
    assert sorted(workers) == sorted({str(worker) for worker in done})


# --- what dies ----------------------------------------------------------------------------------------------------


def is_busy(machine: Any) -> bool:
    """Whether a worker there does something: Ray names its process after it."""
    (raylet,) = machine.all_processes["raylet"]
    pid = raylet.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(b"_Worker.do" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


@pytest.mark.slow
def test_a_machine_that_dies_loses_what_it_was_at_and_nothing_else(
    start: Callable[..., Any],
    on: Any,
    tfm: Any,
    trial: Any,
    source: Path,
    kept: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of three, in the middle of a part: the others do that too, once."""
    monkeypatch.setattr(sharding, "SHARD_LINES", 500)
    source.write_text(100 * source.read_text())
    whole, joined = tmp_path / "whole", tmp_path / "joined"
    run = ["translate", trial.run, "-i", source, "--beam", "4"]
    assert tfm(*run, "-o", whole, "--jobs", "1").code == 0
    names = [*kept]
    kept.clear()
    cluster = start(3)
    lost: list[str] = []
    keep = sharding.Parts.keep

    def then_kill(self: sharding.Parts, name: str, *content: Any) -> None:
        keep(self, name, *content)
        for machine in cluster.worker_nodes if not lost else ():
            if is_busy(machine):
                cluster.remove_node(machine, allow_graceful=False)
                lost.append(name)
                return

    monkeypatch.setattr(sharding.Parts, "keep", then_kill)
    done = on(cluster.address, *run, "-o", joined)
    assert done.code == 0, done.err
    assert lost[0] != names[-1]
    assert sorted(kept) == names
    assert joined.read_bytes() == whole.read_bytes()
    assert (done.out, [line for line in done.err.splitlines() if "raylet" in line]) == ("", [])


@pytest.mark.slow
def test_a_process_is_started_again_where_its_machine_dies(start: Callable[..., Any], tmp_path: Path) -> None:
    """On one that joins later, for want of others."""
    import ray

    def begin(script: str) -> Any:
        return machines.RemoteProcess(connected, partial(subprocess.Popen, ["sh", "-c", script], cwd=tmp_path))

    def wait_for(starts: int) -> None:
        while not log.exists() or log.read_text().count("\n") < starts:
            assert process.poll() is None
            time.sleep(0.05)

    cluster, log = start(2, cores_of_first=0), tmp_path / "log"
    ray.shutdown()
    connected = machines.connect(cluster.address, "cpu")
    assert connected.workers == 1
    process = begin("echo begun >> log; until [ -e done ]; do sleep 0.1; done; exit 7")
    wait_for(starts=1)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    cluster.add_node(num_cpus=1)
    wait_for(starts=2)
    (tmp_path / "done").touch()
    while (code := process.poll()) is None:
        time.sleep(0.05)
    assert code == process.returncode == 7
    process = begin("trap 'echo ended >> log; exit' TERM; echo begun >> log; while :; do sleep 0.1; done")
    wait_for(starts=3)
    process.terminate()
    process.wait()
    assert log.read_text().split() == 3 * ["begun"] + ["ended"]
    ray.shutdown()


@pytest.mark.slow
def test_what_ends_each_of_its_workers_is_not_tried_for_ever(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(machines, "RESTARTS", 1)
    ray.shutdown()
    connected = machines.connect(address, "cpu", 1)
    with pytest.raises(ChildProcessError, match="a part was given up, its worker was lost 2 times"):
        list(connected.map([os._exit].__getitem__, [3]))
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_that_dies_is_continued_by_the_next(
    number: signal.Signals, address: str, trial: Any, tmp_path: Path
) -> None:
    source, output, parts = tmp_path / "source", tmp_path / "output", tmp_path / "output.parts"
    source.write_text("ein hund sieht zwei katzen\n" * 11_999 + "drei\n")
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "-o", str(output), "--greedy", "--cluster", address]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, env=unmeasured()) as process:
        while not parts.exists() or not any(path.name[0] == "0" for path in parts.iterdir()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert not output.exists()
    done = subprocess.run(run, capture_output=True, text=True, env=unmeasured(), check=True)
    assert " of them before) in " in done.stderr
    assert output.read_text().count("\n") == 12_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_machines_lack_is_found_before_work_begins(
    address: str, on: Any, trial: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["translate", trial.run, "-i", source, "-o", tmp_path / "output"]
    assert "has no GPU to work with" in on(address, *run, "--device", "cuda").refused()
    folder = os.open(trial.folder, os.O_RDONLY)
    run[1] = Path(f"/proc/self/fd/{folder}/run")  # which no other process can see
    assert "must be in a folder that all machines share" in on(address, *run).refused()
    os.close(folder)
    run[1] = trial.run
    with monkeypatch.context() as patch:
        patch.setattr(machines, "__version__", "0.0")
        said = on(address, *run).refused()
    assert "has tfm " in said
    assert "not 0.0; install the same on all machines" in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


@pytest.mark.slow
def test_a_fault_of_the_model_is_told_by_the_worker(
    address: str, on: Any, trial: Any, source: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trial.run, run)
    for weights in run.glob("*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-1])
    command = ["translate", run, "-i", source, "-o", tmp_path / "output", "--engine", "torch"]
    assert "model.safetensors" in on(address, *command).refused()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "source"]


@pytest.mark.slow
def test_another_ray_is_refused(start: Callable[..., Any], on: Any, trial: Any, tmp_path: Path) -> None:
    import ray
    from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
    from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

    cluster = start(1)
    ray.shutdown()
    ray.init(cluster.address, **machines.QUIET)
    found = json.loads(_internal_kv_get(b"CLUSTER_METADATA", namespace=KV_NAMESPACE_CLUSTER))
    changed = json.dumps({**found, "ray_version": "1.2.3"}).encode()
    _internal_kv_put(b"CLUSTER_METADATA", changed, namespace=KV_NAMESPACE_CLUSTER)
    said = on(cluster.address, "translate", trial.run, "-i", trial.source, "-o", tmp_path / "output").refused()
    assert f"runs Ray 1.2.3 on Python {found['python_version']}, but here is Ray {ray.__version__} on " in said
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--cluster", "nonsense"], {}, "give auto or HOST:PORT"),
        (["--cluster", "localhost:99999"], {}, "no Ray cluster can be reached there"),
        (["--cluster", "auto", "--device", "mps"], {}, "with --cluster give cpu"),
        (["--cluster", "auto", "--stream"], {}, "--stream and --cluster exclude each other"),
        (["--cluster", "auto", "-i", "source"], {"RANK": "0", "WORLD_SIZE": "2"}, "--cluster and torchrun exclude"),
    ],
)
def test_what_cannot_be_is_refused(
    arguments: list[str],
    variables: dict[str, str],
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").write_text("ein\n")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert message in tfm("translate", trial.run, "-o", "output", *arguments).refused()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_where_nobody_answers_that_is_said_at_once(trial: Any, tfm: Any, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        began = time.monotonic()
        said = tfm("doctor", trial.config, "--cluster", address).refused()
    assert "no Ray cluster can be reached there (Connection refused); start one by ray start --head" in said
    assert time.monotonic() - began < machines.REACH_SECONDS


def test_what_answers_but_is_no_cluster_is_waited_for_a_while(
    trial: Any, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "CONNECT_SECONDS", 1.0)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        said = tfm("doctor", trial.config, "--cluster", f"127.0.0.1:{listening.getsockname()[1]}").refused()
    assert "no Ray cluster can be reached there" in said


def test_without_ray_the_extra_is_named(trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_cli.cluster", None)
    for command in (["translate", trial.run, "-o", tmp_path / "output"], ["doctor", trial.config]):
        assert "pip install 'transformer-cli[cluster]'" in tfm(*command, "--cluster", "auto").refused()
    assert not [*tmp_path.iterdir()]
