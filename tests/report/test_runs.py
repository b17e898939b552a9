"""A table of runs: what differs in their settings, and what they came to."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.making import make_run, write_events
from transformer_cli.build import count_parameters as count_in_torch
from transformer_cli.build import load_model
from transformer_cli.config import config_of_tree
from transformer_cli.errors import UserError
from transformer_cli.report.runs import NotARun, Run, as_json, in_order, read_run, table
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "a", "training.seed=7")
    make_run(place / "b", "model.dropout=0.3", "training.guided_attention={}", bleu=4.5, seconds=7300)
    return place


def test_columns_are_the_settings_that_differ(folder: Path) -> None:
    head, *rows = table(in_order([read_run(folder / "a"), read_run(folder / "b")]))
    assert head[0] == "run"
    assert [name for name in head if "." in name and not name.startswith("training.guided")] == [
        "model.dropout",
        "training.seed",
    ], "defaults are filled in, and what is the same is left out"
    b, a = (dict(zip(head, row, strict=True)) for row in rows)
    assert (a["run"], b["run"]) == (str(folder / "a"), str(folder / "b")), "the highest BLEU comes first"
    assert (a["model.dropout"], b["model.dropout"]) == ("0.1", "0.3")
    assert (a["training.seed"], b["training.seed"]) == ("7", "1")
    assert (a["steps"], a["time"], b["time"]) == ("4", "2 min", "2 h 2 min")
    assert (a["valid BLEU"], a["valid chrF"], a["valid loss"]) == ("3.50", "20.50", "5.25")
    assert a["parameters"] == b["parameters"] == f"{count_in_torch(load_model(folder / 'a').model):,}"


def trained_on(run: Run, train: object) -> Run:
    return replace(run, config=config_of_tree(run.config.model_dump(mode="json") | {"data": {
        **run.config.data.model_dump(mode="json"), "train": train}}, "other"))  # fmt: skip


def test_what_a_config_does_not_have_is_blank(folder: Path) -> None:
    """Sources of different kinds have different keys: neither has the other's."""
    one = read_run(folder / "a")
    head, *rows = table([one, trained_on(one, {"file": "a.tsv"})])
    places = [place for place, name in enumerate(head) if name.startswith("data.train")]
    assert len(places) > 1
    assert not any(cell == "null" for row in rows for cell in row)
    assert all("" in (rows[0][place], rows[1][place]) for place in places)


def test_a_source_and_a_list_of_sources_are_one_setting_and_long_ones_are_short(folder: Path) -> None:
    one = read_run(folder / "a")
    place = f"/{'long/' * 20}"
    several = trained_on(one, [{"source": f"{place}a.de", "target": f"{place}a.en", "weight": 2}])
    found = dict(zip(*table([one, several])[::2], strict=True))
    assert [name for name in found if name.startswith("data.")] == ["data.train"]
    assert all(len(cell) <= 24 for name, cell in found.items() if name != "run")
    sources = [trained_on(one, {"source": f"{place}{name}.de", "target": f"{place}x.en"}) for name in ("a", "b")]
    head, *rows = table(sources)
    assert "data.train.target" not in head
    assert [row[head.index("data.train.source")] for row in rows] == ["…a.de", "…b.de"], "what differs"


def test_settings_that_differ_in_their_middle_are_told_apart(folder: Path) -> None:
    one = read_run(folder / "a")
    places = [f"/data/{name}/train.filtered.de.gz" for name in ("multi30k/long/name", "faulty", "cleaned")]
    head, *rows = table([trained_on(one, {"source": place, "target": "x.en"}) for place in places])
    assert len({row[head.index("data.train.source")] for row in rows}) == 3


def test_a_line_of_the_table_is_a_line_whatever_a_folder_is_called(folder: Path) -> None:
    one = read_run(folder / "a")
    _, row = table([replace(one, path=Path("new\nline\x1b"))])
    assert row[0] == r"new\x0aline\x1b"


def test_json_has_the_same(folder: Path) -> None:
    a, b = json.loads(as_json([read_run(folder / "a"), read_run(folder / "b")]))
    assert a["config"]["model.dropout"] == 0.1
    assert b["config"]["model.dropout"] == 0.3
    assert a["valid"] == {"bleu": 3.5, "chrf": 20.5, "loss": 5.25}
    assert (a["seconds"], a["hardware"], a["finished"]) == (100.0, ["cpu (Z80, 1 thread), fp32"], None)


def test_a_run_that_has_only_begun_and_one_without_state(folder: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(folder / "a" / "config.yaml", begun)
    run = read_run(begun)
    assert (run.steps, run.model, run.parameters, run.seconds, run.hardware) == (0, None, None, None, [])
    write_events(begun, {"step": 5, "loss": 1.0})
    assert read_run(begun).steps == 5
    write_events(begun, {"step": 0, "hardware": "cpu (Z80, 1 thread), fp32"})
    run = read_run(begun)
    assert (run.steps, run.hardware, run.best) == (0, ["cpu (Z80, 1 thread), fp32"], {}), "killed before its first step"
    assert len(table([run, read_run(folder / "a")])) == 3, "others are shown beside it"
    shutil.copytree(folder / "a", tmp_path / "copy")
    (tmp_path / "copy" / "step-00000004" / "training.json").unlink()
    (tmp_path / "copy" / "config.yaml").unlink()
    run = read_run(tmp_path / "copy")
    assert (run.steps, run.seconds) == (4, None)
    assert run.config == read_run(folder / "a").config


def test_averaged_weights_have_the_score_they_were_kept_for(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "averaged"
    shutil.copytree(folder / "a", path)
    (path / "step-00000004").rename(path / "average-00000004")
    RunFolder(path).write_index(
        CheckpointIndex(steps=[2], best=[2], last=2, average="average-00000004", average_score=8.25)
    )
    assert read_run(path).best == {"valid_bleu": 8.25}


def test_what_is_no_run_is_told_from_what_is_damaged(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", folder / "a" / "config.yaml", folder / "a" / "step-00000004"):
        with pytest.raises(NotARun, match=path.name):
            read_run(path)
    with pytest.raises(UserError, match="no such folder") as error:
        read_run(tmp_path / "none")
    assert not isinstance(error.value, NotARun)
    path = tmp_path / "damaged"
    shutil.copytree(folder / "a", path)
    (path / "step-00000004" / "model.safetensors").write_bytes(b"no")
    with pytest.raises(UserError, match=r"model.safetensors: cannot be read .*copy it again"):
        read_run(path)
