"""`Vocabulary`: strings to ids and back, in the terms of `torchtext.vocab`. Codecs look up with it; the model
knows only its length.
"""

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from transformer_cli.errors import UserError

PAD, UNK, BOS, EOS = range(4)
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_ALIASES = {"<bos>": BOS, "<sos>": BOS, "<eos>": EOS}  # as torchtext's tutorials name them
FORMAT = 1
MAX_BYTES = 1 << 30  # ten million tokens, the most that a config allows, take about a quarter
SHOWN = 60  # characters of a token in a message


class Vocabulary:
    """Unique strings, each with an id (its position) and a count in the training text.

    The specials come first: `<pad>`=0 `<unk>`=1 `<s>`=2 `</s>`=3. A string outside the vocabulary has the id
    `default_index`; where that is None, looking it up raises `KeyError`.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        counts: Sequence[int] | None = None,
        specials: Sequence[str] = SPECIALS,
        default_index: int | None = UNK,
    ) -> None:
        self._itos = list(tokens)
        self._stoi = {token: index for index, token in enumerate(self._itos)}
        self.counts = [0] * len(self._itos) if counts is None else list(counts)
        self.specials = tuple(specials)
        assert len(self._stoi) == len(self._itos), "a string stands twice in the vocabulary"
        assert len(self.counts) == len(self._itos), "a vocabulary needs one count for each string"
        assert tuple(self._itos[: len(self.specials)]) == self.specials, "the specials come first"
        self.set_default_index(default_index)

    @classmethod
    def build(
        cls,
        counter: Mapping[str, int] | Iterable[tuple[str, int]],
        *,
        min_freq: int = 1,
        max_size: int | None = None,
        symbols: Sequence[str] = (),
    ) -> Self:
        """Make one of specials, then `symbols`, then the strings seen at least `min_freq` times.

        These are ordered by count, then by code point. `counter` may be a stream of (string, count), each string once;
        no more than `max_size` of them are held at a time. `max_size` bounds the whole vocabulary. Raises `UserError`
        if not even the symbols fit.
        """
        fixed = [*SPECIALS, *symbols]
        room = None if max_size is None else max_size - len(fixed)
        if room is not None and room < 0:
            raise UserError(
                f"vocabulary.size: {max_size} has no room for {len(SPECIALS)} specials and {len(symbols)} symbols; "
                f"set it to at least {len(fixed)}"
            )
        fixed_counts = dict.fromkeys(fixed, 0)

        def ordinary() -> Iterable[tuple[int, str]]:
            for token, count in counter.items() if isinstance(counter, Mapping) else counter:
                assert token not in SPECIALS, f"{token!r} must be escaped before it is counted"
                if token in fixed_counts:
                    fixed_counts[token] += count
                elif count >= min_freq:
                    yield -count, token

        ordered = sorted(ordinary()) if room is None else heapq.nsmallest(room, ordinary())
        if room == 0:
            list(ordinary())  # nothing is kept, but the symbols are counted
        tokens = [*fixed, *(token for _, token in ordered)]
        return cls(tokens, [*fixed_counts.values(), *(-negative for negative, _ in ordered)])

    @classmethod
    def from_torchtext(cls, vocabulary: Any) -> Self:
        """Take over a `torchtext.vocab.Vocab`, or whatever has its `get_itos` and `get_default_index`.

        Specials move to their ids here (`<bos>`, `<sos>` and `<eos>` are taken for `<s>` and `</s>`; missing ones are
        added), all else keeps its order. The default index goes with its string. Counts are unknown: 0.
        """
        names = [SPECIALS[_ALIASES[name]] if name in _ALIASES else name for name in vocabulary.get_itos()]
        if len(set(names)) < len(names):
            raise UserError("the torchtext vocabulary holds a string (or a special's names) twice; build it again")
        taken_over = cls([*SPECIALS, *(name for name in names if name not in SPECIALS)])
        default = vocabulary.get_default_index()
        taken_over.set_default_index(None if default is None else taken_over[names[default]])
        return taken_over

    def __len__(self) -> int:
        return len(self._itos)

    def __contains__(self, token: object) -> bool:
        return token in self._stoi

    def __getitem__(self, token: str) -> int:
        index = self._stoi.get(token, self._default_index)
        if index is None:
            raise KeyError(token)
        return index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self._itos == other._itos and self.counts == other.counts and self._default_index == other._default_index

    __hash__ = None  # type: ignore[assignment]  # the default index can be set

    def get_itos(self) -> list[str]:
        """Return all strings, by id."""
        return list(self._itos)

    def get_stoi(self) -> dict[str, int]:
        """Return the id of each string."""
        return dict(self._stoi)

    def lookup_token(self, index: int) -> str:
        """Return the string of an id; raise `IndexError` if there is none."""
        if index < 0:
            raise IndexError(index)
        return self._itos[index]

    def lookup_tokens(self, indices: Iterable[int]) -> list[str]:
        """Return the strings of ids."""
        indices = list(indices)
        if min(indices, default=0) < 0:
            raise IndexError(min(indices))
        strings = self._itos
        return [strings[index] for index in indices]

    def lookup_indices(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of strings, unknown ones the default index."""
        return [self[token] for token in tokens]

    def get_default_index(self) -> int | None:
        """Return the id of a string outside the vocabulary, or None."""
        return self._default_index

    def set_default_index(self, index: int | None) -> None:
        """Choose the id of a string outside the vocabulary; None makes looking it up an error."""
        assert index is None or 0 <= index < len(self._itos), f"no id {index} in the vocabulary"
        self._default_index = index

    def dumps(self) -> str:
        """Return the vocabulary as JSON text, one string and its count a line."""
        rows = (json.dumps(row, ensure_ascii=False) for row in zip(self._itos, self.counts, strict=True))
        return f'{{"format": {FORMAT}, "tokens": [\n' + ",\n".join(rows) + "\n]}\n"

    def save(self, path: str | Path) -> None:
        """Write `dumps` to a file."""
        Path(path).write_text(self.dumps(), encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; raises `UserError` with the file if it is anything else."""
        path = Path(path)
        try:
            with open(path, "rb") as file:
                raw = file.read(MAX_BYTES + 1)
            if len(raw) > MAX_BYTES:
                raise UserError(f"{path}: is larger than {MAX_BYTES:,} bytes; that is not a vocabulary")
            content = json.loads(raw.decode("utf-8"))
        except OSError as error:
            raise UserError(f"{path}: cannot read the vocabulary: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise UserError(f"{path}: is not a vocabulary (not JSON); build or copy it again") from None
        if not isinstance(content, dict) or not isinstance(content.get("tokens"), list):
            raise UserError(f"{path}: is not a vocabulary (no list of tokens); build or copy it again")
        if content.get("format") != FORMAT:
            raise UserError(f"{path}: has format {str(content.get('format'))[:SHOWN]}, not {FORMAT}; build it again")
        fault = _fault(content["tokens"])
        if fault:
            raise UserError(f"{path}: is not a vocabulary ({fault}); build or copy it again")
        return cls([token for token, _ in content["tokens"]], [count for _, count in content["tokens"]])


def _fault(rows: list[Any]) -> str | None:
    """Return what is wrong with the rows of a vocabulary file, if anything."""
    seen = set()
    for number, row in enumerate(rows):
        if not (isinstance(row, list) and len(row) == 2 and isinstance(row[0], str) and type(row[1]) is int):
            return f"entry {number} is not a string with its count"
        if row[1] < 0:
            return f"entry {number} has a negative count"
        if row[0] in seen:
            return f"{row[0][:SHOWN]!r} is there twice"
        if not row[0].isascii() and any("\ud800" <= character <= "\udfff" for character in row[0]):
            return f"entry {number} holds half of a surrogate pair"
        seen.add(row[0])
    if [row[0] for row in rows[: len(SPECIALS)]] != list(SPECIALS):
        return f"it does not begin with {' '.join(SPECIALS)}"
    return None
