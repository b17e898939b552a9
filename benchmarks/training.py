"""Training speed and memory against torch.nn.Transformer, Hugging Face's Marian and JoeyNMT on the same work.

    python benchmarks/training.py [--threads 2] [--rounds 24] [--corpus SOURCE TARGET] [--write]
    python benchmarks/training.py --python joeynmt=/path/to/its/python

All train the same model (3+3 layers, d_model 256, d_ff 1024, 4 heads, 8,000 subwords, all embeddings one table, dropout
0.1, post-norm) on the same length-bucketed batches of about 4,096 target tokens. Each is a process of its own, so that
none gains from another's settings and the memory of each is known. They take turns, an update each, in an order that
moves on by one each round; one computes at a time. Sentences are generated with Multi30k's lengths in subwords, or are
those of a corpus, encoded by tfm. Prints and, with --write, puts into docs/benchmarks.md: target tokens per second
(padding not counted), the ratio to others in the same round, the share of the matmul peak measured in the same rounds,
and memory: what the process had at most, and how much of that came on top of what it had before its model was built.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from batches import Pairs, generate_sentences
from contender import Contender, ratio, take_turns
from page import describe_run, report
from shape import Shape, training_flops

from transformer_cli.config import Config
from transformer_cli.data.batching import plan_epoch
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.text.build import build_codecs
from transformer_cli.training.hardware import choose_precision

WARMUP = 3  # rounds left out


def contenders(names: Sequence[str]) -> list[Contender]:
    """Those that take part: the ones named, else all, but bf16 only where this CPU computes in it."""
    fastest = choose_precision("auto", torch.device("cpu"))
    rows = [
        ("tfm", "tfm, float32", "train_tfm", "fp32"),
        ("tfm-auto", f"tfm, `precision: auto` ({fastest})", "train_tfm", "auto"),
        ("torch", "torch.nn.Transformer, float32", "train_plain", "fp32"),
        ("torch-bf16", "torch.nn.Transformer, bf16 autocast", "train_plain", "bf16"),
        ("marian", "Hugging Face MarianMTModel, float32", "train_marian", "fp32"),
        ("marian-bf16", "Hugging Face MarianMTModel, bf16 autocast", "train_marian", "bf16"),
        ("joeynmt", "JoeyNMT, float32", "train_joey", "fp32"),
        ("peak-fp32", "matmul peak, float32", "matmul", "fp32"),
        ("peak-bf16", "matmul peak, bf16", "matmul", "bf16"),
    ]
    known = [Contender(key, name, module, {"precision": precision}) for key, name, module, precision in rows]
    if unknown := set(names) - {entry.key for entry in known}:
        raise SystemExit(f"no contender {', '.join(sorted(unknown))}; there are {', '.join(e.key for e in known)}")
    wanted = [entry for entry in known if entry.key in names or not names or entry.module == "matmul"]
    slow = [one.key for one in wanted if one.settings["precision"] == "bf16" != fastest and one.key not in names]
    if slow:
        print(f"left out: {', '.join(slow)}; this CPU does not compute in bf16 itself", file=sys.stderr)
    return [entry for entry in wanted if entry.key not in slow]


def encode_corpus(source: str, target: str, vocabulary: int) -> Pairs:
    """A parallel corpus in subwords that tfm trains on it."""
    corpus = TextCorpus(source, target)
    side = {"source": source, "target": target}
    config = Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "train": side, "valid": side},
            "vocabulary": {"size": vocabulary},
        }
    )
    codecs, _ = build_codecs(config, corpus.pairs)
    encoded = ((codecs.source.encode(a), codecs.target.encode(b)) for a, b in corpus.pairs())
    return [(list(a), list(b)) for a, b in encoded if 0 < len(a) <= 256 and 0 < len(b) <= 256]


def make_batches(pairs: Pairs, target_tokens: int, count: int) -> tuple[list[Pairs], int]:
    """Batches of tfm's own plan that hold about so many target tokens; with the `batch_tokens` that this takes."""
    lengths = torch.tensor([(len(source) + 1, len(target) + 1) for source, target in pairs]).numpy()
    batch_tokens = target_tokens
    for _ in range(3):  # a batch's size includes padding, and counts the longer side
        plan = plan_epoch(lengths[:, 0], lengths[:, 1], batch_tokens=batch_tokens, seed=1, epoch=0)
        batch_tokens = round(batch_tokens * target_tokens * len(plan) / int(lengths[:, 1].sum()))
    plan = plan_epoch(lengths[:, 0], lengths[:, 1], batch_tokens=batch_tokens, seed=1, epoch=0)
    chosen = [plan[number % len(plan)].tolist() for number in range(count)]
    return [[pairs[pair] for pair in batch] for batch in chosen], batch_tokens


