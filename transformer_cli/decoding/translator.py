"""Text in, text out, whatever engine searches: the command line, evaluation, training and other programs call it.

Lines become ids, long lines pieces, pieces batches of like length; what comes back is put in order again. No torch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from transformer_cli.config import Config
from transformer_cli.decoding import guard
from transformer_cli.decoding.confidence import Confidence, load_confidence
from transformer_cli.decoding.demands import TextDemands
from transformer_cli.decoding.engine import Engine, SearchBatch, search_batches
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.translation import Candidate, Scored, Translation
from transformer_cli.decoding.windows import Window, batches_by_length, read_windows
from transformer_cli.decoding.writing import Writer
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs

__all__ = ["Candidate", "Engine", "Scored", "TextDemands", "Translation", "Translator"]

WINDOW = 2000  # lines read ahead and sorted by length
MOST_SPELLINGS = 20  # of a forbidden word, beside those that its text has


class Translator:
    """A model that takes raw text and gives raw text."""

    def __init__(
        self,
        engine: Engine,
        codecs: Codecs,
        config: Config,
        *,
        guard: bool = True,
        confidence: Confidence | None = None,
        alignment_layer: int = -1,
        alignment_heads: Sequence[int] | None = None,
    ) -> None:
        """guard: search again, with repetition blocked, where a translation runs in circles or has no end.

        confidence: what `tfm calibrate` found. alignment_layer, alignment_heads: of the decoder, whose attention
        alignments are read from (None: all heads).
        """
        self.engine = engine
        self.codecs = codecs
        self.config = config
        self.alignment_layer, self.alignment_heads = alignment_layer, alignment_heads
        self.guarded = guard
        self.confidence = confidence
        self.engine_choice = f"engine: {engine.name}"  # a sentence for the user
        self.cut_lines = 0  # lines so far that were too long for one piece
        self.caught = 0  # translations so far that the guard had searched for again …
        self.mended = 0  # … and those that were better then
        self._counting = threading.Lock()

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: str = "auto",
        *,
        engine: str = "auto",
        needs: Sequence[str] = (),
        compute_type: str | None = None,
        guard: bool = True,
    ) -> "Translator":
        """The model in a run folder (its best checkpoint) or in one checkpoint folder; device auto, cpu, cuda or mps.

        engine: auto, torch or ctranslate2; needs: names of what is asked for that only the torch engine has;
        compute_type: of CTranslate2, such as int8.
        Raises `UserError` where there is no such model, device or engine, or where the model's files are damaged.
        """
        from transformer_cli.run_folder import find_model

        folder = find_model(path)  # first: a mistyped MODEL need not wait for torch
        from transformer_cli.decoding.engines import load_engine

        loaded, choice = load_engine(folder, device, engine, compute_type=compute_type, needs=needs)
        translator = cls(*loaded, guard=guard, confidence=load_confidence(folder))
        translator.engine_choice = choice
        return translator

    @property
    def notes(self) -> list[str]:
        """What the user should know of the lines translated so far, a sentence each."""
        notes = []
        if self.cut_lines:
            lines = "1 line was" if self.cut_lines == 1 else f"{self.cut_lines:,} lines were"
            notes.append(f"{lines} longer than {self.max_length} tokens: cut into pieces, translated and joined")
        if self.caught:
            were = "1 translation" if self.caught == 1 else f"{self.caught:,} translations"
            notes.append(
                f"{were} ran in circles or had no end: searched for again without repetition, {self.mended:,} mended"
            )
        return notes

    @property
    def max_length(self) -> int:
        """The most source tokens (`</s>` not counted) that are translated in one piece."""
        own = self.config.data.max_length
        return own if self.engine.max_source_length is None else min(own, self.engine.max_source_length)

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The best translation of each text; texts without any word give empty ones."""
        return [translation.text for translation in self.translate_batch(texts, alignments=False)]

    def translate_batch(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        demands: Sequence[TextDemands] | None = None,
        *,
        alignments: bool = True,
        mbr: bool = False,
    ) -> list[Translation]:
        """The translations of some texts, in order; `options` default to the model's own. Alignments cost some time.

        demands: of each text's translation. mbr: order the `n_best` found by their likeness to each other (see `mbr`).
        Raises `UserError` where the vocabulary cannot write what is demanded.
        """
        asked = None
        if demands is not None:
            assert len(demands) == len(texts), "demands of each text"
            rest = iter(demands)  # lines are asked for in their order
            asked = lambda _: next(rest)  # noqa: E731
        writer = self._writer(options, alignments, mbr)
        return list(self._translate(iter([list(texts)]), writer, asked, together=False))

    def translate_lines(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        window: int = WINDOW,
        demands: Callable[[str], TextDemands] | None = None,
        *,
        alignments: bool = False,
        mbr: bool = False,
        first: int = 0,
    ) -> Iterator[Translation]:
        """One translation a line, in order, reading `window` lines ahead or more (1: each line is answered at once).

        demands: of the translation of a given line. mbr: as in `translate_batch`. first: how many lines came before, in
        another call, so that sampling draws as it would in one.
        """
        writer = self._writer(options, alignments, mbr)
        return self._translate(read_windows(lines, window), writer, demands, together=window > 1, first=first)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], options: SearchOptions | None = None
    ) -> list[Scored]:
        """How likely the model finds each target as a translation of its source.

        Raises `UserError`, with the number of the pair, where one is longer than the model's position table.
        """
        options = options or SearchOptions.from_config(self.config.decoding)
        source_ids, target_ids = self.codecs.source.encode_batch(sources), self.codecs.target.encode_batch(targets)
        self._check_lengths("source", source_ids, self.engine.max_source_length)
        self._check_lengths("target", target_ids, self.engine.max_target_length)
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        scored: dict[int, Scored] = {}
        for batch in batches_by_length(lengths, self.config.decoding.batch_tokens):
            rows = self.engine.score([source_ids[pair] for pair in batch], [target_ids[pair] for pair in batch])
            for pair, row in zip(batch, rows, strict=True):
                ids = target_ids[pair]
                total = sum(row)
                tokens = [*self.codecs.target.tokens(ids), "</s>"]
                scored[pair] = Scored(tokens, row, total, total / options.penalty(len(ids)))
        return [scored[pair] for pair in range(len(lengths))]

    def _check_lengths(self, side: str, ids: Sequence[Sequence[int]], most: int | None) -> None:
        for number, row in enumerate(ids, start=1):
            if most is not None and len(row) > most:
                raise UserError(
                    f"{side} {number}: {len(row)} tokens, but this model's learned positions end at {most}; "
                    "shorten it or leave the pair out"
                )

    def _writer(self, options: SearchOptions | None, alignments: bool, mbr: bool) -> Writer:
        return Writer(
            self.engine,
            self.codecs,
            self.config,
            options or SearchOptions.from_config(self.config.decoding),
            alignments,
            self.alignment_layer,
            self.alignment_heads,
            mbr,
            self.confidence,
        )

    def _translate(
        self,
        windows: Iterator[Sequence[str]],
        writer: Writer,
        demands: Callable[[str], TextDemands] | None,
        *,
        together: bool,
        first: int = 0,
    ) -> Iterator[Translation]:
        """together: windows may be read (and made ids) while the engine still searches those before.

        first: how many lines came before; it grows, so that sampling draws anew for each line of a stream.
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
            for found in search_batches(self.engine, batches(), writer.options):
                self._take(waiting[0], found, writer)
                while waiting and waiting[0].is_searched:
                    yield from self._close(waiting.popleft(), writer)
            while waiting:
                yield from self._close(waiting.popleft(), writer)

    def _open(self, texts: Sequence[str], demands: Callable[[str], TextDemands] | None, first: int) -> Window:
        """Make lines pieces and batches."""
        batch_tokens = self.config.decoding.batch_tokens
        window = Window(texts, self.codecs, self.max_length, batch_tokens, first=first, demands=demands)
        with self._counting:
            self.cut_lines += sum(len(pieces) > 1 for pieces in window.lines)
        return window

    def _take(self, window: Window, found: Sequence[list[Hypothesis]], writer: Writer) -> None:
        """Write what was found for the next batch of a window; what the guard catches has to wait."""
        good: dict[int, list[Hypothesis]] = {}
        for place, hypotheses in zip(window.next_batch(), found, strict=True):
            caught = self.guarded and guard.fault(hypotheses[0], window.pieces[place].ids, writer.options)
            (window.caught if caught else good)[place] = hypotheses
        window.write(good, writer)

    def _close(self, window: Window, writer: Writer) -> Iterator[Translation]:
        """The translations of a window's lines, once all batches are back."""
        if window.caught:
            self._mend(window, writer)
        self._obey(window, writer)
        rest = iter(window.translated)
        for line in window.lines:
            yield writer.line(line, [next(rest) for _ in line])

    def _mend(self, window: Window, writer: Writer) -> None:
        """Search again for what the guard caught, with repetition blocked, and take what is better."""
        better = {}
        options = guard.search_again(writer.options)
        if options is not None:
            for place, hypotheses in self._search_again(window, list(window.caught), options):
                source, before = window.pieces[place].ids, window.caught[place][0]
                now = guard.fault(hypotheses[0], source, writer.options)
                if now < guard.fault(before, source, writer.options):
                    better[place] = hypotheses
        with self._counting:
            self.caught += len(window.caught)
            self.mended += len(better)
        window.write({**window.caught, **better}, writer)

    def _obey(self, window: Window, writer: Writer) -> None:
        """Search again where forbidden words were written with other tokens than those that were foreseen."""
        for _ in range(MOST_SPELLINGS):
            disobedient = window.forbid_spellings(self.codecs.target)
            if not disobedient:
                break
            window.write(dict(self._search_again(window, disobedient, writer.options)), writer)

    def _search_again(
        self, window: Window, places: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What is found for some pieces of a window in another search."""
        batches = window.batches_of(places)
        searched = search_batches(self.engine, map(window.search_batch, batches), options)
        for batch, found in zip(batches, searched, strict=True):
            yield from zip(batch, found, strict=True)
