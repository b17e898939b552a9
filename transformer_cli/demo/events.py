"""Who does what with what, when and where: clauses chosen so that they make sense."""

from collections.abc import Callable
from dataclasses import replace

from transformer_cli.demo import phrases
from transformer_cli.demo.adverbs import FREQUENCIES, Adverb, suits, when, where
from transformer_cli.demo.clauses import MODALS, Clause, Modal
from transformer_cli.demo.dice import Dice
from transformer_cli.demo.lexicon import ADJECTIVES, NOUNS, VERBS, Adjective, Noun, Verb
from transformer_cli.demo.phrases import BARE, MY, NO, OUR, PEOPLE, THE, THIS, YOUR, A, Determiner, Phrase, name_of
from transformer_cli.demo.words import MEN, WOMEN

VERB = {verb.lemma: verb for verb in VERBS}
_TRANSITIVE = [(verb, len(verb.objects) ** 0.5) for verb in VERBS if verb.objects]
_INTRANSITIVE = [verb for verb in VERBS if not verb.objects]
FITTING = {name: [adjective for adjective in ADJECTIVES if name in adjective.nouns] for name in NOUNS}
_SMALL = ("food", "text", "thing", "plant", "clothes", "animal")  # said in the plural without article: he buys apples
_MOODS = {"müde", "krank", "glücklich", "traurig", "hungrig"}
_NO_PLURAL = {"Vater", "Mutter", "Großvater", "Großmutter"}
_CHILDREN = {"Kind", "Junge", "Mädchen", "Schüler"}
_ADULT = {"verkaufen", "mieten", "bauen", "bestellen", "bezahlen", "übersetzen", "arbeiten", "kochen"}
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
_DRESSING = {"anziehen", "ausziehen", "anprobieren"}
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


def _pronoun(dice: Dice, case: str, subject: Phrase) -> Phrase:
    """Him, us, …; never the subject itself."""
    same = {"1": "1", "2": "2", "3": "-"}[subject.person[0]]
    again = "3" if subject.pronoun and subject.person[0] == "3" else same
    choices = [one for one in phrases.OBJECT_PRONOUNS if one.case == case and one.person[0] != again]
    return dice.pick(choices)


def _tense(dice: Dice, verb: Verb, who: Phrase, daily: bool) -> tuple[str, Modal | None]:
    if daily:
        return "present", None
    choices = [("present", 3.0), ("past", 2.0), ("perfect", 2.5), ("future", 1.0), ("modal", 1.5)]
    if "past" in verb.flags:
        choices = [("present", 1.0), ("past", 1.0)]
    elif "stative" in verb.flags:
        choices = [("present", 2.0), ("past", 1.0), ("perfect", 1.0)]
    elif "over" in verb.flags:
        choices = [("past", 1.0), ("perfect", 1.0)]
    elif "event" in verb.flags:
        choices = choices[1:]
    tense = dice.weighted(choices)
    if tense == "past" and who.person == "2s":  # bookish
        tense = "present" if "past" in verb.flags else "perfect"
    if tense != "modal":
        return tense, None
    modal = dice.pick(MODALS[:3] if "event" in verb.flags else MODALS)  # nobody is allowed to find something
    return "past" if modal.past and who.person != "2s" and dice.chance(0.3) else "present", modal


def _time(dice: Dice, verb: Verb, tense: str, modal: Modal | None) -> tuple[Adverb | None, bool]:
    """A time for it, and whether it is a habit."""
    if "stative" in verb.flags and not (verb.lemma == "sehen" and tense != "present"):
        return None, False
    if tense in ("past", "perfect"):
        kinds = [("", 3.0), ("past", 7.0)]
    elif tense == "future" or modal:
        kinds = [("", 4.0), ("future", 6.0)]
    else:
        flags = verb.flags
        kinds = [("", 4.0), ("now", 2.5), ("future", 2.0 * ("planned" in flags)), ("habit", 2.0 * ("daily" in flags))]
    kind = dice.weighted(kinds)
    while kind:
        time = when(dice, kind)
        if suits(verb, time):
            return time, kind == "habit"
    return None, False


