"""Counting the words or tokens of a corpus: every line, in bounded memory, in several processes. `build` calls it."""

import heapq
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from types import TracebackType
from typing import IO, Self

from transformer_cli.config import Config
from transformer_cli.text.codec import Preparation, Tokeniser, word_tokeniser
from transformer_cli.text.processes import map_in_processes

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

    def __init__(self, tokeniser: Tokeniser, preparation: Preparation) -> None:
        self._tokeniser = tokeniser
        self._prepare = preparation
        self._cut: dict[str, list[str]] = {}

    def __call__(self, texts: Iterable[str]) -> Counts:
        words: Counter[str] = Counter()
        separators = 0
        for text in texts:
            of_text = self._tokeniser.words(self._prepare(text))
            words.update(of_text)
            separators += max(0, len(of_text) - 1)
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for token in self._tokens(word):
                counts[token] += count
        if self._tokeniser.separator is not None and separators:
            counts[self._tokeniser.separator] += separators
        return counts

    def _tokens(self, word: str) -> list[str]:
        tokens = self._cut.get(word)
        if tokens is None:
            tokens = self._tokeniser.tokens(word)
            if len(self._cut) >= CACHED_WORDS:
                self._cut.clear()
            self._cut[word] = tokens
        return tokens


class PairCounter:
    """Counts the tokens of both sides of pairs, by the configured word tokenisers."""

    def __init__(self, config: Config) -> None:
        languages = (config.data.source_language, config.data.target_language)
        preparation = Preparation(config.vocabulary)
        self._sides = [SideCounter(word_tokeniser(config.vocabulary, language), preparation) for language in languages]

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
