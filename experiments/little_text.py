"""What helps a model with little text to find out that it translates: optimizer and guided attention, for results.md.

    for language in es eu; do apt-get download libreoffice-help-$language; done
    for package in libreoffice-help-*.deb; do dpkg-deb -x $package office; done
    .venv/bin/python experiments/little_text.py WORK help --text office [--rows plain muon] [--seeds 1]
    .venv/bin/python experiments/little_text.py WORK captions --text multi30k [--pairs 5000] [--languages en fr]
    apt-get download sword-text-web sword-text-sparv
    for package in sword-text-*.deb; do dpkg-deb -x $package sword; done
    .venv/bin/pip install pysword
    .venv/bin/python experiments/little_text.py WORK verses --text sword --rows auto --seeds 1

`help` is a hard corpus: the paragraphs of LibreOffice's help (at least 13 words, no two alike) from Spanish to Basque,
whose words have many forms; a twentieth of them with another's translation, four fifths of them twice. `verses` are as
hard: 14,500 verses of the Bible (at least 8 words, no two alike), today's English to the Spanish of 1909, as many of
them faulty and nearly as many twice. `captions` are pairs of Multi30k, German to English if nothing else is said. All
rows are `model.preset: auto` but for what they say, and all but `auto` have a cosine schedule with fewer updates, no
moving average of the weights, random initial embeddings, and a guide that is as strong from beginning to end. What is
in WORK already is not done again, and what was interrupted continues.
"""

import argparse
import gzip
import html
import json
import os
import random
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT)]
from page import describe_run
from variants import tfm

from transformer_cli.config.yaml_file import Tree, dump_tree

GUIDE = {"prior": "alignments", "weight": 0.05, "layer": -2}
SMALL: Tree = {"batch_tokens": 1000, "peak_learning_rate": 0.0015, "r_drop": 0.0, "weight_decay": 0.0}
LARGER: Tree = {"batch_tokens": 2000, "peak_learning_rate": 0.003, "weight_decay": 0.0}
SINUSOIDS: Tree = {"positions": "sinusoidal", "qk_norm": False}
ROWS: dict[str, tuple[Tree, Tree]] = {  # of `model` and of `training`
    "plain": (SINUSOIDS, {**SMALL, "optimizer": "adam", "guided_attention": None}),
    "guided": (SINUSOIDS, {**SMALL, "optimizer": "adam", "guided_attention": GUIDE}),
    "muon": (SINUSOIDS, {**SMALL, "optimizer": "muon", "guided_attention": None}),
    "both": (SINUSOIDS, {**SMALL, "optimizer": "muon", "guided_attention": GUIDE}),
    "larger": (SINUSOIDS, {**LARGER, "r_drop": 0.0}),
    "r-drop": (SINUSOIDS, {**LARGER, "r_drop": 5.0}),
    "rotary": ({}, {"weight_decay": 0.0}),
    "decay": ({}, {"weight_decay": 1.5}),
    "auto": ({}, {}),
}
COSINE = ((1000, 1500), (5000, 2500))  # updates with so many captions at most
HELP: Tree = {"schedule": "cosine", "max_steps": 2000, "validate_every": 500, "save_every": 2000}  # far from the end
LONG, LONGEST, LONG_TARGET = 13, 60, 8  # words of a paragraph of the help
HELD = 500  # pairs for validation, and as many for the test
MISALIGNED, TWICE = 1 / 20, 4 / 5  # shares of the pairs
VERSES, REPEATED, LONG_VERSE = 14_500, 12_000, 8  # of the Bible's pairs; words a side
PARAGRAPH = re.compile(r'<(p|h\d)\b[^>]*\bid="([^"]+)"[^>]*>(.*?)</\1>', re.S)
SIGNS = re.compile(r"\W+|\d")

