"""The shell completes commands and options: a real bash with the installed script, and what zsh and fish get."""

import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from transformer_cli.cli.app import main
from transformer_cli.cli.completion import complete_setting
from transformer_cli.config import Config, GuidedAttention, Noise, ScheduledSampling

SMALLEST = """
data: {source_language: de, target_language: en, train: {source: a, target: b}, valid: {source: a, target: b}}
"""
COMPLETE = """
source ~/.bashrc
complete_line() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _tfm_completion tfm; echo "${{COMPREPLY[*]}}"; }}
complete -p tfm
{lines}
"""


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home, and `tfm` on the path as the package installs it."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    script = f"#!{sys.executable}\nimport sys\nfrom transformer_cli.cli.app import main\nsys.exit(main())\n"
    (programs / "tfm").write_text(script)
    (programs / "tfm").chmod(0o755)
    return {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "SHELL": "/bin/bash",
    }


def run(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.medium
@pytest.mark.skipif(not shutil.which("bash"), reason="this machine has no bash")
def test_bash_completes_after_installing(shell: dict[str, str]) -> None:
    said = run(["bash", "-c", "tfm --install-completion"], shell)
    assert str(Path(shell["HOME"], ".bash_completions", "tfm.sh")) in said
    before = Path(shell["HOME"], ".bashrc").read_text()
    run(["bash", "-c", "tfm --install-completion"], shell)
    assert Path(shell["HOME"], ".bashrc").read_text().split() == before.split()  # not a second time
    lines = (
        "complete_line tfm tra\ncomplete_line tfm translate --bea\ncomplete_line tfm translate m no-option-but-a-file"
    )
    lines += (
        "\ncomplete_line tfm train c.yaml --set vocabulary.al"
        "\ncomplete_line tfm train c.yaml --set training.schedule ="  # so bash splits the words
        "\ncomplete_line tfm train c.yaml --set training.schedule = co --set model.norm = p"
        "\ncomplete_line tfm translate m --format = js"
    )
    registered, commands, options, files, key, schedules, norms, formats = run(
        ["bash", "-c", COMPLETE.format(lines=lines)], shell
    ).splitlines()
    assert registered == "complete -o default -F _tfm_completion tfm"  # default: names of files where we have nothing
    assert commands.split() == ["train", "translate"]
    assert options.split() == ["--beam"]
    assert files == ""
    assert key == "vocabulary.algorithm="
    assert schedules.split() == ["noam", "inverse_sqrt", "cosine", "wsd", "constant"]
    assert norms.split() == ["post", "pre"]
    assert formats == "json"


@pytest.mark.medium
@pytest.mark.skipif(not shutil.which("bash"), reason="this machine has no bash")
def test_bash_puts_no_space_behind_a_key(shell: dict[str, str]) -> None:
    """As at a real prompt: what Tab writes is read from the line that bash echoes."""
    run(["bash", "-c", "tfm --install-completion"], shell)
    ours, terminal = pty.openpty()
    command = ["bash", "--noprofile", "-i"]
    with subprocess.Popen(command, env={**shell, "TERM": "dumb"}, stdin=terminal, stdout=terminal, stderr=terminal):
        os.close(terminal)
        # Ctrl-A and `echo` at the end: the line is printed, not run
        os.write(ours, b"tfm train c.yaml --set training.warmup\t4\x01echo \nexit\n")
        said = b""
        with contextlib.suppress(OSError):  # when bash has ended
            while chunk := os.read(ours, 4096):
                said += chunk
    os.close(ours)
    assert b"\ntfm train c.yaml --set training.warmup_steps=4\r\n" in said, said.decode()


@pytest.mark.medium
@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_zsh_and_fish_are_answered(name: str, shell: dict[str, str]) -> None:
    asked = {
        **shell,
        "_TFM_COMPLETE": f"complete_{name}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "tfm tra",
    }
    commands = run(["tfm"], asked)
    assert "train" in commands
    assert "translate" in commands
    assert "score" not in commands
    keys = run(["tfm"], {**asked, "_TYPER_COMPLETE_ARGS": "tfm train c.yaml --set tr"})
    assert "training.max_steps=" in keys
    assert "vocabulary." not in keys
    values = run(["tfm"], {**asked, "_TYPER_COMPLETE_ARGS": "tfm train c.yaml --set model.norm=pr"})
    assert "model.norm=pre" in values
    assert "post" not in values
    options = run(["tfm"], {**asked, "_TYPER_COMPLETE_ARGS": "tfm translate --"})
    assert "--length-penalty" in options
    assert "--warmup" not in options


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_the_shell_itself_takes_the_script(name: str, shell: dict[str, str], tmp_path: Path) -> None:
    if not shutil.which(name):
        pytest.skip(f"this machine has no {name}")
    script = tmp_path / "script"
    script.write_text(run([name, "-c", "tfm --show-completion"], {**shell, "SHELL": f"/bin/{name}"}))
    run([name, "-n", str(script)], shell)


def test_every_key_of_a_config_completes_and_what_completes_is_a_key() -> None:
    keys = {key.removesuffix("=") for key in complete_setting("") if not key.startswith("data.")}
    tree = Config.model_validate(yaml.safe_load(SMALLEST)).model_dump()
    sections = {
        "training.guided_attention": GuidedAttention(),
        "training.scheduled_sampling": ScheduledSampling(),
        "training.noise": Noise(),
    }

    def dotted(values: Any, prefix: str) -> Iterator[str]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from dotted(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}"

    own = {key for name in tree if name != "data" for key in dotted(tree[name], f"{name}.")}
    own |= {*sections}  # which may be null
    own |= {f"{name}.{key}" for name, section in sections.items() for key in section.model_dump()}
    assert keys == own


def test_values_of_keys_complete_where_they_can_be_named() -> None:
    assert complete_setting("vocabulary.lowercase=") == ["vocabulary.lowercase=true", "vocabulary.lowercase=false"]
    assert "model.preset=null" in complete_setting("model.preset=")
    assert complete_setting("training.max_steps=5") == ["training.max_steps=null"]
    assert complete_setting("no.such=") == []
    for key in complete_setting(""):
        for setting in complete_setting(key):
            assert setting.startswith(key)


@pytest.mark.medium
def test_completing_a_key_needs_no_torch(shell: dict[str, str]) -> None:
    asked = {
        **shell,
        "_TFM_COMPLETE": "complete_bash",
        "COMP_WORDS": "tfm\ntrain\nc\n--set\ntraining.s",
        "COMP_CWORD": "4",
    }
    program = (
        "import sys, transformer_cli.cli.app as app\ntry: app.main()\n"
        "finally: print(sorted({'torch', 'numpy', 'rich'} & {*sys.modules}))"
    )
    said = run([sys.executable, "-c", program], asked)
    assert "training.seed=" in said
    assert said.endswith("[]\n")


def answer(shell: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What the option prints where only `SHELL` tells which shell it is."""
    import shellingham  # type: ignore[import-untyped]

    def detect_shell() -> None:
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", detect_shell)
    monkeypatch.setenv("SHELL", shell)
    code = main([option])
    out, err = capsys.readouterr()
    assert code == (2 if err else 0)
    return out + err


def test_each_shell_has_a_script_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {
        name: answer(f"/bin/{name}", "--show-completion", capsys, monkeypatch) for name in ("bash", "zsh", "fish")
    }
    assert "complete -o default -F _tfm_completion tfm" in scripts["bash"]
    assert "compdef _tfm_completion tfm" in scripts["zsh"]
    assert "complete --command tfm" in scripts["fish"]


@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_an_unknown_shell_is_refused(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = answer("/bin/dash", option, capsys, monkeypatch)
    assert re.match("error: completion: .*SHELL.* bash, zsh", said)
    assert said.count("\n") == 1


def test_a_home_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    said = answer("/bin/fish", "--install-completion", capsys, monkeypatch)
    assert said.startswith(f"error: {tmp_path / 'file'}")
    assert "--show-completion" in said
