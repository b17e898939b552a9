"""Language codes as requests write them, languages' names, and which language a text is in. No torch."""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformer_cli.data.quality.languages import LanguageIdentifier

_NAMES = """af Afrikaans; ar Arabic; az Azerbaijani; be Belarusian; bg Bulgarian; bn Bengali; bs Bosnian; ca Catalan;
cs Czech; cy Welsh; da Danish; de German; el Greek; en English; eo Esperanto; es Spanish; et Estonian; eu Basque;
fa Persian; fi Finnish; fr French; ga Irish; gl Galician; gu Gujarati; he Hebrew; hi Hindi; hr Croatian; hu Hungarian;
hy Armenian; id Indonesian; is Icelandic; it Italian; ja Japanese; ka Georgian; kk Kazakh; km Khmer; kn Kannada;
ko Korean; ky Kyrgyz; lb Luxembourgish; lo Lao; lt Lithuanian; lv Latvian; mk Macedonian; ml Malayalam; mn Mongolian;
mr Marathi; ms Malay; mt Maltese; my Burmese; nb Norwegian Bokmål; ne Nepali; nl Dutch; nn Norwegian Nynorsk;
no Norwegian; pa Punjabi; pl Polish; ps Pashto; pt Portuguese; ro Romanian; ru Russian; rw Kinyarwanda; si Sinhala;
sk Slovak; sl Slovenian; so Somali; sq Albanian; sr Serbian; sv Swedish; sw Swahili; ta Tamil; te Telugu; tg Tajik;
th Thai; ti Tigrinya; tl Tagalog; tr Turkish; tt Tatar; uk Ukrainian; ur Urdu; uz Uzbek; vi Vietnamese; xh Xhosa;
yi Yiddish; yo Yoruba; zh Chinese; zu Zulu"""
NAMES = dict(one.split(maxsplit=1) for one in _NAMES.replace("\n", " ").split("; "))
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
    """A language that a text may be in, and how sure that is, from 0 to 100."""

    language: str
    confidence: float


def plain(code: str) -> str:
    """Return a code as codes are compared: without case, `_` as `-`."""
    return code.strip().lower().replace("_", "-")


def name_of(code: str) -> str:
    """Return a language's English name, with the rest of its code in brackets; the code where it has none here."""
    first, _, rest = code.replace("_", "-").partition("-")
    name = NAMES.get(first.lower(), code)
    return f"{name} ({rest})" if rest and name != code else name


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
        return [Detected(language, 0.0) for language in known]
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
    found = [Detected(language, round(100 * weight / total, 1)) for language, weight in weights.items()]
    return sorted(found, key=lambda one: -one.confidence)


def _script_shares(text: str, known: Sequence[str]) -> dict[str, float]:
    """Return for each language which share of a text's letters are of its script."""
    scripts = Counter(unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha())
    letters = max(1, scripts.total())
    return {
        language: sum(scripts[one] for one in _SCRIPTS.get(plain(language).partition("-")[0], ("LATIN",))) / letters
        for language in known
    }
