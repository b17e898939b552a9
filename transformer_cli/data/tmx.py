"""Translation memories in TMX, the format that they are exchanged in (TMX 1.4b). No torch.

Read as a stream in bounded memory, by expat. Entities, and a DTD inside the file, are refused: a few lines of them can
stand for gigabytes. A DTD that the file only names, as most do, is not read.
"""

import functools
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any
from xml.parsers import expat

from transformer_cli.config.languages import covers
from transformer_cli.data.files import LocalFile, Member
from transformer_cli.errors import UserError
from transformer_cli.text.lines import LONGEST_LINE, read_fault

CODES = {"bpt", "ept", "it", "ph", "ut"}  # what they hold is markup of the document, not text
DEEPEST = 100  # elements inside each other
LOOKED_AT = 10_000  # units, to find out which languages there are
_CHUNK = 1 << 16  # bytes

Variant = tuple[str, str]  # its language, as the file says it, and its text


class TmxCorpus:
    """The units of a TMX file that are in both languages."""

    def __init__(self, file: LocalFile | Member, languages: tuple[str, str]):
        """languages: `de` is also what the file calls `de-DE`."""
        self.file, self.languages = file, languages
        self.notes: list[str] = []
        if languages[0].lower() == languages[1].lower():
            raise UserError(f"{file.name}: {languages[0]} is both source and target; name two languages")

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield all pairs; raise `UserError` for what is not TMX, broken XML (line and column), no unit in both."""
        tags: Counter[str] = Counter()
        units = found = 0
        ranks = functools.cache(self._ranks)
        for variants in TmxReader(self.file).units():
            units += 1
            tags.update(dict.fromkeys(tag for tag, _ in variants).keys())
            pair = _choose([ranks(tag) for tag, _ in variants])
            if pair is not None:
                found += 1
                yield variants[pair[0]][1], variants[pair[1]][1]
        both = f"both {self.languages[0]} and {self.languages[1]}"
        if not found:
            raise UserError(f"{self.file.name}: has no unit in {both}; its {units:,} units are in {list_tags(tags)}")
        left = units - found
        self.notes = [f"{self.file.name}: left out {left:,} of {units:,} units, not in {both}"] if left else []

    def _ranks(self, tag: str) -> tuple[int, int]:
        """Return how well a tag fits each language: 2 it is the one, 1 one of its kind (`de-AT` for `de`), 0 not."""
        first, second = (covers(one, tag) + covers(tag, one) * covers(one, tag) for one in self.languages)
        return first, second

    def content_hash(self) -> str:
        """Return a hash of the file's bytes and the languages."""
        return hashlib.sha256(json.dumps(["tmx", self.file.content_hash(), self.languages]).encode()).hexdigest()

    def describe(self) -> str:
        """Return the path."""
        return self.file.name


