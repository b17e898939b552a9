"""What is drawn for validation and test is of the right size and in no way in training; all is written, or nothing."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_tmx import memory, unit
from transformer_cli.config import TextFiles, load_config
from transformer_cli.data import initialize as module
from transformer_cli.data.corpora import open_split
from transformer_cli.data.held_out import normalized
from transformer_cli.data.initialize import initialize
from transformer_cli.errors import UserError

Pair = tuple[str, str]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


def write(pairs: list[Pair], folder: Path = Path()) -> list[Path]:
    files = [folder / "a.de", folder / "a.en"]
    for file, texts in zip(files, zip(*pairs, strict=True), strict=True):
        file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8", newline="\n")
    return files


def numbered(count: int) -> list[Pair]:
    return [(f"Satz {number}", f"sentence {number}") for number in range(count)]


def read(config: Path) -> dict[str, list[Pair]]:
    data = load_config(config).data
    splits: tuple[Literal["train", "valid", "test"], ...] = ("train", "valid", "test")
    return {split: list(open_split(data, split).pairs()) for split in splits if getattr(data, split)}


def sentences(pairs: list[Pair]) -> set[str]:
    return {normalized(text) for pair in pairs for text in pair}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.medium
@pytest.mark.parametrize(("count", "held"), [(10, 1), (39, 1), (100, 5), (5_000, 250), (60_000, 1_000)])
def test_five_percent_each_and_a_thousand_at_most(count: int, held: int) -> None:
    pairs = numbered(count)
    done = initialize(write(pairs))
    found = read(done.config)
    assert {split: len(found[split]) for split in found} == done.sizes
    assert done.sizes == {"train": count - 2 * held, "valid": held, "test": held}
    assert sorted(pair for split in found.values() for pair in split) == sorted(pairs)
    train = set(found["train"])
    assert found["train"] == [pair for pair in pairs if pair in train]  # in their order
    assert done.left_out == []


def test_repeated_pairs_are_drawn_as_often_as_if_they_stood_there_once() -> None:
    done = initialize(write(numbered(300) * 10))
    found = {split: len(pairs) for split, pairs in read(done.config).items()}
    assert found == done.sizes == {"train": 2700, "valid": 15, "test": 15}


words = st.sampled_from(
    ["ein", "Hund", "HUND", "ein  Hund", " ein Hund", "ﬁn", "fin", "", " ", "\ufeff", "a\x85b", "a b"]
)


@settings(max_examples=40)
@given(odd=st.lists(st.tuples(words, words), max_size=30), seed=st.integers(0, 5))
def test_no_sentence_of_theirs_is_in_training(
    odd: list[Pair], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On whichever side, and however it is written; and none of the test set's in the validation set."""
    folder = tmp_path_factory.mktemp("drawn")
    pairs = [*numbered(40), *odd, *((target, source) for source, target in odd)]
    random.Random(seed).shuffle(pairs)
    done = initialize(write(pairs, folder), out=str(folder / "out"), seed=seed)
    found = read(done.config)
    train, valid, test = (sentences(found[split]) for split in ("train", "valid", "test"))
    assert not train & (valid | test)
    assert not valid & test
    assert {split: len(found[split]) for split in found} == done.sizes
    assert all(normalized(text) for split in found.values() for pair in split for text in pair)
    total = sum(done.sizes.values()) + sum(int(text.split()[0]) for text in done.left_out)
    assert total == len(pairs)


def test_the_seed_draws(place: Path) -> None:
    files = write(numbered(1_000))
    drawn = [read(initialize(files, out=str(number), seed=seed).config) for number, seed in enumerate((1, 1, 2))]
    assert drawn[0] == drawn[1]
    assert drawn[0]["test"] != drawn[2]["test"]


def test_what_is_left_out_is_said() -> None:
    pairs = numbered(100)
    test = read(initialize(write(pairs), out="first").config)["test"]
    again = [*pairs, ("", "x"), ("y", " "), (test[0][0].upper(), "another one"), ("another", test[1][1])]
    done = initialize(write(again), out="second")
    assert read(done.config)["test"] == test
    assert done.sizes["train"] == 90
    assert done.left_out == [
        "2 pairs of which one side is empty",
        "2 pairs that repeat a sentence of validation or test",
    ]
    assert "1 pair that repeats a sentence of validation or test" in initialize(write(again[:-1]), out="third").left_out


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (numbered(9), "has 9 pairs of sentences, and fewer than 10"),
        ([*numbered(9), *[("", "x")] * 50], "has 9 pairs"),
        ([("ein Hund", "a dog")] * 100, "says the same again and again"),
        ([(text, "yes") for text, _ in numbered(100)], "says the same again and again"),
    ],
)
def test_what_is_refused_leaves_nothing(pairs: list[Pair], message: str, place: Path) -> None:
    files = write(pairs)
    before = tree(place)
    with pytest.raises(UserError, match=message):
        initialize(files)
    assert tree(place) == before


