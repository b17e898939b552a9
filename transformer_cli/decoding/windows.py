"""Lines read together: cut into pieces, the pieces sorted into batches of like length. No torch.

`Translator` makes a window of what it reads, has its batches searched, and keeps in it what comes back.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from transformer_cli.decoding.demands import TextDemands, broken, demands_of_pieces
from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.options import Demands, Hypothesis, occurs
from transformer_cli.decoding.pieces import Piece, cut, source_words
from transformer_cli.decoding.translation import Candidate
from transformer_cli.decoding.writing import Writer
from transformer_cli.text.codec import Codec, Codecs

WINDOW_CHARACTERS = 4_000_000  # of a window, so that very long lines stay within memory


class Window:
    """Some lines, on their way from text to text."""

    def __init__(
        self,
        texts: Sequence[str],
        codecs: Codecs,
        max_length: int,
        batch_tokens: int,
        *,
        first: int = 0,
        demands: Callable[[str], TextDemands] | None = None,
    ) -> None:
        """max_length: of a piece, in tokens. first: how many lines came before, for the keys of sampling."""
        codec, self._codecs = codecs.source, codecs
        lines = [text if text.strip() else "" for text in texts]
        spoken = [place for place, line in enumerate(lines) if line]
        ids = dict(zip(spoken, codec.encode_batch([lines[place] for place in spoken]), strict=True))
        self.lines = [cut(line, ids.get(place, []), codec, max_length) for place, line in enumerate(lines)]
        self.pieces = [piece for line in self.lines for piece in line]
        self.keys = [(first + place, part) for place, line in enumerate(self.lines) for part in range(len(line))]
        self.wanted: list[TextDemands] = []  # of each piece's line
        self.demands: list[Demands] = []  # of each piece; none at all where no line demands anything
        if demands is not None:
            for text, line in zip(texts, self.lines, strict=True):
                wanted = demands(text)
                self.wanted += [wanted] * len(line)
                self.demands += demands_of_pieces(wanted, line, codecs.target, self._beside)
        self._batch_tokens = batch_tokens
        self.batches = self.batches_of(range(len(self.pieces)))
        self.translated: list[list[Candidate]] = [[] for _ in self.pieces]
        self.caught: dict[int, list[Hypothesis]] = {}  # what the guard found fault with, by piece
        self._searched = 0  # batches

    def search_batch(self, places: Sequence[int]) -> SearchBatch:
        """Some pieces, as an engine takes them."""
        return SearchBatch(
            [self.pieces[place].ids for place in places],
            [self.keys[place] for place in places],
            [self.demands[place] for place in places] if self.demands else None,
        )

    def write(self, found: Mapping[int, list[Hypothesis]], writer: Writer) -> None:
        """Keep what was found for some pieces, by their places, as text."""
        pieces = [self.pieces[place] for place in found]
        for place, candidates in zip(found, writer.candidates(pieces, list(found.values())), strict=True):
            self.translated[place] = candidates

    def _beside(self, piece: Piece) -> Codec:
        """The target's codec beside a piece: what a model that copies may write of it is no other token elsewhere."""
        if not self._codecs.copies:
            return self._codecs.target
        return self._codecs.target_beside(source_words(piece, self._codecs.source))

    def forbid_spellings(self) -> list[int]:
        """The pieces where a translation holds a forbidden word, each way to write it that was found now forbidden."""
        places = []
        for place, wanted in enumerate(self.wanted):
            if wanted.forbidden:
                demands, codec = self.demands[place], self._beside(self.pieces[place])
                more = [
                    ids
                    for candidate in self.translated[place]
                    for ids in broken(candidate.text, codec.lookup(candidate.tokens), wanted.forbidden, codec)
                    if not any(occurs(ids, text) for text in (demands.prefix, *demands.required, *demands.forbidden))
                ]
                if more:
                    self.demands[place] = replace(demands, forbidden=(*demands.forbidden, *dict.fromkeys(more)))
                    places.append(place)
        return places

    def batches_of(self, places: Sequence[int]) -> list[list[int]]:
        """Some of the pieces, in batches."""
        found = batches_by_length([len(self.pieces[place].ids) for place in places], self._batch_tokens)
        return [[places[number] for number in batch] for batch in found]

    def next_batch(self) -> list[int]:
        """The pieces of the batch whose search has just ended."""
        self._searched += 1
        return self.batches[self._searched - 1]

    @property
    def is_searched(self) -> bool:
        """Whether the search of every batch has ended."""
        return self._searched == len(self.batches)


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Which sentences go together, longest first: sentences × longest (with `</s>`) is at most `batch_tokens`."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def read_windows(lines: Iterable[str], window: int) -> Iterator[list[str]]:
    """Lines in groups of `window`, or fewer where they are very long."""
    texts: list[str] = []
    characters = 0
    for line in lines:
        texts.append(line)
        characters += len(line)
        if len(texts) >= window or characters >= WINDOW_CHARACTERS:
            yield texts
            texts, characters = [], 0
    if texts:
        yield texts
