"""Whom and what a sentence is about: people and things, with articles, adjectives and owners that make sense."""

from data.sample.make import phrases
from data.sample.make.dice import Dice
from data.sample.make.lexicon import ADJECTIVES, NOUNS, Adjective, Noun, Verb
from data.sample.make.phrases import BARE, MY, NO, OUR, PEOPLE, THE, THIS, YOUR, A, Determiner, Phrase, name_of
from data.sample.make.words import MEN, WOMEN

FITTING = {name: [adjective for adjective in ADJECTIVES if name in adjective.nouns] for name in NOUNS}
_SMALL = ("food", "text", "thing", "plant", "clothes", "animal")  # said in the plural without article: he buys apples
_MOODS = {"müde", "krank", "glücklich", "traurig", "hungrig"}
_NO_PLURAL = {"Vater", "Mutter", "Großvater", "Großmutter"}
SHARED = {"Kirche", "Museum", "Schloss", "Brücke", "Baum", "Tür", "Fenster", "Vogel", "Licht"}  # nobody's own
# One does not buy what one has, nor what is empty; nor writes an old letter.
_NEVER_OWN = {"kaufen", "mieten", "bestellen", "probieren", "kochen", "pflanzen", "haben", "treffen", "sehen", "zählen",
              "sammeln", "bauen", "mitbringen", "bringen", "bezahlen"}  # fmt: skip
_USED = {"leer", "sauber", "schmutzig", "kaputt"}
_UNFIT = {
    "kaufen": _USED, "bestellen": _USED | {"alt"}, "schenken": _USED, "bezahlen": _USED, "mieten": _USED,
    "mitbringen": _USED, "bauen": _USED | {"alt", "teuer", "billig", "neu"}, "schreiben": {"alt", "neu"},
    "öffnen": {"leer"}, "aufmachen": {"leer"}, "putzen": {"sauber", "leer"}, "waschen": {"sauber"},
    "anprobieren": {"schmutzig"}, "pflanzen": {"alt", "groß"}, "kochen": {"kalt", "heiß", "warm"},
    "aufräumen": {"leer", "sauber"}, "treffen": {"hungrig"}, "verkaufen": {"schmutzig", "leer"}, "einladen": {"krank"},
    "anmachen": {"kaputt"}, "ausmachen": {"kaputt"}, "sammeln": _USED,
}  # fmt: skip
_DETERMINERS = {
    "family": [(MY, 5.0), (YOUR, 2.0), (OUR, 2.0)],
    "acquaintance": [(THE, 4.0), (MY, 2.0), (YOUR, 1.0), (OUR, 2.0), (A, 1.0)],
    "stranger": [(THE, 5.0), (A, 2.0), (THIS, 2.0)],
}
_FRIENDS = {"Freund", "Freundin", "Kollege"}  # somebody's always


def _adjective(dice: Dice, name: str, chance: float, verb: str = "") -> Adjective | None:
    choices = [one for one in FITTING[name] if one.german not in _UNFIT.get(verb, ())]
    return dice.pick(choices) if choices and dice.chance(chance) else None


def _owner(dice: Dice, noun: Noun) -> Phrase | str:
    """Whose it is: Annas Fahrrad, das Fahrrad meiner Schwester."""
    if dice.chance(0.45):
        return dice.pick(WOMEN + MEN)
    owner = person(dice, "gen")
    return owner if owner.definite and noun.english != NOUNS[owner.nouns[0]].english else ""


