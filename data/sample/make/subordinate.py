"""Sentences of two clauses: that, whether, because, when, relative clauses, infinitives. The German verb comes last."""

from dataclasses import replace

from data.sample.make import clauses, german, phrases
from data.sample.make.adverbs import Adverb
from data.sample.make.clauses import BE, Clause
from data.sample.make.dice import Dice
from data.sample.make.events import VERB, clause
from data.sample.make.lexicon import NOUNS, VERBS
from data.sample.make.phrases import PEOPLE, THE, Phrase, pronoun_for
from data.sample.make.referents import FITTING, person
from data.sample.make.sentences import Sentence, Wanted, record
from data.sample.make.words import MEN, WOMEN

_THAT = [
    ("ich weiß", "I know"), ("ich glaube", "I think"), ("sie sagt", "she says"), ("er hat gesagt", "he said"),
    ("wir hoffen", "we hope"), ("Anna glaubt", "Anna thinks"), ("ich habe gehört", "I heard"),
    ("sie haben erzählt", "they said"),
]  # fmt: skip
_WHETHER = [
    ("ich weiß nicht", "I do not know"), ("er fragt sich", "he wonders"), ("sie wollte wissen", "she wanted to know"),
    ("weißt du", "do you know"), ("niemand weiß", "nobody knows"),
]  # fmt: skip


