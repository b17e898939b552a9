"""How often protected text comes through a translation exactly once, and what it costs in chrF. For example:

    .venv/bin/python experiments/protected_text.py checkpoints/multi30k_de_en_plain \\
        --source test_2016_flickr.de --reference test_2016_flickr.en

Every kind of protected text is put into real sentences at random places between words (the seed is fixed), for a
glossary into the glossary. `kept` counts lines in which each stands exactly once before any line is translated in
chunks, `in the end` all lines; chrF is that of the text around it, beside that of the sentences without it.
Prints a Markdown table.
"""

import argparse
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from alignments import read_aligned_pairs

from transformer_cli import Translator
from transformer_cli.evaluation.evaluate import corpus_metric
from transformer_cli.protected.protector import Protector
from transformer_cli.protected.segments import join_segments, segment_line
from transformer_cli.protected.spans import Glossary, find_spans
from transformer_cli.text.lines import read_lines

PAIRS = Path(__file__).with_name("hand_aligned.de-en.tsv")
NAME = "{{name}}"
MASKS = ("7", "XYZ", "London")  # words for a model to copy
TERMS = {  # what no model says by itself, and what the reference says
    "Mann": ("zorbman", "man"), "Frau": ("quilma", "woman"), "Hund": ("vuffle", "dog"), "Kind": ("yngle", "child"),
    "Wasser": ("plimmer", "water"), "Junge": ("brodkin", "boy"), "Hemd": ("shurve", "shirt"), "Ball": ("orlup", "ball"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A sentence with protected text in it."""

    line: str
    spans: tuple[str, ...]  # which the translation holds once each


def between_words(line: str, rng: random.Random, spans: Sequence[str]) -> Case:
    """Each span between words somewhere, or at an end."""
    words = line.split()
    for span in spans:
        words.insert(rng.randrange(len(words) + 1), span)
    return Case(" ".join(words), tuple(spans))


def around_words(line: str, rng: random.Random, opening: str, closing: str) -> Case:
    """A pair of tags around one to three words."""
    words = line.split()
    first = rng.randrange(len(words))
    last = min(len(words) - 1, first + rng.randrange(3))
    words[first] = opening + words[first]
    words[last] += closing
    return Case(" ".join(words), (opening, closing))


Make = Callable[[str, random.Random, int], Case]
KINDS: dict[str, Make] = {
    "URL": lambda line, rng, n: between_words(line, rng, [f"https://example.org/seite/{n}?q=bild"]),
    "e-mail address": lambda line, rng, n: between_words(line, rng, [f"info{n}@example.org"]),
    "`{{name}}`": lambda line, rng, n: between_words(line, rng, [f"{{{{name_{n}}}}}"]),
    "`{name}`": lambda line, rng, n: between_words(line, rng, [f"{{name_{n}}}"]),
    "`%s`, `%d`": lambda line, rng, n: between_words(line, rng, [("%s", "%d", "%(count)d", "%1$s")[n % 4]]),
    "single tag": lambda line, rng, n: between_words(line, rng, [("<br/>", '<img src="a.png"/>')[n % 2]]),
    "pair of tags": lambda line, rng, n: around_words(line, rng, "<b>", "</b>"),
    "adjacent tags": lambda line, rng, n: around_words(line, rng, "<p><i>", "</i></p>"),
    "three at once": lambda line, rng, n: between_words(line, rng, ["{{a}}", "www.example.org", "%s"]),
}


def replaced_nouns(path: Path) -> list[tuple[str, str, str]]:
    """Hand-aligned pairs with a noun linked to a word that is linked to it alone: source, noun, target with NAME."""
    found = []
    for pair in read_aligned_pairs(path):
        source, target = pair.source.split(), pair.target.split()
        for place, word in enumerate(source):
            noun = word.rstrip(".,")
            links = [link for link in pair.possible if link[0] == place]
            if not place or not noun[0].isupper() or len(links) != 1:
                continue
            own = links[0][1]
            if sum(link[1] == own for link in pair.possible) == 1:
                end = target[own][len(target[own].rstrip(".,")) :]
                found.append((pair.source, noun, " ".join([*target[:own], NAME + end, *target[own + 1 :]])))
    return found


def in_segments(translator: Translator, lines: Sequence[str]) -> list[str]:
    """Lines translated as those are for which everything else failed."""
    split = [segment_line(line, find_spans(line)) for line in lines]
    texts = [[segment.text for segment in one if segment.text] for one in split]
    parts = iter(translator.translate([text for own in texts for text in own]))
    return [join_segments(one, [next(parts) for _ in own]) for one, own in zip(split, texts, strict=True)]


def without(line: str, spans: Sequence[str]) -> str:
    """A translation without its protected text."""
    for span in spans:
        line = line.replace(span, " ")
    return re.sub(r" (?=[.,!?])", "", " ".join(line.split()))


def once(line: str, spans: Sequence[str]) -> bool:
    return all(line.count(span) == 1 for span in spans)


def percent(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="run folder or checkpoint folder of a German-English model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=300, help="of each kind")
    parser.add_argument("--engine", default="auto", choices=["auto", "torch", "ctranslate2"])
    options = parser.parse_args()
    translator = Translator.load(options.model, device="cpu", engine=options.engine)
    pairs = list(zip(read_lines(options.source), read_lines(options.reference), strict=True))
    some = pairs[: options.sentences]

    def chrf(lines: Sequence[str], chosen: Sequence[tuple[str, str]]) -> float:
        return corpus_metric("chrf", lines, [[reference for _, reference in chosen]], "en").score

    plain = chrf(translator.translate([source for source, _ in some]), some)
    print(
        f"{len(some)} sentences of each kind, {translator.engine.name} engine; the sentences alone: chrF {plain:.1f}\n"
    )
    print("| | kept | in the end | chrF | cost |\n|---|---|---|---|---|")

    def row(name: str, kept: int, end: int, total: int, score: float, before: float) -> None:
        print(
            f"| {name} | {percent(kept, total)} | {percent(end, total)} | {score:.1f} | {before - score:.1f} |",
            flush=True,
        )

    for name, make in KINDS.items():
        rng = random.Random(5)
        cases = [make(source, rng, number) for number, (source, _) in enumerate(some)]
        protector = Protector(translator)
        found = [one.text for one in protector.translate_lines([case.line for case in cases])]
        end = sum(once(text, case.spans) for text, case in zip(found, cases, strict=True))
        texts = [without(text, case.spans) for text, case in zip(found, cases, strict=True)]
        row(name, end - protector.tally["split_lines"], end, len(cases), chrf(texts, some), plain)

    chosen = [pair for pair in pairs if set(re.findall(r"\w+", pair[0])) & {*TERMS}][: options.sentences]
    glossary = Glossary({term: made_up for term, (made_up, _) in TERMS.items()})
    protector = Protector(translator, glossary)
    found = [one.text for one in protector.translate_lines([source for source, _ in chosen])]
    end = 0
    for number, (source, _) in enumerate(chosen):
        wanted = {made_up: len(re.findall(rf"\b{term}\b", source)) for term, (made_up, _) in TERMS.items()}
        end += all(len(re.findall(rf"\b{word}\b", found[number], re.I)) == count for word, count in wanted.items())
        for made_up, usual in TERMS.values():
            found[number] = re.sub(rf"\b{made_up}\b", usual, found[number])
            found[number] = re.sub(rf"\b{made_up.capitalize()}\b", usual.capitalize(), found[number])
    before = chrf(translator.translate([source for source, _ in chosen]), chosen)
    row("glossary", end - protector.tally["split_lines"], end, len(chosen), chrf(found, chosen), before)

    for mask in (None, *MASKS):
        rng = random.Random(5)
        cases = [between_words(source, rng, [mask or "{{name}}"]) for source, _ in some]
        found = translator.translate([case.line for case in cases])
        kept = sum(once(text, case.spans) for text, case in zip(found, cases, strict=True))
        texts = [without(text, case.spans) for text, case in zip(found, cases, strict=True)]
        name = "*not protected:* `{{name}}`" if mask is None else f"*for the model to copy:* `{mask}`"
        row(name, kept, kept, len(cases), chrf(texts, some), plain)

    cases_of_nouns = replaced_nouns(PAIRS)
    lines = [source.replace(noun, NAME, 1) for source, noun, _ in cases_of_nouns]
    references = [("", target) for *_, target in cases_of_nouns]
    protected = [one.text for one in Protector(translator).translate_lines(lines)]
    as_terms = [
        next(Protector(translator, Glossary({noun: "name"})).translate_lines([source])).text.replace("name", NAME)
        for source, noun, _ in cases_of_nouns
    ]
    print(f"\n{len(lines)} times a noun and its translation replaced by `{NAME}`\n\n| | chrF |\n|---|---|")
    print(f"| `{NAME}` left out and put back | {chrf(protected, references):.1f} |")
    print(f"| the text around it in segments | {chrf(in_segments(translator, lines), references):.1f} |")
    print(f"| the noun as a term of a glossary | {chrf(as_terms, references):.1f} |")


if __name__ == "__main__":
    main()
