"""spaCy's rule tokenisers, by language. `codec` imports this only where `tokenizer: spacy` is configured."""

import pkgutil
import re
import threading
from typing import Any

from transformer_cli.errors import UserError, one_of

# Languages whose tokeniser is another program: what to install for it.
FURTHER_PACKAGES = {
    "ja": "sudachipy sudachidict_core",
    "ko": "natto-py, and mecab-ko with its dictionary mecab-ko-dic",
    "th": "pythainlp",
    "vi": "pyvi",
}
LONGEST_STRETCH = 1000  # characters handed to spaCy at a time: its time grows with their square, and more is no word
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
                for start in range(0, len(word), LONGEST_STRETCH)
                for token in self._tokenizer(word[start : start + LONGEST_STRETCH])
            ]
        # Some languages' own tokenisers change the text or make empty tokens; such a word stays whole.
        return parts if "".join(parts) == word and all(parts) else [word]


def _tokenizer(language: str) -> Any:
    try:
        import spacy
        import spacy.lang
    except ImportError:
        raise UserError("vocabulary.tokenizer: spacy is not installed; run: pip install spacy") from None
    known = sorted(module.name for module in pkgutil.iter_modules(spacy.lang.__path__) if module.ispkg)
    code = re.split("[_-]", language)[0].lower()
    if code not in known:
        raise UserError(
            f"vocabulary.tokenizer: spaCy has no language {language!r}; it knows {one_of(known, limit=1000)} "
            "(xx: any other)"
        )
    try:
        return spacy.blank(code).tokenizer
    except ImportError as error:
        package = FURTHER_PACKAGES.get(code)
        need = f"install {package}" if package else " ".join(str(error).split())[:200]
        raise UserError(
            f"vocabulary.tokenizer: spaCy's tokeniser for {language!r} needs a further package: {need}"
        ) from None
