"""What `experiments/training_data.py` trains on, what it counts, and what it makes of results."""

import gzip
import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import TextFiles, load_config

ROOT = Path(__file__).parents[2]
WORDS = {
    "de": ["hund", "frau", "mann", "läuft", "sitzt", "straße", "groß", "klein", "und", "der", "eine", "über"],
    "en": ["dog", "woman", "man", "runs", "sits", "street", "large", "small", "and", "the", "one", "over"],
    "fr": ["chien", "femme", "homme", "court", "assis", "rue", "grand", "petit", "et", "le", "une", "sur"],
}
PAIRS = {"train": 2000, "val": 30, "test_2016_flickr": 60}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("training_data")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus as Multi30k lies there: every line different, the same words on both sides."""
    folder = tmp_path_factory.mktemp("data")
    drawn = random.Random(1)
    for stem, count in PAIRS.items():
        lines = [[drawn.randrange(12) for _ in range(drawn.randrange(9, 15))] for _ in range(count)]
        for language, words in WORDS.items():
            text = "".join(" ".join(words[number] for number in line) + ".\n" for line in lines)
            (folder / f"{stem}.{language}.gz").write_bytes(gzip.compress(text.encode()))
    return folder


@pytest.fixture
def work(module: Any, data: Path, tmp_path: Path) -> Any:
    return module.Work(tmp_path, data, "faulty", 1)


def pairs_of(work: Any) -> list[tuple[str, str]]:
    """The training data that a row's config names."""
    train = load_config(work.config).data.train
    assert isinstance(train, TextFiles)
    source, target = (
        gzip.decompress(Path(path).read_bytes()).decode().splitlines() for path in (train.source, train.target)
    )
    return list(zip(source, target, strict=True))


def test_a_fifth_is_faulty_in_equal_shares(module: Any, work: Any) -> None:
    """As many pairs as before; the sound ones are those of the corpus, in their order; another seed plants others."""
    pairs, planted = module.faulty_pairs(work)
    clean = work.training_pairs()
    assert len(pairs) == len(clean)
    assert len(planted) == module.KINDS
    assert {len(lines) for lines in planted.values()} == {int(module.FAULTY / module.KINDS * len(clean))}
    module.prepare_sound(work)
    sound = pairs_of(work)
    assert len(sound) == len(clean) - module.KINDS * len(planted["markup"])
    assert sound == [pair for pair, was in zip(pairs, clean, strict=True) if pair == was]
    assert module.faulty_pairs(work) == (pairs, planted)
    assert module.faulty_pairs(module.Work(work.folder, work.data, "faulty", 2))[1] != planted


def test_a_third_of_the_test_set_is_in_training(module: Any, work: Any) -> None:
    """All training pairs stay, in another order, and the planted places are those of the leaked test lines."""
    pairs, places = module.leaked_pairs(work)
    test = module.read(work.data, "test_2016_flickr", "de", "en")
    leaked = [test[line] for line in module.leaked_lines(work)]
    assert len(leaked) == 20
    assert sorted(pairs[place - 1] for place in places) == sorted(leaked)
    assert sorted(pairs) == sorted([*work.training_pairs(), *leaked])


def test_all_rows_have_the_same_budget(module: Any, work: Any) -> None:
    """Their configs differ in seed and training data only, so that nothing else makes the difference."""
    trees = []
    for row, prepare in (("clean", module.prepare_clean), ("sound pairs", module.prepare_sound)):
        own = work.other(row)
        prepare(own)
        tree = load_config(own.config).model_dump()
        assert tree["training"]["max_steps"] == module.BUDGET["max_steps"]
        tree["data"].pop("train")
        trees.append(tree)
    assert trees[0] == trees[1]


def test_what_cleaning_left_in_and_took_out(module: Any) -> None:
    """Filtered kinds count, and those that training leaves out anyway; other kinds and other corpora do not."""
    planted = {"markup": {1, 2}, "too_long": {3}, "duplicate_source": {4}}
    findings = [
        {"kind": "markup", "corpus": "train", "lines": [1, 7]},
        {"kind": "length_ratio", "corpus": "train", "lines": [7, 8]},
        {"kind": "too_long", "corpus": "train", "lines": [3]},
        {"kind": "duplicate_source", "corpus": "train", "lines": [4, 9]},
        {"kind": "markup", "corpus": "valid", "lines": [2]},
    ]
    config = {"data": {"filters": ["markup", {"length_ratio": 2.0}]}}
    changed = {1, 2, 3, 5}
    found = module.cleaning(planted, changed, {"pairs": {"train": 10}, "findings": findings}, config)
    assert found["left_in"] == {"markup": 1, "duplicate_source": 1}
    assert found["taken_out"] == {"markup": 1, "length_ratio": 2}
    assert (found["sound"], found["sound_taken_out"]) == (6, 2)


def test_what_is_there_is_not_done_again(module: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted program trains and scores only what has no result yet."""
    calls: list[tuple[str, ...]] = []

    def tfm(log: Path, *arguments: str) -> str:
        calls.append(arguments)
        if arguments[0] == "evaluate" and calls.count(arguments) == 1 and "val" in arguments[3]:
            raise KeyboardInterrupt
        if "--output" in arguments:
            Path(arguments[arguments.index("--output") + 1]).write_text("x\n" * 60)
        return json.dumps({"scores": [{"name": "BLEU", "score": 30.0}, {"name": "chrF2", "score": 50.0}]})

    monkeypatch.setattr(module, "tfm", tfm)
    row = module.CLEAN
    own = work.other("clean")
    with pytest.raises(KeyboardInterrupt):
        module.measure(row, own)
    assert not own.results()
    module.measure(row, own)
    texts = ["val", "test", "test, leaked third", "test, the rest"]
    assert [one["text"] for one in own.results()] == texts
    references = [(own.folder / f"{own.name}.part.reference").read_text().count("\n")]
    assert references == [40]  # the rest, scored last
    before = len(calls)
    module.measure(row, own)
    assert len(calls) == before


def test_the_table_has_a_line_for_each_complete_row(
    module: Any, work: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mean, lowest and highest over the seeds; a row without all its texts has no line; an unknown row is refused."""
    for seed, bleu in ((1, 30.0), (2, 32.0)):
        for name in ("val", "test"):
            module.Work(work.folder, work.data, "clean", seed).keep(name, BLEU=bleu, chrF2=50.0)
    module.Work(work.folder, work.data, "faulty", 1).keep("val", BLEU=20.0, chrF2=40.0)
    module.Work(work.folder, work.data, "cleaned", 1).keep("filters", filters=["markup"])
    arguments = ["training_data.py", "faulty", str(work.folder), "--data", str(work.data), "--table"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert module.main() == 0
    lines = capsys.readouterr().out.splitlines()
    scores = "31.00 (30.00–32.00) | 50.00 (50.00–50.00)"
    assert lines[2:5] == [f"| clean | 2 | {scores} | {scores} |", "", 'cleaned, seed 1: {"filters": ["markup"]}']
    monkeypatch.setattr(sys, "argv", [*arguments, "--only", "spotless"])
    with pytest.raises(SystemExit):
        module.main()
    assert "no row 'spotless'" in capsys.readouterr().err
