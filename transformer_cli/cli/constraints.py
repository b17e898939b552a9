"""What the translations must obey: for every line by options, for each line by a file of JSON objects beside it.

`tfm translate` calls it. Everything is looked at before a model is loaded.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.errors import UserError, one_of

if TYPE_CHECKING:
    from transformer_cli.decoding.constraints import Constraints, Line

KEYS = {"prefix": str, "require": list, "forbid": list}


def check_constraints(
    prefix: str | None, require: Sequence[str] | None, forbid: Sequence[str] | None, file: Path | None
) -> "Constraints | None":
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


def constraints_by_line(path: Path, every: "Constraints") -> "Iterator[Constraints]":
    """Yield what each line's translation must obey: what a file says of it, beside what holds for every line.

    A line of the file is a JSON object with any of `prefix` (in place of that of every line), `require` and `forbid`
    (beside those of every line); an empty line adds nothing. Raises `UserError` with file and line.
    """
    from transformer_cli.text.lines import read_lines

    for number, line in enumerate(read_lines(path), start=1):
        yield _of_line(line, every, f"{path}:{number}: ") if line.strip() else every


def constrained(lines: Iterable[str], every: "Constraints | None", file: Path | None) -> "Iterator[Line]":
    """Yield each line with its constraints: those of every line, None if there are none, and what `file` adds.

    Raises `UserError` where the file has more or fewer lines.
    """
    from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Line

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


def _of_line(line: str, every: "Constraints", where: str) -> "Constraints":
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


def _checked(prefix: str, require: Sequence[str], forbid: Sequence[str], where: str) -> "Constraints":
    from transformer_cli.decoding.constraints import Constraints

    for name, texts in (("require", require), ("forbid", forbid)):
        if not all(text.strip() for text in texts):
            raise UserError(f"{where}{name}: a text is empty; give at least one word")
    for word in forbid:
        for name, text in (("the prefix", prefix), *(("a required text", text) for text in require)):
            if f" {' '.join(word.split())} " in f" {' '.join(text.split())} ":
                raise UserError(f"{where}{word!r} is forbidden, but {name} holds it; drop one")
    return Constraints(prefix if prefix.strip() else "", tuple(require), tuple(forbid))
