"""How things are: their qualities, where they lie, what they cost, whose they are. `grammar` mixes them in."""

from typing import NamedTuple

from data.sample.make import clauses, english, german, phrases
from data.sample.make.adverbs import Adverb, placed
from data.sample.make.clauses import BE, Clause
from data.sample.make.dice import Dice
from data.sample.make.events import VERB, distinct
from data.sample.make.lexicon import ADJECTIVES, CITIES, NOUNS, PLACES, Noun
from data.sample.make.phrases import MY, OUR, THE, THIS, YOUR, Phrase
from data.sample.make.referents import FITTING, SHARED, person, somebody_known

_MOODS = [adjective for adjective in ADJECTIVES if "Bruder" in adjective.nouns]
_COMPARED = [adjective for adjective in ADJECTIVES if adjective.comparative[0]]
_DEGREES = {  # of which one says so
    ("sehr", "very"): "groß klein alt neu jung schön teuer billig gut frisch kalt heiß warm süß interessant langweilig "
    "spannend lang schwer sauber schmutzig freundlich nett müde krank glücklich traurig hungrig",
    ("zu", "too"): "groß klein alt teuer kalt heiß warm süß langweilig lang schwer müde krank",
    ("noch", "still"): "kalt heiß warm frisch leer sauber kaputt müde krank traurig hungrig jung",
    ("nicht", "not"): " ".join(adjective.german for adjective in ADJECTIVES),
}
_FOUND = {"Park": ("Baum", "Brücke", "Blume"), "Stadt": ("Kirche", "Museum", "Schloss", "Brücke", "Park", "Kino"),
          "Dorf": ("Kirche", "Schloss", "Brücke", "Supermarkt"), "Garten": ("Baum", "Blume", "Rose", "Vogel", "Tisch"),
          "Zimmer": ("Bett", "Tisch", "Stuhl", "Schrank", "Lampe", "Regal", "Fenster"),
          "Küche": ("Tisch", "Stuhl", "Lampe", "Fenster", "Regal"),
          "Straße": ("Supermarkt", "Baum", "Kirche")}  # fmt: skip


_AGES = {
    "Kind": (5, 12), "Junge": (5, 15), "Mädchen": (5, 15), "Schüler": (7, 18), "Student": (19, 30), "Eltern": (40, 85),
    "Vater": (30, 85), "Mutter": (30, 85), "Onkel": (30, 85), "Tante": (30, 85), "Großmutter": (60, 99),
    "Großvater": (60, 99), "Sohn": (5, 40), "Tochter": (5, 40), "Bruder": (5, 60), "Schwester": (5, 60),
}  # fmt: skip


class State(NamedTuple):
    """A sentence with its verbs and nouns; none of them is another's object."""

    kind: str
    german: str
    english: str
    nouns: tuple[str, ...]
    verbs: tuple[str, ...] = ()


def _thing(dice: Dice, noun: Noun, case: str = "nom", *, plural: bool = False, adjective: bool = True) -> Phrase:
    """A certain one: the, this, my."""
    choices = [one for one in FITTING[noun.german] if one.german not in ("kalt", "heiß", "warm")]
    chosen = dice.pick(choices) if choices and adjective and dice.chance(0.4) else None
    people = noun.group in phrases.PEOPLE
    own = [] if noun.german in SHARED or people or noun.group in ("food", "staple") else [MY, YOUR, OUR]
    determiner = dice.pick([MY, YOUR, OUR] if noun.group == "family" else [THE, THE, THIS, *own])
    return phrases.noun_phrase(noun, case, determiner, plural=plural, adjective=chosen)


def _portable(dice: Dice, *groups: str) -> Noun:
    """Something that is sold."""
    names = [name for name in VERB["verkaufen"].objects if NOUNS[name].group in groups]
    return NOUNS[dice.pick(names)]


