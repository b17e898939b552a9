"""Every command and program that the README shows works, run for real in a folder of its own.

Training is shortened by `--set`; commands that need the hub or a GPU run until their config is validated.
"""

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from transformer_cli.cli.app import main
from transformer_cli.demo_corpus import write_demo_corpus

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = {
    "vocabulary.size": "400",
    "model": "{encoder_layers: 1, decoder_layers: 1, d_model: 16, heads: 2, d_ff: 32}",
    "training.max_steps": "6",
    "training.warmup_steps": "2",
    "training.save_every": "2",
    "training.validate_every": "6",
    "training.validation_sentences": "4",
    "data.workers": "0",
}
MULTI30K = {"train": "train", "val": "valid", "test_2016_flickr": "test"}  # its names and the demo corpus's


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The shell commands shown, in order, without comments."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    return [" ".join(line.partition(" #")[0].split()) for line in lines if line and not line.startswith("#")]


def needs_the_hub(command: str) -> bool:
    """Whether a config shown as it is takes its data from the hub."""
    config = re.search(r"configs/\S+\.yaml", command)
    return bool(config and "data.train=" not in command and "dataset:" in (ROOT / config[0]).read_text("utf-8"))


def shortened(arguments: list[str]) -> list[str]:
    """The same command on a smaller model."""
    if arguments[0] not in ("train", "build-vocab"):
        return arguments
    return [*arguments, *(word for key, value in SMALLER.items() for word in ("--set", f"{key}={value}"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's configs and the files that the README's examples name."""
    folder = tmp_path_factory.mktemp("readme")
    write_demo_corpus(folder / "whole")
    for split in MULTI30K.values():
        for language in ("de", "en"):
            text = (folder / "whole" / f"{split}.{language}").read_bytes()
            few = b"".join(text.splitlines(keepends=True)[: 400 if split == "train" else 8])
            (folder / f"{split}.{language}").write_bytes(few)
    (folder / "multi30k").mkdir()
    for name, split in MULTI30K.items():
        for language in ("de", "en"):
            content = gzip.compress((folder / f"{split}.{language}").read_bytes())
            (folder / "multi30k" / f"{name}.{language}.gz").write_bytes(content)
    shutil.copytree(ROOT / "configs", folder / "configs")
    (folder / "my.yaml").write_text(blocks("yaml")[0], encoding="utf-8")
    return folder


def run_piped(command: str) -> str:
    """A command with a pipe, by a shell that finds `tfm` beside this Python; returns its stdout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_make(target: str) -> None:
    """The target is there; what it would run is tested by itself."""
    done = subprocess.run(["make", "-n", "-C", str(ROOT), target], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def check_pip(arguments: list[str]) -> None:
    """The constraints and the extras that are named are there."""
    assert (ROOT / arguments[arguments.index("-c") + 1]).is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = re.search(r"\[(.*)\]", arguments[-1])
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


def test_every_command_works(place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """In the README's order, each on what those before it made."""
    monkeypatch.chdir(place)
    for command in commands():
        words = shlex.split(command)
        capfd.readouterr()
        if words[0] == "make":
            check_make(words[1])
        elif words[0] == "pip":
            check_pip(words)
        elif "|" in words:
            assert len(run_piped(command).splitlines()) == 3, command  # --n-best 3 of one line
        elif needs_the_hub(command):
            local = "data.train={source: no/such.de, target: no/such.en}"
            assert main([*words[1:], "--set", local]) == 2, command
            message = capfd.readouterr().err
            assert "no/such" in message or ("cuda" in message and not torch.cuda.is_available()), message
        else:
            assert words[0] == "tfm", f"nothing here runs {command!r}"
            assert main(shortened(words[1:])) == 0, (command, capfd.readouterr().err)
            if words[1] == "translate":
                said = capfd.readouterr().out
                texts = [word for word in words[3:] if not word.startswith("-")]
                assert "-o" in words or len(said.splitlines()) == len(texts), command
    assert len((place / "translated.en").read_text("utf-8").splitlines()) == 8
    assert (place / "checkpoints" / "my-average" / "model.safetensors").is_file()
    for program in blocks("python"):
        capfd.readouterr()
        exec(compile(program, "README.md", "exec"), {})
        assert capfd.readouterr().out.count("\n") == 2


def test_every_command_of_tfm_is_in_the_table() -> None:
    from typer.main import get_command

    from transformer_cli.cli.app import app

    table = set(re.findall(r"^\| `tfm ([a-z-]+) ", README, re.MULTILINE))
    shown = {shlex.split(command)[1] for command in commands() if command.startswith("tfm ")}
    assert table == set(get_command(app).commands)  # type: ignore[attr-defined]
    assert table <= shown


def test_the_config_shown_has_five_lines() -> None:
    assert len(blocks("yaml")[0].splitlines()) == 5


def test_the_folders_shown_are_there() -> None:
    tree = re.findall(r"^([a-z_]+)/ {2,}", "\n".join(blocks("text")), re.MULTILINE)
    assert len(tree) >= 7
    assert all((ROOT / folder).is_dir() for folder in tree)


def test_the_readme_opens_with_its_two_commands() -> None:
    assert commands()[:2] == ["make demo", "make test"]


def test_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """What `make demo` runs, in its words, but for a shorter training."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    recipe = subprocess.run(["make", "-n", "-C", str(ROOT), "demo"], capture_output=True, text=True, check=True).stdout
    steps = [shlex.split(line) for line in recipe.splitlines() if "demo_corpus" in line or "/tfm " in line]
    assert [step[1] for step in steps] == ["-m", "train", "translate"]
    from transformer_cli import demo_corpus

    assert demo_corpus.main(steps[0][3:]) == 0
    shorter = ["training.max_steps=2", "training.validation_sentences=2", "data.workers=0"]
    assert main([*steps[1][1:], *(word for change in shorter for word in ("--set", change))]) == 0
    capfd.readouterr()
    assert main(steps[2][1:]) == 0
    assert len(capfd.readouterr().out.splitlines()) == len(steps[2][3:])
