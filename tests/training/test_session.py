"""A session that ends in the middle of skipped updates or between a validation and its checkpoint; how it ends."""

import json
import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config, config_of_tree
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training import loop
from transformer_cli.training.loop import Gradients, compute_gradients
from transformer_cli.training.run import Interrupted, train
from transformer_cli.training.saving import Progress, Saver
from transformer_cli.training.session import TrainingResult, describe_result
from transformer_cli.training.validation import Validation, Validator

MakeConfig = Callable[..., Config]
MakeTree = Callable[..., dict[str, Any]]


class Fate:
    """What befalls the updates that are tried, counted from 1 over all sessions."""

    def __init__(self, spoilt: set[int], at: int = 0, event: Callable[[], None] = lambda: None) -> None:
        """`spoilt`: their losses are not finite. `event` happens while update `at` is computed."""
        self.spoilt, self.at, self.event = spoilt, at, event
        self.tried = 0

    def compute_gradients(self, *arguments: Any) -> Gradients:
        self.tried += 1
        if self.tried == self.at:
            self.event()
        gradients = compute_gradients(*arguments)
        return gradients._replace(loss=gradients.loss + math.nan) if self.tried in self.spoilt else gradients


@pytest.fixture
def suffer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fate]:
    """Call it with a `Fate`'s arguments: it rules from then on."""

    def call(*arguments: Any) -> Fate:
        fate = Fate(*arguments)
        monkeypatch.setattr(loop, "compute_gradients", fate.compute_gradients)
        return fate

    return call


def recorded(run: Path) -> list[tuple[int, str]]:
    """The events of a run, each by its step and what it is."""
    events = [json.loads(line) for line in RunFolder(run).metrics.path.read_text().splitlines()]
    kinds = ("skipped", "loss", "valid_loss")
    return [(event["step"], key) for event in events for key in kinds if key in event]


def signal_oneself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_an_interruption_between_skipped_updates_puts_no_end_off(
    tmp_path: Path, tiny_config: MakeConfig, suffer: Callable[..., Fate]
) -> None:
    config = tiny_config(tmp_path, max_skipped=5)
    whole = suffer(set(range(4, 99)))
    with pytest.raises(UserError, match="diverged at step 3: 5 updates in a row"):
        train(config, tmp_path / "whole", quiet=True)
    parts = suffer(set(range(4, 99)), 6, signal_oneself)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "parts", quiet=True)
    with pytest.raises(UserError, match="diverged at step 3: 5 updates in a row"):
        train(config, tmp_path / "parts", quiet=True)
    assert parts.tried == whole.tried == 8
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")


def test_updates_skipped_before_a_kill_are_recorded_once(
    tmp_path: Path, tiny_config: MakeConfig, suffer: Callable[..., Fate]
) -> None:
    def die() -> None:
        raise KeyError("as good as a kill: nothing is saved")

    config = tiny_config(tmp_path, max_steps=5, save_every=3, validate_every=100)
    suffer({4, 5})
    train(config, tmp_path / "whole", quiet=True)
    suffer({4, 5, 7, 8}, 6, die)
    with pytest.raises(KeyError):
        train(config, tmp_path / "parts", quiet=True)
    train(config, tmp_path / "parts", quiet=True)
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")
    assert recorded(tmp_path / "whole")[3:6] == [(4, "skipped"), (4, "skipped"), (4, "loss")]


