"""From lines to translations: read, searched, looked through for faults, searched again where need be, and joined.

`Translator` makes a `Pipeline` for each call. No torch.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from transformer_cli.config import Config
from transformer_cli.decoding import guard
from transformer_cli.decoding.chunks import Chunk, cut, join, source_words
from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Constraints, Line, broken, token_constraints
from transformer_cli.decoding.engines.protocol import Engine, SearchBatch, search_batches
from transformer_cli.decoding.options import Hypothesis, SearchOptions, TokenConstraints, occurs
from transformer_cli.decoding.translation import Candidate, Confidence, Tally, Translation
from transformer_cli.text.codec import Codec, Codecs
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import UNK


@dataclass(frozen=True)
class Writer:
    """How the translations of some lines are to look."""

    engine: Engine
    codecs: Codecs
    config: Config
    options: SearchOptions
    alignments: bool = False
    alignment_layer: int = -1
    alignment_heads: Sequence[int] | None = None
    mbr: bool = False
    confidence: Confidence | None = None

    def candidates(self, pieces: Sequence[Chunk], found: Sequence[list[Hypothesis]]) -> list[list[Candidate]]:
        """What was found for some pieces, as text; aligned where that is asked for, or needed to copy words."""
        every = [
            (piece, hypothesis) for piece, hypotheses in zip(pieces, found, strict=True) for hypothesis in hypotheses
        ]
        copy = self.config.decoding.copy_unknown and not self.codecs.target.is_subword
        wanted = [
            place for place, (_, hypothesis) in enumerate(every) if self.alignments or (copy and UNK in hypothesis.ids)
        ]
        aligned: dict[int, list[int]] = {}
        if wanted:
            sources, targets = [every[place][0].ids for place in wanted], [every[place][1].ids for place in wanted]
            rows = self.engine.align(sources, targets, self.alignment_layer, self.alignment_heads)
            aligned = dict(zip(wanted, rows, strict=True))
        written = iter(
            [
                self._candidate(piece, hypothesis, aligned.get(place), copy)
                for place, (piece, hypothesis) in enumerate(every)
            ]
        )
        groups = [list(islice(written, len(hypotheses))) for hypotheses in found]
        if not self.mbr:
            return groups
        from transformer_cli.decoding.mbr import by_utility  # not at the top: numpy takes a while

        return [by_utility(group) for group in groups]

    def line(self, line: Line, pieces: Sequence[Chunk], translated: Sequence[list[Candidate]]) -> Translation:
        """The translation of a line from those of its pieces: their best ones joined, then their second ones, …"""
        source_tokens = [token for piece in pieces for token in self.codecs.source.tokens(piece.ids)]
        if not pieces:
            sure = None if self.confidence is None else 1.0
            alignment: list[int] | None = [] if self.alignments else None
            return Translation(line, [], [Candidate("", 0.0, 0.0, [], alignment, True, confidence=sure)])
        if len(pieces) == 1:
            return Translation(line, source_tokens, translated[0])
        ranks = range(max(map(len, translated)))
        return Translation(
            line,
            source_tokens,
            [
                self._joined(pieces, [candidates[min(rank, len(candidates) - 1)] for candidates in translated])
                for rank in ranks
            ],
        )

    def _candidate(self, piece: Chunk, hypothesis: Hypothesis, alignment: list[int] | None, copy: bool) -> Candidate:
        """Decode a hypothesis; each `<unk>` becomes the source word that attention points at."""
        points = copy and alignment is not None and UNK in hypothesis.ids
        words = source_words(piece, self.codecs.source) if points or self.codecs.copies else []
        codec = self.codecs.target_beside(words)
        unknowns: list[str] | None = None
        if points and alignment is not None:
            unknowns = [words[place] for token, place in zip(hypothesis.ids, alignment, strict=True) if token == UNK]
        text = one_line(codec.decode(hypothesis.ids, unknowns))
        return Candidate(
            text=text,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            tokens=codec.tokens(hypothesis.ids),
            alignment=alignment if self.alignments else None,
            ended=hypothesis.ended,
            confidence=self._confidence(text, hypothesis.log_probability),
        )

    def _joined(self, pieces: Sequence[Chunk], parts: Sequence[Candidate]) -> Candidate:
        """One translation for each piece of a line, as one of the line."""
        text = join([part.text for part in parts], self.config.data.target_language)
        tokens = [token for part in parts for token in part.tokens]
        log_probability = sum(part.log_probability for part in parts)
        alignment: list[int] = []
        start = 0
        for piece, part in zip(pieces, parts, strict=True):
            alignment += [start + place for place in part.alignment or ()]
            start += len(piece.ids)
        utilities = [part.utility for part in parts if part.utility is not None]
        return Candidate(
            text=text,
            score=log_probability / self.options.penalty(len(tokens)),
            log_probability=log_probability,
            tokens=tokens,
            alignment=alignment if self.alignments else None,
            ended=all(part.ended for part in parts),
            utility=sum(utilities) / len(utilities) if utilities else None,
            confidence=self._confidence(text, log_probability),
        )

    def _confidence(self, text: str, log_probability: float) -> float | None:
        return None if self.confidence is None else self.confidence.expect(text, log_probability)


WINDOW_CHARACTERS = 4_000_000  # of a window, so that very long lines stay within memory


class Window:
    """Some lines, on their way from text to text."""

    def __init__(
        self,
        lines: Sequence[Line],
        codecs: Codecs,
        max_length: int,
        batch_tokens: int,
        *,
        first: int = 0,
    ) -> None:
        """max_length: of a piece, in tokens. first: how many lines came before, for the keys of sampling."""
        codec, self._codecs = codecs.source, codecs
        self.lines = lines
        spoken = [place for place, line in enumerate(lines) if line.text.strip()]
        ids = dict(zip(spoken, codec.encode_batch([lines[place].text for place in spoken]), strict=True))
        self.cut = [cut(line.text, ids.get(place, []), codec, max_length) for place, line in enumerate(lines)]
        self.pieces = [piece for line in self.cut for piece in line]
        self.keys = [(first + place, part) for place, line in enumerate(self.cut) for part in range(len(line))]
        self.wanted: list[Constraints] = []  # of each piece's line
        self.constraints: list[TokenConstraints] = []  # of each piece; none at all where no line constraints anything
        if any(line.constraints != NO_CONSTRAINTS for line in lines):
            for line, pieces in zip(lines, self.cut, strict=True):
                self.wanted += [line.constraints] * len(pieces)
                self.constraints += token_constraints(line.constraints, pieces, codecs.target, self._beside)
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
            [self.constraints[place] for place in places] if self.constraints else None,
        )

    def write(self, found: Mapping[int, list[Hypothesis]], writer: Writer) -> None:
        """Keep what was found for some pieces, by their places, as text."""
        pieces = [self.pieces[place] for place in found]
        for place, candidates in zip(found, writer.candidates(pieces, list(found.values())), strict=True):
            self.translated[place] = candidates

    def _beside(self, piece: Chunk) -> Codec:
        """The target's codec beside a piece: what a model that copies may write of it is no other token elsewhere."""
        if not self._codecs.copies:
            return self._codecs.target
        return self._codecs.target_beside(source_words(piece, self._codecs.source))

    def forbid_spellings(self) -> list[int]:
        """The pieces where a translation holds a forbidden word, each way to write it that was found now forbidden."""
        places = []
        for place, wanted in enumerate(self.wanted):
            if wanted.forbidden:
                constraints, codec = self.constraints[place], self._beside(self.pieces[place])
                more = [
                    ids
                    for candidate in self.translated[place]
                    for ids in broken(candidate.text, codec.lookup(candidate.tokens), wanted.forbidden, codec)
                    if not any(
                        occurs(ids, text)
                        for text in (constraints.prefix, *constraints.required, *constraints.forbidden)
                    )
                ]
                if more:
                    self.constraints[place] = replace(
                        constraints, forbidden=(*constraints.forbidden, *dict.fromkeys(more))
                    )
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


