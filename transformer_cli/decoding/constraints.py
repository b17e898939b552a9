"""What one line's translation must obey: as a user writes it, and in a model's target ids. No torch.

`Translator` turns the one into the other; `options.TokenConstraints` is what engines obey.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transformer_cli.decoding.chunks import Chunk
from transformer_cli.decoding.options import TokenConstraints, occurs
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codec
from transformer_cli.text.subword import SPACE
from transformer_cli.text.tokenizers import JOINER
from transformer_cli.text.vocabulary import UNK


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
