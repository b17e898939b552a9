"""How help is shown: `-h` what most people need, in one screen; `--help` everything, options and commands in groups.

`cli.options` gives each command both. Plain text: Typer's own panels need rich, which is slow to import.
"""

import inspect
import re
from typing import Any

MOST_USED = {  # of a command with more options than ten; what `-h` shows
    *("--input", "--output", "--format", "--source", "--reference", "--target", "--out", "--set", "--json"),
    *("--config", "--exclude", "--vary", "--budget", "--seeds", "--host", "--port", "--api-keys"),
    *("--beam", "--n-best", "--scores", "--glossary", "--jobs", "--best-of", "--with-original", "--tokens"),
    *("--hypothesis", "--language", "--metric", "--kind", "--layers", "--heads", "--entropy", "--device", "--quiet"),
}
FEW = 10  # options, all of which `-h` shows
EXAMPLES = 3  # of them in `-h`
NAMES = 30  # widest column of names
Lists = dict[str, list[tuple[str, str]]]  # heading → names and meanings
BOUNDS = re.compile(r"(; |  \[)(?:([0-9.]+)<=x<=([0-9.]+)|x([<>])=([0-9.]+))\]")  # as Typer writes them


def full_help(context: Any) -> str:
    """Return what `--help` shows: summary, examples, details, arguments, then options or commands by their groups."""
    formatter, command = context.make_formatter(), context.command
    summary, examples, details = _parts(command)
    _write_head(formatter, context, summary, examples)
    if details:
        with formatter.section("Details"):
            formatter.write_text("\n\n".join(details))
    _write_lists(formatter, _commands(command, formatter.width))
    groups = _arguments(command)
    for option in _options(command):
        groups.setdefault(option.rich_help_panel or "Options", []).append(_row(option, context))
    _write_lists(formatter, groups)
    return str(formatter.getvalue().rstrip("\n"))


def short_help(context: Any) -> str:
    """Return what `-h` shows: summary, some examples, arguments, and the most used options or the commands."""
    formatter, command = context.make_formatter(), context.command
    summary, examples, _ = _parts(command)
    starts = [place for place, line in enumerate(examples) if line.startswith("tfm ")]
    end = starts[EXAMPLES] if len(starts) > EXAMPLES else None
    groups = _arguments(command) | _commands(command, formatter.width)
    is_group = hasattr(command, "commands")
    _write_head(formatter, context, summary, [] if is_group else examples[:end])
    if not is_group:
        options = [option for option in _options(command) if not {"-h", "--help"} & {*option.opts}]
        if len(options) > FEW:
            options = [option for option in options if MOST_USED & {*option.opts}]
        groups["Options"] = [_row(option, context, bounds=False) for option in options]
    _write_lists(formatter, groups)
    return f"{formatter.getvalue()}\nAll options and details: {context.command_path} --help"


def _parts(command: Any) -> tuple[str, list[str], list[str]]:
    """Return a command's summary, the lines of its examples, and the other paragraphs of its docstring."""
    summary, *others = inspect.cleandoc(command.help or "").split("\n\n")
    examples = [text for text in others if text.startswith("\b\ntfm ")]
    lines = [line for text in examples for line in text.splitlines()[1:]]
    return summary, lines, [text for text in others if text not in examples]


def _write_head(formatter: Any, context: Any, summary: str, examples: list[str]) -> None:
    usage = ["[OPTIONS]"]
    for argument in (one for one in context.command.params if one.param_type_name == "argument"):
        word = argument.metavar if argument.required else f"[{argument.metavar}]"
        usage.append(word if argument.nargs == 1 else f"{word}...")
    if hasattr(context.command, "commands"):
        usage.append("COMMAND [ARGS]...")
    formatter.write_usage(context.command_path, " ".join(usage))
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(summary)
    if examples:
        with formatter.section("Examples"):
            formatter.write_text("\b\n" + "\n".join(examples))


def _arguments(command: Any) -> Lists:
    rows = [(one.metavar, one.help) for one in command.params if one.param_type_name == "argument"]
    return {"Arguments": rows} if rows else {}


def _options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


def _commands(command: Any, width: int) -> Lists:
    """Return the name and the summary of each command of a group of commands, by panel."""
    panels: Lists = {}
    for name, inner in getattr(command, "commands", {}).items():
        room = width - 4 - max(map(len, command.commands))
        panels.setdefault(inner.rich_help_panel or "Commands", []).append((name, inner.get_short_help_str(room)))
    return panels


def _write_lists(formatter: Any, groups: Lists) -> None:
    """Write lists under their headings, meanings in one column through all of them."""
    width = max((len(name) for rows in groups.values() for name, _ in rows if len(name) <= NAMES), default=0)
    for heading, rows in groups.items():
        with formatter.section(heading):
            formatter.write_dl([(name.ljust(width), meaning) for name, meaning in rows], col_max=NAMES)


def _row(option: Any, context: Any, *, bounds: bool = True) -> tuple[str, str]:
    """Return an option's names and its meaning, with default and bounds in one pair of brackets."""
    names, meaning = option.get_help_record(context)

    def in_words(found: re.Match[str]) -> str:
        opening, least, most, sign, bound = found.groups()
        allowed = f"at {'least' if sign == '>' else 'most'} {bound}" if sign else f"{least} to {most}"
        return f"{opening}{allowed}]" if bounds else "]" if opening == "; " else ""

    return names, BOUNDS.sub(in_words, meaning.replace("]  [", "; "))
