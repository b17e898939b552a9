"""Codecs of a model that copies (`generator: pointer`): ids beyond the vocabularies, for tokens that these lack.

`transformer_cli.codecs` chooses them. V_s and V_t are the sizes of the vocabularies; `model` beside this gives the ids
their meaning:
- a source id V_s + t is a token that only the target vocabulary knows, as t; V_s + V_t + k is one that neither knows,
  the k-th such string of its line;
- a target id V_t + p is the source token at position p, where it first stands.
"""

from collections.abc import Iterable, Sequence

from transformer_cli.config import Config
from transformer_cli.text.codec import Codec, Codecs
from transformer_cli.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary


class CopiedSource(Codec):
    """The source side: no token is `<unk>`, since one that the target repeats must be told from others."""

    def __init__(self, codec: Codec, target: Vocabulary) -> None:
        super().__init__(codec.tokenizer, codec.vocabulary, codec.preparation)
        self._target = target

    def lookup(self, tokens: Iterable[str]) -> list[int]:
        """The ids of a line's tokens."""
        known, target, new = self.vocabulary, self._target, len(self.vocabulary) + len(self._target)
        numbers: dict[str, int] = {}
        ids = []
        for token in tokens:
            if token in known:
                ids.append(known[token])
            elif token in target:
                ids.append(len(known) + target[token])
            else:
                ids.append(new + numbers.setdefault(token, len(numbers)))
        return ids

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids = super().encode(text)
        return self.lookup(self.tokenize(text)) if UNK in ids else ids

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's string of each id, `<unk>` beyond it."""
        return super().tokens(known_ids(ids, self.vocabulary))

    def decode(self, ids: Iterable[int], unknowns: Sequence[str] | None = None) -> str:
        """As `Codec.decode`; an id beyond the vocabulary is one more `<unk>`."""
        return super().decode(known_ids(ids, self.vocabulary), unknowns)

    def target_ids(self) -> list[int]:
        """The target id of each token of the source vocabulary; -1 where the target's lacks it."""
        known = self._target.get_stoi()
        return [known.get(token, -1) for token in self.vocabulary.get_itos()]


class CopiedTarget(Codec):
    """The target side, beside the tokens of a source; without any, its ids are those of the vocabulary alone."""

    def __init__(self, codec: Codec, source: Sequence[str] = ()) -> None:
        super().__init__(codec.tokenizer, codec.vocabulary, codec.preparation)
        self._source = source
        self._places = {token: place for place, token in reversed(list(enumerate(source)))}  # of a token's first

    def lookup(self, tokens: Iterable[str]) -> list[int]:
        """The ids of tokens, those outside the vocabulary copied from the source where it holds them."""
        known, places = self.vocabulary, self._places
        return [
            len(known) + places[token] if token not in known and token in places else known[token] for token in tokens
        ]

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        ids = super().encode(text)
        return self.lookup(self.tokenize(text)) if UNK in ids else ids

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The string of each id; `<unk>` for one beyond the vocabulary where there is no source."""
        if not self._source:
            return super().tokens(known_ids(ids, self.vocabulary))
        known = len(self.vocabulary)
        return [self._source[index - known] if index >= known else self.vocabulary.lookup_token(index) for index in ids]

    def decode(self, ids: Iterable[int], unknowns: Sequence[str] | None = None) -> str:
        """As `Codec.decode`: `unknowns` are for `<unk>` alone."""
        indices, replacements = list(ids), iter(unknowns or ())
        strings = [
            next(replacements, token) if index == UNK else token
            for index, token in zip(indices, self.tokens(indices), strict=True)
            if index >= len(self.vocabulary) or index not in (PAD, BOS, EOS)
        ]
        return self.tokenizer.join(strings)


class CopyingCodecs(Codecs):
    """The codecs of a model that copies, made of the plain ones."""

    copies = True

    def __init__(self, source: Codec, target: Codec, config: Config) -> None:
        super().__init__(CopiedSource(source, target.vocabulary), CopiedTarget(target), config)

    def encode_pairs(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Return the ids of pairs; a target's may be copies of tokens of its source."""
        source_ids, target_ids = super().encode_pairs(sources, targets)
        for place, ids in enumerate(target_ids):
            if UNK in ids:
                target_ids[place] = self.lookup_target(self.target.tokenize(targets[place]), sources[place])
        return source_ids, target_ids

    def target_beside(self, source_tokens: Sequence[str]) -> Codec:
        """Return the target's codec, with ids for those of these tokens that the vocabulary lacks."""
        return CopiedTarget(self.target, source_tokens)

    def lookup_target(self, tokens: Sequence[str], source: str) -> list[int]:
        """Return the ids of target tokens, those that the vocabulary lacks copied from the source where it has them."""
        return self.target_beside(self.source.tokenize(source)).lookup(tokens)

    def most_ids(self, max_length: int) -> int:
        """Return how many ids there are, those of `max_length` unknown or copied tokens too."""
        return len(self.source.vocabulary) + len(self.target.vocabulary) + max_length


def known_ids(ids: Iterable[int], vocabulary: Vocabulary) -> list[int]:
    """The ids, `<unk>` in place of those beyond the vocabulary."""
    return [index if index < len(vocabulary) else UNK for index in ids]
