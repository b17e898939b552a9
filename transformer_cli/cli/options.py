"""Arguments and options that several commands share: one wording, one bound, one default."""

from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from transformer_cli.cli.layout import Below
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


def _print_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


# For groups of commands: Typer's own has no default, and to check that, it loads pydantic before every command.
HelpOption = Annotated[
    bool, typer.Option("--help", "-h", callback=_print_help, is_eager=True, help="Show this message and exit.")
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


Sample = Annotated[bool, typer.Option("--sample", help="Draw each token from the model's distribution.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        max=1000.0,
        metavar="T",
        help="Of --sample: above 1 more varied, below 1 safer.  [default: 1.0]",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", min=1, metavar="K", help="--sample from the K most probable tokens.  [default: all]"),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        min=0.0,
        max=1.0,
        metavar="P",
        help="--sample from the most probable tokens that make up P.  [default: 1.0]",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, metavar="N", help="Of --sample: the same seed draws the same.  [default: 1]"),
]
NBest = Annotated[
    int, typer.Option("--n-best", min=1, max=1000, metavar="N", help="Print the N best translations of each line.")
]
DiverseGroups = Annotated[
    int | None,
    typer.Option(
        "--diverse-groups",
        min=1,
        metavar="G",
        help="Diverse beam search: G groups of beams, each unlike those before it.  [default: 1]",
    ),
]
Diversity = Annotated[
    float | None,
    typer.Option(
        "--diversity",
        min=0.0,
        max=100.0,
        metavar="D",
        help="Of --diverse-groups: log-probability that repeating another group's token costs.  [default: 0.5]",
    ),
]
MinLength = Annotated[
    int | None, typer.Option("--min-length", min=0, metavar="N", help="Fewest tokens of a translation.  [default: 1]")
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        min=1,
        metavar="N",
        help="Most tokens of a translation.  [default: by the length of the source, as the model's config says]",
    ),
]
NoRepeatNgram = Annotated[
    int | None,
    typer.Option(
        "--no-repeat-ngram",
        min=1,
        metavar="N",
        help="No N tokens in a row come twice in a translation.  [default: off]",
    ),
]
CoveragePenalty = Annotated[
    float | None,
    typer.Option(
        "--coverage-penalty",
        min=0.0,
        max=100.0,
        metavar="B",
        help="Weight of the penalty for source tokens that get little attention (Wu et al. 2016).  [default: 0]",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        "--iterations",
        min=1,
        max=1000,
        metavar="N",
        help="Of models with generation: mask_predict: passes over a translation.  [default: the model's]",
    ),
]
LengthCandidates = Annotated[
    int | None,
    typer.Option(
        "--length-candidates",
        min=1,
        max=100,
        metavar="N",
        help="Of the same: how many likely lengths are tried.  [default: the model's]",
    ),
]
Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", help="Every translation begins with this text.")
]
Require = Annotated[
    list[str] | None,
    typer.Option("--require", metavar="WORDS", help="Every translation holds these words. Repeatable."),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="WORDS", help="No translation holds these words. Repeatable."),
]
ConstraintsFile = Annotated[
    Path | None,
    typer.Option(
        "--constraints",
        metavar="FILE",
        help='ConstraintsFile of each line: JSON lines such as {"prefix": "…", "require": ["…"], "forbid": ["…"]}.',
    ),
]
Mbr = Annotated[
    int | None,
    typer.Option(
        "--mbr",
        min=2,
        max=1000,
        metavar="N",
        help="Minimum Bayes risk: of N candidates (beams, or draws of --sample) those most like all others, by chrF.",
    ),
]
Guard = Annotated[
    bool,
    typer.Option("--guard/--no-guard", help="Search again, without repetition, where a translation runs in circles."),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        "--min-confidence",
        min=0.0,
        max=1.0,
        metavar="X",
        help="Mark translations whose expected chrF (0 to 1) is below X; tfm calibrate tells the model.",
    ),
]
BelowConfidence = Annotated[
    Below | None,
    typer.Option(
        "--below",
        metavar="WHAT",
        help="Of --min-confidence: mark ([?] before it) or drop (an empty line).  [default: mark]",
    ),
]
AlignmentLayer = Annotated[
    int | None,
    typer.Option(
        "--alignment-layer",
        min=1,
        metavar="N",
        help="Decoder layer whose attention --alignments reads, from 1.  [default: the last, or what learned to align]",
    ),
]
AlignmentHeads = Annotated[
    str | None,
    typer.Option(
        "--alignment-heads",
        metavar="NUMBERS",
        help="Its heads, such as 1,3 or 2-4, from 1.  [default: all, or what learned to align]",
    ),
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="MODEL2",
        help="Decide on each token together with this model, of the same vocabulary (ensemble). Repeatable.",
    ),
]
Protect = Annotated[
    bool,
    typer.Option("--protect/--no-protect", help="Leave URLs, e-mail addresses, placeholders and tags as they are."),
]
GlossaryFile = Annotated[
    Path | None,
    typer.Option("--glossary", metavar="FILE", help="Terms and what each becomes: a line each, a tab between."),
]