def person(dice: Dice, case: str = "nom", noun: Noun | None = None, *, definite: bool = False) -> Phrase:
    """Somebody, by what one calls them: my sister, the old man, two boys, Anna's teacher."""
    if noun is None:
        group = dice.pick(PEOPLE)
        noun = dice.pick([one for one in NOUNS.values() if one.group == group])
    name = name_of(noun)
    plural = name not in _NO_PLURAL and dice.chance(0.1 if noun.group == "family" else 0.2)
    choices = _DETERMINERS[noun.group]
    determiner = dice.weighted([one for one in choices if not (name in _FRIENDS and one[0] == THE)])
    if determiner == A and (plural or definite):
        determiner = MY if noun.group == "acquaintance" else THE
    if determiner in (THE, THIS) and plural and not definite and dice.chance(0.4):
        adjective = _adjective(dice, name, 0.2)
        return phrases.noun_phrase(noun, case, BARE, adjective=adjective, count=dice.between(2, 5))
    if noun.group != "stranger" and case != "gen" and dice.chance(0.12):
        whose = _owner(dice, noun)
        return phrases.noun_phrase(noun, case, THE, plural=plural, owner=whose) if whose else person(dice, case, noun)
    adjective = _adjective(dice, name, 0.04 if noun.group == "family" else 0.25)
    if adjective and adjective.german in _MOODS and determiner != THE:
        adjective = None
    return phrases.noun_phrase(noun, case, determiner, plural=plural, adjective=adjective)


def somebody(dice: Dice) -> Phrase:
    """A subject: a pronoun, a name or a person."""
    return _somebody(dice, definite=False)


def somebody_known(dice: Dice) -> Phrase:
    """Whom one asks about: nobody new, and not oneself."""
    while (who := _somebody(dice, definite=True)).person[0] == "1":
        pass
    return who


def _somebody(dice: Dice, *, definite: bool) -> Phrase:
    kind = dice.weighted([("pronoun", 2), ("name", 1), ("person", 3)])
    if kind == "pronoun":
        return dice.pick(phrases.PRONOUNS)
    if kind == "name":
        name = dice.pick(WOMEN + MEN)
        return phrases.named(name, name in WOMEN)
    return person(dice, definite=definite)


def _count(dice: Dice, verb: Verb, noun: Noun) -> int:
    if {"count", "many"} & verb.flags and noun.group in (*_SMALL, "device") and dice.chance(0.6):
        return dice.between(13, 99)
    return dice.between(2, 12)


def thing(dice: Dice, verb: Verb, noun: Noun, who: Phrase, *, denied: bool = False, habitual: bool = False) -> Phrase:
    """Something as an object of what `who` does, his or her own perhaps; `denied`: with kein."""
    case, food = "acc", noun.group in ("food", "staple", "drink")
    adjective = _adjective(dice, noun.german, 0.4, verb.lemma)
    in_bulk = "many" in verb.flags or (verb.lemma == "verkaufen" and food)
    many = bool(noun.plural) and (in_bulk or dice.chance(0.3))
    if denied:
        return phrases.noun_phrase(noun, case, NO, plural=many and noun.group in _SMALL, adjective=adjective)
    if many and dice.chance(0.4) and not habitual:
        return phrases.noun_phrase(noun, case, BARE, adjective=adjective, count=_count(dice, verb, noun))
    own = noun.german not in SHARED and verb.lemma not in _NEVER_OWN
    choices: list[tuple[Determiner | None, float]] = [(A, 4.0)]
    if verb.lemma != "haben" and not (habitual and food):
        choices += [(THE, 4.0), (THIS, 0.0 if habitual else 1.0)]
    if own and who.own and (not food or verb.lemma in ("essen", "trinken")):
        choices.append((who.own, 3.0))
    if own and noun.plural and not food and not habitual:
        choices.append((None, 2.0))
    determiner = dice.weighted(choices)
    if determiner is None:
        whose = _owner(dice, noun)
        many = many and noun.group != "building"
        return phrases.noun_phrase(noun, case, THE, plural=many, adjective=adjective, owner=whose)
    if determiner == A and not noun.plural:  # milk
        determiner = BARE
    if many and (
        (determiner == A and noun.group not in _SMALL) or (determiner == who.own and noun.group == "building")
    ):
        many = "many" in verb.flags
    if determiner == A and (verb.lemma in ("vergessen", "verlieren", "suchen") or noun.german == "Kartoffel"):
        many = noun.german == "Kartoffel"
    return phrases.noun_phrase(noun, case, determiner, plural=many, adjective=adjective)
