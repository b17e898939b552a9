"""The examples for batch queues: Slurm's array and Kubernetes' indexed Job make what one process makes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.environment import unmeasured

EXAMPLES = Path(__file__).parents[2] / "examples" / "cluster"


@pytest.mark.slow
def test_examples_of_batch_queues_share_out_what_one_process_does(
    trial: Any, tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """True processes: Slurm's array of two tasks and the command that joins them; Kubernetes' pods."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tfm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m transformer_cli "$@"\n')
    (tmp_path / "tfm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    make = ["distill", str(trial.run), str(trial.config), "--greedy", "--out"]
    for task in (2, 1):
        subprocess.run(
            ["bash", EXAMPLES / "shares.sbatch", *make, "shared"],
            env=unmeasured(SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_TASK_COUNT="2"),
            check=True,
        )
        assert not Path("shared").exists()
    assert "--dependency" in (EXAMPLES / "shares.sbatch").read_text()
    assert tfm(*make, "shared").code == tfm(*make, "alone").code == 0
    assert Path("shared/train.en").read_bytes() == Path("alone/train.en").read_bytes()

    spec = yaml.safe_load((EXAMPLES / "translate.yaml").read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    fixed = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    assert {one["name"] for one in container["env"]} == {*fixed, "RANK"}
    assert int(fixed["WORLD_SIZE"]) == spec["completions"] <= spec["parallelism"]
    shutil.copytree(trial.run, "checkpoints/my")
    shutil.copy(trial.source, "big.de")
    pods = [
        subprocess.Popen(container["command"], env=unmeasured(**fixed | {"WORLD_SIZE": "2", "RANK": str(index)}))
        for index in range(2)
    ]
    assert [pod.wait() for pod in pods] == [0, 0]
    assert Path("big.en").read_text() == tfm("translate", trial.run, "-i", trial.source, "--quiet").out


@pytest.mark.medium
def test_manifests_fit_what_kubernetes_publishes() -> None:
    """In its last release and the oldest that its schemas are there of; no key is unknown to it."""
    schemas = pytest.importorskip("kubernetes_validate")
    page = (EXAMPLES.parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8")
    texts = re.findall(r"```yaml\n(apiVersion.*?)```", page, re.DOTALL)
    texts += [path.read_text() for path in EXAMPLES.parent.rglob("*.yaml")]
    manifests = [one for text in texts for one in yaml.safe_load_all(text)]
    assert len(manifests) >= 5
    for manifest in manifests:
        for release in (schemas.latest_version(), "1.29"):
            schemas.validate(manifest, release, strict=True)
    manifests[-1]["spec"]["noSuchKey"] = 1
    with pytest.raises(schemas.ValidationError, match="noSuchKey"):
        schemas.validate(manifests[-1], "1.29", strict=True)
