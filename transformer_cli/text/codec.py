"""`Codec`: one side's text to ids and back; `Codecs`: the two sides of a model, saved with it.

Everything that turns text into ids goes through here: data, decoding, evaluation. `build` makes codecs from text.
"""

import hashlib
import json
import random
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Self

from transformer_cli.config import Config, VocabularyConfig
from transformer_cli.errors import UserError
from transformer_cli.text.marian import MarianTokenizer
from transformer_cli.text.subword import SubwordTokenizer
from transformer_cli.text.tokenizers import (
    CharacterTokenizer,
    SpacySplitter,
    WordTokenizer,
    split_symbols,
    symbol_pattern,
)
from transformer_cli.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

VERSION = 1  # of the rules in this package: what is encoded by other rules is encoded again
CACHED_WORDS = 1 << 17
LONGEST_CACHED = 64  # characters


class Tokenizer(Protocol):
    """Cuts a text into words, and each word, by itself, into tokens. See `words` and `subword`."""

    is_subword: bool
    separator: str | None  # the token between two words, if any
    byte_tokens: Mapping[str, int]  # tokens of subwords that stand for one byte of a character without a piece

    def words(self, text: str) -> list[str]: ...
    def tokens(self, word: str, begins: bool = True) -> list[str]: ...
    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]: ...
    def join(self, tokens: Sequence[str]) -> str: ...


class Preparation:
    """Lowercasing and Unicode normalisation as configured; the user's symbols stay as they are."""

    def __init__(self, options: VocabularyConfig) -> None:
        self._lowercase = options.lowercase
        self._form = options.normalization
        self._symbols = symbol_pattern(options.symbols)
        self.changes_nothing = not options.lowercase and options.normalization == "none"

    def __call__(self, text: str) -> str:
        if self.changes_nothing:
            return text
        segments = split_symbols(text, self._symbols)
        segments[::2] = map(self._change, segments[::2])
        return "".join(segments)

    def _change(self, text: str) -> str:
        if self._form != "none":
            text = unicodedata.normalize("NFC" if self._form == "nfc" else "NFKC", text)
        return text.lower() if self._lowercase else text


def word_tokenizer(options: VocabularyConfig, language: str) -> Tokenizer:
    """Return the configured tokenizer, unless it is sentencepiece.

    Raises `UserError` if spaCy lacks the language, and for the tokenizer of imported models, which is never trained.
    """
    if options.tokenizer == "character":
        return CharacterTokenizer(options.symbols)
    if options.tokenizer == "whitespace":
        return WordTokenizer(options.symbols)
    if options.tokenizer == "marian":
        raise UserError(
            "vocabulary.tokenizer: marian is the tokenizer of an imported model and cannot be trained; start from that "
            "model (training.init_from, init_vocabulary: parent), or choose another, such as sentencepiece"
        )
    assert options.tokenizer == "spacy", "sentencepiece needs its model"
    return WordTokenizer(options.symbols, SpacySplitter(language))


def fixed_tokens(tokenizer: Tokenizer, options: VocabularyConfig) -> list[str]:
    """Return the tokens that a vocabulary has whatever the text: the separator and the user's symbols."""
    separator = [] if tokenizer.separator is None else [tokenizer.separator]
    return separator + tokenizer.symbol_tokens(options.symbols)


