"""Noise does what its probabilities say to the source's words, and leaves alone what is none of them."""

import json
import pickle
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.conftest import configure
from transformer_cli.config import Config, Noise
from transformer_cli.data.noise import (
    AS_WRITTEN,
    CAPITALS,
    FINAL,
    TITLE_CASE,
    SourceNoise,
    noise_of,
    noise_rng,
    with_noise,
)

KEPT = [
    "<2de>",
    "https://example.org/ein/langer/weg?frage=ja",
    "www.beispiel.de/seite",
    "vorname.nachname@beispiel.de",
    "{vorname}",
    "{{ vorname }}",
    "${heimat}",
    "%(vorname)s",
    "%s",
    '<span class="wichtig">',
    "</span>",
    "&nbsp;",
]


def noise(*symbols: str, **probabilities: float) -> SourceNoise:
    return SourceNoise(Noise(**probabilities), symbols)


def disturb(text: str, seed: int = 0, *symbols: str, **probabilities: float) -> str:
    return noise(*symbols, **probabilities).disturb(text, random.Random(seed))


def edits(one: str, other: str) -> int:
    """How many letters are swapped with their neighbour, left out, put in or replaced (optimal string alignment)."""
    rows = [[max(i, j) * (not i or not j) for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i, a in enumerate(one, start=1):
        for j, b in enumerate(other, start=1):
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


# --- case ---------------------------------------------------------------------------------------------------------


def test_capitals_and_title_case() -> None:
    text = "Ein großer «hund» (klein, aber z.B. schnell) läuft den T-shirts nach."
    assert noise().in_case(text, AS_WRITTEN) == text
    assert noise().in_case(text, CAPITALS) == text.upper()
    assert "GROSSER" in noise().in_case(text, CAPITALS)
    titled = "Ein Großer «Hund» (Klein, Aber Z.B. Schnell) Läuft Den T-shirts Nach."
    assert noise().in_case(text, TITLE_CASE) == titled
    assert noise().in_case("два слова, ω δύο", TITLE_CASE) == "Два Слова, Ω Δύο"
    assert noise().in_case("NASA-projekt USA iPhone", TITLE_CASE) == "NASA-projekt USA IPhone"


@pytest.mark.parametrize("kept", KEPT)
def test_what_is_no_word_of_the_language_stays(kept: str) -> None:
    text = f"{kept} hunde rennen {kept} durch wiesen {kept} ."
    disturber = noise("<2de>", typos=1, no_final_punctuation=1)
    assert noise("<2de>").in_case(text, CAPITALS) == f"{kept} HUNDE RENNEN {kept} DURCH WIESEN {kept} ."
    assert noise("<2de>").in_case(text, TITLE_CASE) == f"{kept} Hunde Rennen {kept} Durch Wiesen {kept} ."
    for seed in range(20):
        disturbed = disturber.disturb(text, random.Random(seed))
        assert disturbed.startswith(f"{kept} h")
        assert disturbed.endswith(f" {kept}")
        assert disturbed.count(kept) == 3
        assert not {"hunde", "rennen", "durch", "wiesen"} & set(disturbed.split())


@given(st.text(), st.integers(0, 5), st.integers(0, 2))
def test_any_text_is_taken(text: str, seed: int, case: int) -> None:
    changed = noise().in_case(text, case)
    assert disturb(changed, seed) == changed  # nothing is asked for
    assert len(changed.split()) == len(text.split())
    disturbed = disturb(changed, seed, typos=1, no_final_punctuation=1)
    assert any(map(str.isalnum, disturbed)) == any(map(str.isalnum, changed))


def test_a_case_is_drawn_by_seed_epoch_and_pair_alone() -> None:
    some, pairs = noise(capitals=0.2, title_case=0.1), np.arange(20_000)
    cases = some.cases(7, 3, pairs)
    shares = np.bincount(cases, minlength=3) / len(cases)
    assert shares.tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    chosen = np.array([19_000, 4, 11, 4])
    assert some.cases(7, 3, chosen).tolist() == cases[chosen].tolist()
    for other in (some.cases(8, 3, pairs), some.cases(7, 4, pairs)):
        both = np.mean((other == CAPITALS) & (cases == CAPITALS))
        assert both == pytest.approx(0.2 * 0.2, abs=0.01), "drawn anew"
    assert set(noise(capitals=1).cases(1, 1, pairs).tolist()) == {CAPITALS}
    assert set(noise(title_case=1).cases(1, 1, pairs).tolist()) == {TITLE_CASE}
    assert set(noise(typos=1).cases(1, 1, pairs).tolist()) == {AS_WRITTEN}
    neighbours = cases[1:][cases[:-1] == CAPITALS]
    assert np.mean(neighbours == CAPITALS) == pytest.approx(0.2, abs=0.02), "whatever its neighbours got"


# --- typos --------------------------------------------------------------------------------------------------------

WORDS = "Zwei Hunde jagen einen roten Ball, der über die nasse Wiese am Ufer rollt. Foto Nr. 4711a oder abc123def"


def test_each_word_of_four_letters_has_one_typo_behind_its_first_letter() -> None:
    kinds = set()
    for seed in range(200):
        changed = disturb(WORDS, seed, typos=1)
        for before, after in zip(re.findall(r"\w+", WORDS), re.findall(r"\w+", changed), strict=True):
            if len(before) < 4 or not before.isalpha():
                assert after == before
                continue
            assert edits(before, after) == 1, (before, after)
            assert after[0] == before[0]
            assert set(after) <= set(WORDS)
            if len(after) == len(before):
                kinds.add("swapped" if sorted(after) == sorted(before) else "replaced")
            else:
                kinds.add("doubled" if len(after) > len(before) else "left out")
            if len(after) > len(before):
                assert re.sub(r"(.)\1+", r"\1", after) == re.sub(r"(.)\1+", r"\1", before)
    assert kinds == {"swapped", "replaced", "doubled", "left out"}


@pytest.mark.parametrize("text", ["aaaa", "AAAA bbbb", "ÄÄÄÄ", "SSSS."])
def test_a_word_of_one_letter_repeated_has_its_typo_too(text: str) -> None:
    for seed in range(40):
        changed = disturb(text, seed, typos=1)
        for before, after in zip(re.findall(r"\w+", text), re.findall(r"\w+", changed), strict=True):
            assert edits(before, after) == 1
            assert after.isupper() == before.isupper()


def test_typos_come_as_often_as_asked() -> None:
    words = [f"w{'abcdefghij'[number % 10]}rt" * 2 for number in range(4000)]
    changed = disturb(" ".join(words), 3, typos=0.1).split()
    assert np.mean([a != b for a, b in zip(words, changed, strict=True)]) == pytest.approx(0.1, abs=0.02)


# --- punctuation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Ein Hund.", "Ein Hund"),
        ("Ein Hund . ", "Ein Hund"),
        ("Wer da?!", "Wer da"),
        ("Und dann…", "Und dann"),
        ("这是一只狗。", "这是一只狗"),
        ("ما هذا؟", "ما هذا"),
        ("यह क्या है।", "यह क्या है"),
        ("Ein Hund", "Ein Hund"),
        ("„Halt!“", "„Halt!“"),
        ("...", "..."),
        (" ", " "),
        ("", ""),
        ("<2de> Ein Hund.", "<2de> Ein Hund"),
        ("<2de> ...", "<2de> ..."),
    ],
)
def test_final_punctuation(text: str, left: str) -> None:
    assert disturb(text, 0, "<2de>", no_final_punctuation=1) == left
    assert disturb(text, 0, "<2de>", no_final_punctuation=0) == text
    assert len(set(FINAL)) == len(FINAL)


