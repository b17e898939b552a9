"""What a machine has is known without torch: on Linux, on macOS, under WSL, with GPUs of either maker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.decoding import devices
from transformer_cli.decoding.devices import device_of, has_gpu, kind_of, rank_and_size, usable_cores
from transformer_cli.decoding.engines.ctranslate2_engine import worker_count
from transformer_cli.errors import UserError


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The only files below /dev and /usr/lib/wsl; to be added to."""
    files: set[str] = set()
    exists = os.path.exists

    def stub(path: str | os.PathLike[str]) -> bool:
        name = os.fspath(path)
        return name in files if name.startswith(("/dev/", "/usr/lib/wsl/")) else exists(path)

    monkeypatch.setattr(os.path, "exists", stub)
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return files


def test_cores_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert usable_cores() == 3


def test_cores_where_the_system_does_not_say_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for count, cores in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert usable_cores() == worker_count() == cores


GPUS = {
    "NVIDIA's": ["/dev/nvidiactl", "/dev/nvidia0"],
    "AMD's, by ROCm": ["/dev/kfd", "/dev/dri"],
    "NVIDIA's, under WSL": ["/dev/dxg", "/usr/lib/wsl/lib/libcuda.so.1", "/usr/lib/wsl/lib/nvidia-smi"],
}


@pytest.mark.parametrize("kind", GPUS)
def test_each_job_takes_a_gpu_of_its_own(kind: str, there: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    there.update(GPUS[kind])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert has_gpu()
    assert [device_of("auto", number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device_of("cuda", 1), device_of("cuda:0", 1), device_of("cpu", 1)] == ["cuda:1", "cuda:0", "cpu"]
    assert [kind_of(device) for device in ("auto", "cuda:1", "cpu")] == ["cuda", "cuda", "cpu"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of("auto", 0) == "cuda:1"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)  # a torch built without CUDA
    assert device_of("auto", 0) == "auto"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not has_gpu()


@pytest.mark.parametrize("files", [[], ["/dev/dxg", "/usr/lib/wsl/lib/libdxcore.so"], ["/dev/null"]])
def test_where_no_gpu_is_all_jobs_stay_on_the_cpu(files: list[str], there: set[str]) -> None:
    """Under WSL /dev/dxg is there with any maker's graphics."""
    there.update(files)
    assert not has_gpu()
    assert [device_of("auto", number) for number in range(2)] == ["auto", "auto"]
    assert kind_of("auto") == "auto"


def test_a_rank_is_one_of_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert rank_and_size() == (0, 1)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="WORLD_SIZE=1"):
        rank_and_size()
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_and_size() == (1, 4)


def test_nothing_of_it_needs_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from transformer_cli.decoding import devices\n"
        "print(devices.has_gpu() in (True, False), devices.usable_cores() > 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True True\n"


def test_cores_are_counted_in_one_place() -> None:
    """`os.sched_getaffinity` is missing on macOS."""
    package = Path(devices.__file__).parents[1]
    found = [path.name for path in package.rglob("*.py") if "sched_getaffinity" in path.read_text(encoding="utf-8")]
    assert found == ["devices.py"]
