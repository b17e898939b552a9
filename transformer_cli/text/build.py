"""Making codecs from the training text: `tfm build-vocab`, and `tfm train` where a run has none yet.

Word vocabularies count every line. Subword models train on all lines up to `vocabulary.sample_lines`, else on so many
drawn by `training.seed`.
"""

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from tqdm import tqdm

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec, Codecs, Preparation, Tokeniser, fixed_tokens, word_tokeniser
from transformer_cli.text.counting import StringCounter, count_tokens
from transformer_cli.text.subword import SubwordTokeniser, check_symbols, train_subwords
from transformer_cli.text.vocabulary import UNK, Vocabulary

Pairs = Iterable[tuple[str, str]]


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
    tokenisers = [word_tokeniser(options, language) for language in languages]
    Vocabulary.build({}, max_size=options.size, symbols=fixed_tokens(tokenisers[0], options))
    with StringCounter() as source_counter, StringCounter() as target_counter:
        if options.shared:
            count_tokens(_bar(pairs(), "counting tokens", progress), config, source_counter, source_counter)
            vocabulary = _word_vocabulary(source_counter, tokenisers[0], config, "the training text")
            vocabularies = [vocabulary, vocabulary]
        else:
            count_tokens(_bar(pairs(), "counting tokens", progress), config, source_counter, target_counter)
            vocabularies = [
                _word_vocabulary(source_counter, tokenisers[0], config, "the source text"),
                _word_vocabulary(target_counter, tokenisers[1], config, "the target text"),
            ]
    source, target = (
        Codec(tokeniser, vocabulary, Preparation(options))
        for tokeniser, vocabulary in zip(tokenisers, vocabularies, strict=True)
    )
    return Codecs(source, target, config), []


def _word_vocabulary(counter: StringCounter, tokeniser: Tokeniser, config: Config, where: str) -> Vocabulary:
    options = config.vocabulary
    if next(counter.items(), None) is None:
        raise UserError(f"{where}: holds no text to build a vocabulary from")
    fixed = fixed_tokens(tokeniser, options)
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
    tokeniser = SubwordTokeniser(model, options.algorithm, options.symbols)
    vocabulary = Vocabulary(tokeniser.pieces)
    for word, count in counter.items():
        for index in vocabulary.lookup_indices(tokeniser.tokens(word)):
            vocabulary.counts[index] += count
    return Codec(tokeniser, vocabulary, Preparation(options))


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
            counter.update(codec.tokeniser.words(codec.preparation(text)))
    rows = [["", "vocabulary", "tokens a line", "words covered", "unknown tokens"]]
    for name, codec, counter in zip(("source", "target"), (codecs.source, codecs.target), words, strict=True):
        tokens = unknown = covered = 0
        for word, count in counter.items():
            of_word = codec.tokeniser.tokens(word)
            unknown_of_word = codec.lookup(of_word).count(UNK)
            tokens += count * len(of_word)
            unknown += count * unknown_of_word
            covered += not (unknown_of_word or any(map(codec.tokeniser.is_byte, of_word)))
        if codec.tokeniser.separator is not None:
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
