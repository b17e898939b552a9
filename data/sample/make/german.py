"""How German inflects: articles, adjectives, nouns and verbs, and its numbers in words."""

import re

from data.sample.make.lexicon import Adjective, Noun, Verb

CASES = ("nom", "acc", "dat", "gen")
_GENDERS = "mfnp"  # p: plural, where the genders fall together


def _table(*rows: str) -> dict[str, dict[str, str]]:
    """Endings by case and gender; `-` is none."""
    cells = ([cell.strip("-") for cell in row.split()] for row in rows)
    return {case: dict(zip(_GENDERS, row, strict=True)) for case, row in zip(CASES, cells, strict=True)}


DER = _table("der die das die", "den die das die", "dem der dem den", "des der des der")
DIES = _table("er e es e", "en e es e", "em er em en", "es er es er")  # dieser, welcher
EIN = _table("- e - e", "en e - e", "em er em en", "es er es er")  # ein, kein, mein
WEAK = _table("e e e en", "en e e en", "en en en en", "en en en en")  # after der, dieser
MIXED = _table("er e es en", "en e es en", "en en en en", "en en en en")  # after ein, kein, mein
STRONG = _table("er e es e", "en e es e", "em er em en", "en er en er")  # after nothing or a number
RELATIVE = _table("der die das die", "den die das die", "dem der dem denen", "dessen deren dessen deren")
CONTRACTED = {"in dem": "im", "an dem": "am", "in das": "ins", "zu dem": "zum", "zu der": "zur", "bei dem": "beim"}
_SIBILANTS = ("s", "ß", "x", "z")
_ENDINGS = {"weak": WEAK, "mixed": MIXED, "strong": STRONG}

_ONES = [
    "null",
    "ein",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
_TENS = ["-", "-", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def adjective(word: Adjective, kind: str, case: str, gender: str) -> str:
    """The adjective before a noun; `kind` is weak, mixed or strong."""
    ending = _ENDINGS[kind][case][gender]
    return word.stem.removesuffix("e") + ending if word.stem.endswith("e") else word.stem + ending


def noun(word: Noun, case: str, plural: bool) -> str:
    """The noun in a case: Vaters, Nachbarn, Kindern."""
    if plural:
        return word.plural + ("n" if case == "dat" and not word.plural.endswith(("n", "s")) else "")
    if word.weak:
        return word.german if case == "nom" else word.german + ("n" if word.german.endswith(("e", "r")) else "en")
    if case != "gen" or word.gender == "f":
        return word.german
    syllables = len(re.findall("[aeiouäöü]+", word.german.lower()))
    long = word.german.endswith(_SIBILANTS) or (syllables == 1 and word.german[-1] not in "aeiou")
    return word.german + ("es" if long else "s")


def contract(text: str) -> str:
    """`in dem Garten` as `im Garten`; before the noun only."""
    first, second, *rest = text.split(" ")
    both = f"{first} {second}"
    return " ".join([CONTRACTED.get(both, both), *rest])


def present(verb: Verb, person: str) -> str:
    """The finite form without its particle; `person` is 1s, 2s, 3s, 1p or 3p."""
    if verb.infinitive == "sein":
        return {"1s": "bin", "2s": "bist", "3s": "ist"}.get(person, "sind")
    if person in ("1p", "3p"):
        return verb.infinitive
    if person == "3s":
        return verb.present
    if person == "1s":
        if verb.infinitive.endswith("eln"):
            return verb.infinitive[:-3] + "le"
        return verb.infinitive.removesuffix("n") if verb.infinitive[-2] == "e" else verb.infinitive[:-1] + "e"
    stem = verb.present.removesuffix("t")
    return stem + ("t" if stem.endswith(_SIBILANTS) else "st")


def past(verb: Verb, person: str) -> str:
    """The Präteritum without particle; not for du, which would sound bookish."""
    assert person != "2s"
    if person in ("1s", "3s"):
        return verb.past
    return verb.past + ("n" if verb.past.endswith("te") else "en")


def number(value: int) -> str:
    """Zwei to neunundneunzig: the ones come before the tens."""
    assert 2 <= value <= 99
    if value < 20:
        return _ONES[value]
    tens, ones = divmod(value, 10)
    return (_ONES[ones] + "und" if ones else "") + _TENS[tens]
