"""`tfm report` as a user calls it: a table, JSON, a page that a browser shows, a card."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import metadata_load

from tests.browser import CHROMIUM, OPTIONS, needs_chromium
from tests.cli.conftest import Outcome
from tests.report.making import make_run

Tfm = Callable[..., Outcome]
WIDE = ["model.dropout=0.2", "training.seed=5", "training.batch_tokens=99", "training.label_smoothing=0.2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("checkpoints")
    make_run(place / "a")
    make_run(place / "b", "model.dropout=0.3", bleu=4.5)
    return place


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs / "a", tmp_path / "a")
    return tmp_path / "a"


def files(place: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_table_of_runs_and_what_else_is_there_is_skipped(
    tfm: Tfm, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    before = files(runs)
    done = tfm("report", *sorted(runs.iterdir()), runs / "b")
    assert done.code == 0
    head, *rows = done.out.splitlines()
    assert head.split()[:3] == ["run", "model.dropout", "steps"]
    assert [Path(row.split()[0]).name for row in rows] == ["b", "a"]
    skipped = [path.name for path in runs.iterdir() if path.is_file()]
    assert done.err.count("\n") == len(skipped)
    assert all(f"skipped: {runs / name}: is not a run folder" in done.err for name in skipped)
    assert tfm("report", *sorted(runs.iterdir()), "--quiet").err == ""
    assert files(runs) == before


def test_one_run_is_a_list_and_json_is_for_programs(tfm: Tfm, runs: Path, tmp_path: Path) -> None:
    assert re.search(r"^valid BLEU +3.50$", tfm("report", runs / "a").out, re.MULTILINE)
    (found,) = json.loads(tfm("report", runs / "a", "--format", "json").out)
    assert found["valid"]["bleu"] == 3.5
    assert tfm("report", runs / "a", "-o", tmp_path / "table.txt").out == ""
    assert (tmp_path / "table.txt").read_text() == tfm("report", runs / "a").out


def test_a_page_and_a_card_at_once(tfm: Tfm, copied: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = tfm("report", copied, "-o", page, "--card", "--device", "cpu")
    assert (done.code, done.out) == (0, f"{copied / 'README.md'}\n")
    assert "states no license; set data.license" in done.err
    assert "no .eval_results/tfm.yaml, which is for test sets on the Hugging Face hub" in done.err
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    front: Any = metadata_load(copied / "README.md")
    known = front["model-index"][0]["results"][0]["metrics"][0]
    assert f"{known['value']:.2f}" in text, "both are of the same translations"
    assert tfm("report", copied, "--card", "--no-evaluate", "--no-doctor", "--quiet").err == ""


@pytest.mark.parametrize("width", [24, 45, 120])
def test_the_table_is_no_wider_than_the_terminal(
    tfm: Tfm, runs: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows are too long, each setting has a row, and as many runs as fit a column."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(runs)
    lines = tfm("report", "a", "b", "-q").out.splitlines()
    assert max(map(len, lines)) <= width
    assert sum("3.50" in line for line in lines) == sum("4.50" in line for line in lines) == 1
    across = {24: ["run", "b"], 45: ["run", "b", "a"], 120: ["run", "model.dropout", "steps"]}
    assert lines[0].split()[:3] == across[width]


def test_what_is_reported_beside_a_card_has_stdout_to_itself(tfm: Tfm, copied: Path) -> None:
    done = tfm("report", copied, "--card", "--format", "json", "--no-evaluate", "--no-doctor")
    assert len(json.loads(done.out)) == 1
    assert f"wrote {copied / 'README.md'}\n" in done.err


def test_a_page_without_evaluating_and_what_is_missing(tfm: Tfm, runs: Path, tmp_path: Path) -> None:
    done = tfm("report", runs / "a", runs / "b", "--format", "html", "--no-evaluate")
    assert (done.code, done.err) == (0, "")
    assert "<h1>2 runs</h1>" in done.out
    assert "Scores" not in done.out
    wide = tfm("report", runs / "a", make_run(tmp_path / "c", *WIDE), "--format", "html", "--no-evaluate").out
    assert '<td dir="auto">training.seed</td>' in wide, "where there are many settings, each has a row"
    lone = make_run(tmp_path / "lone", "data.test.source=gone.de")
    assert "gone.de: no such file" in tfm("report", lone, "-o", tmp_path / "a.html").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{runs}"], "is not a run folder; give one that tfm train made"),
        (["{runs}/none", "{a}"], "none: no such folder"),
        (["{a}/step-00000004"], "is one checkpoint; give the run folder"),
        (["{a}", "--sentences", "0"], "'--sentences'.*allowed: at least 1"),
        (["{a}", "-o", "{a}/config.yaml"], "is read, and the results would take its place"),
        (["{a}", "-o", "{a}/none/report.html"], "the folder .* does not exist"),
        (["{a}", "--format", "pdf"], "'--format'"),
        (["{a}", "--device", "tpu", "-o", "{a}/r.html"], "tpu"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    tfm: Tfm, copied: Path, runs: Path, arguments: list[str], message: str
) -> None:
    before = files(copied)
    said = tfm("report", *(word.format(a=copied, runs=runs) for word in arguments)).refused()
    assert re.search(message, said)
    assert files(copied) == before


def test_a_readme_of_somebody_else_stays(tfm: Tfm, copied: Path, tmp_path: Path) -> None:
    (copied / "README.md").write_text("# Mine\n")
    before = files(tmp_path)
    said = tfm("report", copied, "--card", "-o", tmp_path / "report.html").refused()
    assert "README.md: was not written by tfm, or was edited since; move it away" in said
    assert files(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_card_needs_a_folder_to_write_to(tfm: Tfm, copied: Path) -> None:
    copied.chmod(0o555)
    assert "no permission to write a card here" in tfm("report", copied, "--card").refused()


@pytest.mark.medium
@needs_chromium
@pytest.mark.parametrize("width", [pytest.param(1280, marks=pytest.mark.slow), 390])
def test_a_browser_shows_it_without_network_and_without_scrolling_sideways(
    tfm: Tfm, runs: Path, tmp_path: Path, width: int
) -> None:
    """A page around it measures it: headless Chromium itself has no window narrower than 500 pixels."""
    page, around = tmp_path / "report.html", tmp_path / "around.html"
    assert tfm("report", runs / "a", runs / "b", "-o", page).code == 0
    around.write_text(
        f'<iframe id="inner" src="report.html" width="{width}" height="900" style="border: 0"></iframe><script>'
        'onload = () => { const page = document.getElementById("inner").contentDocument;'
        'const boxes = [...page.querySelectorAll("svg, p, h1, h2, h3, figcaption, .wide")].filter(one => '
        f"one.getBoundingClientRect().right > {width});"
        "const all = page.documentElement;"
        "document.title = JSON.stringify({outside: boxes.length, hidden: all.scrollWidth - all.clientWidth,"
        'pictures: page.querySelectorAll("svg[role=img]").length, fetched: '
        "document.getElementById('inner').contentWindow.performance.getEntriesByType('resource').length}); }</script>"
    )
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        *OPTIONS,
        "--allow-file-access-from-files",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    command += ["--virtual-time-budget=5000", around.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<title>(.*?)</title>", done.stdout)
    assert found is not None, done.stdout[-500:]
    seen = json.loads(found[1])
    assert (seen["hidden"], seen["outside"], seen["fetched"]) == (0, 0, 0)
    assert seen["pictures"] >= 10
