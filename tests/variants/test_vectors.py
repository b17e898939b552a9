"""Word vectors of a file: both formats, which token takes which, and what is refused with file and line."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec
from transformer_cli.text.vocabulary import SPECIALS, Vocabulary
from transformer_cli.variants.embeddings import WordVectors, check_vectors, read_vectors

SIZE = 3


class AnyCodec:
    """What reading vectors asks of a codec."""

    def __init__(self, *tokens: str, subword: bool = False) -> None:
        self.vocabulary, self.is_subword = Vocabulary([*SPECIALS, *tokens]), subword


def lines_of(**words: float) -> str:
    """Each word with its number, the same plus 1, and the same plus 2."""
    return "".join(f"{word} {number} {number + 1} {number + 2}\n" for word, number in words.items())


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., WordVectors]:
    """Call it with the content of a file and tokens."""

    def make(content: str, *tokens: str, subword: bool = False, name: str = "vectors.txt") -> WordVectors:
        path, raw = tmp_path / name, content.encode()
        path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        check_vectors(path, SIZE)
        return read_vectors(path, SIZE, cast(Codec, AnyCodec(*tokens, subword=subword)))

    return make


def taken(found: WordVectors, *tokens: str) -> dict[str, float]:
    """The first number of each token's vector; all three are as they should be."""
    vectors = dict(zip(found.ids.tolist(), found.vectors, strict=True))
    for vector in vectors.values():
        np.testing.assert_allclose(vector - vector[0], [0, 1, 2])
    return {token: float(vectors[number][0]) for number, token in enumerate(tokens, start=4) if number in vectors}


WORDS = ["house", "dog", "tree"]


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.vec.gz"])
@pytest.mark.parametrize("header", ["", "2 3\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n", "\n\n"])
def test_both_formats_plain_and_gzipped(read: Callable[..., WordVectors], name: str, header: str, end: str) -> None:
    content = header + lines_of(dog=0.5, house=-2).rstrip("\n").replace("\n", end.replace("\n\n", "\n")) + end
    found = read(content, *WORDS, name=name)
    assert taken(found, *WORDS) == {"house": -2.0, "dog": 0.5}
    assert found.words == 2


def test_a_tab_is_a_space_and_a_word_may_hold_spaces(read: Callable[..., WordVectors]) -> None:
    found = read("dog\t1 2 3\nat name@domain.com 7 8 9\nhouse 4 5 6\n", *WORDS)
    assert taken(found, *WORDS) == {"dog": 1.0, "house": 4.0}
    assert found.words == 3


def test_a_word_with_its_mark_or_capitals_takes_what_is_nearest(read: Callable[..., WordVectors]) -> None:
    tokens = ["House", "house", "￭,", "￭s", "\\<unk>", "HOUSE"]
    content = "house 1 2 3\n, 4 5 6\ns 7 8 9\nHouse 10 11 12\n<unk> 13 14 15\n"
    assert taken(read(content, *tokens), *tokens) == {
        "House": 10.0,
        "house": 1.0,
        "￭,": 4.0,
        "￭s": 7.0,
        "\\<unk>": 13.0,
        "HOUSE": 1.0,
    }
    reverse = "".join(line + "\n" for line in reversed(content.splitlines()))
    assert taken(read(reverse, *tokens), *tokens)["House"] == 10.0, "the order of the file does not matter"


def test_specials_stay_as_they_are(read: Callable[..., WordVectors]) -> None:
    assert read("</s> 1 2 3\n<unk> 4 5 6\n<pad> 1 2 3\ndog 1 2 3\n", "dog").ids.tolist() == [4]


def test_of_words_that_stand_there_twice_the_first_counts(read: Callable[..., WordVectors]) -> None:
    assert taken(read("dog 1 2 3\ndog 7 8 9\n", "dog"), "dog") == {"dog": 1.0}


def test_a_piece_within_a_word_is_no_word(read: Callable[..., WordVectors]) -> None:
    pieces = ["▁the", "ing", "▁The", "▁"]
    assert taken(read("the 1 2 3\ning 4 5 6\n", *pieces, subword=True), *pieces) == {"▁the": 1.0, "▁The": 1.0}
    content = "the 1 2 3\ning 4 5 6\n▁the 7 8 9\n▁ 10 11 12\n"  # a file of pieces
    found = taken(read(content, *pieces, subword=True), *pieces)
    assert found == {"▁the": 7.0, "ing": 4.0, "▁The": 7.0, "▁": 10.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ": holds no word vectors"),
        ("2 3\n", ": holds no word vectors"),
        ("2 4\ndog 1 2 3\n", ":1: has 4 numbers per word, but model.d_model is 3; .* d_model: 4"),
        ("dog 1 2\n", ":1: has 2 numbers per word, but model.d_model is 3"),
        ("dog\n", ":1: is not a word vector; a line is a word and its 3 numbers"),
        ("dog 1 2 3\nhouse 1 2\n", ":2: 'house' has 2 numbers, not 3; fix the line"),
        ("dog 1 2 3\nhouse 1 x 3\n", ":2: 'house' has a field that is not a finite number; fix the line"),
        ("dog 1 2 3\nhouse 1 nan 3\n", ":2: 'house' has a field that is not a finite number"),
        ("dog 1 2 3\nhouse 1 -inf 3\n", ":2: 'house' has a field that is not a finite number"),
        ("dog 1 2 3\nhouse 1 1e300 3\n", ":2: 'house' has a field that is not a finite number"),
        ("dog 1 2 3\nhouse 1  3\n", ":2: 'house' has a field that is not a finite number"),
        ("3 3\ndog 1 2 3\nhouse 1 2 3\n", ":1: promises 3 words, but 2 are there; copy the file again"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(read: Callable[..., WordVectors], content: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"vectors\.txt{message}") as error:
        read(content, *WORDS)
    assert "\n" not in str(error.value)


def test_a_file_that_is_cut_off_or_no_text_is_told(tmp_path: Path) -> None:
    codec = cast(Codec, AnyCodec(*WORDS))
    whole = gzip.compress("".join(f"w{n} {n} {n / 7} {n * 13}\n" for n in range(2000)).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"cut\.gz:\d+: the gzip data ends too early"):
        read_vectors(tmp_path / "cut.gz", SIZE, codec)
    (tmp_path / "binary.bin").write_bytes(b"3 3\ndog \x00\x9f\xff\x3f\n")
    with pytest.raises(UserError, match=r"binary\.bin:2: is not valid UTF-8"):
        check_vectors(tmp_path / "binary.bin", SIZE)
    with pytest.raises(UserError, match="nowhere: no such file"):
        check_vectors(tmp_path / "nowhere", SIZE)
