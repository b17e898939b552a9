"""One page about one run or several: what was trained on what, how it went, how good it is, where it fails."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from transformer_cli.config import Config, HubDataset, load_config
from transformer_cli.config.yaml_file import dump_flow
from transformer_cli.errors import UserError
from transformer_cli.evaluation.differences import groups_of
from transformer_cli.report.outputs import READ, Examined, Outputs
from transformer_cli.report.page import Row, curves, duration, escaped, figure, heat_map, intervals, page, table
from transformer_cli.report.runs import differing_keys
from transformer_cli.report.runs import table as run_table
from transformer_cli.storage.run_folder import CONFIG, find_model

if TYPE_CHECKING:
    from transformer_cli.inside.attention import Attention

MOST_COLUMNS = 8  # of the table of runs, where it could have fewer
MOST_PARENTS = 5  # that are named, each the one of the last
SENTENCES = 5  # best, and as many worst
OTHER_SET = " --source test.source --reference test.target"
SPLITS = {"test": "test set", "valid": "validation set"}
CURVES = (
    ("Loss", "nats per target token", {"loss": "training", "valid_loss": "validation"}),
    ("BLEU of the validation set, greedy search", "BLEU", {"valid_bleu": "BLEU"}),
    ("Learning rate", "learning rate", {"learning_rate": "learning rate"}),
)


def as_html(found: Sequence[Examined], title: str) -> str:
    """Return a page that needs no network; with several runs it begins with their table and their curves together."""
    parts = []
    if len(found) > 1:
        head, *rows = run_table([one.run for one in found])
        if len(head) > max(MOST_COLUMNS, len(found) + 1):  # a row for each of them, a column for each run
            (_, *head), *rows = map(list, zip(head, *rows, strict=True))
            head.insert(0, "")
        parts = ["<h2>Runs</h2>", table(head, rows, "cards"), *_curves(found)]
    for one in found:
        parts += [f"<h2>{escaped(one.run.name)}</h2>"] * (len(found) > 1)
        parts += _run(one, heading="h2" if len(found) == 1 else "h3")
    return page(title, parts)


def _run(one: Examined, heading: str) -> Iterator[str]:
    def headed(text: str) -> str:
        return f"<{heading}>{text}</{heading}>"

    yield _paragraph(f"{summary(one)} {origin(one.run.config)}")
    for note in one.notes:
        yield _paragraph(f"Missing: {note}.")
    if one.outputs:
        yield headed("Scores") + table(["set", "metric", "score", "95 % interval"], score_rows(one))
        yield "<p>" + "<br>".join(f"<code>{escaped(text)}</code>" for text in signatures(one)) + "</p>"
        yield headed("Where it fails")
        yield from _fails(one)
        yield headed(f"Best and worst sentences of the {SPLITS[one.outputs[0].split]}")
        yield _sentences(one.outputs[0])
    if one.attentions:
        yield headed("Attention")
    for attention in one.attentions:
        yield _attention(attention, one.run.config)
    if heading == "h2" and one.run.metrics:
        yield headed("Training")
        yield from _curves([one])
    yield headed("Data") + table(["", "source", "tag", "weight", "filters"], data_rows(one.run.config))
    yield _paragraph(data_size(one))
    yield headed("Size and speed") + table(["", ""], size_rows(one))
    yield headed("Settings that are not the defaults") + table(["key", "value"], setting_rows(one.run.config))
    commands = usage(str(one.run.path), OTHER_SET * (one.run.config.data.test is None))
    yield headed("How to use it") + f"<pre><code>{'<br>'.join(map(escaped, commands.splitlines()))}</code></pre>"


def _paragraph(text: str) -> str:
    return f"<p>{escaped(text)}</p>" if text else ""


# --- in words and rows, for the card too ------------------------------------------------------------------------------


def summary(one: Examined) -> str:
    """Return what the model is, in a few sentences."""
    run, data = one.run, one.run.config.data
    text = f"Translates from {data.source_language} to {data.target_language}."
    if run.parameters is not None:
        text += f" A Transformer with {run.parameters:,} parameters"
        if data.train is not None:
            text += f", trained for {run.steps:,} steps"
            text += f" in {duration(run.seconds)}" if run.seconds is not None else ""
            text += f" on {'; '.join(run.hardware)}" if run.hardware else ""
        text += "."
    for score in [score for score in one.outputs[0].scores if score.metric == "bleu"] if one.outputs else ():
        text += f" {score.score:.1f} BLEU on the {SPLITS[one.outputs[0].split]}{_first(one.outputs[0])}."
    if not run.finished:
        text += " Its training has not ended."
    return text


def origin(config: Config) -> str:
    """Return where training began, as far back as the models are still there that each one started from."""
    said: list[str] = []
    whose, which = "Its training", "it"
    while (start := config.training.init_from) is not None:
        said.append(f"{whose} started from another model, {start}.")
        whose, which = "The training of that one", "that one"
        try:
            config = load_config(find_model(start) / CONFIG)
        except UserError:
            return " ".join(said)
        if len(said) == MOST_PARENTS:
            return " ".join(said)
    data = config.data
    if data.train is None:
        license_ = data.license or "not stated"
        said.append(f"Others trained {which}; it was imported from {data.imported_from} (license: {license_}).")
    return " ".join(said) or "Trained from scratch."


def _first(outputs: Outputs) -> str:
    if not outputs.left_out:
        return ""
    return f" (the first {len(outputs.sources):,} of {len(outputs.sources) + outputs.left_out:,} sentences)"


def score_rows(one: Examined) -> list[list[str]]:
    """Return a row for each set and metric."""
    return [
        [
            f"{SPLITS[outputs.split]}, {len(outputs.sources):,} sentences" if number == 0 else "",
            score.name,
            f"{score.score:.2f}",
            f"{score.mean - score.interval:.2f} to {score.mean + score.interval:.2f}"
            if score.mean is not None and score.interval is not None
            else "",
        ]
        for outputs in one.outputs
        for number, score in enumerate(outputs.scores)
    ]


def signatures(one: Examined) -> list[str]:
    """Return sacreBLEU's signatures, each after the name of its metric."""
    scores = [score for outputs in one.outputs for score in outputs.scores]
    return list(dict.fromkeys(f"{score.name}|{score.signature}" for score in scores))


