"""What one line's translation must obey: as a user writes it, and in a model's target ids. No torch.

`tfm translate` reads the one, from options for every line and from a file of JSON objects for each line, before a model
is loaded. `Translator` turns it into the other; `TokenConstraints` is what engines obey.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_cli.config import Config
from transformer_cli.decoding.chunks import Chunk
from transformer_cli.decoding.engines.protocol import TokenConstraints, occurs
from transformer_cli.errors import UserError, one_of
from transformer_cli.text.codec import Codec
from transformer_cli.text.lines import read_lines
from transformer_cli.text.subword import SPACE
from transformer_cli.text.tokenizers import JOINER
from transformer_cli.text.vocabulary import UNK

KEYS = {"prefix": str, "require": list, "forbid": list}  # of such an object


@dataclass(frozen=True)
class Constraints:
    """How a translation begins, and words (or longer texts) that it must hold, or must not."""

    prefix: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()  # whole words; as subwords, words that contain them may be lost too


NO_CONSTRAINTS = Constraints()


@dataclass(frozen=True)
class Line:
    """A line to translate, with what its translation must obey. It travels whole, from reading to writing."""

    text: str
    constraints: Constraints = NO_CONSTRAINTS
    again: bool = False  # whether it, or what it is a part of, was translated and counted before
    tag: str | None = None  # a symbol that the model reads before each of its chunks; "": none; None: `decoding.tag`


def tag_before(config: Config, tag: str | None) -> str:
    """Return what a model reads before a text: the tag that is asked for, None: `decoding.tag`; "" is none.

    Raises `UserError`, with those that it knows, for one that it does not know.
    """
    known = config.vocabulary.symbols
    tag = config.decoding.tag if tag is None else tag
    if tag and tag not in known:
        there = (
            f"it knows {one_of(known, limit=20, last='and')}" if known else "it was trained without any; leave it out"
        )
        raise UserError(f"tag {tag[:60]!r}: is none of the model's; {there}")
    return tag or ""


def as_texts(given: Iterable[str], name: str) -> list[str]:
    """Return the texts that a caller gives as `name`; raise `TypeError` that says where one is none."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} should be a list of texts, not {_kind(given)}")
    texts = list(given)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{place}] should be a text, not {_kind(text)}")
    return texts


