"""What `experiments/speed_quality.py` takes from its command line, and what it makes of times and scores."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    """Imports a module of the experiments by its name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module


def entry(load: Load, text: str, bleu: list[float], seconds: list[float]) -> Any:
    made = load("speed_quality").parse_model(text, "ctranslate2", "int8", 5)
    made.bleu, made.seconds, made.shape = bleu, {64: seconds, 1: [10 * one for one in seconds]}, "6+1"
    return made


@pytest.mark.parametrize(
    ("text", "engine", "compute_type", "search"),
    [
        ("a=x/y", "ctranslate2", "int8", {"beam_size": 5}),
        ("a b=x/y,beam=1", "ctranslate2", "int8", {"method": "greedy"}),
        ("a=x/y,engine=torch,compute_type=", "torch", None, {"beam_size": 5}),
        ("a=x/y,length_penalty=0.6,beam=2", "ctranslate2", "int8", {"beam_size": 2, "length_penalty": 0.6}),
        ("a=x/y,iterations=4,length_candidates=3", "ctranslate2", "int8", {"iterations": 4, "length_candidates": 3}),
    ],
)
def test_a_model_says_how_it_is_decoded(
    text: str, engine: str, compute_type: str | None, search: dict[str, object], load: Load
) -> None:
    found = load("speed_quality").parse_model(text, "ctranslate2", "int8", 5)
    assert (found.engine, found.compute_type, found.search) == (engine, compute_type, search)
    assert found.label == text.partition("=")[0]
    assert found.folders == [Path("x/y")]
    settings = found.settings(Path("x/y"))
    assert json.loads(json.dumps(settings)) == settings


@pytest.mark.parametrize("text", ["a", "=x", "a=", "a=x,beem=1", "a=x,beam", "a=x,beam=two", "a=x,method=greedy"])
def test_what_is_no_model_is_refused(text: str, load: Load) -> None:
    with pytest.raises(ValueError, match=f"^{text}: "):
        load("speed_quality").parse_model(text, "ctranslate2", "int8", 5)


def test_one_label_is_one_row_of_several_seeds(load: Load) -> None:
    program = load("speed_quality")
    models = [program.parse_model(text, "torch", None, 5) for text in ("a=1", "b=2", "a=3")]
    assert [(one.label, one.folders) for one in program.gather(models)] == [
        ("a", [Path("1"), Path("3")]),
        ("b", [Path("2")]),
    ]
    other = program.parse_model("a=4,beam=2", "torch", None, 5)
    with pytest.raises(ValueError, match="a: is decoded in two ways"):
        program.gather([*models, other])


def test_ratios_are_taken_round_by_round(load: Load) -> None:
    """A machine that slows down for a round slows both."""
    program = load("speed_quality")
    base = entry(load, "base=x", [40.0], [0.1, 0.4, 0.1])
    fast = entry(load, "fast=y,beam=1", [39.0, 41.0], [0.05, 0.2, 0.05])
    assert program.ratio(fast, base, 64) == program.ratio(fast, base, 1) == 2.0
    head, _, *rows = program.table([base, fast], base, [64, 1])
    cells = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in (head, *rows)]
    assert len({len(row) for row in cells}) == 1
    assert cells[1][:7] == ["base", "6+1", "beam 5, ctranslate2 int8", "40.00", "+0.00", "10", "6–10"]
    assert cells[2][:6] == ["fast", "6+1", "greedy, ctranslate2 int8", "40.00 (39.00–41.00)", "+0.00", "20"]
    assert cells[2][7] == cells[2][10] == "2.00"


def test_the_picture_shows_each_model_in_each_panel(load: Load, tmp_path: Path) -> None:
    program, picture = load("speed_quality"), load("speed_quality_picture")
    base = entry(load, "base=x", [40.0], [0.1, 0.2, 0.1])
    others = [entry(load, f"other {n}=y,iterations={n}", [30.0 + n], [0.1 / n, 0.1 / n, 0.2 / n]) for n in (1, 4)]
    entries = [base, *others]
    figure = picture.draw({batch: program.points(entries, batch) for batch in (64, 1)}, "base")
    assert len(figure.axes) == 2
    for axes in figure.axes:
        assert {text.get_text() for text in axes.texts} >= {"base", "other 1", "other 4"}
        assert sorted(len(container.lines[0].get_xdata()) for container in axes.containers) == [1, 2]
    program.save(figure, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


def test_the_program_finds_its_section_of_the_page(load: Load) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert "| a | b |" in load("page").replace_section(page, "experiments/speed_quality.py", ["| a | b |"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "a=x", "--baseline", "b"], "--baseline b: no --model has that label"),
        (["--model", "a"], "--model a: write it as LABEL=FOLDER"),
        (["--model", "a=x", "--rounds", "1"], "--rounds: two at least"),
    ],
)
def test_a_wrong_command_is_refused(
    arguments: list[str], message: str, load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["speed_quality.py", "--source", "s", "--reference", "r", *arguments])
    with pytest.raises(SystemExit) as leaving:
        load("speed_quality").read_arguments()
    assert leaving.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_it_measures(tmp_path: Path) -> None:
    """The program itself, on a model that is trained for a few steps."""
    for name, text in (("a", "ein hund\nzwei katzen\n" * 30), ("b", "a dog\ntwo cats\n" * 30)):
        (tmp_path / name).write_text(text)
    (tmp_path / "my.yaml").write_text(
        "data: {source_language: de, target_language: en, train: {source: a, target: b}, valid: {source: a, target: b},"
        " workers: 0, max_length: 40}\n"
        "vocabulary: {tokenizer: whitespace}\n"
        "model: {encoder_layers: 1, decoder_layers: 1, d_model: 16, heads: 2, d_ff: 16}\n"
        "training: {max_steps: 2, validate_every: 2, batch_tokens: 200, warmup_steps: 1}\n"
    )
    tfm = [sys.executable, "-m", "transformer_cli", "train", "my.yaml", "--out", "run", "--device", "cpu", "--quiet"]
    subprocess.run(tfm, cwd=tmp_path, check=True, capture_output=True)
    options = ["--source", "a", "--reference", "b", "--rounds", "2", "--beam", "2", "--picture", "out.png"]
    models = ["--model", "beam=run", "--model", "greedy=run,beam=1", "--model", "torch=run,engine=torch"]
    command = [sys.executable, str(EXPERIMENTS / "speed_quality.py"), *options, *models]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == ["| model", "| ---", "| beam", "| greedy", "| torch"]
    assert "| 1+1 | greedy, ctranslate2 int8 |" in rows[3]
    assert (tmp_path / "out.png").stat().st_size > 10_000
