"""Making codecs from the training text: `tfm build-vocab`, and `tfm train` where a run has none yet.

Word vocabularies count every line. Subword models train on all lines up to `vocabulary.sample_lines`, else on so many
drawn by `training.seed`.
"""

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tqdm import tqdm

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec, Codecs, Preparation, word_tokeniser
from transformer_cli.text.counting import StringCounter, count_tokens
from transformer_cli.text.vocabulary import UNK, Vocabulary

Pairs = Iterable[tuple[str, str]]


def build_codecs(
    config: Config, pairs: Callable[[], Pairs], progress: bool = False
) -> tuple[Codecs, list[str]]:
    """Train the subword models or count the words of the training pairs, and make both sides' codecs.

    `pairs` starts a pass over the text each time it is called; passes are streamed. Returns the codecs and notes for
    the user (such as the size of a sample). With `progress`, a bar is drawn on stderr if that is a terminal. Raises
    `UserError` where the text and the options don't go together.
    """
    if config.vocabulary.tokenizer == "sentencepiece":
        return _subword_codecs(config, pairs, progress)
    return _word_codecs(config, pairs, progress)


def _bar(pairs: Pairs, what: str, progress: bool, total: int | None = None) -> Iterator[tuple[str, str]]:
    hidden = not (progress and sys.stderr.isatty())
    return iter(tqdm(pairs, desc=what, total=total, unit=" pairs", unit_scale=True, disable=hidden, file=sys.stderr))


# --- words --------------------------------------------------------------------------------------------------------


def _word_codecs(config: Config, pairs: Callable[[], Pairs], progress: bool) -> tuple[Codecs, list[str]]:
    options = config.vocabulary
    languages = (config.data.source_language, config.data.target_language)
    tokenisers = [word_tokeniser(options, language) for language in languages]  # first: refused before a line is read
    with StringCounter() as source_counter, StringCounter() as target_counter:
        counters = (source_counter, source_counter if options.shared else target_counter)
        count_tokens(_bar(pairs(), "counting tokens", progress), config, *counters)
        vocabularies = []
        for counter in counters[: 1 if options.shared else 2]:
            symbols = tokenisers[0].symbol_tokens(options.symbols)
            separator = tokenisers[0].separator
            vocabulary = Vocabulary.build(
                counter.items(), min_freq=options.min_freq, max_size=options.size, symbols=symbols
            )
            vocabularies.append(vocabulary)
    preparation = Preparation(options)
    source, target = (
        Codec(tokeniser, vocabulary, preparation)
        for tokeniser, vocabulary in zip(tokenisers, [vocabularies[0], vocabularies[-1]], strict=True)
    )
    return Codecs(source, target, config), []


# --- subwords -----------------------------------------------------------------------------------------------------


def _subword_codecs(config: Config, pairs: Callable[[], Pairs], progress: bool) -> tuple[Codecs, list[str]]:
    options = config.vocabulary
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
    from transformer_cli.text.subword import SubwordTokeniser, train_subwords

    options = config.vocabulary
    model = train_subwords(counter.items(), options, name)
    tokeniser = SubwordTokeniser(model, options.algorithm, options.symbols)
    codec = Codec(tokeniser, Vocabulary(tokeniser.pieces), Preparation(options))
    counts = [0] * len(codec.vocabulary)
    for word, count in counter.items():
        for index in codec.lookup(tokeniser.tokens(word)):
            counts[index] += count
    return Codec(tokeniser, Vocabulary(tokeniser.pieces, counts), Preparation(options))
