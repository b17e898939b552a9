"""Arguments and options that several commands share, which of them go together, and what a translation takes of them.

Parameters that set a search option have its name; bounds and defaults are those of `SearchOptions`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
import typer.core

from transformer_cli.cli.layout import Below
from transformer_cli.errors import UserError
from transformer_cli.search_options import ConfiguredSearch, SearchOptions, bound_of

if TYPE_CHECKING:
    from transformer_cli.config import DataConfig
    from transformer_cli.jobs.translating import TranslationOptions

EXCLUSIVE = (  # at most one option of each line
    ("--beam", "--greedy", "--sample"),
    ("--best-of", "--greedy", "--mbr"),
    ("--coverage-penalty", "--greedy"),
    ("--coverage-penalty", "--sample"),
    ("--diverse-groups", "--greedy"),
    ("--diverse-groups", "--sample"),
    ("--glossary", "--no-protect"),
    ("--min-confidence", "--with"),  # which is known of one model alone
    ("--resume", "--fresh"),
    ("--dry-run", "--profile"),
    ("--mean", "--entropy"),
    ("--grid", "--entropy"),
    ("--target", "--entropy"),
    ("--mean", "--grid"),
)
NEEDED_BY = {  # an option, and those that mean nothing without it
    "--sample": ("--temperature", "--top-k", "--top-p", "--seed"),
    "--diverse-groups": ("--diversity",),
    "--alignments": ("--alignment-layer", "--alignment-heads"),
    "--min-confidence": ("--below",),
}
# Parameters of commands that `TranslationOptions` has by the same name and with the same meaning.
UNCHANGED = (
    *("device", "engine", "compute_type", "batch_tokens", "guard", "protect", "glossary"),
    *("alignments", "alignment_layer", "keep_unknown"),
)


def option(usage: str, meaning: str, **others: Any) -> Any:
    """Return the option that help shows as `usage`, such as `--beam N` or `--output -o FILE`."""
    names = [word for word in usage.split() if word.startswith("-")]
    metavar = usage.removeprefix(" ".join(names)).strip() or None
    return typer.Option(*names, metavar=metavar, help=meaning, **others)


def search_option(
    usage: str, meaning: str, *, name: str | None = None, default: str | None = None, least: int | None = None
) -> Any:
    """Return the option that sets `name` (as in `usage`) of `SearchOptions`, with its bound and default.

    default: in words, where the value says little; "": Typer shows it. least: where 0 only means that it is off.
    """
    name = name or usage.partition(" ")[0].removeprefix("--").replace("-", "_")
    field, bound = SearchOptions.__dataclass_fields__[name], bound_of(name)
    assert bound is not None, f"{name} is not a number"
    if default is None:
        default = "the model's" if name in ConfiguredSearch.__dataclass_fields__ else str(field.default)
    number = float if get_args(field.type)[0] is float else int
    most = None if bound.most is None else number(bound.most)
    shown = f"{meaning}  [default: {default}]" if default else meaning
    return option(usage, shown, min=number(least or bound.least), max=most)


Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A run folder (its best checkpoint is used) or one checkpoint folder.")
]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config file.")]
RunOut = Annotated[Path | None, option("--out RUN", "The run folder.  [default: checkpoints/<config name>]")]
Overrides = Annotated[
    list[str] | None,
    option(
        "--set KEY=VALUE",
        "Change a config value, such as training.max_steps=1000; the value is YAML, and a mapping replaces the whole"
        " mapping. Repeatable.",
    ),
]
Device = Annotated[str, option("--device DEVICE", "auto (cuda, else mps, else cpu), cpu, cuda, cuda:1 or mps.")]
Engine = Annotated[
    str,
    option(
        "--engine ENGINE",
        "auto (ctranslate2 where it is installed and can do what is asked for, else torch), torch or ctranslate2.",
    ),
]
TYPES = "What is computed in: float32, float16, bfloat16; with ctranslate2 int8, int8_float32, … too."
ComputeType = Annotated[str | None, option("--compute-type TYPE", f"{TYPES}  [default: float32; on a GPU: bfloat16]")]
References = Annotated[
    list[Path] | None, option("--reference FILE", "Their translations, aligned. Repeatable: several references.")
]
JsonOutput = Annotated[bool, option("--json", "Print one JSON object instead of a table.")]
Quiet = Annotated[bool, option("--quiet -q", "No progress and no notes on stderr.")]
BatchTokens = Annotated[
    int | None,
    option("--batch-tokens N", "Source tokens translated at a time, padding included.  [default: the model's]", min=1),
]

# --- how to search ----------------------------------------------------------------------------------------------------

Beam = Annotated[int | None, search_option("--beam N", "Beam search with N hypotheses.", name="beam_size")]
Greedy = Annotated[bool, option("--greedy", "Greedy search: the most probable token at every step.")]
LengthPenalty = Annotated[
    float | None,
    search_option("--length-penalty A", "Exponent of the length by which beam search divides log-probabilities."),
]
Sample = Annotated[bool, option("--sample", "Draw each token from the model's distribution.")]
Temperature = Annotated[
    float | None, search_option("--temperature T", "Of --sample: above 1 more varied, below 1 safer.")
]
TopK = Annotated[
    int | None, search_option("--top-k K", "--sample from the K most probable tokens.", default="all", least=1)
]
TopP = Annotated[float | None, search_option("--top-p P", "--sample from the most probable tokens that make up P.")]
Seed = Annotated[int | None, search_option("--seed N", "Of --sample: the same seed draws the same.")]
NBest = Annotated[int, search_option("--n-best N", "Print the N best translations of each line.", default="")]
DiverseGroups = Annotated[
    int | None,
    search_option(
        "--diverse-groups G",
        "Diverse beam search: G groups of beams, each unlike those before it.",
        name="diversity_groups",
    ),
]
Diversity = Annotated[
    float | None,
    search_option(
        "--diversity D",
        "Of --diverse-groups: log-probability that repeating another group's token costs.",
        name="diversity_strength",
    ),
]
MinLength = Annotated[
    int | None, search_option("--min-length N", "Minimum number of tokens of a translation.", default="1")
]
MaxLength = Annotated[
    int | None,
    search_option(
        "--max-length N",
        "Maximum number of tokens of a translation.",
        default="by the length of the source, as the model's config says",
    ),
]
NoRepeatNgram = Annotated[
    int | None,
    search_option(
        "--no-repeat-ngram N", "Never repeat a sequence of N tokens in a translation.", default="off", least=1
    ),
]
CoveragePenalty = Annotated[
    float | None,
    search_option(
        "--coverage-penalty B",
        "Weight of the penalty for source tokens that get little attention (Wu et al. 2016).",
        default="0",
    ),
]
Iterations = Annotated[
    int | None,
    search_option("--iterations N", "Of models with generation: mask_predict: passes over a translation."),
]
LengthCandidates = Annotated[
    int | None, search_option("--length-candidates N", "Of the same: how many likely lengths are tried.")
]
Prefix = Annotated[str | None, option("--prefix TEXT", "Every translation begins with this text.")]
Require = Annotated[list[str] | None, option("--require WORDS", "Every translation contains these words. Repeatable.")]
Forbid = Annotated[list[str] | None, option("--forbid WORDS", "No translation contains these words. Repeatable.")]
ConstraintsFile = Annotated[
    Path | None,
    option(
        "--constraints FILE",
        'Constraints of each line: JSON lines such as {"prefix": "…", "require": ["…"], "forbid": ["…"]}.',
    ),
]
Mbr = Annotated[
    int | None,
    option(
        "--mbr N",
        "Minimum Bayes risk: of N candidates (beams, or draws of --sample) those most like all others, by chrF.",
        min=2,
        max=1000,
    ),
]
Guard = Annotated[
    bool, option("--guard/--no-guard", "Search again, without repetition, where a translation repeats itself.")
]
With = Annotated[
    list[Path] | None,
    option(
        "--with MODEL2",
        "Decide on each token together with this model, of the same vocabulary (ensemble). Repeatable.",
    ),
]

# --- what a translation comes with ------------------------------------------------------------------------------------

MinConfidence = Annotated[
    float | None,
    option(
        "--min-confidence X",
        "Mark translations whose expected chrF (0 to 1) is below X; needs a model that tfm calibrate has calibrated.",
        min=0.0,
        max=1.0,
    ),
]
BelowConfidence = Annotated[
    Below | None,
    option("--below WHAT", "Of --min-confidence: mark ([?] before it) or drop (an empty line).  [default: mark]"),
]
AlignmentLayer = Annotated[
    int | None,
    option(
        "--alignment-layer N",
        "Decoder layer whose attention --alignments reads, from 1.  [default: the last, or what learned to align]",
        min=1,
    ),
]
AlignmentHeads = Annotated[
    str | None,
    option(
        "--alignment-heads NUMBERS",
        "Its heads, such as 1,3 or 2-4, from 1.  [default: all, or what learned to align]",
    ),
]
Protect = Annotated[
    bool, option("--protect/--no-protect", "Keep URLs, e-mail addresses, placeholders and tags unchanged.")
]
GlossaryFile = Annotated[
    Path | None, option("--glossary FILE", "Terms and their translations, separated by a tab, one per line.")
]


def _print_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


# For groups of commands: Typer's own has no default, and to check that, it loads pydantic before every command.
HelpOption = Annotated[bool, option("--help -h", "Show this message and exit.", callback=_print_help, is_eager=True)]


def name_arguments(command: Any) -> Any:
    """Return the command, whose help then calls each argument by its name alone (`CONFIG`, not `CONFIG <path>`)."""
    for parameter in command.params:
        if isinstance(parameter, typer.core.TyperArgument):
            name = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
            usage = [f"{name}..." if parameter.nargs != 1 else name]
            vars(parameter).update(get_usage_pieces=lambda _, usage=usage: usage, display_type_rich=lambda **_: "")
    for inner in getattr(command, "commands", {}).values():
        name_arguments(inner)
    return command


def run_folder_path(config: Path, out: Path | None) -> Path:
    """Return RUN: as given, else `checkpoints/<config name>`."""
    return out if out is not None else Path("checkpoints") / config.name.removesuffix(config.suffix)


def files_named(data: "DataConfig", split: str, folder: Path) -> list[Path]:
    """Return the files that `data.valid` or `data.test` of the model in `folder` names. Raises `UserError`."""
    from transformer_cli.storage.origin import find_data

    source = getattr(find_data(data, split, folder), split)
    values = [] if source is None else source.model_dump().values()
    return [Path(value) for value in values if isinstance(value, str) and os.path.isfile(value)]


def check_together(context: typer.Context) -> None:
    """Raise `UserError` where a command's options exclude each other, or one lacks what it belongs to."""
    given = set()
    for parameter in context.command.params:
        value = context.params[parameter.name]
        if value not in (None, [], (), parameter.default):
            given.add((parameter.secondary_opts if value is False else parameter.opts)[0])
    for group in EXCLUSIVE:
        beside = [name for name in group if name in given]
        if len(beside) > 1:
            raise UserError(f"{' and '.join(beside)} exclude each other: leave one out")
    for owner, options in NEEDED_BY.items():
        for name in options:
            if name in given and owner not in given:
                raise UserError(f"{name}: belongs to {owner}; give that too, or leave it out")


