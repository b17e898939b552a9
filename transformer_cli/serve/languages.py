"""Language codes as requests write them, languages' names, and which language a text is in. No torch."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from transformer_cli.config.languages import language_name

if TYPE_CHECKING:
    from transformer_cli.data.quality.languages import LanguageIdentifier

_SCRIPTS = {  # first words of the Unicode names of a language's letters, where they are not Latin
    **dict.fromkeys(re.findall("[a-z]+", "be bg kk ky mk mn ru sr tg tt uk"), ("CYRILLIC",)),
    **dict.fromkeys(re.findall("[a-z]+", "ar fa ps ur"), ("ARABIC",)),
    **dict.fromkeys(re.findall("[a-z]+", "hi mr ne"), ("DEVANAGARI",)),
    **dict.fromkeys(re.findall("[a-z]+", "he yi"), ("HEBREW",)),
    **{"bn": ("BENGALI",), "el": ("GREEK",), "gu": ("GUJARATI",), "hy": ("ARMENIAN",), "ka": ("GEORGIAN",)},
    **{"ja": ("HIRAGANA", "KATAKANA", "CJK", "KATAKANA-HIRAGANA"), "km": ("KHMER",), "kn": ("KANNADA",)},
    **{"ko": ("HANGUL",), "lo": ("LAO",), "ml": ("MALAYALAM",), "my": ("MYANMAR",), "pa": ("GURMUKHI",)},
    **{"si": ("SINHALA",), "ta": ("TAMIL",), "te": ("TELUGU",), "th": ("THAI",), "ti": ("ETHIOPIC",), "zh": ("CJK",)},
}  # fmt: skip
LOOKED_AT = 2000  # characters of a text that say enough


class Detected(NamedTuple):
    """How sure it is, from 0 to 100, that a text is in a language."""

    confidence: float
    language: str


def plain(code: str) -> str:
    """Return a code as codes are compared: without case, `_` as `-`."""
    return code.strip().lower().replace("_", "-")


def name_of(code: str) -> str:
    """Return a language's English name, with the rest of its code in brackets; the code where it has none."""
    first, _, rest = code.replace("_", "-").partition("-")
    name = language_name(first.lower())
    if name == first.lower():
        return code
    return f"{name} ({rest})" if rest else name


def match(asked: str, known: Iterable[str]) -> str | None:
    """Return which of some codes a request means, as they are written here; None: none of them.

    `en-US` means `en` where there is no nearer one, and `en` the only one of `en-US` and its like.
    """
    wanted, by_code = plain(asked), {plain(one): one for one in known}
    if wanted in by_code:
        return by_code[wanted]
    base = wanted.partition("-")[0]
    if base in by_code:
        return by_code[base]
    near = [one for code, one in by_code.items() if wanted == base == code.partition("-")[0]]
    return near[0] if len(near) == 1 else None


def detect(text: str, known: Sequence[str], identifiers: Iterable["LanguageIdentifier"]) -> list[Detected]:
    """Return which of some languages a text is in, the likeliest first, all with 0 where there is nothing to judge.

    By its script, and by the n-grams that models were trained on: how much likelier they are in one of a model's
    languages than in the other, and how usual in that language (which compares languages of different models).
    """
    text = text[:LOOKED_AT]
    shares = _script_shares(text, known)
    if not any(shares.values()):
        return [Detected(0.0, language) for language in known]
    evidence = {language: math.log(max(share, 1e-6)) for language, share in shares.items()}
    judged: dict[str, list[float]] = {}
    for identifier in identifiers:
        for side, language in enumerate(identifier.languages):
            if language in evidence:
                scores, (median, deviation) = identifier.score([text], side), identifier.fit[side]
                odds = float(scores.odds[0]) * len(text.strip())
                usual = min(0.0, (float(scores.fit[0]) - median) / deviation)
                judged.setdefault(language, []).append(-math.log1p(math.exp(min(-odds, 50.0))) + max(usual, -50.0) / 2)
    for language, fits in judged.items():
        evidence[language] += sum(fits) / len(fits)
    most = max(evidence.values())
    weights = {language: math.exp(value - most) for language, value in evidence.items()}
    total = sum(weights.values())
    found = [Detected(round(100 * weight / total, 1), language) for language, weight in weights.items()]
    return sorted(found, key=lambda one: -one.confidence)


def _script_shares(text: str, known: Sequence[str]) -> dict[str, float]:
    """Return for each language which share of a text's letters are of its script."""
    scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha())
    letters = max(1, scripts.total())
    return {
        language: sum(scripts[one] for one in _SCRIPTS.get(plain(language).partition("-")[0], ("LATIN",))) / letters
        for language in known
    }
