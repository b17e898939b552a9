"""The grammar of the sample corpus: statements, questions, sentences of two clauses, mixed.

`corpus` draws from here. The same German has one English only: what cannot be told from the German never varies.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from data.sample.make import clauses, phrases, states
from data.sample.make.adverbs import REASONS
from data.sample.make.clauses import Clause
from data.sample.make.dice import Dice
from data.sample.make.events import clause, distinct
from data.sample.make.lexicon import NOUNS
from data.sample.make.phrases import PEOPLE, Phrase
from data.sample.make.referents import somebody_known
from data.sample.make.sentences import Sentence, Wanted, capital, record
from data.sample.make.subordinate import because, infinitive, relative, that, whenever

MIN_WORDS, MAX_WORDS = 4, 14


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
    meant = not {"over", "event", "stative"} & made.verb.flags
    if (made.negated or made.denied) and not made.time and outdoors and meant:
        made = replace(made, time=dice.pick(REASONS))
    front = dice.weighted(_fronts(made))
    return record("statement", clauses.german_statement(made, front) + ".", clauses.english_statement(made) + ".", made)


def rarely(made: Clause) -> bool:
    """Nie, selten: one does not ask so."""
    return made.frequency is not None and made.frequency.german in ("nie", "selten")


def yes_or_no(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """A question that begins with the verb."""
    made = clause(dice, wanted, who=somebody_known, negative=0)
    if rarely(made):
        return None
    return record("yes-no", clauses.german_question(made) + "?", clauses.english_question(made) + "?", made)


def who(dice: Dice, wanted: Wanted | None) -> Sentence:
    """Wer …?"""
    made = clause(dice, wanted, who=lambda _: Phrase("wer", "who"), negative=0)
    text = clauses.german_question(made, "wer", "subject") + "?"
    return record("wer", text, clauses.english_question(made, "who", "subject") + "?", made)


def where_or_when(dice: Dice, wanted: Wanted | None) -> Sentence | None:
    """Wo, wohin, wann: asked of a part that the clause has."""
    made = clause(dice, wanted, who=somebody_known, negative=0)
    gaps = [name for name in ("place", "direction", "time") if getattr(made, name)]
    if not gaps or made.habitual:
        return None
    gap = dice.pick(gaps)
    asked, asked_en = {"place": ("wo", "where"), "direction": ("wohin", "where"), "time": ("wann", "when")}[gap]
    left = clauses.changed(made, gap, None)
    return record(
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
        if noun.group == "family":
            return None
        which = phrases.noun_phrase(noun, other.case, phrases.WHICH, plural=other.gender == "p" and bool(noun.plural))
        made, asked, asked_en, kind = replace(made, object=which), which.german, which.english, "welch"
    else:
        human = other.pronoun or NOUNS[other.nouns[0]].group in PEOPLE
        kind = asked = "wem" if other.case == "dat" else "wen" if human else "was"
        asked_en = "who" if human else "what"
        made = replace(made, object=Phrase("", "", pronoun=True))
    text = clauses.german_question(made, asked, "object") + "?"
    return record(kind, text, clauses.english_question(made, asked_en, "object") + "?", made)


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
                capital(state.german), capital(state.english), state.kind, state.verbs, state.nouns
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