def clause(
    dice: Dice,
    wanted: tuple[str, str] | None = None,
    *,
    who: Callable[[Dice], Phrase] = somebody,
    verb: str = "",
    daily: bool = False,
    negative: float = 0.15,
) -> Clause:
    """Somebody does something. `wanted` says what with what (verb and noun), `daily` that it is a habit."""
    while True:
        chosen = VERB[wanted[0]] if wanted else VERB[verb] if verb else _some_verb(dice)
        if daily and not wanted and ("daily" not in chosen.flags or "over" in chosen.flags):
            continue
        made = _clause(dice, chosen, NOUNS[wanted[1]] if wanted else None, who(dice), daily, negative)
        if made is not None and sensible(made):
            return made


def _some_verb(dice: Dice) -> Verb:
    return dice.weighted(_TRANSITIVE) if dice.chance(0.78) else dice.pick(_INTRANSITIVE)


def distinct(nouns: tuple[str, ...]) -> bool:
    """No teacher visits a teacher, be it Lehrer or Lehrerin."""
    words = [NOUNS[noun].english or noun for noun in nouns]
    return len(set(words)) == len(words)


def sensible(made: Clause) -> bool:
    """Nobody visits himself, children rent no houses, and one sees no churches in the forest."""
    if set(made.subject.nouns[:1]) & _CHILDREN and made.verb.lemma in _ADULT:
        return False
    if made.verb.lemma in _DRESSING and made.subject.own == phrases.HIS and {"Kleid", "Rock"} & set(made.nouns()):
        return False
    seen = made.object.nouns[:1] if made.object and made.verb.lemma == "sehen" else ()
    if made.place and any(NOUNS[noun].group == "building" for noun in seen):
        return False
    return distinct(made.nouns())


def _clause(dice: Dice, verb: Verb, noun: Noun | None, who: Phrase, daily: bool, negative: float) -> Clause | None:
    tense, modal = _tense(dice, verb, who, daily)
    negated = dice.chance(negative)
    time, habitual = (None, False) if daily else _time(dice, verb, tense, modal)
    often = None
    if not time and not daily and not modal and tense != "future" and "daily" in verb.flags and dice.chance(0.25):
        often, habitual = dice.pick(FREQUENCIES), tense == "present"
    if negated and (habitual or often):
        return None
    made = Clause(who, verb, tense, modal, time=time, frequency=often, habitual=habitual or daily)
    if verb.objects:
        found = _with_object(dice, made, noun, negated)
        if found is None:
            return None
        made = found
    else:
        made = replace(made, negated=negated)
    return _with_places(dice, made)


def _with_object(dice: Dice, made: Clause, noun: Noun | None, negated: bool) -> Clause | None:
    verb, who = made.verb, made.subject
    case = "dat" if "dative" in verb.flags else "acc"
    to = None
    if "receiver" in verb.flags:
        to = _pronoun(dice, "dat", who) if dice.chance(0.3) else person(dice, "dat")
    asked = noun is None
    noun = noun or NOUNS[dice.pick(verb.objects)]
    if noun.group in PEOPLE:
        pronoun = asked and dice.chance(0.25)
        other = _pronoun(dice, case, who) if pronoun else person(dice, case, noun)
        return replace(made, object=other, negated=negated) if other.definite or not negated else None
    denied = negated and dice.chance(0.6)
    other = thing(dice, verb, noun, who, denied=denied, habitual=made.habitual)
    if negated and not denied and not other.definite:
        return None
    return replace(made, receiver=to, object=other, negated=negated and not denied, denied=denied)


def _with_places(dice: Dice, made: Clause) -> Clause:
    verb = made.verb
    if "social" in verb.flags and dice.chance(0.2):
        friend = person(dice, "dat")
        made = replace(made, company=Adverb(f"mit {friend.german}", f"with {friend.english}", friend.nouns))
    if "put" in verb.flags:
        return replace(made, direction=where(dice, "put", "acc"))
    if not verb.places:
        return made
    kind = dice.pick(verb.places)
    if "move" in verb.flags:
        return replace(made, direction=where(dice, kind, "acc"))
    chance = 1.0 if verb.lemma in ("wohnen", "ankommen", "sitzen") else 0.4 if verb.objects else 0.7
    if verb.objects and (made.negated or made.denied):
        return made
    return replace(made, place=where(dice, kind, "dat")) if dice.chance(chance) else made
