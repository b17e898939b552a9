"""Of text in one language stays what is worth translating: each line once, none of valid or test, in its order."""

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from transformer_cli.data import monolingual
from transformer_cli.data.monolingual import REASONS, Monolingual
from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.errors import UserError

HELD_OUT = ["The quick brown fox jumps over the lazy dog.", "¿?", "Yes!"]
ENGLISH = [
    "a first line",
    "the second one",
    "two three four",
    "five six",
    "eight nine ten",
    "eleven twelve",
    "with",
    "dog",
]
GERMAN = ["das haus", "und hund", "wasser", "mit hund", "welche", "während", "dieses", "straße"]


class Words:
    """A codec of which each word is a token."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[str]]:
        return [text.split() for text in texts]


def made(tmp_path: Path, lines: Sequence[str], **options: object) -> Monolingual:
    (tmp_path / "mono").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Monolingual([tmp_path / "mono"], Words(), 12, **options)  # type: ignore[arg-type]


def texts(words: Sequence[str], count: int) -> list[str]:
    choose = random.Random(1)
    return [" ".join(choose.choices(words, k=5)) for _ in range(count)]


@pytest.fixture(scope="module")
def languages() -> LanguageIdentifier:
    found = LanguageIdentifier.learn(texts(ENGLISH, 400), texts(GERMAN, 400), ("en", "de"))
    assert found is not None
    return found


LINES = {  # and why each is left out
    "A first line.": 0,
    "": 1,
    " \t": 1,
    "one two three four five six seven eight nine ten eleven twelve": 0,
    "one two three four five six seven eight nine ten eleven twelve thirteen": 2,
    "a FIRST  line": 5,
    "A second line.": 0,
    "the quick brown fox, jumps over the lazy dog": 4,
    "The quick brown fox jumped over the lazy dog.": 4,  # but for a word
    "¿?": 4,
    "yes": 4,
    "...": 0,
    "!!!": 0,  # signs alone are compared as they are
    "das haus und wasser mit hund während straße": 3,
}


@pytest.mark.parametrize("part", [1, 3, 5000])
def test_each_line_stays_or_has_a_reason(
    part: int, languages: LanguageIdentifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monolingual, "PART", part)
    text = made(tmp_path, [*LINES], held_out=HELD_OUT, languages=languages)
    assert dict(zip(LINES, text.reasons.tolist(), strict=True)) == LINES
    assert [*text.pairs()] == [(line, "") for line, reason in LINES.items() if not reason]
    assert text.left_out.startswith("14 lines; left out: 2 empty, 1 longer than the model takes, 1 in the language")
    assert text.left_out.endswith("4 in valid or test, or nearly, 1 repeated")


def test_a_line_is_repeated_where_another_file_has_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo")
    (tmp_path / "b.gz").write_bytes(gzip.compress("\ufefftwo\r\nthree\n".encode()))
    text = Monolingual([tmp_path / "a", tmp_path / "b.gz"], Words(), 12)  # type: ignore[arg-type]
    assert [*text.pairs()] == [("one", ""), ("two", ""), ("three", "")]
    assert "carriage return at the end of 1 line" in text.notes[0]
    assert len(text.notes) == 2
    assert text.describe() == f"{tmp_path}/a and {tmp_path}/b.gz"


def test_nothing_left_out_is_said_too(tmp_path: Path) -> None:
    assert made(tmp_path, ["one"]).left_out == "1 line; left out: none"


def test_its_hash_tells_text_and_what_is_left_out(tmp_path: Path) -> None:
    hashes = {
        made(tmp_path, lines, held_out=held_out).content_hash()
        for lines in (["one"], ["two"])
        for held_out in ([], ["x"], ["x", "y"], ["y", "x"])
    }
    assert len(hashes) == 6  # in whatever order


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "has no lines"),
        (["", " "], r"no line is left to translate \(2 empty, 0 longer"),
        (["Yes", "yes."], r"no line is left to translate \(0 empty, .* 2 in valid or test"),
    ],
)
def test_text_of_which_nothing_stays_is_refused(lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"mono: {message}"):
        [*made(tmp_path, lines, held_out=HELD_OUT).pairs()]


def test_text_in_the_other_language_is_refused(languages: LanguageIdentifier, tmp_path: Path) -> None:
    """Most lines decide; those that are in neither do not count, nor do empty ones."""
    german, english = texts(GERMAN, 60), texts(ENGLISH, 60)
    with pytest.raises(UserError, match="most lines are in de, but the model translates en into de; give text in en"):
        [*made(tmp_path, german[:6] + english[:5] + [""] * 9, languages=languages).pairs()]
    stays = made(tmp_path, german[:5] + english[:6], languages=languages)
    assert [line for line, _ in stays.pairs()] == english[:6]


@pytest.mark.parametrize("content", [b"one\n\xff\n", b"one\ntwo \xc3"])
def test_invalid_text_is_refused_with_its_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mono").write_bytes(content)
    with pytest.raises(UserError, match="mono:2: is not valid UTF-8"):
        [*Monolingual([tmp_path / "mono"], Words(), 12).pairs()]  # type: ignore[arg-type]


def test_every_reason_has_a_name() -> None:
    assert {*LINES.values()} == {0, *REASONS}
    assert np.iinfo(np.int8).max > max(REASONS)
