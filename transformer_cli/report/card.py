"""The model card of a run: README.md in Hugging Face's format, and `.eval_results/` where the test set is on its hub.

The format: https://huggingface.co/docs/hub/model-cards and https://huggingface.co/docs/hub/eval-results.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import yaml

from transformer_cli import __version__
from transformer_cli.config import HubDataset
from transformer_cli.data.corpora import Corpus, open_corpus, open_split, training_sources
from transformer_cli.data.quality.judge import Bounds
from transformer_cli.doctor.findings import KINDS, examine, is_training
from transformer_cli.errors import UserError
from transformer_cli.report.outputs import Examined, Outputs
from transformer_cli.report.page import duration, in_use, printable
from transformer_cli.report.run_page import (
    OTHER_SET,
    SPLITS,
    data_rows,
    data_size,
    origin,
    score_rows,
    signatures,
    size_rows,
    summary,
    usage,
    where,
)
from transformer_cli.report.runs import Run
from transformer_cli.storage.origin import find_data, is_on_hub
from transformer_cli.storage.publishing import atomic_write

CARD = "README.md"
RESULTS = Path(".eval_results") / "tfm.yaml"
JUDGED = 200_000  # pairs of the training data that `tfm doctor` looks at
MARK = re.compile(r"(?:<!-- |# )written by tfm report --card; sha256 ([0-9a-f]{64})(?: -->)?\n")
UNKNOWN = "Not stated. Set `data.license` in config.yaml of this folder and write the card again."


def check_card(run: Path) -> None:
    """Raise `UserError` where the folder has a README.md or results that tfm did not write, or that were edited."""
    for path in (run / CARD, run / RESULTS):
        if os.path.lexists(path) and not is_ours(path):
            raise UserError(f"{path}: was not written by tfm, or was edited since; move it away, then write the card")
    if not os.access(run, os.W_OK | os.X_OK):
        raise UserError(f"{run}: no permission to write a card here; copy the run folder")


def is_ours(path: Path) -> bool:
    """Return whether a file has the hash of its other lines in it, as `write_card` leaves it."""
    try:
        text = path.read_bytes().decode("utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return False
    mark = MARK.search(text)
    return mark is not None and mark[1] == _hash(text.replace(mark[0], "", 1))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_card(one: Examined, said: Sequence[str]) -> list[Path]:
    """Write the card, and results where there are any; return the files. `said`: lines about the training data."""
    check_card(one.run.path)
    front = f"---\n{_yaml(front_matter(one))}---\n"
    body = "\n".join(_body(one, said)) + "\n"
    text = f"<!-- written by tfm report --card; sha256 {_hash(front + body)} -->\n"
    atomic_write(one.run.path / CARD, front + text + body)
    results = eval_results(one)
    if not results:
        (one.run.path / RESULTS).unlink(missing_ok=True)  # of an earlier card
        return [one.run.path / CARD]
    (one.run.path / RESULTS).parent.mkdir(exist_ok=True)
    listed = _yaml(results)
    atomic_write(one.run.path / RESULTS, f"# written by tfm report --card; sha256 {_hash(listed)}\n{listed}")
    return [one.run.path / CARD, one.run.path / RESULTS]


def _yaml(tree: Any) -> str:
    """Return YAML as version 1.1 reads it, which the hub does: `no` in quotes."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


# --- for machines -----------------------------------------------------------------------------------------------------


def front_matter(one: Examined) -> dict[str, Any]:
    """Return what the hub reads of a card."""
    data = one.run.config.data
    languages = [re.split("[-_]", code)[0].lower() for code in (data.source_language, data.target_language)]
    hub = [one for one in (*data.sources.values(), data.valid, data.test) if is_on_hub(one)]
    front: dict[str, Any] = {"language": list(dict.fromkeys(languages))}
    if data.license is not None:
        front["license"] = data.license.lower()
    front |= {"library_name": "transformer-cli", "pipeline_tag": "translation", "tags": ["translation", "transformer"]}
    if hub:
        front["datasets"] = list(dict.fromkeys(cast(HubDataset, source).dataset for source in hub))
    if one.outputs:
        front["metrics"] = [score.metric for score in one.outputs[0].scores]
        results = [_result(one.run, outputs) for outputs in one.outputs]
        front["model-index"] = [{"name": one.run.name, "results": results}]
    return front


def _result(run: Run, outputs: Outputs) -> dict[str, Any]:
    source = getattr(run.config.data, outputs.split)
    name = SPLITS[outputs.split] if source is None else where(source, os.path.basename)
    part = f"[:{len(outputs.sources)}]" if outputs.left_out else ""  # as the hub's datasets write the first of a split
    split = f"{outputs.split}{part}"
    dataset = {"type": source.dataset if is_on_hub(source) else "local", "name": name, "split": split}
    if is_on_hub(source) and source.revision is not None:
        dataset["revision"] = source.revision
    metrics = []
    for score in outputs.scores:
        args: dict[str, Any] = {"checkpoint": run.model.name if run.model else "", "signature": score.signature}
        if score.mean is not None and score.interval is not None:
            args["interval"] = [round(score.mean - score.interval, 2), round(score.mean + score.interval, 2)]
        value = round(score.score, 2)
        metrics.append({"type": score.metric, "value": value, "name": score.name, "args": args})
    return {"task": {"type": "translation", "name": "Translation"}, "dataset": dataset, "metrics": metrics}


