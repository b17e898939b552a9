"""Arguments and options that several commands share: one wording, one bound, one default."""

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from transformer_cli.errors import UserError

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A run folder (its best checkpoint is used) or one checkpoint folder.")
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config file.")]
RunOut = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="The run folder.  [default: checkpoints/<config name>]")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a config value, such as training.max_steps=1000; the value is YAML, and a mapping replaces the"
        " whole mapping. Repeatable.",
    ),
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto (cuda, else mps, else cpu), cpu, cuda, cuda:1 or mps.")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="auto (ctranslate2 on a CPU where it is installed and can do what is asked for), torch or ctranslate2.",
    ),
]
_TYPES = "What is computed in: float32, float16, bfloat16; with ctranslate2 int8, int8_float32, … too."
ComputeType = Annotated[
    str | None,
    typer.Option("--compute-type", metavar="TYPE", help=f"{_TYPES}  [default: float32; torch on a GPU: bfloat16]"),
]
ScoringType = Annotated[
    str | None, typer.Option("--compute-type", metavar="TYPE", help=f"{_TYPES}  [default: float32]")
]
References = Annotated[
    list[Path] | None,
    typer.Option("--reference", metavar="FILE", help="Their translations, aligned. Repeatable: several references."),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr.")]
Beam = Annotated[
    int | None,
    typer.Option("--beam", min=1, max=1000, metavar="N", help="Beam search with N hypotheses.  [default: the model's]"),
]
Greedy = Annotated[bool, typer.Option("--greedy", help="Greedy search: the most probable token at every step.")]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        "--length-penalty",
        min=0.0,
        max=10.0,
        metavar="A",
        help="Exponent of the length by which beam search divides log-probabilities.  [default: the model's]",
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        "--batch-tokens",
        min=1,
        metavar="N",
        help="Source tokens translated at a time, padding included.  [default: the model's]",
    ),
]


def name_arguments(command: Any) -> Any:
    """The command, whose help calls each argument by its name alone (`CONFIG`, not `{CONFIG}` or `CONFIG <path>`)."""
    for parameter in command.params:
        if isinstance(parameter, typer.core.TyperArgument):
            name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
            usage = [f"{name}..." if parameter.nargs != 1 else name]
            vars(parameter).update(get_usage_pieces=lambda _, usage=usage: usage, display_type_rich=lambda **_: "")
    for inner in getattr(command, "commands", {}).values():
        name_arguments(inner)
    return command


def run_folder_path(config: Path, out: Path | None) -> Path:
    """RUN: as given, else `checkpoints/<config name>`."""
    return out if out is not None else Path("checkpoints") / config.name.removesuffix(config.suffix)


def check_search(*, beam: int | None, greedy: bool, sample: bool = False) -> None:
    """Raise `UserError` where more than one way to search was asked for."""
    given = [name for name, on in (("--beam", beam is not None), ("--greedy", greedy), ("--sample", sample)) if on]
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other: choose one way to search")


def check_needs(owner: str, given: object, **options: object) -> None:
    """Raise `UserError` where one of the options was given (is not None), but not what it belongs to."""
    for name, value in options.items():
        if value is not None and not given:
            raise UserError(f"{flag(name)}: belongs to {owner}; give that too, or leave it out")


def check_apart(owner: str, given: object, **options: object) -> None:
    """Raise `UserError` where one of the options was given beside what it does not go with."""
    for name, value in options.items():
        if value is not None and given:
            raise UserError(f"{flag(name)} and {owner} exclude each other: leave one out")


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """`1,3-5` as 1, 3, 4, 5; raises `UserError` for anything else."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        ends = [first, last if dash else first]
        if not all(end.isascii() and end.isdigit() and len(end) < 5 for end in ends) or int(ends[0]) > int(ends[1]):
            raise UserError(f"{option} {text[:40]!r}: give numbers from 1 on, such as 2 or 1,3 or 1-3")
        numbers += range(int(ends[0]), int(ends[1]) + 1)
    return list(dict.fromkeys(numbers))


def flag(parameter: str) -> str:
    """The option of a parameter."""
    return f"--{parameter.rstrip('_').replace('_', '-')}"


def search_changes(*, beam: int | None, greedy: bool, sample: bool = False, **others: object) -> dict[str, Any]:
    """What the options change in a model's own `SearchOptions`; None in `others` changes nothing."""
    changes = {name: value for name, value in others.items() if value is not None}
    if beam is not None:
        changes["beam_size"] = beam
    if greedy or sample:
        changes["method"] = "greedy" if greedy else "sample"
    return changes
