"""Subwords by sentencepiece, exact for any text: training, pieces of a word, text of pieces, sampling.

`build` trains a model from word counts, `codec` uses it. A word here is what stands between two spaces (U+0020), and
no piece reaches over one: so words are segmented alone, and a segmentation depends on nothing around it.
"""

import io
import math
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import sentencepiece

from transformer_cli.config import VocabularyConfig
from transformer_cli.errors import UserError
from transformer_cli.text.subword_sampling import BytePairSampler, UnigramSampler
from transformer_cli.text.tokenizers import escape, split_symbols, symbol_pattern, unescape, without_surrogates
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

SPACE = "\u2581"  # what sentencepiece writes for a space
# A literal U+2581 becomes ESCAPE AS_SPACE, a literal ESCAPE becomes ESCAPE AS_ESCAPE (all three noncharacters).
ESCAPE, AS_ESCAPE, AS_SPACE = "\ufdd0", "\ufdd1", "\ufdd2"
THREADS = 8  # sums of floats depend on their number, so it is the same on every machine
# Unigram training starts from so many pieces for each one that is wanted (sentencepiece's own 1,000,000 at most): more
# cost time and memory, and segment no better.
SEEDS_A_PIECE = 10
LONGEST_WORD = 4192  # bytes; longer ones (no words of a language) don't take part in training

sentencepiece.SetMinLogLevel(2)


# --- using a model -----------------------------------------------------------------------------------------------


def _hide_spaces(text: str) -> str:
    text = without_surrogates(text)
    return text.replace(ESCAPE, ESCAPE + AS_ESCAPE).replace(SPACE, ESCAPE + AS_SPACE)


def _show_spaces(text: str) -> str:
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPE + AS_SPACE, SPACE).replace(ESCAPE + AS_ESCAPE, ESCAPE)


