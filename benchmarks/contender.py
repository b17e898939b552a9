"""One contender in a process of its own, which does an update whenever it is told to. `training.py` starts it.

    python contender.py MODULE PRECISION THREADS BATCHES SHAPE

Reads lines from stdin: `step` does one update, `end` ends. Writes one line of JSON for each, and one when it is ready.
Works under another interpreter too: needs torch, numpy and what the contender's module imports.
"""

import importlib
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
from batches import read_batches
from machine import process_memory
from shape import Shape

LIBRARIES = {"marian": ["transformers"], "joey": ["joeynmt"], "tfm": ["transformer-cli"]}


def main() -> None:
    module, precision, threads, path, shape = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no reply

    def reply(**values: object) -> None:
        print(json.dumps(values), file=replies, flush=True)

    torch.set_num_threads(int(threads))
    train = importlib.import_module(f"contenders.{module}").train
    batches = read_batches(Path(path))
    start = process_memory("RssAnon")
    updates = train(batches, Shape(**json.loads(shape)), precision)
    versions = [f"{name} {version(name)}" for name in LIBRARIES.get(module, [])]
    reply(versions=[f"torch {torch.__version__}", *versions])
    for line in sys.stdin:
        if line.strip() != "step":
            break
        began = time.perf_counter()
        value = next(updates)
        reply(seconds=time.perf_counter() - began, value=value)
    in_files = process_memory("VmRSS") - process_memory("RssAnon")
    reply(peak=process_memory("VmHWM"), working=process_memory("VmHWM") - in_files - start)


if __name__ == "__main__":
    main()
