"""The shell completes commands and options: a real bash with the installed script, and what zsh and fish get."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_cli.cli.app import main

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
    registered, commands, options, files = run(["bash", "-c", COMPLETE.format(lines=lines)], shell).splitlines()
    assert registered == "complete -o default -F _tfm_completion tfm"  # default: names of files where we have nothing
    assert commands.split() == ["train", "translate"]
    assert options.split() == ["--beam"]
    assert files == ""


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
