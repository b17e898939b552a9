"""Completion of commands, options and the keys of `--set` in the user's shell, and how it is installed there.

Typer answers the shells; it has a script for each. Bash gets one of our own, because bash splits KEY=VALUE into three
words and would put a space behind `KEY=`.
"""

import errno
import os
import types
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin

from transformer_cli.errors import UserError, one_of

COMPLETE = "_TFM_COMPLETE"  # set by the shell's script: this call is asked for completions
SHELLS = ["bash", "zsh", "fish", "powershell", "pwsh"]
BASH = """\
_tfm_completion() {
    local IFS=$'\\n' word words=(tfm) last=0
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do  # KEY=VALUE comes as three words: KEY, = and VALUE
        if [[ $word != "=" && ${words[last]} != *= ]]; then last=$((last + 1)); fi
        words[last]+=$word
    done
    COMPREPLY=( $( env COMP_WORDS="${words[*]}" COMP_CWORD=$last _TFM_COMPLETE=complete_bash "$1" ) )
    word=${words[last]}
    if [[ $word == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${word%%=*}="}"); fi
    if [[ ${COMPREPLY[0]-} == *= ]]; then compopt -o nospace 2> /dev/null; fi
    return 0
}

complete -o default -F _tfm_completion tfm
"""


def complete_setting(incomplete: str) -> list[str]:
    """Return the keys of a config, each with `=`; after `KEY=` its values, where they can be named."""
    from transformer_cli.config import Config, keys_within

    kinds = dict(keys_within(Config))
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(kinds.get(key))]
    return [f"{name}=" for name in kinds if "." in name]  # those without a dot are the sections


def _values(kind: Any) -> list[str]:
    if get_origin(kind) in (Union, types.UnionType):
        return [value for one in get_args(kind) for value in _values(one)]
    if get_origin(kind) is Literal:
        return [*map(str, get_args(kind))]
    return {bool: ["true", "false"], types.NoneType: ["null"]}.get(kind, [])


def install_completion() -> str:
    """Install the completion of the user's shell, and return where. Raises `UserError` where it cannot be."""
    from typer.completion import install  # type: ignore[attr-defined]

    shell = _shell()
    try:
        _, path = install(shell, prog_name="tfm", complete_var=COMPLETE)
        if shell == "bash":
            path.write_text(BASH)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        raise UserError(
            f"{error.filename}: cannot be written: {error.strerror}; put the script of --show-completion where"
            f" {shell} reads it"
        ) from None
    return f"completion for {shell} is in {path}; it works in shells started from now on"


def completion_script() -> str:
    """Return the script that completes in the user's shell."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    shell = _shell()
    return BASH if shell == "bash" else get_completion_script(prog_name="tfm", complete_var=COMPLETE, shell=shell)


def _shell() -> str:
    """Return the name of the shell that this was typed in, else of the user's usual one."""
    import shellingham  # type: ignore[import-untyped]

    try:
        name: str = shellingham.detect_shell()[0]
    except (shellingham.ShellDetectionFailure, OSError):
        name = ""
    if name not in SHELLS:
        name = PurePath(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise UserError(f"completion: cannot tell which shell this is; set SHELL to one of {one_of(SHELLS)}")
    return name
