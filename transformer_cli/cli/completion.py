"""Completion of commands and options by the shell: Typer's, behind two options of our own.

Typer's own options would be checked by pydantic, and that takes longer than all the rest of a `--help`.
"""

import errno
import os
from pathlib import PurePath
from typing import TYPE_CHECKING

import typer

from transformer_cli.errors import UserError, one_of

if TYPE_CHECKING:
    from collections.abc import Callable

SHELLS = ["bash", "zsh", "fish", "powershell", "pwsh"]
VARIABLE = "_TFM_COMPLETE"  # set by the shell's script: this call is asked for completions


def prepare() -> None:
    """Make Typer know the shells, where one of them asks."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()


def install(wanted: bool) -> None:
    """`tfm --install-completion`"""
    if wanted:
        from typer.completion import install as install_for  # type: ignore[attr-defined]

        shell = _shell()
        try:
            _, path = install_for(shell, prog_name="tfm", complete_var=VARIABLE)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
                raise
            raise UserError(
                f"{error.filename}: cannot be written: {error.strerror}; put the script of --show-completion where"
                f" {shell} reads it"
            ) from None
        print(f"completion for {shell} is in {path}; it works in shells that start from now on")
        raise typer.Exit


def show(wanted: bool) -> None:
    """`tfm --show-completion`"""
    if wanted:
        from typer.completion import get_completion_script  # type: ignore[attr-defined]

        print(get_completion_script(prog_name="tfm", complete_var=VARIABLE, shell=_shell()))
        raise typer.Exit


def _shell() -> str:
    """The shell that this was typed in, else the user's usual one."""
    import shellingham  # type: ignore[import-untyped]

    detect: Callable[[], tuple[str, str]] = shellingham.detect_shell
    try:
        name = detect()[0]
    except (shellingham.ShellDetectionFailure, OSError):
        name = ""
    if name not in SHELLS:
        name = PurePath(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UserError(f"completion: cannot tell which shell this is; set SHELL to one of {one_of(SHELLS)}")
    return name
