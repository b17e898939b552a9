"""The error boundary: which exit code, which single line on stderr, and that nothing heavy is imported for help."""

import errno
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import transformer_cli.storage.origin
from transformer_cli.cli.app import PANELS, app, main
from transformer_cli.errors import UserError

COMMANDS = [
    "init",
    "doctor",
    "build-vocab",
    "demo",
    "train",
    "import",
    "average",
    "distill",
    "backtranslate",
    "tune",
    "translate",
    "align",
    "evaluate",
    "compare",
    "report",
    "score",
    "calibrate",
    "inspect",
    "export",
    "serve",
]
HEAVY = ["torch", "numpy", "pydantic", "rich", "sacrebleu", "spacy", "sentencepiece", "pyarrow", "tqdm", "yaml"]


def _fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load_config(*_: object) -> None:
        raise error

    monkeypatch.setattr(transformer_cli.storage.origin, "load_found_config", load_config)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("a.yaml: is bad\nfix it"), 2, "error: a.yaml: is bad fix it\n"),
        (OSError(errno.ENOSPC, "No space left on device", "/out/x"), 1, "error: /out/x: No space left on device\n"),
        (UserError("a\x1b[2J\u202eb\tc\x00"), 2, "error: a\\x1b[2J\\u202eb c\\x00\n"),  # nothing steers the terminal
        (MemoryError(), 1, "error: out of memory"),
        (RuntimeError("[…] DefaultCPUAllocator: can't allocate memory: you tried"), 1, "error: out of memory"),
        (ValueError("bad" * 1000), 1, f"error: internal: ValueError: {('bad' * 1000)[:149]}… (TFM"),
        (ValueError("so\nbad"), 1, "error: internal: ValueError: so bad (TFM_DEBUG=1 shows where"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(7), 7, ""),
    ],
)
def test_errors_become_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _fail_with(monkeypatch, error)
    assert main(["train", "a.yaml"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(line)
    assert err.count("\n") == bool(line)


def test_debug_shows_the_traceback_and_ends_with_the_same_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fail_with(monkeypatch, UserError("it is bad"))
    monkeypatch.setenv("TFM_DEBUG", "1")
    assert main(["train", "a.yaml"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("\nerror: it is bad\n")


@pytest.mark.parametrize(
    ("arguments", "message", "help_of"),
    [
        (["train"], "missing argument 'CONFIG'", "tfm train"),
        (["train", "--beem", "a.yaml"], "no such option: --beem", "tfm train"),
        (["train", "a.yaml", "--set"], "'--set' requires an argument", "tfm train"),
        (["train", "a.yaml", "b.yaml"], "unexpected extra argument", "tfm train"),
        (["trian", "a.yaml"], "Did you mean 'train'?", "tfm"),
        (["--beem"], "no such option: --beem", "tfm"),
        (["translate", "m", "--beam", "0"], "'--beam'.*allowed: 1 to 1000", "tfm translate"),
        (["translate", "m", "--beam", "five"], "'--beam'.*integer", "tfm translate"),
        (["translate", "m", "--n-best", "0"], "'--n-best'.*allowed: 1 to 1000", "tfm translate"),
        (["translate", "m", "--length-penalty", "-1"], "'--length-penalty'.*allowed: 0.0 to 10.0", "tfm translate"),
        (["translate", "m", "--length-penalty", "nan"], "'--length-penalty'", "tfm translate"),
        (["translate", "m", "--batch-tokens", "0"], "'--batch-tokens'.*allowed: at least 1", "tfm translate"),
        (["translate", "m", "--sample", "--top-p", "1.5"], "'--top-p'.*allowed: 0.0 to 1.0", "tfm translate"),
        (["translate", "m", "--sample", "--top-k", "0"], "'--top-k'.*allowed: at least 1", "tfm translate"),
        (["score", "m", "--source", "a"], "missing option '--target'", "tfm score"),
        (["average", "a", "b"], "missing option '--out'", "tfm average"),
        (["average", "a", "--out", "b", "--last", "0"], "'--last'.*allowed: at least 1", "tfm average"),
    ],
)
def test_wrong_usage_is_one_line_that_names_the_help(
    arguments: list[str], message: str, help_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.endswith(f"see '{help_of} --help'\n")
    import re

    assert re.search(message, err), err


def test_without_a_command_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == shown
    assert all(f"  {command} " in shown for command in COMMANDS)


def test_commands_stand_in_panels_in_the_order_of_a_users_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.partition("Details:")[2].splitlines()
    headings = [line for line in shown if line and not line.startswith(" ")]
    assert headings == ["Data:", "Train:", "Use:", "Judge:", "Look inside:", "Ship:", "Options:", "Help:"]
    for panel, names in PANELS.items():
        below = shown[shown.index(f"{panel}:") + 1 :]
        assert [line.split()[0] for line in below[: len(names)]] == [*names]


def test_the_commands_tested_are_all_there_are() -> None:
    assert [command.name for command in app.registered_commands] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_names_every_option(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"Usage: tfm {command}" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert all(len(line.split("  ")[-1]) > 5 for line in shown.splitlines() if line.startswith("  --"))


def test_help_imports_nothing_heavy() -> None:
    program = f"""
import sys
from transformer_cli.cli.app import main
for command in {COMMANDS!r}:
    main([command, "--help"])
    main([command, "-h"])
main(["--help"]); main(["--version"]); main(["trian"])
sys.stdout = sys.__stderr__
print("HEAVY", sorted(set(sys.modules) & set({HEAVY!r})))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.endswith("HEAVY []\n")


def test_module_and_script_are_the_same_command(tmp_path: Path) -> None:
    """Through the real entry point: version, and a user's mistake with its exit code."""
    run = [sys.executable, "-m", "transformer_cli"]
    version = subprocess.run([*run, "--version"], capture_output=True, text=True, check=True).stdout
    assert version == f"tfm {transformer_cli.__version__}\n"
    missing = subprocess.run([*run, "train", "no.yaml"], capture_output=True, text=True, cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert re.fullmatch("error: no.yaml: .*No such file or directory.*\n", missing.stderr)
    assert list(tmp_path.iterdir()) == []
    project = Path(transformer_cli.__file__).parent.parent / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["scripts"]["tfm"] == "transformer_cli.cli.app:main"


def test_a_closed_pipe_and_a_full_disk_end_without_a_traceback() -> None:
    run = [sys.executable, "-m", "transformer_cli", "translate", "--help"]
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        result = subprocess.run(run, stdout=closed, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (141, "")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            result = subprocess.run(run, stdout=full, stderr=subprocess.PIPE, text=True)
        # Help that fits into Python's buffer is written by `flush_stdout`, which names the stream.
        assert re.fullmatch(r"error: (stdout: )?No space left on device\n", result.stderr)
        assert result.returncode == 1


def test_sigterm_unwinds_and_leaves_with_143(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unwound = []

    def load_config(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            unwound.append(True)

    monkeypatch.setattr(transformer_cli.storage.origin, "load_found_config", load_config)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["train", "a.yaml"]) == 128 + signal.SIGTERM
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) is before
    assert capsys.readouterr() == ("", "")
