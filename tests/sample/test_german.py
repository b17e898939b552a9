"""German and English inflect as a grammar book says."""

import pytest

from data.sample.make import english, german
from data.sample.make.adverbs import clock, where
from data.sample.make.clauses import Clause
from data.sample.make.dice import Dice
from data.sample.make.events import VERB
from data.sample.make.lexicon import ADJECTIVES, NOUNS, VERBS
from data.sample.make.phrases import BARE, HER, MY, NO, PRONOUNS, THE, THIS, WHICH, A, Phrase, named, noun_phrase
from data.sample.make.subordinate import clear

ADJECTIVE = {adjective.german: adjective for adjective in ADJECTIVES}

# Written out, not made from the endings' tables: nominative, accusative, dative, genitive.
DECLENSIONS = {
    ("Hund", "definite"): "der alte Hund, den alten Hund, dem alten Hund, des alten Hundes",
    ("Katze", "definite"): "die alte Katze, die alte Katze, der alten Katze, der alten Katze",
    ("Buch", "definite"): "das alte Buch, das alte Buch, dem alten Buch, des alten Buches",
    ("Kind", "definite plural"): "die alten Kinder, die alten Kinder, den alten Kindern, der alten Kinder",
    ("Hund", "indefinite"): "ein alter Hund, einen alten Hund, einem alten Hund, eines alten Hundes",
    ("Katze", "indefinite"): "eine alte Katze, eine alte Katze, einer alten Katze, einer alten Katze",
    ("Buch", "indefinite"): "ein altes Buch, ein altes Buch, einem alten Buch, eines alten Buches",
    ("Buch", "indefinite plural"): "alte Bücher, alte Bücher, alten Büchern, alter Bücher",
    ("Nachbar", "possessive"): (
        "mein alter Nachbar, meinen alten Nachbarn, meinem alten Nachbarn, meines alten Nachbarn"
    ),
    ("Nachbar", "possessive plural"): (
        "meine alten Nachbarn, meine alten Nachbarn, meinen alten Nachbarn, meiner alten Nachbarn"
    ),
    ("Junge", "this"): "dieser alte Junge, diesen alten Jungen, diesem alten Jungen, dieses alten Jungen",
    ("Brot", "negative"): "kein altes Brot, kein altes Brot, keinem alten Brot, keines alten Brotes",
    ("Milch", "bare"): "alte Milch, alte Milch, alter Milch, alter Milch",
    ("Kaffee", "bare"): "alter Kaffee, alten Kaffee, altem Kaffee, alten Kaffees",
    ("Brot", "bare"): "altes Brot, altes Brot, altem Brot, alten Brotes",
    ("Auto", "owner"): "Annas altes Auto, Annas altes Auto, Annas altem Auto, Annas alten Autos",
    ("Auto", "count"): "drei alte Autos, drei alte Autos, drei alten Autos, drei alter Autos",
}  # fmt: skip
KINDS = {
    "definite": {"determiner": THE}, "indefinite": {"determiner": A}, "possessive": {"determiner": MY},
    "this": {"determiner": THIS}, "negative": {"determiner": NO}, "bare": {"determiner": BARE},
    "owner": {"determiner": BARE, "owner": "Anna"}, "count": {"determiner": BARE, "count": 3},
}  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), DECLENSIONS, ids=str)
def test_noun_phrases_decline(name: str, kind: str) -> None:
    kind_, _, number = kind.partition(" ")
    options = KINDS[kind_]
    forms = [
        noun_phrase(NOUNS[name], case, adjective=ADJECTIVE["alt"], plural=bool(number), **options).german  # type: ignore[arg-type]
        for case in german.CASES
    ]
    assert ", ".join(forms) == DECLENSIONS[name, kind]


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        (noun_phrase(NOUNS["Apfel"], "acc", A), ("einen Apfel", "an apple")),
        (noun_phrase(NOUNS["Apfel"], "acc", A, adjective=ADJECTIVE["rot"]), ("einen roten Apfel", "a red apple")),
        (noun_phrase(NOUNS["Auto"], "acc", A, adjective=ADJECTIVE["alt"]), ("ein altes Auto", "an old car")),
        (noun_phrase(NOUNS["Auto"], "acc", NO), ("kein Auto", "a car")),
        (noun_phrase(NOUNS["Apfel"], "acc", NO, plural=True), ("keine Äpfel", "any apples")),
        (noun_phrase(NOUNS["Milch"], "acc", NO), ("keine Milch", "any milk")),
        (noun_phrase(NOUNS["Schaf"], "dat", THIS, plural=True), ("diesen Schafen", "these sheep")),
        (noun_phrase(NOUNS["Auto"], "nom", WHICH), ("welches Auto", "which car")),
        (
            noun_phrase(NOUNS["Auto"], "acc", HER, adjective=ADJECTIVE["teuer"]),
            ("ihr teures Auto", "her expensive car"),
        ),
        (noun_phrase(NOUNS["Junge"], "acc", THE, adjective=ADJECTIVE["müde"]), ("den müden Jungen", "the tired boy")),
        (noun_phrase(NOUNS["Eltern"], "dat", MY), ("meinen Eltern", "my parents")),
        (
            noun_phrase(NOUNS["Fahrrad"], "nom", THE, owner=noun_phrase(NOUNS["Schwester"], "gen", MY)),
            ("das Fahrrad meiner Schwester", "my sister's bicycle"),
        ),
        (
            noun_phrase(NOUNS["Hund"], "acc", THE, owner=noun_phrase(NOUNS["Freund"], "gen", MY, plural=True)),
            ("den Hund meiner Freunde", "my friends' dog"),
        ),
        (
            noun_phrase(NOUNS["Hund"], "dat", THE, owner=noun_phrase(NOUNS["Kind"], "gen", THE, plural=True)),
            ("dem Hund der Kinder", "the children's dog"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) and len(value) == 2 else "",
)
def test_noun_phrases_are_translated(phrase: tuple[str, str], expected: tuple[str, str]) -> None:
    assert phrase[:2] == expected


