"""Training decides by its text whether lines are split, and the model keeps the decision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config, load_config
from transformer_cli.storage.run_folder import RunFolder, find_model
from transformer_cli.training.run import train
from transformer_cli.training.start import build_vocabulary, resolve_split

MakeConfig = Callable[..., Config]
MakeTree = Callable[..., dict[str, Any]]


def write_lines(folder: Path, several: int, lines: int = 20) -> None:
    """The training text, of which so many lines hold several sentences."""
    for language in ("de", "en"):
        text = "Eins zwei. Drei.\n" * several + "Eins Dr. Zwei.\n" * (lines - several)
        (folder / f"train.{language}").write_text(text)


@pytest.mark.parametrize(("several", "split"), [(0, "always"), (10, "always"), (11, "never"), (20, "never")])
def test_the_training_text_decides(several: int, split: str, tmp_path: Path, tiny_tree: MakeTree) -> None:
    tree = tiny_tree(tmp_path)
    write_lines(tmp_path, several)
    found, (line,) = resolve_split(Config.model_validate(tree), None)
    assert found.decoding.split == split
    assert f"{several / 20:.1%} of the training lines hold several; decoding.split = {split}" in line
    tree["decoding"]["split"] = "never"
    asked = Config.model_validate(tree)
    assert resolve_split(asked, None) == (asked, []), "what is set stays"


def test_the_model_keeps_it(tmp_path: Path, tiny_config: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config(tmp_path, max_steps=4)
    run = RunFolder(tmp_path / "run")
    build_vocabulary(config, run.path)
    assert load_config(run.config_path).decoding.split == "always"
    train(config, run.path, device="cpu")
    assert "0.0% of the training lines hold several; decoding.split = always" in capsys.readouterr().err
    for folder in (run.path, find_model(run.path)):
        assert load_config(folder / "config.yaml").decoding.split == "always"

    (tmp_path / "train.de").unlink()
    resolved, lines = resolve_split(config, run)
    assert (resolved.decoding.split, lines) == ("always", []), "without reading anything again"


def test_a_run_from_before_stays_as_it_was(tmp_path: Path, tiny_config: MakeConfig) -> None:
    run = RunFolder(tmp_path / "run")
    train(tiny_config(tmp_path, max_steps=4), run.path, device="cpu", quiet=True)
    text = run.config_path.read_text()
    assert "  split: always\n" in text
    run.config_path.write_text(text.replace("  split: always\n", ""))
    train(tiny_config(tmp_path, max_steps=6), run.path, device="cpu", quiet=True)
    assert load_config(run.config_path).decoding.split == "auto"
