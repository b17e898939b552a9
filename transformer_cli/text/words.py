"""Word and character tokens that can be joined to the very text again: whitespace, spaCy and character tokenisers.

`codec` chooses one by the config. A tokeniser sees one word at a time: a run of characters that are no white space.
"""

import re
from collections.abc import Callable, Sequence

from transformer_cli.text.vocabulary import SPECIALS

JOINER = "\uffed"  # ￭ before a token: no space stood there
SPACE = "\u2581"  # ▁ as a token of its own: a space, between characters
_LIKE_SPECIAL = re.compile(r"\\*(?:" + "|".join(map(re.escape, SPECIALS)) + ")")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LIKE_SPACE = re.compile(rf"\\*{SPACE}")


def escape(word: str, like: re.Pattern[str] = _LIKE_SPECIAL) -> str:
    """A word that looks like a special (or like such a word, escaped) with one more backslash before it."""
    return "\\" + word if like.fullmatch(word) else word


def unescape(token: str, like: re.Pattern[str] = _LIKE_SPECIAL) -> str:
    """The word that `escape` made the token of; a bare special stays as it is."""
    return token[1:] if token.startswith("\\") and like.fullmatch(token) else token


def without_surrogates(text: str) -> str:
    """The text, lone surrogates (which no file holds, but a Python string may) replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def symbol_pattern(symbols: Sequence[str]) -> re.Pattern[str] | None:
    """What finds the user's symbols in a text, the longest first; None if there are none."""
    if not symbols:
        return None
    return re.compile("(" + "|".join(map(re.escape, sorted(symbols, key=len, reverse=True))) + ")")


def split_symbols(text: str, pattern: re.Pattern[str] | None) -> list[str]:
    """Text, symbol, text, symbol, … text: the symbols stand at the odd places, and texts may be empty."""
    return [text] if pattern is None else pattern.split(text)


class WordTokeniser:
    """Words, or the parts that `split` makes of one; a part with no space before it is prefixed with `JOINER`.

    `split` gives parts whose concatenation is the word. A literal joiner is doubled.
    """

    is_subword = False
    separator: str | None = None  # the token that stands between two words

    def __init__(self, symbols: Sequence[str] = (), split: Callable[[str], Sequence[str]] | None = None) -> None:
        self._symbols = symbol_pattern(symbols)
        self._split = split

    def words(self, text: str) -> list[str]:
        """The text cut at white space."""
        return text.split()

    def tokens(self, word: str) -> list[str]:
        """The tokens of one word."""
        parts: list[str] = []
        for place, stretch in enumerate(split_symbols(without_surrogates(word), self._symbols)):
            if place % 2 or self._split is None:
                parts += [stretch] if stretch else []
            else:
                parts += self._split(stretch) if stretch else []
        escaped = [self._escape(part) for part in parts]
        return [*escaped[:1], *(JOINER + part for part in escaped[1:])]

    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]:
        """The tokens that symbols become: one after a space, one inside a word."""
        escaped = [self._escape(symbol) for symbol in symbols]
        return escaped + [JOINER + symbol for symbol in escaped]

    def is_byte(self, token: str) -> bool:
        """No token is a byte; subwords have such."""
        return False

    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens, words apart by one space."""
        parts: list[str] = []
        for token in tokens:
            joiners = len(token) - len(token.lstrip(JOINER))
            if joiners % 2:
                token = token[1:]
            elif parts:
                parts.append(" ")
            parts.append(unescape(token.replace(JOINER * 2, JOINER)))
        return "".join(parts)

    @staticmethod
    def _escape(part: str) -> str:
        return escape(part).replace(JOINER, JOINER * 2)


class CharacterTokeniser:
    """Characters, with `SPACE` between words; a literal U+2581 gets a backslash."""

    is_subword = False
    separator: str | None = SPACE

    def __init__(self, symbols: Sequence[str] = ()) -> None:
        self._symbols = symbol_pattern(symbols)

    def words(self, text: str) -> list[str]:
        """The text cut at white space."""
        return text.split()

    def tokens(self, word: str) -> list[str]:
        """The characters of one word, symbols whole."""
        parts: list[str] = []
        for place, stretch in enumerate(split_symbols(without_surrogates(word), self._symbols)):
            parts += [stretch] if place % 2 else list(stretch)
        return [escape(part, _LIKE_SPACE) for part in parts]

    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]:
        """The tokens that symbols become."""
        return [escape(symbol, _LIKE_SPACE) for symbol in symbols]

    def is_byte(self, token: str) -> bool:
        """No token is a byte; subwords have such."""
        return False

    def join(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""
        return "".join(" " if token == SPACE else unescape(token, _LIKE_SPACE) for token in tokens)