class SubwordTokenizer:
    """A sentencepiece model, word by word. Raises `ValueError` if the bytes are not one, or none that can be exact."""

    is_subword = True
    separator: str | None = None

    def __init__(self, model: bytes, algorithm: Literal["unigram", "bpe"], symbols: Sequence[str] = ()) -> None:
        self.model = model
        self._algorithm = algorithm
        self._user_symbols = list(symbols)
        self._symbols = symbol_pattern(symbols)
        self._processor = sentencepiece.SentencePieceProcessor()
        check_model(model, algorithm)
        try:
            loaded = self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            loaded = False
        if not loaded:
            raise ValueError("not a sentencepiece model")
        self.pieces = [str(self._processor.IdToPiece(index)) for index in range(self._processor.GetPieceSize())]
        if SPACE not in self.pieces or any(SPACE in piece[1:] for piece in self.pieces):
            raise ValueError("a sentencepiece model whose pieces reach over spaces")
        self.byte_tokens: Mapping[str, int] = (
            {f"<0x{byte:02X}>": byte for byte in range(256)} if "<0x00>" in self.pieces else {}
        )
        self._byte_pieces = list(self.byte_tokens)
        self._known = {piece for index, piece in enumerate(self.pieces) if self._is_text(index)}
        self._sampler = self._make_sampler()

    def __reduce__(self) -> tuple[object, ...]:
        return SubwordTokenizer, (self.model, self._algorithm, self._user_symbols)

    def words(self, text: str) -> list[str]:
        """Return the text cut at every space: ` a` gives two words, the first empty; no text gives no word."""
        return text.split(" ") if text else []

    def tokens(self, word: str, begins: bool = True) -> list[str]:
        """Return the pieces of one word, the first beginning with U+2581 for the space before it; begins false: of the
        rest of a word."""
        tokens: list[str] = []
        for place, text in enumerate(split_symbols(word, self._symbols)):
            if place % 2:
                tokens.append(_hide_spaces(text))
            elif place == 0 and begins:
                tokens += self._first_pieces(_hide_spaces(text))
            elif text:
                tokens += self._spell(self._sampler.best(_hide_spaces(text)))
        return tokens

    def sample(self, word: str, strength: float, rng: random.Random) -> list[str]:
        """Return a random segmentation, else as `tokens`; see the samplers for `strength`."""
        tokens: list[str] = []
        for place, text in enumerate(split_symbols(word, self._symbols)):
            if place % 2:
                tokens.append(_hide_spaces(text))
            elif text or place == 0:
                beginning = "" if place else SPACE
                tokens += self._spell(self._sampler.draw(beginning + _hide_spaces(text), strength, rng))
        return tokens

    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]:
        """Return the pieces that symbols become."""
        return [_hide_spaces(symbol) for symbol in symbols]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of pieces; bytes that are not UTF-8 become U+FFFD."""
        if self._known.issuperset(tokens):  # nearly always
            return _show_spaces("".join(tokens).replace(SPACE, " ").removeprefix(" "))
        parts: list[str] = []
        pending = bytearray()
        for token in tokens:
            if token in self.byte_tokens:
                pending.append(self.byte_tokens[token])
                continue
            if pending:
                parts.append(pending.decode("utf-8", errors="replace"))
                pending.clear()
            parts.append((token if token in self._known else unescape(token)).replace(SPACE, " "))
        parts.append(pending.decode("utf-8", errors="replace"))
        return _show_spaces("".join(parts).removeprefix(" "))

    def _first_pieces(self, text: str) -> list[str]:
        if not text:
            return [SPACE]
        pieces: list[str] = self._processor.EncodeAsPieces(text)
        if self.byte_tokens:
            return pieces
        return [piece if piece in self._known else escape(piece) for piece in pieces]

    def _spell(self, parts: Sequence[str]) -> list[str]:
        """Return a segmentation's tokens: unknown characters as bytes; without those, runs of them as one unknown."""
        tokens: list[str] = []
        unknown = ""
        for part in parts:
            if part in self._known:
                if unknown:
                    tokens.append(escape(unknown))
                    unknown = ""
                tokens.append(part)
            elif self.byte_tokens:
                tokens += [self._byte_pieces[byte] for byte in part.encode("utf-8")]
            else:
                unknown += part
        return [*tokens, escape(unknown)] if unknown else tokens

    def _is_text(self, index: int) -> bool:
        processor = self._processor
        return not (processor.IsControl(index) or processor.IsUnknown(index) or processor.IsByte(index))

    def _make_sampler(self) -> UnigramSampler | BytePairSampler:
        symbols = set(self.symbol_tokens(self._user_symbols))
        scores = {
            piece: self._processor.GetScore(index)
            for index, piece in enumerate(self.pieces)
            if piece in self._known and piece not in symbols
        }
        if not all(map(math.isfinite, scores.values())):
            raise ValueError("a sentencepiece model with a score that is not finite")
        return UnigramSampler(scores) if self._algorithm == "unigram" else BytePairSampler(scores)


# --- what a model is ---------------------------------------------------------------------------------------------

# A model is a protocol buffer. Fields of it, of the trainer's part, of a normalizer's, and how fields are written.
TRAINER, NORMALIZER, DENORMALIZER = 2, 3, 5
MODEL_TYPE = 3
CHARACTER_MAP = 2
TYPES = {"unigram": 1, "bpe": 2}
VARINT, BYTES = 0, 2
FIXED_LENGTHS = {1: 8, 5: 4}  # bytes


def check_model(model: bytes, algorithm: Literal["unigram", "bpe"]) -> None:
    """Raise `ValueError` where it is not a model, one of another algorithm, or one that changes the text.

    `train_subwords` makes none with a map of characters; one would be followed wherever it points.
    """
    for field, value in fields(model):
        if field in (NORMALIZER, DENORMALIZER) and any(
            number == CHARACTER_MAP and characters for number, characters in fields(value)
        ):
            raise ValueError("a sentencepiece model that changes the text")
    if check_kind(model) != TYPES[algorithm]:
        raise ValueError(f"no {algorithm} model, as config.yaml asks for")


