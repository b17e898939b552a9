"""Noun phrases and adverbs in both languages: who, what, when, where. `clauses` puts them in order."""

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from transformer_cli.demo import english, german
from transformer_cli.demo.lexicon import ADJECTIVES, CITIES, MEN, NOUNS, PLACES, WOMEN, Adjective, Noun

Item = TypeVar("Item")


class Dice:
    """Choices by `random()` alone, whose numbers every Python draws alike."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """True this often."""
        return self._rng.random() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """One of them, each as likely."""
        return items[int(self._rng.random() * len(items))]

    def weighted(self, items: Sequence[tuple[Item, float]]) -> Item:
        """One of them, as likely as its weight says."""
        at = self._rng.random() * sum(weight for _, weight in items)
        for item, weight in items:
            at -= weight
            if at < 0:
                return item
        return items[-1][0]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        """All of them in another order."""
        return [items[at] for _, at in sorted((self._rng.random(), at) for at in range(len(items)))]

    def between(self, first: int, last: int) -> int:
        """A number from `first` to `last`."""
        return first + int(self._rng.random() * (last - first + 1))


class Phrase(NamedTuple):
    """A noun phrase in its case. `person` is that of its verb; `own` what the subject's own things are called."""

    german: str
    english: str
    person: str = "3s"
    gender: str = "m"
    nouns: tuple[str, ...] = ()
    pronoun: bool = False
    definite: bool = True
    own: tuple[str, str] | None = None
    case: str = "nom"
    animate: bool = False


class Adverb(NamedTuple):
    """A time, a place, a reason."""

    german: str
    english: str
    nouns: tuple[str, ...] = ()


MY, YOUR, OUR, HIS, HER, THEIR = (
    ("mein", "my"), ("dein", "your"), ("unser", "our"), ("sein", "his"), ("ihr", "her"), ("ihr", "their")
)  # fmt: skip
THE, A, NO, THIS, WHICH, BARE = (
    ("der", "the"), ("ein", "a"), ("kein", "a"), ("dies", "this"), ("welch", "which"), ("", "")
)  # fmt: skip
_FITTING: dict[str, list[Adjective]] = {
    name: [adjective for adjective in ADJECTIVES if name in adjective.nouns] for name in NOUNS
}
PEOPLE = ("family", "acquaintance", "stranger")
_NO_PLURAL = {"Vater", "Mutter", "Großvater", "Großmutter"}


def fitting(name: str) -> list[Adjective]:
    """The adjectives that say something sensible of this noun."""
    return _FITTING[name]


def _declined(determiner: str, case: str, gender: str) -> tuple[str, str]:
    """The article in its form, and the kind of the adjective's ending after it."""
    if determiner == "der":
        return german.DER[case][gender], "weak"
    if determiner in ("dies", "welch"):
        return determiner + german.DIES[case][gender], "weak"
    if not determiner or (determiner == "ein" and gender == "p"):
        return "", "strong"
    return determiner + german.EIN[case][gender], "mixed"


def _english_determiner(determiner: tuple[str, str], rest: str, mass_or_plural: bool, plural: bool) -> str:
    if determiner == A:
        return rest if mass_or_plural else english.article(rest)
    if determiner == NO:
        return f"any {rest}" if mass_or_plural else english.article(rest)
    word = "these" if determiner == THIS and plural else determiner[1]
    return f"{word} {rest}".strip()


