"""Decoding speed of tfm's engines against Hugging Face's `generate` and CTranslate2 called directly; and cold starts.

    python benchmarks/decoding.py MODEL --source FILE [--reference FILE] [--threads 2] [--rounds 5] [--write]

All translate the same sentences with the same weights, which tfm exports for each: greedy and with 5 beams, in batches
of 64 sentences of like length and one sentence at a time. tfm takes raw text and gives raw text; the others get tokens
and give tokens, so their text processing is left out. Each is a process of its own; they take turns, in an order that
moves on by one each round. Cold starts are whole processes, from the command to its end, in turn likewise. The last
table is the torch engine with random weights of the same shape and outputs of a given length. Models that Hugging Face
has no class for, such as those of `model.preset: auto`, are compared with CTranslate2 alone (--no-huggingface). What
repeats itself is searched for again, so take a model that is trained to its end. Prints and, with --write, puts into
docs/benchmarks.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from contender import ROOT, Contender, ratio, take_turns
from page import describe_run, report

from transformer_cli import Translator
from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig
from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.evaluation.evaluate import corpus_metric
from transformer_cli.export.ctranslate2 import export_ctranslate2
from transformer_cli.export.huggingface import export_huggingface
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.run_folder import find_model

BATCH = 64
TASKS = {
    "greedy, in batches": (1, BATCH),
    "5 beams, in batches": (5, BATCH),
    "greedy, one at a time": (1, 1),
    "5 beams, one at a time": (5, 1),
}
SINGLE_PROCESS = 40  # sentences per round, where they come one at a time
LENGTHS, BATCHES = (20, 100, 500), (1, 8, 64, 512)
STARTS = {
    "huggingface": """
import sys, torch
from transformers import MarianMTModel, MarianTokenizer
model, tokenizer = MarianMTModel.from_pretrained(sys.argv[1]), MarianTokenizer.from_pretrained(sys.argv[1])
with torch.inference_mode():
    found = model.generate(**tokenizer([sys.argv[2]], return_tensors="pt"))
print(tokenizer.batch_decode(found, skip_special_tokens=True))
""",
    "ctranslate2": """
