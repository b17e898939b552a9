"""The paths of a saved config are found from any folder, and where they are gone, that is said with where they were."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import write_corpus
from transformer_cli.cli.app import main
from transformer_cli.config import load_config
from transformer_cli.storage.origin import ORIGIN

CONFIG = """
data:
  source_language: de
  target_language: en
  train: {source: data/train.de, target: data/train.en}
  valid: {source: data/valid.de, target: data/valid.en}
  test: {source: data/valid.de, target: data/valid.en}
  max_length: 24
  workers: 0
vocabulary: {tokenizer: whitespace}
model: {encoder_layers: 1, decoder_layers: 1, d_model: 16, heads: 2, d_ff: 16}
training:
  {batch_tokens: 256, max_steps: 2, warmup_steps: 2, validate_every: 2, save_every: 2, validation_sentences: 4}
decoding: {beam_size: 1, max_length_ratio: 0.5, max_length_extra: 2}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with data and a run of two steps, started in it; nobody writes into it."""
    project = tmp_path_factory.mktemp("trained") / "project"
    (project / "data").mkdir(parents=True)
    write_corpus(project / "data")
    (project / "my.yaml").write_text(CONFIG)
    before = os.getcwd()
    os.chdir(project)
    try:
        assert main(["train", "my.yaml", "--quiet", "--device", "cpu"]) == 0
    finally:
        os.chdir(before)
    return project


@pytest.fixture
def project(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project that was trained where it is now; the working directory is another folder."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    shutil.copytree(trained, project)
    rewrite_origin(project, project)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return project


def run_of(project: Path) -> Path:
    return project / "checkpoints" / "my"


def rewrite_origin(project: Path, working_directory: Path) -> None:
    path = run_of(project) / ORIGIN
    path.write_text(json.dumps({**json.loads(path.read_text()), "working_directory": str(working_directory)}))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_run_folder_alone_knows_where_it_began(trained: Path) -> None:
    """A checkpoint's bytes are the same wherever it was trained: no file of one names a folder."""
    run = run_of(trained)
    assert json.loads((run / ORIGIN).read_text()) == {"working_directory": str(trained), "from_run": "../.."}
    naming = {name for name, content in files_of(run).items() if str(trained).encode() in content}
    assert naming == {ORIGIN}
    assert load_config(run / "config.yaml") == load_config(trained / "my.yaml", ["decoding.split=always"])  # as found


@pytest.mark.medium
@pytest.mark.parametrize("model", ["run", "checkpoint"])
def test_every_command_that_reads_the_data_of_a_model_finds_it(model: str, project: Path, tfm: Any) -> None:
    path = run_of(project) if model == "run" else run_of(project) / "step-00000002"
    assert tfm("evaluate", path, "--metric", "chrf", "--quiet").code == 0
    assert "no such file" not in tfm("calibrate", path, "--quiet").err  # whether six sentences are enough or not
    assert tfm("plot", "mask", path, "--side", "source", "--quiet").code == 0
    assert tfm("export", path, "--format", "ctranslate2", "--out", "exported").code == 0


@pytest.mark.parametrize("working", ["elsewhere", "project", "below"])
def test_a_saved_config_trains_from_any_folder(
    working: str, project: Path, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "below").mkdir()
    folder = project.parent / working if working == "elsewhere" else project / (working if working == "below" else "")
    monkeypatch.chdir(folder)
    run = run_of(project)
    before = files_of(run)
    longer = ["--set", "training.max_steps=3", "--device", "cpu", "--quiet"]
    done = tfm("train", run / "config.yaml", "--out", run, "--resume", *longer)
    assert done.code == 0, done.err
    after = files_of(run)
    assert (run / "step-00000003").is_dir()
    assert after[ORIGIN] == before[ORIGIN]
    for name in ("config.yaml", "step-00000003/config.yaml"):
        assert after[name] == before["config.yaml"].replace(b"max_steps: 2", b"max_steps: 3")
    new = tfm("build-vocab", run / "config.yaml", "--out", "new", "--quiet")  # another run, of the same data
    assert new.code == 0, new.err


@pytest.mark.medium
@pytest.mark.parametrize("spelling", ["relative", "absolute", "by a link", "through the parent"])
def test_another_spelling_of_the_same_file_is_no_change(
    spelling: str, project: Path, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "link").symlink_to(project / "data")
    data = {"relative": "data", "absolute": project / "data", "by a link": "link", "through the parent": "../data"}
    below = project / "below"
    below.mkdir()
    monkeypatch.chdir(below if spelling == "through the parent" else project)
    (below / "my.yaml").write_text(CONFIG.replace("data/", f"{data[spelling]}/"))
    run = run_of(project)
    before = (run / "config.yaml").read_bytes()
    done = tfm("train", below / "my.yaml", "--out", run, "--set", "training.max_steps=3", "--device", "cpu")
    assert done.code == 0, done.err
    assert "data." not in done.err  # no change of them is reported
    assert (run / "config.yaml").read_bytes() == before.replace(b"max_steps: 2", b"max_steps: 3")
    monkeypatch.chdir(project.parent / "elsewhere")
    assert tfm("evaluate", run, "--metric", "chrf", "--quiet").code == 0


