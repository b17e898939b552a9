"""A language is a code of ISO 639, with what BCP 47 allows after it; a name is answered with its code."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import DataConfig, TextFiles
from transformer_cli.config.languages import COUNTRIES, NO_CODE, check_languages, code_fault, country_hint, short_code
from transformer_cli.errors import UserError

# Of two and three letters, terminological and bibliographic; with script, region, variant and private use; made-up.
CODES = ["de", "ja", "jpn", "zho", "chi", "ger", "yue", "haw", "mul", "und", "DE", "pt-BR", "zh_Hant", "zh-Hant-TW"]
CODES += ["sr_Latn", "deu_Latn", "es-419", "de-1996", "ca-valencia", "en-x-mine", "qaa", "qtz", "x-elvish", "qaa-x-new"]


@pytest.mark.parametrize("code", CODES)
def test_codes_are_taken(code: str) -> None:
    assert code_fault(code) is None


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("Japanese", "Japanese is ja"),
        ("german", "german is de"),
        ("Swahili", "Swahili is sw"),  # "Swahili (macrolanguage)" in the standard
        ("Greek", "Modern Greek is el"),
        ("Mandarin", "Mandarin Chinese is cmn"),
        ("Brazilian_Portuguese", "Portuguese is pt"),
        ("Simplified Chinese", "Chinese is zh"),
        ("Japanse", "Japanese is ja"),
        ("Old_English", "Old_English is ang"),  # not `old`, which is a code too
        ("Low-German", "Low-German is nds"),
    ],
)
def test_a_name_is_answered_with_its_code(name: str, answer: str) -> None:
    assert code_fault(name) == f"{name!r} is not a language code; {answer}"


@pytest.mark.parametrize("text", ["xx", "qq", "y", "e1", "Deutsch", "de-", "en_US.UTF-8", "deutsch-DE", "a-b", ""])
def test_what_is_no_code_and_no_name_is_answered_with_what_a_code_is(text: str) -> None:
    assert code_fault(text) == f"{text!r} is not a language code; {NO_CODE}"


@pytest.mark.parametrize(("country", "code"), [("jp", "ja"), ("CZ", "cs"), ("cn-Hans", "zh"), ("gr", "el")])
def test_a_country_is_answered_with_its_language(country: str, code: str) -> None:
    fault = code_fault(country)
    assert fault is not None
    assert fault.endswith(f"is a country: did you mean {code}?")
    assert country_hint(country) is None


def test_a_country_that_is_another_languages_code_too_gets_a_hint() -> None:
    assert country_hint("se") == "se is Northern Sami; Swedish is sv"
    assert country_hint("KR") == "KR is Kanuri; Korean is ko"
    assert country_hint("de") is None
    assert all(code_fault(code) is None for code in COUNTRIES.values())


def test_a_withdrawn_code_is_answered_with_todays() -> None:
    assert code_fault("iw") == "'iw' is a code that ISO 639 has withdrawn; it is he now"


@pytest.mark.parametrize("key", ["source_language", "target_language"])
def test_the_key_is_named(key: str) -> None:
    files = TextFiles(source="a", target="b")
    languages = {"source_language": "de", "target_language": "en", key: "Japanese"}
    data = DataConfig(train=files, valid=files, **languages)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"^data.{key}: 'Japanese' is not a language code; Japanese is ja$"):
        check_languages(data)


@pytest.mark.medium
@settings(max_examples=15)
@given(st.text(max_size=200))
def test_any_text_is_a_code_or_gets_a_short_answer(text: str) -> None:
    fault = code_fault(text)
    assert fault is None or len(fault) < 500


@pytest.mark.parametrize(
    ("code", "short"), [("deu", "de"), ("chi", "zh"), ("yue", "yue"), ("de", "de"), ("qaa", "qaa")]
)
def test_three_letters_become_two_where_there_are_two(code: str, short: str) -> None:
    assert short_code(code) == short


def test_reading_a_config_and_helping_load_no_table_of_languages(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(
        "data: {source_language: Elvish, target_language: xx, train: {file: a.tsv}, valid: {file: a.tsv}}"
    )
    code = "import sys; from transformer_cli.cli.app import main; from transformer_cli.config import load_config;"
    code += "main(['--help']); load_config('my.yaml'); assert 'iso639' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