def description(dice: Dice) -> State:
    """My sister is tired; the soup is still hot; was the book exciting?"""
    if dice.chance(0.4):
        who, adjective = somebody_known(dice), dice.pick(_MOODS)
    else:
        adjective = dice.pick(ADJECTIVES)
        noun = NOUNS[dice.pick([name for name in NOUNS if name in adjective.nouns and NOUNS[name].gender != "p"])]
        who = _thing(dice, noun, plural=bool(noun.plural) and dice.chance(0.25), adjective=False)
    fitting = [degree for degree, words in _DEGREES.items() if adjective.german in words.split()]
    degree, degree_en = dice.pick([*fitting, ("", ""), ("", "")])
    predicate = Adverb(phrases.join(degree, adjective.german), phrases.join(degree_en, adjective.english))
    past = dice.chance(0.35) and who.person != "2s" and degree != "noch"
    made = Clause(who, BE, "past" if past else "present", predicate=predicate)
    if dice.chance(0.25) and degree != "nicht":
        return State("sein", clauses.german_question(made) + "?", clauses.english_question(made) + "?", who.nouns)
    return State("sein", clauses.german_statement(made) + ".", clauses.english_statement(made) + ".", who.nouns)


def comparison(dice: Dice) -> State:
    """The car is more expensive than the bicycle."""
    while True:
        adjective = dice.pick(_COMPARED)
        first, second = (NOUNS[dice.pick([name for name in NOUNS if name in adjective.nouns])] for _ in range(2))
        similar = first.group == second.group and first.english != second.english
        if similar and not (adjective.german in ("neu", "schön") and first.group in phrases.PEOPLE):
            break
    one, other = _thing(dice, first, adjective=False), _thing(dice, second, adjective=False)
    word, word_en = adjective.comparative
    nouns = one.nouns + other.nouns
    if dice.chance(0.3):
        return State("als", f"ist {one.german} {word} als {other.german}?",
                     f"is {one.english} {word_en} than {other.english}?", nouns)  # fmt: skip
    return State("als", f"{one.german} ist {word} als {other.german}.",
                 f"{one.english} is {word_en} than {other.english}.", nouns)  # fmt: skip


def position(dice: Dice) -> State:
    """The key is on the table: German says that it lies there, or stands."""
    put = dice.pick(["legen", "stellen"])
    noun = NOUNS[dice.pick(VERB[put].objects)]
    plural = dice.chance(0.25)
    who = _thing(dice, noun, plural=plural)
    forms = {"legen": ("liegt", "liegen", "lag", "lagen"), "stellen": ("steht", "stehen", "stand", "standen")}[put]
    past = dice.chance(0.3)
    verb = forms[2 * past + plural]
    be = english.was(who.person) if past else english.be(who.person)
    if dice.chance(0.15):
        return State("liegen", f"wo {verb} {who.german}?", f"where {be} {who.english}?", who.nouns)
    place = dice.pick(PLACES["put"])
    there = placed(place, "dat")
    if not distinct(who.nouns + there.nouns):
        return position(dice)
    nouns, way = who.nouns + there.nouns, dice.between(0, 4)
    if way == 0:
        return State("liegen", f"{there.german} {verb} {who.german}.", f"{who.english} {be} {there.english}.", nouns)
    if way == 1:
        return State("liegen", f"{verb} {who.german} {there.german}?", f"{be} {who.english} {there.english}?", nouns)
    no, no_en = ("nicht ", "not ") if way == 2 else ("", "")
    return State(
        "liegen", f"{who.german} {verb} {no}{there.german}.", f"{who.english} {be} {no_en}{there.english}.", nouns
    )


def age_or_price(dice: Dice) -> State:
    """Years and euros, in words."""
    if dice.chance(0.5):
        who = somebody_known(dice)
        count = dice.between(*_AGES.get(who.nouns[0] if who.nouns else "", (21, 70) if who.nouns else (5, 99)))
        years = Adverb(f"{german.number(count)} Jahre alt", f"{english.number(count)} years old")
        made = Clause(who, BE, predicate=years)
        return State("Jahre", clauses.german_statement(made) + ".", clauses.english_statement(made) + ".", who.nouns)
    noun = _portable(dice, "clothes", "thing", "food")
    who = phrases.noun_phrase(noun, "nom", dice.pick([THE, THIS]))
    count = dice.between(3, 9) if noun.group in ("food", "staple", "text") else dice.between(20, 99)
    return State("Euro", f"{who.german} kostet {german.number(count)} Euro.",
                 f"{who.english} costs {english.number(count)} euros.", who.nouns)  # fmt: skip


