"""Configs that are none, and run folders and vocabularies that do not fit, for every command that reads them."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sampling import one_of_each
from transformer_cli.storage.publishing import MANIFEST
from transformer_cli.storage.run_folder import INDEX, find_model

BOMB = "\n".join(
    f"k{n}: &a{n} [{', '.join(['x' if n == 0 else f'*a{n - 1}'] * 9)}]" for n in range(9)
)  # 9^9 values, were they written out

BAD_CONFIGS = {
    "broken": ("data: {source_language: de\nmodel: [", "line 2 is not valid YAML"),
    "tabs": ("data:\n\tsource_language: de\n", "line 2 is not valid YAML"),
    "a list": ("- data\n- model\n", "holds a list"),
    "a word": ("data", "holds a str"),
    "a python tag": ("!!python/object/apply:os.system ['touch {trace}']\n", "is not valid YAML"),
    "a python tag deep inside": (
        "data: {{train: !!python/object/apply:subprocess.check_call [['touch', '{trace}']]}}\n",
        "is not valid YAML",
    ),
    "a python name": ("data: !!python/name:os.system\n", "is not valid YAML"),
    "an alias bomb": (BOMB + "\n", "more than"),
    "aliases in a circle": ("data: &a {b: *a}\n", "an alias"),
    "empty": ("", "is empty"),
    "a comment alone": ("# nothing\n", "is empty"),
    "two documents": ("data: 1\n---\ndata: 2\n", "another document"),
    "UTF-16": ("\ufeffdata: 1\n", "is not UTF-8"),
    "a control character": ("data: \x01\n", "is not valid YAML"),
}


def write(path: Path, kind: str, trace: Path) -> str:
    """Write the config of this kind; return what must be said of it."""
    text, says = BAD_CONFIGS[kind]
    text = text.format(trace=trace) if "{trace}" in text else text
    path.write_bytes(text.encode("utf-16-le" if kind == "UTF-16" else "utf-8"))
    return says


COMMANDS = [["build-vocab"], ["train"], ["plot", "schedule"]]


@pytest.mark.parametrize(
    ("kind", "command"),
    one_of_each(
        [pytest.param(kind, command, id=f"{kind}-{' '.join(command)}") for command in COMMANDS] for kind in BAD_CONFIGS
    ),
)
def test_a_config_that_is_none_is_refused(
    kind: str, command: list[str], tfm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    says = write(tmp_path / "bad.yaml", kind, tmp_path / "trace")
    said = tfm(*command, "bad.yaml").refused()
    assert said.startswith("error: bad.yaml: ")
    assert says in said
    assert len(said) < 200
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["broken", "a list", "a python tag deep inside", "an alias bomb", "empty"])
def test_the_same_in_a_process_of_its_own(kind: str, tmp_path: Path) -> None:
    says = write(tmp_path / "bad.yaml", kind, tmp_path / "trace")
    result = subprocess.run(
        [sys.executable, "-m", "transformer_cli", "train", "bad.yaml"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: bad.yaml: ")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_debug_shows_where_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFM_DEBUG", "1")
    write(tmp_path / "bad.yaml", "a list", tmp_path)
    command = [sys.executable, "-m", "transformer_cli", "train", "bad.yaml"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    *trace, last = result.stderr.splitlines()
    assert trace[0].startswith("Traceback")
    assert any("parse_config" in line for line in trace)
    assert last.startswith("error: bad.yaml: holds a list")


# --- model folders ------------------------------------------------------------------------------------------------


def fit_manifest(folder: Path) -> None:
    """The hashes of the files as they are now: what is wrong with them must show by itself."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    hashes = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / MANIFEST).write_text(json.dumps({"sha256": hashes}))


def model_with(trial: Any, folder: Path, changes: dict[str, bytes]) -> Path:
    """A copy of a checkpoint with other content in some files, and a manifest that fits them."""
    model = folder / "model"
    shutil.copytree(find_model(trial.run), model)
    for name, content in changes.items():
        (model / name).write_bytes(content)
    fit_manifest(model)
    return model


def vocabulary(*rows: object) -> bytes:
    specials = [["<pad>", 0], ["<unk>", 0], ["<s>", 0], ["</s>", 0]]
    return json.dumps({"format": 1, "tokens": [*specials, *rows]}).encode()


