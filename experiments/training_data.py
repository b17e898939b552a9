"""What training data is worth: faulty, cleaned, leaked, back-translated, noisy, tagged; for docs/your-data.md.

    python experiments/training_data.py EXPERIMENT WORK --data FOLDER [--seeds 1 2 3] [--only ROW …] [--table]

FOLDER has Multi30k: `train`, `val` and `test_2016_flickr`, each with `.de.gz`, `.en.gz` and `.fr.gz`. WORK gets the
training data of each row and seed, its config, run folder and translations, and `results.jsonl` with a line for each
text that was scored. What is there already is not done again, so an interrupted program continues where it stopped.
`--table` trains nothing and prints what is there.

faulty           the corpus as it is (29,000 pairs), with a fifth of its pairs replaced by faulty ones, what `tfm
                 doctor --write` makes of that, and the sound pairs alone that remain
leaked           the corpus with a third of the test set added, scored on all of the test set and on parts of it
backtranslation  5,000 pairs alone, and with the English of the others, translated by a model of these 5,000
noise            with noise on source sentences; the test set is translated in capitals too
tags             German and French, each in a model of its own, and both in one
parents          1,000 pairs from French, alone, after 24,000 from German, and with them

How the data is made stands in `training_rows.py`, that of `parents` in `parents.py`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import parents
import training_rows as rows_of
from page import describe_run
from planted_faults import read
from training_rows import TEST, VALID, Work
from variants import score, spread


@dataclass(frozen=True)
class Text:
    """What a model translates, and what is scored of it."""

    name: str
    stem: str
    language: str = "de"
    change: Callable[[str], str] | None = None  # of the source
    leaked: bool | None = None  # these lines of a text that is translated whole: those leaked, or the others


@dataclass(frozen=True)
class Row:
    """A line of the table: how its config comes to be, and what is scored."""

    name: str
    prepare: Callable[[Work], None]  # called again, it makes the same
    texts: Sequence[Text]
    tagged: bool = False  # each text's language is said by a tag


VAL, ALL = Text("val", VALID), Text("test", TEST)
HONEST, KNOWN = (Text(name, TEST, leaked=known) for name, known in (("the rest", False), ("leaked third", True)))
CAPITALS = Text("test in capitals", TEST, change=str.upper)
FRENCH = (Text("val, French", VALID, "fr"), Text("test, French", TEST, "fr"))
CLEAN = Row("clean", rows_of.prepare_clean, (VAL, ALL))
EXPERIMENTS: Mapping[str, Sequence[Row]] = {
    "faulty": [
        CLEAN,
        Row("faulty", rows_of.prepare_faulty, (VAL, ALL)),
        Row("cleaned", rows_of.prepare_cleaned, (VAL, ALL)),
        Row("sound pairs", rows_of.prepare_sound, (VAL, ALL)),
    ],
    "leaked": [
        replace(CLEAN, texts=(VAL, ALL, HONEST, KNOWN)),
        Row("leaked", rows_of.prepare_leaked, (VAL, ALL, HONEST, KNOWN)),
    ],
    "backtranslation": [
        Row("5000 pairs", rows_of.prepare_few, (VAL, ALL)),
        Row("5000 pairs and back-translations", rows_of.prepare_backtranslated, (VAL, ALL)),
        CLEAN,
    ],
    "noise": [
        replace(CLEAN, texts=(VAL, ALL, CAPITALS)),
        Row("with noise", rows_of.prepare_noisy, (VAL, ALL, CAPITALS)),
    ],
    "tags": [
        CLEAN,
        Row("French", rows_of.prepare_french, FRENCH),
        Row("German and French", rows_of.prepare_both, (VAL, ALL, *FRENCH), tagged=True),
    ],
    "parents": [
        Row("parent", parents.prepare_parent, (VAL, ALL)),
        Row("from scratch", parents.prepare_scratch, FRENCH),
        Row("old vocabulary", parents.prepare_old, (VAL, ALL, *FRENCH)),
        Row("old vocabulary, old pairs mixed in", parents.prepare_mixed, (VAL, ALL, *FRENCH)),
        Row("new vocabulary", parents.prepare_new, FRENCH),
        Row("both with tags", parents.prepare_joint, (VAL, ALL, *FRENCH), tagged=True),
    ],
}
SCORED = ("--metric", "bleu", "--metric", "chrf", "--json", "--quiet")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("work", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", metavar="ROW", help="these rows only")
    parser.add_argument("--table", action="store_true", help="train nothing, show what is there")
    options = parser.parse_args()
    rows = EXPERIMENTS[options.experiment]
    unknown = [name for name in options.only or [] if name not in {row.name for row in rows}]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(row.name for row in rows)}")
    work = Work(options.work.resolve(), options.data.resolve(), "", 0)
    work.folder.mkdir(parents=True, exist_ok=True)
    for seed in [] if options.table else options.seeds:
        for row in rows:
            if row.name in (options.only or [row.name]):
                measure(row, replace(work, row=row.name, seed=seed))
    results = work.results()
    print("\n".join([*table(rows, results), "", *notes(rows, results), "", describe_run(threads=1)]))
    return 0


def measure(row: Row, work: Work) -> None:
    """Prepare, train and score a row with one seed, as far as it has not been done."""
    missing = [text for text in row.texts if not work.has(text.name)]
    if any(text.leaked is None for text in missing):
        row.prepare(work)
        work.train()
    for text in missing:
        said = json.loads(score_part(work, text) if text.leaked is not None else translate(row, work, text))
        work.keep(text.name, BLEU=score(said, "BLEU"), chrF2=score(said, "chrF2"))
        rest = said.get("overlap") or {}
        if rest.get("lines") and rest["scores"]:
            found = {metric: score(rest, metric) for metric in ("BLEU", "chrF2")}
            work.keep(f"{text.name} without overlap", sentences=rest["sentences"], **found)


def translate(row: Row, work: Work, text: Text) -> str:
    """Translate a text with a beam of five; what `tfm evaluate --json` says of it."""
    source = work.text(text.stem, text.language)
    if text.change is not None:
        lines = [text.change(line) for line, _ in read(work.data, text.stem, text.language, "en")]
        source = write_lines(work, f"{text.name}.{text.language}", lines)
    tag = ["--tag", f"<{text.language}>"] if row.tagged else []
    files = [
        "--source",
        str(source),
        "--reference",
        str(work.text(text.stem, "en")),
        "--output",
        str(output(work, text)),
    ]
    return work.call("evaluate", work.run, *files, *SCORED, "--beam", "5", *tag)


def score_part(work: Work, text: Text) -> str:
    """Score the lines of the test translations that another row, `leaked`, has in its training data, or the others."""
    references = [target for _, target in read(work.data, text.stem, text.language, "en")]
    translations = output(work, ALL).read_text(encoding="utf-8").split("\n")[:-1]
    known = {*rows_of.leaked_lines(work)}
    files = []
    for option, lines in (("--reference", references), ("--hypothesis", translations)):
        kept = [line for number, line in enumerate(lines) if (number in known) is text.leaked]
        files += [option, str(write_lines(work, f"{text.name}.{option[2:]}", kept))]
    return work.call("evaluate", *files, *SCORED)


def output(work: Work, text: Text) -> Path:
    """Return where the translations of a text are."""
    return work.folder / f"{work.name}.{text.name}.en"


def write_lines(work: Work, name: str, lines: Sequence[str]) -> Path:
    """Write a text of a row; return its file."""
    path = work.folder / f"{work.name}.{name}"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def table(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each row: BLEU and chrF2 of each text, the mean over the seeds, the lowest and the highest."""
    names = dict.fromkeys(text.name for row in rows for text in row.texts)
    columns = [(name, metric) for name in names for metric in ("BLEU", "chrF2")]
    yield "| training data | seeds | " + " | ".join(f"{metric}, {name}" for name, metric in columns) + " |"
    yield "| --- | --- |" + " --- |" * len(columns)
    for row in rows:
        own = {text.name for text in row.texts}
        mine = [one for one in results if one["row"] == row.name]
        found = [[one[metric] for one in mine if one["text"] == name and name in own] for name, metric in columns]
        seeds = min(len(some) for some, (name, _) in zip(found, columns, strict=True) if name in own)
        if seeds:
            cells = [spread(some) if some else "–" for some in found]
            yield f"| {row.name} | {seeds} | " + " | ".join(cells) + " |"


def notes(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what is in no column: what `tfm doctor` did, and scores of the lines that training does not have."""
    columns = {text.name for every in EXPERIMENTS.values() for row in every for text in row.texts}
    for one in results:
        if one["row"] in {row.name for row in rows} and one["text"] not in columns:
            said = {key: value for key, value in one.items() if key not in ("row", "seed", "text")}
            yield f"{one['row']}, seed {one['seed']}, {one['text']}: {json.dumps(said)}"


if __name__ == "__main__":
    sys.exit(main())
