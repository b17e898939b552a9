"""BLEU against sentences per second, of models and ways to decode them: what a fast model costs in quality.

    python experiments/speed_quality.py --source FILE --reference FILE --model LABEL=FOLDER[,KEY=VALUE…] …
        [--baseline LABEL] [--engine ctranslate2] [--compute-type int8] [--beam 5] [--batch 64 1] [--threads 1]
        [--rounds 7] [--picture FILE] [--write]

KEY is `engine`, `compute_type`, `beam` (1: greedy) or any other value of a search, such as `length_penalty=0.6`, or of
a non-autoregressive model `iterations=4,length_candidates=3`. The same LABEL again is the same model trained with
another seed: BLEU is then the mean, and the seeds take turns in the rounds. Models of one folder (one model decoded in
several ways) are joined by a line in the picture.

Each model is a process of its own; they take turns, in an order that moves on by one each round, with batches of like
length and one sentence at a time. Sentences per second hold raw text to raw text. Prints a table with ratios to the
baseline; with --write it goes into docs/benchmarks.md, and the picture to docs/images/speed-quality.png.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from speed_quality_picture import Point, draw

from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import corpus_metric, read_test_set
from transformer_cli.plots.style import save
from transformer_cli.search_options import SearchOptions

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from contender import ROOT, Contender
from contenders.decode_tfm import in_batches, open_model, source_lengths
from page import describe_run, report

IMAGE = ROOT / "docs" / "images" / "speed-quality.png"
SINGLE_PROCESS = 200  # sentences per round, where they come one at a time
STRINGS = ("method", "length_penalty_kind", "stopping", "beam_size")  # text, or given by `beam`


@dataclass
class Entry:
    """A row of the table: a model, one folder a seed, and how it is decoded."""

    label: str
    engine: str
    compute_type: str | None
    search: dict[str, Any]  # values of `SearchOptions`
    folders: list[Path]
    seeds: list[Contender] = field(default_factory=list)
    seconds: dict[int, list[float]] = field(default_factory=dict)  # of a sentence, by batch size, a value a round
    bleu: list[float] = field(default_factory=list)  # a value a seed
    shape: str = ""

    def settings(self, folder: Path) -> dict[str, Any]:
        """As `contenders/decode_tfm.py` takes them."""
        how = {"engine": self.engine, "compute_type": self.compute_type, "search": self.search}
        return {"folder": str(folder.resolve()), **how}

    def translate(self, number: int, batch: int, first: int, count: int, *, counts: bool = True) -> None:
        """Round `number` of a batch size, by the seed whose turn it is."""
        seed = self.seeds[number % len(self.seeds)]
        seed.turn(batch=batch, first=first, count=count)
        if seed.failure is not None:
            sys.exit(f"error: {self.label}: {seed.failure}")
        if counts:
            self.seconds.setdefault(batch, []).append(seed.seconds()[-1] / count)

    def speed(self, batch: int) -> tuple[float, float, float]:
        """Sentences per second: the lower quartile, the median, the upper quartile of the rounds."""
        low, median, high = statistics.quantiles([1 / one for one in self.seconds[batch]], n=4, method="inclusive")
        return low, median, high

    @property
    def decoding(self) -> str:
        """How it is decoded, in few words."""
        search = dict(self.search)
        beam = search.pop("beam_size", None)
        method = search.pop("method", "beam")
        how = ["greedy"] if method == "greedy" else [f"beam {beam}"] if beam else []
        how += [f"{name.replace('_', ' ')} {value}" for name, value in search.items()]
        return ", ".join([*how, f"{self.engine} {self.compute_type or ''}".strip()])


def parse_model(text: str, engine: str, compute_type: str | None, beam: int) -> Entry:
    """`LABEL=FOLDER[,KEY=VALUE…]`; raises `ValueError` that says what is wrong."""
    label, equals, rest = text.partition("=")
    folder, *options = rest.split(",")
    if not (label and equals and folder):
        raise ValueError(f"{text}: write it as LABEL=FOLDER[,KEY=VALUE…]")
    numbers = {one.name: int if one.type in (int, int | None) else float for one in fields(SearchOptions)}
    kinds = {name: kind for name, kind in numbers.items() if name not in STRINGS}
    values: dict[str, str | None] = {"engine": engine, "compute_type": compute_type}
    search: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        try:
            if key in values and equals:
                values[key] = value
            elif key == "beam":
                beam = int(value)
            else:
                search[key] = kinds[key](value)
        except (KeyError, ValueError):
            known = ", ".join([*values, "beam", *kinds])
            raise ValueError(f"{text}: cannot use {option!r}; known, with numbers, are {known}") from None
    if "iterations" not in search and "length_candidates" not in search:  # which go with no beam
        search = {"method": "greedy", **search} if beam == 1 else {"beam_size": beam, **search}
    return Entry(label, str(values["engine"]), values["compute_type"] or None, search, [Path(folder)])


def gather(models: Sequence[Entry]) -> list[Entry]:
    """Those of one label as one entry."""
    entries: dict[str, Entry] = {}
    for model in models:
        same = entries.setdefault(model.label, model)
        if same is not model:
            if (same.engine, same.compute_type, same.search) != (model.engine, model.compute_type, model.search):
                raise ValueError(f"{model.label}: is decoded in two ways; give each a label of its own")
            same.folders += model.folders
    return list(entries.values())


def measure_quality(entry: Entry, texts: list[str], references: list[str], batch: int) -> None:
    """BLEU of each seed, decoded as it is timed; the shape of the first."""
    for folder in entry.folders:
        translator, options = open_model(**entry.settings(folder))
        in_batches(translator, batch, source_lengths(translator, texts))
        found = [one.text for one in translator.translate_batch(texts, options, alignments=False)]
        language = translator.config.data.target_language
        entry.bleu.append(corpus_metric("bleu", found, [references], language).score)
        model = translator.config.model
        entry.shape = f"{model.encoder_layers}+{model.decoder_layers}"


def run_rounds(entries: Sequence[Entry], rounds: int, batches: Sequence[int], sentences: int) -> None:
    """Each batch size by each in turn, after few sentences by every process to warm up, which count for nothing."""
    for entry in entries:
        for number in range(len(entry.seeds)):
            for batch in batches:
                entry.translate(number, batch, 0, min(sentences, batch if batch > 1 else 5), counts=False)
    for number in range(rounds):
        for batch in batches:
            count = sentences if batch > 1 else min(SINGLE_PROCESS, sentences)
            first = 0 if batch > 1 else number * count % (sentences - count + 1)
            for place in range(len(entries)):
                entries[(number + place) % len(entries)].translate(number, batch, first, count)
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def ratio(entry: Entry, baseline: Entry, batch: int) -> float:
    """The median of how many times as fast, round by round."""
    pairs = zip(entry.seconds[batch], baseline.seconds[batch], strict=True)
    return statistics.median(theirs / ours for ours, theirs in pairs)


def table(entries: Sequence[Entry], baseline: Entry, batches: Sequence[int]) -> list[str]:
    """BLEU and speeds, one row per model."""
    names = [f"in batches of {batch}" if batch > 1 else "one at a time" for batch in batches]
    head = ["model", "layers", "decoding", "BLEU", "− baseline"]
    for name in names:
        head += [f"sentences/s, {name}", "quartiles", "÷ baseline"]
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- |" + " --: |" * (len(head) - 3)]
    mean = statistics.fmean(baseline.bleu)
    for entry in entries:
        bleu = statistics.fmean(entry.bleu)
        spread = f" ({min(entry.bleu):.2f}–{max(entry.bleu):.2f})" if len(entry.bleu) > 1 else ""
        cells = [entry.label, entry.shape, entry.decoding, f"{bleu:.2f}{spread}", f"{bleu - mean:+.2f}"]
        for batch in batches:
            low, median, high = entry.speed(batch)
            cells += [f"{median:,.0f}", f"{low:,.0f}–{high:,.0f}", f"{ratio(entry, baseline, batch):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def points(entries: Sequence[Entry], batch: int) -> list[Point]:
    """What the picture shows of one batch size."""
    return [
        Point(
            entry.label,
            str(entry.folders[0]),
            *entry.speed(batch),
            statistics.fmean(entry.bleu),
            min(entry.bleu),
            max(entry.bleu),
        )
        for entry in entries
    ]


def read_arguments() -> tuple[argparse.Namespace, list[Entry]]:
    """The options, and the models they name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="sentences to translate, one per line")
    parser.add_argument("--reference", type=Path, required=True, help="their translations, for BLEU")
    parser.add_argument("--model", action="append", required=True, metavar="LABEL=FOLDER[,KEY=VALUE…]")
    parser.add_argument("--baseline", metavar="LABEL", help="what the others are compared with (default the first)")
    parser.add_argument("--engine", default="ctranslate2", help="of models that name none (default ctranslate2)")
    parser.add_argument("--compute-type", help="likewise (default int8 with ctranslate2, float32 with torch)")
    parser.add_argument("--beam", type=int, default=5, help="likewise; 1: greedy (default 5)")
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 1], help="sentences at a time (default 64 1)")
    parser.add_argument("--threads", type=int, default=1, help="of each model (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="measured (default 7)")
    parser.add_argument("--picture", type=Path, help="draw BLEU against sentences/s here, .png or .svg")
    parser.add_argument("--write", action="store_true", help="table into docs/benchmarks.md, picture into docs/images")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: two at least")
    try:
        entries = gather(
            [parse_model(text, options.engine, options.compute_type, options.beam) for text in options.model]
        )
    except ValueError as error:
        parser.error(f"--model {error}")
    for entry in entries:
        if entry.compute_type is None and entry.engine == "ctranslate2":
            entry.compute_type = "int8"
    options.baseline = options.baseline or entries[0].label
    if options.baseline not in {entry.label for entry in entries}:
        parser.error(f"--baseline {options.baseline}: no --model has that label")
    return options, entries


def main() -> None:
    """See the module."""
    options, entries = read_arguments()
    test_set = read_test_set(options.source, [options.reference])
    texts, (references,) = test_set.sources, test_set.references
    baseline = next(entry for entry in entries if entry.label == options.baseline)
    for entry in entries:
        measure_quality(entry, texts, references, max(options.batch))
        print(f"{entry.label}: BLEU {', '.join(f'{score:.2f}' for score in entry.bleu)}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="tfm-speed-") as name:
        path = Path(name) / "work.json"
        path.write_text(json.dumps({"texts": texts}), encoding="utf-8")
        for entry in entries:
            for folder in entry.folders:
                entry.seeds.append(Contender(entry.label, entry.label, "decode_tfm", entry.settings(folder)))
                entry.seeds[-1].start(path, options.threads)
        try:
            run_rounds(entries, options.rounds, options.batch, len(texts))
        finally:
            for entry in entries:
                for seed in entry.seeds:
                    seed.end()
    versions = baseline.seeds[0].versions
    alone = f"; one at a time {min(SINGLE_PROCESS, len(texts))} sentences per round" if 1 in options.batch else ""
    lines = [
        describe_run(options.threads, *versions),
        f"{len(texts):,} sentences; {options.rounds} rounds{alone}.",
        "",
        *table(entries, baseline, options.batch),
    ]
    pictures = [path for path in (options.picture, IMAGE if options.write else None) if path is not None]
    for path in pictures:
        save(draw({batch: points(entries, batch) for batch in options.batch}, options.baseline), path)
    if options.write:
        lines += ["", "![BLEU against sentences per second of each model](images/speed-quality.png)"]
    report(lines, options.write)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
