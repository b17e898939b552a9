"""Making codecs from the training text: `tfm build-vocab`, and `tfm train` where a run has none yet.

Word vocabularies count every line. Subword models train on all lines up to `vocabulary.sample_lines`, else on so many
drawn by `training.seed`.
"""

import heapq
import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from operator import itemgetter
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from tqdm import tqdm

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec, Codecs, Preparation, Tokenizer, fixed_tokens, word_tokenizer
from transformer_cli.text.subword import SubwordTokenizer, check_symbols, train_subwords
from transformer_cli.text.vocabulary import UNK, Vocabulary

Item = TypeVar("Item")
Result = TypeVar("Result")

_work: Callable[[Any], Any]  # of this worker process


def map_in_processes(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """`work(item)` for each item, in order; `work` is sent to each process once, and few items are under way at a time.

    The processes are spawned, not forked: the caller may run threads, and a fresh process holds nothing of the
    caller's memory. They end with the caller, however it ends. Raises `UserError` where one dies.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(work,))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_do, item))
            if len(waiting) > 2 * workers:  # enough to keep all busy; more would fill the memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise UserError(
            f"data.workers: one of {workers} processes died, likely for want of memory; lower data.workers (0: none)"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _start(work: Callable[[Any], Any]) -> None:
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work = work


def _end_with_parent() -> None:
    """A killed parent cannot stop its pool, and a worker never sees its queue close: it holds both ends itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in worker processes only"
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)


def _do(item: Any) -> Any:
    return _work(item)


STRINGS_IN_MEMORY = 2_000_000  # distinct ones in one counter; a string takes some 200 bytes
CHUNK = 20_000  # pairs handed to a process at a time
CACHED_WORDS = 1 << 17

Pairs = Iterable[tuple[str, str]]
Counts = dict[str, int]