def table(entries: list[Contender], batches: list[Pairs], shape: Shape) -> list[str]:
    """The rows, as Markdown."""
    tokens = [sum(len(target) + 1 for _, target in batch) for batch in batches]
    flops = training_flops(shape, [(len(s) + 1, len(t) + 1) for batch in batches[WARMUP:] for s, t in batch])
    per_token = flops / sum(tokens[WARMUP:])
    measured = [entry for entry in entries if entry.module == "matmul" and entry.failure is None]
    peaks = {entry.settings["precision"]: max(turn["value"] for turn in entry.turns[""]) for entry in measured}
    plain, marian = (next((entry for entry in entries if entry.key == key), None) for key in ("torch", "marian"))
    lines = [
        "| | target tokens/s | quartiles | range | ÷ torch | ÷ Marian | of the peak | working memory | whole process |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for entry in entries:
        if entry.module == "matmul":
            continue
        if entry.failure is not None:
            lines.append(f"| {entry.name} | did not run: {entry.failure[:100]} |" + " |" * 7)
            continue
        values = [count / seconds for count, seconds in zip(tokens[WARMUP:], entry.seconds(), strict=True)]
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        precision = choose_precision(entry.settings["precision"], torch.device("cpu"))
        cells = [
            f"{median:,.0f}",
            f"{low:,.0f}–{high:,.0f}",
            f"{min(values):,.0f}–{max(values):,.0f}",
            ratio(entry, plain),
            ratio(entry, marian),
            f"{median * per_token / peaks[precision]:.0%}" if precision in peaks else "–",
            f"{entry.memory['working'] / 1e9:.2f} GB",
            f"{entry.memory['peak'] / 1e9:.2f} GB",
        ]
        lines.append(f"| {entry.name} | {' | '.join(cells)} |")
    best = " and ".join(f"{peak / 1e9:,.0f} GFLOP/s in {name}" for name, peak in peaks.items())
    lines += ["", f"An update needs {per_token / 1e6:.1f} MFLOP a target token; the matmul peak was {best}."]
    return lines


def describe_rounds(
    options: argparse.Namespace, entries: list[Contender], batches: list[Pairs], size: int
) -> list[str]:
    """What was run, on what, when."""
    tokens = [sum(len(target) + 1 for _, target in batch) for batch in batches[WARMUP:]]
    versions = [text for entry in entries for text in entry.versions]
    return [
        describe_run(options.threads, *versions),
        f"{options.rounds} rounds after {WARMUP} to warm up, a batch of its own in each: "
        f"{statistics.mean(tokens):,.0f} target tokens on average ({min(tokens):,} to {max(tokens):,}), "
        f"`batch_tokens` {size:,}.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="of each contender (default 2)")
    parser.add_argument("--rounds", type=int, default=24, help="measured (default 24)")
    parser.add_argument("--target-tokens", type=int, default=4096, help="of a batch, about (default 4096)")
    parser.add_argument("--corpus", nargs=2, metavar=("SOURCE", "TARGET"), help="real sentences, one per line")
    parser.add_argument("--contenders", default="", help="which take part, with commas between (default: all)")
    parser.add_argument(
        "--python", action="append", default=[], metavar="NAME=PATH", help="the interpreter of one of them"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: two at least")
    interpreters = dict(item.split("=", 1) for item in options.python)
    shape = Shape()
    if options.corpus:
        source, target = options.corpus
        pairs = encode_corpus(source, target, shape.vocabulary)
    else:
        pairs = generate_sentences(29_000, shape.vocabulary)
    batches, size = make_batches(pairs, options.target_tokens, options.rounds + WARMUP)
    entries = contenders([name for name in options.contenders.split(",") if name])
    with tempfile.TemporaryDirectory(prefix="tfm-training-") as folder:
        work = Path(folder) / "work.json"
        work.write_text(json.dumps({"batches": batches, "shape": asdict(shape)}), encoding="utf-8")
        for entry in entries:
            entry.start(work, options.threads, interpreters.get(entry.key, sys.executable))
        try:
            for number in range(options.rounds + WARMUP):
                take_turns(entries, number)
                print(f"\rround {number + 1} of {options.rounds + WARMUP}", end="", file=sys.stderr, flush=True)
            print(file=sys.stderr)
        finally:
            for entry in entries:
                entry.end()
    losses = (
        f"{entry.name} {entry.turns[''][-1]['value']:.2f}"
        for entry in entries
        if entry.module != "matmul" and entry.turns
    )
    for entry in entries:
        del entry.turns.get("", [])[:WARMUP]
    report(describe_rounds(options, entries, batches, size) + table(entries, batches, shape), options.write)
    print(f"\nlast loss: {'; '.join(losses)}")


if __name__ == "__main__":
    main()
