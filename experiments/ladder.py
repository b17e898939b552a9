"""Whether `model.preset: auto` is as good as the best of twenty settings that `tfm tune` finds, for results.md.

    .venv/bin/python experiments/ladder.py WORK --text multi30k --pairs 1000 [--languages de en] [--joined 4] [--noisy]

Captions of Multi30k; `--joined`: so many of them in each line, which makes long sentences; `--noisy`: a twentieth of
the pairs have another's translation, and half of them come twice. `auto` is trained to its end, and so are the best of
the settings; each is judged by its best validation, and once on the test set, with a beam of 5. Prints a row of the
table. What is in WORK already is not done again, and what was interrupted continues.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from little_text import MISALIGNED, Pair, caption_pairs, events, write_parts
from variants import tfm

from transformer_cli.config import load_config
from transformer_cli.config.yaml_file import dump_tree
from transformer_cli.jobs.plan import make_plan

TWICE = 1 / 2  # share of noisy pairs
SETTINGS = (
    "model.d_model=128,192,256",
    "model.dropout=0.1,0.2,0.3,0.4",
    "vocabulary.size=1000,2000,4000,8000",
    "training.peak_learning_rate=0.001..0.008",
    "training.batch_tokens=1000,2000",
    "training.r_drop=0,5",
    "training.weight_decay=0,0.5,1.5",
)
REDUCTION = 4  # one setting of so many is trained on


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--languages", nargs=2, default=["de", "en"], help="source and target")
    parser.add_argument("--joined", type=int, default=1, help="captions in a line")
    parser.add_argument("--noisy", action="store_true")
    parser.add_argument("--settings", type=int, default=20)
    parser.add_argument(
        "--min-steps", type=int, help="fewest updates of the first rung (default: three times the warmup)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="trials at once")
    options = parser.parse_args()
    name = "-".join(
        [*options.languages, str(options.pairs), str(options.joined), "noisy" if options.noisy else "clean"]
    )
    folder = options.work.resolve() / name
    if not folder.exists():
        parts = caption_pairs(options.text, options.pairs, options.languages)
        write_corpus(folder, {part: joined(pairs, options.joined) for part, pairs in parts.items()}, options.noisy)
    config = folder / "auto.yaml"
    sides = {part: {end: str(folder / f"{part}.{end}") for end in ("source", "target")} for part in ("train", "valid")}
    languages = dict(zip(("source_language", "target_language"), options.languages, strict=True))
    data = {**languages, **sides, "workers": 0, "max_length": 256}
    config.write_text(dump_tree({"data": data, "model": {"preset": "auto"}}), encoding="utf-8")

    auto, log = folder / "auto", folder / "log"
    tfm(log, "train", str(config), "--out", str(auto), "--quiet")
    resolved = load_config(auto / "config.yaml")
    least = options.min_steps or 3 * resolved.training.warmup_steps
    plan = make_plan(resolved, REDUCTION, least, seeds=0)
    vary = [word for setting in SETTINGS for word in ("--vary", setting)]
    search = ["--budget", f"{plan.cost(options.settings)}steps", "--jobs", str(options.jobs)]
    search += ["--reduction", str(REDUCTION), "--min-steps", str(least)]
    told = tfm(log, "tune", str(config), "--out", str(folder / "tune"), *vary, *search, "--json", "--quiet")
    found = json.loads(told)
    print(table_row(name, auto, folder, found), flush=True)
    return 0


def joined(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Return the pairs, so many in one; what is left over is left out."""
    whole = range(0, len(pairs) - count + 1, count)
    return [
        (" ".join(a for a, _ in pairs[at : at + count]), " ".join(b for _, b in pairs[at : at + count])) for at in whole
    ]


def write_corpus(folder: Path, parts: dict[str, list[Pair]], noisy: bool) -> None:
    """Write the files of a corpus; noise is in its training part alone."""
    if noisy:
        draw, train = random.Random(1), parts["train"]
        faulty = draw.sample(range(len(train)), int(MISALIGNED * len(train)))
        others = [train[line][1] for line in [*faulty[1:], *faulty[:1]]]
        train = list(train)
        for line, other in zip(faulty, others, strict=True):
            train[line] = (train[line][0], other)
        train += draw.sample(train, int(TWICE * len(train)))
        draw.shuffle(train)
        parts = {**parts, "train": train}
    write_parts(folder, parts)


def table_row(name: str, auto: Path, folder: Path, found: dict[str, Any]) -> str:
    """Return what `auto` scores, what the best setting scores, and how it differs from `auto`."""
    own = max(event["valid_bleu"] for event in events(auto) if "valid_bleu" in event)
    trials = {trial["trial"]: trial for trial in found["trials"]}
    best = trials[found["best"]["trial"]]
    score = max(best["scores"].values())
    run = folder / "tune" / "trials" / f"{best['trial']:03}"
    tests = [f"{test_score(folder, model):.2f}" for model in (auto, run)]
    values = ", ".join(f"{key.split('.')[1]} {value:g}" for key, value in best["values"].items())
    return f"| {name} | {own:.2f} | {score:.2f} | {score - own:+.2f} | {' | '.join(tests)} | {len(trials)} | {values} |"


def test_score(folder: Path, model: Path) -> float:
    """Return BLEU on the test part."""
    files = ["--source", str(folder / "test.source"), "--reference", str(folder / "test.target")]
    scores = json.loads(tfm(folder / "log", "evaluate", str(model), *files, "--beam", "5", "--json", "--quiet"))[
        "scores"
    ]
    return float(next(one["score"] for one in scores if one["name"] == "BLEU"))


if __name__ == "__main__":
    sys.exit(main())
