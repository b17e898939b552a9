"""Options that several commands share, in the groups of the help; which go together; what translating takes of them.

An option is declared once, as a field of a group or as a constant. A command that has a parameter of a group's type
takes all options of that group; `with_options` tells Typer so. `translation_options` reads those that say how to
translate. Fields that set a search option have its name; bounds and defaults are those of `SearchOptions`.
"""

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_type_hints

import typer

from transformer_cli.cli.completion import complete_setting
from transformer_cli.cli.help import full_help, short_help
from transformer_cli.decoding.devices import has_gpu, rank_and_size
from transformer_cli.errors import UserError
from transformer_cli.search_options import ConfiguredSearch, SearchOptions, bound_of

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster
    from transformer_cli.config import DataConfig
    from transformer_cli.jobs.translating import TranslationOptions

KEYWORD = inspect.Parameter.KEYWORD_ONLY
EXCLUSIVE = (  # at most one option of each line
    ("--beam", "--greedy", "--sample"),
    ("--best-of", "--greedy", "--mbr"),
    ("--coverage-penalty", "--greedy", "--sample"),
    ("--diverse-groups", "--greedy", "--sample"),
    ("--glossary", "--no-protect"),
    ("--min-confidence", "--with"),  # which is known of one model alone
    ("--resume", "--fresh"),
    ("--dry-run", "--profile"),
    ("--dry-run", "--until"),
    ("--mean", "--grid", "--entropy"),
    ("--target", "--entropy"),
)
NEEDED_BY = {  # an option, and those that mean nothing without it
    "--sample": ("--temperature", "--top-k", "--top-p", "--seed"),
    "--diverse-groups": ("--diversity",),
    "--alignments": ("--alignment-layer", "--alignment-heads"),
    "--min-confidence": ("--below",),
    "--storage": ("--study",),
}
# Parameters of commands that `TranslationOptions` has by the same name and with the same meaning.
UNCHANGED = (
    *("device", "engine", "compute_type", "batch_tokens", "guard", "protect", "glossary"),
    *("alignments", "alignment_layer", "keep_unknown", "tag"),
)


def option(usage: str, meaning: str, default: Any = None, **others: Any) -> Any:
    """Return the option that help shows as `usage`, such as `--beam N` or `--output -o FILE`.

    default: `...` where the option must be given.
    """
    names = [word for word in usage.split() if word.startswith("-")]
    metavar = usage.removeprefix(" ".join(names)).strip() or None
    return typer.Option(default, *names, metavar=metavar, help=meaning, **others)


def search_option(
    usage: str, meaning: str, default: Any = None, *, name: str | None = None, shown: str | None = None, least: int = 0
) -> Any:
    """Return the option that sets `name` (as in `usage`) of `SearchOptions`, with its bound and default.

    default: None is that of the model or of `SearchOptions`. shown: it in words, where the value says little. least:
    where 0 only means that it is off.
    """
    name = name or usage.partition(" ")[0].removeprefix("--").replace("-", "_")
    field, bound = SearchOptions.__dataclass_fields__[name], bound_of(name)
    assert bound is not None, f"{name} is not a number"
    if default is not None:
        shown = str(default)
    elif shown is None:
        shown = "the model's" if name in ConfiguredSearch.__dataclass_fields__ else str(field.default)
    number = float if get_args(field.type)[0] is float else int
    most = None if bound.most is None else number(bound.most)
    meaning = f"{meaning}  [default: {shown}]"
    return option(usage, meaning, default, min=number(least or bound.least), max=most, show_default=False)


