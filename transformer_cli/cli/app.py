"""The command `tfm`: its commands, and the one place where an error becomes a line on stderr and an exit code.

Called by the script entry `tfm` and by `python -m transformer_cli`. Nothing heavy is imported here, so that every
`--help` answers at once; each command imports what it needs in its body.
"""

import contextlib
import io
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer
import typer.main

from transformer_cli import __version__
from transformer_cli.cli import (
    average,
    backtranslate,
    calibrate,
    compare,
    completion,
    demo,
    distill,
    doctor,
    evaluate,
    export,
    import_,
    init,
    inspect,
    plot,
    report,
    score,
    serve,
    train,
    translate,
    tune,
)
from transformer_cli.cli.help import full_help
from transformer_cli.cli.options import option, with_options
from transformer_cli.cli.streams import flush_stdout, guard_terminals, has_no_reader, silence
from transformer_cli.errors import UserError, not_importable

PANELS: dict[str, dict[str, Any]] = {  # of the help, in the order of a user's way
    "Data": {"init": init.init, "doctor": doctor.doctor, "build-vocab": train.build_vocab},
    "Train": {
        "demo": demo.demo,
        "train": train.train,
        "import": import_.import_,
        "average": average.average,
        "distill": distill.distill,
        "backtranslate": backtranslate.backtranslate,
        "tune": tune.tune,
    },
    "Use": {"translate": translate.translate, "align": score.align},
    "Judge": {
        "evaluate": evaluate.evaluate,
        "compare": compare.compare,
        "report": report.report,
        "score": score.score,
        "calibrate": calibrate.calibrate,
    },
    "Look inside": {"inspect": inspect.inspect, "plot": plot.app},
    "Ship": {"export": export.export, "serve": serve.serve},
}
BROKEN_PIPE = 128 + 13  # as of a process that SIGPIPE ended, which not every system has
LONGEST_REASON = 150  # characters of an unforeseen error that are shown
TO_BE_ENDED = 10.0  # seconds in which torchrun surely ends the processes of a job that has failed


app = typer.Typer(
    name="tfm",
    add_completion=False,  # its options would be checked by pydantic, which is slow to import
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True, add_help_option=False)
@with_options
def tfm(
    context: typer.Context,
    version: bool = option("--version", "Print the version and exit.", False),
    install_completion: bool = option(
        "--install-completion", "Install shell completion of commands and options (bash, zsh, fish).", False
    ),
    show_completion: bool = option("--show-completion", "Print the completion script, to install it elsewhere.", False),
) -> None:
    """Train, evaluate and use your own translator: the Transformer of "Attention Is All You Need", from raw text to raw
    text.

    \b
    tfm demo
    tfm train my.yaml
    tfm translate checkpoints/my "Ein Hund schläft."

    \b
    MODEL   a run folder (its best checkpoint is used) or one checkpoint folder
    CONFIG  a YAML file; --set SECTION.KEY=VALUE changes any of its values

    Results go to stdout or the named file, everything else to stderr. The exit code says how it went:

    \b
    0         done
    2         the input is at fault, and one line says what to do
    130, 143  interrupted by Ctrl-C or SIGTERM, with the state saved
    141       the reader of the output has closed it, as head does
    1         anything else; TFM_DEBUG=1 shows where
    """
    if version:
        print(f"tfm {__version__}")
    elif install_completion:
        print(completion.install_completion())
    elif show_completion:
        print(completion.completion_script())
    elif context.invoked_subcommand is None:
        print(full_help(context))
    else:
        return
    raise typer.Exit