def test_final_punctuation_is_dropped_as_often_as_asked() -> None:
    kept = [disturb("Ein Hund.", seed, no_final_punctuation=0.3).endswith(".") for seed in range(3000)]
    assert np.mean(kept) == pytest.approx(0.7, abs=0.03)


# --- a whole text -------------------------------------------------------------------------------------------------


def noisy_config(**training: Any) -> Config:
    tree = configure("whitespace", symbols=["<bt>"]).model_dump(mode="json")
    tree["training"] |= training
    return Config.model_validate_json(json.dumps(tree))


def test_the_text_of_a_vocabulary_is_what_the_first_epoch_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"satz nummer {number} ist lang genug.", f"sentence number {number}.") for number in range(2000)]
    some = noise_of(noisy_config(noise={"capitals": 0.25, "typos": 0.1, "no_final_punctuation": 0.5}))
    assert some == noise("<bt>", capitals=0.25, typos=0.1, no_final_punctuation=0.5)
    assert pickle.loads(pickle.dumps(some)) == some  # noqa: S301  (workers get it so)
    changed = [*with_noise(pairs, some, seed=3)]
    assert [target for _, target in changed] == [target for _, target in pairs]
    assert np.mean([source.isupper() for source, _ in changed]) == pytest.approx(0.25, abs=0.04)
    assert np.mean([source.endswith(".") for source, _ in changed]) == pytest.approx(0.5, abs=0.04)
    cases = some.cases(3, 0, np.arange(2000)).tolist()
    assert changed[77][0] == some.disturb(some.in_case(pairs[77][0], cases[77]), noise_rng(3, 0, 77))
    monkeypatch.setattr("transformer_cli.data.noise.CHUNK", 7)
    assert [*with_noise(pairs, some, seed=3)] == changed
    assert [*with_noise(pairs, some, seed=4)] != changed
    assert noise_of(noisy_config()) is None
