"""Making codecs from the training text: `tfm build-vocab`, and `tfm train` where a run has none yet.

Count, learn, make codecs. Word vocabularies count the tokens of every line. Subword models train on the counted words
of all lines up to `vocabulary.sample_lines`, else of so many drawn by `training.seed`.
"""

import heapq
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from operator import itemgetter
from typing import IO, Any, Self, TypeVar

from transformer_cli import processes
from transformer_cli.config import Config, VocabularyConfig
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec, Codecs, Preparation, Tokenizer, fixed_tokens, word_tokenizer
from transformer_cli.text.lines import with_bar
from transformer_cli.text.subword import SubwordTokenizer, check_symbols, train_subwords
from transformer_cli.text.vocabulary import UNK, Vocabulary

STRINGS_IN_MEMORY = 2_000_000  # distinct ones in one counter; a string takes some 200 bytes
CHUNK = 20_000  # pairs counted at a time
CHUNK_CHARACTERS = 2_000_000  # bounds the memory of a chunk whose lines are long
CACHED_WORDS = 1 << 17
INLINE_SECONDS = 1.5  # of work done before other processes are started, which takes them about as long

Pairs = Iterable[tuple[str, str]]
Counters = dict[str, "StringCounter"]  # one for both sides or one for each, by what messages call their text
Pair = TypeVar("Pair", bound=Sequence[Any])
Item = TypeVar("Item")
Result = TypeVar("Result")


def build_codecs(config: Config, pairs: Callable[[], Pairs], progress: bool = False) -> tuple[Codecs, list[str]]:
    """Train the subword models or count the words of the training pairs, and make both sides' codecs.

    `pairs` starts a pass over the text each time it is called; passes are streamed. Returns the codecs and notes for
    the user (such as the size of a sample). With `progress`, a bar is drawn on stderr if that is a terminal. Raises
    `UserError` where the text and the options don't go together.
    """
    build = _subword_codecs if config.vocabulary.tokenizer == "sentencepiece" else _word_codecs
    names = ["the training text"] if config.vocabulary.shared else ["the source text", "the target text"]
    with ExitStack() as stack:
        counters = {name: stack.enter_context(StringCounter()) for name in names}
        return build(config, pairs, counters, progress)


def _word_codecs(
    config: Config, pairs: Callable[[], Pairs], counters: Counters, progress: bool
) -> tuple[Codecs, list[str]]:
    """Make codecs of vocabularies, one for each of the counters."""
    options, data = config.vocabulary, config.data
    # What the options alone rule out is refused before a line is read.
    tokenizers = [word_tokenizer(options, language) for language in (data.source_language, data.target_language)]
    fixed = fixed_tokens(tokenizers[0], options)
    Vocabulary.build({}, max_size=options.size, symbols=fixed)
    sides = list(counters.values())
    count_tokens(with_bar(pairs(), "counting tokens", progress), config, sides[0], sides[-1])
    vocabularies = []
    for name, counter in counters.items():
        if next(counter.items(), None) is None:
            raise UserError(f"{name}: holds no text to build a vocabulary from")
        vocabularies.append(
            Vocabulary.build(counter.items(), min_freq=options.min_freq, max_size=options.size, symbols=fixed)
        )
    source = Codec(tokenizers[0], vocabularies[0], Preparation(options))
    target = Codec(tokenizers[1], vocabularies[-1], Preparation(options))
    return Codecs(source, target, config), []


