# ruff: noqa: E501
"""Faults planted into a sound corpus: each kind into lines of its own, so that what finds them can be measured."""

import random
from collections.abc import Callable

Pair = tuple[str, str]

CONTROLS = "\x00\x08\x1b\x7f\x86"
FOREIGN = "Το πρωί ο άνδρας περπατά στο δρόμο με το σκυλί του και μιλά με τη γυναίκα του."


def plant(
    pairs: list[Pair], share: float = 0.01, seed: int = 1, foreign: list[str] | None = None, block: int = 200
) -> tuple[list[Pair], dict[str, set[int]]]:
    """Return the corpus with faults, and the lines (from 1) that have each kind; foreign: texts in a third language."""
    drawn = random.Random(seed)
    pairs = list(pairs)
    planted: dict[str, set[int]] = {}
    count = max(1, int(share * len(pairs)))
    shift = drawn.choice([-1, 1])
    start = drawn.randrange(len(pairs) // 4, len(pairs) // 2)
    block = min(block, len(pairs) // 8)
    targets = [target for _, target in pairs[start : start + block]]
    for line, target in zip(range(start, start + block), [*targets[shift:], *targets[:shift]], strict=True):
        pairs[line] = (pairs[line][0], target)
    planted["misaligned"] = {line + 1 for line in range(start, start + block)}
    free = [line for line in range(len(pairs)) if not start - 20 <= line < start + block + 20 and long(pairs[line])]
    drawn.shuffle(free)
    third = foreign or [FOREIGN]
    faults: dict[str, Callable[[Pair], Pair]] = {
        "empty_side": lambda pair: drawn.choice([("", pair[1]), (pair[0], "  ")]),
        "identical_sides": lambda pair: drawn.choice([(pair[0], pair[0]), (pair[1], pair[1])]),
        "swapped_sides": lambda pair: (pair[1], pair[0]),
        "wrong_language": lambda pair: drawn.choice([(drawn.choice(third), pair[1]), (pair[0], drawn.choice(third))]),
        "length_ratio": lambda pair: drawn.choice([(pair[0] * 4, pair[1]), (pair[0], pair[1].split()[0])]),
        "too_long": lambda pair: (" ".join([pair[0]] * 60), " ".join([pair[1]] * 60)),
        "encoding_damage": lambda pair: (pair[0], f"{pair[1][:20]}Ã¼ â€œcafÃ©â€\x9d{pair[1][20:]}"),
        "control_characters": lambda pair: (pair[0], f"{pair[1][:9]}{drawn.choice(CONTROLS)}{pair[1][9:]}"),
        "markup": lambda pair: drawn.choice([(f"<b>{pair[0]}</b>", pair[1]), (pair[0], f"{pair[1]} &quot;&nbsp;")]),
        "number_mismatch": lambda pair: (f"{pair[0]} {drawn.randrange(100, 999)}", f"{pair[1]} {drawn.randrange(1000, 9999)}"),
        "url_mismatch": lambda pair: (f"{pair[0]} https://example.org/{drawn.randrange(999)}", f"{pair[1]} https://example.com/"),
        "mixed_scripts": lambda pair: (pair[0], pair[1].replace("a", "а", 2).replace("e", "е", 1)),
    }  # fmt: skip
    for kind, fault in faults.items():
        chosen, free = free[:count], free[count:]
        for line in chosen:
            pairs[line] = fault(pairs[line])
        planted[kind] = {line + 1 for line in chosen}
    chosen, free = free[:count], free[count:]
    planted["template"] = {line + 1 for line in chosen}
    for line in chosen:
        number = drawn.randrange(10_000)
        pairs[line] = (f"Seite {number} von 12", f"Page {number} of 12")
    for kind, again in (("duplicate_pair", "both"), ("duplicate_source", "source")):
        chosen, originals, free = free[:count], free[count : 2 * count], free[2 * count :]
        planted[kind] = set()
        for line, original in zip(chosen, originals, strict=True):
            source, target = pairs[original]
            capitals = drawn.random() < 0.5
            pairs[line] = (source.upper() if capitals else source, target if again == "both" else pairs[line][1])
            is_known = capitals or again == "source"  # else the one that comes later
            planted[kind].add(1 + (line if is_known else max(line, original)))
    return pairs, planted


def long(pair: Pair) -> bool:
    """Return whether a pair is long enough to bear every fault."""
    return min(len(pair[0].split()), len(pair[1].split())) > 6


def plant_otherwise(
    pairs: list[Pair],
    others: dict[str, list[Pair]],
    share: float = 0.01,
    seed: int = 1,
    foreign: list[str] | None = None,
) -> tuple[list[Pair], dict[str, set[int]]]:
    """Return the corpus with other faults of the same kinds: finding must not depend on how `plant` makes them.

    others: `valid` and `test`, of which some pairs come to stand in the corpus, some with a word changed.
    """
    drawn = random.Random(1000 + seed)
    pairs = list(pairs)
    planted: dict[str, set[int]] = {}
    count = max(1, int(share * len(pairs)))
    block, start = min(300, len(pairs) // 8), len(pairs) // 2 + drawn.randrange(len(pairs) // 8)
    shift = drawn.choice([-3, 3, 2])  # targets that were lost or added at one edge, and made up for at the other
    around = [target for _, target in pairs[start - 3 : start + block + 3]]
    for line in range(start, start + block):
        pairs[line] = (pairs[line][0], around[line - start + 3 + shift])
    planted["misaligned"] = {*range(start + 1, start + block + 1)}
    free = [line for line in range(len(pairs)) if not start - 20 <= line < start + block + 20 and long(pairs[line])]
    drawn.shuffle(free)
    third = [text for text in foreign or [FOREIGN] if len(text.split()) <= 9] or [FOREIGN]
    elsewhere = pairs[:]

    def damaged(text: str) -> str:
        text = text if not text.isascii() else f"{text} déjà"
        return text.encode().decode(drawn.choice(["latin-1", "cp1252"]), errors="replace")

    def inside(text: str, what: str) -> str:
        words = text.split(" ")
        place = drawn.randrange(1, len(words))
        return " ".join([*words[:place], what, *words[place:]])

    def one_side(pair: Pair, change: Callable[[str], str]) -> Pair:
        return (change(pair[0]), pair[1]) if drawn.random() < 0.5 else (pair[0], change(pair[1]))

    def numbers(pair: Pair) -> Pair:
        number = drawn.randrange(1000, 10_000)
        one, other = drawn.choice(
            [(str(number), str(number + 10)), (f"{number / 100:.2f}", f"{(number + 700) / 100:.2f}")]
        )
        return inside(pair[0], one), inside(pair[1], other)

    def addresses(pair: Pair) -> Pair:
        one = f"www.example{drawn.randrange(99)}.com/page?id={drawn.randrange(99)}"
        return drawn.choice([(inside(pair[0], one), pair[1]), (inside(pair[0], one), inside(pair[1], f"{one}0"))])

    faults: dict[str, Callable[[Pair], Pair]] = {
        "empty_side": lambda pair: one_side(pair, lambda _: drawn.choice(["", "\t", "\u00a0 "])),
        "identical_sides": lambda pair: drawn.choice([(pair[1].lower(), pair[1]), (pair[0], pair[0].rstrip(".") + " !")]),
        "swapped_sides": lambda pair: (pair[1].lower(), pair[0].rstrip(".")),
        "wrong_language": lambda pair: drawn.choice(
            [(pair[0], drawn.choice(elsewhere)[0]), (drawn.choice(elsewhere)[1], pair[1]), (pair[0], drawn.choice(third))]
        ),
        "length_ratio": lambda pair: one_side(pair, lambda text: " ".join(text.split()[:2]) if drawn.random() < 0.5 else f"{text} {text} {text} {text}"),
        "too_long": lambda pair: tuple(" ".join(some) for some in zip(*drawn.sample(elsewhere, 40), strict=True)),  # type: ignore[dict-item,return-value]
        "encoding_damage": lambda pair: one_side(pair, damaged),
        "control_characters": lambda pair: one_side(pair, lambda text: inside(text, drawn.choice("\x01\x0b\x1f\u202e\ufeff"))),
        "markup": lambda pair: one_side(pair, lambda text: inside(text, drawn.choice(["<br/>", "&amp;", "&#39;", '<g id="1">', "</seg>"]))),
        "number_mismatch": numbers,
        "url_mismatch": addresses,
        "mixed_scripts": lambda pair: one_side(pair, lambda text: inside(text, drawn.choice(["Hοuse", "саr", "dоg", "τree"]))),
    }  # fmt: skip
    for kind, fault in faults.items():
        chosen, free = free[:count], free[count:]
        for line in chosen:
            pairs[line] = fault(pairs[line])
        planted[kind] = {line + 1 for line in chosen}
    chosen, free = free[:count], free[count:]
    planted["template"] = {line + 1 for line in chosen}
    for line in chosen:
        one, other = drawn.randrange(10_000), drawn.randrange(10_000)
        pairs[line] = drawn.choice([(f"{one} x {other}mm", f"{one} × {other} mm"), (f"Fig. {one}", f"Fig. {one}")])
    for kind in ("duplicate_pair", "duplicate_source"):
        chosen, originals, free = free[:count], free[count : 2 * count], free[2 * count :]
        planted[kind] = set()
        for line, original in zip(chosen, originals, strict=True):
            source, target = pairs[original]
            if kind == "duplicate_pair":
                pairs[line] = (
                    source.replace(" ", "  "),
                    drawn.choice([f"“{target}”", target.rstrip("."), f"{target} !"]),
                )
            else:
                pairs[line] = drawn.choice([(source, pairs[line][1]), (pairs[line][0], target)])
            planted[kind].add(1 + (line if kind == "duplicate_source" else max(line, original)))
    for name, some in others.items():
        some = [pair for pair in some if long(pair) and min(len(text.split()) for text in pair) > 8]
        chosen, free = free[:count], free[count:]
        planted[f"overlap_{name}"] = {line + 1 for line in chosen}
        for line, (source, target) in zip(chosen, drawn.sample(some, len(chosen)), strict=True):
            words = target.split()
            words[drawn.randrange(len(words))] = "something"
            pairs[line] = drawn.choice([(source, target), (source.upper(), target), (source, " ".join(words))])
    return pairs, planted
