"""Text as a Marian model reads and writes it: sentencepiece segments, a vocabulary beside it says what has an id.

Such models come from `tfm import`; none is trained here. Their sentencepiece normalises text by a map of its own, and a
language token such as `>>fra<<` may stand before a source text.
"""

import math
import re
from collections.abc import Mapping, Sequence

import sentencepiece

from transformer_cli.text.subword import CHARACTER_MAP, DENORMALIZER, NORMALIZER, SPACE, check_kind, fields
from transformer_cli.text.tokenizers import escape, unescape, without_surrogates
from transformer_cli.text.vocabulary import SPECIALS, UNK

LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)  # before a source text: what to translate it into


class MarianTokenizer:
    """A sentencepiece model over another vocabulary. Raises `ValueError` if the bytes are not one that can be used."""

    is_subword = True
    separator: str | None = None

    def __init__(self, model: bytes) -> None:
        self.model = model
        check_model(model)
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            loaded = self._processor.LoadFromSerializedProto(model)
        except RuntimeError:
            loaded = False
        if not loaded:
            raise ValueError("not a sentencepiece model")
        numbers = range(self._processor.GetPieceSize())
        if not all(math.isfinite(self._processor.GetScore(number)) for number in numbers):
            raise ValueError("a sentencepiece model with a score that is not finite")
        self.pieces = [
            str(self._processor.IdToPiece(number))
            for number in numbers
            if not (self._processor.IsControl(number) or self._processor.IsUnknown(number))
        ]
        self.byte_tokens: Mapping[str, int] = (
            {f"<0x{byte:02X}>": byte for byte in range(256)} if "<0x00>" in self.pieces else {}
        )

    def __reduce__(self) -> tuple[object, ...]:
        return MarianTokenizer, (self.model,)

    def words(self, text: str) -> list[str]:
        """Return the text cut at every space."""
        return text.split(" ") if text else []

    def tokens(self, word: str, begins: bool = True) -> list[str]:
        """Return the pieces of a word or of a whole text; those that sentencepiece does not know are characters; begins
        false: of the rest of a word, without the space before it."""
        language = LANGUAGE.match(word)
        text = without_surrogates(word if language is None else word[language.end() :].removeprefix(" "))
        pieces: list[str] = self._processor.EncodeAsPieces(text)
        if pieces and not begins:
            pieces[:1] = filter(None, [pieces[0].removeprefix(SPACE)])
        return [*([] if language is None else [language[0]]), *map(escape, pieces)]

    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]:
        """Return the tokens that symbols become."""
        return list(symbols)

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of pieces, without what is unknown, as transformers' MarianTokenizer does."""
        pieces = [unescape(token) for token in tokens if token != SPECIALS[UNK]]
        text: str = self._processor.DecodePieces(pieces)
        return text.replace(SPACE, " ").strip()


def check_model(model: bytes) -> None:
    """Raise `ValueError` where it is not a sentencepiece model of subwords, or a map in it leads out of itself."""
    check_kind(model)
    for field, value in fields(model):
        if field in (NORMALIZER, DENORMALIZER):
            for number, characters in fields(value):
                if number == CHARACTER_MAP and characters:
                    check_character_map(characters)


def check_character_map(characters: int | bytes) -> None:
    """Raise `ValueError` where following a map of characters could lead out of it.

    sentencepiece follows it wherever it points. It is the length of a double array (as in darts-clone), the array, and
    the texts that its leaves point into, each ending in a zero. A unit's children are at its place XOR its offset XOR
    a byte.
    """
    import numpy as np  # here alone: translating without torch needs none of it

    fault = ValueError("a sentencepiece model with a damaged map of characters")
    if not isinstance(characters, bytes) or len(characters) < 4:
        raise fault
    length = int.from_bytes(characters[:4], "little")
    texts = characters[4 + length :]
    if not length or length % 1024 or 4 + length > len(characters) or not texts.endswith(b"\0"):
        raise fault
    units = np.frombuffer(characters, np.uint32, length // 4, 4).astype(np.int64)
    leaves = units >> 31 == 1
    offsets = (units >> 10) << ((units & 512) >> 6)
    blocks = (np.arange(len(units)) ^ offsets) >> 8  # of 256 places
    if (blocks[~leaves] >= len(units) // 256).any() or (units[leaves] & 0x7FFFFFFF >= len(texts)).any():
        raise fault
