"""The demo corpus is the same every time, its splits share nothing, and its grammar agrees."""

import re
from itertools import islice
from pathlib import Path

import pytest

from transformer_cli.demo_corpus import NOUNS, SPLITS, demo_pairs, main, write_demo_corpus


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    write_demo_corpus(tmp_path / "a")
    write_demo_corpus(tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == sorted(f"{split}.{language}" for split in SPLITS for language in ("de", "en"))
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in files)
    assert list(islice(demo_pairs(1), 9)) != list(islice(demo_pairs(2), 9))


def test_splits_are_aligned_and_share_nothing(tmp_path: Path) -> None:
    write_demo_corpus(tmp_path)
    pairs = {
        split: list(zip(lines(tmp_path / f"{split}.de"), lines(tmp_path / f"{split}.en"), strict=True))
        for split in SPLITS
    }
    assert {split: len(found) for split, found in pairs.items()} == SPLITS
    assert len({pair for found in pairs.values() for pair in found}) == sum(SPLITS.values())


def test_sentences_are_sentences() -> None:
    for german, english in islice(demo_pairs(), 2000):
        for text in (german, english):
            assert re.fullmatch(r"[A-ZÄÖÜ0-9].*[^ ][.?]", text), text
            assert "  " not in text
        assert german.endswith("?") == english.endswith("?")
        assert re.findall(r"\d+", german) == re.findall(r"\d+", english)  # days, hours and years stay as they are


def test_articles_agree() -> None:
    genders = {noun.german: noun.gender for noun in NOUNS}
    for german, english in islice(demo_pairs(), 2000):
        for article, noun in re.findall(r"\b(ein|eine|einen|das|den) \w+ (\w+)", german):
            if noun in genders:
                assert {"ein": "n", "eine": "f", "einen": "m", "das": "n", "den": "m"}[article] == genders[noun]
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", english)


def test_the_program_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "demo")]) == 0
    assert "12,000 train" in capsys.readouterr().err


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
    (tmp_path / "file").write_text("")
    assert main([str(tmp_path / "file" / "demo")]) == 2
    assert re.fullmatch(r"error: .*file.demo: cannot write .*\n", capsys.readouterr().err)