Pair = tuple[str, str]


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("corpus", choices=["help", "verses", "captions"])
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5000, help="of captions")
    parser.add_argument("--languages", nargs=2, default=["de", "en"], help="of captions: source and target")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    hard = options.corpus != "captions"
    languages = {"help": ["es", "eu"], "verses": ["en", "es"]}.get(options.corpus, options.languages)
    name = options.corpus if hard else "-".join(["captions", str(options.pairs), *languages])
    folder = options.work.resolve() / name
    if not folder.exists():
        hard_pairs = help_pairs if options.corpus == "help" else verse_pairs
        parts = hard_pairs(options.text) if hard else caption_pairs(options.text, options.pairs, languages)
        write_parts(folder, parts)
    print("| training | seeds | BLEU, val | nats from the source | BLEU, test | chrF2, test |\n" + "| --- " * 6 + "|")
    for row in options.rows:
        length = {} if row == "auto" else HELP if hard else fixed_length(options.pairs)
        results = [result(folder, languages, row, seed, length) for seed in options.seeds]
        print(table_row(row, results), flush=True)
    print(f"\n{describe_run(threads=1)}")
    return 0


def fixed_length(pairs: int) -> Tree:
    """Return the schedule of all rows but `auto`, whose training ends by patience."""
    steps = next((steps for most, steps in COSINE if pairs <= most), COSINE[-1][1])
    every = steps // 10
    return {"schedule": "cosine", "max_steps": steps, "validate_every": every, "save_every": every}


def result(folder: Path, languages: Sequence[str], row: str, seed: int, length: Tree) -> dict[str, float]:
    """Train one row with one seed, and return its scores."""
    config, run = folder / f"{row}-{seed}.yaml", folder / f"{row}-{seed}"
    files = {part: {end: str(folder / f"{part}.{end}") for end in ("source", "target")} for part in ("train", "valid")}
    model, training = ROWS[row]
    tree: dict[str, Any] = {
        "data": {**dict(zip(("source_language", "target_language"), languages, strict=True)), **files, "workers": 0},
        "model": {**model, "preset": "auto"},
        "training": {
            **({} if row == "auto" else {"ema_decay": None, "init_embeddings": "random", "guided_attention": GUIDE}),
            **training,
            **length,
            "seed": seed,
        },
    }
    tree["data"]["max_length"] = 128
    config.write_text(dump_tree(tree), encoding="utf-8")
    tfm(folder / f"{row}-{seed}.log", "train", str(config), "--out", str(run), "--quiet")
    said = folder / f"{row}-{seed}.json"
    if not said.exists():
        test = ["--source", str(folder / "test.source"), "--reference", str(folder / "test.target")]
        scores = tfm(folder / f"{row}-{seed}.log", "evaluate", str(run), *test, "--beam", "5", "--json", "--quiet")
        said.write_text(scores, encoding="utf-8")
    found = json.loads(said.read_text(encoding="utf-8"))
    validations = [event for event in events(run) if "valid_bleu" in event]
    best = max(validations, key=lambda event: event["valid_bleu"])
    test_scores = {one["name"]: one["score"] for one in found["scores"]}
    return {
        "val": best["valid_bleu"],
        "gain": validations[-1]["valid_source_gain"],
        "bleu": test_scores["BLEU"],
        "chrf": test_scores["chrF2"],
    }


def events(run: Path) -> Iterator[dict[str, Any]]:
    """Yield what a run recorded."""
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def table_row(row: str, results: Sequence[dict[str, float]]) -> str:
    """Return the mean of each score, with the lowest and the highest of several seeds."""
    cells = []
    for key in ("val", "gain", "bleu", "chrf"):
        values = [one[key] for one in results]
        spread = f" ({min(values):.2f}–{max(values):.2f})" if len(values) > 1 else ""
        cells.append(f"{mean(values):.2f}{spread}")
    return f"| {row} | {len(results)} | " + " | ".join(cells) + " |"


# --- the text -------------------------------------------------------------------------------------------------------


