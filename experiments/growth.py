"""How time and memory grow with the number of lines: 10^4, 10^5, 10^6, 10^7, a process of its own for each measurement.

    .venv/bin/python experiments/growth.py WORK --data FOLDER [--stages doctor plan] [--powers 4 5 6 7] [--write]

FOLDER is as in `large_corpus.py`, with whose changes it is repeated: every line is new. What is measured is kept in
WORK/results, and not measured again. The time of a further million lines is
the difference to the size before, divided by the lines that came to it: without what every start costs. Linux only.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from large_corpus import changed, write_text
from planted_faults import read
from vocabulary import anonymous_bytes

from transformer_cli.codecs import load_text_side
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.storage.run_folder import find_model

SCALING, PICTURE = ROOT / "docs" / "scaling.md", ROOT / "docs" / "images" / "growth.png"
LANGUAGES, SPLITS = ("de", "en"), (("valid", "val"), ("test", "test_2016_flickr"))
STAGES = {  # and what the table calls them
    "build-vocab": "`tfm build-vocab`",
    "doctor": "`tfm doctor`",
    "encode": "encoding",
    "open": "opening what is encoded",
    "plan": "planning an epoch",
    "load": "loading an epoch",
    "translate": "`tfm translate`",
}
ROUNDS, ENOUGH = 2, 20.0  # so many measurements, unless one took so many seconds; the least counts
CONFIG = """
data:
  source_language: de
  target_language: en
  train: {{source: {0}.de, target: {0}.en}}
  valid: {{source: valid.de, target: valid.en}}
  test: {{source: test.de, target: test.en}}
  max_length: 128
  workers: 0
vocabulary: {{size: 4000, algorithm: bpe}}
model: {{encoder_layers: 1, decoder_layers: 1, d_model: 64, heads: 4, d_ff: 128, tie_embeddings: all, dropout: 0.1,
  norm: pre, positions: rotary, qk_norm: true}}
training: {{batch_tokens: 2000, max_steps: 3000, optimizer: muon, schedule: cosine, peak_learning_rate: 0.005,
  warmup_steps: 300, validate_every: 1000, save_every: 1000}}