def read_windows(lines: Iterable[str | Line], window: int) -> Iterator[list[Line]]:
    """Lines in groups of `window`, or fewer where they are very long."""
    read: list[Line] = []
    characters = 0
    for one in lines:
        line = Line(one) if isinstance(one, str) else one
        read.append(line)
        characters += len(line.text)
        if len(read) >= window or characters >= WINDOW_CHARACTERS:
            yield read
            read, characters = [], 0
    if read:
        yield read


MOST_SPELLINGS = 20  # of a forbidden word, beside those that its text has


@dataclass(frozen=True)
class Pipeline:
    """How the lines of one call are translated."""

    writer: Writer
    max_length: int  # of a piece, in tokens
    guarded: bool
    tally: Tally

    def translations(
        self,
        windows: Iterator[Sequence[Line]],
        *,
        together: bool,
        first: int = 0,
    ) -> Iterator[Translation]:
        """One translation a line, in order.

        together: windows may be read (and made ids) while the engine still searches those before. first: how many
        lines came before; it grows, so that sampling draws anew for each line of a stream.
        """
        waiting: deque[Window] = deque()
        ended = False

        def batches() -> Iterator[SearchBatch]:
            nonlocal first, ended
            for lines in windows:
                window = self._open(lines, first)
                first += len(lines)
                waiting.append(window)
                yield from map(window.search_batch, window.batches)
                if not (together and window.batches):  # without any batch, only the end of the search tells
                    return
            ended = True

        while not ended:
            for found in search_batches(self.writer.engine, batches(), self.writer.options):
                self._take(waiting[0], found)
                while waiting and waiting[0].is_searched:
                    yield from self._close(waiting.popleft())
            while waiting:
                yield from self._close(waiting.popleft())

    def _open(self, lines: Sequence[Line], first: int) -> Window:
        """Make lines pieces and batches."""
        batch_tokens = self.writer.config.decoding.batch_tokens
        window = Window(lines, self.writer.codecs, self.max_length, batch_tokens, first=first)
        self.tally.add(cut_lines=sum(len(pieces) > 1 for pieces in window.cut))
        return window

    def _take(self, window: Window, found: Sequence[list[Hypothesis]]) -> None:
        """Write what was found for the next batch of a window; what the guard catches has to wait."""
        good: dict[int, list[Hypothesis]] = {}
        for place, hypotheses in zip(window.next_batch(), found, strict=True):
            source = window.pieces[place].ids
            hypotheses = self._electable(hypotheses, source)
            caught = self.guarded and guard.fault(hypotheses[0], source, self.writer.options)
            (window.caught if caught else good)[place] = hypotheses
        window.write(good, self.writer)

    def _electable(self, hypotheses: list[Hypothesis], source: Sequence[int]) -> list[Hypothesis]:
        """The hypotheses of which minimum Bayes risk may choose any: those without a fault, if there are such."""
        if not (self.guarded and self.writer.mbr):
            return hypotheses
        return [one for one in hypotheses if not guard.fault(one, source, self.writer.options)] or hypotheses

    def _close(self, window: Window) -> Iterator[Translation]:
        """The translations of a window's lines, once all batches are back."""
        if window.caught:
            self._mend(window)
        self._obey(window)
        rest = iter(window.translated)
        for line, pieces in zip(window.lines, window.cut, strict=True):
            yield self.writer.line(line, pieces, [next(rest) for _ in pieces])

    def _mend(self, window: Window) -> None:
        """Search again for what the guard caught, with repetition blocked, and take what is better."""
        better = {}
        options = guard.search_again(self.writer.options)
        if options is not None:
            for place, hypotheses in self._search_again(window, list(window.caught), options):
                source, before = window.pieces[place].ids, window.caught[place][0]
                hypotheses = self._electable(hypotheses, source)
                now = guard.fault(hypotheses[0], source, self.writer.options)
                if now < guard.fault(before, source, self.writer.options):
                    better[place] = hypotheses
        self.tally.add(caught=len(window.caught), mended=len(better))
        window.write({**window.caught, **better}, self.writer)

    def _obey(self, window: Window) -> None:
        """Search again where forbidden words were written with other tokens than those that were foreseen."""
        for _ in range(MOST_SPELLINGS):
            disobedient = window.forbid_spellings()
            if not disobedient:
                break
            window.write(dict(self._search_again(window, disobedient, self.writer.options)), self.writer)

    def _search_again(
        self, window: Window, places: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What is found for some pieces of a window in another search."""
        batches = window.batches_of(places)
        searched = search_batches(self.writer.engine, map(window.search_batch, batches), options)
        for batch, found in zip(batches, searched, strict=True):
            yield from zip(batch, found, strict=True)