import sys, ctranslate2
translator = ctranslate2.Translator(sys.argv[1], "cpu", inter_threads=1, intra_threads=1)
print(translator.translate_batch([sys.argv[2].split()], max_input_length=0)[0].hypotheses)
""",
}


def contenders(model: Path) -> list[Contender]:
    """Those that take part."""
    ours = {"folder": str(model.resolve()), "search": {}}
    torch_engine, fast, int8 = (
        {**ours, "engine": engine, "compute_type": kind}
        for engine, kind in (("torch", None), ("ctranslate2", "float32"), ("ctranslate2", "int8"))
    )
    return [
        Contender("torch", "tfm, torch engine", "decode_tfm", torch_engine),
        Contender("fast", "tfm, CTranslate2 engine, float32", "decode_tfm", fast),
        Contender("fast-int8", "tfm, CTranslate2 engine, int8", "decode_tfm", int8),
        Contender("huggingface", "Hugging Face `generate`, float32", "decode_huggingface"),
        Contender("direct", "CTranslate2 directly, float32", "decode_ctranslate2", {"compute_type": "float32"}),
        Contender("direct-int8", "CTranslate2 directly, int8", "decode_ctranslate2", {"compute_type": "int8"}),
    ]


def prepare(model: Path, source: Path, folder: Path, huggingface: bool) -> dict[str, Any]:
    """Export the model for the others, and cut the sentences into its tokens."""
    translator = Translator.load(model, "cpu", engine="torch")
    codec = translator.codecs.source
    texts = source.read_text(encoding="utf-8").splitlines()
    ids = [list(row) for row in codec.encode_batch(texts)]
    tokens = [codec.tokens(row) for row in ids]
    found = find_model(model)
    if huggingface:
        export_huggingface(found, folder / "huggingface", verify=False)
    export_ctranslate2(found, folder / "ctranslate2", verify=False)
    return {
        "model": str(model.resolve()),
        "huggingface": str(folder / "huggingface"),
        "ctranslate2": str(folder / "ctranslate2"),
        "texts": texts,
        "ids": ids,
        "tokens": tokens,
    }


def run_rounds(entries: list[Contender], rounds: int, sentences: int) -> dict[str, int]:
    """Each task by each in turn, after one short round to warm up; returns each task's sentences per round."""
    for entry in entries:
        for task, (beam, batch) in TASKS.items():
            few = min(sentences, BATCH if batch > 1 else 5)
            entry.turn(task, beam=beam, batch=batch, first=0, count=few)
        entry.turns.clear()
    counts = {task: sentences if batch > 1 else min(SINGLE_PROCESS, sentences) for task, (_, batch) in TASKS.items()}
    for number in range(rounds):
        for task, (beam, batch) in TASKS.items():
            count = counts[task]
            first = 0 if batch > 1 else number * count % (sentences - count + 1)
            take_turns(entries, number, task, beam=beam, batch=batch, first=first, count=count)
        print(f"\rround {number + 1} of {rounds}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return counts


def speed_table(entries: list[Contender], counts: dict[str, int]) -> list[str]:
    """Sentences and tokens per second, one table per task; `counts`: sentences per round."""
    by_key = {entry.key: entry for entry in entries}
    lines = []
    for task in TASKS:
        lines += [
            f"| {task} | sentences/s | quartiles | output tokens/s | ÷ Hugging Face | ÷ CTranslate2 directly |",
            "| --- | --: | --: | --: | --: | --: |",
        ]
        for entry in entries:
            if not entry.seconds(task):
                lines.append(f"| {entry.name} | did not run: {(entry.failure or '')[:100]} |" + " |" * 4)
                continue
            speeds = [counts[task] / seconds for seconds in entry.seconds(task)]
            low, median, high = statistics.quantiles(speeds, n=4, method="inclusive")
            tokens = [turn["tokens"] / turn["seconds"] for turn in entry.turns[task]]
            like = by_key["direct-int8" if entry.key.endswith("int8") else "direct"]
            cells = [
                f"{median:,.1f}" if median < 100 else f"{median:,.0f}",
                f"{low:,.0f}–{high:,.0f}",
                f"{statistics.median(tokens):,.0f}",
                ratio(entry, by_key["huggingface"], task) if "huggingface" in by_key else "",
                ratio(entry, like, task),
            ]
            lines.append(f"| {entry.name} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def quality(model: Path, source: Path, reference: Path) -> str:
    """BLEU of both engines, so that no speed is bought with quality."""
    found = []
    for engine in ("torch", "ctranslate2"):
        translator = Translator.load(model, "cpu", engine=engine)
        texts = source.read_text(encoding="utf-8").splitlines()
        references = reference.read_text(encoding="utf-8").splitlines()
        for name, changes in (("greedy", {"method": "greedy"}), ("5 beams", {"beam_size": 5})):
            options = SearchOptions.from_config(translator.config.decoding, **changes)
            translations = [one.text for one in translator.translate_batch(texts, options, alignments=False)]
            score = corpus_metric("bleu", translations, [references], translator.config.data.target_language).score
            found.append(f"{engine} {name} {score:.2f}")
    return f"BLEU: {', '.join(found)}."


def cold_starts(work: dict[str, Any], threads: int, rounds: int) -> list[str]:
    """Seconds of whole processes that translate one sentence, and of `import torch` alone."""
    numbers = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **numbers, "PYTHONPATH": str(ROOT), "TRANSFORMERS_OFFLINE": "1"}
    python, text = sys.executable, work["texts"][0]
    translate = [python, "-m", "transformer_cli", "translate", work["model"], text, "--quiet", "--device", "cpu"]
    commands = {
        '`python -c "import torch"`': [python, "-c", "import torch"],
        "`tfm translate`, torch engine": [*translate, "--engine", "torch"],
        "`tfm translate`, CTranslate2 engine": [*translate, "--engine", "ctranslate2"],
        "Hugging Face: load, `generate`": [python, "-c", STARTS["huggingface"], work["huggingface"], text],
        "CTranslate2 directly: load, `translate_batch`": [
            python,
            "-c",
            STARTS["ctranslate2"],
            work["ctranslate2"],
            " ".join(work["tokens"][0]),
        ],
    }
    if not Path(work["huggingface"]).exists():
        del commands["Hugging Face: load, `generate`"]
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, env=environment, check=True, capture_output=True)
            if number:  # the first one fills the file cache
                seconds[name].append(time.perf_counter() - began)
    plain = next(iter(seconds.values()))
    lines = ["| cold start | seconds | range | ÷ `import torch` |", "| --- | --: | --: | --: |"]
    for name, values in seconds.items():
        times = statistics.median(ours / theirs for ours, theirs in zip(values, plain, strict=True))
        lines.append(
            f"| {name} | {statistics.median(values):.2f} | {min(values):.2f}–{max(values):.2f} | {times:.2f} |"
        )
    return [*lines, ""]


