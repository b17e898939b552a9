"""Sentences of the sample corpus: statements, questions, subordinate clauses, each with a record of what is in it.

`corpus` draws from here. The same German has one English only: what cannot be told from the German never varies.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from transformer_cli.demo import clauses, phrases
from transformer_cli.demo.clauses import BE, MODALS, Clause
from transformer_cli.demo.lexicon import NOUNS, VERBS, Noun, Verb
from transformer_cli.demo.phrases import PEOPLE, Adverb, Dice, Phrase

# How long a thing takes: one does not build a house at half past three, nor close a door for years.
_SLOW = {"bauen", "mieten", "sammeln", "wohnen", "reisen"}
_MEMORABLE = {"kaufen", "verkaufen", "besuchen", "treffen", "reparieren", "malen", "schreiben", "übersetzen", "verlieren",
              "fotografieren", "finden", "pflanzen", "schenken", "leihen", "schicken", "einladen", "fliegen"}  # fmt: skip
_DAILY = {"lesen", "schreiben", "essen", "trinken", "kochen", "putzen", "aufräumen", "waschen", "füttern", "streicheln",
          "besuchen", "anrufen", "treffen", "abholen", "fragen", "begrüßen", "helfen", "vorlesen", "erzählen", "vergessen",
          "suchen", "malen", "fotografieren", "bringen", "mitbringen", "schlafen", "arbeiten", "spielen", "warten",
          "sitzen", "tanzen", "singen", "einkaufen", "gehen", "fahren", "laufen", "aufstehen", "zuhören", "anziehen",
          "aufmachen", "zumachen", "anmachen", "ausmachen", "zeigen", "einpacken"}  # fmt: skip
_LONG_AGO = ("Monat", "Jahr", "Sommer", "im ")  # im Juni, im Jahr 1999
_SHORT = ("um ", "Pause", "Essen", "Unterricht", "Morgen", "Abend", "heute", "halb", "am ", "gestern")
_SOCIABLE = {"essen", "trinken", "kochen", "spielen", "tanzen", "singen", "warten", "arbeiten", "gehen", "fahren", "reisen",
             "fliegen", "wohnen", "einkaufen"}  # fmt: skip
_VERBS_BY_LEMMA = {verb.lemma: verb for verb in VERBS}
_TRANSITIVE = [(verb, len(verb.objects) ** 0.5) for verb in VERBS if verb.objects]
_INTRANSITIVE = [verb for verb in VERBS if not verb.objects]


class Sentence(NamedTuple):
    """A pair with its kind, its full verbs, its nouns, and verb and noun where one is the other's object."""

    german: str
    english: str
    kind: str
    verbs: tuple[str, ...]
    nouns: tuple[str, ...]
    objects: tuple[tuple[str, str], ...] = ()

    @property
    def combinations(self) -> set[tuple[str, str]]:
        """Every verb with every noun that it shares the sentence with."""
        return {(verb, noun) for verb in self.verbs for noun in self.nouns}


class Wanted(NamedTuple):
    """A verb and the noun that is to be its object."""

    verb: str
    noun: str


def possible() -> list[Wanted]:
    """Every verb with every noun it can have as an object."""
    return [Wanted(verb.lemma, noun) for verb in VERBS for noun in verb.objects]


def _suits(verb: Verb, time: Adverb) -> bool:
    """Whether one says so of such a thing: no house is built at half past three."""
    if verb.lemma in _SLOW:
        return not any(word in time.german for word in _SHORT)
    return verb.lemma in _MEMORABLE or not any(word in time.german for word in _LONG_AGO)


def _tense(dice: Dice, verb: Verb, who: Phrase, daily: bool) -> tuple[str, clauses.Modal | None]:
    if daily:
        return "present", None
    choices = [("present", 3.0), ("past", 2.0), ("perfect", 2.5), ("future", 1.0), ("modal", 1.5)]
    if "past" in verb.flags:
        choices = [("present", 1), ("past", 1)]
    elif "stative" in verb.flags:
        choices = [("present", 2), ("past", 1), ("perfect", 1)]
    elif "event" in verb.flags:
        choices = choices[1:]
    tense = dice.weighted(choices)
    if tense == "past" and who.person == "2s":  # bookish
        tense = "present" if "past" in verb.flags else "perfect"
    if tense != "modal":
        return tense, None
    modal = dice.pick(MODALS)
    return "past" if modal.past and who.person != "2s" and dice.chance(0.3) else "present", modal


def _time(dice: Dice, verb: Verb, tense: str, modal: clauses.Modal | None) -> tuple[Adverb | None, bool]:
    """A time for it, and whether it is a habit."""
    if "stative" in verb.flags:
        return None, False
    if tense in ("past", "perfect"):
        kinds = [("", 3), ("past", 7)]
    elif tense == "future" or modal:
        kinds = [("", 3), ("future", 6)]
    else:
        kinds = [("", 4), ("now", 2.5), ("future", 2), ("habit", 2 if verb.lemma in _DAILY else 0)]
    kind = dice.weighted(kinds)
    while kind:
        time = phrases.when(dice, kind)
        if _suits(verb, time):
            return time, kind == "habit"
    return None, False