def _subword_codecs(
    config: Config, pairs: Callable[[], Pairs], counters: Counters, progress: bool
) -> tuple[Codecs, list[str]]:
    """Make codecs of sentencepiece models, one for each of the counters."""
    options, seed = config.vocabulary, config.training.seed
    check_symbols(options)
    total = sum(1 for _ in with_bar(pairs(), "counting pairs", progress))
    wanted = max(1, options.sample_lines // 2) if options.shared else options.sample_lines
    sample, notes = pairs(), []
    if total > wanted:
        sample = _sample(sample, total, wanted, seed)
        what = f"{2 * wanted:,} lines ({wanted:,} pairs)" if options.shared else f"{wanted:,} lines per side"
        notes.append(f"sentencepiece trains on a sample of {what} of {total:,} pairs, drawn with seed {seed}")
    sides = list(counters.values())
    prepare = Preparation(options)
    for chunk in in_chunks(with_bar(sample, "counting words", progress, min(total, wanted)), CHUNK):
        for counter, texts in zip((sides[0], sides[-1]), zip(*chunk, strict=True), strict=True):
            counter.update(itertools.chain.from_iterable(prepare(text).split(" ") for text in texts if text))
    codecs = []
    for name, counter in counters.items():
        if progress and sys.stderr.isatty():
            print(f"training sentencepiece on {name} …", file=sys.stderr)
        codecs.append(_train(counter, config, name))
    return Codecs(codecs[0], codecs[-1], config), notes


def _train(counter: "StringCounter", config: Config, name: str) -> Codec:
    options = config.vocabulary
    model = train_subwords(counter.items(), options, name)
    tokenizer = SubwordTokenizer(model, options.algorithm, options.symbols)
    vocabulary = Vocabulary(tokenizer.pieces)
    for word, count in counter.items():
        for index in vocabulary.lookup_indices(tokenizer.tokens(word)):
            vocabulary.counts[index] += count
    return Codec(tokenizer, vocabulary, Preparation(options))


def _sample(pairs: Pairs, total: int, wanted: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield exactly `wanted` of `total` pairs, every choice of them as likely (Knuth's algorithm S), in order."""
    rng = random.Random(seed)
    needed = wanted
    for seen, pair in enumerate(pairs):
        if rng.random() * (total - seen) < needed:
            needed -= 1
            yield pair
        if not needed:
            return


def describe(codecs: Codecs, pairs: Pairs) -> list[list[str]]:
    """Return the table that `tfm build-vocab` prints: a row of headings, then one for each side.

    `pairs` are validation text. A word (what stands between spaces) is covered if it is written without `<unk>` and
    without single bytes; the share is of the different words. Unknown tokens are a share of all running tokens.
    """
    words: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    lines = 0
    for pair in pairs:
        lines += 1
        for codec, text, counter in zip((codecs.source, codecs.target), pair, words, strict=True):
            counter.update(codec.tokenizer.words(codec.preparation(text)))
    rows = [["", "vocabulary", "tokens per line", "words covered", "unknown tokens"]]
    for name, codec, counter in zip(("source", "target"), (codecs.source, codecs.target), words, strict=True):
        tokens = unknown = covered = 0
        for word, count in counter.items():
            of_word = codec.tokenizer.tokens(word)
            unknown_of_word = codec.lookup(of_word).count(UNK)
            tokens += count * len(of_word)
            unknown += count * unknown_of_word
            covered += not (unknown_of_word or any(token in codec.tokenizer.byte_tokens for token in of_word))
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


def vocabulary_warnings(codecs: Codecs, options: VocabularyConfig) -> list[str]:
    """Return a warning for each subword vocabulary that the text does not fill, and for each half of which or more is
    single characters and bytes.
    """
    found = []
    for codec in [codecs.source] if options.shared else [codecs.source, codecs.target]:
        size, byte_pieces = len(codec.vocabulary), len(codec.tokenizer.byte_tokens)
        full = not codec.is_subword or size >= options.size
        if not full:
            found.append(f"fewer        the text has {size:,} subwords, not the {options.size:,} of vocabulary.size")
        characters = sum(len(token) == 1 for token in codec.vocabulary.get_itos())
        if codec.is_subword and 2 * (characters + byte_pieces) >= size:
            found.append(
                f"crowded      {characters:,} characters and {byte_pieces} bytes take "
                f"{(characters + byte_pieces) / size:.0%} of {size:,} pieces, and few are left for longer subwords; "
                + "raise vocabulary.size, " * full
                + "lower vocabulary.character_coverage"
                + ", or set vocabulary.byte_fallback: false" * bool(byte_pieces)
            )
    return found


# --- counting -----------------------------------------------------------------------------------------------------


class StringCounter:
    """Counts of strings, exact however many there are: what does not fit in memory lies sorted in temporary files."""

    def __init__(self, in_memory: int = STRINGS_IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._counts: Counter[str] = Counter()
        self._runs: list[IO[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for run in self._runs:
            run.close()  # which deletes it

    def update(self, strings: Mapping[str, int] | Iterable[str]) -> None:
        """Add strings, or counts of them."""
        self._counts.update(strings)
        if len(self._counts) > self._in_memory:
            run = tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n")  # noqa: SIM115  (closed by __exit__)
            run.writelines(json.dumps(item) + "\n" for item in sorted(self._counts.items()))
            self._runs.append(run)
            self._counts.clear()

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield each string once, with its count, in the order of code points."""
        runs = [_read_run(run) for run in self._runs]
        in_order = heapq.merge(*runs, sorted(self._counts.items()), key=itemgetter(0))
        for string, group in itertools.groupby(in_order, key=itemgetter(0)):
            yield string, sum(count for _, count in group)


def _read_run(run: IO[str]) -> Iterator[tuple[str, int]]:
    run.seek(0)
    for line in run:
        string, count = json.loads(line)
        yield string, count


class SideCounter:
    """Counts the tokens of one side's texts. Picklable, so that every process has one."""

    def __init__(self, tokenizer: Tokenizer, preparation: Preparation) -> None:
        self._tokenizer = tokenizer
        self._prepare = preparation
        self._tokens: dict[str, list[str]] = {}  # of words that were cut before

    def __call__(self, texts: Iterable[str]) -> Counter[str]:
        words: Counter[str] = Counter()
        separators = 0
        for text in texts:
            of_text = self._tokenizer.words(self._prepare(text))
            words.update(of_text)
            separators += max(0, len(of_text) - 1)
        counts: Counter[str] = Counter()
        for word, count in words.items():
            if word not in self._tokens:
                if len(self._tokens) >= CACHED_WORDS:
                    self._tokens.clear()
                self._tokens[word] = self._tokenizer.tokens(word)
            for token in self._tokens[word]:
                counts[token] += count
        if self._tokenizer.separator is not None and separators:
            counts[self._tokenizer.separator] += separators
        return counts


def count_tokens(pairs: Pairs, config: Config, source: StringCounter, target: StringCounter) -> None:
    """Add the tokens of every pair to the counters (which may be one), in `config.data.workers` processes."""
    data, preparation = config.data, Preparation(config.vocabulary)
    tokenizers = [
        word_tokenizer(config.vocabulary, language) for language in (data.source_language, data.target_language)
    ]
    count = partial(_count_sides, [SideCounter(tokenizer, preparation) for tokenizer in tokenizers])
    for counts in map_in_order(count, in_chunks(pairs, CHUNK), data.workers):
        for counter, of_side in zip((source, target), counts, strict=True):
            counter.update(of_side)


def _count_sides(sides: Sequence[SideCounter], pairs: list[tuple[str, str]]) -> list[Counter[str]]:
    return [count(texts) for count, texts in zip(sides, zip(*pairs, strict=True), strict=True)]


def in_chunks(pairs: Iterable[Pair], size: int) -> Iterator[list[Pair]]:
    """Yield all pairs, `size` at a time, or fewer where their lines are long."""
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair[0]) + len(pair[1])
        if len(chunk) == size or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


# --- processes ----------------------------------------------------------------------------------------------------


def map_in_order(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; `workers` processes help as soon as it takes long."""
    items = iter(items)
    began = time.monotonic()
    for item in items:
        yield work(item)
        if workers and time.monotonic() - began > INLINE_SECONDS:
            yield from map_in_processes(work, items, workers)


def map_in_processes(work: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Yield `work(item)` for each item, in order; `work` is sent to each process once. Raises `UserError` where one
    dies."""
    try:
        yield from processes.map_in_processes(partial(_same, work), items, workers)
    except ChildProcessError as error:
        raise UserError(f"data.workers: {error.strerror}; lower data.workers (0: none)") from None


def _same(work: Callable[[Item], Result], _number: int) -> Callable[[Item], Result]:
    return work
