"""Word and character tokens: joined, they are the text again."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_cli.text.tokenizers import (
    JOINER,
    SPACE,
    CharacterTokenizer,
    WordTokenizer,
    escape,
    unescape,
    without_surrogates,
)
from transformer_cli.text.vocabulary import SPECIALS

PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


TOKENISERS: list[Callable[[list[str]], Tokenizer]] = [
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


@pytest.mark.parametrize("make", TOKENISERS)
@pytest.mark.parametrize("symbols", [[], SYMBOLS])
@PATIENT
@given(text=TEXTS)
def test_joined_tokens_are_the_text(make: Callable[[list[str]], Tokenizer], symbols: list[str], text: str) -> None:
    tokenizer = make(symbols)
    tokens = tokenize(tokenizer, text)
    assert tokenizer.join(tokens) == " ".join(without_surrogates(text).split())
    assert not {*tokens} & {*SPECIALS}, "text became a special"
    assert all(token and not any(map(str.isspace, token)) for token in tokens)
    assert not any(map(tokenizer.is_byte, tokens))


@pytest.mark.parametrize("make", TOKENISERS)
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
