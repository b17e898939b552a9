"""When, where and why, in both languages."""

from typing import NamedTuple

from data.sample.make import english, german
from data.sample.make.dice import Dice
from data.sample.make.lexicon import CITIES, NOUNS, PLACES, Place, Verb


class Adverb(NamedTuple):
    """A time, a place, a company or a predicate, and the nouns in it. `span`: short, long (years) or any time."""

    german: str
    english: str
    nouns: tuple[str, ...] = ()
    span: str = "any"


MONTHS = {"Januar": "January", "Februar": "February", "März": "March", "April": "April", "Mai": "May", "Juni": "June",
          "Juli": "July", "August": "August", "September": "September", "Oktober": "October", "November": "November",
          "Dezember": "December"}  # fmt: skip
DAYS = {"Montag": "Monday", "Dienstag": "Tuesday", "Mittwoch": "Wednesday", "Donnerstag": "Thursday",
        "Freitag": "Friday", "Samstag": "Saturday", "Sonntag": "Sunday"}  # fmt: skip
_SHORT = {
    "past": [("gestern", "yesterday"), ("gestern Abend", "yesterday evening"), ("heute Morgen", "this morning")],
    "now": [("jetzt", "now"), ("gerade", "right now"), ("heute", "today")],
    "future": [("morgen", "tomorrow"), ("morgen Abend", "tomorrow evening"), ("heute Abend", "this evening")],
    "habit": [("jeden Tag", "every day"), ("jeden Morgen", "every morning"), ("jeden Abend", "every evening"),
              ("jeden Samstag", "every Saturday"), ("im Sommer", "in summer"), ("im Winter", "in winter")],
}  # fmt: skip
_WEEK = {"past": ("letzte Woche", "last week"), "future": ("nächste Woche", "next week")}
_LONG = {
    "past": [("letzten Sommer", "last summer"), ("letztes Jahr", "last year"), ("letzten Monat", "last month")],
    "future": [("nächsten Sommer", "next summer"), ("nächstes Jahr", "next year"), ("nächsten Monat", "next month")],
}
_SPANS = [
    ("Tagen", "days", "short"),
    ("Wochen", "weeks", "any"),
    ("Monaten", "months", "long"),
    ("Jahren", "years", "long"),
]
_AROUND = [
    Adverb("während der Pause", "during the break", ("Pause",), "short"),
    Adverb("nach dem Essen", "after the meal", ("Essen",), "short"),
    Adverb("vor dem Essen", "before the meal", ("Essen",), "short"),
    Adverb("nach dem Unterricht", "after the lesson", ("Unterricht",), "short"),
    Adverb("während des Unterrichts", "during the lesson", ("Unterricht",), "short"),
]
REASONS = [
    Adverb("wegen des Regens", "because of the rain", ("Regen",)),
    Adverb("wegen des Wetters", "because of the weather", ("Wetter",)),
    Adverb("wegen des Schnees", "because of the snow", ("Schnee",)),
]
FREQUENCIES = [
    Adverb("oft", "often"), Adverb("immer", "always"), Adverb("manchmal", "sometimes"), Adverb("nie", "never"),
    Adverb("selten", "rarely"),
]  # fmt: skip
_KINDS = {"short": 4, "week": 1, "long": 1.5, "day": 2, "date": 1.5, "clock": 2.5, "span": 2, "around": 1, "both": 1,
          "year": 1, "month": 1}  # fmt: skip


def clock(dice: Dice) -> tuple[str, str]:
    """A time of day; `halb vier` is half past three."""
    kind, hour = dice.between(0, 3), dice.between(2, 11)
    if kind == 0:
        return f"um {german.number(hour)} Uhr", f"at {english.number(hour)} o'clock"
    if kind == 1:
        return f"um halb {german.number(hour + 1)}", f"at half past {english.number(hour)}"
    if kind == 2:
        return f"um Viertel nach {german.number(hour)}", f"at a quarter past {english.number(hour)}"
    hour, minutes = dice.between(7, 21), dice.between(1, 11) * 5
    return f"um {hour}.{minutes:02} Uhr", f"at {hour}:{minutes:02}"


def _span(dice: Dice, tense: str) -> Adverb:
    unit, unit_en, length = dice.pick(_SPANS)
    count = dice.between(2, 9)
    number, number_en = german.number(count), english.number(count)
    if tense == "past":
        return Adverb(f"vor {number} {unit}", f"{number_en} {unit_en} ago", span=length)
    return Adverb(f"in {number} {unit}", f"in {number_en} {unit_en}", span=length)


def _date(dice: Dice) -> Adverb:
    month = dice.pick(list(MONTHS))
    day = dice.between(1, 28)
    return Adverb(f"am {day}. {month}", f"on {day} {MONTHS[month]}")


def _day(dice: Dice, tense: str) -> Adverb:
    day = dice.pick(list(DAYS))
    return Adverb(f"am {day}", f"on {DAYS[day]}", span="short")


def _both(dice: Dice, tense: str) -> Adverb:
    day, (at, at_en) = dice.pick(list(DAYS)), clock(dice)
    return Adverb(f"am {day} {at}", f"{at_en} on {DAYS[day]}", span="short")


def when(dice: Dice, tense: str) -> Adverb:
    """A time for the past, now, the future or a habit."""
    if tense in ("now", "habit"):
        return Adverb(*dice.pick(_SHORT[tense]), span="any" if tense == "now" else "short")
    kind = dice.weighted(list(_KINDS.items()))
    if kind == "clock":
        return Adverb(*clock(dice), span="short")
    if kind == "around":
        return dice.pick(_AROUND)
    if kind == "month":
        month = dice.pick(list(MONTHS))
        return Adverb(f"im {month}", f"in {MONTHS[month]}", span="long")
    if kind == "year" and tense == "past":
        year = dice.between(1950, 2024)
        return Adverb(f"im Jahr {year}", f"in {year}", span="long")
    if kind in ("long", "year"):
        return Adverb(*dice.pick(_LONG[tense]), span="long")
    if kind == "week":
        return Adverb(*_WEEK[tense])
    if kind == "date":
        return _date(dice)
    made = {"day": _day, "both": _both, "span": _span}.get(kind)
    return made(dice, tense) if made else Adverb(*dice.pick(_SHORT[tense]), span="short")


def suits(verb: Verb, time: Adverb) -> bool:
    """Whether one says so of such a thing: no house is built at half past three."""
    if "slow" in verb.flags:
        return time.span != "short"
    return "long" in verb.flags or time.span != "long"


def where(dice: Dice, kind: str, case: str) -> Adverb | None:
    """A place (dative) or a direction (accusative) of this kind."""
    if kind == "trip" or (kind in ("live", "ride", "arrive", "shop") and dice.chance(0.4)) or kind not in PLACES:
        de, en = dice.pick(CITIES)
        return Adverb(f"in {de}", f"in {en}") if case == "dat" else Adverb(f"nach {de}", f"to {en}")
    return placed(dice.pick(PLACES[kind]), case)


def placed(place: Place, case: str) -> Adverb:
    """The place in words."""
    noun = NOUNS[place.noun]
    text = german.contract(f"{place.preposition} {german.DER[case][noun.gender]} {german.noun(noun, case, False)}")
    return Adverb(text, place.at if case == "dat" else place.to, (place.noun,))
