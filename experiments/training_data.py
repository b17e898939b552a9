"""What faulty training data costs, and what cleaning it brings back: BLEU with several seeds, docs/your-data.md.

    python experiments/training_data.py faulty WORK --data FOLDER [--seeds 1 2 3] [--table]
    python experiments/training_data.py leaked WORK --data FOLDER [--seeds 1 2 3] [--table]

FOLDER has Multi30k: `train`, `val` and `test_2016_flickr`, each with `.de.gz` and `.en.gz`; `train.fr.gz` too. WORK
gets the training data of each row and seed, its config, run folder and translations, and `results.jsonl` with a line
for each text that was scored. What is there already is not done again, so an interrupted program continues where it
stopped. `--table` trains nothing and prints what is there.

faulty   the corpus as it is (29,000 sound pairs), with a fifth of its pairs replaced by faulty ones, what `tfm doctor
         --write` makes of that, and the sound pairs alone that remain
leaked   the corpus with a third of the test set added to it, scored on all of the test set and on the rest of it

Each seed plants faults of its own. All rows have the same budget, which is too short for the best quality (`BUDGET`).
"""

import argparse
import gzip
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "benchmarks")]
from page import describe_run
from planted_faults import Pair, read
from variants import score, spread, tfm

from tests.data.quality.planting import plant
from transformer_cli.config.yaml_file import Tree, dump_tree, parse_tree, read_config_text

SOURCE, TARGET, THIRD = "de", "en", "fr"
TEXTS = {"val": "val", "test": "test_2016_flickr"}
CONFIG = ROOT / "configs" / "multi30k_de_en.yaml"
BUDGET: Tree = {
    "max_steps": 2000,
    "validate_every": 1000,
    "save_every": 1000,
    "average_last": None,
    "keep_last": 1,
    "precision": "bf16",
}
KINDS = 16  # of faults that `plant` knows
FAULTY = 0.2  # share of the pairs that are replaced, in equal parts by each kind
LEAKED = 1 / 3  # share of the test pairs that are added to training
OTHER_SEEDS = 100  # planting draws from other seeds than the tests of what finds the faults
DROPPED_ANYWAY = ("empty_side", "too_long")  # training leaves these out without a filter


@dataclass(frozen=True)
class Work:
    """One row of a table with one seed: where its files are."""

    folder: Path
    data: Path
    row: str
    seed: int

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.row.replace(' ', '-')}-{self.seed}"

    @property
    def config(self) -> Path:
        """What it is trained from."""
        return self.folder / f"{self.name}.yaml"

    @property
    def run(self) -> Path:
        """Its run folder."""
        return self.folder / "runs" / self.name

    def other(self, row: str) -> "Work":
        """Return another row with this seed."""
        return Work(self.folder, self.data, row, self.seed)

    def call(self, *arguments: str | Path) -> str:
        """Return what `tfm` prints."""
        return str(tfm(self.folder / f"{self.name}.log", *map(str, arguments)))

    def training_pairs(self) -> list[Pair]:
        """Return the corpus as it is."""
        return read(self.data, "train", SOURCE, TARGET)

    def results(self) -> list[dict[str, Any]]:
        """Return the results that there are, of all rows and seeds."""
        path = self.folder / "results.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def has(self, text: str) -> bool:
        """Return whether the result is there."""
        return any((one["row"], one["seed"], one["text"]) == (self.row, self.seed, text) for one in self.results())

    def keep(self, text: str, **found: Any) -> None:
        """Add a result."""
        with (self.folder / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"row": self.row, "seed": self.seed, "text": text, **found}) + "\n")


@dataclass(frozen=True)
class Row:
    """A line of the table: how its config comes to be, and what else is measured once it is trained."""

    name: str
    prepare: Callable[[Work], None]
    more: Sequence[Callable[[Work], None]] = ()


# --- What is trained on ---------------------------------------------------------------------------------------------


def prepare_clean(work: Work) -> None:
    """Write a config for the corpus as it is."""
    write_config(work, work.data / f"train.{SOURCE}.gz", work.data / f"train.{TARGET}.gz")


def faulty_pairs(work: Work) -> tuple[list[Pair], dict[str, set[int]]]:
    """Return the corpus with a fifth of its pairs replaced by faulty ones, and the lines of each kind."""
    pairs = work.training_pairs()
    foreign = [text for text, _ in read(work.data, "train", THIRD, TARGET)]
    share = FAULTY / KINDS
    return plant(pairs, share, OTHER_SEEDS + work.seed, foreign, block=int(share * len(pairs)))


def prepare_faulty(work: Work) -> None:
    """Write the corpus with planted faults."""
    write_pairs(work, faulty_pairs(work)[0])


