"""Codes as clients write them find the model's; texts are told apart by script, and by what the models learned."""

import random

import pytest

from tests.serve.conftest import ENGLISH, GERMAN, identifier
from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.serve.languages import detect, match, name_of


@pytest.mark.parametrize(
    ("asked", "known", "found"),
    [
        ("de", ["de", "en"], "de"),
        (" DE ", ["de"], "de"),
        ("pt_br", ["pt", "pt-BR"], "pt-BR"),
        ("en-US", ["de", "en"], "en"),
        ("en", ["en-GB"], "en-GB"),
        ("en", ["en-GB", "en-US"], None),
        ("zh-Hant", ["zh-Hans"], None),
        ("", ["de"], None),
        ("d", ["de"], None),
        ("deu", ["de"], None),
    ],
)
def test_codes(asked: str, known: list[str], found: str | None) -> None:
    assert match(asked, known) == found


def test_names() -> None:
    assert [name_of(code) for code in ("de", "pt-BR", "zh_Hant", "qaa", "qaa-x")] == [
        "German",
        "Portuguese (BR)",
        "Chinese (Hant)",
        "qaa",
        "qaa-x",
    ]


@pytest.mark.parametrize(
    ("text", "language"),
    [("Привет", "ru"), ("你好", "zh"), ("こんにちは世界", "ja"), ("hello", "en"), ("Γειά", "el"), ("नमस्ते", "hi")],
)
def test_scripts_tell_languages_apart(text: str, language: str) -> None:
    found = detect(text, ["en", "ru", "zh", "ja", "el", "hi"], [])
    assert found[0].language == language
    assert found[0].confidence > 45
    assert sum(one.confidence for one in found) == pytest.approx(100, abs=0.5)


def test_models_tell_their_languages_apart() -> None:
    known = ["de", "en"]
    assert detect(GERMAN, known, [identifier()])[0] == (100.0, "de")
    assert detect(ENGLISH, known, [identifier()])[0] == (100.0, "en")
    assert detect("12 + 3", known, [identifier()]) == [(0.0, "de"), (0.0, "en")]


def test_the_languages_of_several_models_are_compared() -> None:
    draw = random.Random(2)
    french = "le chien et les chats courent avec cette chose"
    sides = [[" ".join(draw.choices(text.split(), k=6)) for _ in range(300)] for text in (french, ENGLISH)]
    other = LanguageIdentifier.learn(sides[0], sides[1], languages=("fr", "en"))
    assert other is not None
    for text, language in ((GERMAN, "de"), (ENGLISH, "en"), (french, "fr")):
        found = detect(text, ["de", "en", "fr"], [identifier(), other])
        assert (found[0].language, found[0].confidence > 90) == (language, True)
        assert found[0] == detect(text, ["fr", "en", "de"], [other, identifier()])[0]
