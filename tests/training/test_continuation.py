"""What may change between two sessions of a run, and what may not."""

import re
from pathlib import Path

import pytest

from transformer_cli.config import Config, parse_config
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.continuation import MAY_CHANGE, check_continuation

DATA = """\
data:
  source_language: de
  target_language: en
  train: {source: a.de, target: a.en}
  valid: {source: b.de, target: b.en}
"""
# Written out, so that no entry of MAY_CHANGE comes or goes unseen.
CHANGES = {
    "training.max_steps": "training.max_steps=7",
    "training.max_epochs": "training.max_epochs=7",
    "training.patience": "training.patience=7",
    "training.keep_last": "training.keep_last=7",
    "training.keep_best": "training.keep_best=7",
    "training.average_last": "training.average_last=7",
    "training.average_best": "training.average_best=7",
    "training.save_every": "training.save_every=7",
    "training.max_skipped": "training.max_skipped=7",
    "data.workers": "data.workers=7",
    "decoding": "decoding.beam_size=7",
}
FIXED = [
    *["model.dropout=0.2", "model.d_ff=64", "vocabulary.size=99", "training.seed=7", "training.batch_tokens=999"],
    *["training.factor=2.0", "training.validate_every=7", "data.max_length=99", "data.train.source=c.de"],
    *["training.ema_decay=0.9", "training.r_drop=1.0", "training.init_from=old", "training.freeze=[encoder]"],
    *["training.compile=true", "training.pad_to=8"],
]


def config(*overrides: str) -> Config:
    return parse_config(DATA, "my.yaml", ["training.keep_last=9", "training.keep_best=9", *overrides])


def test_every_key_that_may_change_is_tried() -> None:
    assert set(CHANGES) == set(MAY_CHANGE)


@pytest.mark.parametrize("override", CHANGES.values())
def test_what_may_change_is_named_in_a_note(override: str, tmp_path: Path) -> None:
    key = override.split("=")[0]
    notes = check_continuation(RunFolder(tmp_path), config(), config(override), has_checkpoint=True)
    assert len(notes) == 1
    assert notes[0].startswith(f"{key} changed from ")
    assert notes[0].endswith(" to 7")


@pytest.mark.parametrize("override", FIXED)
def test_any_other_key_is_refused_by_name(override: str, tmp_path: Path) -> None:
    key, value = override.split("=")
    said = {"[encoder]": '["encoder"]', "old": '"old"', "c.de": '"c.de"'}.get(value, value)
    with pytest.raises(UserError, match=rf"trained with {key} = .* now says {re.escape(said)};"):
        check_continuation(RunFolder(tmp_path), config(), config(override), has_checkpoint=True)