BAD_VOCABULARIES: dict[str, tuple[str, bytes, str]] = {
    "garbage": ("shared.json", bytes(range(256)) * 10, "shared.json: is not a vocabulary (not JSON)"),
    "empty": ("shared.json", b"", "shared.json: is not a vocabulary (not JSON)"),
    "a list": ("shared.json", b"[1, 2]", "shared.json: is not a vocabulary (no list of tokens)"),
    "of another format": ("shared.json", b'{"format": 7, "tokens": []}', "shared.json: has format 7, not 1"),
    "of numbers": ("shared.json", vocabulary(7), "entry 4 is not a string with its count"),
    "with a token twice": ("shared.json", vocabulary(["a", 1], ["a", 1]), "'a' is there twice"),
    "with half a character": ("shared.json", vocabulary(["\ud800", 1]), "half of a surrogate pair"),
    "of another model": ("shared.json", vocabulary(["a", 1]), "does not belong to shared.json beside it"),
    "a subword model of garbage": ("shared.model", bytes(range(256)) * 10, "shared.model: is damaged"),
    "an empty subword model": ("shared.model", b"", "shared.model: is damaged"),
}


@pytest.mark.parametrize("kind", BAD_VOCABULARIES)
def test_a_vocabulary_that_is_none_is_refused(kind: str, trial: Any, tfm: Any, tmp_path: Path) -> None:
    name, content, says = BAD_VOCABULARIES[kind]
    model = model_with(trial, tmp_path, {f"vocab/{name}": content})
    said = tfm("translate", model, "ein hund").refused()
    assert f"{model}/vocab/" in said
    assert says in said


def test_a_vocabulary_of_another_size_than_the_weights_is_refused(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """Of words: nothing beside it says how long it was."""
    content = json.loads((find_model(trial.words) / "vocab" / "shared.json").read_text())
    rows = content["tokens"]
    for number, tokens in enumerate(([*rows, ["more", 1]], rows[:-1], rows + [[f"w{n}", 1] for n in range(50_000)])):
        model = tmp_path / str(number)
        shutil.copytree(find_model(trial.words), model)
        content = {**content, "tokens": tokens}
        (model / "vocab" / "shared.json").write_text(json.dumps(content))
        fit_manifest(model)
        said = tfm("translate", model, "ein hund").refused()
        assert str(model / "model.safetensors") in said
        assert "vocab/" in said


@pytest.mark.parametrize("change", ["d_model: 65536", "d_ff: 1000000", "encoder_layers: 1000", "heads: 1024"])
def test_a_config_of_a_far_larger_model_than_the_weights_is_refused_at_once(
    change: str, trial: Any, tfm: Any, tmp_path: Path
) -> None:
    """Before memory is taken for it, of which no machine has enough."""
    key = change.split(":")[0]
    lines = (find_model(trial.run) / "config.yaml").read_text().splitlines()
    changed = [f"  {change}" if line.strip().startswith(f"{key}: ") else line for line in lines]
    assert changed != lines
    if key == "heads":
        changed = [line.replace("head_dim: null", "head_dim: 1024") for line in changed]
    model = model_with(trial, tmp_path, {"config.yaml": "\n".join(changed).encode()})
    said = tfm("translate", model, "ein hund").refused()
    assert "config.yaml and vocab/ describe another, larger model" in said


@pytest.mark.parametrize(
    "index",
    [
        {"steps": [2, 4, 6], "best": [6], "last": 6},
        {"steps": [], "best": [], "last": 4},
        {"steps": [4, 4], "best": [4], "last": 4},
        {"steps": [-1], "best": [-1], "last": -1},
        {"steps": "4", "best": [4], "last": 4},
        {"steps": [4], "best": [4], "last": 4, "average": "../../elsewhere"},
        [4],
    ],
    ids=str,
)
def test_an_index_that_names_what_is_not_there_is_refused(index: object, trial: Any, tfm: Any, tmp_path: Path) -> None:
    shutil.copytree(trial.run, tmp_path / "run")
    (tmp_path / "run" / INDEX).write_text(json.dumps(index))
    before = set(tmp_path.rglob("*"))
    commands = [["translate", tmp_path / "run", "ein hund"], ["average", tmp_path / "run", "--last", 2]]
    for command in commands:
        said = tfm(*command, *(["--out", tmp_path / "average"] if command[0] == "average" else [])).refused()
        assert INDEX in said
    assert INDEX in tfm("train", trial.config, "--out", tmp_path / "run").refused()
    assert set(tmp_path.rglob("*")) - {tmp_path / "run" / ".lock"} == before
