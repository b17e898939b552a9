"""What `experiments/arithmetic.py` compares: two trainings that differ in how they compute, and in nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "experiments" / "arithmetic.py"
CONFIG = """
data: {source_language: de, target_language: en, train: {source: a, target: b}, valid: {source: a, target: b},
  workers: 0, max_length: 40}
vocabulary: {tokenizer: whitespace}
model: {encoder_layers: 1, decoder_layers: 1, d_model: 16, heads: 2, d_ff: 16, dropout: 0.0}
training: {max_steps: 3, validate_every: 3, batch_tokens: 200, warmup_steps: 1, log_every: 1, precision: fp32}
"""


@pytest.mark.slow
def test_both_train_alike(tmp_path: Path) -> None:
    """Without dropout, whose random numbers differ, every loss is the same."""
    for name, text in (("a", "ein hund\nzwei katzen\n" * 30), ("b", "a dog\ntwo cats\n" * 30), ("my.yaml", CONFIG)):
        (tmp_path / name).write_text(text)
    losses = []
    for arithmetic in ("ours", "torchs"):
        command = [sys.executable, str(PROGRAM), arithmetic, arithmetic, "my.yaml"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        lines = (tmp_path / arithmetic / "metrics.jsonl").read_text().splitlines()
        losses.append([one["loss"] for one in map(json.loads, lines) if "loss" in one])
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
