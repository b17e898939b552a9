"""Values out of range for every option of every command, and options that exclude each other: exit code 2, one line.

The options are read from the app itself, so that a new one is tested from its first day.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from tests.sampling import one_of_each, quick
from transformer_cli.cli.app import app
from transformer_cli.cli.options import EXCLUSIVE, NEEDED_BY


def options(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every option of every command, with the words that name the command."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from options(inner, (*path, name))
    if path:
        yield from ((path, parameter) for parameter in command.params if parameter.opts[0].startswith("-"))


EVERY = [*options(typer.main.get_command(app))]
OPTIONS = [(path, option) for path, option in EVERY if not option.is_flag]
ALL = {(*path, option.opts[0]) for path, option in OPTIONS}


def out_of_range(option: Any) -> list[str]:
    whole, low, high = option.type_descriptor.annotation is int, option.min, option.max
    values = ["", "many", "0x10", "1,5", "nan", "1.5" if whole else "inf"]
    values += [] if low is None else [str(low - 1), "-99999999999999999999"]
    values += [] if high is None else [str(high + 1), "99999999999999999999"]
    return values


NUMBERS = [(path, option) for path, option in OPTIONS if option.type_descriptor.annotation in (int, float)]
CASES = one_of_each(
    [
        pytest.param(path, option.opts[0], value, id=f"{' '.join(path)} {option.opts[0]}={value}")
        for value in out_of_range(option)
    ]
    for path, option in NUMBERS
)


def arguments(path: tuple[str, ...], trial: Any, folder: Path) -> list[object]:
    """What the command needs beside its options."""
    texts = [
        "--source",
        trial.source,
        "--target" if path in (("score",), ("align",)) else "--reference",
        trial.reference,
    ]
    return {
        ("init",): [trial.source, trial.reference, "--out", folder / "new"],
        ("doctor",): [trial.config],
        ("demo",): ["--out", folder / "demo", "--quiet"],
        ("export",): [trial.run, "--format", "ctranslate2", "--out", folder / "new"],
        ("build-vocab",): [trial.config, "--out", folder / "run"],
        ("train",): [trial.config, "--out", folder / "run"],
        ("translate",): [trial.run, "ein hund"],
        ("evaluate",): [trial.run, *texts],
        ("compare",): [trial.run, trial.words, *texts],
        ("report",): [trial.run, "-o", folder / "report.html"],
        ("score",): [trial.run, *texts],
        ("align",): [trial.run, *texts],
        ("average",): [trial.run, "--out", folder / "average"],
        ("calibrate",): [trial.run, *texts],
        ("distill",): [trial.run, trial.config, "--out", folder / "distilled"],
        ("backtranslate",): [trial.run, "--input", trial.folder / "train.de", "--out", folder / "made"],
        ("tune",): [trial.config, "--vary", "model.dropout=0.1,0.2", "--budget", "9steps", "--out", folder / "tuned"],
        ("inspect",): [trial.run],
        ("serve",): [trial.run],
        ("plot", "attention"): [trial.run, "ein hund", "-o", folder / "a.png"],
        ("plot", "positions"): ["-o", folder / "a.png"],
        ("plot", "mask"): [trial.run, "ein hund", "-o", folder / "a.png"],
        ("plot", "schedule"): [trial.config, "-o", folder / "a.png"],
        ("plot", "training"): [trial.run, "-o", folder / "a.png"],
    }[path]


@pytest.mark.parametrize(("path", "option", "value"), CASES)
def test_a_number_out_of_range_is_refused(
    path: tuple[str, ...], option: str, value: str, trial: Any, tfm: Any, tmp_path: Path
) -> None:
    said = tfm(*path, *arguments(path, trial, tmp_path), f"{option}={value}").refused()
    assert option in said
    assert f"tfm {' '.join(path)} --help" in said
    assert list(tmp_path.iterdir()) == []


def test_the_numbers_tested_are_many() -> None:
    assert len(CASES) > 100
    assert {(path, option) for path, option, _ in quick(CASES)} == {(path, option.opts[0]) for path, option in NUMBERS}
    assert len({value for *_, value in quick(CASES)}) > 10
    assert {("translate", "--beam"), ("score", "--length-penalty"), ("average", "--last")} <= ALL


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--device", "gpu"),
        ("--device", ""),
        ("--device", "cuda:x"),
        ("--device", "cpu:7"),
        ("--set", "training.max_steps"),
        ("--set", "="),
        ("--set", "training.max_steps=-1"),
        ("--set", "training.label_smoothing=.nan"),
        ("--set", "data.train=!!python/object/apply:os.system ['exit 1']"),
        ("--metric", "accuracy"),
        ("--kind", "sideways"),
        ("--side", "left"),
        ("--layers", "0"),
        ("--layers", "3-1"),
        ("--heads", "x"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_every_command_that_takes_it(
    option: str, value: str, trial: Any, tfm: Any, tmp_path: Path
) -> None:
    commands = [path for path, parameter in OPTIONS if option in parameter.opts]
    assert commands
    for path in commands:
        tfm(*path, *arguments(path, trial, tmp_path), f"{option}={value}").refused()
        assert list(tmp_path.iterdir()) == []


EXCLUDING = {
    "translate": [
        ["--beam", "2", "--greedy"],
        ["--beam", "2", "--sample"],
        ["--greedy", "--sample"],
        ["--temperature", "2"],
        ["--top-k", "3"],
        ["--top-p", "0.5"],
        ["--seed", "3"],
        ["--sample", "--temperature", "0"],
        ["--sample", "--top-p", "0"],
        ["--n-best", "3", "--alignments"],
        ["--n-best", "3", "--greedy"],
        ["--n-best", "7", "--beam", "5"],
        ["--mbr", "4", "--beam", "3"],
        ["--glossary", "{source}", "--no-protect"],
        ["--input", "{source}"],
    ],
    "train": [["--resume", "--fresh"]],
    "evaluate": [["--beam", "2", "--greedy"]],
    "compare": [["--beam", "2", "--greedy"]],
    "average": [["{run}", "--last", "2"]],
    "serve": [["--beam", "2", "--greedy"], ["--engine", "torch", "--compute-type", "int8"]],
    "distill": [
        ["--beam", "2", "--greedy"],
        ["--temperature", "2"],
        ["--best-of", "3", "--greedy"],
        ["--best-of", "3", "--mbr", "4"],
        ["--best-of", "4", "--beam", "3"],
        ["--glossary", "{source}", "--no-protect"],
    ],
    "tune": [["--study", "mine"], ["--seeds", "1"], ["--sampler", "best"]],
    "backtranslate": [["--beam", "2", "--sample"], ["--temperature", "2"], ["--keep", "low_score"]],
}


@pytest.mark.parametrize(
    ("command", "given"), [(command, given) for command, lists in EXCLUDING.items() for given in lists]
)
def test_options_that_exclude_each_other_are_refused(
    command: str, given: list[str], trial: Any, tfm: Any, tmp_path: Path
) -> None:
    words = [word.format(source=trial.source, run=trial.run) for word in given]
    tfm(command, *arguments((command,), trial, tmp_path), *words).refused()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("group", [*EXCLUSIVE, *NEEDED_BY.items()], ids=str)
def test_what_goes_together_is_said_of_options_that_some_command_has(group: tuple[str, Any]) -> None:
    """All of them: else a name that was changed, or misspelled, would never be checked."""
    names = {name for one in group for name in ([one] if isinstance(one, str) else one)}
    commands: dict[tuple[str, ...], set[str]] = {}
    for path, option in EVERY:
        commands.setdefault(path, set()).update(option.opts, option.secondary_opts)
    shared = [names & there for there in commands.values()]
    assert set().union(*(both for both in shared if len(both) > 1)) == names


@pytest.mark.parametrize("lacking", ["--source", "--reference"])
def test_one_half_of_a_test_set_is_refused(lacking: str, trial: Any, tfm: Any) -> None:
    other = {"--source": "--reference", "--reference": "--source"}[lacking]
    said = tfm("evaluate", trial.run, other, trial.source).refused()
    assert "belong together" in said


@pytest.mark.parametrize("option", ["--top-k", "--seed", "--batch-tokens"])
def test_a_number_without_a_bound_may_be_as_large_as_it_likes(option: str, trial: Any, tfm: Any) -> None:
    """Or it is refused; it never breaks what comes after."""
    outcome = tfm("translate", trial.run, "ein hund", "--sample", option, 10**30)
    assert outcome.code in (0, 2)