@pytest.mark.parametrize("case", ["acc", "dat"])
def test_an_object_means_one_thing(case: str) -> None:
    """Number and article can be told from the German, also where a plural looks like a singular."""
    english_of: dict[str, str] = {}
    for noun in NOUNS.values():
        for determiner in (THE, A, NO, THIS, WHICH, MY, HER, "Anna"):
            for plural in {noun.gender == "p", bool(noun.plural)}:
                whose = {"owner": determiner} if determiner == "Anna" else {}
                chosen = BARE if whose else determiner if noun.plural or determiner != A else BARE
                phrase = noun_phrase(noun, case, chosen, plural=plural, **whose)  # type: ignore[arg-type]
                assert english_of.setdefault(phrase.german, phrase.english) == phrase.english


@pytest.mark.parametrize(
    ("lemma", "forms"),
    [
        ("lesen", "lese liest liest lesen lesen"), ("essen", "esse isst isst essen essen"),
        ("waschen", "wasche wäschst wäscht waschen waschen"), ("putzen", "putze putzt putzt putzen putzen"),
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten arbeiten"), ("haben", "habe hast hat haben haben"),
        ("sammeln", "sammle sammelst sammelt sammeln sammeln"), ("einladen", "lade lädst lädt laden laden"),
        ("füttern", "füttere fütterst füttert füttern füttern"), ("öffnen", "öffne öffnest öffnet öffnen öffnen"),
        ("fahren", "fahre fährst fährt fahren fahren"), ("sehen", "sehe siehst sieht sehen sehen"),
    ],
)  # fmt: skip
def test_verbs_have_their_persons(lemma: str, forms: str) -> None:
    assert [german.present(VERB[lemma], person) for person in ("1s", "2s", "3s", "1p", "3p")] == forms.split()


def test_past_forms_take_the_plural() -> None:
    forms = {"kaufen": "kauften", "lesen": "lasen", "haben": "hatten", "aufmachen": "machten", "gehen": "gingen"}
    assert {lemma: german.past(VERB[lemma], "3p") for lemma in forms} == forms
    assert german.past(VERB["kaufen"], "1s") == "kaufte"


def test_participles_carry_ge_where_german_does() -> None:
    expected = {"aufmachen": "aufgemacht", "verkaufen": "verkauft", "reparieren": "repariert", "gehen": "gegangen",
                "einkaufen": "eingekauft", "anprobieren": "anprobiert", "essen": "gegessen"}  # fmt: skip
    assert {lemma: VERB[lemma].participle for lemma in expected} == expected
    assert {verb.lemma for verb in VERBS if verb.auxiliary == "sein"} == {
        "gehen", "fahren", "reisen", "fliegen", "laufen", "ankommen", "aufstehen", "zurückkommen"
    }  # fmt: skip