def _object(dice: Dice, verb: Verb, noun: Noun | None, who: Phrase, denied: bool) -> Phrase:
    case = "dat" if "dative" in verb.flags else "acc"
    if noun is None:
        noun = NOUNS[dice.pick(verb.objects)]
        if noun.group in PEOPLE and dice.chance(0.25):
            return phrases.object_pronoun(dice, case, who)
    if noun.group in PEOPLE:
        return phrases.person(dice, case, noun=noun)
    return phrases.thing(dice, noun, case, who, counted="count" in verb.flags, negated=denied)


def clause(
    dice: Dice, wanted: Wanted | None = None, *, who: Phrase | None = None, daily: bool = False, negative: float = 0.15
) -> Clause:
    """Somebody does something; `wanted` says what with what, `daily` that it is a habit."""
    while True:
        verb = _VERBS_BY_LEMMA[wanted.verb] if wanted else _some_verb(dice)
        if daily and not wanted and verb.lemma not in _DAILY:
            continue
        made = _clause(dice, verb, NOUNS[wanted.noun] if wanted else None, who, daily, negative)
        if made is not None and _sensible(made):
            return made


def _some_verb(dice: Dice) -> Verb:
    return dice.weighted(_TRANSITIVE) if dice.chance(0.78) else dice.pick(_INTRANSITIVE)


def _sensible(made: Clause) -> bool:
    """Nobody visits himself, nor a teacher a teacher."""
    words = [NOUNS[noun].english or NOUNS[noun].english_plural for noun in made.nouns()]
    return len(set(words)) == len(words)


def _clause(
    dice: Dice, verb: Verb, noun: Noun | None, who: Phrase | None, daily: bool, negative: float
) -> Clause | None:
    who = who or phrases.subject(dice)
    tense, modal = _tense(dice, verb, who, daily)
    negated = dice.chance(negative)
    made = Clause(who, verb, tense, modal, habitual=daily)
    if verb.objects:
        denied = negated and dice.chance(0.5)
        thing = _object(dice, verb, noun, who, denied)
        denied = denied and not thing.definite and not thing.pronoun and not thing.animate
        if negated and not denied and not (thing.definite or thing.pronoun):
            return None
        made = replace(made, object=thing, denied=denied)
        negated = negated and not denied
    if "receiver" in verb.flags:
        to = phrases.object_pronoun(dice, "dat", who) if dice.chance(0.3) else phrases.person(dice, "dat")
        made = replace(made, receiver=to)
    made = replace(made, negated=negated)
    return _with_adverbs(dice, made, daily, negated or made.denied)


def _with_adverbs(dice: Dice, made: Clause, daily: bool, negative: bool) -> Clause | None:
    verb = made.verb
    if not daily:
        time, habitual = _time(dice, verb, made.tense, made.modal)
        if negative and habitual:
            return None
        made = replace(made, time=time, habitual=habitual)
    if made.time is None and not negative and verb.lemma in _DAILY and made.modal is None and dice.chance(0.25):
        often = Adverb(*dice.pick(phrases.FREQUENCIES))
        if made.tense != "future":
            made = replace(made, frequency=often, habitual=made.tense == "present")
    if verb.lemma in _SOCIABLE and dice.chance(0.2):
        friend = phrases.person(dice, "dat")
        made = replace(made, company=Adverb(f"mit {friend.german}", f"with {friend.english}", friend.nouns))
    if "put" in verb.flags:
        return replace(made, direction=phrases.where(dice, "put", "acc"))
    if verb.places:
        kind = dice.pick(verb.places)
        if "move" in verb.flags:
            return replace(made, direction=phrases.where(dice, kind, "acc"))
        needed = verb.lemma in ("wohnen", "ankommen") or (verb.lemma == "sitzen")
        if needed or (not (negative and verb.objects) and dice.chance(0.45 if verb.objects else 0.7)):
            return replace(made, place=phrases.where(dice, kind, "dat"))
    return made


def _sentence(kind: str, german: str, english: str, *parts: Clause, nouns: tuple[str, ...] = ()) -> Sentence:
    german, english = german[0].upper() + german[1:], english[0].upper() + english[1:]
    verbs = tuple(part.verb.lemma for part in parts if part.verb is not BE)
    used = tuple(noun for part in parts for noun in part.nouns()) + nouns
    objects = tuple(
        (part.verb.lemma, part.object.nouns[0]) for part in parts if part.object is not None and part.object.nouns
    )
    return Sentence(german, english, kind, verbs, used, objects)


