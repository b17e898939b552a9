"""The GPU benchmark itself, tried on a CPU: every part ends with figures, none with an error."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_ends_with_figures(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small", "--out", os.fspath(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    for name, result in results.items():
        assert "failed" not in result, f"{name}: {result}"
    assert {"attention", "loading", "decoding", "summary"} <= set(results)
    assert results["summary"]["÷ the fastest torch.nn.Transformer"] > 0
    cases = {name: result for name, result in results["decoding"].items() if "batch" in name}
    assert len(cases) == 4, "greedy and with beams, at two batch sizes"
    for case, contenders in cases.items():
        for name, result in contenders.items():
            if name.startswith("tfm, ") or (name.startswith("Hugging") and find_spec("transformers")):
                assert result["tokens/s"] > 0, f"{case}, {name}: {result}"
