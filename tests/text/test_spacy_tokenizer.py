"""spaCy's tokenizers: the very tokens of `spacy.blank`, and what is said where there are none."""

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from transformer_cli.errors import UserError
from transformer_cli.text import tokenizers as spacy_tokenizer
from transformer_cli.text.tokenizers import FURTHER_PACKAGES, SpacySplitter

spacy = pytest.importorskip("spacy", reason="spaCy is not installed")


@pytest.fixture(scope="module")
def english() -> SpacySplitter:
    return SpacySplitter("en")


TEXTS = {
    "de": ["Die Bürger-Initiative (z.B. im 19. Jh.) hat's gesagt: „Na ja …“ :-)", "Am 3.4. um 5,50€/kg, usw."],
    "en": ["Mr. O'Neill didn't pay $5.50/kg, e.g. for well-known C++... :-(", "See https://x.org/a?b=c#d (i.e., it)."],
    "zh": ["我爱北京天安门。 Peking"],
}


@pytest.mark.parametrize("language", TEXTS)
def test_words_are_cut_as_spacy_cuts_the_whole_text(language: str) -> None:
    split = SpacySplitter(language)
    theirs = spacy.blank(language)
    for text in TEXTS[language]:
        expected = [token.text for token in theirs(text) if not token.text.isspace()]
        assert [part for word in text.split() for part in split(word)] == expected


def test_unknown_languages_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no language 'qq'; it knows af, .*\bde, .*\bzh .*xx") as caught:
        SpacySplitter("qq")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("language", FURTHER_PACKAGES)
def test_a_further_package_is_named(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = {"ja": "sudachipy", "ko": "natto", "th": "pythainlp", "vi": "pyvi"}[language]
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(UserError, match=f"'{language}' needs a further package: install {FURTHER_PACKAGES[language]}"):
        SpacySplitter(language)


def test_other_missing_packages_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def blank(code: str) -> None:
        raise ImportError("this one\nneeds foo")

    monkeypatch.setattr(spacy, "blank", blank)
    with pytest.raises(UserError, match="needs a further package: this one needs foo"):
        SpacySplitter("de")


def test_a_region_may_follow_the_language() -> None:
    text = "n.º 5, disse-lhe"
    assert SpacySplitter("pt_BR")(text) == SpacySplitter("PT")(text)


def test_spacy_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"spacy is not installed; run: pip install spacy"):
        SpacySplitter("de")


def test_long_words_end(english: SpacySplitter) -> None:
    for word in ("a" * 20_000, "!" * 5000, "http://" * 3000, "(" * 1500 + ")" * 1500):
        assert "".join(english(word)) == word


def test_starting_afresh_copies_and_threads_change_nothing(
    english: SpacySplitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = " ".join(TEXTS["en"]).split()
    expected = [english(word) for word in words]
    copied = copy.copy(english)  # as processes are sent it
    assert copied._tokenizer is not english._tokenizer
    monkeypatch.setattr(spacy_tokenizer, "WORDS_A_LIFE", len(words) - 3)
    first = copied._tokenizer
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(copied, words)] == expected
    assert copied._tokenizer is not first


@pytest.mark.parametrize("tokens", [["Hà_Nội"], ["Hà", ""], []])
def test_a_word_that_a_tokenizer_changes_stays_whole(monkeypatch: pytest.MonkeyPatch, tokens: list[str]) -> None:
    class Token:
        def __init__(self, text: str) -> None:
            self.text = text

    monkeypatch.setattr(spacy_tokenizer, "_tokenizer", lambda language: lambda text: [Token(text) for text in tokens])
    assert SpacySplitter("vi")("Hà") == ["Hà"]


def test_other_tokenizers_need_no_spacy() -> None:
    program = (
        "import sys; sys.modules['spacy'] = None; sys.modules['torch'] = None\n"
        "import transformer_cli.text.build\n"
        "assert not [name for name in sys.modules if name.startswith(('spacy.', 'torch.', 'datasets'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
