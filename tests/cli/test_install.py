"""The install for using models, made as a user makes it: small, without torch, and enough to use them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome, Trial
from tests.environment import unmeasured

ROOT = Path(__file__).parents[2]
LARGEST = (
    250  # MiB on the disk, as `du -sm` counts, without pip and without the bytecode that Python can write any time
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which `pip install -c constraints.txt .` was called, in a copy of this checkout."""
    folder = tmp_path_factory.mktemp("install")
    shutil.copytree(ROOT / "transformer_cli", folder / "source" / "transformer_cli")
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python"), "install"]
    options = ["--quiet", "--no-compile", "--disable-pip-version-check", "-c", "constraints.txt"]
    subprocess.run([*pip, *options, "."], cwd=folder / "source", check=True)
    return folder / "venv"


def packages(venv: Path) -> Path:
    (folder,) = (venv / "lib").glob("python3*/site-packages")
    return folder


@pytest.mark.slow
def test_it_is_small_and_has_no_torch(installed: Path) -> None:
    files = [path.lstat() for path in packages(installed).rglob("*")]
    size = sum(file.st_blocks * 512 for file in files) / 2**20
    assert size <= LARGEST, f"{size:.0f} MiB"
    names = {path.name for path in packages(installed).iterdir()}
    assert not names & {"torch", "pyarrow", "pip"}
    assert names >= {"ctranslate2", "sacrebleu", "transformer_cli"}


@pytest.mark.slow
def test_run_folders_and_exports_are_used_from_an_empty_cache_on(
    installed: Path, trial: Trial, tfm: Callable[..., Outcome], tmp_path: Path
) -> None:
    assert tfm("export", trial.run, "--format", "ctranslate2", "--out", tmp_path / "exported").code == 0
    environment = unmeasured(TFM_CACHE=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
    environment.pop("PYTHONPATH", None)

    def run(*arguments: object) -> Outcome:
        call = [str(installed / "bin" / "tfm"), *map(str, arguments)]
        done = subprocess.run(call, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
        return Outcome(done.returncode, done.stdout, done.stderr)

    for command in (
        ["translate", "-i", trial.source, "--scores"],
        ["evaluate", "--source", trial.source, "--reference", trial.reference],
        ["score", "--source", trial.source, "--target", trial.reference],
    ):
        name, *rest = command
        expected = tfm(name, trial.run, *rest, "--engine", "ctranslate2", "--device", "cpu")
        for model in (trial.run, tmp_path / "exported"):
            found = run(name, model, *rest, "--device", "cpu")
            assert (found.code, found.out) == (0, expected.out), found.err
    assert len(os.listdir(tmp_path / "cache" / "ctranslate2")) == 2, "one model and the lock: exports are not copied"
    refused = run("train", trial.config, "--out", tmp_path / "out").refused()
    assert refused.endswith("tfm train needs PyTorch, which is not installed; pip install 'transformer-cli[train]'\n")
