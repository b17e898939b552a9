"""Time and memory of `tfm build-vocab` on a large corpus.

Repeats real text to the wanted number of pairs, in a temporary folder that is removed at the end. So that the number
of different words grows as in a large corpus, every twentieth word is replaced by a compound of two others. Prints the
time and the most anonymous memory of the process and its workers together. Linux only. For example:

    .venv/bin/python experiments/vocabulary.py --source train.de.gz --target train.en.gz
"""

import argparse
import os
import platform
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from transformer_cli.config import Config, TextFiles
from transformer_cli.data.corpora import open_corpus
from transformer_cli.text.build import build_codecs, describe
from transformer_cli.text.lines import read_lines

TOKENIZERS: dict[str, dict[str, Any]] = {
    "unigram": {"tokenizer": "sentencepiece", "algorithm": "unigram"},
    "bpe": {"tokenizer": "sentencepiece", "algorithm": "bpe"},
    "spacy": {"tokenizer": "spacy", "shared": False, "size": 50_000},
    "whitespace": {"tokenizer": "whitespace", "size": 50_000},
    "character": {"tokenizer": "character", "size": 1000},
}


def enlarge(path: str, out: Path, lines: int, seed: int) -> int:
    """Write `lines` lines made from those of a file; return how many different words they hold."""
    rng = random.Random(seed)
    text = [line.split(" ") for line in read_lines(path)]
    words = [word for line in text for word in line]
    different = set()
    with open(out, "w", encoding="utf-8") as file:
        for number in range(lines):
            line = [
                word if rng.random() >= 0.05 else rng.choice(words) + rng.choice(words).lower()
                for word in text[number % len(text)]
            ]
            different.update(line)
            file.write(" ".join(line) + "\n")
    return len(different)


def anonymous_bytes(process: int) -> int:
    """RssAnon of a process and all its descendants."""
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


class Watch(threading.Thread):
    """Watches the memory until it is stopped."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            self.peak = max(self.peak, anonymous_bytes(os.getpid()))

    def stop(self) -> int:
        """The most bytes seen."""
        self._over.set()
        self.join()
        return self.peak


def measure(name: str, files: TextFiles, valid: TextFiles, workers: int) -> None:
    """Build the vocabulary as `name` has it, and print one line."""
    data = {"source_language": "de", "target_language": "en", "train": files, "valid": valid, "workers": workers}
    config = Config.model_validate({"data": data, "vocabulary": TOKENIZERS[name], "model": {"tie_embeddings": "none"}})
    watch = Watch()
    watch.start()
    start, cpu = time.perf_counter(), os.times()
    codecs, notes = build_codecs(config, open_corpus(files, "de", "en").pairs, progress=True)
    seconds = time.perf_counter() - start
    used = sum(after - before for after, before in zip(os.times()[:4], cpu[:4], strict=True))
    print(
        f"{name}: {seconds:.1f} s, {used:.1f} s of CPU, {watch.stop() / 2**20:,.0f} MiB at most, "
        f"{len(codecs.source.vocabulary):,} and {len(codecs.target.vocabulary):,} entries",
        *notes,
        sep="; ",
        flush=True,
    )
    for row in describe(codecs, open_corpus(valid, "de", "en").pairs()):
        print("   ", *(f"{cell:>15}" for cell in row), flush=True)


def main() -> None:
    """Make the corpus and measure each tokenizer that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", required=True, help="text file, plain or .gz")
    parser.add_argument("--target", required=True, help="text file, plain or .gz")
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("tokenizers", nargs="*", help=f"of {', '.join(TOKENIZERS)}; all if none is named")
    arguments = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, niceness {os.nice(0)}")
    with tempfile.TemporaryDirectory() as folder:
        files = TextFiles(source=f"{folder}/train.de", target=f"{folder}/train.en")
        for seed, (path, out) in enumerate([(arguments.source, files.source), (arguments.target, files.target)]):
            different = enlarge(path, Path(out), arguments.pairs, seed)
            size = Path(out).stat().st_size
            print(f"{out}: {arguments.pairs:,} lines, {size / 2**20:,.0f} MiB, {different:,} different words")
        for name in arguments.tokenizers or TOKENIZERS:
            measure(name, files, TextFiles(source=arguments.source, target=arguments.target), arguments.workers)


if __name__ == "__main__":
    main()