def prepare_sound(work: Work) -> None:
    """Write the pairs that planting did not change: what perfect cleaning would leave."""
    pairs = faulty_pairs(work)[0]
    write_pairs(work, [pair for pair, was in zip(pairs, work.training_pairs(), strict=True) if pair == was])


def prepare_cleaned(work: Work) -> None:
    """Let `tfm doctor` write the config, and note which faults it leaves in and which sound pairs it takes out."""
    faulty = work.other("faulty")
    if not faulty.config.exists():
        prepare_faulty(faulty)
    found = json.loads(work.call("doctor", faulty.config, "--format", "json", "--quiet"))
    work.call("doctor", faulty.config, "--write", work.config)
    if not work.has("filters"):
        pairs, planted = faulty_pairs(work)
        before = enumerate(zip(pairs, work.training_pairs(), strict=True), 1)
        changed = {line for line, (pair, was) in before if pair != was}
        config = parse_tree(work.config.read_text("utf-8"), str(work.config))
        work.keep("filters", **cleaning(planted, changed, found, config))


def cleaning(planted: Mapping[str, set[int]], changed: set[int], found: Tree, config: Tree) -> dict[str, Any]:
    """Return how many planted faults the filters leave in, by kind, and how many sound pairs they take out.

    planted: lines, the later of two that are repetitions, which need not be the one in `changed`.
    """
    filters = [one if isinstance(one, str) else next(iter(one)) for one in config["data"].get("filters") or []]
    lines = {
        one["kind"]: {*one["lines"]}
        for one in found["findings"]
        if one["corpus"] == "train" and one["kind"] in (*filters, *DROPPED_ANYWAY)
    }
    dropped, bad = set().union(*lines.values()), changed.union(*planted.values())
    return {
        "filters": filters,
        "pairs": found["pairs"]["train"],
        "planted": {kind: len(some) for kind, some in planted.items()},
        "left_in": {kind: len(some - dropped) for kind, some in planted.items() if some - dropped},
        "sound": found["pairs"]["train"] - len(changed),
        "taken_out": {kind: len(some - bad) for kind, some in lines.items() if some - bad},
        "sound_taken_out": len(dropped - bad),
    }


def leaked_lines(work: Work) -> list[int]:
    """Return the test lines, from 0, that are added to training."""
    count = len(read(work.data, TEXTS["test"], SOURCE, TARGET))
    return sorted(random.Random(OTHER_SEEDS + work.seed).sample(range(count), round(LEAKED * count)))


def leaked_pairs(work: Work) -> tuple[list[Pair], set[int]]:
    """Return the corpus with the leaked test pairs at random places, and where these are, from 1."""
    test, lines = read(work.data, TEXTS["test"], SOURCE, TARGET), leaked_lines(work)
    pairs = [(pair, False) for pair in work.training_pairs()] + [(test[line], True) for line in lines]
    random.Random(OTHER_SEEDS + work.seed).shuffle(pairs)
    return [pair for pair, _ in pairs], {line for line, (_, leaked) in enumerate(pairs, 1) if leaked}


def prepare_leaked(work: Work) -> None:
    """Write the corpus with the leaked test pairs, and note how many of them `tfm doctor` names."""
    pairs, leaked = leaked_pairs(work)
    write_pairs(work, pairs)
    if not work.has("doctor"):
        found = json.loads(work.call("doctor", work.config, "--format", "json", "--quiet"))
        named = {line for one in found["findings"] if one["kind"] == "overlap_test" for line in one["lines"]}
        work.keep("doctor", leaked=len(leaked), named=len(named & leaked), other=len(named - leaked))


def write_pairs(work: Work, pairs: Sequence[Pair]) -> None:
    """Write training data of its own for a row, and the config."""
    files = [work.folder / "data" / work.name / f"train.{language}.gz" for language in (SOURCE, TARGET)]
    for side, path in enumerate(files):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        path.write_bytes(gzip.compress(text.encode(), mtime=0))
    write_config(work, *files)


def write_config(work: Work, source: Path, target: Path, **changes: Tree) -> None:
    """Write the config of a row: that of the repository, with these texts, the seed and the common budget."""
    tree = parse_tree(read_config_text(CONFIG), str(CONFIG))
    tree["data"]["train"] = {"source": str(source), "target": str(target)}
    for key, name in zip(("valid", "test"), TEXTS.values(), strict=True):
        tree["data"][key] = {"source": str(text(work, name, SOURCE)), "target": str(text(work, name, TARGET))}
    tree["data"]["workers"] = 0
    tree["model"]["dropout"] = 0.1
    tree["training"] |= {**BUDGET, "seed": work.seed}
    for section, some in changes.items():
        tree[section] |= some
    work.config.write_text(dump_tree(tree), encoding="utf-8")


