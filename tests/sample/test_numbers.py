"""The numbers of the copy task are the same every time, share nothing, and can be learned without a mistake."""

from pathlib import Path

import pytest

from data.sample.make.numbers import DIGITS, SPLITS, main, numbers, write_numbers
from transformer_cli import Translator
from transformer_cli.config import load_config
from transformer_cli.training.run import train

CONFIG = Path(__file__).parents[2] / "configs" / "copy_task.yaml"


def test_numbers_are_new_and_of_every_length() -> None:
    found = numbers(2000)
    assert found == numbers(2000) != numbers(2000, seed=2)
    assert len(set(found)) == 2000
    assert {len(number) for number in found} == set(DIGITS)
    assert all(number.isascii() and number.isdigit() for number in found)


def test_both_sides_are_equal_and_splits_share_nothing(tmp_path: Path) -> None:
    main([str(tmp_path / "numbers")])
    lines = {path.name: path.read_text(encoding="utf-8").split("\n") for path in (tmp_path / "numbers").iterdir()}
    for split, size in SPLITS.items():
        assert lines[f"{split}.source"] == lines[f"{split}.target"]
        assert len(lines[f"{split}.source"]) == size + 1  # and the last line end
    assert len({number for text in lines.values() for number in text if number}) == sum(SPLITS.values())


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "file")])
    assert f"error: {tmp_path / 'file'}: cannot write" in capsys.readouterr().err


@pytest.mark.slow
def test_the_copy_task_is_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_numbers(Path("data/copy_task"))
    run = train(load_config(CONFIG), "copy", quiet=True).run
    wanted = Path("data/copy_task/test.source").read_text(encoding="utf-8").splitlines()
    found = Translator.load(run).translate(wanted)
    right = sum(a == b for a, b in zip(found, wanted, strict=True))
    assert right >= 0.99 * len(wanted)
