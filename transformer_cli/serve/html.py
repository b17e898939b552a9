"""HTML (or XML) to lines and back: text is translated, and every tag and attribute comes back as it was written.

Blocks end a line; inline tags stand in it as short ones, which `Protector` keeps and puts where the alignment says.
Whatever is wrong with a document, it is read in linear time, and what is not translated comes back to the letter.
"""

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

_INLINE = frozenset(
    re.findall(
        "[a-z]+",
        "a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark q ruby s samp small span"
        " strike strong sub sup time tt u var wbr",
    )
)
_VOID = frozenset(re.findall("[a-z]+", "area base br col embed hr img input link meta param source track wbr"))
_RAW = frozenset(
    re.findall("[a-z]+", "script style textarea xmp iframe noembed noframes")
)  # hold no tags but their own
_UNTRANSLATED = _RAW | frozenset(re.findall("[a-z]+", "pre code kbd samp var svg math template"))

# The tokens of the HTML standard, section 13.2.5. Possessive repeats keep it linear; at the end all may be left open.
_VALUE = r"\"[^\"]*+(?:\"|\Z)|'[^']*+(?:'|\Z)|[^\s\"'>][^\s>]*+"
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))|<!\[CDATA\[.*?(?:\]\]>|\Z)|<[!?][^>]*+(?:>|\Z)|</[^A-Za-z>][^>]*+(?:>|\Z)"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][^\s/>]*+)"
    rf"(?P<attributes>(?:[\s/]|=?[^\s/>=]++(?:\s*+=\s*+(?:{_VALUE})?)?+|=)*+)(?P<end>>|\Z)",
    re.DOTALL,
)
_KEEP = re.compile(
    r"translate\s*+=\s*+[\"']?no(?![\w-])|class\s*+=\s*+(?:\"[^\"]*?|'[^']*?|)(?<![\w-])notranslate(?![\w-])"
)
_SHORT = re.compile(r"(</?g[0-9]+/?>)")  # a tag in a line
_LIKE_TAGS = re.compile(r"(<[A-Za-z/!][^<>]*>?)")
MOST_TAGS = 100  # of a line, for each takes its time; one with more is cut at all of them
_SPACE = re.compile(r"[ \t\r\n\f]+")


class _Token(NamedTuple):
    """A part of a document, as it is written there; all of them make up the document."""

    kind: str  # text, open, close, alone (a tag without a partner) or other (a comment, a declaration)
    name: str
    raw: str


class Run(NamedTuple):
    """A part of a document: a line to translate, with white space around it, or (without a line) what stays."""

    raw: str
    line: str = ""
    tags: Sequence[str] = ()  # two for each number of the short tags: what opens, and what closes

    def written(self, translation: str) -> str:
        """Return the translation as HTML; the run as it was, where a tag is missing or doubled in it."""
        if not self.line:
            return self.raw
        parts = _SHORT.split(translation)
        if sorted(parts[1::2]) != sorted(_SHORT.findall(self.line)):
            return self.raw
        parts[::2] = [html.escape(part, quote=False) for part in parts[::2]]
        parts[1::2] = [self._tag(part) for part in parts[1::2]]
        lead, trail = len(self.raw) - len(self.raw.lstrip()), len(self.raw.rstrip())
        return self.raw[:lead] + "".join(parts).strip() + self.raw[trail:]

    def _tag(self, short: str) -> str:
        return self.tags[2 * int(short.strip("</g>")) + short.startswith("</")]


def runs(document: str, *, xml: bool = False) -> list[Run]:
    """Cut a document into runs; their `raw` texts make it up. xml: any tag may stand within a sentence."""
    tokens = list(_tokens(document, xml))
    partners = _partners(tokens)
    borders = [
        token.kind == "other"
        or (token.kind != "text" and not xml and token.name not in _INLINE)
        or (token.kind in ("open", "close") and place not in partners)
        for place, token in enumerate(tokens)
    ]
    before = list(accumulate(borders, initial=0))
    found: list[Run] = []
    start = 0
    for place in range(len(tokens) + 1):
        first, last = sorted((place, partners.get(place, place)))
        if place == len(tokens) or borders[place] or before[first] != before[last]:
            found += _run(tokens[start:place])
            found += [Run(token.raw) for token in tokens[place : place + 1]]
            start = place + 1
    return found


