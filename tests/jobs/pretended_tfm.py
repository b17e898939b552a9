"""Stands for `tfm train` where a search is tested: a run folder with validations, in a tenth of a second and no torch.

A trial's BLEU follows from its dropout, its number of heads and its seed, and rises with its steps; dropout 0.9
diverges, 0.8 runs out of memory, 0.7 finds a full disk, and with 0.6 only the first try is ended. No trial ends before
the file TRIALS_WAIT_FOR, if the environment names one, is there.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

EVERY, LAST = 10, 90  # steps: between validations, and of a whole run


def score(values: dict[str, str], step: int) -> float:
    seed = int(values.get("training.seed", 1))
    best = 40 - 100 * abs(float(values.get("model.dropout", 0.1)) - 0.22) + (values.get("model.heads") == "4")
    return best * step / (step + 20) + (seed * 7919 % 10) / 10 * float(os.environ.get("NOISE", "0"))


def main(arguments: list[str]) -> int:
    run, until = Path(arguments[arguments.index("--out") + 1]), int(arguments[arguments.index("--until") + 1])
    sets = [word for before, word in itertools.pairwise(arguments) if before == "--set"]
    values = dict(word.split("=", 1) for word in sets)
    dropout = values.get("model.dropout")
    if not (run / "vocab" / "manifest.json").is_file():
        print("error: was given no vocabulary", file=sys.stderr)
        return 1
    if dropout in ("0.7", "0.8", "0.9"):
        says = {"0.7": "No space left on device", "0.8": "out of memory; take smaller batches", "0.9": "diverged"}
        print("some progress\nerror: " + says[dropout], file=sys.stderr)
        return 2 if dropout == "0.9" else 1
    if dropout == "0.6" and not (run / "tried").exists():
        (run / "tried").touch()
        os.kill(os.getpid(), signal.SIGTERM)
    while (awaited := os.environ.get("TRIALS_WAIT_FOR")) and not Path(awaited).exists():
        time.sleep(0.01)
    index = run / "checkpoints.json"
    before = json.loads(index.read_text())["last"] if index.exists() else 0
    with open(run / "metrics.jsonl", "a") as metrics:
        for step in range(before + EVERY, until + 1, EVERY):
            bleu = score(values, step)
            metrics.write(json.dumps({"step": step, "loss": 1.0}) + "\n")
            found = {"step": step, "valid_loss": 100 - bleu, "valid_bleu": bleu, "valid_chrf": None}
            metrics.write(json.dumps(found) + "\n")
    folder = run / f"step-{until:08d}"
    folder.mkdir()
    (folder / "manifest.json").write_text('{"sha256": {}}')
    finished = "max_steps" if until >= LAST else None
    index.write_text(json.dumps({"steps": [until], "best": [], "last": until, "finished": finished}))
    with open(run.parent.parent / "trained", "a") as trained:
        threads = os.environ.get("OMP_NUM_THREADS")
        trained.write(json.dumps([f"{run.parent.name}/{run.name}", before, until, threads]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
