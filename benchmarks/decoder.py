"""One program that translates whatever it is told to. `decoding.py` and `speed_quality.py` start it, one a row.

    python decoder.py MODULE VARIANT THREADS WORK

WORK is a JSON file: the models' folders, and sentences as text and as tokens. Reads lines from stdin: `BEAM BATCH FIRST
COUNT` translates so many sentences from that one on, in batches of BATCH or one at a time (BATCH 1); `end` ends.
"""

import importlib
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

LIBRARIES = {
    "tfm": "transformer-cli",
    "labelled": "transformer-cli",
    "huggingface": "transformers",
    "direct": "ctranslate2",
}


def main() -> None:
    module, variant, threads, path = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no reply

    def reply(**values: object) -> None:
        print(json.dumps(values), file=replies, flush=True)

    work = json.loads(Path(path).read_text(encoding="utf-8"))
    decode = importlib.import_module(f"decoders.{module}").load(work, variant, int(threads))
    reply(versions=[f"{LIBRARIES[module]} {version(LIBRARIES[module])}"])
    for line in sys.stdin:
        if line.strip() == "end":
            break
        beam, batch, first, count = map(int, line.split())
        began = time.perf_counter()
        tokens = decode(beam, batch, range(first, first + count))
        reply(seconds=time.perf_counter() - began, tokens=tokens, sentences=count)
    reply()


if __name__ == "__main__":
    main()