def write_parts(folder: Path, parts: dict[str, list[Pair]]) -> None:
    """Write the files of a corpus into a folder that is not there; it is there once all of them are."""
    unfinished = folder.with_name(folder.name + ".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    for part, pairs in parts.items():
        for side, end in enumerate(("source", "target")):
            (unfinished / f"{part}.{end}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    unfinished.rename(folder)


def caption_pairs(folder: Path, count: int, languages: Sequence[str]) -> dict[str, list[Pair]]:
    """Return pairs of Multi30k drawn from its training data, and its validation and test data as they are."""

    def whole(stem: str) -> list[Pair]:
        sides = (gzip.decompress((folder / f"{stem}.{end}.gz").read_bytes()).decode() for end in languages)
        return list(zip(*(side.split("\n")[:-1] for side in sides), strict=True))

    train = random.Random(42).sample(whole("train"), count)
    return {"train": train, "valid": whole("val"), "test": whole("test_2016_flickr")}


def help_pairs(folder: Path) -> dict[str, list[Pair]]:
    """Return the help's pairs, faulty and repeated in training, as they are in validation and test."""
    source, target = (dict(paragraphs(folder, language)) for language in ("es", "eu"))
    pairs = sorted({(source[key], target[key]) for key in source.keys() & target.keys()})
    draw = random.Random(1)
    draw.shuffle(pairs)
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        words = [len(side.split()) for side in pair]
        keys = {SIGNS.sub("", side.lower()) for side in pair}
        fits = LONG <= words[0] <= LONGEST and LONG_TARGET <= words[1] <= LONGEST and pair[0] != pair[1]
        if fits and not keys & seen:
            seen |= keys
            kept.append(pair)
    test, valid, train = kept[:HELD], kept[HELD : 2 * HELD], kept[2 * HELD :]
    faulty = draw.sample(range(len(train)), int(MISALIGNED * len(train)))
    noisy = list(train)
    for line, other in zip(faulty, [*faulty[1:], faulty[0]], strict=True):
        noisy[line] = (train[line][0], train[other][1])
    noisy += draw.sample(noisy, int(TWICE * len(noisy)))
    draw.shuffle(noisy)
    return {"train": noisy, "valid": valid, "test": test}


def verse_pairs(folder: Path) -> dict[str, list[Pair]]:
    """Return verses of two Bibles, faulty and repeated in training, as they are in validation and test."""
    from pysword.modules import SwordModules  # needed for this corpus alone

    modules = SwordModules(str(folder / "usr/share/sword"))
    modules.parse_modules()
    source, target = (dict(verses(modules.get_bible_from_module(name))) for name in ("engWEB2015eb", "spaRV1909eb"))
    both = ((source[key], target[key]) for key in source if key in target)
    pairs = [pair for pair in both if min(len(side.split()) for side in pair) >= LONG_VERSE]
    draw = random.Random(1)
    draw.shuffle(pairs)
    seen: set[str] = set()
    kept = []
    for pair in pairs:
        if not seen & {*pair}:
            seen |= {*pair}
            kept.append(pair)
    valid, test, train = kept[:HELD], kept[HELD : 2 * HELD], kept[2 * HELD :][:VERSES]
    faulty = train[: int(MISALIGNED * len(train))]
    shifted = [(pair[0], other[1]) for pair, other in zip(faulty, [*faulty[1:], faulty[0]], strict=True)]
    noisy = shifted + train[len(faulty) :]
    noisy += draw.sample(noisy, REPEATED)
    draw.shuffle(noisy)
    return {"train": noisy, "valid": valid, "test": test}


def verses(bible: Any) -> Iterator[tuple[tuple[str, int, int], str]]:
    """Yield each verse of a module for SWORD that is not empty, with its book, chapter and number."""
    for books in bible.get_structure().get_books().values():
        for book in books:
            for chapter, count in enumerate(book.chapter_lengths, start=1):
                for verse in range(1, count + 1):
                    with suppress(ValueError, IndexError):  # the text lacks this part of the canon
                        read = bible.get(books=[book.name], chapters=[chapter], verses=[verse], join="")
                        if text := " ".join(re.sub("<[^>]+>", "", read).split()):
                            yield (book.name, chapter, verse), text


def paragraphs(folder: Path, language: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield each paragraph of a language's help, with its page and its name there."""
    root = folder / "usr/share/libreoffice/help" / language / "text"
    for path, _, files in os.walk(root):
        for file in files:
            if not file.endswith(".html"):
                continue
            page = Path(path, file)
            for found in PARAGRAPH.finditer(page.read_text(encoding="utf-8")):
                text = " ".join(html.unescape(re.sub("<[^>]+>", "", found[3])).split())
                if text:
                    yield (str(page.relative_to(root)), found[2]), text


if __name__ == "__main__":
    sys.exit(main())