def _fronts(made: Clause) -> list[tuple[str, float]]:
    """What may stand before the verb. An object only where its case shows that it is none of the subject."""
    fronts = [("subject", 5.0)]
    if made.time:
        fronts.append(("time", 5.0))
    if made.place:
        fronts.append(("place", 2.0))
    thing = made.object
    if thing and not thing.pronoun and thing.definite and (thing.gender == "m" or thing.case == "dat"):
        fronts.append(("object", 0.8))
    return fronts


def statement(dice: Dice, wanted: Wanted | None) -> Sentence:
    made = clause(dice, wanted)
    front = dice.weighted(_fronts(made))
    return _sentence(
        "statement", clauses.german_statement(made, front) + ".", clauses.english_statement(made) + ".", made
    )


def yes_or_no(dice: Dice, wanted: Wanted | None) -> Sentence:
    made = clause(dice, wanted, negative=0)
    return _sentence("yes-no", clauses.german_question(made) + "?", clauses.english_question(made) + "?", made)


def who(dice: Dice, wanted: Wanted | None) -> Sentence:
    asked = Phrase("wer", "who", own=None, animate=True)
    made = clause(dice, wanted, who=asked)
    german = clauses.german_question(made, "wer", "subject") + "?"
    return _sentence("who", german, clauses.english_question(made, "who", "subject") + "?", made)


def where_or_when(dice: Dice, wanted: Wanted | None) -> Sentence:
    """Wo, wohin, wann: asked of a part that the clause has."""
    while True:
        made = clause(dice, wanted, negative=0)
        gaps = [name for name in ("place", "direction", "time") if getattr(made, name)]
        if gaps and not made.habitual:
            break
        if wanted and not made.verb.places:
            made = replace(made, time=Adverb("", ""))
            gaps = ["time"]
            if "stative" not in made.verb.flags:
                break
            return statement(dice, wanted)
    gap = dice.pick(gaps)
    asked, asked_en = {"place": ("wo", "where"), "direction": ("wohin", "where"), "time": ("wann", "when")}[gap]
    german = clauses.german_question(made, asked, gap) + "?"
    left = replace(made, **{gap: None})
    return _sentence("where", german, clauses.english_question(made, asked_en, gap) + "?", left)


def what(dice: Dice, wanted: Wanted | None) -> Sentence:
    """Was, wen, wem; or welches Buch."""
    while True:
        made = clause(dice, wanted, negative=0)
        if made.object is not None:
            break
    thing = made.object
    human = thing.pronoun or NOUNS[thing.nouns[0]].group in PEOPLE
    if wanted or (not thing.pronoun and dice.chance(0.6)):
        noun = NOUNS[thing.nouns[0]]
        many = thing.gender == "p" and bool(noun.plural)
        which = phrases.noun_phrase(noun, thing.case, phrases.WHICH, plural=many)
        made = replace(made, object=which)
        asked, asked_en = which.german, which.english
    else:
        asked = {"acc": "wen" if human else "was", "dat": "wem"}[thing.case]
        asked_en = "who" if human else "what"
        made = replace(made, object=Phrase("", "", pronoun=True))
    german = clauses.german_question(made, asked, "object") + "?"
    return _sentence("what", german, clauses.english_question(made, asked_en, "object") + "?", made)


_SAYING = [("ich weiß", "I know"), ("ich glaube", "I think"), ("sie sagt", "she says"), ("er hat gesagt", "he said"),
           ("wir hoffen", "we hope"), ("es ist schön", "it is nice"), ("Anna glaubt", "Anna thinks"),
           ("ich habe gehört", "I heard"), ("sie haben uns erzählt", "they told us")]  # fmt: skip
_ASKING = [("ich weiß nicht", "I do not know"), ("er fragt", "he asks"), ("sie wollte wissen", "she wanted to know"),
           ("weißt du", "do you know"), ("niemand weiß", "nobody knows")]  # fmt: skip


def that(dice: Dice, wanted: Wanted | None) -> Sentence:
    """A clause with dass or ob."""
    made = clause(dice, wanted)
    conjunction, (opening, opening_en) = dice.weighted(
        [(("dass", "that"), 2), (("ob", "whether"), 1)]
    ), ("", "")  # fmt: skip
    opening, opening_en = dice.pick(_SAYING if conjunction[0] == "dass" else _ASKING)
    end = "?" if opening == "weißt du" else "."
    german = f"{opening}, {clauses.german_subordinate(made, conjunction[0])}{end}"
    return _sentence("that", german, f"{opening_en} {conjunction[1]} {clauses.english_statement(made)}{end}", made)


KINDS: list[tuple[Callable[[Dice, Wanted | None], Sentence], float]] = [
    (statement, 34), (yes_or_no, 10), (who, 4), (where_or_when, 5), (what, 7), (that, 10),
]  # fmt: skip


def sentence(dice: Dice, wanted: Wanted | None = None) -> Sentence:
    """A sentence of any kind; with a verb and an object that are wanted."""
    return dice.weighted(KINDS)(dice, wanted)
