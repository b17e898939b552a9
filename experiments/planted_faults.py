"""How many of the faults that are planted into a corpus `tfm doctor` finds, and how many of its findings are right.

    .venv/bin/python experiments/planted_faults.py --data FOLDER --source de --target en --third fr --seeds 1 2 3

FOLDER has train, val and test_2016_flickr, each with a language's name and .gz, as Multi30k has. Prints, for both
planting programs of the tests, the lowest recall and precision of each kind over all seeds.
"""

import argparse
import gzip
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.data.quality.planting import plant, plant_otherwise
from transformer_cli.data.quality.judge import judge_corpus

Pair = tuple[str, str]
ONLY_OTHERWISE = ("overlap_valid", "overlap_test")
REPEATED = ("duplicate_pair", "duplicate_source", "overlap_valid", "overlap_test")  # a sound corpus has some


@dataclass
class Pairs:
    """A corpus in memory."""

    texts: list[Pair]
    notes: list[str] = field(default_factory=list)

    def pairs(self) -> Iterator[Pair]:
        """Yield all pairs."""
        yield from self.texts

    def content_hash(self) -> str:
        """Return nothing: it is not cached."""
        return ""

    def describe(self) -> str:
        """Return what it is."""
        return "pairs"


def read(folder: Path, split: str, *languages: str) -> list[Pair]:
    """Return the pairs of a split."""
    texts = [gzip.decompress((folder / f"{split}.{one}.gz").read_bytes()).decode() for one in languages]
    source, target = (text.split("\n")[:-1] for text in texts)
    return [*zip(source, target, strict=True)]


def main() -> None:
    """Plant, judge, count, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--third", default="fr")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    languages = given.source, given.target
    pairs = read(given.data, "train", *languages)
    names = {"valid": "val", "test": "test_2016_flickr"}
    others = {name: read(given.data, split, *languages) for name, split in names.items()}
    corpora = {name: Pairs(some) for name, some in others.items()}
    foreign = [text for text, _ in read(given.data, "train", given.third, given.target)]
    clean = judge_corpus(Pairs(pairs), others=corpora)
    counts = {kind: len(lines) for kind, lines in clean.lines.items()}
    dropped = set().union(*(lines.tolist() for kind, lines in clean.lines.items() if kind not in REPEATED))
    print(f"as it is: {counts}; {len(dropped) / len(pairs):.2%} of {len(pairs):,} pairs flagged, repetitions apart")
    worst: defaultdict[str, list[float]] = defaultdict(lambda: [1.0, 1.0, 1.0, 1.0])
    for seed in given.seeds:
        for place, otherwise in enumerate((False, True)):
            made = plant_otherwise(pairs, others, seed=seed, foreign=foreign) if otherwise else None
            texts, planted = made or plant(pairs, seed=seed, foreign=foreign)
            found = judge_corpus(Pairs(texts), others=corpora)
            for kind, lines in planted.items():
                named = {*found.lines[kind].tolist()} if kind in found.lines else set()
                if kind in REPEATED and kind in clean.lines:
                    named -= {*clean.lines[kind].tolist()} - lines
                both = len(named & lines) / len(lines), len(named & lines) / max(1, len(named))
                for side in (0, 1):
                    worst[kind][2 * place + side] = min(worst[kind][2 * place + side], both[side])
    print("| kind | recall | precision | recall, otherwise | precision, otherwise |\n| --- | --- | --- | --- | --- |")
    for kind, measured in worst.items():
        numbers = [
            f"{number:.3f}" if kind not in ONLY_OTHERWISE or place > 1 else "–" for place, number in enumerate(measured)
        ]
        print(f"| `{kind}` | {' | '.join(numbers)} |")


if __name__ == "__main__":
    main()