"""


def main() -> None:
    """Make what is missing, measure what is missing, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=[*STAGES], metavar="STAGE")
    parser.add_argument("--powers", type=int, nargs="+", default=[4, 5, 6, 7], help="of ten (default 4 5 6 7)")
    parser.add_argument("--write", action="store_true", help="only put what is measured into docs/scaling.md")
    parser.add_argument("--worker", choices=STEPS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes, data = [10**power for power in given.powers], given.data.resolve()
    if given.worker:
        print(STEPS[given.worker](sizes[0]))
        return
    os.environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TFM_CACHE": "cache"}
    given.work.mkdir(exist_ok=True)
    with chdir(given.work):
        if not given.write:
            prepare(data, sizes)
            for size, stage in itertools.product(sizes, given.stages):
                measure_once(stage, size, data)
    from growth_picture import describe, draw, gather  # here: torch and matplotlib are no part of what is measured
    from page import describe_run, report

    from transformer_cli.plots.style import save

    found = gather(given.work / "results", STAGES)
    report([*describe(found), "", describe_run(1)], given.write, SCALING)
    if given.write:
        save(draw(found), PICTURE)


def prepare(data: Path, sizes: list[int]) -> None:
    """Write the corpora, each the beginning of the next larger one, and train the model that translates."""
    Path("results").mkdir(exist_ok=True)
    pairs = read(data, "train", *LANGUAGES)
    splits = {name: iter(read(data, split, *LANGUAGES)) for name, split in SPLITS}
    corpora = {str(size): islice(changed(pairs, len(pairs) + size, 1), len(pairs), None) for size in sizes}
    # Trained on text with made-up words: otherwise it repeats itself on them, and such lines are searched again.
    learned = changed(pairs, 4 * len(pairs), 2)
    for name, made in (splits | corpora | {"all": learned}).items():
        if not Path(f"{name}.yaml").exists():
            write_text(f"{name}.part", LANGUAGES, made)
            for language in LANGUAGES:
                Path(f"{name}.part.{language}").rename(f"{name}.{language}")
            Path(f"{name}.yaml").write_text(CONFIG.format(name), encoding="utf-8")
    if not Path("model").exists():
        subprocess.run(tfm("train", "all.yaml", "--out", "model.part", "--quiet"), check=True)
        Path("model.part").rename("model")
        subprocess.run(tfm("translate", "model", "ein Hund", "--quiet"), check=True)  # it is converted once


def tfm(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "transformer_cli", *arguments]


# --- measuring --------------------------------------------------------------------------------------------------------


def measure_once(stage: str, size: int, data: Path) -> None:
    """Measure a stage, and keep what was found, if that is not done yet."""
    file = Path("results") / f"{stage}-{size}.json"
    if file.exists():
        return
    out = ["--out", "run"] if stage == "build-vocab" else ["-o", "out"]
    command = {
        "build-vocab": tfm("build-vocab", f"{size}.yaml", *out, "--quiet"),
        "doctor": tfm("doctor", f"{size}.yaml", *out, "--format", "json", "--quiet"),
        "translate": tfm("translate", "model", "-i", f"{size}.de", *out, "--greedy", "--quiet"),
    }.get(stage) or [sys.executable, str(Path(__file__).resolve()), ".", "--data", str(data), "--worker", stage]
    rounds: list[tuple[float, int]] = []
    while len(rounds) < ROUNDS and all(seconds < ENOUGH for seconds, _ in rounds):
        shutil.rmtree("run", ignore_errors=True)
        power = [] if stage in ("build-vocab", "doctor", "translate") else ["--powers", str(len(str(size)) - 1)]
        rounds.append(measure([*command, *power]))
    seconds, peak = min(seconds for seconds, _ in rounds), max(peak for _, peak in rounds)
    file.write_text(json.dumps({"lines": size, "seconds": seconds, "peak": peak, "rounds": rounds}))
    print(stage, size, rounds, file=sys.stderr, flush=True)


def measure(command: list[str]) -> tuple[float, int]:
    """Return the CPU seconds of a command with all its processes, or those that it prints of its step alone, and the
    most bytes of anonymous memory."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    peak = 0
    while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
        peak = max(peak, anonymous_bytes(process.pid))
        time.sleep(0.3)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    assert process.returncode == 0, command
    assert process.stdout is not None
    printed = process.stdout.read() if "--worker" in command else b""
    return float(printed or ended[2].ru_utime + ended[2].ru_stime), peak


def encoded(size: int) -> EncodedCorpus:
    """The corpus by the model's own codecs, from the cache where it is there."""
    config, codecs = load_text_side(find_model("model"))
    text = TextCorpus(f"{size}.de", f"{size}.en")
    return encode_corpus(text, codecs, max_length=config.data.max_length, cache_folder=Path("cache") / str(size))


def timed(step: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    done = step()
    return time.process_time() - began, done


def encode_step(size: int) -> float:
    shutil.rmtree(Path("cache") / str(size), ignore_errors=True)
    return timed(lambda: encoded(size))[0]


def open_step(size: int) -> float:
    return timed(lambda: encoded(size))[0]


def plan_step(size: int) -> float:
    """The least of three epochs: in the first the kernel clears the memory for all of them."""
    from transformer_cli.data.loader import CorpusBatches

    batches = CorpusBatches(encoded(size), 4096, seed=1)
    return min(timed(partial(batches.plan, epoch))[0] for epoch in range(3))


def load_step(size: int) -> float:
    """All batches of an epoch but the first, before which it is planned."""
    from transformer_cli.data.loader import CorpusBatches, load_updates

    batches = CorpusBatches(encoded(size), 4096, seed=1)
    updates = load_updates(batches)
    position = next(updates).next_position
    began = time.process_time()
    while position.epoch == 0:
        position = next(updates).next_position
    return time.process_time() - began


STEPS = {"encode": encode_step, "open": open_step, "plan": plan_step, "load": load_step}


if __name__ == "__main__":
    main()
