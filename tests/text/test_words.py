"""Word and character tokens: joined, they are the text again."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_cli.text.vocabulary import SPECIALS
from transformer_cli.text.words import (
    JOINER,
    SPACE,
    CharacterTokeniser,
    WordTokeniser,
    escape,
    unescape,
    without_surrogates,
)

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

Tokeniser = WordTokeniser | CharacterTokeniser


def halves(word: str) -> list[str]:
    """Stands for a rule tokeniser: parts whose concatenation is the word."""
    middle = (len(word) + 1) // 2
    return [part for part in (word[:middle], word[middle:]) if part]


TOKENISERS: list[Callable[[list[str]], Tokeniser]] = [
    WordTokeniser,
    lambda symbols: WordTokeniser(symbols, halves),
    lambda symbols: WordTokeniser(symbols, list),
    CharacterTokeniser,
]


def tokenise(tokeniser: Tokeniser, text: str) -> list[str]:
    tokens: list[str] = []
    for word in tokeniser.words(text):
        if tokens and tokeniser.separator:
            tokens.append(tokeniser.separator)
        tokens += tokeniser.tokens(word)
    return tokens


@pytest.mark.parametrize("make", TOKENISERS)
@pytest.mark.parametrize("symbols", [[], SYMBOLS])
@PATIENT
@given(text=TEXTS)
def test_joined_tokens_are_the_text(make: Callable[[list[str]], Tokeniser], symbols: list[str], text: str) -> None:
    tokeniser = make(symbols)
    tokens = tokenise(tokeniser, text)
    assert tokeniser.join(tokens) == " ".join(without_surrogates(text).split())
    assert not {*tokens} & {*SPECIALS}, "text became a special"
    assert all(token and not any(map(str.isspace, token)) for token in tokens)
    assert not any(map(tokeniser.is_byte, tokens))


@pytest.mark.parametrize("make", TOKENISERS)
@PATIENT
@given(before=st.text("ab. ", max_size=3), after=st.text("ab. ", max_size=3))
def test_a_symbol_is_one_token_wherever_it_stands(
    make: Callable[[list[str]], Tokeniser], before: str, after: str
) -> None:
    tokeniser = make(["<2de>", "<2"])
    tokens = tokenise(tokeniser, f"{before}<2de>{after}")
    of_symbol = tokeniser.symbol_tokens(["<2de>"])
    assert sum(token in of_symbol for token in tokens) == 1
    assert sum("<" in token or ">" in token for token in tokens) == 1


def test_a_joiner_says_that_no_space_stood_there() -> None:
    tokeniser = WordTokeniser([], lambda word: word.replace(".", " .").split())
    assert tokenise(tokeniser, " Hallo  Welt. ") == ["Hallo", "Welt", JOINER + "."]
    assert tokeniser.join(["a", ".", JOINER + "b"]) == "a .b"
    assert tokeniser.join([JOINER + "a", "b"]) == "a b"
    assert tokenise(WordTokeniser(), f"{JOINER}x x{JOINER}") == [JOINER * 2 + "x", "x" + JOINER * 2]


def test_words_like_specials_get_a_backslash() -> None:
    assert tokenise(WordTokeniser(), r"</s> \</s> \x <s>x") == [r"\</s>", r"\\</s>", r"\x", "<s>x"]
    for special in SPECIALS:
        assert unescape(special) == special  # a model's own <unk> is shown as such


def test_characters_have_a_token_for_the_space() -> None:
    assert tokenise(CharacterTokeniser(), "ab  c") == ["a", "b", SPACE, "c"]
    assert tokenise(CharacterTokeniser(), f"{SPACE} \\") == ["\\" + SPACE, SPACE, "\\"]


@PATIENT
@given(word=st.text(max_size=5) | st.sampled_from(NASTY))
def test_escaping_can_be_undone_and_never_gives_a_special(word: str) -> None:
    assert unescape(escape(word)) == word
    assert escape(word) not in SPECIALS


def test_lone_surrogates_become_the_replacement_character() -> None:
    assert tokenise(WordTokeniser(), "a\ud800 \udfff") == ["a\ufffd", "\ufffd"]
    assert tokenise(CharacterTokeniser(), "\udc80") == ["\ufffd"]
    assert without_surrogates("😀ä") == "😀ä"