for panel, commands in PANELS.items():
    for name, command in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel, add_help_option=False)(with_options(command))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 2 the user's input, 1 anything else, 128 + a signal's number.

    arguments: without the program's name; None takes those of the process.
    """
    command = _command()
    with _sigterm_as_exit(), warnings.catch_warnings():
        if arguments is None:
            _settle_process()
        try:
            if completion.COMPLETE in os.environ:
                from typer.completion import completion_init  # type: ignore[attr-defined]

                completion_init()
            result = command.main(args=arguments, prog_name="tfm", standalone_mode=False)
            flush_stdout()
            return result if isinstance(result, int) else 0
        except SystemExit as leaving:
            if isinstance(leaving.__context__, OSError):  # Typer's answer to any broken pipe
                return _failed(leaving.__context__, arguments)
            return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except KeyboardInterrupt:
            return 128 + signal.SIGINT
        except BaseException as error:
            return _failed(error, arguments)


@cache  # a program that calls `main` often, as tests do, need not wait for it each time
def _command() -> Any:
    return typer.main.get_command(app)


def _failed(error: BaseException, arguments: Sequence[str] | None) -> int:
    """Say what went wrong, in one line on stderr, and return the exit code; where nobody reads on, that is no fault."""
    if has_no_reader(error):
        silence(sys.stdout, sys.stderr)
        return BROKEN_PIPE
    code, message = _explain(error, sys.argv[1:] if arguments is None else arguments)
    _leave_it_to_the_first()
    if os.environ.get("TFM_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    if isinstance(error, OSError):
        silence(sys.stdout)
    with contextlib.suppress(OSError):
        print("error: " + _one_line(message), file=sys.stderr, flush=True)
    return code


def _leave_it_to_the_first() -> None:
    """Let the first of the processes that torchrun started on a machine report an error that all of them met: when it
    has ended, torchrun ends the others. What no other one reported comes a little later."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        time.sleep(TO_BE_ENDED)


def _settle_process() -> None:
    """Set up a process of our own: warnings of libraries, which no user can act on, are off (but for `python -W`), a
    terminal that lacks a character shows its number and obeys no text, and what goes to a closed stderr goes nowhere,
    not to stdout."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (open as long as the process)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    guard_terminals()


def _explain(error: BaseException, arguments: Sequence[str]) -> tuple[int, str]:
    """Return exit code and message of an error; `arguments` are those of the command line."""
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, typer.TyperException):
        return 2, _explain_usage(error, arguments)
    if missing := not_importable(error):
        return 2, f"{_command_path(arguments)} needs {missing}"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return 1, f"{where}{error.strerror}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return 1, "out of memory; take smaller batches (--batch-tokens, training.batch_tokens) or a smaller model"
    kind, reason = type(error).__name__, _one_line(str(error))
    if kind == "RuntimeError" and "can't allocate memory" in reason:  # torch's, of the machine's own memory
        return _explain(MemoryError(), arguments)
    reason = reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"
    return 1, f"internal: {kind}: {reason} (TFM_DEBUG=1 shows where; please report it)"


def _one_line(message: str) -> str:
    """Return the message without what would break the line or steer the terminal, which a damaged file may hold."""
    text = " ".join(message.split())
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _explain_usage(error: Any, arguments: Sequence[str]) -> str:
    """Return what is wrong with the command line, and which help to read, from an exception of Typer."""
    message = error.format_message().rstrip(".")
    parameter = getattr(error, "param", None)
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None or high is not None:
        allowed = f"at least {low}" if high is None else f"{low} to {high}"
        message += f"; allowed: {allowed}"
    message = message.replace("Value error, ", "").replace("Input should be", "it should be")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _command_path(arguments)
    return f"{message[:1].lower()}{message[1:]}; see '{path} --help'"


def _command_path(arguments: Sequence[str]) -> str:
    """Return the command that a command line names, such as `tfm plot mask`."""
    command = _command()
    path = "tfm"
    for argument in arguments:
        commands = getattr(command, "commands", {})
        if argument not in commands:
            break
        path, command = f"{path} {argument}", commands[argument]
    return path


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C does, so that temporary files go away; a forked worker just ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def leave(number: int, _frame: object) -> None:
        if os.getpid() == process:
            raise SystemExit(128 + number)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
