"""Sentences of the sample corpus: statements, questions, subordinate clauses, each with a record of what is in it.

`corpus` draws from here. The same German has one English only: what cannot be told from the German never varies.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from transformer_cli.demo import clauses, german, phrases, states
from transformer_cli.demo.adverbs import REASONS, Adverb
from transformer_cli.demo.clauses import BE, Clause
from transformer_cli.demo.dice import Dice
from transformer_cli.demo.events import FITTING, VERB, clause, distinct, person, somebody_known
from transformer_cli.demo.lexicon import NOUNS, VERBS
from transformer_cli.demo.phrases import PEOPLE, THE, Phrase, pronoun_for

MIN_WORDS, MAX_WORDS = 4, 14


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


Wanted = tuple[str, str]  # a verb and the noun that is to be its object


def possible() -> list[Wanted]:
    """Every verb with every noun it can have as an object."""
    return [(verb.lemma, noun) for verb in VERBS for noun in verb.objects]


def _sentence(
    kind: str, text: str, text_en: str, *parts: Clause, nouns: tuple[str, ...] = (), verbs: tuple[str, ...] = ()
) -> Sentence:
    verbs += tuple(part.verb.lemma for part in parts if part.verb is not BE)
    used = tuple(noun for part in parts for noun in part.nouns()) + nouns
    objects = tuple((one.verb.lemma, one.object.nouns[0]) for one in parts if one.object and one.object.nouns)
    return Sentence(_capital(text), _capital(text_en), kind, verbs, used, objects)


def _fronts(made: Clause) -> list[tuple[str, float]]:
    """What may stand before the verb. An object only where its case shows that it is not the subject."""
    fronts = [("subject", 5.0)]
    if made.time:
        fronts.append(("time", 5.0))
    if made.place and not made.negated:
        fronts.append(("place", 2.0))
    other = made.object
    article = other.german.split()[0].lower() if other and not other.pronoun and other.definite else ""
    if article.endswith(("en", "em")) or (article.endswith("er") and other and other.case == "dat"):
        fronts.append(("object", 2.0))
    return fronts


_OUTSIDE = {"pflanzen", "fotografieren", "besuchen", "abholen", "reparieren", "bauen", "aufräumen"}


def statement(dice: Dice, wanted: Wanted | None) -> Sentence:
    """A main clause, the verb second."""
    made = clause(dice, wanted)
    outdoors = {"out", "shop", "walk", "ride", "trip"} & set(made.verb.places) or made.verb.lemma in _OUTSIDE
    if (made.negated or made.denied) and not made.time and outdoors:
        made = replace(made, time=dice.pick(REASONS))
    front = dice.weighted(_fronts(made))
    return _sentence(
        "statement", clauses.german_statement(made, front) + ".", clauses.english_statement(made) + ".", made
    )


def rarely(made: Clause) -> bool:
    """Nie, selten: one does not ask so."""
    return made.frequency is not None and made.frequency.german in ("nie", "selten")


def yes_or_no(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """A question that begins with the verb."""
    made = clause(dice, wanted, who=somebody_known, negative=0)
    if rarely(made):
        return None
    return _sentence("yes-no", clauses.german_question(made) + "?", clauses.english_question(made) + "?", made)


def who(dice: Dice, wanted: Wanted | None) -> Sentence:
    """Wer …?"""
    made = clause(dice, wanted, who=lambda _: Phrase("wer", "who"), negative=0)
    text = clauses.german_question(made, "wer", "subject") + "?"
    return _sentence("wer", text, clauses.english_question(made, "who", "subject") + "?", made)


def where_or_when(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """Wo, wohin, wann: asked of a part that the clause has."""
    made = clause(dice, wanted, who=somebody_known, negative=0)
    gaps = [name for name in ("place", "direction", "time") if getattr(made, name)]
    if not gaps or made.habitual:
        return None
    gap = dice.pick(gaps)
    asked, asked_en = {"place": ("wo", "where"), "direction": ("wohin", "where"), "time": ("wann", "when")}[gap]
    left = clauses.changed(made, gap, None)
    return _sentence(
        asked, clauses.german_question(left, asked) + "?", clauses.english_question(left, asked_en) + "?", left
    )


def what(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """Was, wen, wem; or welches Buch."""
    made = clause(dice, wanted, who=somebody_known, negative=0)
    other = made.object
    if other is None or rarely(made) or made.verb.lemma in ("vorlesen", "kennen", "haben"):
        return None
    if not other.pronoun and (wanted or dice.chance(0.5)):
        noun = NOUNS[other.nouns[0]]
        which = phrases.noun_phrase(noun, other.case, phrases.WHICH, plural=other.gender == "p" and bool(noun.plural))
        made, asked, asked_en, kind = replace(made, object=which), which.german, which.english, "welch"
    else:
        human = other.pronoun or NOUNS[other.nouns[0]].group in PEOPLE
        kind = asked = "wem" if other.case == "dat" else "wen" if human else "was"
        asked_en = "who" if human else "what"
        made = replace(made, object=Phrase("", "", pronoun=True))
    text = clauses.german_question(made, asked, "object") + "?"
    return _sentence(kind, text, clauses.english_question(made, asked_en, "object") + "?", made)


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
    return _sentence(word, text, f"{opening_en} {word_en} {clauses.english_statement(made)}{end}", made)


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
    if made.object and made.object.definite and made.verb.lemma in _FAULTS:
        taken, state = pronoun_for(made.object), Adverb(*dice.pick(_FAULTS[made.verb.lemma]))
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
    return _sentence("weil", text, text_en, made, reason)


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
        return _sentence("wenn", f"{text}, {sub}.", f"{text_en} {sub_en}.", made, nouns=nouns)
    text, text_en = clauses.german_question(made), clauses.english_statement(made)
    return _sentence("wenn", f"{sub}, {text}.", f"{sub_en}, {text_en}.", made, nouns=nouns)


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
    if noun.group == "family" or not (noun.plural or head.gender != "p"):
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
    return _sentence(f"relative-{case}", text, text_en, left, verbs=("kennen",) * (frame == "know"))


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
        return _sentence("zu", text, text_en, made)
    helper = german.present(VERB["haben"], made.subject.person)
    attempt, attempt_en = dice.pick(_ATTEMPTS if made.verb.lemma in _BEGUN else _ATTEMPTS[:2])
    text = f"{made.subject.german} {helper} {attempt}, {to}."
    verbs = ("vergessen",) * (attempt == "vergessen")
    return _sentence("zu", text, f"{made.subject.english} {attempt_en} {to_en}.", made, verbs=verbs)


Maker = Callable[[Dice, Wanted | None], Sentence | None]
_KINDS: list[tuple[Maker, float]] = [
    (statement, 34), (yes_or_no, 9), (who, 4), (where_or_when, 8), (what, 7), (that, 9), (because, 22), (whenever, 5),
    (relative, 11), (infinitive, 10),
]  # fmt: skip
_STATES_OF_THINGS: list[tuple[Callable[[Dice], states.State], float]] = [
    (states.description, 5), (states.comparison, 2), (states.position, 4), (states.age_or_price, 4),
    (states.belonging, 2), (states.liking, 2), (states.there_is, 2),
]  # fmt: skip
_SHARE_OF_STATES = 0.14


def sentence(dice: Dice, wanted: Wanted | None = None) -> Sentence:
    """A sentence of any kind; with a verb and an object that are wanted."""
    while True:
        if wanted is None and dice.chance(_SHARE_OF_STATES):
            state = dice.weighted(_STATES_OF_THINGS)(dice)
            made: Sentence | None = Sentence(
                _capital(state.german), _capital(state.english), state.kind, state.verbs, state.nouns
            )
        else:
            made = dice.weighted(_KINDS)(dice, wanted)
        if made and distinct(made.nouns) and _everyday(made):
            return made


def _everyday(made: Sentence) -> bool:
    """Neither short nor long, and no `try on on Monday`."""
    words = made.english.split()
    lengths = len(made.german.split()), len(words)
    if any(word == after for word, after in pairwise(words)):
        return False
    return lengths[0] >= MIN_WORDS and max(lengths) <= MAX_WORDS


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
