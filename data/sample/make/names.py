"""Sentences with names and numbers that no vocabulary holds: each stands in one sentence alone, and is to be copied.

`python -m data.sample.make.names FOLDER` writes them, for configs/copy_mechanism.yaml. The same bytes every time.
Words and marks are apart by spaces, so that white space alone makes words of them.
"""

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from data.sample.make.dice import Dice

SPLITS = {"train": 6_000, "valid": 300, "test": 500}  # sentences
SIDES = ("de", "en")

# {person}, {other}: people; {place}, {town}: places; {number}; the rest is drawn from `WORDS`.
TEMPLATES = (
    ("{person} wohnt seit {number} Tagen in {place} .", "{person} has lived in {place} for {number} days ."),
    ("{past} hat {person} in {place} {number} {things} gekauft .",
     "{person} bought {number} {things} in {place} {past} ."),
    ("{person} und {other} fahren {future} nach {place} .", "{person} and {other} are going to {place} {future} ."),
    ("In {place} leben {number} Menschen .", "{number} people live in {place} ."),
    ("{job} {person} hat {other} aus {place} {number} {things} geschickt .",
     "{job} {person} has sent {number} {things} to {other} from {place} ."),
    ("Von {place} nach {town} sind es {number} Kilometer .", "It is {number} kilometres from {place} to {town} ."),
    ("{person} sagt , dass {other} {number} {things} nach {place} gebracht hat .",
     "{person} says that {other} has taken {number} {things} to {place} ."),
    ("Die Rechnung {number} wurde {past} an {person} in {place} geschickt .",
     "Invoice {number} was sent to {person} in {place} {past} ."),
    ("Der Zug {number} von {place} nach {town} fährt {future} nicht .",
     "Train {number} from {place} to {town} is not running {future} ."),
    ("Hat {person} die {number} {things} aus {place} bekommen ?",
     "Did {person} get the {number} {things} from {place} ?"),
    ("Bitte rufen Sie {person} in {place} unter der Nummer {number} an .",
     "Please call {person} in {place} at the number {number} ."),
    ("{job} {person} hat für {other} ein Zimmer in {place} bestellt .",
     "{job} {person} has booked a room in {place} for {other} ."),
    ("Weil {person} {past} krank war , kam {other} allein nach {place} .",
     "{other} came to {place} alone because {person} was ill {past} ."),
    ("{future} werden {number} Gäste aus {place} bei {person} sein .",
     "{number} guests from {place} will be at the house of {person} {future} ."),
    ("Zwischen {place} und {town} hat {person} {past} {number} {things} verloren .",
     "{person} lost {number} {things} between {place} and {town} {past} ."),
    ("Wo {other} wohnt , weiß nur {person} aus {place} .", "Only {person} from {place} knows where {other} lives ."),
)  # fmt: skip
WORDS = {
    "past": (("gestern", "yesterday"), ("am Montag", "on Monday"), ("letzte Woche", "last week"),
             ("im März", "in March"), ("vor einem Jahr", "a year ago")),
    "future": (("morgen", "tomorrow"), ("heute", "today"), ("am Freitag", "on Friday"),
               ("nächste Woche", "next week"), ("im Sommer", "in the summer")),
    "things": (("Äpfel", "apples"), ("Bücher", "books"), ("Stühle", "chairs"), ("Briefe", "letters"),
               ("rote Lampen", "red lamps"), ("kleine Kisten", "small boxes"), ("Bäume", "trees"), ("Uhren", "clocks")),
    "job": (("der Arzt", "the doctor"), ("die Lehrerin", "the teacher"), ("der Bäcker", "the baker"),
            ("die Richterin", "the judge"), ("der alte Gärtner", "the old gardener")),
}  # fmt: skip

BEGINNINGS = (
    "Al Bar Ber Bil Bor Bru Dan Del Dor Ed El Fal Fen Gar Ger Hal Har Hel Hol Il Jor Kal Ker Kol Lan Lem Lor Mal Mer "
    "Mol Nel Nor Ol Pal Pel Ral Ren Rol Sal Sel Sor Tal Tor Ul Val Vor Wal Wen Wil Zel"
)
MIDDLES = "a e i o u an en in on el il ol ar er or as es is ad ed"
PERSONS = (
    "bach bert brand dorn feld fink frank fried gart grund hahn hard kamp kern kraft land lich ling mann mark mund nau"
)
PLACES = "au beck berg born brück burg dorf eck felden furt hafen hagen heim hof ingen kirch leben rode see stadt tal"


def write_names(folder: Path) -> None:
    """Write `train`, `valid` and `test` into `folder`, each as `.de` and `.en`; no name stands in two lines."""
    pairs = sentences(Dice(1))
    folder.mkdir(parents=True, exist_ok=True)
    for split, size in SPLITS.items():
        lines = [next(pairs) for _ in range(size)]
        for place, side in enumerate(SIDES):
            text = "".join(f"{pair[place]}\n" for pair in lines)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8", newline="\n")


def sentences(dice: Dice) -> Iterator[tuple[str, str]]:
    """Pairs without end (as far as the names reach), each with names and numbers of its own."""
    seen: set[str] = set()
    fresh = {
        "person": _fresh(lambda: _name(dice, PERSONS), seen),
        "place": _fresh(lambda: _name(dice, PLACES), seen),
        "number": _fresh(lambda: str(dice.between(10, 999_999)), seen),
    }
    kinds = {"person": "person", "other": "person", "place": "place", "town": "place", "number": "number"}
    while True:
        template = dice.pick(TEMPLATES)
        fillings: tuple[dict[str, str], dict[str, str]] = ({}, {})
        for slot in dict.fromkeys(re.findall(r"{(\w+)}", template[0])):
            pair = (next(fresh[kinds[slot]]),) * 2 if slot in kinds else dice.pick(WORDS[slot])
            for filling, text in zip(fillings, pair, strict=True):
                filling[slot] = text
        source, target = (text.format(**filling) for text, filling in zip(template, fillings, strict=True))
        yield source[0].upper() + source[1:], target[0].upper() + target[1:]


def _name(dice: Dice, endings: str) -> str:
    return "".join(dice.pick(parts.split()) for parts in (BEGINNINGS, MIDDLES, endings))


def _fresh(draw: Callable[[], str], seen: set[str]) -> Iterator[str]:
    """What is drawn and was not seen before."""
    while True:
        drawn = draw()
        if drawn not in seen:
            seen.add(drawn)
            yield drawn


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(
        "python -m data.sample.make.names", description="Write sentences with names to copy."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args(arguments).folder
    try:
        write_names(folder)
    except OSError as error:
        parser.error(f"{folder}: cannot write the sentences: {error.strerror}; name another folder")
    sizes = ", ".join(f"{size:,} {split}" for split, size in SPLITS.items())
    print(f"{folder}: {sizes} sentences")


if __name__ == "__main__":
    main()
