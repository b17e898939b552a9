"""What `training_data.py` trains on: for each row of its tables and each seed the training data and the config.

Each seed plants, leaks and draws something of its own. All rows have the same budget (`BUDGET`), which is too short
for the best quality.
"""

import gzip
import json
import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "benchmarks")]
from planted_faults import Pair, read
from variants import tfm

from tests.data.quality.planting import plant
from transformer_cli.config.yaml_file import Tree, dump_tree, parse_tree, read_config_text

VALID, TEST = "val", "test_2016_flickr"
CONFIG = ROOT / "configs" / "multi30k_de_en_plain.yaml"
BUDGET: Tree = {
    "max_steps": 2000,
    "validate_every": 1000,
    "save_every": 1000,
    "average_last": None,
    "keep_last": 1,
    "precision": "bf16",
}
OTHER_SEEDS = 100  # planting draws from other seeds than the tests of what finds the faults
KINDS = 16  # of faults that `plant` knows
FAULTY = 0.2  # share of the pairs that are replaced, in equal parts by each kind
DROPPED_ANYWAY = ("empty_side", "too_long")  # training leaves these out without a filter
LEAKED = 1 / 3  # share of the test pairs that are added to training
FEW = 5000  # pairs that the rows with few pairs have
OFTEN: Tree = {"validate_every": 500, "save_every": 500}  # few pairs are learned by heart, so that the end is not best
NOISE: Tree = {"capitals": 0.1, "title_case": 0.05, "typos": 0.02, "no_final_punctuation": 0.05}


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

    def own(self, language: str) -> Path:
        """Return the file with one side of training data of its own."""
        return self.folder / "data" / self.name / f"train.{language}.gz"

    def text(self, stem: str, language: str) -> Path:
        """Return a file of the corpus."""
        return self.data / f"{stem}.{language}.gz"

    def other(self, row: str) -> "Work":
        """Return another row with this seed."""
        return replace(self, row=row)

    def call(self, *arguments: str | Path) -> str:
        """Return what `tfm` prints."""
        return str(tfm(self.folder / f"{self.name}.log", *map(str, arguments)))

    def train(self) -> None:
        """Train it, or continue where it was interrupted."""
        self.call("train", self.config, "--out", self.run, "--quiet")

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


def write_config(
    work: Work, train: Tree | list[Tree], languages: tuple[str, str] = ("de", "en"), **sections: Tree
) -> None:
    """Write the config of a row: the repository's own, with other training data, the seed and the common budget, and
    with what `sections` say."""
    tree = parse_tree(read_config_text(CONFIG), str(CONFIG))
    tree["data"] |= {"source_language": languages[0], "target_language": languages[1], "train": train, "workers": 0}
    tree["data"] |= {key: sources(work, stem, *languages) for key, stem in (("valid", VALID), ("test", TEST))}
    if isinstance(train, list) and all("tag" in one for one in train):
        tree["data"]["valid"]["tag"] = train[0]["tag"]
    tree["model"]["dropout"] = 0.1
    tree["training"] |= {**BUDGET, "seed": work.seed}
    for name, values in sections.items():
        tree[name] |= values
    work.config.write_text(dump_tree(tree), encoding="utf-8")


def sources(work: Work, stem: str, source: str, target: str) -> Tree:
    """Return a part of the corpus as a config names it."""
    return {"source": str(work.text(stem, source)), "target": str(work.text(stem, target))}


def write_pairs(work: Work, pairs: Iterable[Pair], languages: tuple[str, str] = ("de", "en")) -> Tree:
    """Write training data of its own for a row, and return it as a config names it."""
    sides = zip(*pairs, strict=True)
    for language, side in zip(languages, sides, strict=True):
        work.own(language).parent.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{line}\n" for line in side)
        work.own(language).write_bytes(gzip.compress(text.encode(), mtime=0))
    return {"source": str(work.own(languages[0])), "target": str(work.own(languages[1]))}


def training_pairs(work: Work) -> list[Pair]:
    """Return the corpus as it is."""
    return read(work.data, "train", "de", "en")


def prepare_clean(work: Work) -> None:
    """Write a config for the corpus as it is."""
    write_config(work, sources(work, "train", "de", "en"))


# --- faulty ---------------------------------------------------------------------------------------------------------


def faulty_pairs(work: Work) -> tuple[list[Pair], dict[str, set[int]]]:
    """Return the corpus with a fifth of its pairs replaced by faulty ones, and the lines of each kind."""
    pairs = training_pairs(work)
    foreign = [text for text, _ in read(work.data, "train", "fr", "en")]
    share = FAULTY / KINDS
    return plant(pairs, share, OTHER_SEEDS + work.seed, foreign, block=int(share * len(pairs)))


def prepare_faulty(work: Work) -> None:
    """Write the corpus with planted faults."""
    write_config(work, write_pairs(work, faulty_pairs(work)[0]))


def prepare_sound(work: Work) -> None:
    """Write the pairs that planting did not change: what perfect cleaning would leave."""
    pairs = faulty_pairs(work)[0]
    kept = [pair for pair, was in zip(pairs, training_pairs(work), strict=True) if pair == was]
    write_config(work, write_pairs(work, kept))


