"""What repeats is found by hashes: with case, spaces and punctuation or without, with other numbers, nearly."""

import random

import numpy as np
import pytest

from transformer_cli.data.quality.repeats import KnownPairs, NearTexts, TextHashes, hash_pairs
from transformer_cli.data.quality.words import Words, words_of

Pairs = list[tuple[str, str]]


def hashes(pairs: Pairs) -> TextHashes:
    return TextHashes.of(pairs, *(Words.of(pair[side] for pair in pairs) for side in (0, 1)))


def where(mask: object) -> list[int]:
    return [place for place, found in enumerate(mask.tolist()) if found]  # type: ignore[attr-defined]


def test_the_later_one_of_equal_pairs_is_a_duplicate() -> None:
    pairs = [
        ("Ein Hund schläft.", "a dog sleeps"),
        ("schläft ein Hund", "a dog sleeps"),
        ("ein  hund schläft", "“A dog sleeps!”"),
        ("ein Hund schläft", "sleeps a dog"),
        ("…", "!"),
        ("?", "!"),
        ("…", "! "),
    ]
    found = hashes(pairs)
    assert where(found.duplicate_pairs()) == [2, 6]
    ambiguous, contradictory = found.ambiguous(found.duplicate_pairs(), np.zeros(7, dtype=np.int8))
    assert where(ambiguous) == [1, 3]
    assert not contradictory.any()


@pytest.mark.parametrize("without", ["", " "])
def test_a_pair_without_its_punctuation_is_the_same(without: str) -> None:
    """However that was taken out; but a number is not another one."""
    text = "Ein T-Shirt, l'homme: 2.5 m"
    again = "".join(without if one in "-,':" else one for one in text)
    assert where(hashes([(text, "x"), (again, "x"), (text.replace("2.5", "25"), "x")]).duplicate_pairs()) == [1]


def test_a_brief_text_may_have_many_translations() -> None:
    """What fits or not is not asked: a word or two say too little."""
    pairs = [("Na gut.", "okay then"), ("Na gut.", "all right, if you must"), ("Na gut, also dann.", "all right")]
    for one in (pairs, [(target, source) for source, target in pairs]):
        found = hashes([*one, *[pair[::-1] for pair in one]])
        ambiguous, contradictory = found.ambiguous(found.duplicate_pairs(), np.array([60, -60] * 3, dtype=np.int8))
        assert not ambiguous.any()
        assert not contradictory.any()


def test_of_equal_pairs_the_one_stays_that_is_written_as_most_are() -> None:
    usual = [(f"Katze {number}", f"Cat {number}") for number in range(3)]
    capitals = [(source.upper(), target) for source, target in usual]
    small = [(source.lower(), target) for source, target in usual]
    for copies in (capitals, small):
        assert where(hashes([copies[0], *usual, copies[1]]).duplicate_pairs()) == [0, 4]
        assert where(hashes([usual[0], *copies, usual[2]]).duplicate_pairs()) == [0, 4]
    caseless = [("猫 1", "犬"), ("猫1", "犬"), ("猫 1", "犬。")]
    assert where(hashes(caseless).duplicate_pairs()) == [1, 2]


@pytest.mark.parametrize("side", [0, 1])
def test_of_pairs_that_share_a_side_the_one_stays_that_fits(side: int) -> None:
    """Wherever it stands; of those that fit about as well, the first."""

    def found(*fit: int) -> tuple[list[int], list[int]]:
        own = [f"a text of its own {place}" for place in range(len(fit))]
        pairs = [("other", "else"), *((one, "they share this") if side else ("they share this", one) for one in own)]
        values = np.array([60, *fit], dtype=np.int8)
        ambiguous, contradictory = hashes(pairs).ambiguous(np.zeros(len(pairs), dtype=bool), values)
        return [place - 1 for place in where(ambiguous)], [place - 1 for place in where(contradictory)]

    assert found(-50, 50) == ([0], [0])
    assert found(50, -50) == ([1], [1])
    assert found(20, 60) == ([0], []), "it fits worse, but it fits"
    assert found(55, 60) == found(60, 55) == ([1], [])
    assert found(-64, -60) == ([1], []), "neither fits"
    assert found(-64, -1, -3, 64) == ([0, 1, 2], [0, 1, 2])
    assert found(-64, 50, 64, -64) == ([0, 2, 3], [0, 3])


def test_templates_differ_by_numbers_alone() -> None:
    pairs = [(f"Seite {number} von A{number}b", "page") for number in range(10)]
    pairs += [("Seite von A", "page")] * 12 + [(f"Blatt {number}", "sheet") for number in range(9)]
    found = hashes(pairs)
    assert where(found.templates(found.duplicate_pairs())) == list(range(10))


def test_hashes_of_parts_are_those_of_the_whole() -> None:
    pairs = [(f"{a} b {a * 7}", "." if a % 3 else "") for a in range(50)]
    whole, parts = hashes(pairs), TextHashes.join([hashes(pairs[:13]), hashes(pairs[13:])])
    for name in ("source", "target", "template", "case"):
        assert getattr(whole, name).tolist() == getattr(parts, name).tolist()
    words = Words.of(source for source, _ in pairs)
    assert words[10:12].hashes.tolist() == Words.of(source for source, _ in pairs[10:12]).hashes.tolist()


def test_a_text_with_a_word_changed_added_or_lost_is_near() -> None:
    draw = random.Random(1)
    texts = [[f"w{draw.randrange(400)}" for _ in range(draw.randint(7, 20))] for _ in range(300)]
    near = NearTexts(Words.of(" ".join(text) for text in texts))
    for change in ("changed", "added", "lost"):
        other = []
        for text in texts:
            place = draw.randrange(len(text))
            new = [] if change == "lost" else ["new"]
            other.append(" ".join([*text[:place], *new, *text[place + (change != "added") :]]))
        assert near.find(Words.of(other)).mean() > 0.97
    assert not near.find(Words.of(" ".join(draw.sample(text, len(text))) for text in texts)).any()
    assert not near.find(Words.of(["", "w1", "w1 w2 w3 w4", "."])).any()
    assert not NearTexts(Words.of([])).find(Words.of(["a b c d e f"])).any()


def test_what_is_shared_is_found_from_both_sides() -> None:
    """Some pairs share a text with others exactly where one of the others shares one with them."""
    draw = random.Random(2)
    known = [(" ".join(f"s{draw.randrange(50)}" for _ in range(8)), f"t{number} ?") for number in range(60)]
    other = [(f"{source} {draw.randrange(9)}", "x") for source, _ in known[::7]] + [("y", "T4!"), ("y", "t5 t5")]
    other += [(" ".join(f"s{draw.randrange(50)}" for _ in range(8)), "z") for _ in range(40)]
    pairs = KnownPairs(known)
    found = where(pairs.found_by(*hash_pairs(other)))
    assert found == sorted({*range(0, 60, 7), 4})
    assert where(pairs.find(*hash_pairs(other))) == [*range(10)]
    for line in range(60):
        alone = KnownPairs([known[line]]).find(*hash_pairs(other)).any()
        assert alone == (line in found)
    assert not KnownPairs([]).find(*hash_pairs(other)).any()
    assert not pairs.found_by(*hash_pairs([])).any()


def test_words_are_without_case_and_punctuation_and_one_a_character_without_spaces() -> None:
    assert words_of("Der „HUND“, 3D-Bilder!") == ["der", "hund", "3", "d", "bilder"]
    assert words_of("我爱 你2") == ["我", "爱", "你", "2"]
    assert words_of("ﬁne Ｇood") == ["fine", "good"]
