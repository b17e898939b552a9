"""spaCy's rule tokenisers, by language. `codec` imports this only where `tokenizer: spacy` is configured."""

import importlib.metadata
import pkgutil
import re
from typing import Any

from transformer_cli.errors import UserError, one_of

# Languages whose tokeniser is another program: what to install for it.
FURTHER_PACKAGES = {
    "ja": "sudachipy sudachidict_core",
    "ko": "natto-py (and mecab-ko with its dictionary)",
    "th": "pythainlp",
    "vi": "pyvi",
}
LONGEST_WORD = 100_000  # characters handed to spaCy at a time: its rules are slow on longer ones


class SpacySplitter:
    """Cuts a word (a run without white space) where spaCy's rules for a language do. Picklable.

    `language` is a code such as `de`; of `pt_BR` the first part counts. Raises `UserError` where spaCy is not
    installed, does not know the language, or needs a further package for it.
    """

    def __init__(self, language: str) -> None:
        self.language = language
        self._nlp = _blank(language)

    def __reduce__(self) -> tuple[object, ...]:
        return SpacySplitter, (self.language,)

    def __call__(self, word: str) -> list[str]:
        # Within a memory zone spaCy forgets the strings it met: a server's memory does not grow.
        with self._nlp.memory_zone():
            parts = [
                token.text
                for start in range(0, len(word), LONGEST_WORD)
                for token in self._nlp.tokenizer(word[start : start + LONGEST_WORD])
            ]
        # Some languages' own tokenisers change the text or make empty tokens; such a word stays whole.
        return parts if "".join(parts) == word and all(parts) else [word]


def spacy_version() -> str:
    """The installed spaCy's version: another one may cut differently."""
    return importlib.metadata.version("spacy")


def _blank(language: str) -> Any:
    try:
        import spacy
        import spacy.lang
    except ImportError:
        raise UserError("vocabulary.tokenizer: spacy is not installed; run pip install spacy") from None
    known = sorted(module.name for module in pkgutil.iter_modules(spacy.lang.__path__) if module.ispkg)
    code = re.split("[_-]", language)[0].lower()
    if code not in known:
        raise UserError(
            f"vocabulary.tokenizer: spaCy has no language {language!r}; it knows {one_of(known, limit=1000)} "
            "(xx: any language)"
        )
    try:
        return spacy.blank(code)
    except ImportError as error:
        package = FURTHER_PACKAGES.get(code)
        need = f"pip install {package}" if package else " ".join(str(error).split())[:200]
        raise UserError(
            f"vocabulary.tokenizer: spaCy's tokeniser for {language!r} needs a further package: {need}"
        ) from None