def check_kind(model: bytes) -> int:
    """Return which of TYPES a model is; `ValueError` where it is none of them."""
    kinds: list[int | bytes] = []
    for field, value in fields(model):
        if field == TRAINER:
            named = [kind for number, kind in fields(value) if number == MODEL_TYPE]
            kinds += named or [TYPES["unigram"]]  # the format's default
    if not kinds or kinds[-1] not in TYPES.values():
        raise ValueError("not a sentencepiece model")
    return int(kinds[-1])


def fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a protocol buffer; `ValueError` where the lengths do not add up."""
    if isinstance(message, int):
        raise ValueError("not a sentencepiece model")
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if kind == BYTES:
            length, place = _varint(message, place)
        else:
            length = FIXED_LENGTHS.get(kind, len(message))
        if length > len(message) - place:
            raise ValueError("not a sentencepiece model")
        yield number, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number, seven bits a byte, and the place after it."""
    number = shift = 0
    for byte in message[place : place + 10]:
        number |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if byte < 0x80:
            return number, place
    raise ValueError("not a sentencepiece model")


# --- training ----------------------------------------------------------------------------------------------------


def check_symbols(options: VocabularyConfig) -> None:
    """Raise `UserError` if a symbol has the name of a byte's piece."""
    for symbol in options.symbols if options.byte_fallback else []:
        if re.fullmatch("<0x[0-9A-F]{2}>", symbol):
            raise UserError(f"vocabulary.symbols: {symbol!r} is the name of a byte's piece; choose another one")


def train_subwords(counts: Iterable[tuple[str, int]], options: VocabularyConfig, where: str) -> bytes:
    """Train a sentencepiece model on words (as `SubwordTokenizer.words` cuts them) with their counts.

    It has fewer pieces than `options.size` where the text has no more. `where` names the text in messages. Raises
    `UserError` if the text is empty or has more characters than `options.size` holds, with the smallest possible size.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=_training_lines(counts),
            model_writer=model,
            input_format="tsv",
            model_type=options.algorithm,
            vocab_size=options.size,
            character_coverage=options.character_coverage,
            byte_fallback=options.byte_fallback,
            user_defined_symbols=[_hide_spaces(symbol) for symbol in options.symbols],
            required_chars=SPACE,
            hard_vocab_limit=False,
            seed_sentencepiece_size=min(1_000_000, max(50_000, SEEDS_A_PIECE * options.size)),
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            max_sentence_length=LONGEST_WORD,
            num_threads=THREADS,
            minloglevel=2,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=SPECIALS[PAD],
            unk_piece=SPECIALS[UNK],
            bos_piece=SPECIALS[BOS],
            eos_piece=SPECIALS[EOS],
        )
    except RuntimeError as error:
        raise UserError(_explain(str(error), options, where)) from None
    return model.getvalue()


def _training_lines(counts: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield words and counts as the trainer reads them.

    Its seed pieces are the commonest substrings of these lines, whatever count stands beside them. So that common
    words weigh more there than rare ones, a word seen n times stands on log2(n) + 1 lines, which share its count.
    """
    for word, count in counts:
        for part in re.split("[\t\n\0]", _hide_spaces(word)):  # what the trainer's format cannot hold
            if part:
                lines = count.bit_length()
                yield from [f"{part}\t1"] * (lines - 1)
                yield f"{part}\t{count - lines + 1}"


def _explain(error: str, options: VocabularyConfig, where: str) -> str:
    """Return sentencepiece's complaint in the user's terms."""
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", error):
        return (
            f"vocabulary.size: {options.size} is too small for the characters of {where}; set it to at "
            f"least {match[1]}, or lower vocabulary.character_coverage"
        )
    if "sentences_.empty()" in error:
        return f"{where}: holds no text to build a vocabulary from"
    return f"vocabulary: sentencepiece cannot train on {where}: {' '.join(error.split())[:200]}"
