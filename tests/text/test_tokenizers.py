"""Word and character tokens: joined, they are the text again; spaCy's are the very tokens of `spacy.blank`."""

import copy
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.errors import UserError
from transformer_cli.text import tokenizers
from transformer_cli.text.tokenizers import (
    FURTHER_PACKAGES,
    JOINER,
    SPACE,
    CharacterTokenizer,
    SpacySplitter,
    WordTokenizer,
    escape,
    unescape,
    without_surrogates,
)
from transformer_cli.text.vocabulary import SPECIALS

spacy = pytest.importorskip("spacy", reason="spaCy is not installed")

PATIENT = settings(max_examples=60)
SYMBOLS = ["<2de>", "<X>", "a￭", "\\</s>", "▁"]
NASTY = [
    *SPECIALS,
    *SYMBOLS,
    JOINER,
    JOINER * 2,
    SPACE,
    "\\",
    "\\\\<unk>",
    " ",
    "  ",
    "\u00a0",
    "\u2028",
    "\0",
    "😀",
    ".",
]
TEXTS = st.text(max_size=12) | st.lists(st.sampled_from(NASTY) | st.text(max_size=2), max_size=8).map("".join)

Tokenizer = WordTokenizer | CharacterTokenizer


def halves(word: str) -> list[str]:
    """Stands for a rule tokenizer: parts whose concatenation is the word."""
    middle = (len(word) + 1) // 2
    return [part for part in (word[:middle], word[middle:]) if part]


TOKENIZERS: list[Callable[[list[str]], Tokenizer]] = [
    WordTokenizer,
    lambda symbols: WordTokenizer(symbols, halves),
    lambda symbols: WordTokenizer(symbols, list),
    CharacterTokenizer,
]


def tokenize(tokenizer: Tokenizer, text: str) -> list[str]:
    tokens: list[str] = []
    for word in tokenizer.words(text):
        if tokens and tokenizer.separator:
            tokens.append(tokenizer.separator)
        tokens += tokenizer.tokens(word)
    return tokens


@pytest.mark.parametrize("make", TOKENIZERS)
@pytest.mark.parametrize("symbols", [[], SYMBOLS])
@PATIENT
@given(text=TEXTS)
def test_joined_tokens_are_the_text(make: Callable[[list[str]], Tokenizer], symbols: list[str], text: str) -> None:
    tokenizer = make(symbols)
    tokens = tokenize(tokenizer, text)
    assert tokenizer.join(tokens) == " ".join(without_surrogates(text).split())
    assert not {*tokens} & {*SPECIALS}, "text became a special"
    assert all(token and not any(map(str.isspace, token)) for token in tokens)
    assert not tokenizer.byte_tokens


@pytest.mark.parametrize("make", TOKENIZERS)
@PATIENT
@given(before=st.text("ab. ", max_size=3), after=st.text("ab. ", max_size=3))
def test_a_symbol_is_one_token_wherever_it_stands(
    make: Callable[[list[str]], Tokenizer], before: str, after: str
) -> None:
    tokenizer = make(["<2de>", "<2"])
    tokens = tokenize(tokenizer, f"{before}<2de>{after}")
    of_symbol = tokenizer.symbol_tokens(["<2de>"])
    assert sum(token in of_symbol for token in tokens) == 1
    assert sum("<" in token or ">" in token for token in tokens) == 1


def test_a_joiner_says_that_no_space_stood_there() -> None:
    tokenizer = WordTokenizer([], lambda word: word.replace(".", " .").split())
    assert tokenize(tokenizer, " Hallo  Welt. ") == ["Hallo", "Welt", JOINER + "."]
    assert tokenizer.join(["a", ".", JOINER + "b"]) == "a .b"
    assert tokenizer.join([JOINER + "a", "b"]) == "a b"
    assert tokenize(WordTokenizer(), f"{JOINER}x x{JOINER}") == [JOINER * 2 + "x", "x" + JOINER * 2]


def test_words_like_specials_get_a_backslash() -> None:
    assert tokenize(WordTokenizer(), r"</s> \</s> \x <s>x") == [r"\</s>", r"\\</s>", r"\x", "<s>x"]
    for special in SPECIALS:
        assert unescape(special) == special  # a model's own <unk> is shown as such


def test_characters_have_a_token_for_the_space() -> None:
    assert tokenize(CharacterTokenizer(), "ab  c") == ["a", "b", SPACE, "c"]
    assert tokenize(CharacterTokenizer(), f"{SPACE} \\") == ["\\" + SPACE, SPACE, "\\"]


@PATIENT
@given(word=st.text(max_size=5) | st.sampled_from(NASTY))
def test_escaping_can_be_undone_and_never_gives_a_special(word: str) -> None:
    assert unescape(escape(word)) == word
    assert escape(word) not in SPECIALS


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert tokenize(WordTokenizer(), "a\ud800 \udfff") == ["a\ufffd", "\ufffd"]
    assert tokenize(CharacterTokenizer(), "\udc80") == ["\ufffd"]
    assert without_surrogates("😀ä") == "😀ä"


# --- spaCy -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def english() -> SpacySplitter:
    return SpacySplitter("en")


SENTENCES = {
    "de": ["Die Bürger-Initiative (z.B. im 19. Jh.) hat's gesagt: „Na ja …“ :-)", "Am 3.4. um 5,50€/kg, usw."],
    "en": ["Mr. O'Neill didn't pay $5.50/kg, e.g. for well-known C++... :-(", "See https://x.org/a?b=c#d (i.e., it)."],
    "zh": ["我爱北京天安门。 Peking"],
}


@pytest.mark.parametrize("language", SENTENCES)
def test_words_are_cut_as_spacy_cuts_the_whole_text(language: str) -> None:
    split = SpacySplitter(language)
    theirs = spacy.blank(language)
    for text in SENTENCES[language]:
        expected = [token.text for token in theirs(text) if not token.text.isspace()]
        assert [part for word in text.split() for part in split(word)] == expected


def test_unknown_languages_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"no language 'qq'; it knows af, .*\bde, .*\bzh .*mul: any other") as caught:
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
    words = " ".join(SENTENCES["en"]).split()
    expected = [english(word) for word in words]
    blank, made = spacy.blank, []

    def counted(code: str) -> Any:
        made.append(code)
        return blank(code)

    monkeypatch.setattr(spacy, "blank", counted)
    copied = copy.copy(english)  # as processes are sent it
    assert made == ["en"]
    monkeypatch.setattr(tokenizers, "WORDS_A_LIFE", len(words) - 3)
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(copied, words)] == expected
    assert made == ["en", "en"]


@pytest.mark.parametrize("tokens", [["Hà_Nội"], ["Hà", ""], []])
def test_a_word_that_a_tokenizer_changes_stays_whole(monkeypatch: pytest.MonkeyPatch, tokens: list[str]) -> None:
    changing = SimpleNamespace(tokenizer=lambda text: [SimpleNamespace(text=token) for token in tokens])
    monkeypatch.setattr(spacy, "blank", lambda code: changing)
    assert SpacySplitter("vi")("Hà") == ["Hà"]


def test_other_tokenizers_need_no_spacy() -> None:
    program = (
        "import sys; sys.modules['spacy'] = None; sys.modules['torch'] = None\n"
        "import transformer_cli.text.build\n"
        "assert not [name for name in sys.modules if name.startswith(('spacy.', 'torch.', 'datasets'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