def noun_phrase(
    noun: Noun,
    case: str,
    determiner: tuple[str, str],
    *,
    plural: bool = False,
    adjective: Adjective | None = None,
    count: int = 0,
    owner: Phrase | None = None,
    name: str = "",
) -> Phrase:
    """`das neue Fahrrad meiner Schwester`, my sister's new bicycle, and its like."""
    plural = plural or count > 0 or noun.gender == "p"
    gender = "p" if plural else noun.gender
    article, kind = _declined("" if name else determiner[0], case, gender)
    words = [
        name + "s" if name else article,
        german.number(count) if count else "",
        german.adjective(adjective, kind, case, gender) if adjective else "",
        german.noun(noun, case, plural),
        owner.german if owner else "",
    ]
    rest = " ".join(
        filter(None, [english.number(count) if count else "", adjective.english if adjective else "",
                      english.noun(noun, plural)])
    )  # fmt: skip
    if owner or name:
        translated = english.possessive(owner.english if owner else name) + " " + rest
    else:
        translated = _english_determiner(determiner, rest, plural or not noun.plural, plural)
    return Phrase(
        " ".join(filter(None, words)), translated, "3p" if plural else "3s", gender,
        (noun.plural if noun.gender == "p" else noun.german, *(owner.nouns if owner else ())),
        definite=bool(owner or name) or determiner not in (A, NO, BARE), case=case,
        own={"m": HIS, "f": HER, "p": THEIR}.get(gender), animate=noun.group in (*PEOPLE, "animal"),
    )  # fmt: skip


def _pronouns() -> list[Phrase]:
    rows = [("ich", "I", "1s", MY), ("du", "you", "2s", YOUR), ("er", "he", "3s", HIS), ("sie", "she", "3s", HER),
            ("wir", "we", "1p", OUR), ("sie", "they", "3p", THEIR)]  # fmt: skip
    return [Phrase(de, en, person, pronoun=True, own=own, animate=True) for de, en, person, own in rows]


PRONOUNS = _pronouns()
# No `sie` in the accusative: her or them, nobody could tell.
OBJECT_PRONOUNS = {
    "acc": [("mich", "me", "1s"), ("dich", "you", "2s"), ("ihn", "him", "3s"), ("uns", "us", "1p")],
    "dat": [("mir", "me", "1s"), ("dir", "you", "2s"), ("ihm", "him", "3s"), ("ihr", "her", "3s"), ("uns", "us", "1p"),
            ("ihnen", "them", "3p")],
}  # fmt: skip


def object_pronoun(dice: Dice, case: str, subject: Phrase) -> Phrase:
    """Him, us, …; never the subject itself."""
    same = {"1": ("1s", "1p"), "2": ("2s",), "3": ("3s", "3p")}[subject.person[0]]
    choices = [pronoun for pronoun in OBJECT_PRONOUNS[case] if pronoun[2] not in same]
    de, en, person = dice.pick(choices)
    return Phrase(de, en, person, pronoun=True, case=case)


def person(dice: Dice, case: str = "nom", *, noun: Noun | None = None, deep: bool = True) -> Phrase:
    """Somebody, by what one calls them: my sister, the old man, two boys, Anna's teacher."""
    given = noun
    noun = noun or dice.pick([NOUNS[name] for name in _people(dice)])
    plural = noun.german not in _NO_PLURAL and dice.chance(0.2)
    kinds: list[tuple[tuple[str, str], float]] = {
        "family": [(MY, 5.0), (YOUR, 2.0), (OUR, 2.0)],
        "acquaintance": [(THE, 4.0), (MY, 2.0), (YOUR, 1.0), (OUR, 2.0), (A, 1.0)],
        "stranger": [(THE, 5.0), (A, 2.0), (THIS, 2.0)],
    }[noun.group]
    determiner = dice.weighted(kinds)
    rare = noun.group == "family"
    adjective = dice.pick(fitting(_name(noun))) if dice.chance(0.05 if rare else 0.3) else None
    count = dice.between(2, 5) if plural and determiner in (THE, A) and dice.chance(0.4) else 0
    if count:
        determiner = BARE
    if noun.group != "stranger" and deep and case != "gen" and not count and dice.chance(0.12):
        if dice.chance(0.5):
            return noun_phrase(noun, case, BARE, plural=plural, name=dice.pick(WOMEN + MEN))
        owner = person(dice, "gen", deep=False)
        if owner.definite and not set(owner.nouns) & {_name(noun)}:
            return noun_phrase(noun, case, THE, plural=plural, owner=owner)
    if determiner == A and plural and given is None:
        determiner = THE
    return noun_phrase(noun, case, determiner, plural=plural, adjective=adjective, count=count)


def _name(noun: Noun) -> str:
    return noun.plural if noun.gender == "p" else noun.german


