"""A German–English toy corpus made by a small grammar: dates, numbers, colours, who bought what, where.

`make demo` runs it (`python -m transformer_cli.demo_corpus FOLDER`). The same seed writes the same bytes.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_cli.errors import UserError

SPLITS = {"train": 12_000, "valid": 300, "test": 300}  # sentence pairs

Pair = tuple[str, str]


def _lexicon(text: str) -> list[Pair]:
    """`rot = red, blau = blue` as pairs."""
    return [(german.strip(), english.strip()) for german, english in (entry.split("=") for entry in text.split(","))]


MONTHS = _lexicon(
    "Januar = January, Februar = February, März = March, April = April, Mai = May, Juni = June, Juli = July,"
    "August = August, September = September, Oktober = October, November = November, Dezember = December"
)
DAYS = _lexicon(
    "Montag = Monday, Dienstag = Tuesday, Mittwoch = Wednesday, Donnerstag = Thursday, Freitag = Friday,"
    "Samstag = Saturday, Sonntag = Sunday"
)
ONES = _lexicon(
    "zwei = two, drei = three, vier = four, fünf = five, sechs = six, sieben = seven, acht = eight, neun = nine"
)
TENS = _lexicon(
    "zwanzig = twenty, dreißig = thirty, vierzig = forty, fünfzig = fifty, sechzig = sixty, siebzig = seventy,"
    "achtzig = eighty, neunzig = ninety"
)
ADJECTIVES = _lexicon(
    "rot = red, blau = blue, grün = green, gelb = yellow, schwarz = black, weiß = white, klein = small, groß = big,"
    "alt = old, neu = new, schön = beautiful"
)
PEOPLE = _lexicon(
    "Anna = Anna, Peter = Peter, Maria = Maria, Thomas = Thomas, die Frau = the woman, der Mann = the man,"
    "das Kind = the child, mein Bruder = my brother, deine Mutter = your mother"
)
PLACES = _lexicon(
    "im Garten = in the garden, in der Küche = in the kitchen, vor dem Haus = in front of the house,"
    "in der Stadt = in the city, am See = at the lake, hinter der Tür = behind the door,"
    "unter dem Tisch = under the table, auf dem Markt = at the market"
)
CITIES = _lexicon("Berlin = Berlin, Wien = Vienna, Köln = Cologne, Zürich = Zurich, München = Munich")
VERBS = _lexicon(  # past and participle
    "kaufte gekauft = bought, verkaufte verkauft = sold, fand gefunden = found, malte gemalt = painted,"
    "verlor verloren = lost, suchte gesucht = looked for"
)


class Noun(NamedTuple):
    """A countable thing; `gender` is m, f or n. English plurals all end in s."""

    gender: str
    german: str
    german_plural: str
    english: str


_NOUNS = _lexicon(
    "m Hund Hunde = dog, m Apfel Äpfel = apple, m Ball Bälle = ball, m Stuhl Stühle = chair, m Hut Hüte = hat,"
    "m Vogel Vögel = bird, f Katze Katzen = cat, f Lampe Lampen = lamp, f Blume Blumen = flower,"
    "f Tasche Taschen = bag, f Uhr Uhren = clock, f Jacke Jacken = jacket, n Buch Bücher = book,"
    "n Auto Autos = car, n Boot Boote = boat, n Fahrrad Fahrräder = bicycle, n Bild Bilder = picture"
)
NOUNS = [Noun(gender, one, many, english) for (gender, one, many), english in ((g.split(), e) for g, e in _NOUNS)]
DEFINITE = {"m": ("der", "den"), "f": ("die", "die"), "n": ("das", "das")}  # nominative, accusative
INDEFINITE = {"m": ("einen", "en"), "f": ("eine", "e"), "n": ("ein", "es")}  # accusative, and the adjective's ending


def _number(rng: random.Random) -> Pair:
    """Two to ninety-nine in words: German puts the ones first."""
    (one, one_en), (ten, ten_en) = rng.choice(ONES), rng.choice(TENS)
    return rng.choice([(one, one_en), (ten, ten_en), (f"{one}und{ten}", f"{ten_en}-{one_en}")])


def _things(rng: random.Random) -> Pair:
    """An object in the accusative: `einen roten Ball`, `den roten Ball` or `zwei rote Bälle`."""
    noun, (adjective, english) = rng.choice(NOUNS), rng.choice(ADJECTIVES)
    kind = rng.randrange(3)
    if kind == 0:
        article, ending = INDEFINITE[noun.gender]
        a = "an" if english[0] in "aeiou" else "a"
        return f"{article} {adjective}{ending} {noun.german}", f"{a} {english} {noun.english}"
    if kind == 1:
        ending = "en" if noun.gender == "m" else "e"
        return f"{DEFINITE[noun.gender][1]} {adjective}{ending} {noun.german}", f"the {english} {noun.english}"
    count, count_en = _number(rng)
    return f"{count} {adjective}e {noun.german_plural}", f"{count_en} {english} {noun.english}s"


def _time(rng: random.Random) -> Pair:
    """A date, a day, a year or an hour."""
    kind = rng.randrange(4)
    if kind == 0:
        day, (month, english) = rng.randint(1, 28), rng.choice(MONTHS)
        return f"am {day}. {month}", f"on {day} {english}"
    if kind == 1:
        german, english = rng.choice(DAYS)
        return f"am {german}", f"on {english}"
    if kind == 2:
        year = str(rng.randint(1900, 2030))
        return f"im Jahr {year}", f"in {year}"
    hour = str(rng.randint(1, 12))
    return f"um {hour} Uhr", f"at {hour} o'clock"


def _sentence(rng: random.Random) -> Pair:
    """One sentence pair of one of eight patterns, each ordering its words as its language does."""
    (who, who_en), (where, where_en) = rng.choice(PEOPLE), rng.choice(PLACES)
    (when, when_en), (what, what_en) = _time(rng), _things(rng)
    verb, verb_en = rng.choice(VERBS)
    past, participle = verb.split()
    noun, (adjective, adjective_en), (city, city_en) = rng.choice(NOUNS), rng.choice(ADJECTIVES), rng.choice(CITIES)
    the_thing = f"{DEFINITE[noun.gender][0]} {adjective}e {noun.german}"
    the_thing_en = f"the {adjective_en} {noun.english}"
    return rng.choice(
        [
            (f"{when} {past} {who} {what}.", f"{when_en} {who_en} {verb_en} {what_en}."),
            (f"{who} hat {when} {what} {participle}.", f"{who_en} {verb_en} {what_en} {when_en}."),
            (f"{who} {past} {what} {where}.", f"{who_en} {verb_en} {what_en} {where_en}."),
            (f"ich weiß, dass {who} {what} {participle} hat.", f"I know that {who_en} {verb_en} {what_en}."),
            (f"wer {past} {what} {where}?", f"who {verb_en} {what_en} {where_en}?"),
            (f"wo ist {the_thing}?", f"where is {the_thing_en}?"),
            (f"{the_thing} ist {where}.", f"{the_thing_en} is {where_en}."),
            (f"{when} fährt {who} nach {city}.", f"{who_en} is going to {city_en} {when_en}."),
        ]
    )


def demo_pairs(seed: int = 1) -> Iterator[Pair]:
    """Endless German–English sentence pairs, none twice."""
    rng, seen = random.Random(seed), set()
    while True:
        pair = _sentence(rng)
        if pair not in seen:
            seen.add(pair)
            yield pair[0][0].upper() + pair[0][1:], pair[1][0].upper() + pair[1][1:]


def write_demo_corpus(folder: Path, seed: int = 1) -> None:
    """Write `train`, `valid` and `test` as `.de` and `.en` into `folder`; no pair stands in two of them."""
    pairs = demo_pairs(seed)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, size in SPLITS.items():
            lines = [next(pairs) for _ in range(size)]
            for column, language in enumerate(("de", "en")):
                text = "".join(pair[column] + "\n" for pair in lines)
                (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{folder}: cannot write the demo corpus: {error.strerror}; name another folder") from None


def main(arguments: list[str]) -> int:
    """`python -m transformer_cli.demo_corpus FOLDER`."""
    if len(arguments) != 1:
        print("usage: python -m transformer_cli.demo_corpus FOLDER", file=sys.stderr)
        return 2
    try:
        write_demo_corpus(Path(arguments[0]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sizes = ", ".join(f"{size:,} {split}" for split, size in SPLITS.items())
    print(f"{arguments[0]}: {sizes} sentence pairs, German and English", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