def text(work: Work, name: str, language: str) -> Path:
    """Return the file of a text."""
    return work.data / f"{name}.{language}.gz"


# --- What is measured -----------------------------------------------------------------------------------------------


def measure(row: Row, work: Work) -> None:
    """Prepare, train and score a row with one seed, as far as it has not been done."""
    work.folder.mkdir(parents=True, exist_ok=True)
    if not work.config.exists():
        row.prepare(work)
    if not all(work.has(name) for name in TEXTS):
        work.call("train", work.config, "--out", work.run, "--quiet")
    for name, stem in TEXTS.items():
        if not work.has(name):
            files: list[str | Path] = ["--source", text(work, stem, SOURCE), "--reference", text(work, stem, TARGET)]
            said = work.call("evaluate", work.run, *files, *SCORED, "--beam", "5", "--output", hypotheses(work, name))
            keep_scores(work, name, said)
    for more in row.more:
        more(work)


SCORED = ("--metric", "bleu", "--metric", "chrf", "--json", "--quiet")


def hypotheses(work: Work, name: str) -> Path:
    """Return where the translations of a text are."""
    return work.folder / f"{work.name}.{name}.{TARGET}"


def keep_scores(work: Work, name: str, said: str) -> None:
    """Keep what `tfm evaluate --json` said of a text."""
    found = json.loads(said)
    work.keep(name, BLEU=score(found, "BLEU"), chrF2=score(found, "chrF2"))


def score_parts(work: Work, row: str) -> None:
    """Score the test lines that were leaked to `row`, and the others, apart from each other."""
    references = [target for _, target in read(work.data, TEXTS["test"], SOURCE, TARGET)]
    translations = hypotheses(work, "test").read_text(encoding="utf-8").split("\n")[:-1]
    leaked = {*leaked_lines(work.other(row))}
    for name, inside in (("test, leaked third", True), ("test, the rest", False)):
        if work.has(name):
            continue
        files = [work.folder / f"{work.name}.part.{what}" for what in ("reference", "hypothesis")]
        for path, lines in zip(files, (references, translations), strict=True):
            kept = [line for number, line in enumerate(lines) if (number in leaked) is inside]
            path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        said = work.call("evaluate", "--reference", files[0], "--hypothesis", files[1], *SCORED)
        keep_scores(work, name, said)


# --- Tables ---------------------------------------------------------------------------------------------------------


def table(rows: Sequence[Row], texts: Sequence[str], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each row: BLEU and chrF2 of each text, the mean over the seeds, the lowest and the highest."""
    columns = [(name, metric) for name in texts for metric in ("BLEU", "chrF2")]
    yield "| training data | seeds | " + " | ".join(f"{metric}, {name}" for name, metric in columns) + " |"
    yield "| --- | --- |" + " --- |" * len(columns)
    for row in rows:
        found = [
            [one[metric] for one in results if (one["row"], one["text"]) == (row.name, name)]
            for name, metric in columns
        ]
        if all(found):
            yield f"| {row.name} | {min(map(len, found))} | " + " | ".join(map(spread, found)) + " |"


def notes(rows: Sequence[Row], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what `tfm doctor` did, with each seed."""
    for one in results:
        if one["row"] in {row.name for row in rows} and one["text"] in ("filters", "doctor"):
            yield f"{one['row']}, seed {one['seed']}: " + json.dumps(
                {key: value for key, value in one.items() if key not in ("row", "seed", "text")}
            )


CLEAN = Row("clean", prepare_clean, [partial(score_parts, row="leaked")])
EXPERIMENTS: Mapping[str, tuple[Sequence[Row], Sequence[str]]] = {
    "faulty": (
        [CLEAN, Row("faulty", prepare_faulty), Row("cleaned", prepare_cleaned), Row("sound pairs", prepare_sound)],
        ("val", "test"),
    ),
    "leaked": (
        [CLEAN, Row("leaked", prepare_leaked, [partial(score_parts, row="leaked")])],
        ("val", "test", "test, the rest", "test, leaked third"),
    ),
}


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
    rows, texts = EXPERIMENTS[options.experiment]
    unknown = [name for name in options.only or [] if name not in {row.name for row in rows}]
    if unknown:
        parser.error(f"no row {unknown[0]!r}; there are {', '.join(row.name for row in rows)}")
    work = Work(options.work.resolve(), options.data.resolve(), "", 0)
    for seed in [] if options.table else options.seeds:
        for row in rows:
            if row.name in (options.only or [row.name]):
                measure(row, Work(work.folder, work.data, row.name, seed))
    results = work.results()
    print("\n".join([*table(rows, texts, results), "", *notes(rows, results), "", describe_run(threads=1)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