def _people(dice: Dice) -> list[str]:
    group = dice.pick(PEOPLE)
    return [name for name, noun in NOUNS.items() if noun.group == group]


def subject(dice: Dice, *, no_pronoun: bool = False, persons: tuple[str, ...] = ()) -> Phrase:
    """Who does something."""
    while True:
        kind = dice.pick(("pronoun", "pronoun", "name", "person", "person", "person"))
        if kind == "pronoun" and not no_pronoun:
            phrase = dice.pick(PRONOUNS)
        elif kind == "name":
            name = dice.pick(WOMEN + MEN)
            phrase = Phrase(name, name, own=HER if name in WOMEN else HIS, animate=True)
        else:
            phrase = person(dice)
        if not persons or phrase.person in persons:
            return phrase


SMALL = ("food", "text", "thing", "plant", "clothes", "animal")


def thing(dice: Dice, noun: Noun, case: str, who: Phrase, *, counted: bool = False, negated: bool = False) -> Phrase:
    """Something as an object of what `who` does, his or her own perhaps."""
    mass = not noun.plural
    many = not mass and dice.chance(0.3)
    adjectives = fitting(noun.german)
    adjective = dice.pick(adjectives) if adjectives and dice.chance(0.4) else None
    if negated:
        return noun_phrase(noun, case, NO, plural=many and noun.group in SMALL, adjective=adjective)
    if many and dice.chance(0.4):
        big = counted and noun.group in (*SMALL, "device") and dice.chance(0.6)
        count = dice.between(21, 99) if big else dice.between(2, 12)
        return noun_phrase(noun, case, BARE, adjective=adjective, count=count)
    own = [(who.own, 3.0)] if who.own else []
    choice = dice.weighted([(THE, 4.0), (A, 4.0), (THIS, 1.0), (("name", ""), 1.0), (("owner", ""), 1.2), *own])
    if choice[0] == "name" and not mass:
        return noun_phrase(noun, case, BARE, plural=many, adjective=adjective, name=dice.pick(WOMEN + MEN))
    if choice[0] == "owner" and not mass:
        owner = person(dice, "gen", deep=False)
        if owner.definite:
            return noun_phrase(noun, case, THE, plural=many, adjective=adjective, owner=owner)
    determiner = THE if choice[0] in ("name", "owner") else choice
    if determiner == A and mass:
        determiner = BARE
    if determiner == A and many and noun.group not in SMALL:
        many = False
    return noun_phrase(noun, case, determiner, plural=many, adjective=adjective)


MONTHS = {"Januar": "January", "Februar": "February", "März": "March", "April": "April", "Mai": "May", "Juni": "June",
          "Juli": "July", "August": "August", "September": "September", "Oktober": "October", "November": "November",
          "Dezember": "December"}  # fmt: skip
DAYS = {"Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Donnerstag": "Thursday",
        "Freitag": "Friday", "Samstag": "Saturday", "Sonntag": "Sunday"}  # fmt: skip
SPANS = [("Tagen", "days"), ("Wochen", "weeks"), ("Monaten", "months"), ("Jahren", "years")]
FIXED = {
    "past": [("gestern", "yesterday"), ("gestern Abend", "yesterday evening"), ("letzte Woche", "last week"),
             ("letzten Sommer", "last summer"), ("letztes Jahr", "last year"), ("heute Morgen", "this morning")],
    "now": [("jetzt", "now"), ("gerade", "right now"), ("heute", "today"), ("heute Abend", "this evening")],
    "future": [("morgen", "tomorrow"), ("morgen Abend", "tomorrow evening"), ("nächste Woche", "next week"),
               ("nächsten Sommer", "next summer"), ("nächstes Jahr", "next year")],
    "habit": [("jeden Tag", "every day"), ("jeden Morgen", "every morning"), ("jeden Abend", "every evening"),
              ("jede Woche", "every week"), ("jeden Sommer", "every summer")],
}  # fmt: skip
FREQUENCIES = [("oft", "often"), ("immer", "always"), ("manchmal", "sometimes"), ("nie", "never"), ("selten", "rarely")]
AROUND = [Adverb("während der Pause", "during the break", ("Pause",)), Adverb("nach dem Essen", "after the meal", ("Essen",)),
          Adverb("vor dem Essen", "before the meal", ("Essen",)),
          Adverb("nach dem Unterricht", "after the lesson", ("Unterricht",)),
          Adverb("während des Unterrichts", "during the lesson", ("Unterricht",))]  # fmt: skip
