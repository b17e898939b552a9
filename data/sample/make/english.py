"""How English inflects: plurals, verbs, articles and numbers in words."""

from data.sample.make.lexicon import Noun

_DOUBLED = {"put", "sit", "run", "get", "shop", "cut", "swim", "forget"}
_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def noun(word: Noun, plural: bool) -> str:
    """The noun, or its plural."""
    return word.english if not plural else word.english_plural or with_s(word.english)


def with_s(word: str) -> str:
    """The s of plurals and of he reads: boxes, cities, goes."""
    if word.endswith(("s", "x", "ch", "sh", "z", "go")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def possessive(words: str) -> str:
    """The owner's form: my sister's, my friends', the children's."""
    return words + ("'" if words.endswith("s") else "'s")


def article(words: str) -> str:
    """`a` or `an` before these words."""
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def third(verb: str) -> str:
    """He reads, has, turns on."""
    first, _, rest = verb.partition(" ")
    return " ".join(filter(None, ["has" if first == "have" else with_s(first), rest]))


def ing(verb: str) -> str:
    """Reading, writing, turning on."""
    first, _, rest = verb.partition(" ")
    if first in _DOUBLED:
        form = first + first[-1]
    elif first.endswith("e") and not first.endswith("ee"):
        form = first[:-1]
    else:
        form = first
    if first == "travel":
        form = "travell"
    return " ".join(filter(None, [form + "ing", rest]))


def be(person: str) -> str:
    """Am, are, is."""
    return {"1s": "am", "3s": "is"}.get(person, "are")


def was(person: str) -> str:
    """Was, were."""
    return "was" if person in ("1s", "3s") else "were"


def number(value: int) -> str:
    """Two to ninety-nine."""
    assert 2 <= value <= 99
    if value < 20:
        return _ONES[value]
    tens, ones = divmod(value, 10)
    return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