def as_lines(given: Iterable[str | Line]) -> Iterator[Line]:
    """Yield each line that a caller gives, made of a text where it is one; as `as_texts`."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"lines should be several texts, not {_kind(given)}")
    for place, line in enumerate(given):
        if not isinstance(line, str | Line):
            raise TypeError(f"lines[{place}] should be a text or a Line, not {_kind(line)}")
        yield Line(line) if isinstance(line, str) else line


def _kind(value: object) -> str:
    return "None" if value is None else f"one of type {type(value).__name__}"


# --- as a user writes them -----------------------------------------------------------------------------------------


def check_constraints(
    prefix: str | None, require: Sequence[str] | None, forbid: Sequence[str] | None, file: Path | None
) -> Constraints | None:
    """Return what `--prefix`, `--require` and `--forbid` ask of every line; None: nothing, and `file` is None too.

    Raises `UserError` where nothing can obey that, or the file (`--constraints`) is wrong. It is read through once, if
    it can be read twice, so that no fault in it comes late.
    """
    if file is None and not (prefix and prefix.strip()) and not require and not forbid:
        return None
    every = _checked(prefix or "", require or (), forbid or (), "")
    if file is not None and (file.is_file() or not file.exists()):
        for _ in constraints_by_line(file, every):
            pass
    return every


def constraints_by_line(path: Path, every: Constraints) -> Iterator[Constraints]:
    """Yield what each line's translation must obey: what a file says of it, beside what holds for every line.

    A line of the file is a JSON object with any of `prefix` (in place of that of every line), `require` and `forbid`
    (beside those of every line); an empty line adds nothing. Raises `UserError` with file and line.
    """
    for number, line in enumerate(read_lines(path), start=1):
        yield _of_line(line, every, f"{path}:{number}: ") if line.strip() else every


def constrained(lines: Iterable[str], every: Constraints | None, file: Path | None) -> Iterator[Line]:
    """Yield each line with its constraints: those of every line, None if there are none, and what `file` adds.

    Raises `UserError` where the file has more or fewer lines.
    """
    if every is None or file is None:
        yield from (Line(line, every or NO_CONSTRAINTS) for line in lines)
        return
    constraints = constraints_by_line(file, every)
    number = 0
    for number, line in enumerate(lines, start=1):
        own = next(constraints, None)
        if own is None:
            raise UserError(f"{file}: has {number - 1:,} lines, but there are more to translate: give one for each")
        yield Line(line, own)
    if next(constraints, None) is not None:
        raise UserError(f"{file}: has more than the {number:,} lines that there are to translate: give one for each")


def _of_line(line: str, every: Constraints, where: str) -> Constraints:
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}is not JSON: {str(error)[:100]}") from None
    if not isinstance(content, dict):
        raise UserError(f'{where}is not a JSON object; write one such as {{"require": ["word"]}}')
    for key, value in content.items():
        if key not in KEYS:
            raise UserError(f"{where}unknown key {key[:50]!r}; allowed: {one_of([*KEYS])}")
        kind = KEYS[key]
        if not isinstance(value, kind) or (kind is list and not all(isinstance(word, str) for word in value)):
            raise UserError(f"{where}{key} should be {'a text' if kind is str else 'a list of texts'}")
    return _checked(
        content.get("prefix", every.prefix),
        [*every.required, *content.get("require", [])],
        [*every.forbidden, *content.get("forbid", [])],
        where,
    )


def _checked(prefix: str, require: Sequence[str], forbid: Sequence[str], where: str) -> Constraints:
    for name, texts in (("require", require), ("forbid", forbid)):
        if not all(text.strip() for text in texts):
            raise UserError(f"{where}{name}: a text is empty; give at least one word")
    for word in forbid:
        for name, text in (("the prefix", prefix), *(("a required text", text) for text in require)):
            if f" {' '.join(word.split())} " in f" {' '.join(text.split())} ":
                raise UserError(f"{where}{word!r} is forbidden, but {name} holds it; drop one")
    return Constraints(prefix if prefix.strip() else "", tuple(require), tuple(forbid))


# --- in a model's target ids ---------------------------------------------------------------------------------------


def token_constraints(
    wanted: Constraints, chunks: Sequence[Chunk], codec: Codec, beside: Callable[[Chunk], Codec] | None = None
) -> list[TokenConstraints]:
    """Return what each chunk of a line must obey: the first has the prefix, none the forbidden words.

    A required text goes to the first chunk whose source holds it as it is (a name, a placeholder), else to the first.
    `beside` gives the target's codec beside a chunk, where that is another one each time. Raises `UserError` where the
    vocabulary cannot write a text.
    """
    codecs = [codec if beside is None else beside(chunk) for chunk in chunks]
    required: list[list[tuple[int, ...]]] = [[] for _ in chunks]
    for text in filter(str.strip, wanted.required):
        holder = next((place for place, chunk in enumerate(chunks) if text in chunk.text), 0)
        if chunks:
            required[holder].append(_written(text, codecs[holder]))
    prefix = tuple((codecs or [codec])[0].encode(wanted.prefix))
    if UNK in prefix:
        raise _unwritable(wanted.prefix)
    held = [prefix, *(ids for texts in required for ids in texts)]
    forbidden = {own: _forbidden(wanted, held, own) for own in dict.fromkeys([codec, *codecs])}
    return [
        TokenConstraints(prefix=prefix if place == 0 else (), required=tuple(texts), forbidden=forbidden[codecs[place]])
        for place, texts in enumerate(required)
    ]


def _forbidden(wanted: Constraints, held: Sequence[tuple[int, ...]], codec: Codec) -> tuple[tuple[int, ...], ...]:
    """Return all spellings of the forbidden words but those that stand within other words that are `held`."""
    for word in wanted.forbidden:
        for text in (wanted.prefix, *wanted.required):
            if _holds(text, word):
                raise UserError(f"{word!r} is forbidden, but required too (in {text!r}): drop one of them")
    found = [ids for word in wanted.forbidden for ids in spellings(word, codec) if UNK not in ids]
    return tuple(ids for ids in found if not any(occurs(ids, text) for text in held))


def _holds(text: str, word: str) -> bool:
    return bool(word.strip()) and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


def spellings(text: str, codec: Codec) -> list[tuple[int, ...]]:
    """Return the token sequences of a text: as a word of its own, and glued to what stands before it."""
    tokens = codec.tokenize(text)
    if not tokens:
        return []
    found = [tokens]
    if codec.is_subword:
        if tokens[0] == SPACE:
            found.append(tokens[1:])
        elif (glued := tokens[0].removeprefix(SPACE)) in codec.vocabulary:
            found += [[glued, *tokens[1:]], [SPACE, glued, *tokens[1:]]]
    elif (glued := JOINER + tokens[0]) in codec.vocabulary:
        found.append([glued, *tokens[1:]])
    return [tuple(codec.lookup(one)) for one in found if one]


def _written(text: str, codec: Codec) -> tuple[int, ...]:
    """Return how a required text is best written: punctuation that follows a word is glued to it, all else a word."""
    own, *glued = spellings(text, codec)
    follows = unicodedata.category(text.lstrip()[0]) in ("Pe", "Pf", "Po")
    ways = [ids for ids in ([*glued[:1], own] if follows else [own]) if UNK not in ids]
    if not ways:
        raise _unwritable(text)
    return ways[0]


def _unwritable(text: str) -> UserError:
    return UserError(f"{text!r}: cannot be required of a translation: the model's vocabulary lacks it; leave it out")


def violations(text: str, ids: Sequence[int], forbidden: Iterable[str], codec: Codec) -> list[tuple[int, ...]]:
    """Return the tokens with which a translation (its text and ids) writes forbidden words all the same.

    Subwords can write one word in many ways; forbid these as well, and search again.
    """
    found = []
    for word in forbidden:
        if _holds(text, word):
            ends = (end for end in range(1, len(ids) + 1) if word in codec.decode(ids[:end]))
            end = next(ends, len(ids))
            start = next((start for start in range(end - 1, -1, -1) if word in codec.decode(ids[start:end])), 0)
            found.append(tuple(ids[start:end]))
    return found
