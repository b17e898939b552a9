"""Trains the variants of the Transformer and the plain one, in the same budget, with several seeds: docs/results.md.

    python experiments/variants.py DATA OUT [--only NAME …] [--seeds 1 2 3] [--jobs 2] [--distilled FOLDER] [--write]

DATA holds Multi30k as plain text (`train.de`, `train.en`, `val.*`, `test_2016_flickr.*`) and its word alignments
(`train.align`, by experiments/word_alignments.py); for the two variants with few pairs also `train.5000.de` and
`train.5000.en`, 5,000 of the pairs, and `vectors.de` and `vectors.en` (by experiments/word_vectors.py). OUT gets a run
folder, the translations and the scores of each variant and seed. What is there already is not done again. `--write`
puts the table of what OUT holds into docs/results.md; a line there stays that was made from more seeds.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))
from page import RESULTS, describe_run, report

TEST = "test_2016_flickr"
SUBWORDS = ("training.max_steps=3000", "training.validate_every=1000", "model.dropout=0.1")
MASKS = (*SUBWORDS, "training.batch_tokens=1000")
WORDS = ("training.max_steps=2400", "training.validate_every=800", "vocabulary.size=3000")
FEW = ("training.max_steps=1500", "training.validate_every=300")
NO_VECTORS = ("training.source_vectors=null", "training.target_vectors=null")
VECTORS = ("training.source_vectors={data}/vectors.de", "training.target_vectors={data}/vectors.en")
DEEP = ("model.encoder_layers=6", "model.decoder_layers=1")
SHORT = ("training.average_last=null", "training.keep_last=1", "data.workers=0", "data.test=null")
BEAMS: Mapping[str, Sequence[str]] = {"greedy": ("--beam", "1"), "beam 5": ("--beam", "5")}
PASSES: Mapping[str, Sequence[str]] = {f"iterations {count}": ("--iterations", str(count)) for count in (1, 2, 4, 10)}


@dataclass(frozen=True)
class Variant:
    """One line of a table: a config, what is changed in it, and the ways in which its test translations are made."""

    name: str
    config: str
    changes: Sequence[str]
    evaluations: Mapping[str, Sequence[str]] = field(default_factory=lambda: BEAMS)
    distilled: bool = False  # trained on the teacher's translations in place of the corpus' own
    train: str = "train"  # stem of the training files


@dataclass(frozen=True)
class Places:
    """Where things are."""

    data: Path
    out: Path
    distilled: Path | None

    def train_files(self, variant: Variant) -> tuple[Path, Path]:
        """Source and target of what a variant is trained on."""
        if not variant.distilled:
            return self.data / f"{variant.train}.de", self.data / f"{variant.train}.en"
        if self.distilled is None:
            sys.exit(f"error: {variant.name} is trained on distilled data: give --distilled FOLDER (tfm distill)")
        return self.distilled / "train.de", self.distilled / "train.en"


VARIANTS = [
    Variant("plain", "multi30k_de_en_plain", SUBWORDS),
    Variant("3+3 distilled", "multi30k_de_en_plain", SUBWORDS, distilled=True),
    Variant("6+1", "multi30k_de_en_plain", (*SUBWORDS, *DEEP)),
    Variant("6+1 distilled", "multi30k_de_en_plain", (*SUBWORDS, *DEEP), distilled=True),
    Variant("6+6", "multi30k_de_en_plain", (*SUBWORDS, "model.encoder_layers=6", "model.decoder_layers=6")),
    Variant("mask-predict", "non_autoregressive", MASKS, PASSES),
    Variant("mask-predict distilled", "non_autoregressive", MASKS, PASSES, distilled=True),
    Variant("one-shot distilled", "non_autoregressive_one_shot", MASKS, {"at once": ()}, distilled=True),
    *(
        Variant(f"scheduled {kind}", "scheduled_sampling", (*SUBWORDS, f"training.scheduled_sampling.schedule={kind}"))
        for kind in ("linear", "exponential", "inverse_sigmoid")
    ),
    Variant(
        "aligned", "guided_attention_alignments", (*SUBWORDS, "training.guided_attention.alignments={data}/train.align")
    ),
    Variant(
        "learned positions", "multi30k_de_en_plain", (*SUBWORDS, "model.positions=learned", "model.max_positions=256")
    ),
    Variant("wide values", "multi30k_de_en_plain", (*SUBWORDS, "model.head_dim=32", "model.value_dim=64")),
    Variant("words", "multi30k_de_en_spacy", WORDS),
    Variant("copying", "copy_mechanism_multi30k", WORDS),
    Variant("5,000 pairs", "pretrained_embeddings", (*FEW, *NO_VECTORS), train="train.5000"),
    Variant("5,000 pairs and word vectors", "pretrained_embeddings", (*FEW, *VECTORS), train="train.5000"),
]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[variant.name for variant in VARIANTS], metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side, one thread each")
    parser.add_argument("--distilled", type=Path, metavar="FOLDER")
    parser.add_argument("--table", action="store_true", help="train nothing, show what is there")
    parser.add_argument("--write", action="store_true", help="put the table into docs/results.md")
    options = parser.parse_args()
    known = {variant.name: variant for variant in VARIANTS}
    unknown = [name for name in options.only if name not in known]
    if unknown:
        parser.error(f"no variant {unknown[0]!r}; there are {', '.join(known)}")
    places = Places(options.data.resolve(), options.out.resolve(), options.distilled and options.distilled.resolve())
    chosen = [known[name] for name in options.only]
    if not options.table:
        with ThreadPoolExecutor(options.jobs) as pool:
            work = [pool.submit(measure, variant, seed, places) for seed in options.seeds for variant in chosen]
            for done in work:
                done.result()
    lines = table(chosen, places, {})
    if options.write:
        lines = table(VARIANTS, places, table_lines(RESULTS.read_text(encoding="utf-8")))
    report([*lines, "", describe_run(threads=1)], options.write, RESULTS)
    return 0


def measure(variant: Variant, seed: int, places: Places) -> None:
    """Train a variant with one seed, translate the test set in every way, keep the scores."""
    name = f"{variant.name.replace(' ', '-')}-{seed}"
    run = places.out / name
    source, target = places.train_files(variant)
    valid = f"{{source: {places.data}/val.de, target: {places.data}/val.en}}"
    changes = [f"data.train={{source: {source}, target: {target}}}", f"data.valid={valid}", *SHORT]
    changes += [change.replace("{data}", str(places.data)) for change in variant.changes]
    settings = [part for change in (*changes, f"training.seed={seed}") for part in ("--set", change)]
    tfm(places.out / f"{name}.log", "train", f"{ROOT}/configs/{variant.config}.yaml", "--out", str(run), *settings)
    for label, options in variant.evaluations.items():
        scores = places.out / f"{name}.{label.replace(' ', '-')}.json"
        if not scores.exists():
            texts = ["--source", f"{places.data}/{TEST}.de", "--reference", f"{places.data}/{TEST}.en"]
            kept = ["--output", str(scores.with_suffix(".en")), "--json"]
            scored = tfm(places.out / f"{name}.log", "evaluate", str(run), *texts, *kept, *options)
            scores.write_text(scored, encoding="utf-8")


def tfm(log: Path, *arguments: str) -> str:
    """Run `tfm` in one thread; what it prints. Its progress goes to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with log.open("a") as stderr:
        stderr.write(f"$ tfm {shlex.join(arguments)}\n")
        stderr.flush()
        done = subprocess.run(
            [sys.executable, "-m", "transformer_cli", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            check=False,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"tfm {shlex.join(arguments)} ended with {done.returncode}; see {log}")
    return done.stdout


def table(variants: Sequence[Variant], places: Places, written: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Mean and spread over the seeds, a line for each variant and way of translating.

    written: lines that were there before. They stay where OUT holds fewer seeds than they were made from, and behind
    the others, where no variant has their name.
    """
    yield "| variant | translated | seeds | BLEU | chrF2 |"
    yield "| --- | --- | --- | --- | --- |"
    others = dict(written)
    for variant in variants:
        for label in variant.evaluations:
            before = others.pop((variant.name, label), None)
            pattern = f"{variant.name.replace(' ', '-')}-[0-9]*.{label.replace(' ', '-')}.json"
            found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(places.out.glob(pattern))]
            if before is not None and seeds_of(before) > len(found):
                yield before
            elif found:
                bleu, chrf = ([score(one, metric) for one in found] for metric in ("BLEU", "chrF2"))
                yield f"| {variant.name} | {label} | {len(found)} | {spread(bleu)} | {spread(chrf)} |"
    yield from others.values()


def table_lines(page: str) -> dict[tuple[str, str], str]:
    """The lines of the page's table, by variant and way of translating."""
    lines = re.finditer(r"^\| ([^|]+) \| ([^|]+) \| \d+ \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    return {(line[1], line[2]): line[0] for line in lines}


def seeds_of(line: str) -> int:
    """From how many seeds a line of the table was made."""
    return int(line.split("|")[3])


def score(scores: dict[str, object], metric: str) -> float:
    """A metric of `tfm evaluate --json`."""
    found = scores["scores"]
    assert isinstance(found, list)
    return next(float(one["score"]) for one in found if one["name"] == metric)


def spread(values: Sequence[float]) -> str:
    """Mean (lowest–highest); of a single value that alone."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.mean(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
