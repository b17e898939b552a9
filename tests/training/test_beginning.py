"""Where a run stands is the same for training and for a dry run, and what a preset chose is told as such."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config, config_of_tree, dump_config
from transformer_cli.config.presets import resolve_preset
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.dry_run import dry_run
from transformer_cli.training.run import find_run_state, train

MakeTree = Callable[..., dict[str, Any]]


def begun(folder: Path, config: Config, pairs: int = 200) -> RunFolder:
    """A run that has its config so far, as `tfm build-vocab` leaves it."""
    run = RunFolder(folder)
    run.create()
    run.config_path.write_text(dump_config(resolve_preset(config, lambda _: pairs)[0]))
    return run


def refusal(run: RunFolder, asked: Config, pairs: int = 200) -> str:
    with pytest.raises(UserError) as error:
        find_run_state(run, asked, resolve_preset(asked, lambda _: pairs)[0], resuming=True, resume=None)
    return str(error.value)


def with_vocabulary(tree: dict[str, Any], preset: str | None, **values: Any) -> Config:
    model = {"preset": preset} if preset else tree["model"]
    return config_of_tree({**tree, "model": model, "training": {}, "vocabulary": values}, "my.yaml")


def test_a_key_that_the_preset_chose_is_told_as_such(tmp_path: Path, tiny_tree: MakeTree) -> None:
    tree = tiny_tree(tmp_path)
    auto = with_vocabulary(tree, "auto")
    run = begun(tmp_path / "run", auto)
    find_run_state(run, auto, resolve_preset(auto, lambda _: 200)[0], resuming=True, resume=None)
    assert (
        "vocabulary.size = 2000, the config now says 4000 (chosen by model.preset = auto for the number of pairs in "
        "data.train: did the text there change?); set it back" in refusal(run, auto, pairs=20_000)
    )
    named = refusal(run, with_vocabulary(tree, "small"))
    assert "the config now says 4000 (chosen by model.preset = small); set it back" in named


def test_a_key_that_is_set_or_that_no_preset_has_is_told_as_before(tmp_path: Path, tiny_tree: MakeTree) -> None:
    tree = tiny_tree(tmp_path)
    run = begun(tmp_path / "run", with_vocabulary(tree, "tiny", lowercase=True))
    for asked in (
        with_vocabulary(tree, "tiny", lowercase=True, size=300),
        with_vocabulary(tree, "tiny"),
        with_vocabulary(tree, None, lowercase=True, algorithm="bpe"),
    ):
        assert "chosen" not in refusal(run, asked)


@pytest.mark.parametrize(
    ("training", "options", "says"),
    [
        ({"max_steps": 9, "seed": 9}, {}, "training.seed = 1, the config now says 9;"),
        ({"max_steps": 9}, {"resume": True, "fresh": True}, "nothing to resume here"),
    ],
)
def test_training_and_a_dry_run_refuse_the_same(
    tmp_path: Path, tiny_tree: MakeTree, training: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    train(Config.model_validate(tiny_tree(tmp_path, max_steps=1)), tmp_path / "run", device="cpu", quiet=True)
    config = Config.model_validate(tiny_tree(tmp_path, **training))
    said = []
    for begin in (lambda *args, **named: list(dry_run(*args, **named)), train):
        with pytest.raises(UserError) as error:
            begin(config, tmp_path / "run", device="cpu", quiet=True, **options)
        said.append(str(error.value))
    assert says in said[0]
    assert said[0] == said[1]