def that(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """A clause with dass or ob."""
    whether = dice.chance(0.35)
    made = clause(dice, wanted, negative=0 if whether else 0.15)
    opening, opening_en = dice.pick(_WHETHER if whether else _THAT)
    first = {"ich": "1s", "wir": "1p", "wei": "2s"}.get(opening[:3])
    if first == made.subject.person:
        return None
    word, word_en, end = ("ob", "whether", "?" if first == "2s" else ".") if whether else ("dass", "that", ".")
    text = f"{opening}, {clauses.german_subordinate(made, word)}{end}"
    return record(word, text, f"{opening_en} {word_en} {clauses.english_statement(made)}{end}", made)


_STATES = {
    "müde": Adverb("müde", "tired"), "krank": Adverb("krank", "ill"), "hungrig": Adverb("hungrig", "hungry"),
    "glücklich": Adverb("glücklich", "happy"), "traurig": Adverb("traurig", "sad"),
}  # fmt: skip
_BECAUSE = {"schlafen": "müde", "essen": "hungrig", "tanzen": "glücklich", "singen": "glücklich", "kochen": "hungrig"}
_DEAR, _LONG, _HOT = ("zu teuer", "too expensive"), ("zu lang", "too long"), ("zu heiß", "too hot")
_OLD, _SMALL, _BIG = ("zu alt", "too old"), ("zu klein", "too small"), ("zu groß", "too big")
_FAULTS = {
    "kaufen": (_DEAR, _OLD, _SMALL), "mieten": (_DEAR, _OLD, _SMALL), "bestellen": (_DEAR,), "bezahlen": (_DEAR,),
    "anziehen": (_OLD, _SMALL, _BIG), "anprobieren": (_DEAR, _OLD, _BIG), "einpacken": (_BIG, _OLD),
    "lesen": (_LONG,), "übersetzen": (_LONG,), "trinken": (_HOT,), "brauchen": (_OLD, _SMALL),
}  # fmt: skip
_SAID = {  # of the new car one does not say that it is too old
    "zu teuer": ("teu", "billig"), "zu lang": ("lang",), "zu heiß": ("heiß", "kalt", "frisch", "warm"),
    "zu alt": ("alt", "neu"), "zu klein": ("klein", "groß"), "zu groß": ("klein", "groß"),
}  # fmt: skip
_WEATHER = [("es regnet", "it rains"), ("es schneit", "it snows"), ("das Wetter schön ist", "the weather is nice"),
            ("die Sonne scheint", "the sun shines"), ("es warm ist", "it is warm")]  # fmt: skip


def _is(subject: Phrase, predicate: Adverb, tense: str) -> Clause:
    return Clause(subject, BE, "past" if tense in ("past", "perfect") else "present", predicate=predicate)


def _in_a_mood(who: Phrase) -> bool:
    """The sad boy: to say that he is happy would be odd."""
    return any(adjective[:4] in who.german for adjective in _STATES)


def because(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """A clause with weil: of how somebody is, or what is wrong with a thing."""
    verb = "" if wanted or dice.chance(0.4) else dice.pick(list(_BECAUSE) + list(_FAULTS))
    made = clause(dice, wanted, verb=verb, negative=0.0 if verb in _BECAUSE else 1.0)
    past = made.tense in ("past", "perfect")
    if made.modal or made.tense == "future" or made.habitual or made.frequency or made.time:
        return None
    bought = made.object.nouns[:1] if made.object and made.verb.lemma not in ("trinken", "essen", "kochen") else ()
    if any(NOUNS[noun].group in ("food", "staple", "drink") for noun in bought):
        return None  # no bread is too small
    if made.object and made.object.definite and made.verb.lemma in _FAULTS:
        taken, state = pronoun_for(made.object), Adverb(*dice.pick(_FAULTS[made.verb.lemma]))
        if any(word.startswith(_SAID[state.german]) for word in made.object.german.split()):
            return None
    elif {"planned", "daily", "social"} & made.verb.flags and not {"kaufen", "verkaufen", "mieten"} & {made.verb.lemma}:
        taken = pronoun_for(made.subject)
        state = _STATES[_BECAUSE[verb] if verb in _BECAUSE else dice.pick(["müde", "krank"])]
        if (
            taken.english == "it"
            or _in_a_mood(made.subject)
            or (taken.person == "2s" and past)
            or "over" in made.verb.flags
        ):
            return None
    else:
        return None
    reason = _is(taken, state, made.tense)
    text = f"{clauses.german_statement(made)}, {clauses.german_subordinate(reason, 'weil')}."
    text_en = f"{clauses.english_statement(made)} because {clauses.english_statement(reason)}."
    return record("weil", text, text_en, made, reason)


def whenever(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """A habit with wenn, before or after the main clause."""
    if wanted and "daily" not in VERB[wanted[0]].flags:
        return None
    made = clause(dice, wanted, daily=True, negative=0)
    taken = pronoun_for(made.subject)
    nouns: tuple[str, ...] = ()
    if dice.chance(0.5) or taken.english == "it" or _in_a_mood(made.subject):
        weather, weather_en = dice.pick(_WEATHER)
        nouns = ("Wetter",) * ("Wetter" in weather)
        sub, sub_en = f"wenn {weather}", f"when {weather_en}"
    else:
        state = _is(
            taken,
            _STATES["müde" if made.verb.lemma in ("schlafen", "sitzen") else dice.pick(["traurig", "glücklich"])],
            "present",
        )
        sub, sub_en = clauses.german_subordinate(state, "wenn"), f"when {clauses.english_statement(state)}"
    if dice.chance(0.5):
        text, text_en = clauses.german_statement(made), clauses.english_statement(made)
        return record("wenn", f"{text}, {sub}.", f"{text_en} {sub_en}.", made, nouns=nouns)
    text, text_en = clauses.german_question(made), clauses.english_statement(made)
    return record("wenn", f"{sub}, {text}.", f"{sub_en}, {text_en}.", made, nouns=nouns)


def clear(made: Clause, gap: str) -> bool:
    """Whether the German tells who did it to whom: `die Frau, die Anna besucht` does not."""
    head, other = getattr(made, gap), made.subject if gap == "object" else made.object
    if other is None or head.gender == "m" or made.object is None or made.object.case == "dat":
        return True
    if made.object.nouns and NOUNS[made.object.nouns[0]].group not in PEOPLE:
        return True  # a letter reads nobody
    if other.pronoun:
        return bool(other.german != "sie")
    if (head.person == "3p") != (other.person == "3p"):
        return True  # the verb tells
    return other.gender == "m" and bool(other.nouns) and not other.german.startswith(tuple(WOMEN + MEN))


_DATIVE = [verb.lemma for verb in VERBS if "dative" in verb.flags]


def relative(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """A relative clause: about who did it, or about what it was done to."""
    if wanted or dice.chance(0.6):
        verb = dice.pick(_DATIVE) if not wanted and dice.chance(0.2) else ""
        made = clause(dice, wanted, verb=verb, negative=0)
        gap = "object"
    else:
        made = clause(dice, who=lambda dice: person(dice, definite=True), negative=0.1)
        gap = "subject"
    head = getattr(made, gap)
    if head is None or head.pronoun or (gap == "object" and made.subject.nouns[:1] == head.nouns[:1]):
        return None
    noun = NOUNS[head.nouns[0]]
    if noun.group == "family" or not (noun.plural or head.gender != "p") or not clear(made, gap):
        return None
    return _about(dice, made, gap, noun.group in PEOPLE)


def _about(dice: Dice, made: Clause, gap: str, human: bool) -> Sentence:
    """The main clause around a relative clause."""
    head = getattr(made, gap)
    noun, plural = NOUNS[head.nouns[0]], head.gender == "p"
    case = head.case if gap == "object" else "nom"
    fits = FITTING[head.nouns[0]]
    known = ["know"] * (human or noun.group in ("text", "building"))
    frame = dice.pick(["this", "where", *known, *(["is", "is"] if fits else [])])
    short = phrases.noun_phrase(noun, "acc" if frame == "know" else "nom", THE, plural=plural)
    sub = clauses.german_subordinate(made, german.RELATIVE[case][head.gender], gap)
    head_en = f"{short.english} {'who' if human else 'that'} {clauses.english_statement(made, gap)}"
    be, be_en, this = ("sind", "are", "these are") if plural else ("ist", "is", "this is")
    adjective = dice.pick(fits) if frame == "is" else None
    text, text_en = {
        "this": (f"das {be} {short.german}, {sub}.", f"{this} {head_en}."),
        "where": (f"wo {be} {short.german}, {sub}?", f"where {be_en} {head_en}?"),
        "know": (f"ich kenne {short.german}, {sub}.", f"I know {head_en}."),
        "is": (f"{short.german}, {sub}, {be} {adjective and adjective.german}.",
               f"{head_en} {be_en} {adjective and adjective.english}."),
    }[frame]  # fmt: skip
    left = clauses.changed(made, gap, short)
    return record(f"relative-{case}", text, text_en, left, verbs=("kennen",) * (frame == "know"))


_BEGUN = {"lesen", "schreiben", "übersetzen", "essen", "kochen", "suchen", "malen", "reparieren", "putzen", "aufräumen",
          "waschen", "sammeln", "zählen", "bauen", "pflanzen", "füttern", "einpacken", "vorlesen"}  # fmt: skip
_ATTEMPTS = [
    ("versucht", "tried to"), ("vergessen", "forgot to"), ("angefangen", "began to"),
]  # fmt: skip
_OPINIONS = [("schwer", "hard"), ("leicht", "easy"), ("schön", "nice"), ("wichtig", "important")]


def infinitive(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """Somebody tried, forgot, began to do something; it is easy to do it."""
    made = clause(dice, wanted, negative=0)
    if {"stative", "over", "event"} & made.verb.flags or made.frequency or made.time or not made.object:
        return None
    to, to_en = clauses.german_infinitive(made), clauses.english_infinitive(made)
    if dice.chance(0.4):
        own = made.subject.own
        if own and (f"{own[0]} " in f"{to} " or own[0] + "e" in to) and made.subject.person[0] == "3":
            return None  # nobody there whose it could be
        impersonal, impersonal_en = dice.pick(_OPINIONS)
        made = replace(made, subject=Phrase("es", "it"))
        text, text_en = f"es ist {impersonal}, {to}.", f"it is {impersonal_en} to {to_en}."
        return record("zu", text, text_en, made)
    helper = german.present(VERB["haben"], made.subject.person)
    attempt, attempt_en = dice.pick(_ATTEMPTS if made.verb.lemma in _BEGUN else _ATTEMPTS[:2])
    text = f"{made.subject.german} {helper} {attempt}, {to}."
    verbs = ("vergessen",) * (attempt == "vergessen")
    return record("zu", text, f"{made.subject.english} {attempt_en} {to_en}.", made, verbs=verbs)