def length_table(threads: int) -> list[str]:
    """Output tokens per second of the torch engine, greedy, when every output has the same length."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    vocabulary = 8000
    shape = ModelConfig(encoder_layers=3, decoder_layers=3, d_model=256, heads=4, d_ff=1024)
    engine = TorchEngine(build_model(shape, vocabulary, vocabulary))
    head = " | ".join(f"batch {batch}" for batch in BATCHES)
    lines = [f"| output length | {head} |", "| --: |" + " --: |" * len(BATCHES)]
    for length in LENGTHS:
        options = SearchOptions(method="greedy", min_length=length, max_length=length)
        cells = []
        for batch in BATCHES:
            sources = torch.randint(4, vocabulary, (batch, 20)).tolist()
            times = []
            for _ in range(3 if batch * length < 20_000 else 1):
                began = time.perf_counter()
                (found,) = engine.search([SearchBatch(sources)], options)
                times.append(time.perf_counter() - began)
            assert all(len(one[0].ids) == length for one in found)
            cells.append(f"{batch * length / min(times):,.0f}")
        lines.append(f"| {length} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a run or checkpoint folder: subwords, post-norm, tied embeddings")
    parser.add_argument("--source", type=Path, required=True, help="sentences to translate, one per line")
    parser.add_argument("--reference", type=Path, help="their translations, for BLEU")
    parser.add_argument("--threads", type=int, default=2, help="of each contender (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="measured (default 5)")
    parser.add_argument("--no-huggingface", action="store_true", help="leave it out")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: two at least")
    entries = [one for one in contenders(options.model) if not (options.no_huggingface and one.key == "huggingface")]
    with tempfile.TemporaryDirectory(prefix="tfm-decoding-") as name:
        work = prepare(options.model, options.source, Path(name), not options.no_huggingface)
        path = Path(name) / "work.json"
        path.write_text(json.dumps(work), encoding="utf-8")
        for entry in entries:
            entry.start(path, options.threads)
        versions = [text for entry in entries for text in entry.versions]
        try:
            counts = run_rounds(entries, options.rounds, len(work["texts"]))
        finally:
            for entry in entries:
                entry.end()
        starts = cold_starts(work, options.threads, options.rounds)
    lengths = [len(row) for row in work["ids"]]
    lines = [
        describe_run(options.threads, *versions),
        f"{len(lengths):,} sentences of {statistics.mean(lengths):.1f} source tokens; {options.rounds} rounds; "
        f"one at a time {SINGLE_PROCESS} sentences per round.",
        "",
        *speed_table(entries, counts),
    ]
    if options.reference:
        lines += [quality(options.model, options.source, options.reference), ""]
    lines += [*starts, "Output tokens per second of the torch engine, greedy:", "", *length_table(options.threads)]
    report(lines, options.write)


if __name__ == "__main__":
    main()