def data_rows(config: Config, shorten: Callable[[str], str] = str) -> list[list[str]]:
    """Return a row for each source of the data: key, where it is, tag, weight, filters; shorten: as in `where`."""
    named: dict[str, Any] = {**config.data.sources, "data.valid": config.data.valid, "data.test": config.data.test}
    imported = [] if config.data.train is not None else ["train", f"not known: {config.data.imported_from}", "", "", ""]
    rows = [imported] if imported else []
    for key, source in named.items():
        if source is None and (key == "data.test" or imported):
            continue
        trains = key.startswith("data.train")
        filters = (config.data.filters if source.filters is None else source.filters) if trains else []
        rows.append(
            [
                key.removeprefix("data."),
                "held out of the training data" if source is None else where(source, shorten),
                (source and source.tag) or "",
                f"{source.weight:g}" if trains else "",
                ", ".join(one if isinstance(one, str) else next(iter(one)) for one in filters),
            ]
        )
    return rows


def where(source: Any, shorten: Callable[[str], str] = str) -> str:
    """Return what a source of a config names, in few words; shorten: called with each path."""
    if isinstance(source, HubDataset):
        return f"{source.dataset}, {source.split}"
    values = source.model_dump(exclude={"tag", "weight", "filters"}).values()
    return ", ".join(shorten(value) for value in values if isinstance(value, str))


def data_size(one: Examined) -> str:
    """Return how many pairs the training data has."""
    if one.training is None:
        return ""
    pairs = one.training.pairs
    return f"The training data has {'at least ' * (pairs == READ)}{pairs:,} pairs before filters."