class Codec:
    """One side's text to ids and back, without `<s>` and `</s>`. Picklable, safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, preparation: Preparation) -> None:
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer
        self.preparation = preparation
        self.is_subword = tokenizer.is_subword
        self._separator = None if tokenizer.separator is None else vocabulary[tokenizer.separator]
        self._ids_of_words: dict[str, list[int]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_ids_of_words": {}}

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text, unknown ones too: words with their joiners, or pieces."""
        tokens: list[str] = []
        for word in self.tokenizer.words(self.preparation(text)):
            if tokens and self.tokenizer.separator is not None:
                tokens.append(self.tokenizer.separator)
            tokens += self.tokenizer.tokens(word)
        return tokens

    def lookup(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens; `lookup(tokenize(text))` is `encode(text)`."""
        return self.vocabulary.lookup_indices(tokens)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        known = self._ids_of_words
        ids: list[int] = []
        for word in self.tokenizer.words(self.preparation(text)):
            if ids and self._separator is not None:
                ids.append(self._separator)
            word_ids = known.get(word)
            ids += self._encode_word(word) if word_ids is None else word_ids
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of many texts."""
        return [self.encode(text) for text in texts]

    def encode_tag(self, tag: str) -> list[int]:
        """Return the ids of a symbol before a text, so that `encode(with_tag(text, tag))` is these, then those of the
        text; none of "". No token reaches over a space."""
        ids = self.encode(tag)
        return [*ids, self._separator] if ids and self._separator is not None else ids

    def sample(self, text: str, strength: float, seed: int) -> list[int]:
        """Return the ids of a random segmentation into subwords; the same arguments always give the same one.

        `strength` is the probability with which BPE drops a merge, or the α of unigram sampling (the smaller, the
        flatter); 0 is no sampling.
        """
        if not strength:
            return self.encode(text)
        assert isinstance(self.tokenizer, SubwordTokenizer), "only subwords can be sampled"
        rng = random.Random(seed)
        tokens: list[str] = []
        for word in self.tokenizer.words(self.preparation(text)):
            tokens += self.tokenizer.sample(word, strength, rng)
        return self.lookup(tokens)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the vocabulary's string of each id."""
        return self.vocabulary.lookup_tokens(ids)

    def decode(self, ids: Iterable[int], unknowns: Sequence[str] | None = None) -> str:
        """Return the text of ids but `<pad>`, `<s>` and `</s>`; `unknowns`: tokens, one for each `<unk>` in turn."""
        ids = [index for index in ids if index not in (PAD, BOS, EOS)]
        tokens = self.vocabulary.lookup_tokens(ids)
        if unknowns:
            replacements = iter(unknowns)
            tokens = [
                next(replacements, token) if index == UNK else token for index, token in zip(ids, tokens, strict=True)
            ]
        return self.tokenizer.join(tokens)

    def _encode_word(self, word: str) -> list[int]:
        ids = self.vocabulary.lookup_indices(self.tokenizer.tokens(word))
        if len(word) <= LONGEST_CACHED:
            if len(self._ids_of_words) >= CACHED_WORDS:
                self._ids_of_words.clear()
            self._ids_of_words[word] = ids
        return ids


class MarianCodec(Codec):
    """A Marian model's: sentencepiece sees a text whole, as in its training, not word by word."""

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text, those outside the vocabulary too."""
        return self.tokenizer.tokens(self.preparation(text))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return self.lookup(self.tokenize(text))


def vocabulary_files(options: VocabularyConfig) -> list[str]:
    """Return the files of a model's codecs, relative to its folder."""
    sides = ["shared"] if options.shared else ["source", "target"]
    if options.tokenizer == "marian":
        return [f"vocab/{name}" for name in ("source.model", "target.model", *(f"{side}.json" for side in sides))]
    endings = ["model", "json"] if options.tokenizer == "sentencepiece" else ["json"]
    return [f"vocab/{side}.{ending}" for side in sides for ending in endings]


class Codecs:
    """The codecs of a model's two sides. A model that copies has others: `transformer_cli.codecs` chooses."""

    copies = False  # whether ids beyond the vocabularies stand for tokens of the source

    def __init__(self, source: Codec, target: Codec, config: Config) -> None:
        self.source = source
        self.target = target
        self._options = config.vocabulary
        self._languages = (config.data.source_language, config.data.target_language)
        self.files = vocabulary_files(config.vocabulary)

    def encode_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of pairs, to train on or to score."""
        return self.source.encode_batch(sources), self.target.encode_batch(targets)

    def target_beside(self, source_tokens: Sequence[str]) -> Codec:
        """Return the target's codec beside the tokens of a source that the model reads at once; here always the same.

        Where the model copies, ids may be those of source tokens that the vocabulary lacks.
        """
        return self.target

    def lookup_target(self, tokens: Sequence[str], source: str) -> list[int]:
        """Return the ids of target tokens beside a source text."""
        return self.target.lookup(tokens)

    def most_ids(self, max_length: int) -> int:
        """Return how many ids the side with more of them has, in texts of at most `max_length` tokens."""
        return max(len(self.source.vocabulary), len(self.target.vocabulary))

    def save(self, folder: str | Path) -> None:
        """Write `files` into a model's folder, which is published whole when all else is in it."""
        (Path(folder) / "vocab").mkdir(parents=True, exist_ok=True)
        self.save_into(Path(folder) / "vocab")

    def save_into(self, vocab: Path) -> None:
        """Write the same files into the folder `vocab/` itself, as a run publishes it."""
        for name, content in self._contents().items():
            (vocab / Path(name).name).write_bytes(content)

    @classmethod
    def load(cls, folder: str | Path, config: Config) -> Self:
        """Read what `save` wrote there; raises `UserError` at files that are missing or hold anything else."""
        folder = Path(folder)
        options = config.vocabulary
        languages = (config.data.source_language, config.data.target_language)
        source = _load_codec(folder / "vocab", "source", languages[0], options)
        apart = not options.shared or options.tokenizer == "marian"
        apart |= options.tokenizer == "spacy" and languages[0] != languages[1]
        target = _load_codec(folder / "vocab", "target", languages[1], options) if apart else source
        return cls(source, target, config)

    def _contents(self) -> dict[str, bytes]:
        contents = {}
        for name in self.files:
            codec = self.target if Path(name).stem == "target" else self.source
            if name.endswith(".model"):
                assert isinstance(codec.tokenizer, SubwordTokenizer | MarianTokenizer)
                contents[name] = codec.tokenizer.model
            else:
                contents[name] = codec.vocabulary.dumps().encode("utf-8")
        return contents

    @cached_property
    def fingerprint(self) -> str:
        """Return a sha256 that differs wherever any text might be encoded differently."""
        options = self._options
        rules: list[object] = [VERSION, unicodedata.unidata_version, options.tokenizer, options.algorithm]
        rules += [options.lowercase, options.normalization, options.symbols]
        if options.tokenizer == "spacy":
            rules += [version("spacy"), *self._languages]
        if options.tokenizer in ("sentencepiece", "marian"):
            rules += [version("sentencepiece")]
        if self.copies:
            rules += ["copies"]
        digest = hashlib.sha256(json.dumps(rules).encode())
        for name, content in self._contents().items():
            digest.update(f"{name} {len(content)} ".encode() + content)
        return digest.hexdigest()


def _load_codec(folder: Path, side: str, language: str, options: VocabularyConfig) -> Codec:
    name = "shared" if options.shared else side
    vocabulary = Vocabulary.load(folder / f"{name}.json")
    kind: type[Codec] = Codec
    if options.tokenizer in ("sentencepiece", "marian"):
        path = folder / f"{name if options.tokenizer == 'sentencepiece' else side}.model"
        tokenizer: Tokenizer
        try:
            if options.tokenizer == "marian":
                tokenizer, kind = MarianTokenizer(path.read_bytes()), MarianCodec
            else:
                tokenizer = SubwordTokenizer(path.read_bytes(), options.algorithm, options.symbols)
        except OSError as error:
            raise UserError(f"{path}: cannot read the subword model: {error.strerror or error}") from None
        except ValueError as error:
            raise UserError(f"{path}: is damaged or {error}; build or copy it again") from None
        if isinstance(tokenizer, SubwordTokenizer) and vocabulary.get_itos() != tokenizer.pieces:
            raise UserError(f"{path}: does not belong to {name}.json beside it; build or copy both again")
    else:
        tokenizer = word_tokenizer(options, language)
    missing = [token for token in fixed_tokens(tokenizer, options) if token not in vocabulary]
    if missing:
        raise UserError(f"{folder / name}.json: lacks {missing[0]!r}, which the config asks for; build it again")
    return kind(tokenizer, vocabulary, Preparation(options))