def eval_results(one: Examined) -> list[dict[str, Any]]:
    """Return what `.eval_results/` holds of a test set that is on the hub, the one kind that it knows; else nothing."""
    test = one.run.config.data.test
    if not is_on_hub(test):
        return []
    named = cast(HubDataset, test)
    dataset: dict[str, Any] = {"id": named.dataset, "task_id": named.name or "default"}
    if named.revision is not None:
        dataset["revision"] = named.revision
    return [
        {"dataset": dataset, "value": round(score.score, 2), "notes": f"{score.name}, {named.split}: {score.signature}"}
        for outputs in one.outputs
        if outputs.split == "test" and not outputs.left_out
        for score in outputs.scores
    ]


# --- for people -------------------------------------------------------------------------------------------------------


def _body(one: Examined, said: Sequence[str]) -> Iterator[str]:
    run, data = one.run, one.run.config.data
    yield f"\n# {_plain(run.name)}\n\n{_plain(summary(one))}"
    yield _plain(origin(run.config))
    yield f"Made with transformer-cli {__version__}."
    yield f"\n## License\n\n{UNKNOWN if data.license is None else data.license}"
    yield "\n## Intended use\n"
    yield (
        f"Translating text like its training data from {data.source_language} to {data.target_language}, sentence by "
        "sentence. Have people check translations where mistakes have consequences."
    )
    yield "\n## Limits\n"
    yield from (f"- {_plain(limit)}" for limit in limits(one))
    yield f"\n## How to use it\n\n```sh\n{usage(run.name, OTHER_SET)}\n```"
    yield "\n## Training data\n"
    yield from _table(["", "source", "tag", "weight", "filters"], data_rows(run.config, os.path.basename))
    yield f"\n{data_size(one)}"
    yield from (f"- {_plain(line)}" for line in said)
    yield "\n## Evaluation\n"
    if one.outputs:
        yield from _table(["set", "metric", "score", "95 % interval"], score_rows(one))
        yield "\nBLEU and chrF: higher is better; TER: lower is better. Signatures of sacreBLEU:\n"
        yield from (f"- `{signature}`" for signature in signatures(one))
    else:
        yield "Not evaluated."
    yield "\n## Size and speed\n"
    yield from _table(["", ""], size_rows(one))
    yield "\n## Environmental cost\n"
    times = ["not recorded"] if run.seconds is None else [duration(run.seconds), f"{run.seconds:,.0f} s"]
    time = times[0] if times[0] == times[-1] else f"{times[0]} ({times[1]})"
    yield f"- Time of training, measured: {time}"
    yield f"- Hardware: {_plain('; '.join(run.hardware)) or 'not recorded'}"
    yield "- Energy and emissions were not measured."


def limits(one: Examined) -> Iterator[str]:
    """Yield what the model is known to do badly, by what was measured."""
    yield "Names, numbers, rare words and text unlike the training data are often translated wrongly."
    yield "It has the biases of its training data, and can leave out or invent content."
    yield f"Sentences of more than {one.run.config.data.max_length:,} tokens are translated in chunks."
    for kind, places in one.failures.items():
        share = len(places) / len(one.outputs[0].sources)
        count = "1 translation" if len(places) == 1 else f"{len(places):,} translations"
        yield f"Of the {SPLITS[one.outputs[0].split]}, {count} ({share:.1%}): {kind}."


def _plain(text: str) -> str:
    """Return text that Markdown leaves as it is."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(printable(text).split()))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, rows = in_use(head, rows)
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    yield from (f"| {' | '.join(map(_plain, row))} |" for row in rows)


# --- what doctor says -------------------------------------------------------------------------------------------------


class _Beginning:
    """The first pairs of a corpus."""

    def __init__(self, corpus: Corpus, most: int) -> None:
        self.corpus, self.most, self.notes = corpus, most, list[str]()

    def pairs(self) -> Iterator[tuple[str, str]]:
        yield from islice(self.corpus.pairs(), self.most)

    def content_hash(self) -> str:
        return self.corpus.content_hash()

    def describe(self) -> str:
        return self.corpus.describe()


def judge_data(run: Run, progress: bool) -> list[str]:
    """Return what `tfm doctor` says of the training data, a line for each finding; or why it says nothing."""
    if run.model is None:
        return []
    try:
        data = find_data(run.config.data, "train", run.model)
        sources = {key.removeprefix("data."): source for key, source in training_sources(data).items()}
        most = max(1, JUDGED // len(sources))
        corpora: dict[str, Corpus] = {
            name: _Beginning(open_corpus(source, data.source_language, data.target_language), most)
            for name, source in sources.items()
        }
        if data.test is not None:
            corpora["test"] = open_split(find_data(run.config.data, "test", run.model), "test")
        tagged = [name for name, source in sources.items() if source.tag is not None]
        report = examine(corpora, Bounds(data.max_length), tagged=tagged, workers=data.workers, progress=progress)
    except UserError as error:
        return [f"tfm doctor did not look at it: {error}"]
    pairs = [report.pairs[name] for name in sources]
    first = "the first " * (max(pairs) == most)
    found = [one for one in report.findings if is_training(one.corpus)]
    lines = [
        f"{one.kind}{f' in {one.corpus}' if len(sources) > 1 else ''}: {one.count:,}"
        f"{f' ({one.share:.1%})' if one.lines else ''}, {KINDS[one.kind].what}"
        for one in found
    ]
    said = "this:" if lines else "nothing wrong."
    return [f"tfm doctor looked at {first}{sum(pairs):,} pairs, before filters, and found {said}", *lines]