def size_rows(one: Examined) -> list[list[str]]:
    """Return what the model takes, and how fast it is."""
    run, shape = one.run, one.run.config.model
    layers = f"{shape.encoder_layers} + {shape.decoder_layers} layers, d_model {shape.d_model}, {shape.heads} heads"
    rows = [["shape", f"{layers}, d_ff {shape.d_ff}"]]
    if run.model is not None:
        rows.append(["checkpoint", run.model.name])
    if run.parameters is not None and run.bytes is not None:
        rows.append(["parameters", f"{run.parameters:,} in {run.bytes / 1e6:,.1f} MB"])
    if run.seconds is not None:
        rows.append(["trained", f"{duration(run.seconds)}, {run.steps:,} steps"])
    rows += [["trained on", hardware] for hardware in run.hardware]
    for outputs in one.outputs[:1]:
        speed = len(outputs.sources) / max(outputs.seconds, 1e-9)
        rows.append(["translates", f"{speed:,.1f} sentences a second, measured with the {SPLITS[outputs.split]}"])
        rows.append(["with", one.engine])
    return rows


def setting_rows(config: Config) -> list[list[str]]:
    """Return the keys of a config, apart from its data, that have another value than the default."""
    usual = Config.model_construct(data=config.data)
    return [[key, dump_flow(value)] for key, (value, _) in differing_keys([config, usual]).items()]


def usage(path: str, evaluate: str = "") -> str:
    """Return commands to begin with."""
    path = shlex.quote(path)
    return f'tfm translate {path} "…"\ntfm translate {path} -i input.txt -o output.txt\ntfm evaluate {path}{evaluate}'


# --- in pictures ------------------------------------------------------------------------------------------------------


def _curves(found: Sequence[Examined]) -> Iterator[str]:
    for caption, unit, keys in CURVES:
        lines = {
            name if len(found) == 1 else f"{one.run.name}, {name}" if len(keys) > 1 else one.run.name: list(
                zip(series.steps, series.values, strict=True)
            )
            for one in found
            for key, name in keys.items()
            if (series := one.run.metrics.get(key)) and any(value == value for value in series.values)
        }
        if lines:
            yield figure(caption, curves(lines, unit))


def _fails(one: Examined) -> Iterator[str]:
    first = one.outputs[0]
    found: dict[str, list[Row]] = {}
    counts = None if one.training is None else one.training.counts
    for by, name, chosen in groups_of(first.sources, first.references, counts):
        if places := chosen.nonzero()[0].tolist():
            score = first.chrf(places)
            row = Row(f"{name} ({len(places):,})", score, 0.0, score, f"{score:.1f}")
            found.setdefault(by, []).append(row)
    for by, rows in found.items():
        yield figure(f"chrF by {by}", intervals(rows))
    faults = []
    for kind, places in sorted(one.failures.items(), key=lambda item: -len(item[1])):
        worst = min(places, key=lambda place: first.sentence_scores[place])
        share = f"{len(places):,} ({len(places) / len(first.sources):.1%})"
        faults.append([share, kind, first.sources[worst], first.translations[worst]])
    if faults:
        yield table(["sentences", "the translation", "for example", "becomes"], faults, "cards")
    else:
        yield _paragraph("No translation is empty, repeats itself, copies the source, or is far too short or too long.")


def _sentences(first: Outputs) -> str:
    ranked = first.ranked()
    chosen = dict.fromkeys([*ranked[:SENTENCES], *ranked[-SENTENCES:]])
    rows = [
        [f"{first.sentence_scores[at]:.0f}", first.sources[at], first.translations[at], first.references[at]]
        for at in chosen
    ]
    return table(["chrF", "source", "translation", "reference"], rows, "cards")


def _attention(attention: "Attention", config: Config) -> str:
    """Return the mean attention to the source of the heads that alignments are read from."""
    layer, heads = config.alignment_attention
    weights = attention.cross[layer][list(heads) if heads else slice(None)].mean(axis=0)  # (T, S)
    alt = f"Attention from each token of “{attention.translation}” to those of “{attention.sentence}”"
    picture = heat_map(attention.target_output, attention.source, weights.tolist(), alt)
    return figure(f"{alt}: the mean of {len(heads) if heads else 'all'} heads of one decoder layer", picture)
