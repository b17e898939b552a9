"""Memory and time that a large corpus takes: encoding it, planning an epoch, loading batches with subword sampling.

Repeats real text to the wanted number of pairs, in a temporary folder that is removed at the end, and prints for each
step the most anonymous memory of this process and all its workers together, and the time. Linux only. For example:

    .venv/bin/python experiments/memory.py --source train.de.gz --target train.en.gz --pairs 5000000
"""

import argparse
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import torch

from transformer_cli.config import Config
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.loader import Augmentation, CorpusBatches, Position, load_updates
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs

MAX_LENGTH = 256


def anonymous_bytes(process: int) -> int:
    """RssAnon of a process and all its descendants; pages that a forked worker shares count once for each."""
    total = 0
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) * 1024
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(anonymous_bytes(int(child)) for child in (task / "children").read_text().split())
    except OSError:  # it has ended
        pass
    return total


class Meter:
    """Watches the memory from a thread; `peak` is the most since it was last set."""

    def __init__(self) -> None:
        self.peak = 0
        self.baseline = anonymous_bytes(os.getpid())
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, anonymous_bytes(os.getpid()))
            time.sleep(0.1)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step and print it."""
        self.peak = 0
        began = time.monotonic()
        yield
        self.peak = max(self.peak, anonymous_bytes(os.getpid()))
        print(
            f"{name:<40} {time.monotonic() - began:8.1f} s   peak {self.peak / 1e9:5.2f} GB, "
            f"{(self.peak - self.baseline) / 1e9:5.2f} GB above the start",
            flush=True,
        )


def repeat(original: TextCorpus, folder: Path, pairs: int) -> TextCorpus:
    """A corpus of so many pairs: the original again and again."""
    rows = list(original.pairs())
    corpus = folder / "large.source", folder / "large.target"
    for side, path in enumerate(corpus):
        block = [f"{row[side]}\n" for row in rows]
        with open(path, "w", encoding="utf-8") as file:
            for start in range(0, pairs, len(block)):
                file.writelines(block[: pairs - start])
    return TextCorpus(*corpus)


def train_codecs(original: TextCorpus, size: int) -> Codecs:
    side = {"source": "", "target": ""}
    config = Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "train": side, "valid": side},
            "vocabulary": {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": size},
        }
    )
    return build_codecs(config, original.pairs)[0]


def load(corpus: EncodedCorpus, batches: int, batch_tokens: int, workers: int, sampling: Augmentation) -> int:
    """Load so many batches over the end of the first epoch, so that the next one is planned meanwhile."""
    in_batches = CorpusBatches(corpus, batch_tokens, seed=1, augmentation=sampling)
    start = Position(0, max(0, len(in_batches.plan(epoch=0)) - batches // 2))
    loaded = load_updates(in_batches, start=start, workers=workers)
    return sum(batch.target_tokens for update in islice(loaded, batches) for batch in update.batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="source sentences, one per line, plain or .gz")
    parser.add_argument("--target", required=True, help="target sentences, one per line, plain or .gz")
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--batches", type=int, default=2000, help="to load")
    parser.add_argument("--vocabulary", type=int, default=8000, help="subwords")
    arguments = parser.parse_args()

    print(f"{platform.platform()}, {os.cpu_count()} CPUs, torch {torch.__version__}, {arguments.workers} workers")
    meter = Meter()
    print(f"at the start: {meter.baseline / 1e9:.2f} GB")
    original = TextCorpus(arguments.source, arguments.target)
    with tempfile.TemporaryDirectory(prefix="tfm-memory-") as name:
        folder = Path(name)
        codecs = train_codecs(original, arguments.vocabulary)
        large = repeat(original, folder, arguments.pairs)
        with meter.step(f"encoding {arguments.pairs:,} pairs"):
            corpus = encode_corpus(
                large, codecs, max_length=MAX_LENGTH, keep_text=True, workers=arguments.workers, cache_folder=folder
            )
        print(f"{len(corpus):,} pairs in a file of {corpus.path.stat().st_size / 1e9:.2f} GB")
        with meter.step("opening it again"):
            corpus = encode_corpus(large, codecs, max_length=MAX_LENGTH, keep_text=True, cache_folder=folder)
        with meter.step("planning an epoch"):
            plan = CorpusBatches(corpus, arguments.batch_tokens, seed=1).plan(epoch=0)
            padding = plan.padding()
        print(f"{len(plan):,} batches, padding {padding[0]:.1%} of source and {padding[1]:.1%} of target cells")
        with meter.step(f"loading {arguments.batches:,} batches, sampled"):
            sampling = Augmentation(codecs, MAX_LENGTH, subword_sampling=0.1)
            load(corpus, arguments.batches, arguments.batch_tokens, arguments.workers, sampling)


if __name__ == "__main__":
    main()