def test_a_validation_whose_score_was_not_saved_is_recorded_once(
    tmp_path: Path, tiny_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal breaks it off, and a kill comes when the next session has made up for it, but not saved its score."""
    config = tiny_config(tmp_path, max_steps=6, validate_every=3)
    real = Validator.validate

    def validate(self: Validator) -> Validation | None:
        monkeypatch.setattr(Validator, "validate", real)
        self.ranks.stop.signal_number = int(signal.SIGTERM)
        return real(self)

    def die(*arguments: Any) -> None:
        raise KeyError("as good as a kill")

    monkeypatch.setattr(Validator, "validate", validate)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(Saver, "save", die)
        with pytest.raises(KeyError):
            train(config, tmp_path / "run", quiet=True)
    assert recorded(tmp_path / "run")[-1] == (3, "valid_loss")
    train(config, tmp_path / "run", quiet=True)
    assert [step for step, what in recorded(tmp_path / "run") if what == "valid_loss"] == [3, 6]


# --- the result -------------------------------------------------------------------------------------------------------


def describe(progress: Progress) -> list[str]:
    data = {"source_language": "de", "target_language": "en"}
    pair = {"source": "a", "target": "b"}
    config = Config.model_validate({"data": data | {"train": pair, "valid": pair}, "training": {"max_steps": 1000}})
    result = TrainingResult(Path("run"), "max_steps = 1,000 reached", 1000, 500, 30.126, progress.seconds)
    return list(describe_result(result, config, progress))


def test_the_end_is_reported_with_how_long_it_took() -> None:
    finished, best, model = describe(Progress(seconds=120.0, validation_seconds=15.0))
    for said in ("max_steps = 1,000 reached", "1,000 steps", "2.0 minutes", "12.5%"):
        assert said in finished
    assert re.search("step 500, .*30.13", best)
    assert "tfm translate run " in model


def test_updates_that_were_not_as_usual_are_counted() -> None:
    lines = describe(Progress(skipped=1200, halvings=3))
    assert any("1,200 skipped" in line and "3 halved" in line for line in lines)
    assert not any("skipped" in line for line in describe(Progress(halvings=3)))
    assert any("3 halved" in line for line in describe(Progress(halvings=3)))


@pytest.mark.medium
@pytest.mark.parametrize("related", [True, False])
def test_the_end_says_whether_the_source_was_of_use(
    tmp_path: Path, tiny_config: MakeConfig, capsys: pytest.CaptureFixture[str], related: bool
) -> None:
    fast = {"schedule": "constant", "peak_learning_rate": 0.01}  # lines of one word are learned in a few updates
    config = tiny_config(tmp_path, longest=1, max_steps=75, validate_every=75, save_every=75, **fast)
    if not related:
        for stem in ("train", "valid"):  # each target beside another pair's source
            lines = (tmp_path / f"{stem}.en").read_text().splitlines(keepends=True)
            (tmp_path / f"{stem}.en").write_text("".join([*lines[1:], lines[0]]))
    train(config, tmp_path / "run")
    said = capsys.readouterr().err
    assert ("this model has not learned to translate" in said) is not related
    event = json.loads(RunFolder(tmp_path / "run").metrics.path.read_text().splitlines()[-1])
    perplexity, other = (float(part) for part in re.search(r"perplexity (\S+) \((\S+) with another", said).groups())  # type: ignore[union-attr]
    assert perplexity * math.exp(event["valid_source_gain"]) == pytest.approx(other, rel=0.05)
    assert event["valid_source_gain"] > 1 if related else abs(event["valid_source_gain"]) < 0.5


def test_what_is_copied_from_a_source_does_not_count_against_another(tmp_path: Path, tiny_tree: MakeTree) -> None:
    """A word in no vocabulary, copied from its sentence: beside another source it is impossible."""
    tree = tiny_tree(tmp_path, max_steps=3, validate_every=3, save_every=3)
    for side in ("de", "en"):
        with open(tmp_path / f"valid.{side}", "a") as file:
            file.write("Zzyzx\n")
    tree["model"]["generator"] = "pointer"
    train(config_of_tree(tree, "my.yaml"), tmp_path / "run", device="cpu", quiet=True)
    event = json.loads(RunFolder(tmp_path / "run").metrics.path.read_text().splitlines()[-1])
    assert abs(event["valid_source_gain"]) < 1


def test_targets_of_three_words_are_judged(
    tiny_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first validation rambles, where four words in a row may be right; the second equals the references."""

    def translations(validator: Validator) -> list[str]:
        rambles = not RunFolder(tmp_path / "run").metrics.path.exists() or '"valid_bleu"' not in (
            RunFolder(tmp_path / "run").metrics.path.read_text()
        )
        return [f"{line} lanba merde nisfi lango" if rambles else line for line in validator.references]

    monkeypatch.setattr(Validator, "_translations", translations)
    result = train(tiny_config(tmp_path, longest=3), tmp_path / "run", quiet=True)
    events = [json.loads(line) for line in RunFolder(tmp_path / "run").metrics.path.read_text().splitlines()]
    scores = [event["valid_bleu"] for event in events if "valid_bleu" in event]
    assert 0.0 < scores[0] < scores[1] == pytest.approx(100.0)
    assert result.best_step == 12
