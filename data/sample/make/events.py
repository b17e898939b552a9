"""Who does what with what, when and where: clauses chosen so that they make sense."""

from collections.abc import Callable
from dataclasses import replace

from data.sample.make import phrases
from data.sample.make.adverbs import FREQUENCIES, Adverb, suits, when, where
from data.sample.make.clauses import MODALS, Clause, Modal
from data.sample.make.dice import Dice
from data.sample.make.lexicon import NOUNS, VERBS, Noun, Verb
from data.sample.make.phrases import PEOPLE, Phrase
from data.sample.make.referents import person, somebody, thing

VERB = {verb.lemma: verb for verb in VERBS}
_TRANSITIVE = [(verb, len(verb.objects) ** 0.5) for verb in VERBS if verb.objects]
_INTRANSITIVE = [verb for verb in VERBS if not verb.objects]
_CHILDREN = {"Kind", "Junge", "Mädchen", "Schüler"}
_ADULT = {"verkaufen", "mieten", "bauen", "bestellen", "bezahlen", "übersetzen", "arbeiten", "kochen"}
_DRESSING = {"anziehen", "ausziehen", "anprobieren"}


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
