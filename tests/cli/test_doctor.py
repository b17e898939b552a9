"""`tfm doctor` as a user calls it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Outcome
from tests.data.quality.conftest import ROOT, read

Tfm = Callable[..., Outcome]
CONFIG = """# mine
data:
  source_language: de
  target_language: en
  train: {source: train.de, target: train.en}  # text
model: {preset: auto}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """30 pairs, every tenth of which is a copy, and a config."""
    pairs = [(f"der Hund {'a' * place} bellt", f"dog {'a' * place} barks now") for place in range(30)]
    pairs[::10] = [(f"ein {'b' * place} Kater <script>", f"ein {'b' * place} Kater <script>") for place in range(3)]
    for side, language in enumerate(("de", "en")):
        (tmp_path / f"train.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    (tmp_path / "my.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def test_it_reports_and_writes_nothing(tfm: Tfm, place: Path) -> None:
    before = files(place)
    done = tfm("doctor", "my.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("train     30 pairs\n\nSerious")
    assert "identical_sides     3 (10.0%)" in done.out
    assert "lines 1, 11, 21" in done.out
    assert files(place) == before


def test_json_and_html(tfm: Tfm, place: Path) -> None:
    report = json.loads(tfm("doctor", "my.yaml", "--format", "json").out)
    copies = next(one for one in report["findings"] if one["kind"] == "identical_sides")
    assert {"kind", "corpus", "count", "lines", "examples", "advice"} <= {*copies}
    assert (copies["corpus"], copies["count"], copies["lines"]) == ("train", 3, [1, 11, 21])
    assert tfm("doctor", "my.yaml", "--format", "html", "-o", "report.html").out == ""
    text = (place / "report.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_two_files_need_no_config(tfm: Tfm, place: Path) -> None:
    done = tfm("doctor", "--source", "train.de", "--target", "train.en")
    assert done.code == 0
    assert "identical_sides" in done.out


def test_strict_says_so_by_its_exit_code(tfm: Tfm, place: Path) -> None:
    assert tfm("doctor", "my.yaml", "--strict").code == 1
    assert tfm("doctor", "my.yaml", "--strict", "--set", "data.max_length=9").code == 1
    (place / "train.de").write_text("der Hund bellt laut\n")
    (place / "train.en").write_text("the dog barks loudly\n")
    assert tfm("doctor", "my.yaml", "--strict").code == 0


def test_filters_are_proposed_and_written(tfm: Tfm, place: Path) -> None:
    proposed = tfm("doctor", "my.yaml", "--propose").out
    assert proposed.startswith("  filters: [identical_sides")
    done = tfm("doctor", "my.yaml", "--write", "clean.yaml")
    assert "wrote clean.yaml; next: tfm train clean.yaml" in done.err
    text = (place / "clean.yaml").read_text()
    assert "# mine" in text
    assert "# text" in text
    assert yaml.safe_load(text)["data"]["filters"] == yaml.safe_load(proposed)["filters"]
    assert tfm("doctor", "clean.yaml").code == 0
    again = tfm("doctor", "my.yaml", "--write", "clean.yaml").refused()
    assert "clean.yaml: exists" in again
    assert (place / "clean.yaml").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a CONFIG, or --source FILE and --target FILE"),
        (["--source", "train.de"], "give a CONFIG, or --source FILE and --target FILE"),
        (["my.yaml", "--source", "train.de", "--target", "train.en"], "give a CONFIG, or --source"),
        (["no.yaml"], "no.yaml"),
        (["--source", "no.de", "--target", "train.en"], "no.de: no such file"),
        (["--source", "train.de", "--target", "short.en"], "train.de:2: has no counterpart"),
        (["--source", "train.de", "--target", "train.en", "--write", "a.yaml"], "--write a.yaml: needs a CONFIG"),
        (["my.yaml", "--write", "no/a.yaml"], "no/a.yaml: cannot be written: the folder"),
        (["my.yaml", "--write", "a.yaml", "-o", "a.yaml"], "a.yaml: is named twice"),
        (["my.yaml", "-o", "train.de"], "train.de: is read"),
        (["my.yaml", "-o", "my.yaml"], "my.yaml: is read"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    tfm: Tfm, place: Path, arguments: list[str], message: str
) -> None:
    (place / "short.en").write_text("a\n")
    before = files(place)
    assert re.search(message, tfm("doctor", *arguments).refused())
    assert files(place) == before


@pytest.mark.medium
def test_each_source_of_a_list_is_judged_by_itself(tfm: Tfm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is of the other direction: it has languages of its own, and shares texts with test crosswise."""
    monkeypatch.chdir(tmp_path)
    sample = [*dict.fromkeys(read(*(ROOT / "data/sample" / f"train.{end}" for end in ("de", "en"))))]
    test, ours, other = sample[:20], sample[100:1100], [(target, source) for source, target in sample[1100:2000]]
    ours[6] = (ours[6][1], ours[6][0])
    other[41] = (test[0][1], "etwas")
    other[42] = ("something", test[1][0])
    other[80:83] = [(source, source) for source, _ in other[80:83]]
    for name, pairs in (("ours", ours), ("other", other), ("test", test)):
        for place, end in enumerate("ab"):
            (tmp_path / f"{name}.{end}").write_text("".join(f"{pair[place]}\n" for pair in pairs))
    (tmp_path / "my.yaml").write_text(
        "data:\n  source_language: de\n  target_language: en\n  train:\n"
        "    - {source: ours.a, target: ours.b, weight: 2}  # ours\n"
        "    - {source: other.a, target: other.b, tag: <2de>}\n"
        "  test: {source: test.a, target: test.b}\n"
    )
    report = json.loads(tfm("doctor", "my.yaml", "--format", "json").out)
    assert report["pairs"] == {"train.0": 1000, "train.1": 900, "test": 20}
    found = {(one["kind"], one["corpus"]): one for one in report["findings"]}
    assert found["swapped_sides", "train.0"]["lines"] == [7]
    assert found["swapped_sides", "train.0"]["file"] == "ours.a, ours.b"
    assert found["identical_sides", "train.1"]["lines"] == [81, 82, 83]
    assert found["identical_sides", "train.1"]["examples"][0]["source"] == other[80][0]
    assert {42, 43} <= {*found["overlap_test", "train.1"]["lines"]}
    assert ("swapped_sides", "train.1") not in found
    assert len(found.get(("wrong_language", "train.1"), {"lines": []})["lines"]) < 5
    assert found["too_small", "train"]["count"] == 1900
    text = tfm("doctor", "my.yaml").out
    assert text.startswith(
        "train.0   1,000 pairs  ours.a, ours.b\ntrain.1   900 pairs  other.a, other.b\ntest      20 pairs"
    )
    assert "in train.1: the translation is a copy" in text
    assert "train.1: 900 pairs of other.a, other.b" in tfm("doctor", "my.yaml", "--format", "html").out
    assert tfm("doctor", "my.yaml", "--write", "clean.yaml").code == 0
    assert "# ours" in (tmp_path / "clean.yaml").read_text()
    clean = yaml.safe_load((tmp_path / "clean.yaml").read_text())["data"]["train"]
    assert "swapped_sides" in clean[0]["filters"]
    assert all(kind in clean[1]["filters"] for kind in ("identical_sides", "overlap_test"))
    assert (clean[0]["weight"], clean[1]["tag"]) == (2, "<2de>")
    left_out = tfm("doctor", "my.yaml", "--write", "b.yaml", "--set", "data.train={source: ours.a, target: ours.b}")
    assert "my.yaml has other sources than --set data.train" in left_out.refused()
    assert not (tmp_path / "b.yaml").exists()
