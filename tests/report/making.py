"""Runs as training leaves them, with random weights: for the tests of `tfm report`."""

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import CONFIG, write_corpus, write_run
from transformer_cli.config import dump_config, load_config

TEST = "  test: {{source: {folder}/valid.de, target: {folder}/valid.en}}\n  max_length: 24\n"


def make_run(path: Path, *overrides: str, seconds: float = 100.0, bleu: float = 3.5) -> Path:
    """A run of two checkpoints with a test set, metrics and all else that is read of one; returns its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_corpus(path.parent)
    text = CONFIG.replace("  max_length: 24\n", TEST).format(
        folder=path.parent, tokenizer="sentencepiece", positions="sinusoidal"
    )
    config = path.parent / f"{path.name}.yaml"
    config.write_text(dump_config(_changed(config, text, overrides)), encoding="utf-8")
    write_run(config, path, [2, 4])
    (path / "config.yaml").write_bytes(config.read_bytes())
    write_events(path, {"step": 0, "hardware": "cpu (Z80, 1 thread), fp32"}, *events(bleu))
    (path / "step-00000004" / "training.json").write_text(json.dumps({"progress": {"step": 4, "seconds": seconds}}))
    return path


def _changed(path: Path, text: str, overrides: tuple[str, ...]) -> Any:
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def events(bleu: float) -> list[dict[str, Any]]:
    every: list[dict[str, Any]] = [
        {"step": step, "loss": 9.0 - step, "learning_rate": 1e-4 * step} for step in (1, 2, 3, 4)
    ]
    best = {"step": 4, "valid_loss": 5.25, "valid_bleu": bleu, "valid_chrf": 20.5}
    return [*every, {"step": 2, "valid_loss": None, "valid_bleu": 1.0, "valid_chrf": 9.0}, best]


def write_events(run: Path, *some: dict[str, Any]) -> None:
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in some))
