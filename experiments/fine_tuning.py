"""Fine-tuning an imported model for another kind of text, sentences of LibreOffice's interface; for fine-tuning.md.

    apt-get download libreoffice-l10n-de && dpkg-deb -x libreoffice-l10n-de_*.deb office
    .venv/bin/python experiments/fine_tuning.py WORK --parent RUN --messages office [--seeds 1 2 3]

RUN translates from German to English, with `model.norm: post`, as Marian's models have it. It is exported for Hugging
Face and imported again, as a model that others trained would be. Its children have 1,000 pairs, drawn by the seed;
`tfm compare` says whether they are better than the model as it is, and than models trained from scratch on the same
pairs. What is in WORK already is not done again.
"""

import argparse
import gettext
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "benchmarks"))
from page import describe_run
from variants import tfm

TRAIN, VALID, TEST = 1000, 500, 1000  # pairs
SHORTEST = 4  # words of a sentence; shorter messages are mostly labels
MARKS = re.compile("[~_%<{$\n]")  # of keys, of what is filled in, and of markup: texts with any of them are left out
CHILD: dict[str, Any] = {  # the updates and the schedule of models from scratch, as `preset: auto` had them
    "schedule": "cosine",
    "ema_decay": None,
    "peak_learning_rate": 0.001,
    "warmup_steps": 100,
    "max_steps": 1500,
    "batch_tokens": 1000,
    "validate_every": 250,
    "save_every": 250,
    "precision": "auto",
}
ROWS: dict[str, dict[str, Any]] = {  # what each trains with, beside its data
    "scratch": {"model": {"preset": "auto", "positions": "sinusoidal", "qk_norm": False}},
    "fine-tuned": {"model.dropout": 0.3},
    "own vocabulary": {
        "model.dropout": 0.3,
        "training.init_vocabulary": "own",
        "vocabulary": {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 2000, "shared": True},
    },
}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--parent", type=Path, required=True)
    parser.add_argument("--messages", type=Path, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    imported, there = work / "imported", work / "huggingface"
    if not imported.exists():
        if not there.exists():
            tfm(work / "log", "export", str(options.parent), "--format", "huggingface", "--out", str(there))
        tfm(work / "log", "import", str(there), "--out", str(imported), *said_languages())
    pairs = messages(options.messages)
    write(work, "test", pairs[:TEST])
    write(work, "valid", pairs[TEST : TEST + VALID])
    runs = {row: [train(work, row, seed, pairs[TEST + VALID :]) for seed in options.seeds] for row in ROWS}
    systems = [f"{row}={','.join(folders)}" for row, folders in runs.items()]
    test = ["--source", str(work / "test.de"), "--reference", str(work / "test.en"), "--metric", "bleu,chrf"]
    for order in ([systems[0], *systems[1:], f"imported={imported}"], [f"imported={imported}", *systems[1:]]):
        print(tfm(work / "log", "compare", *order, *test, "--quiet"))
    print(describe_run(threads=1))
    return 0


def said_languages() -> Sequence[str]:
    """Return the options that name the languages."""
    return ["--source-language", "de", "--target-language", "en"]


def messages(folder: Path) -> list[tuple[str, str]]:
    """Return the sentences of all message catalogues in a folder, German and English, each once, in one order."""
    found: dict[str, str] = {}  # English by German: each sentence once on either side
    for path in sorted(folder.rglob("*.mo")):
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # gettext has no other way
        for key, german in catalogue.items():
            english = key.split("\x04")[-1].strip() if isinstance(key, str) else ""
            sentence = len(english.split()) >= SHORTEST and german != english
            if sentence and not MARKS.search(english + german):
                found.setdefault(german.strip(), english)
    pairs = list({english: (german, english) for german, english in found.items()}.values())
    random.Random(0).shuffle(pairs)
    return pairs


def write(work: Path, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Write both sides of some pairs."""
    for language, side in zip(("de", "en"), zip(*pairs, strict=True), strict=True):
        (work / f"{name}.{language}").write_text("".join(f"{line}\n" for line in side), encoding="utf-8")


def train(work: Path, row: str, seed: int, pairs: Sequence[tuple[str, str]]) -> str:
    """Train a row with a seed, or continue where it was interrupted; return its run folder."""
    name = f"{row.replace(' ', '-')}-{seed}"
    write(work, f"train-{seed}", random.Random(seed).sample(pairs, TRAIN))
    files = {part: {"source": f"{work}/{stem}.de", "target": f"{work}/{stem}.en"} for part, stem in parts(seed)}
    data = {"source_language": "de", "target_language": "en", "max_length": 200, "workers": 0, **files}
    config = work / f"{name}.yaml"
    config.write_text(json.dumps({"data": data}), encoding="utf-8")
    sets: dict[str, Any] = {}
    if row != "scratch":
        config = work / "imported" / "config.yaml"
        sets = {"data": data, "training": {**CHILD, "init_from": str(work / "imported")}}
    sets |= {**ROWS[row], "training.seed": seed}
    options = [f"--set={key}={json.dumps(value)}" for key, value in sets.items()]
    run = work / "runs" / name
    tfm(
        work / f"{name}.log",
        "train",
        str(config),
        "--out",
        str(run),
        *options,
        f"--set=training.seed={seed}",
        "--quiet",
    )
    return str(run)


def parts(seed: int) -> Sequence[tuple[str, str]]:
    """Return the parts of the data that a config names, and their files."""
    return [("train", f"train-{seed}"), ("valid", "valid"), ("test", "test")]


if __name__ == "__main__":
    sys.exit(main())
