"""Looks through the bytes of a sentencepiece model before sentencepiece reads them: native code, and it trusts them.

Called by `subword`. The format is a protobuf: numbered fields, each with its length.
"""

from collections.abc import Iterator
from typing import Literal

TRAINER, NORMALIZER, DENORMALIZER = 2, 3, 5  # fields of a model
MODEL_TYPE = 3  # field of the trainer's
CHARACTER_MAP = 2  # field of a normaliser's
TYPES = {"unigram": 1, "bpe": 2}
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5  # how a field is written


def check_model(model: bytes, algorithm: Literal["unigram", "bpe"]) -> None:
    """Raise `ValueError` where it is no model, one of another algorithm, or one that changes the text.

    `train_subwords` makes none with a map of characters; one would be followed wherever it points.
    """
    kinds: list[int | bytes] = []
    for field, value in _fields(model):
        if field == TRAINER:
            named = [kind for number, kind in _fields(_content(value)) if number == MODEL_TYPE]
            kinds += named or [TYPES["unigram"]]  # the format's default
        elif field in (NORMALIZER, DENORMALIZER) and any(
            number == CHARACTER_MAP and characters for number, characters in _fields(_content(value))
        ):
            raise ValueError("a sentencepiece model that changes the text")
    if not kinds:
        raise ValueError("not a sentencepiece model")
    if kinds[-1] != TYPES[algorithm]:
        raise ValueError(f"no {algorithm} model, as config.yaml asks for")


def _content(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("not a sentencepiece model")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field; `ValueError` where the lengths do not add up."""
    place, end = 0, len(message)
    while place < end:
        key, place = _varint(message, place)
        kind = key & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == BYTES:
            length, place = _varint(message, place)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            length = 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError("not a sentencepiece model")
        if length > end - place:
            raise ValueError("not a sentencepiece model")
        yield key >> 3, message[place : place + length]
        place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number, seven bits a byte, and the place after it."""
    number = shift = 0
    for byte in message[place : place + 10]:
        number |= (byte & 0x7F) << shift
        shift += 7
        place += 1
        if byte < 0x80:
            return number, place
    raise ValueError("not a sentencepiece model")