def _choose(ranks: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the places of the two variants that fit source and target best; None where there are not two."""
    found = [
        (source + target, -place, -other)
        for place, (source, _) in enumerate(ranks)
        for other, (_, target) in enumerate(ranks)
        if source and target and place != other
    ]
    if not found:
        return None
    _, place, other = max(found)
    return -place, -other


def read_languages(file: LocalFile | Member) -> list[str]:
    """Return the languages of the first units of a TMX file as it writes them, that of its header first."""
    reader = TmxReader(file)
    tags = dict.fromkeys(tag for variants in islice(reader.units(), LOOKED_AT) for tag, _ in variants)
    begin = [tag for tag in tags if covers(reader.source_language, tag)]
    return [*dict.fromkeys([*begin, *tags])]


def list_tags(tags: Counter[str]) -> str:
    """Return languages with the numbers of their units, for a message: the most frequent ones."""
    named = [f"{tag or 'no language'} ({count:,})" for tag, count in tags.most_common(8)]
    return ", ".join(named) + ", …" * (len(tags) > 8) if tags else "no language"


class TmxReader:
    """One reading of a TMX file; `source_language` is what its header says, once that has been read."""

    def __init__(self, file: LocalFile | Member):
        self.source_language = ""
        self._file = file
        self._units: list[list[Variant]] = []  # read, not yet given
        self._variants: list[Variant] = []  # of the unit that is being read
        self._language = ""
        self._text: list[str] = []
        self._keeps: list[bool] = []  # for each element from <seg> on: whether its characters are text
        self._size = 0  # characters of the unit
        self._depth = 0
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = parser.SkippedEntityHandler = self._entity

    def units(self) -> Iterator[list[Variant]]:
        """Yield the variants of each unit, once."""
        parser, fed = self._parser, 0
        with self._file.open() as stream:
            while True:
                try:
                    chunk = stream.read(_CHUNK)
                except (OSError, EOFError, zlib.error) as error:
                    raise UserError(f"{self._file.name}: {read_fault(error, stream)}") from None
                try:
                    parser.Parse(chunk, not chunk)
                except expat.ExpatError as error:
                    raise self._fault(
                        f"is not valid XML ({expat.errors.messages[error.code]})", error.lineno, error.offset
                    ) from None
                except (ValueError, LookupError) as error:  # of an encoding that the file says it has
                    raise self._fault(f"cannot be read ({error}); convert it to UTF-8") from None
                fed += len(chunk)
                if fed - parser.CurrentByteIndex > LONGEST_LINE:
                    raise self._fault(f"a tag of more than {LONGEST_LINE:,} bytes begins, so it is not TMX")
                yield from self._units
                self._units.clear()
                if not chunk:
                    return

    def _fault(self, what: str, line: int | None = None, offset: int | None = None) -> UserError:
        line = self._parser.CurrentLineNumber if line is None else line
        column = (self._parser.CurrentColumnNumber if offset is None else offset) + 1
        advice = "" if ";" in what else "; check it, or export it again"
        return UserError(f"{self._file.name}:{line}: column {column}: {what}{advice}")

    def _doctype(self, _name: str, _system: str | None, _public: str | None, has_internal_subset: int) -> None:
        if has_internal_subset:
            raise self._fault("has a DTD inside, which TMX does not need; delete <!DOCTYPE …>")

    def _entity(self, name: str, *_: Any) -> None:
        raise self._fault(f"the entity {name!r} is not one of XML's own; write the character itself")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._fault(f"has more than {DEEPEST} elements inside each other, so it is not TMX")
        if self._keeps:
            self._keeps.append(name == "sub" or (self._keeps[-1] and name not in CODES))
            if name == "sub":  # a text of its own in the middle of another's markup
                self._text.append("\n")
        elif name == "seg":
            self._keeps, self._text = [True], []
            self._parser.CharacterDataHandler = self._characters
        elif name == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif name == "tu":
            self._variants, self._size = [], 0
        elif name == "header":
            self.source_language = attributes.get("srclang", "")
        elif self._depth == 1 and name != "tmx":
            raise self._fault(f"is XML, but not TMX: it begins with <{name[:40]}>, not <tmx>")

    def _characters(self, text: str) -> None:
        if self._keeps[-1]:
            self._text.append(text)
        self._count(len(text))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > LONGEST_LINE:
            raise self._fault(f"a unit has more than {LONGEST_LINE:,} characters, so it is not a sentence")

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._keeps:
            self._keeps.pop()
            if name == "sub":
                self._text.append("\n")
            if not self._keeps:
                self._parser.CharacterDataHandler = None
                self._variants.append((self._language, _in_one_line("".join(self._text))))
                self._count(100)  # so that units of empty variants end too
        elif name == "tu":
            self._units.append(self._variants)
            self._variants = []


def _in_one_line(text: str) -> str:
    """Return the text of a segment, which may be written over several lines."""
    return " ".join(filter(None, map(str.strip, text.splitlines())))
