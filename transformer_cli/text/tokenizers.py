"""Tokenizers that make words: by white space, by characters, or by spaCy's rules; and tokens back to text. No torch."""

import pkgutil
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_cli.config.languages import short_code
from transformer_cli.errors import UserError, one_of
from transformer_cli.text.vocabulary import SPECIALS

JOINER = "\uffed"  # ￭ before a token: no space stood there
SPACE = "\u2581"  # ▁ as a token of its own: a space, between characters
_LIKE_SPECIAL = re.compile(r"\\*(?:" + "|".join(map(re.escape, SPECIALS)) + ")")
_SURROGATE = re.compile("[\ud800-\udfff]")
_LIKE_SPACE = re.compile(rf"\\*{SPACE}")


def escape(word: str, like: re.Pattern[str] = _LIKE_SPECIAL) -> str:
    """Return a word that looks like a special (or like such a word, escaped) with one more backslash before it."""
    return "\\" + word if like.fullmatch(word) else word


def unescape(token: str, like: re.Pattern[str] = _LIKE_SPECIAL) -> str:
    """Return the word that `escape` made the token of; a bare special stays as it is."""
    return token[1:] if token.startswith("\\") and like.fullmatch(token) else token


def without_surrogates(text: str) -> str:
    """Return the text, lone surrogates (which no file holds, but a Python string may) replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def symbol_pattern(symbols: Sequence[str]) -> re.Pattern[str] | None:
    """Return what finds the user's symbols in a text, the longest first; None if there are none."""
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})") if symbols else None


def split_symbols(text: str, pattern: re.Pattern[str] | None) -> list[str]:
    """Return text, symbol, text, symbol, … text: the symbols stand at the odd places, and texts may be empty."""
    return [text] if pattern is None else pattern.split(text)


def _parts(word: str, symbols: re.Pattern[str] | None, split: Callable[[str], Sequence[str]] | None) -> list[str]:
    """Return a word in parts: symbols whole, what stands between them as `split` does it (None: whole too)."""
    parts: list[str] = []
    for place, text in enumerate(split_symbols(without_surrogates(word), symbols)):
        if text:
            parts += [text] if place % 2 or split is None else split(text)
    return parts


class WordTokenizer:
    """Words, or the parts that `split` makes of one; a part with no space before it is prefixed with `JOINER`.

    `split` gives parts whose concatenation is the word. A literal joiner is doubled.
    """

    is_subword = False
    separator: str | None = None  # the token that stands between two words
    byte_tokens: Mapping[str, int] = {}

    def __init__(self, symbols: Sequence[str] = (), split: Callable[[str], Sequence[str]] | None = None) -> None:
        self._symbols = symbol_pattern(symbols)
        self._split = split

    def words(self, text: str) -> list[str]:
        """Return the text cut at white space."""
        return text.split()

    def tokens(self, word: str, begins: bool = True) -> list[str]:
        """Return the tokens of one word; begins false: of the rest of a word."""
        escaped = [self._escape(part) for part in _parts(word, self._symbols, self._split)]
        return [*escaped[:begins], *(JOINER + part for part in escaped[begins:])]

    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]:
        """Return the tokens that symbols become: one after a space, one inside a word."""
        escaped = [self._escape(symbol) for symbol in symbols]
        return escaped + [JOINER + symbol for symbol in escaped]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, words apart by one space."""
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


class CharacterTokenizer:
    """Characters, with `SPACE` between words; a literal U+2581 gets a backslash."""

    is_subword = False
    separator: str | None = SPACE
    byte_tokens: Mapping[str, int] = {}

    def __init__(self, symbols: Sequence[str] = ()) -> None:
        self._symbols = symbol_pattern(symbols)

    def words(self, text: str) -> list[str]:
        """Return the text cut at white space."""
        return text.split()

    def tokens(self, word: str, begins: bool = True) -> list[str]:
        """Return the characters of one word, symbols whole; they are the same whether it begins here."""
        return [escape(part, _LIKE_SPACE) for part in _parts(word, self._symbols, list)]

    def symbol_tokens(self, symbols: Sequence[str]) -> list[str]:
        """Return the tokens that symbols become."""
        return [escape(symbol, _LIKE_SPACE) for symbol in symbols]

    def join(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens."""
        return "".join(" " if token == SPACE else unescape(token, _LIKE_SPACE) for token in tokens)


# Languages whose tokenizer is another program: what to install for it.
FURTHER_PACKAGES = {
    "ja": "sudachipy sudachidict_core",
    "ko": "natto-py, and mecab-ko with its dictionary mecab-ko-dic",
    "th": "pythainlp",
    "vi": "pyvi",
}
# Characters handed to spaCy at a time: its time grows with their square, and longer ones are no words.
LONGEST_PART = 1000
WORDS_A_LIFE = 100_000  # spaCy keeps every string it has seen: after so many it starts afresh, so memory does not grow


class SpacySplitter:
    """Cuts a word (a run without white space) where spaCy's rules for a language do. Picklable, locked for threads.

    `language` is a code such as `de`; of `pt_BR` the first part counts. Raises `UserError` where spaCy is not
    installed, does not know the language, or needs a further package for it.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._tokenizer = _tokenizer(language)
        self._words = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return SpacySplitter, (self.language,)

    def __call__(self, word: str) -> list[str]:
        with self._lock:
            self._words += 1
            if self._words > WORDS_A_LIFE:
                self._tokenizer, self._words = _tokenizer(self.language), 0
            parts = [
                token.text
                for start in range(0, len(word), LONGEST_PART)
                for token in self._tokenizer(word[start : start + LONGEST_PART])
            ]
        # Some languages' own tokenizers change the text or make empty tokens; such a word stays whole.
        return parts if "".join(parts) == word and all(parts) else [word]


def _tokenizer(language: str) -> Any:
    try:
        import spacy
        import spacy.lang
    except ImportError:
        raise UserError("vocabulary.tokenizer: spacy is not installed; run: pip install spacy") from None
    known = sorted(module.name for module in pkgutil.iter_modules(spacy.lang.__path__) if module.ispkg)
    code = re.split("[_-]", language)[0].lower()
    code = code if code in known else "xx" if code in ("mul", "und") else short_code(code)
    if code not in known:
        raise UserError(
            f"vocabulary.tokenizer: spaCy has no language {language!r}; it knows {one_of(known, limit=1000)} "
            "(mul: any other)"
        )
    try:
        return spacy.blank(code).tokenizer
    except ImportError as error:
        package = FURTHER_PACKAGES.get(code)
        need = f"install {package}" if package else " ".join(str(error).split())[:200]
        raise UserError(
            f"vocabulary.tokenizer: spaCy's tokenizer for {language!r} needs a further package: {need}"
        ) from None