@pytest.mark.parametrize("name", ["de-en.yaml", "data/de-en", "data"])
def test_what_is_there_is_not_written_over(name: str, place: Path) -> None:
    files = [path.rename(f"train{path.suffix}") for path in write(numbered(20))]
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text("mine")
    before = tree(place)
    with pytest.raises(UserError, match=f"{name}: (exists, and is not written over|cannot write here)"):
        initialize(files)
    assert tree(place) == before


@pytest.mark.parametrize("what", ["config", "folder"])
def test_nor_what_came_in_between(what: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(numbered(20))
    real: Callable[..., None] = module._write

    def slow(*arguments: object) -> None:
        real(*arguments)
        (place / "a.yaml").write_text("mine") if what == "config" else (place / "data" / "a").mkdir(exist_ok=True)

    monkeypatch.setattr(module, "_write", slow)
    with pytest.raises(UserError, match="exists by now"):
        initialize(files)
    left = {path.relative_to(place).as_posix() for path in place.rglob("*")}
    assert left == {"a.de", "a.en", *(["a.yaml"] if what == "config" else ["data", "data/a"])}


def test_a_full_disk_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write(numbered(20))
    before = tree(place)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        initialize(files)
    assert tree(place) == before


@pytest.mark.parametrize(
    ("names", "out", "config"),
    [
        (["memory.tmx"], None, "memory.yaml"),
        (["europarl.de-en.tmx"], None, "europarl.de-en.yaml"),
        (["train.tmx"], None, "de-en.yaml"),
        (["memory.tmx"], "mine", "mine.yaml"),
        (["memory.tmx"], "mine.yaml", "mine.yaml"),
        (["memory.tmx"], "new/folder/mine", "new/folder/mine.yaml"),
    ],
)
def test_what_it_is_called(names: list[str], out: str | None, config: str, place: Path) -> None:
    for name in names:
        text = memory("".join(unit(*pair) for pair in numbered(20))).replace('"en"', '"de"', 1)
        (place / name).write_text(text, encoding="utf-8")
    done = initialize([Path(name) for name in names], out=out)
    assert done.config == Path(config)
    assert len(read(done.config)["train"]) == 18
    assert all(file.parent == Path(config).parent / "data" / Path(config).stem for file in done.files["test"])


@pytest.mark.parametrize("out", ["", ".", "..", "folder/"])
def test_what_is_no_name(out: str) -> None:
    with pytest.raises(UserError, match="is not a name"):
        initialize(write(numbered(20)), out=out)


def test_a_split_that_was_given_stays_where_it_is(place: Path) -> None:
    for split, count in (("train", 20), ("dev", 3), ("test", 4)):
        for path in write(numbered(count)):
            path.rename(f"{split}{path.suffix}")
    done = initialize([Path(f"{split}.{end}") for split in ("train", "dev", "test") for end in ("de", "en")])
    assert {split: len(pairs) for split, pairs in read(done.config).items()} == {"train": 20, "valid": 3, "test": 4}
    assert load_config(done.config).data.valid == TextFiles(source="dev.de", target="dev.en")
    assert done.files == {}
    assert not (place / "data").exists()


def test_what_a_config_cannot_name_is_written_as_text(place: Path) -> None:
    for split, count in (("train", 20), ("test", 5)):
        rows = "".join(f"{source};{target}\r\n" for source, target in numbered(count))
        Path(f"{split}.csv").write_bytes(f"\ufeffde;en\r\n;x\r\n{rows}".encode())
    done = initialize([Path("train.csv"), Path("test.csv")])
    assert read(done.config) == {"train": numbered(20), "test": numbered(5)}
    assert load_config(done.config).data.valid is None
    assert len(done.left_out) == 2
    assert set(done.files) == {"train", "test"}


def test_names_that_yaml_would_take_for_something_else(place: Path) -> None:
    """`no` is Norwegian, not false; and a name may hold what ends a comment or a value."""
    (place / "a.no").write_text("".join(f"{source}\n" for source, _ in numbered(20)))
    (place / "a.en").write_text("".join(f"{target}\n" for _, target in numbered(20)))
    done = initialize([Path("a.no"), Path("a.en")], out="a: {b}, #c\nd'e\"")
    data = load_config(done.config).data
    assert (data.source_language, data.target_language) == ("no", "en")
    assert isinstance(data.test, TextFiles)
    assert Path(data.test.source).read_text().count("\n") == 1


def test_line_ends_inside_a_sentence_do_not_shift_the_others(place: Path) -> None:
    pairs = [*numbered(20), ("a\rb\u2028c", "x\x85y\x1ez")]
    done = initialize(write(pairs))
    for split, files in done.files.items():
        counts = {len(file.read_text(encoding="utf-8").splitlines()) for file in files}
        assert counts == {done.sizes[split]}
