"""Codecs of a model that copies (`generator: pointer`): ids beyond the vocabularies, for tokens that these lack.

`Codecs` chooses them. V_s and V_t are the sizes of the vocabularies; `model.pointer` gives the ids their meaning there:
- a source id V_s + t is a token that only the target vocabulary knows, as t; V_s + V_t + k is one that neither knows,
  the k-th such string of its line;
- a target id V_t + p is the source token at position p, where it first stands.
"""

from collections.abc import Iterable, Sequence

from transformer_cli.text.codec import Codec
from transformer_cli.text.vocabulary import UNK, Vocabulary


class CopiedSource(Codec):
    """The source side: no token is `<unk>`, since one that the target repeats must be told from others."""

    def __init__(self, codec: Codec, target: Vocabulary) -> None:
        super().__init__(codec.tokeniser, codec.vocabulary, codec.preparation)
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
        return self.lookup(self.tokenise(text)) if UNK in ids else ids

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
    """The target side: `encode` knows no source, and so gives the ids of the vocabulary alone."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec.tokeniser, codec.vocabulary, codec.preparation)

    def lookup_copied(self, tokens: Sequence[str], source_tokens: Sequence[str]) -> list[int]:
        """The ids of tokens, those outside the vocabulary copied from the source where it holds them."""
        first = {token: place for place, token in reversed(list(enumerate(source_tokens)))}
        return [
            len(self.vocabulary) + first[token] if index == UNK and token in first else index
            for token, index in zip(tokens, self.lookup(tokens), strict=True)
        ]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The vocabulary's string of each id, `<unk>` beyond it."""
        return super().tokens(known_ids(ids, self.vocabulary))

    def decode(self, ids: Iterable[int], unknowns: Sequence[str] | None = None) -> str:
        """As `Codec.decode`; an id beyond the vocabulary is one more `<unk>`."""
        return super().decode(known_ids(ids, self.vocabulary), unknowns)


def known_ids(ids: Iterable[int], vocabulary: Vocabulary) -> list[int]:
    """The ids, `<unk>` in place of those beyond the vocabulary."""
    return [index if index < len(vocabulary) else UNK for index in ids]