def test_another_file_of_the_same_text_is_a_change(project: Path, tfm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    shutil.copytree("data", "copy")
    other = ["--set", "data.train.source=copy/train.de", "--set", "training.max_steps=3"]
    assert "trained with data.train.source" in tfm("train", "my.yaml", *other).refused()


def test_paths_of_options_start_in_the_working_directory(project: Path, tfm: Any) -> None:
    """As all paths of the command line do, whatever config they change."""
    elsewhere = Path.cwd()
    write_corpus(elsewhere, pairs=50)
    change = ["--set", "data.train={source: train.de, target: train.en}"]
    done = tfm("build-vocab", run_of(project) / "config.yaml", *change, "--out", "new")
    assert done.code == 0, done.err
    data = load_config("new/config.yaml").data
    assert data.train.source == "train.de"  # type: ignore[union-attr]
    assert data.valid.source == str(project / "data/valid.de")  # type: ignore[union-attr]
    assert json.loads(Path("new", ORIGIN).read_text())["working_directory"] == str(elsewhere)


def test_a_vocabulary_built_here_is_trained_from_there(
    project: Path, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = Path.cwd()
    monkeypatch.chdir(project)
    assert tfm("build-vocab", "my.yaml", "--out", "new").code == 0
    monkeypatch.chdir(elsewhere)
    write_corpus(elsewhere)
    other = ["--set", "data.valid={source: valid.de, target: valid.en}"]  # of a vocabulary alone this may change
    done = tfm("train", project / "new/config.yaml", "--out", project / "new", *other, "--device", "cpu")
    assert done.code == 0, done.err
    data = load_config(project / "new/config.yaml").data
    assert (data.train.source, data.valid.source) == ("data/train.de", str(elsewhere / "valid.de"))  # type: ignore[union-attr]


def test_a_project_that_was_moved_is_found_where_it_is_now(project: Path, tfm: Any) -> None:
    moved = project.rename(project.with_name("moved"))
    assert tfm("evaluate", run_of(moved), "--metric", "chrf", "--quiet").code == 0
    done = tfm("train", run_of(moved) / "config.yaml", "--out", run_of(moved), "--set", "training.max_steps=3")
    assert done.code == 0, done.err


def test_a_run_on_another_machine_takes_its_data_from_the_working_directory(project: Path, tfm: Any) -> None:
    run = run_of(project).rename(Path("copied").absolute())
    project.rename(project.with_name("of another machine"))
    shutil.copytree("../of another machine/data", "data")
    assert tfm("evaluate", run, "--metric", "chrf", "--quiet").code == 0
    done = tfm("train", "../of another machine/my.yaml", "--out", run, "--set", "training.max_steps=3")
    assert done.code == 0, done.err
    assert json.loads((run / ORIGIN).read_text())["working_directory"] == str(Path.cwd())


def test_what_is_gone_is_reported_with_where_it_was_and_what_to_do(project: Path, tfm: Any) -> None:
    run = run_of(project)
    shutil.rmtree(project / "data")
    gone = f"data/valid.de is not in {project} any more, where the run began"
    said = tfm("evaluate", run).refused()
    assert said == f"error: data.test.source: {gone}; give --source and --reference\n"
    assert gone in tfm("export", run, "--format", "ctranslate2", "--out", "exported").refused()
    assert gone in tfm("plot", "mask", run, "--side", "source").refused()
    more = ["--out", run, "--set", "training.max_steps=3"]
    gone = f"data.train.source: {project}/data/train.de: no such file"
    assert gone in tfm("train", run / "config.yaml", *more).refused()
    said = tfm("train", project / "my.yaml", *more).refused()
    assert f"data/train.de: no such file; nor is it in {project}, where the run in {run} began" in said


def test_a_config_of_the_users_own_says_where_its_files_were(project: Path, tfm: Any) -> None:
    """Its paths start in the working directory: nothing is looked for anywhere else."""
    run = run_of(project)
    said = tfm("train", project / "my.yaml", "--out", run, "--set", "training.max_steps=3").refused()
    assert said == (
        f"error: data.train.source: data/train.de: no such file, but in {project}, where the run in {run} began: start "
        f"tfm there, or give {run / 'config.yaml'} as CONFIG\n"
    )


def test_runs_of_before_are_read_from_the_working_directory(
    project: Path, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(project)
    (run / ORIGIN).unlink()
    assert "data/valid.de: no such file; give --source and --reference" in tfm("evaluate", run).refused()
    monkeypatch.chdir(project)
    assert tfm("evaluate", run, "--metric", "chrf", "--quiet").code == 0
    assert tfm("train", "my.yaml", "--set", "training.max_steps=3", "--device", "cpu").code == 0
    monkeypatch.chdir(project / "data")
    assert tfm("evaluate", run, "--metric", "chrf", "--quiet").code == 0  # from now on it is known


def test_a_finished_run_needs_no_data(project: Path, tfm: Any) -> None:
    shutil.rmtree(project / "data")
    done = tfm("train", run_of(project) / "config.yaml", "--out", run_of(project))
    assert done.code == 0
    assert "this run is finished" in done.err


def test_a_damaged_record_is_refused(project: Path, tfm: Any) -> None:
    (run_of(project) / ORIGIN).write_text("[")
    assert ORIGIN in tfm("evaluate", run_of(project)).refused()
    assert tfm("translate", run_of(project), "ein hund").code == 0  # which reads no data


def test_the_config_of_a_run_alone_does_not_say_which_run_is_meant(project: Path, tfm: Any) -> None:
    """It is called as that of every run, so checkpoints/config would be the run of all of them."""
    run = run_of(project)
    for path in (run / "config.yaml", run / "step-00000002" / "config.yaml"):
        for command in (["train"], ["train", "--dry-run"], ["build-vocab"]):
            said = tfm(*command, path).refused()
            assert (
                said == f"error: {path}: is the config of a run; add --out {run} to continue it, or name a new folder\n"
            )
    assert not (project / "checkpoints" / "config").exists()