def _tokens(document: str, xml: bool) -> Iterator[_Token]:
    """Yield the tokens of a document; an element that is not to be translated is one token."""
    place = start = 0
    while (markup := _MARKUP.search(document, place)) is not None:
        name = (markup["name"] or "").lower()
        place = markup.end()
        if name and not markup["end"]:  # not closed at the end: no tag
            name = ""
        if start < markup.start():
            yield _Token("text", "", document[start : markup.start()])
        start = markup.start()
        kind = "other" if not name else "close" if markup["close"] else "open"
        attributes = markup["attributes"] or ""
        if kind == "open" and ((attributes.endswith("/") and (xml or name in _INLINE)) or (name in _VOID and not xml)):
            kind = "alone"
        if kind == "open" and ((name in _UNTRANSLATED and not xml) or _KEEP.search(attributes)):
            place, kind = _end_of_element(document, place, name), "alone"
        yield _Token(kind, name, document[start:place])
        start = place
    if start < len(document):
        yield _Token("text", "", document[start:])


def _end_of_element(document: str, place: int, name: str) -> int:
    """Return where an element ends whose tag ends at a place."""
    tags = re.compile(rf"<(/?){re.escape(name)}(?=[\s/>])[^>]*+>?", re.IGNORECASE)
    depth = 1
    for tag in tags.finditer(document, place):
        depth += -1 if tag[1] else name not in _RAW
        if not depth:
            return tag.end()
    return len(document)


def _partners(tokens: Sequence[_Token]) -> dict[int, int]:
    """Return for each tag that opens or closes the place of the one that closes or opens the same, well nested."""
    found: dict[int, int] = {}
    opened: list[int] = []
    names: Counter[str] = Counter()
    for place, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(place)
            names[token.name] += 1
        elif token.kind == "close" and names[token.name]:
            while True:
                start = opened.pop()
                names[tokens[start].name] -= 1
                if tokens[start].name == token.name:
                    break
            found[start], found[place] = place, start
    return found


def _run(tokens: Sequence[_Token]) -> list[Run]:
    """Return well nested tokens as a run, beside tags that stand around all of it; only those without any word."""
    texts = [html.unescape(token.raw) if token.kind == "text" else "" for token in tokens]
    if not any(any(map(str.isalnum, text)) for text in texts):
        return [Run(token.raw) for token in tokens]
    if sum(token.kind != "text" for token in tokens) > MOST_TAGS:
        return [run for token in tokens for run in (_run([token]) if token.kind == "text" else [Run(token.raw)])]
    partners = _partners(tokens)
    first, last = 0, len(tokens)
    while True:
        if tokens[first].kind == "alone" or (tokens[first].kind == "text" and not texts[first].strip()):
            first += 1
        elif tokens[last - 1].kind == "alone" or (tokens[last - 1].kind == "text" and not texts[last - 1].strip()):
            last -= 1
        elif partners.get(first) == last - 1:
            first, last = first + 1, last - 1
        else:
            break
    line, tags = "", list[str]()
    numbers: dict[int, int] = {}  # of the places of what opens
    for place in range(first, last):
        token = tokens[place]
        if token.kind == "text":
            for number, part in enumerate(_LIKE_TAGS.split(_SPACE.sub(" ", texts[place]))):
                if number % 2:  # what only looks like a tag stands as it is
                    line += f"<g{len(tags) // 2}/>"
                    tags += [html.escape(part, quote=False), ""]
                else:
                    line += part
        elif token.kind == "close":
            line += f"</g{numbers[partners[place]]}>"
        else:
            numbers[place] = len(tags) // 2
            line += f"<g{numbers[place]}{'/' * (token.kind == 'alone')}>"
            tags += [token.raw, tokens[partners[place]].raw if token.kind == "open" else ""]
    own = Run("".join(token.raw for token in tokens[first:last]), line.strip(), tags)
    return [*(Run(token.raw) for token in tokens[:first]), own, *(Run(token.raw) for token in tokens[last:])]