class Options:
    """A group of options: fields `name: type = option(…)`, and their values when a command has been called."""

    panel: ClassVar[str]  # the heading of the group in the help

    def __init_subclass__(cls, panel: str) -> None:
        cls.panel = panel

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return the options as parameters of a function, which is what Typer reads."""
        hints = get_type_hints(cls)
        parameters = []
        for name in inspect.get_annotations(cls):
            declared = copy(getattr(cls, name))
            declared.rich_help_panel = cls.panel
            parameters.append(inspect.Parameter(name, KEYWORD, default=declared, annotation=hints[name]))
        return parameters


def _show_help(context: typer.Context, parameter: typer.CallbackParam, wanted: bool) -> None:
    if wanted:
        print(short_help(context) if "-h" in parameter.opts else full_help(context))
        raise typer.Exit


class Help(Options, panel="Help"):
    """What every command has. (Typer's own loads pydantic before every command, to check that it has no default.)"""

    brief: bool = option("-h", "Show the most used options.", False, is_eager=True, callback=_show_help)
    everything: bool = option("--help", "Show all options.", False, is_eager=True, callback=_show_help)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it: with the options of each group in the place of the group."""
    groups: dict[str, type[Options]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if isinstance(parameter.annotation, type) and issubclass(parameter.annotation, Options):
            groups[name] = parameter.annotation
            parameters += parameter.annotation.parameters()
        else:
            parameters.append(parameter.replace(kind=KEYWORD))
    parameters += Help.parameters()

    @functools.wraps(command)
    def run(brief: bool, everything: bool, **given: Any) -> None:  # help has been shown by then
        taken = {
            name: group(**{option.name: given.pop(option.name) for option in group.parameters()})
            for name, group in groups.items()
        }
        command(**given, **taken)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    vars(run)["__signature__"] = inspect.Signature(parameters)
    return run


MODEL = "A run folder (its best checkpoint is used) or one checkpoint folder."
Model = Annotated[Path, typer.Argument(metavar="MODEL", help=MODEL)]
ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config file.")]

RUN_OUT = option("--out RUN", "The run folder.  [default: checkpoints/<config name>]")
SET = "Change a config value: training.max_steps=1000. The value is YAML; a mapping replaces all of it. Repeatable."
OVERRIDES = option("--set KEY=VALUE", SET, autocompletion=complete_setting)
DEVICE = option("--device DEVICE", "auto (cuda, else mps, else cpu), cpu, cuda, cuda:1 or mps.", "auto")
REFERENCES = option("--reference FILE", "Their translations, aligned. Repeatable: several references.")
METRICS = option("--metric METRIC", "bleu, chrf, chrf++ or ter; several with commas.  [default: bleu,chrf,ter]")
ON_CLUSTER = "; with --cluster as many as it has room for"
CLUSTER = option(
    "--cluster ADDRESS", "Work on the machines of a Ray cluster: auto (that of this machine) or HOST:PORT."
)
JSON = option("--json", "Print one JSON object instead of a table.", False)
QUIET = option("--quiet -q", "No progress and no notes on stderr.", False)
BATCH = "Source tokens translated at a time, padding included.  [default: the model's]"
COVERAGE = "Weight of the penalty for source tokens that get little attention (Wu et al. 2016)."
DIVERSE = "Diverse beam search: G groups of beams, each unlike those before it."
DIVERSITY = "With --diverse-groups: log-probability that repeating another group's token costs."
TYPES = "What is computed in: float32, float16, bfloat16; with ctranslate2 int8, int8_float32, … too."


class Shares(Options, panel="Input and output"):
    """How a training set that a model writes is made, by one process or several."""

    gzip: bool = option("--gzip", "Compress the two files.", False)
    jobs: int | None = option(
        "--jobs N", f"Translate with N processes, over all GPUs.  [default: 1{ON_CLUSTER}]", min=1, max=1000
    )
    cluster: str | None = CLUSTER
    shard: str | None = option(
        "--shard I/N", "Translate only the I-th of N shares, such as 2/8; without this option the shares are joined."
    )
    quiet: bool = QUIET

    def parse(self) -> tuple[int, int] | None:
        """Return the share that `--shard` names, counted from 0, and of how many. Raises `UserError`."""
        if self.shard is None:
            return None
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", self.shard)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise UserError(f"--shard {self.shard}: write it as I/N, the I-th of N shares, such as 2/8")
        if rank_and_size()[1] > 1:
            raise UserError(
                "--shard and torchrun exclude each other: torchrun's processes share the data by themselves"
            )
        return int(found[1]) - 1, int(found[2])


class Engine(Options, panel="Engine"):
    """What a model runs on, and how."""

    engine: str = option(
        "--engine ENGINE",
        "auto (ctranslate2 where it is installed and can do it, else torch), torch or ctranslate2.",
        "auto",
    )
    compute_type: str | None = option("--compute-type TYPE", f"{TYPES}  [default: float32; on a GPU: bfloat16]")
    batch_tokens: int | None = option("--batch-tokens N", BATCH, min=1)
    device: str = DEVICE


class Search(Options, panel="Search"):
    """How translations are found, by any command that translates."""

    beam_size: int | None = search_option("--beam N", "Beam search with N hypotheses.", name="beam_size")
    greedy: bool = option("--greedy", "Greedy search: the most probable token at every step.", False)
    length_penalty: float | None = search_option(
        "--length-penalty A", "Exponent of the length that scores are divided by."
    )
    iterations: int | None = search_option("--iterations N", "Passes over a translation (generation: mask_predict).")
    length_candidates: int | None = search_option(
        "--length-candidates N", "How many lengths are tried (the same models)."
    )
    split: Literal["auto", "always", "never"] | None = option(
        "--split WHEN",
        "Translate each line sentence by sentence: always, never, or auto (as training decided by its own lines)."
        "  [default: the model's]",
    )
    tag: str | None = option(
        "--tag TAG",
        "Put this symbol, which the model was trained with, before each source text; '' is none."
        "  [default: the model's]",
    )


class MoreSearch(Options, panel="Search"):
    """Sampling, and what else changes which translation is found."""

    sample: bool = option("--sample", "Draw each token from the model's distribution.", False)
    temperature: float | None = search_option("--temperature T", "With --sample: above 1 more varied, below 1 safer.")
    top_k: int | None = search_option("--top-k K", "--sample from the K most probable tokens.", shown="all", least=1)
    top_p: float | None = search_option("--top-p P", "--sample from the most probable tokens that make up P.")
    seed: int | None = search_option("--seed N", "With --sample: the same seed draws the same.")
    mbr: int | None = option(
        "--mbr N",
        "Minimum Bayes risk: of N candidates (beams, or samples) prefer those most like all the others, by chrF.",
        min=2,
        max=1000,
    )
    diversity_groups: int | None = search_option("--diverse-groups G", DIVERSE, name="diversity_groups")
    diversity_strength: float | None = search_option("--diversity D", DIVERSITY, name="diversity_strength")
    with_: list[Path] | None = option(
        "--with MODEL2", "Decide on each token together with this model (ensemble); same vocabulary. Repeatable."
    )
    guard: bool = option(
        "--guard/--no-guard", "Search again, without repetition, where a translation repeats itself.", True
    )
    no_repeat_ngram: int | None = search_option(
        "--no-repeat-ngram N", "Never repeat a sequence of N tokens in a translation.", shown="off", least=1
    )
    coverage_penalty: float | None = search_option("--coverage-penalty B", COVERAGE, shown="0")
    min_length: int | None = search_option("--min-length N", "Minimum number of tokens of a translation.", shown="1")
    max_length: int | None = search_option(
        "--max-length N", "Maximum number of tokens.", shown="by the source's length"
    )


class Protection(Options, panel="Constraints"):
    """What stays as it is in a translation, and how terms are translated."""

    glossary: Path | None = option("--glossary FILE", "Terms and their translations, separated by a tab, one per line.")
    protect: bool = option("--protect/--no-protect", "Keep URLs, e-mails, placeholders and tags unchanged.", True)


def run_folder_path(config: Path, out: Path | None) -> Path:
    """Return RUN: as given, else `checkpoints/<config name>`. Raises `UserError` for the config that a run has saved,
    whose name says nothing."""
    if out is not None:
        return out
    from transformer_cli.storage.run_folder import CHECKPOINT, CONFIG, RunFolder

    run = config.parent.parent if CHECKPOINT.fullmatch(config.parent.name) else config.parent
    if config.name == CONFIG and RunFolder(config.parent).exists():
        raise UserError(f"{config}: is the config of a run; add --out {run} to continue it, or name a new folder")
    return Path("checkpoints") / config.name.removesuffix(config.suffix)


def files_named(data: "DataConfig", split: str, folder: Path) -> list[Path]:
    """Return the files that there are of those that `data.train`, `valid` or `test` of the model in `folder` names."""
    from transformer_cli.storage.origin import find_path, paths_of

    named = [(key, path) for key, path in paths_of(data, "data").items() if key.startswith(f"data.{split}.")]
    return [Path(path) for path in (find_path(folder, key, path) for key, path in named) if os.path.isfile(path)]


def given_options(context: typer.Context) -> list[str]:
    """Return the options that were given another value than their default, and arguments by their names."""
    given = []
    for parameter in context.command.params:
        value = context.params[parameter.name]
        if value not in (None, [], (), parameter.default):
            given.append((parameter.secondary_opts if value is False else parameter.opts)[0])
    return given


def check_together(context: typer.Context) -> None:
    """Raise `UserError` where a command's options exclude each other, or one lacks what it belongs to."""
    given = given_options(context)
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
    if given.get("cluster") and given["device"] == "auto" and has_gpu():
        same["device"] = "cpu"  # of other machines, whatever this one has
    return TranslationOptions(
        model=FoundModel.at(model),
        beside=tuple(map(FoundModel.at, given.get("with_") or ())),
        search=search_changes(given),
        mbr=given.get("mbr") is not None,
        alignment_heads=tuple(parse_numbers(given.get("alignment_heads"), "--alignment-heads") or ()) or None,
        constrained=constrained,
        **same,
    )


def workplace(context: typer.Context, files: Sequence[Path] = ()) -> "int | Cluster":
    """Return how many processes of this machine work, or the cluster that `--cluster` names, connected to it.

    files: what its workers must be able to read. Raises `UserError` as `cluster.connect` does.
    """
    given = context.params
    if given["cluster"] is None:
        return given["jobs"] or 1
    if rank_and_size()[1] > 1:
        raise UserError("--cluster and torchrun exclude each other: Ray starts the processes itself")
    try:
        from transformer_cli.cluster import connect
    except ImportError:
        raise UserError("--cluster needs Ray, which is not installed; pip install 'transformer-cli[cluster]'") from None
    return connect(given["cluster"], given.get("device", "cpu"), given["jobs"], files)


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