class StringCounter:
    """Counts of strings, exact however many there are: what does not fit in memory lies sorted in temporary files."""

    def __init__(self, in_memory: int = STRINGS_IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._counts: Counter[str] = Counter()
        self._runs: list[IO[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for run in self._runs:
            run.close()  # which deletes it

    def update(self, strings: Mapping[str, int] | Iterable[str]) -> None:
        """Add strings, or counts of them."""
        self._counts.update(strings)
        if len(self._counts) > self._in_memory:
            self._spill()

    def items(self) -> Iterator[tuple[str, int]]:
        """Each string once, with its count, in the order of code points."""
        runs = [_read_run(run) for run in self._runs]
        in_order = heapq.merge(*runs, sorted(self._counts.items()), key=itemgetter(0))
        for string, group in itertools.groupby(in_order, key=itemgetter(0)):
            yield string, sum(count for _, count in group)

    def _spill(self) -> None:
        run = tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")  # noqa: SIM115  (closed by __exit__)
        run.writelines(json.dumps(item) + "\n" for item in sorted(self._counts.items()))
        self._runs.append(run)
        self._counts.clear()


def _read_run(run: IO[str]) -> Iterator[tuple[str, int]]:
    run.seek(0)
    for line in run:
        string, count = json.loads(line)
        yield string, count


class SideCounter:
    """Counts the tokens of one side. Equal words are cut once a chunk."""

    def __init__(self, tokenizer: Tokenizer, preparation: Preparation) -> None:
        self._tokenizer = tokenizer
        self._prepare = preparation
        self._cut: dict[str, list[str]] = {}

    def __call__(self, texts: Iterable[str]) -> Counts:
        words: Counter[str] = Counter()
        separators = 0
        for text in texts:
            of_text = self._tokenizer.words(self._prepare(text))
            words.update(of_text)
            separators += max(0, len(of_text) - 1)
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for token in self._tokens(word):
                counts[token] += count
        if self._tokenizer.separator is not None and separators:
            counts[self._tokenizer.separator] += separators
        return counts

    def _tokens(self, word: str) -> list[str]:
        tokens = self._cut.get(word)
        if tokens is None:
            tokens = self._tokenizer.tokens(word)
            if len(self._cut) >= CACHED_WORDS:
                self._cut.clear()
            self._cut[word] = tokens
        return tokens


class PairCounter:
    """Counts the tokens of both sides of pairs, by the configured word tokenizers."""

    def __init__(self, config: Config) -> None:
        languages = (config.data.source_language, config.data.target_language)
        preparation = Preparation(config.vocabulary)
        self._sides = [SideCounter(word_tokenizer(config.vocabulary, language), preparation) for language in languages]

    def __call__(self, pairs: list[tuple[str, str]]) -> tuple[Counts, Counts]:
        source, target = self._sides
        return source(source_text for source_text, _ in pairs), target(target_text for _, target_text in pairs)


def count_tokens(pairs: Pairs, config: Config, source: StringCounter, target: StringCounter) -> None:
    """Add the tokens of every pair to the counters (which may be one), in `config.data.workers` processes."""
    chunks = _chunks(pairs)
    first = list(itertools.islice(chunks, config.data.workers + 1))
    chunks, counter = itertools.chain(first, chunks), PairCounter(config)
    if config.data.workers > 0 and len(first) > config.data.workers:
        counted = map_in_processes(counter, chunks, config.data.workers)
    else:  # too little for processes to be worth their start
        counted = map(counter, chunks)
    for source_counts, target_counts in counted:
        source.update(source_counts)
        target.update(target_counts)


def _chunks(pairs: Pairs) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(pairs)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        yield chunk


def build_codecs(config: Config, pairs: Callable[[], Pairs], progress: bool = False) -> tuple[Codecs, list[str]]:
    """Train the subword models or count the words of the training pairs, and make both sides' codecs.

    `pairs` starts a pass over the text each time it is called; passes are streamed. Returns the codecs and notes for
    the user (such as the size of a sample). With `progress`, a bar is drawn on stderr if that is a terminal. Raises
    `UserError` where the text and the options don't go together.
    """
    if config.vocabulary.tokenizer == "sentencepiece":
        return _subword_codecs(config, pairs, progress)
    return _word_codecs(config, pairs, progress)


def _bar(pairs: Pairs, what: str, progress: bool, total: int | None = None) -> Iterator[tuple[str, str]]:
    hidden = None if progress else True  # None: where stderr is no terminal
    return iter(tqdm(pairs, desc=what, total=total, unit=" pairs", unit_scale=True, disable=hidden))


# --- words --------------------------------------------------------------------------------------------------------


def _word_codecs(config: Config, pairs: Callable[[], Pairs], progress: bool) -> tuple[Codecs, list[str]]:
    options = config.vocabulary
    languages = (config.data.source_language, config.data.target_language)
    # What the options alone rule out is refused before a line is read.
    tokenizers = [word_tokenizer(options, language) for language in languages]
    Vocabulary.build({}, max_size=options.size, symbols=fixed_tokens(tokenizers[0], options))
    with StringCounter() as source_counter, StringCounter() as target_counter:
        if options.shared:
            count_tokens(_bar(pairs(), "counting tokens", progress), config, source_counter, source_counter)
            vocabulary = _word_vocabulary(source_counter, tokenizers[0], config, "the training text")
            vocabularies = [vocabulary, vocabulary]
        else:
            count_tokens(_bar(pairs(), "counting tokens", progress), config, source_counter, target_counter)
            vocabularies = [
                _word_vocabulary(source_counter, tokenizers[0], config, "the source text"),
                _word_vocabulary(target_counter, tokenizers[1], config, "the target text"),
            ]
    source, target = (
        Codec(tokenizer, vocabulary, Preparation(options))
        for tokenizer, vocabulary in zip(tokenizers, vocabularies, strict=True)
    )
    return Codecs(source, target, config), []


def _word_vocabulary(counter: StringCounter, tokenizer: Tokenizer, config: Config, where: str) -> Vocabulary:
    options = config.vocabulary
    if next(counter.items(), None) is None:
        raise UserError(f"{where}: holds no text to build a vocabulary from")
    fixed = fixed_tokens(tokenizer, options)
    return Vocabulary.build(counter.items(), min_freq=options.min_freq, max_size=options.size, symbols=fixed)


# --- subwords -----------------------------------------------------------------------------------------------------


def _subword_codecs(config: Config, pairs: Callable[[], Pairs], progress: bool) -> tuple[Codecs, list[str]]:
    options = config.vocabulary
    check_symbols(options)
    total = sum(1 for _ in _bar(pairs(), "counting pairs", progress))
    wanted = max(1, options.sample_lines // 2) if options.shared else options.sample_lines
    sample: Pairs = pairs()
    notes = []
    if total > wanted:
        sample = _sample(sample, total, wanted, config.training.seed)
        what = f"{2 * wanted:,} lines ({wanted:,} pairs)" if options.shared else f"{wanted:,} lines a side"
        notes.append(
            f"sentencepiece trains on a sample of {what} of {total:,} pairs, drawn with seed {config.training.seed}"
        )
    with StringCounter() as source_counter, StringCounter() as target_counter:
        counters = (source_counter, source_counter if options.shared else target_counter)
        _count_words(_bar(sample, "counting words", progress, min(total, wanted)), config, *counters)
        names = ["the training text"] if options.shared else ["the source text", "the target text"]
        codecs = []
        for counter, name in zip(counters, names, strict=False):
            if progress and sys.stderr.isatty():
                print(f"training sentencepiece on {name} …", file=sys.stderr)
            codecs.append(_train(counter, config, name))
    return Codecs(codecs[0], codecs[-1], config), notes


def _sample(pairs: Pairs, total: int, wanted: int, seed: int) -> Iterator[tuple[str, str]]:
    """Exactly `wanted` of `total` pairs, every choice of them as likely (Knuth's algorithm S), in order."""
    rng = random.Random(seed)
    needed = wanted
    for seen, pair in enumerate(pairs):
        if rng.random() * (total - seen) < needed:
            needed -= 1
            yield pair
        if not needed:
            return


def _count_words(pairs: Pairs, config: Config, source: StringCounter, target: StringCounter) -> None:
    prepare = Preparation(config.vocabulary)
    iterator = iter(pairs)
    while chunk := list(itertools.islice(iterator, 10_000)):
        for counter, texts in zip((source, target), zip(*chunk, strict=True), strict=True):
            counter.update(itertools.chain.from_iterable(prepare(text).split(" ") for text in texts if text))


def _train(counter: StringCounter, config: Config, name: str) -> Codec:
    options = config.vocabulary
    model = train_subwords(counter.items(), options, name)
    tokenizer = SubwordTokenizer(model, options.algorithm, options.symbols)
    vocabulary = Vocabulary(tokenizer.pieces)
    for word, count in counter.items():
        for index in vocabulary.lookup_indices(tokenizer.tokens(word)):
            vocabulary.counts[index] += count
    return Codec(tokenizer, vocabulary, Preparation(options))


# --- what came out ------------------------------------------------------------------------------------------------


def describe(codecs: Codecs, pairs: Pairs) -> list[list[str]]:
    """The table that `tfm build-vocab` prints: a row of headings, then one for each side.

    `pairs` are validation text. A word (what stands between spaces) is covered if it is written without `<unk>` and
    without single bytes; the share is of the different words. Unknown tokens are a share of all running tokens.
    """
    words: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    lines = 0
    for pair in pairs:
        lines += 1
        for codec, text, counter in zip((codecs.source, codecs.target), pair, words, strict=True):
            counter.update(codec.tokenizer.words(codec.preparation(text)))
    rows = [["", "vocabulary", "tokens a line", "words covered", "unknown tokens"]]
    for name, codec, counter in zip(("source", "target"), (codecs.source, codecs.target), words, strict=True):
        tokens = unknown = covered = 0
        for word, count in counter.items():
            of_word = codec.tokenizer.tokens(word)
            unknown_of_word = codec.lookup(of_word).count(UNK)
            tokens += count * len(of_word)
            unknown += count * unknown_of_word
            covered += not (unknown_of_word or any(map(codec.tokenizer.is_byte, of_word)))
        if codec.tokenizer.separator is not None:
            tokens += max(0, counter.total() - lines)
        rows.append(
            [
                name,
                f"{len(codec.vocabulary):,}",
                f"{tokens / max(1, lines):.1f}",
                f"{covered / max(1, len(counter)):.1%}",
                f"{unknown / max(1, tokens):.2%}",
            ]
        )
    return rows
