"""`tfm doctor`: what is wrong with a corpus, before time is spent on it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import check_output, note, write_report
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.config import DataConfig


def doctor(
    context: typer.Context,
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="A config file, or --source.")] = None,
    source: Path | None = opt.option("--source FILE", "Source sentences, in place of CONFIG (plain or .gz)."),
    target: Path | None = opt.option("--target FILE", "Their translations."),
    overrides: list[str] | None = opt.OVERRIDES,
    format_: Literal["text", "json", "html"] = opt.option("--format FORMAT", "text, json or html (a page).", "text"),
    output_file: Path | None = opt.option("--output -o FILE", "Write the report to this file."),
    propose: bool = opt.option("--propose", "Print the data.filters that leave out what was found.", False),
    write: Path | None = opt.option("--write FILE", "Write the config with these filters to a new file."),
    strict: bool = opt.option("--strict", "Exit with code 1 where something serious was found.", False),
    jobs: int = opt.option("--jobs N", "Processes that judge.  [default: data.workers]", 0, min=0, max=256),
    cluster: str | None = opt.CLUSTER,
    quiet: bool = opt.QUIET,
) -> None:
    """Judge training, validation and test data, and say what to do.

    \b
    tfm doctor my.yaml
    tfm doctor --source train.de --target train.en --format html -o report.html
    tfm doctor my.yaml --write my-clean.yaml

    Ranks what is wrong: how many pairs, where, examples, what it costs and what to do. Nothing is trained, nothing is
    changed. Languages are told apart by what the corpus itself looks like, and regions that are shifted by lines are
    found by which words go together.
    """
    from transformer_cli.config.yaml_file import read_config_text
    from transformer_cli.data.corpora import open_corpus, training_sources
    from transformer_cli.data.quality.judge import Bounds
    from transformer_cli.doctor import proposal
    from transformer_cli.doctor import report as reports
    from transformer_cli.doctor.findings import examine
    from transformer_cli.doctor.page import as_html
    from transformer_cli.storage.origin import paths_of
    from transformer_cli.storage.publishing import atomic_write

    data = read_data(config, source, target, overrides or [])
    languages = data.source_language, data.target_language
    named = {key.removeprefix("data."): one for key, one in training_sources(data).items()}
    named |= {name: one for name, one in (("valid", data.valid), ("test", data.test)) if one is not None}
    if write is not None and (config is None or write.exists()):
        raise UserError(f"--write {write}: {'exists' if config else 'needs a CONFIG'}; nothing is replaced")
    if write is not None and write == output_file:
        raise UserError(f"{write}: is named twice, by --write and by --output; choose two names")
    check_output(output_file, {**context.params, "data": [Path(path) for path in paths_of(data, "data").values()]})
    before = "" if write is None or config is None else read_config_text(config)
    if write is not None:
        check_output(write)
        proposal.check_sources(before, str(config), [*data.sources])
    corpora = {name: open_corpus(one, *languages) for name, one in named.items()}
    bounds = Bounds(data.max_length)
    tagged = [name for name, one in named.items() if one.tag is not None]
    filters = {key.removeprefix("data."): data.filters_of(one) for key, one in data.sources.items()}
    workers = opt.workplace(context) if cluster or jobs else data.workers
    found = examine(corpora, bounds, filters=filters, tagged=tagged, workers=workers, progress=not quiet)
    title = f"{config or source}: what tfm doctor found"
    if propose:
        text = proposal.as_yaml(data, proposal.filters(found))
    elif format_ == "text":
        text = "\n".join(reports.as_text(found))
    else:
        text = reports.as_json(found) if format_ == "json" else as_html(found, title)
    write_report(output_file, text)
    if write is not None:
        atomic_write(write, proposal.filtered_config(before, str(config), proposal.filters(found)))
        if not quiet:
            note(f"wrote {write}; next: tfm train {write}")
    if strict and found.is_serious:
        raise typer.Exit(1)


def read_data(config: Path | None, source: Path | None, target: Path | None, overrides: list[str]) -> "DataConfig":
    """Return where the data is, by a config or by two files. Raises `UserError`."""
    from transformer_cli.config import DataConfig, TextFiles
    from transformer_cli.storage.origin import load_found_config

    if (config is None) == (source is None) or (source is None) != (target is None):
        raise UserError("give a CONFIG, or --source FILE and --target FILE")
    if config is not None:
        return load_found_config(config, overrides).data
    files = TextFiles(source=str(source), target=str(target))
    return DataConfig(source_language="und", target_language="und", train=files)
