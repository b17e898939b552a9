"""What is compared: names, runs and files, all of one length, or one line that says which is not."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_cli.errors import UserError
from transformer_cli.evaluation.systems import System, check_models, parse_systems, read_material, read_numbers


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a1", "a2", "b1", "b2", "odd=na,me"):
        Path(name).write_text("one\ntwo\nthree\n")
    Path("short").write_text("one\n")
    Path("blank").write_text("\n \n\n")
    Path("empty").write_text("")
    Path("numbers").write_text("0.5\n-1e3\n7\n")
    Path("model").mkdir()


def test_names_and_runs() -> None:
    assert parse_systems(["A=a1,a2", "b1", "odd=na,me", "./b2", "M=model"]) == [
        System("A", [Path("a1"), Path("a2")]),
        System("b1", [Path("b1")]),
        System("odd=na,me", [Path("odd=na,me")]),
        System("./b2", [Path("b2")]),
        System("M", [Path("model")]),
    ]
    assert parse_systems(["a1,a2", "b1"])[0] == System("a1,a2", [Path("a1"), Path("a2")])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a1"], "a1: is only one system; give two or more"),
        (["A=a1,a2"], "A: is only one system"),
        (["a1", "none"], "none: no such file or folder; give a model, or a file"),
        (["a1", "B=b1,"], "'B=b1,': is not a system"),
        (["a1", "=b1"], "'=b1': is not a system"),
        (["a1", ""], "'': is not a system"),
        (["a1", "./a1"], "a1: is given twice"),
        (["a1", "B=b1,b2,b1"], "b1: is given twice"),
        (["A=a1", "A=b1"], "A: two systems have this name"),
    ],
)
def test_what_is_no_comparison_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_systems(texts)


def test_files_alone() -> None:
    files = [Path("a1"), Path("b1")]
    found = read_material([], files, None, [Path("a2")])
    assert (found.sources, found.references, found.sentences) == (None, [["one", "two", "three"]], 3)
    assert [*found.outputs] == files
    found = read_material([], files, Path("b2"), [Path("a2"), Path("odd=na,me")])
    assert (found.sources, len(found.references)) == (["one", "two", "three"], 2)
    assert read_material([], files, None, []).sentences == 3


@pytest.mark.parametrize(
    ("files", "references", "message"),
    [
        (["a1", "short"], ["a2"], "short: has 1 lines, but a2 has 3"),
        (["a1", "b1"], ["short"], "a1: has 3 lines, but short has 1"),
        (["a1", "b1"], ["empty"], "empty: is empty"),
        (["a1", "b1"], ["blank"], "blank: all lines are empty"),
        (["a1", "b1"], ["a2", "blank"], "blank: all lines are empty"),
    ],
)
def test_files_that_are_not_aligned_are_refused(files: list[str], references: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_material([], [*map(Path, files)], None, [*map(Path, references)])


def model(name: str, source: str = "de", target: str = "en") -> Any:
    data = SimpleNamespace(source_language=source, target_language=target)
    return SimpleNamespace(name=Path(name), folder=Path(name), config=SimpleNamespace(data=data))


def test_models_translate_the_same_languages_and_are_not_the_same() -> None:
    assert check_models([model("a"), model("b")]) == "en"
    with pytest.raises(UserError, match="b: translates de–fr, but a de–en; compare models of the same languages"):
        check_models([model("a"), model("b", target="fr")])
    with pytest.raises(UserError, match="a: is the same model as a"):
        check_models([model("a"), model("a")])


SYSTEMS = [System("A", [Path("a1"), Path("a2")]), System("B", [Path("b1")])]


def test_numbers_are_those_of_the_runs_in_their_order() -> None:
    Path("other").write_text("1\n2\n3\n")
    name, columns = read_numbers("COMET=numbers,other,numbers", SYSTEMS, 3)
    assert name == "COMET"
    assert columns == [[[0.5, -1000.0, 7.0], [1.0, 2.0, 3.0]], [[0.5, -1000.0, 7.0]]]
    assert all(math.isfinite(number) for runs in columns for run in runs for number in run)


@pytest.mark.parametrize(
    ("text", "sentences", "message"),
    [
        ("COMET", 3, "--scores 'COMET': give NAME=FILE,FILE"),
        ("=a1,a2,b1", 3, "give NAME=FILE,FILE"),
        ("COMET=numbers,,b1", 3, "give NAME=FILE,FILE"),
        ("COMET=numbers,numbers", 3, "COMET: names 2 files for 3 runs"),
        ("COMET=numbers,numbers,a1", 3, "a1:1: 'one' is not a finite number"),
        ("COMET=numbers,numbers,nan", 3, "nan:2: 'nan' is not a finite number"),
        ("COMET=numbers,numbers,none", 3, "none: no such file"),
        ("COMET=numbers,numbers,numbers", 4, "numbers: has 3 lines for 4 sentences"),
        ("COMET=numbers,numbers,numbers", 2, "numbers: has 3 lines for 2 sentences"),
    ],
)
def test_numbers_that_are_none_are_refused(text: str, sentences: int, message: str) -> None:
    Path("nan").write_text("1\nnan\n2\n")
    with pytest.raises(UserError, match=message):
        read_numbers(text, SYSTEMS, sentences)