def belonging(dice: Dice) -> State:
    """The bicycle belongs to my brother."""
    plural = dice.chance(0.25)
    noun = _portable(dice, "clothes", "thing", "vehicle", "device", "furniture")
    what = phrases.noun_phrase(noun, "nom", dice.pick([THE, THIS]), plural=plural and bool(noun.plural))
    owner = person(dice, "dat", definite=True)
    many = what.person == "3p"
    nouns = what.nouns + owner.nouns
    if dice.chance(0.3):
        return State("gehören", f"{'gehören' if many else 'gehört'} {what.german} {owner.german}?",
                     f"{'do' if many else 'does'} {what.english} belong to {owner.english}?", nouns)  # fmt: skip
    return State("gehören", f"{what.german} {'gehören' if many else 'gehört'} {owner.german}.",
                 f"{what.english} {'belong' if many else 'belongs'} to {owner.english}.", nouns)  # fmt: skip


def liking(dice: Dice) -> State:
    """`Das Buch gefällt dem Mann`: who likes it is in the dative."""
    plural, past = dice.chance(0.25), dice.chance(0.3)
    noun = NOUNS[dice.pick(VERB["zeigen"].objects)]
    pronouns = [one for one in phrases.OBJECT_PRONOUNS if one.case == "dat"]
    who = dice.pick(pronouns) if dice.chance(0.4) else person(dice, "dat", definite=True)
    yours = [YOUR] if who.person[0] != "2" else []
    what = phrases.noun_phrase(noun, "nom", dice.pick([THE, THIS, *yours]), plural=plural)
    subject = {"me": "I", "him": "he", "her": "she", "us": "we", "them": "they"}.get(who.english, who.english)
    verb = ("gefielen" if plural else "gefiel") if past else ("gefallen" if plural else "gefällt")
    singular = who.person == "3s" and who.english != "them"
    if dice.chance(0.3):
        do = "did" if past else "does" if singular else "do"
        pair = (who.german, what.german) if who.pronoun else (what.german, who.german)
        return State("gefallen", f"{verb} {pair[0]} {pair[1]}?", f"{do} {subject} like {what.english}?",
                     what.nouns + who.nouns)  # fmt: skip
    like = "liked" if past else "likes" if singular else "like"
    return State("gefallen", f"{what.german} {verb} {who.german}.", f"{subject} {like} {what.english}.",
                 what.nouns + who.nouns)  # fmt: skip


def there_is(dice: Dice) -> State:
    """`Im Garten gibt es einen Baum`: there is, with an accusative."""
    place = dice.pick(list(_FOUND))
    noun = NOUNS[dice.pick(_FOUND[place])]
    count = dice.between(2, 4 if noun.group in ("building", "site") else 9) if dice.chance(0.5) else 0
    choices = FITTING[noun.german]
    adjective = dice.pick(choices) if choices and dice.chance(0.5) else None
    what = phrases.noun_phrase(noun, "acc", phrases.BARE if count else phrases.A, count=count, adjective=adjective)
    past = dice.chance(0.3)
    verb, be = ("gab", "was") if past else ("gibt", "is")
    if count:
        be = "were" if past else "are"
    if place == "Stadt" and dice.chance(0.5):
        city, city_en = dice.pick(CITIES)
        where, where_en, nouns = f"in {city}", f"in {city_en}", what.nouns
    else:
        preposition, english_preposition = ("auf", "in") if place == "Straße" else ("in", "in")
        article = german.DER["dat"][NOUNS[place].gender]
        where = german.contract(f"{preposition} {article} {place}")
        where_en, nouns = f"{english_preposition} the {NOUNS[place].english}", (*what.nouns, place)
    if dice.chance(0.3):
        return State("es gibt", f"gibt es {where} {what.german}?" if not past else f"gab es {where} {what.german}?",
                     f"{be} there {what.english} {where_en}?", nouns)  # fmt: skip
    return State("es gibt", f"{where} {verb} es {what.german}.", f"there {be} {what.english} {where_en}.", nouns)