def prepare_cleaned(work: Work) -> None:
    """Let `tfm doctor` write the config, and note which faults it leaves in and which sound pairs it takes out."""
    faulty = work.other("faulty")
    if not faulty.config.exists():
        prepare_faulty(faulty)
    if not work.config.exists():
        work.call("doctor", faulty.config, "--write", work.config)
    if not work.has("filters"):
        found = json.loads(work.call("doctor", faulty.config, "--format", "json", "--quiet"))
        pairs, planted = faulty_pairs(work)
        before = enumerate(zip(pairs, training_pairs(work), strict=True), 1)
        changed = {line for line, (pair, was) in before if pair != was}
        config = parse_tree(work.config.read_text("utf-8"), str(work.config))
        work.keep("filters", **cleaning(planted, changed, found, config))


def cleaning(planted: Mapping[str, set[int]], changed: set[int], found: Tree, config: Tree) -> dict[str, Any]:
    """Return how many planted faults the filters leave in, by kind, and how many sound pairs they take out.

    planted: lines; of two pairs that repeat each other, the later one may be meant, which need not be in `changed`.
    """
    filters = [one if isinstance(one, str) else next(iter(one)) for one in config["data"].get("filters") or []]
    lines = {
        one["kind"]: {*one.get("left_out", one["lines"])}
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


# --- leaked ---------------------------------------------------------------------------------------------------------


def leaked_lines(work: Work) -> list[int]:
    """Return the test lines, from 0, that are added to training."""
    count = len(read(work.data, TEST, "de", "en"))
    return sorted(random.Random(OTHER_SEEDS + work.seed).sample(range(count), round(LEAKED * count)))


def leaked_pairs(work: Work) -> tuple[list[Pair], set[int]]:
    """Return the corpus with the leaked test pairs at random places, and where these are, from 1."""
    test, lines = read(work.data, TEST, "de", "en"), leaked_lines(work)
    pairs = [(pair, False) for pair in training_pairs(work)] + [(test[line], True) for line in lines]
    random.Random(OTHER_SEEDS + work.seed).shuffle(pairs)
    return [pair for pair, _ in pairs], {line for line, (_, leaked) in enumerate(pairs, 1) if leaked}


def prepare_leaked(work: Work) -> None:
    """Write the corpus with the leaked test pairs, and note how many of them `tfm doctor` names."""
    pairs, leaked = leaked_pairs(work)
    write_config(work, write_pairs(work, pairs))
    if not work.has("doctor"):
        found = json.loads(work.call("doctor", work.config, "--format", "json", "--quiet"))
        named = {line for one in found["findings"] if one["kind"] == "overlap_test" for line in one["lines"]}
        work.keep("doctor", leaked=len(leaked), named=len(named & leaked), other=len(named - leaked))


# --- backtranslation, tags, noise -----------------------------------------------------------------------------------


def few_pairs(work: Work) -> tuple[list[Pair], list[str]]:
    """Return the few pairs, drawn at random, and the English of all others."""
    pairs = training_pairs(work)
    random.Random(OTHER_SEEDS + work.seed).shuffle(pairs)
    return pairs[:FEW], [target for _, target in pairs[FEW:]]


def prepare_few(work: Work) -> None:
    """Write the few pairs."""
    write_config(work, write_pairs(work, few_pairs(work)[0]), training=OFTEN)


def prepare_backtranslated(work: Work) -> None:
    """Train the reverse model on the few pairs, and let it translate the English of the others."""
    pairs, english = few_pairs(work)
    reverse, synthetic = work.other(f"{work.row} reverse"), work.folder / "data" / work.name / "synthetic"
    train = write_pairs(work, pairs)
    swapped = {"source": train["target"], "target": train["source"]}
    write_config(reverse, swapped, ("en", "de"), training=OFTEN)
    reverse.train()
    monolingual = work.own("en").with_name("monolingual.en")
    monolingual.write_text("".join(f"{line}\n" for line in english), encoding="utf-8")
    if not synthetic.exists():
        work.call("backtranslate", reverse.run, "--input", monolingual, "--out", synthetic, "--quiet")
    made = {"source": str(synthetic / "train.de"), "target": str(synthetic / "train.en"), "tag": "<bt>"}
    write_config(work, [train, made], training=OFTEN)


def prepare_french(work: Work) -> None:
    """Write a config for French in place of German."""
    write_config(work, sources(work, "train", "fr", "en"), ("fr", "en"))


def prepare_both(work: Work) -> None:
    """Write a config for German and French in one model, which has the updates of the two models that it replaces."""
    train = [{**sources(work, "train", language, "en"), "tag": f"<{language}>"} for language in ("de", "fr")]
    steps = ("max_steps", "validate_every", "save_every")
    write_config(work, train, training={key: 2 * BUDGET[key] for key in steps})


def prepare_noisy(work: Work) -> None:
    """Write a config for the corpus with noise on its source sentences."""
    write_config(work, sources(work, "train", "de", "en"), training={"noise": NOISE})
