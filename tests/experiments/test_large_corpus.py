"""Large inputs are the corpus itself, then the corpus with changes; the TMX holds what the text files hold."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.data.files import LocalFile
from transformer_cli.data.tmx import TmxCorpus

PAIRS = [("ein Hund & eine Katze", "a dog & a cat"), ("zwei <Hunde>", "two <dogs>"), ("drei Katzen", "three cats")]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = Path(__file__).parents[2] / "experiments"
    monkeypatch.syspath_prepend(folder)
    return importlib.import_module("large_corpus")


def test_each_repetition_differs_by_a_word_on_both_sides(module: Any) -> None:
    made = [*module.changed(PAIRS, 300, seed=1)]
    assert made[:3] == PAIRS
    assert made == [*module.changed(PAIRS, 300, seed=1)] != [*module.changed(PAIRS, 300, seed=2)]
    assert len({*made}) > 250
    for number, pair in enumerate(made[3:], start=3):
        words = [{*text.split()} - {*old.split()} for text, old in zip(pair, PAIRS[number % 3], strict=True)]
        assert words[0] == words[1]
        assert len(words[0]) == 1


def test_tmx_and_text_files_hold_the_same(module: Any, tmp_path: Path) -> None:
    made = [*module.changed(PAIRS, 20, seed=1)]
    module.write_tmx(tmp_path / "a.tmx", ("de", "en"), iter(made))
    assert [*TmxCorpus(LocalFile(tmp_path / "a.tmx"), ("de", "en")).pairs()] == made
    module.write_text(str(tmp_path / "a"), ("de", "en"), iter(made))
    sides = [(tmp_path / f"a.{end}").read_text("utf-8").splitlines() for end in ("de", "en")]
    assert [*zip(*sides, strict=True)] == made
    with pytest.raises(FileExistsError):
        module.write_text(str(tmp_path / "a"), ("de", "en"), iter(made))
