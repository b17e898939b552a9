"""The words of the sample corpus with what they go with, so that only what makes sense is said: one reads books.

`words` has them as tables; `german` and `english` know how they inflect.
"""

from typing import NamedTuple

from data.sample.make import words


class Noun(NamedTuple):
    """`gender` is m, f, n, or p for a plural without singular; no plural: a mass (milk). `weak`: den Nachbarn."""

    gender: str
    german: str
    plural: str
    english: str
    english_plural: str
    group: str
    weak: bool


class Verb(NamedTuple):
    """A verb with its objects (names of nouns) and the kinds of place it goes with.

    `particle` is what separates from it in German (auf|machen); `english` may have one too (pick up).
    """

    particle: str
    infinitive: str
    present: str  # er …
    past: str  # er …
    participle: str
    auxiliary: str  # haben or sein
    english: str
    english_past: str
    objects: tuple[str, ...]
    places: tuple[str, ...]
    flags: frozenset[str]

    @property
    def lemma(self) -> str:
        return self.particle + self.infinitive


class Adjective(NamedTuple):
    """`stem` is the form before an ending (teur), `german` the one without (teuer)."""

    german: str
    stem: str
    english: str
    nouns: frozenset[str]
    comparative: tuple[str, str]


class Place(NamedTuple):
    """Somewhere: the German preposition and noun, and what English says for being there and going there."""

    preposition: str
    noun: str
    at: str
    to: str


def _entries(text: str, end: str) -> list[tuple[str, str]]:
    """`rot = red, blau = blue` as pairs; lines may break anywhere."""
    parts = (part.partition("=") for part in " ".join(text.split()).split(end) if part.strip())
    return [(left.strip(), right.strip()) for left, _, right in parts]


def _paragraphs(text: str) -> list[str]:
    """Lines, each with the indented ones after it."""
    return text.strip().replace("\n  ", " ").split("\n")


def _nouns() -> dict[str, Noun]:
    nouns = {}
    for line in _paragraphs(words.NOUNS):
        group, _, entries = line.partition(": ")
        for german, english in _entries(entries, ","):
            gender, singular, plural = german.split()
            one, *many = (word.replace("_", " ") for word in english.split())
            name = plural if gender == "p" else singular
            nouns[name] = Noun(
                gender[0], singular, plural.strip("-"), one.strip("-"), many[0] if many else "", group, "w" in gender
            )
    return nouns


NOUNS = _nouns()


def _chosen(text: str) -> tuple[str, ...]:
    """Names of nouns: `Buch` is one, `food` a group, `-Buch` leaves one out."""
    names: dict[str, None] = {}
    for word in text.split():
        if word.startswith("-"):
            del names[word[1:]]
        elif word in NOUNS:
            names[word] = None
        else:
            members = [name for name, noun in NOUNS.items() if noun.group == word]
            assert members, word
            names.update(dict.fromkeys(members))
    return tuple(names)


def _verbs() -> list[Verb]:
    verbs = []
    for line in _paragraphs(words.VERBS):
        forms, objects, places, flags = line.rsplit("|", 3)
        german, _, english = forms.partition("=")
        infinitive, present, past, participle, *auxiliary = german.split()
        particle, _, infinitive = infinitive.rpartition("|")
        one, then = (form.replace("_", " ") for form in english.split())
        helper = "sein" if auxiliary else "haben"
        verbs.append(
            Verb(particle, infinitive, present, past, particle + participle, helper, one, then, _chosen(objects),
                 tuple(places.split()), frozenset(flags.split()))
        )  # fmt: skip
    return verbs


def _adjectives() -> list[Adjective]:
    adjectives = []
    for line in _paragraphs(words.ADJECTIVES):
        forms, nouns, comparative = line.split("|")
        german, _, english = forms.partition("=")
        word, *stem = german.split()
        more, more_english = (form.replace("_", " ") for form in comparative.split() or ("", ""))
        adjectives.append(
            Adjective(word, stem[0] if stem else word, english.strip(), frozenset(_chosen(nouns)), (more, more_english))
        )
    return adjectives


def _places() -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = {}
    for line in _paragraphs(words.PLACES):
        kind, _, entries = line.partition(": ")
        places[kind] = []
        for german, english in _entries(entries, ","):
            preposition, noun = german.split()
            at, _, to = english.partition(";")
            assert noun in NOUNS, noun
            places[kind].append(Place(preposition, noun, at.strip(), to.strip().strip("-")))
    return places


VERBS = _verbs()
ADJECTIVES = _adjectives()
PLACES = _places()
CITIES = _entries(words.CITIES, ",")