REASONS = [Adverb("wegen des Regens", "because of the rain", ("Regen",)),
           Adverb("wegen des Wetters", "because of the weather", ("Wetter",)),
           Adverb("wegen des Schnees", "because of the snow", ("Schnee",))]  # fmt: skip


def clock(dice: Dice) -> tuple[str, str]:
    """A time of day; `halb vier` is half past three."""
    hour = dice.between(1, 11)
    names = ["", "ein", *(german.number(value) for value in range(2, 13))]
    words = ["", "one", *(english.number(value) for value in range(2, 13))]
    kind = dice.between(0, 3)
    if kind == 0:
        return f"um {names[hour]} Uhr", f"at {words[hour]} o'clock"
    if kind == 1:
        return f"um halb {names[hour + 1]}", f"at half past {words[hour]}"
    if kind == 2:
        hour = max(hour, 2)
        return f"um Viertel nach {names[hour]}", f"at a quarter past {words[hour]}"
    hour, minutes = dice.between(7, 21), dice.between(10, 55)
    return f"um {hour}.{minutes} Uhr", f"at {hour}:{minutes}"


def when(dice: Dice, tense: str) -> Adverb:
    """A time for the past, now, the future or a habit."""
    if tense in ("now", "habit"):
        return Adverb(*dice.pick(FIXED[tense]))
    kind = dice.weighted([("fixed", 4), ("day", 2), ("date", 1.5), ("clock", 1.5), ("span", 1.5), ("around", 1),
                          ("both", 1), ("year", 1), ("month", 1)])  # fmt: skip
    day = dice.pick(list(DAYS))
    if kind == "day":
        return Adverb(f"am {day}", f"on {DAYS[day]}")
    if kind == "clock":
        return Adverb(*clock(dice))
    if kind == "both":
        at, at_en = clock(dice)
        return Adverb(f"am {day} {at}", f"{at_en} on {DAYS[day]}")
    month = dice.pick(list(MONTHS))
    if kind == "date":
        number = dice.between(1, 31 if month in ("Januar", "März", "Mai", "Juli", "August", "Oktober") else 28)
        return Adverb(f"am {number}. {month}", f"on {number} {MONTHS[month]}")
    if kind == "month":
        return Adverb(f"im {month}", f"in {MONTHS[month]}")
    if kind == "around":
        return dice.pick(AROUND)
    if kind == "span":
        span, span_en = dice.pick(SPANS)
        count = dice.between(2, 12)
        words = german.number(count), english.number(count)
        if tense == "past":
            return Adverb(f"vor {words[0]} {span}", f"{words[1]} {span_en} ago")
        return Adverb(f"in {words[0]} {span}", f"in {words[1]} {span_en}")
    if kind == "year" and tense == "past":
        year = dice.between(1950, 2024)
        return Adverb(f"im Jahr {year}", f"in {year}")
    return Adverb(*dice.pick(FIXED[tense]))


def where(dice: Dice, kind: str, case: str) -> Adverb | None:
    """A place (dative) or a direction (accusative) of this kind."""
    if kind == "trip" or (kind in ("live", "ride", "arrive") and dice.chance(0.4)):
        de, en = dice.pick(CITIES)
        return Adverb(f"in {de}", f"in {en}") if case == "dat" else Adverb(f"nach {de}", f"to {en}")
    places = [place for place in PLACES.get(kind, ()) if case == "dat" or place.to]
    if not places:
        return None
    place = dice.pick(places)
    noun = NOUNS[place.noun]
    text = german.contract(f"{place.preposition} {german.DER[case][noun.gender]} {german.noun(noun, case, False)}")
    return Adverb(text, place.at if case == "dat" else place.to, (place.noun,))
