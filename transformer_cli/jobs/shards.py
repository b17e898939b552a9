"""A long text in shards: translated anywhere and in any order, kept as they are done, joined in order. No torch.

`tfm translate --jobs` and `tfm distill` call it. A shard is named by a hash of its lines and of all that decides their
translation, so that an interrupted command finds what it did before, and never takes what another one did.
"""

import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Line
from transformer_cli.errors import UserError
from transformer_cli.storage.publishing import TEMPORARY, atomic_write, delete

SHARD_LINES = 2000
SHARD_CHARACTERS = 4_000_000  # so that very long lines stay within memory
NAME = re.compile(r"[0-9]{6,}-[0-9a-f]{32}")  # of a part
RECIPE = "recipe.json"  # beside the parts where somebody keeps it: what they were made of, and how


@dataclass(frozen=True)
class Shard:
    """Some lines of a text that stand together."""

    number: int
    first: int  # lines before it
    lines: list[Line]
    references: list[str] = field(default_factory=list)  # their known translations, where what is kept depends on them

    def name(self, recipe: str) -> str:
        """The name of its part, where `recipe` says all that decides what becomes of a line."""
        lines = [(line.text, None if line.constraints == NO_CONSTRAINTS else line.constraints) for line in self.lines]
        content = json.dumps([recipe, self.number, self.first, *lines, *self.references], default=asdict)
        digest = hashlib.sha256(content.encode())
        return f"{self.number:06}-{digest.hexdigest()[:32]}"


def shards(lines: Iterable[Line], references: Iterator[str] | None = None) -> Iterator[Shard]:
    """The text in shards, none of which needs what comes after it; each with its lines' references if there are any."""
    number = first = characters = 0
    gathered: list[Line] = []

    def shard() -> Shard:
        return Shard(number, first, gathered, [] if references is None else list(islice(references, len(gathered))))

    for line in lines:
        gathered.append(line)
        characters += len(line.text)
        if len(gathered) >= SHARD_LINES or characters >= SHARD_CHARACTERS:
            yield shard()
            number, first, characters, gathered = number + 1, first + len(gathered), 0, []
    if gathered:
        yield shard()


class Parts:
    """The translated shards of one output, in a folder beside it; each is there whole or not at all."""

    def __init__(self, output: Path) -> None:
        self.folder = output.with_name(output.name + ".parts")

    def open(self) -> None:
        """Make the folder, and those above. Raises `UserError` where something else has its name, or it cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.folder}: cannot be made, and the parts of the output are kept there: {error.strerror};"
                " name another output"
            ) from None

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def keep(self, name: str, rows: Iterable[str], counts: Counter[str]) -> None:
        """Write one part: what was counted as it was made, then its lines. Raises `OSError`."""
        content = "\n".join([json.dumps(counts), *rows, ""])
        atomic_write(self.folder / name, content.encode("utf-8", errors="replace"))

    def counts(self, name: str) -> Counter[str]:
        """What was counted as the part was made."""
        with open(self.folder / name, encoding="utf-8", newline="\n") as file:
            return Counter(json.loads(file.readline()))

    def total(self, names: Iterable[str]) -> Counter[str]:
        """What was counted as all these parts were made."""
        return sum(map(self.counts, names), Counter())

    def rows(self, name: str) -> Iterator[str]:
        """The part's lines."""
        with open(self.folder / name, encoding="utf-8", newline="\n") as file:
            file.readline()
            for line in file:
                yield line.removesuffix("\n")

    def remove(self) -> None:
        """Delete all parts, others than those that were joined too; nothing that is no part."""
        for path in self.folder.iterdir():
            if NAME.fullmatch(path.name) or path.name.startswith(TEMPORARY):
                delete(path)
        self.close()

    def close(self) -> None:
        """Delete the folder if no part is in it, and nothing else but their recipe."""
        with contextlib.suppress(OSError):
            if not any(NAME.fullmatch(path.name) for path in self.folder.iterdir()):
                delete(self.folder / RECIPE)
            self.folder.rmdir()
