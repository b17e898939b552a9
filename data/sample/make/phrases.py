"""Noun phrases in both languages: my sister's new bicycle, two old men, him."""

from typing import NamedTuple

from data.sample.make import english, german
from data.sample.make.lexicon import NOUNS, Adjective, Noun

Determiner = tuple[str, str]  # German and English


class Phrase(NamedTuple):
    """A noun phrase in its case. `person` is that of its verb; `own` what the subject's own things are called."""

    german: str
    english: str
    person: str = "3s"
    gender: str = "m"
    nouns: tuple[str, ...] = ()
    pronoun: bool = False
    definite: bool = True
    own: Determiner | None = None
    case: str = "nom"


MY, YOUR, OUR = ("mein", "my"), ("dein", "your"), ("unser", "our")
HIS, HER, THEIR = ("sein", "his"), ("ihr", "her"), ("ihr", "their")
THE, A, NO = ("der", "the"), ("ein", "a"), ("kein", "a")
THIS, WHICH, BARE = ("dies", "this"), ("welch", "which"), ("", "")

PRONOUNS = [
    Phrase(de, en, person, pronoun=True, own=own)
    for de, en, person, own in (
        ("ich", "I", "1s", MY), ("du", "you", "2s", YOUR), ("er", "he", "3s", HIS), ("sie", "she", "3s", HER),
        ("wir", "we", "1p", OUR), ("sie", "they", "3p", THEIR),
    )
]  # fmt: skip
# No `sie` in the accusative: her or them, nobody could tell.
OBJECT_PRONOUNS = [
    Phrase(de, en, person, pronoun=True, case=case)
    for case, de, en, person in (
        ("acc", "mich", "me", "1s"), ("acc", "dich", "you", "2s"), ("acc", "ihn", "him", "3s"),
        ("acc", "uns", "us", "1p"), ("dat", "mir", "me", "1s"), ("dat", "dir", "you", "2s"),
        ("dat", "ihm", "him", "3s"), ("dat", "ihr", "her", "3s"), ("dat", "uns", "us", "1p"),
        ("dat", "ihnen", "them", "3p"),
    )
]  # fmt: skip


def name_of(noun: Noun) -> str:
    """What the lexicon calls it."""
    return noun.german if noun.gender != "p" else noun.plural


def _declined(determiner: str, case: str, gender: str) -> tuple[str, str]:
    """The article in its form, and the kind of the adjective's ending after it."""
    if determiner == "der":
        return german.DER[case][gender], "weak"
    if determiner in ("dies", "welch"):
        return determiner + german.DIES[case][gender], "weak"
    if not determiner or (determiner == "ein" and gender == "p"):
        return "", "strong"
    return determiner + german.EIN[case][gender], "mixed"


def _english(determiner: Determiner, rest: str, uncountable: bool, plural: bool) -> str:
    """`rest` with its article: an old car; not … any old cars."""
    if determiner in (A, NO):
        return english.article(rest) if not uncountable else f"any {rest}" if determiner == NO else rest
    return f"{'these' if determiner == THIS and plural else determiner[1]} {rest}".strip()


def noun_phrase(
    noun: Noun,
    case: str,
    determiner: Determiner,
    *,
    plural: bool = False,
    adjective: Adjective | None = None,
    count: int = 0,
    owner: Phrase | str = "",
) -> Phrase:
    """`zwei neue Fahrräder`; with an owner `das neue Fahrrad meiner Schwester` (a genitive), `Annas neues Fahrrad`."""
    name = owner if isinstance(owner, str) else ""
    whose = owner if isinstance(owner, Phrase) else None
    plural = plural or count > 0 or noun.gender == "p"
    if name and german.noun(noun, case, True) == german.noun(noun, case, False):
        plural = False  # nobody could tell how many are Annas Koffer
    gender = "p" if plural else noun.gender
    article, kind = _declined("" if name else determiner[0], case, gender)
    words = [
        name + "s" if name else article,
        german.number(count) if count else "",
        german.adjective(adjective, kind, case, gender) if adjective else "",
        german.noun(noun, case, plural),
        whose.german if whose else "",
    ]
    counted = english.number(count) if count else ""
    rest = join(counted, adjective.english if adjective else "", english.noun(noun, plural))
    if owner:
        translated = f"{english.possessive(whose.english if whose else name)} {rest}"
    else:
        translated = _english(determiner, rest, plural or not noun.plural, plural)
    return Phrase(
        join(*words),
        translated,
        "3p" if plural else "3s",
        gender,
        (name_of(noun), *(whose.nouns if whose else ())),
        definite=bool(owner) or determiner not in (A, NO, BARE),
        own={"m": HIS, "f": HER, "p": THEIR}.get(gender),
        case=case,
    )


def named(name: str, woman: bool) -> Phrase:
    """Anna, Peter."""
    return Phrase(name, name, own=HER if woman else HIS)


def pronoun_for(phrase: Phrase) -> Phrase:
    """He, she, it or they: the pronoun that takes the phrase up again as a subject."""
    if phrase.pronoun:
        return phrase
    person = any(NOUNS[noun].group in PEOPLE for noun in phrase.nouns[:1]) or not phrase.nouns
    de = {"3p": "sie"}.get(phrase.person, {HIS: "er", HER: "sie"}.get(phrase.own or BARE, "es"))
    en = {"er": "he", "sie": "she"}.get(de, "it") if person else "it"
    return Phrase(de, "they" if phrase.person == "3p" else en, phrase.person, pronoun=True, own=phrase.own)


PEOPLE = ("family", "acquaintance", "stranger")


def join(*words: str) -> str:
    """The words that are there."""
    return " ".join(filter(None, words))
