"""Large inputs to measure `tfm init` and `tfm doctor` with: a corpus repeated with changes, as text files or as TMX.

    .venv/bin/python experiments/large_corpus.py --data FOLDER --pairs 5000000 --out large
    /usr/bin/time -v tfm doctor large.yaml --jobs 2

    .venv/bin/python experiments/large_corpus.py --data FOLDER --pairs 1000000 --out million.tmx
    /usr/bin/time -v tfm init million.tmx --quiet

FOLDER has train, val and test_2016_flickr, each with a language's name and .gz, as Multi30k has. From the second
time on, each pair has a made-up word at a random place of both sides, so that few are duplicates. The same seed gives
the same bytes. Nothing that exists is written over.
"""

import argparse
import random
from collections.abc import Iterator, Sequence
from html import escape
from itertools import cycle, islice
from pathlib import Path

from planted_faults import Pair, read

SYLLABLES = ["ba", "de", "fo", "gi", "ku", "la", "me", "no", "pi", "ra", "so", "tu", "ve", "wi", "zo"]
HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n'
    '<header creationtool="large_corpus" creationtoolversion="1" segtype="sentence" o-tmf="none" adminlang="en" '
    'srclang="{}" datatype="plaintext"/>\n<body>\n'
)
CONFIG = """data:
  source_language: {0}
  target_language: {1}
  train: {{source: {2}.{0}, target: {2}.{1}}}
  valid: {{source: {2}.valid.{0}, target: {2}.valid.{1}}}
  test: {{source: {2}.test.{0}, target: {2}.test.{1}}}
"""


def changed(pairs: Sequence[Pair], count: int, seed: int) -> Iterator[Pair]:
    """Yield so many pairs: those given, then the same again and again with a word more."""
    drawn = random.Random(seed)
    for number, (source, target) in enumerate(islice(cycle(pairs), count)):
        if number >= len(pairs):
            word = "".join(drawn.choices(SYLLABLES, k=3))
            source, target = (_with(word, text, drawn) for text in (source, target))
        yield source, target


def _with(word: str, text: str, drawn: random.Random) -> str:
    words = text.split(" ")
    words.insert(drawn.randrange(len(words) + 1), word)
    return " ".join(words)


def write_text(stem: str, languages: Sequence[str], pairs: Iterator[Pair]) -> None:
    """Write two text files, STEM.de and STEM.en."""
    with (
        open(f"{stem}.{languages[0]}", "x", encoding="utf-8", newline="\n") as first,
        open(f"{stem}.{languages[1]}", "x", encoding="utf-8", newline="\n") as second,
    ):
        for source, target in pairs:
            first.write(source + "\n")
            second.write(target + "\n")


def write_tmx(path: Path, languages: Sequence[str], pairs: Iterator[Pair]) -> None:
    """Write a translation memory, a unit a line."""
    with open(path, "x", encoding="utf-8", newline="\n") as file:
        file.write(HEAD.format(languages[0]))
        for pair in pairs:
            sides = zip(languages, pair, strict=True)
            variants = (f'<tuv xml:lang="{language}"><seg>{escape(text)}</seg></tuv>' for language, text in sides)
            file.write(f"<tu>{''.join(variants)}</tu>\n")
        file.write("</body></tmx>\n")


def main() -> None:
    """Write what the name of the output says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--source", default="de")
    parser.add_argument("--target", default="en")
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", required=True, help="NAME.tmx, or the beginning of the names of text files")
    given = parser.parse_args()
    languages = given.source, given.target
    pairs = changed(read(given.data, "train", *languages), given.pairs, given.seed)
    if given.out.endswith(".tmx"):
        write_tmx(Path(given.out), languages, pairs)
        return
    write_text(given.out, languages, pairs)
    for name, split in (("valid", "val"), ("test", "test_2016_flickr")):
        write_text(f"{given.out}.{name}", languages, iter(read(given.data, split, *languages)))
    with open(f"{given.out}.yaml", "x", encoding="utf-8") as file:
        file.write(CONFIG.format(*languages, given.out))


if __name__ == "__main__":
    main()