def test_numbers_say_the_ones_first() -> None:
    pairs = {2: ("zwei", "two"), 12: ("zwölf", "twelve"), 16: ("sechzehn", "sixteen"), 17: ("siebzehn", "seventeen"),
             20: ("zwanzig", "twenty"), 21: ("einundzwanzig", "twenty-one"), 30: ("dreißig", "thirty"),
             47: ("siebenundvierzig", "forty-seven"), 99: ("neunundneunzig", "ninety-nine")}  # fmt: skip
    assert {value: (german.number(value), english.number(value)) for value in pairs} == pairs
    assert len({german.number(value) for value in range(2, 100)}) == 98


def test_half_past_counts_towards_the_next_hour() -> None:
    times = {clock(Dice(seed)) for seed in range(500)}
    assert ("um halb vier", "at half past three") in times
    assert ("um Viertel nach vier", "at a quarter past four") in times
    assert all(german_time.endswith(" Uhr") for german_time, time in times if "o'clock" in time or ":" in time)


def test_places_take_the_dative_and_directions_the_accusative() -> None:
    at = {made.german: made.english for seed in range(300) if (made := where(Dice(seed), "walk", "acc"))}
    assert at["in den Garten"] == "into the garden"
    assert at["ins Kino"] == "to the cinema"
    assert at["auf den Markt"] == "to the market"
    there = {made.german: made.english for seed in range(300) if (made := where(Dice(seed), "out", "dat"))}
    assert there["im Park"] == "in the park"
    assert there["am See"] == "at the lake"
    assert there["vor der Kirche"] == "in front of the church"


@pytest.mark.parametrize(
    ("verb", "third", "ing"),
    [("go", "goes", "going"), ("wash", "washes", "washing"), ("try on", "tries on", "trying on"),
     ("write", "writes", "writing"), ("put", "puts", "putting"), ("have", "has", "having"), ("see", "sees", "seeing"),
     ("tidy up", "tidies up", "tidying up"), ("play", "plays", "playing"), ("stroke", "strokes", "stroking")],
)  # fmt: skip
def test_english_verbs(verb: str, third: str, ing: str) -> None:
    assert (english.third(verb), english.ing(verb)) == (third, ing)


def test_every_noun_and_verb_is_whole() -> None:
    for noun in NOUNS.values():
        assert noun.gender in "mfnp", noun
        assert noun.english or noun.english_plural, noun
        assert noun.german[0].isupper() or noun.gender == "p", noun
    for verb in VERBS:
        assert verb.infinitive.endswith("n"), verb
        assert verb.present.endswith("t"), verb
        assert verb.english, verb
        assert verb.english_past, verb


def test_relative_clauses_say_who_does_what_to_whom() -> None:
    woman, man = NOUNS["Frau"], NOUNS["Mann"]
    visit = VERB["besuchen"]

    def whom(subject: Phrase) -> bool:
        return clear(Clause(subject, visit, object=noun_phrase(woman, "acc", THE)), "object")

    assert not whom(named("Anna", True))  # die Frau, die Anna besucht
    assert not whom(noun_phrase(NOUNS["Lehrerin"], "nom", THE))
    assert not whom(noun_phrase(NOUNS["Lehrer"], "nom", THE, owner="Anna"))
    assert whom(noun_phrase(man, "nom", THE))  # die Frau, die der Mann besucht
    assert whom(noun_phrase(NOUNS["Kind"], "nom", THE, plural=True))  # die Frau, die die Kinder besuchen
    assert [whom(pronoun) for pronoun in PRONOUNS] == [pronoun.german != "sie" for pronoun in PRONOUNS]
    assert clear(Clause(named("Anna", True), visit, object=noun_phrase(man, "acc", THE)), "object")
    assert clear(Clause(named("Anna", True), VERB["helfen"], object=noun_phrase(woman, "dat", THE)), "object")
    assert clear(Clause(named("Anna", True), VERB["lesen"], object=noun_phrase(NOUNS["Zeitung"], "acc", THE)), "object")
    guest = noun_phrase(NOUNS["Ärztin"], "acc", THE)
    assert not clear(Clause(noun_phrase(woman, "nom", THE), visit, object=guest), "subject")
