"""What `experiments/training_data.py` trains on, what it scores again or not, and what it makes of results."""

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
SCORES = json.dumps({"scores": [{"name": "BLEU", "score": 30.0}, {"name": "chrF2", "score": 50.0}]})
PAIRS = {"train": 2000, "val": 30, "test_2016_flickr": 60}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("training_data")


@pytest.fixture
def rows(program: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that prepares what is trained on, with fewer pairs where there are to be few."""
    monkeypatch.setattr(program.rows_of, "FEW", 100)
    return program.rows_of


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
def work(rows: Any, data: Path, tmp_path: Path) -> Any:
    return rows.Work(tmp_path, data, "faulty", 1)


def record(monkeypatch: pytest.MonkeyPatch, rows: Any) -> list[tuple[str, ...]]:
    """Run no command but keep what would have run."""
    calls: list[tuple[str, ...]] = []

    def tfm(log: Path, *arguments: str) -> str:
        calls.append(arguments)
        return SCORES

    monkeypatch.setattr(rows, "tfm", tfm)
    return calls


def pairs_of(train: Any) -> list[tuple[str, str]]:
    """The pairs of a source of a config."""
    assert isinstance(train, TextFiles)
    read = [gzip.decompress(Path(path).read_bytes()).decode().splitlines() for path in (train.source, train.target)]
    return list(zip(*read, strict=True))


def test_a_fifth_is_faulty_in_equal_shares(rows: Any, work: Any) -> None:
    """As many pairs as before; the sound ones are those of the corpus, in their order; another seed plants others."""
    pairs, planted = rows.faulty_pairs(work)
    clean = rows.training_pairs(work)
    assert len(pairs) == len(clean)
    assert len(planted) == rows.KINDS
    assert {len(lines) for lines in planted.values()} == {int(rows.FAULTY / rows.KINDS * len(clean))}
    rows.prepare_sound(work)
    sound = pairs_of(load_config(work.config).data.train)
    assert len(sound) == len(clean) - rows.KINDS * len(planted["markup"])
    assert sound == [pair for pair, was in zip(pairs, clean, strict=True) if pair == was]
    assert rows.faulty_pairs(work) == (pairs, planted)
    assert rows.faulty_pairs(rows.Work(work.folder, work.data, "faulty", 2))[1] != planted


def test_a_third_of_the_test_set_is_in_training(rows: Any, work: Any) -> None:
    """All training pairs stay, in another order, and the planted places are those of the leaked test lines."""
    pairs, places = rows.leaked_pairs(work)
    test = rows.read(work.data, "test_2016_flickr", "de", "en")
    leaked = [test[line] for line in rows.leaked_lines(work)]
    assert len(leaked) == 20
    assert sorted(pairs[place - 1] for place in places) == sorted(leaked)
    assert sorted(pairs) == sorted([*rows.training_pairs(work), *leaked])


@pytest.mark.slow  # of experiments alone
def test_cleaning_is_what_the_real_doctor_does(rows: Any, work: Any) -> None:
    """The config that is trained from differs from the faulty one in its filters alone, and the leak is named."""
    cleaned, leaked = work.other("cleaned"), work.other("leaked")
    rows.prepare_cleaned(cleaned)
    trees = [load_config(one.config).model_dump() for one in (work, cleaned)]
    assert [len(tree["data"].pop("filters")) > 5 for tree in trees] == [False, True]
    assert trees[0] == trees[1]
    rows.prepare_leaked(leaked)
    filters, doctor = work.results()
    assert "encoding_damage" not in filters["left_in"]
    assert filters["sound"] == 2000 - 16 * 25
    assert (doctor["leaked"], doctor["named"]) == (20, 20)


def test_what_cleaning_left_in_and_took_out(rows: Any) -> None:
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
    found = rows.cleaning(planted, {1, 2, 3, 5}, {"pairs": {"train": 10}, "findings": findings}, config)
    assert found["left_in"] == {"markup": 1, "duplicate_source": 1}
    assert found["taken_out"] == {"markup": 1, "length_ratio": 2}
    assert (found["sound"], found["sound_taken_out"]) == (6, 2)


def test_all_rows_have_the_same_budget(rows: Any, work: Any) -> None:
    """Their configs differ in training data and seed only, but that one model of two has the updates of both."""
    trees = []
    for row in ("clean", "sound", "french", "both"):
        own = work.other(row)
        getattr(rows, f"prepare_{row}")(own)
        trees.append(load_config(own.config).model_dump())
        for key in ("data", "vocabulary"):
            trees[-1].pop(key)
    both = trees.pop()
    assert trees[0] == trees[1] == trees[2]
    assert both["training"]["max_steps"] == 2 * trees[0]["training"]["max_steps"]
    assert load_config(own.config).vocabulary.symbols == ["<de>", "<fr>"]


def test_back_translation_takes_the_english_of_the_others(
    rows: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that translates it reads English and knows the few pairs alone, as the row without it does."""
    calls = record(monkeypatch, rows)
    rows.prepare_backtranslated(work)
    few = work.other("few")
    rows.prepare_few(few)
    real, synthetic = load_config(work.config).data.sources.values()
    pairs = pairs_of(load_config(few.config).data.train)
    assert len(pairs) == 100
    assert pairs_of(real) == pairs
    assert isinstance(synthetic, TextFiles)
    assert synthetic.tag == "<bt>"
    assert [call[0] for call in calls] == ["train", "backtranslate"]
    reverse = load_config(calls[0][1])
    assert (reverse.data.source_language, reverse.data.target_language) == ("en", "de")
    assert pairs_of(reverse.data.train) == [pair[::-1] for pair in pairs]
    english = Path(calls[1][3]).read_text(encoding="utf-8").splitlines()
    assert sorted([*english, *(pair[1] for pair in pairs)]) == sorted(pair[1] for pair in rows.training_pairs(work))
    assert Path(calls[1][5]) == Path(synthetic.source).parent


def test_children_start_from_a_parent_that_has_other_pairs(
    program: Any, rows: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One parent for all children of a seed; they may be few, no English caption is in both, and all have the same."""
    monkeypatch.setattr(program.parents, "PARENT_PAIRS", 1500)
    calls = record(monkeypatch, rows)
    configs: dict[str, Any] = {}
    for row in program.EXPERIMENTS["parents"]:
        own = work.other(row.name)
        row.prepare(own)
        configs[row.name] = load_config(own.config)
    parent, new, old, mixed = (
        configs[name] for name in ("parent", "new vocabulary", "old vocabulary", "old vocabulary, old pairs mixed in")
    )
    runs = {str(call[3]) for call in calls if call[0] == "train"}
    assert runs == {new.training.init_from} == {str(work.other("parent").run)}
    assert (new.training.takes_vocabulary, old.training.takes_vocabulary) == (False, True)
    assert (new.data.source_language, old.data.source_language) == ("fr", "de")
    assert (old.vocabulary, new.model.d_model) == (parent.vocabulary, parent.model.d_model)
    theirs, ours = pairs_of(parent.data.train), pairs_of(new.data.train)
    assert (len(theirs), len(ours)) == (1500, 500)
    assert not {target for _, target in theirs} & {target for _, target in ours}
    assert old.data.train == new.data.train == configs["from scratch"].data.train
    assert isinstance(mixed.data.train, list)
    assert mixed.data.train[1].weight < 1 < configs["both with tags"].data.train[0].weight
    assert configs["both with tags"].data.valid.tag == "<fr>"


def test_what_is_there_is_not_done_again(program: Any, rows: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted program trains and scores only what has no result yet."""
    calls: list[tuple[str, ...]] = []

    def tfm(log: Path, *arguments: str) -> str:
        calls.append(arguments)
        if arguments[0] == "evaluate" and calls.count(arguments) == 1 and "val" in arguments[3]:
            raise KeyboardInterrupt
        if "--output" in arguments:
            Path(arguments[arguments.index("--output") + 1]).write_text("x\n" * 60)
        return SCORES

    monkeypatch.setattr(rows, "tfm", tfm)
    row, own = program.EXPERIMENTS["leaked"][0], work.other("clean")
    with pytest.raises(KeyboardInterrupt):
        program.measure(row, own)
    assert not own.results()
    program.measure(row, own)
    assert [one["text"] for one in own.results()] == ["val", "test", "the rest", "leaked third"]
    parts = [(own.folder / f"{own.name}.{part}.reference").read_text() for part in ("the rest", "leaked third")]
    assert [part.count("\n") for part in parts] == [40, 20]
    before = len(calls)
    program.measure(row, own)
    assert len(calls) == before


def test_the_score_without_overlap_is_kept_too(
    program: Any, rows: Any, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `tfm evaluate` gives it, where training has some of the lines, but not all of them."""
    own = json.loads(SCORES)
    rest = {
        "lines": [3, 4],
        "sentences": 58,
        "scores": [{"name": "BLEU", "score": 20.0}, {"name": "chrF2", "score": 40.0}],
    }
    for scores, kept in (
        (rest, 2),
        ({**rest, "lines": []}, 0),
        ({"lines": None, "scores": None}, 0),
        ({**rest, "scores": []}, 0),
    ):
        said = json.dumps({**own, "overlap": scores})
        monkeypatch.setattr(rows, "tfm", lambda log, *arguments, said=said: said)
        before = len(work.results())
        program.measure(program.CLEAN, rows.replace(work, row="clean", seed=before + 1))
        found = [one for one in work.results()[before:] if one["text"].endswith("without overlap")]
        assert len(found) == kept
        assert all((one["BLEU"], one["chrF2"], one["sentences"]) == (20.0, 40.0, 58) for one in found)


def test_texts_in_capitals_and_with_tags(program: Any, rows: Any, work: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source alone is changed, and each text of a model of two languages is said to be in its own."""
    calls = record(monkeypatch, rows)
    program.measure(program.EXPERIMENTS["noise"][0], work.other("clean"))
    source, reference = (Path(calls[-1][calls[-1].index(option) + 1]) for option in ("--source", "--reference"))
    as_written = gzip.decompress(work.text("test_2016_flickr", "de").read_bytes()).decode()
    assert source.read_text(encoding="utf-8") == as_written.upper()
    assert reference == work.text("test_2016_flickr", "en")
    assert "--tag" not in calls[-1]
    program.measure(program.EXPERIMENTS["tags"][2], work.other("German and French"))
    assert calls[-1][-2:] == ("--tag", "<fr>")
    assert calls[-1][3] == str(work.text("test_2016_flickr", "fr"))


def test_the_table_has_a_line_for_each_complete_row(
    program: Any, work: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mean, lowest and highest over the seeds; a row without all its texts has no line; an unknown row is refused."""
    for seed, bleu in ((1, 30.0), (2, 32.0)):
        for name in ("val", "test"):
            program.Work(work.folder, work.data, "clean", seed).keep(name, BLEU=bleu, chrF2=50.0)
    work.keep("val", BLEU=20.0, chrF2=40.0)
    work.other("cleaned").keep("filters", filters=["markup"])
    work.other("German and French").keep("doctor", named=1)
    arguments = ["training_data.py", "faulty", str(work.folder), "--data", str(work.data), "--table"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert program.main() == 0
    lines = capsys.readouterr().out.splitlines()
    scores = "31.00 (30.00–32.00) | 50.00 (50.00–50.00)"
    assert lines[2:6] == [
        f"| clean | 2 | {scores} | {scores} |",
        "",
        'cleaned, seed 1, filters: {"filters": ["markup"]}',
        "",
    ]
    assert lines[0].startswith("| training data | seeds | BLEU, val | chrF2, val | BLEU, test |")
    monkeypatch.setattr(sys, "argv", [*arguments, "--only", "spotless"])
    with pytest.raises(SystemExit):
        program.main()
    assert "no row 'spotless'" in capsys.readouterr().err
