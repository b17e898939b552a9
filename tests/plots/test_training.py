"""The training curves are what metrics.jsonl says; whatever else stands there is refused."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_cli.errors import UserError
from transformer_cli.plots.style import distinct_names, isolated, save
from transformer_cli.plots.training import training_figure

EVENTS: list[dict[str, Any]] = [
    {"step": 100, "epoch": 0, "loss": 7.5, "learning_rate": 0.001, "gradient_norm": 1.0},
    {"step": 200, "epoch": 0, "loss": None, "learning_rate": 0.002, "gradient_norm": None},
    {"step": 200, "valid_loss": 5.25, "valid_perplexity": 80.0, "valid_bleu": 12.5, "valid_chrf": 30.0},
    {"step": 300, "epoch": 1, "loss": 5, "learning_rate": 0.0015},
    {"step": 400, "valid_loss": 5.0, "valid_bleu": 11.5},
]


def write(folder: Path, events: list[dict[str, Any]], more: str = "") -> Path:
    folder.mkdir(parents=True)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "metrics.jsonl").write_text(text + more, encoding="utf-8")
    return folder


def lines(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    return {
        line.get_label(): (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in axes.lines
    }


def test_curves_are_the_events(tmp_path: Path) -> None:
    run = write(tmp_path / "run", EVENTS, more='{"step": 500, "lo')  # cut off by a kill
    loss, bleu, rate = training_figure([run]).axes
    steps, values = lines(loss)["training"]
    assert steps == [100, 200, 300]
    assert (values[0], values[2]) == (7.5, 5.0)
    assert math.isnan(values[1])
    assert lines(loss)["validation"] == ([200, 400], [5.25, 5.0])
    assert lines(bleu) == {"best BLEU 12.5, step 200": ([200, 400], [12.5, 11.5])}
    assert lines(rate) == {"run": ([100, 200, 300], [0.001, 0.002, 0.0015])}
    assert [axes.get_ylabel() for axes in (loss, bleu, rate)] == ["nats per target token", "BLEU", "learning rate"]
    assert rate.get_xlabel().startswith("step")


def test_runs_are_told_apart(tmp_path: Path) -> None:
    runs = [write(tmp_path / name, EVENTS) for name in ("a/run", "b/run", "other")]
    figure = training_figure(runs)
    loss, bleu, rate = figure.axes
    names = distinct_names(runs)
    assert names[0].endswith("a/run")
    assert names[2] == "other"
    assert list(lines(rate)) == names
    assert [line.get_label() for line in loss.lines] == ["training", "validation"] * 3
    assert len(bleu.lines) == 3
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{name}: best BLEU 12.5, step 200" for name in names]
    colours = [line.get_color() for line in legend.get_lines()]
    assert colours == [line.get_color() for line in rate.lines]
    assert colours == [line.get_color() for line in loss.lines[::2]] == [line.get_color() for line in loss.lines[1::2]]
    assert len({line.get_color() for line in loss.lines}) == 3


def test_a_run_without_validation_has_no_panel_of_bleu(tmp_path: Path) -> None:
    figure = training_figure([write(tmp_path / "run", EVENTS[:1])])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["loss", "learning rate"]
    assert save(figure, tmp_path / "a.svg") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no values yet"),
        ('{"step": 5}\n', "has no values yet"),
        ('{"step": 1, "loss": 2.0}\nx\n', "metrics.jsonl:2: is not JSON"),
        ("[" * 100_000 + "\n", "metrics.jsonl:1: is not JSON"),
        ("[1]\n", "metrics.jsonl:1: is not an event"),
        ('{"loss": 1.0}\n', "metrics.jsonl:1: is not an event"),
        ('{"step": 1.5, "loss": 1.0}\n', "metrics.jsonl:1: is not an event"),
        ('{"step": 1, "loss": "low"}\n', "metrics.jsonl:1: is not an event"),
        (f'{{"step": 1{"0" * 400}, "loss": 1}}\n', "metrics.jsonl:1: is not an event"),
        (f'{{"step": 1, "loss": 1{"0" * 400}}}\n', "metrics.jsonl:1: is not an event"),
        (f'{{"step": 1, "loss": 1{"0" * 5000}}}\n', "metrics.jsonl:1: is not JSON"),
    ],
)
def test_what_is_no_event_is_refused_with_its_line(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        training_figure([write(tmp_path / "run", [], content)])


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / "metrics.jsonl").mkdir(parents=True)
    for name, message in {
        "none": "no such folder",
        "file": "is a file",
        "empty": "has no metrics.jsonl",
        "model": "give the run folder",
        "odd": "metrics.jsonl: cannot be read: Is a directory",
    }.items():
        with pytest.raises(UserError, match=message):
            training_figure([tmp_path / name])


def test_names_stay_distinct_short_and_in_order() -> None:
    long = ["x" * 100 + "y" * 60, "z" * 100 + "y" * 60]
    assert distinct_names([Path("a/one"), Path("b/two words")]) == ["one", "two words"]
    assert [len(name) for name in distinct_names([Path("a" * 70 + "1"), Path("2")])] == [60, 1]
    assert distinct_names([Path(name) for name in long]) == long
    assert distinct_names([Path("a\u202eb")]) == ["a<U+202E>b"]
    assert isolated("plain") == "plain"
    assert isolated("\u05d0") == "\u2068\u05d0\u2069"