def parse_numbers(text: str | None, option: str) -> list[int] | None:
    """Return `1,3-5` as 1, 3, 4, 5; raises `UserError` for anything else."""
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


def translation_options(context: typer.Context, model: Path, *, constrained: bool = False) -> "TranslationOptions":
    """Return how `model` translates, by the options of any command that has some of those of `tfm translate`.

    constrained: whether lines come with constraints. Raises `UserError` where options exclude each other, there is no
    such model, or it cannot do what is asked for.
    """
    check_together(context)
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.jobs.translating import TranslationOptions

    given = context.params
    same = {name: given[name] for name in UNCHANGED if name in given}
    return TranslationOptions(
        model=FoundModel.at(model),
        beside=tuple(map(FoundModel.at, given.get("with_") or ())),
        search=search_changes(given),
        mbr=given.get("mbr") is not None,
        alignment_heads=tuple(parse_numbers(given.get("alignment_heads"), "--alignment-heads") or ()) or None,
        constrained=constrained,
        **same,
    )


def search_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a command's parameters change in a model's own `SearchOptions`, where they have the same names."""
    beam, candidates = given.get("beam_size"), given.get("mbr") or given.get("best_of")
    if given.get("mbr") and given.get("n_best", 1) > candidates:
        raise UserError(
            f"--n-best {given['n_best']} is more than the {candidates} candidates of --mbr: raise that, or lower this"
        )
    if candidates and beam is not None and beam < candidates:
        option = "--mbr" if given.get("mbr") else "--best-of"
        raise UserError(f"{option} {candidates}: --beam {beam} finds fewer candidates; raise that, or lower this")
    changes = {name: given[name] for name in SearchOptions.__dataclass_fields__ if given.get(name) is not None}
    if given.get("greedy") or given.get("sample"):
        changes["method"] = "greedy" if given["greedy"] else "sample"
    if candidates and not given["sample"]:
        changes.setdefault("beam_size", candidates)
    return {**changes, "n_best": candidates or given.get("n_best", 1)}
