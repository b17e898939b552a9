"""From lines to translations: read, searched, looked through for faults, searched again where need be, and joined.

`Translator` makes a `Pipeline` for each call. No torch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from transformer_cli.decoding import guard
from transformer_cli.decoding.demands import TextDemands
from transformer_cli.decoding.engines.protocol import SearchBatch, search_batches
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.tally import Tally
from transformer_cli.decoding.translation import Translation
from transformer_cli.decoding.windows import Window
from transformer_cli.decoding.writing import Writer

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
        windows: Iterator[Sequence[str]],
        demands: Callable[[str], TextDemands] | None = None,
        *,
        together: bool,
        first: int = 0,
    ) -> Iterator[Translation]:
        """One translation a line, in order. demands: of a line's translation; asked for line by line.

        together: windows may be read (and made ids) while the engine still searches those before. first: how many
        lines came before; it grows, so that sampling draws anew for each line of a stream.
        """
        waiting: deque[Window] = deque()
        ended = False

        def batches() -> Iterator[SearchBatch]:
            nonlocal first, ended
            for texts in windows:
                window = self._open(texts, demands, first)
                first += len(texts)
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

    def _open(self, texts: Sequence[str], demands: Callable[[str], TextDemands] | None, first: int) -> Window:
        """Make lines pieces and batches."""
        batch_tokens = self.writer.config.decoding.batch_tokens
        window = Window(texts, self.writer.codecs, self.max_length, batch_tokens, first=first, demands=demands)
        self.tally.add(cut_lines=sum(len(pieces) > 1 for pieces in window.lines))
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
        for line in window.lines:
            yield self.writer.line(line, [next(rest) for _ in line])

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
