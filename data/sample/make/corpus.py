"""The sample corpus: 21,000 German–English sentence pairs, the same ones every time (`data/sample/`, `tfm demo`).

`python -m data.sample.make.corpus FOLDER` writes it; with `--gzip` as transformer_cli/demo/corpus/ ships it.
"""

import argparse
import gzip
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from data.sample.make.dice import Dice
from data.sample.make.grammar import sentence
from data.sample.make.sentences import Sentence, Wanted, possible

SPLITS = {"train": 20_000, "valid": 500, "test": 500}  # sentence pairs
UNSEEN = 250  # of test: a verb with an object that it never meets in training
_SEED = 1
_HELD_OUT = 90  # combinations of a verb and a noun that only test has
_OTHERS = 5  # so many more partners at least has every verb and noun that is held out once

Pair = tuple[str, str]  # German, English


class Corpus(NamedTuple):
    """`unseen` are positions in test, from 0: sentences whose verb and object never meet in training."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    unseen: list[int]


class Drawn(NamedTuple):
    """The corpus with the grammar's record of every sentence; `held_out` are the combinations kept for test."""

    sentences: dict[str, list[Sentence]]
    unseen: list[int]
    held_out: list[Wanted]


def _held_out(dice: Dice) -> list[Wanted]:
    """Combinations to keep from training: few of any verb and of any noun, and none that has few to begin with."""
    candidates = [one for one in possible() if one[1] != "Uhr"]  # the word tells the time too
    verbs, nouns = Counter(one[0] for one in candidates), Counter(one[1] for one in candidates)
    left_verbs, left_nouns = {verb: n // 5 for verb, n in verbs.items()}, {noun: n // 4 for noun, n in nouns.items()}
    chosen: list[Wanted] = []
    for one in dice.shuffled(candidates):
        enough = min(verbs[one[0]], nouns[one[1]]) > _OTHERS
        if enough and left_verbs[one[0]] and left_nouns[one[1]] and len(chosen) < _HELD_OUT:
            left_verbs[one[0]] -= 1
            left_nouns[one[1]] -= 1
            chosen.append(one)
    return chosen


def _new(sentences: Iterator[Sentence]) -> Iterator[Sentence]:
    """Those whose German and English have not come yet."""
    seen: set[str] = set()
    for one in sentences:
        if not {one.german, one.english} & seen:
            seen |= {one.german, one.english}
            yield one


def _stream(dice: Dice, held_out: list[Wanted]) -> Iterator[Sentence]:
    """First `UNSEEN` sentences with the held-out combinations in turn, then endless ones without any of them."""
    for number in range(UNSEEN):
        wanted = held_out[number % len(held_out)]
        made = sentence(dice, wanted)
        while wanted not in made.objects:
            made = sentence(dice, wanted)
        yield made
    forbidden = set(held_out)
    while True:
        made = sentence(dice)
        if not made.combinations & forbidden:
            yield made


@cache
def draw() -> Drawn:
    """Make the corpus: test first, so that training is what avoids it. Nobody changes what it returns."""
    dice = Dice(_SEED)
    held_out = _held_out(dice)
    new = _new(_stream(dice, held_out))
    test = dice.shuffled([next(new) for _ in range(SPLITS["test"])])
    rest = {name: [next(new) for _ in range(size)] for name, size in SPLITS.items() if name != "test"}
    unseen = [at for at, made in enumerate(test) if set(made.objects) & set(held_out)]
    return Drawn({**rest, "test": test}, unseen, held_out)


def build_corpus() -> Corpus:
    """The sample corpus: the same in every process and under every Python."""
    drawn = draw()
    pairs = {name: [(made.german, made.english) for made in made_all] for name, made_all in drawn.sentences.items()}
    return Corpus(pairs["train"], pairs["valid"], pairs["test"], drawn.unseen)


def write_corpus(folder: Path, *, compressed: bool = False) -> None:
    """Write `train`, `valid`, `test` and `test-unseen` as `.de` and `.en`, or as `.de.gz` and `.en.gz`."""
    corpus = build_corpus()
    splits = {name: getattr(corpus, name) for name in SPLITS}
    splits["test-unseen"] = [corpus.test[at] for at in corpus.unseen]
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        for column, language in enumerate(("de", "en")):
            text = "".join(f"{pair[column]}\n" for pair in pairs).encode()
            if compressed:
                (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text, mtime=0))
            else:
                (folder / f"{name}.{language}").write_bytes(text)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser("python -m data.sample.make.corpus", description="Write the sample corpus.")
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--gzip", action="store_true", help="compress the files")
    chosen = parser.parse_args(arguments)
    try:
        write_corpus(chosen.folder, compressed=chosen.gzip)
    except OSError as error:
        parser.error(f"{chosen.folder}: cannot write the sample corpus: {error.strerror}; name another folder")
    sizes = ", ".join(f"{size:,} {split}" for split, size in SPLITS.items())
    print(f"{chosen.folder}: {sizes} sentence pairs, German and English")


if __name__ == "__main__":
    main()
