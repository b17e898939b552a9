"""Text in, text out, whatever engine searches: the command line, evaluation, training and other programs call it.

Lines become ids, long lines pieces, pieces batches of like length; what comes back is put in order again. No torch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_cli.config import Config
from transformer_cli.decoding.demands import TextDemands
from transformer_cli.decoding.engine import Engine, SearchBatch, search_batches
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.pieces import Piece, join
from transformer_cli.decoding.translation import Candidate, Scored, Translation
from transformer_cli.decoding.windows import Window, batches_by_length, read_windows
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import UNK

__all__ = ["Candidate", "Engine", "Scored", "TextDemands", "Translation", "Translator"]

WINDOW = 2000  # lines read ahead and sorted by length


@dataclass(frozen=True)
class _Request:
    """How some lines are to be translated."""

    options: SearchOptions
    alignments: bool
    demands: Callable[[str], TextDemands] | None = None


class Translator:
    """A model that takes raw text and gives raw text."""

    def __init__(
        self,
        engine: Engine,
        codecs: Codecs,
        config: Config,
        *,
        alignment_layer: int = -1,
        alignment_heads: Sequence[int] | None = None,
    ) -> None:
        """alignment_layer, alignment_heads: of the decoder, whose attention alignments are read from (None: all)."""
        self.engine = engine
        self.codecs = codecs
        self.config = config
        self.alignment_layer, self.alignment_heads = alignment_layer, alignment_heads
        self.cut_lines = 0  # lines so far that were too long for one piece
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
    ) -> "Translator":
        """The model in a run folder (its best checkpoint) or in one checkpoint folder; device auto, cpu, cuda or mps.

        engine: auto, torch or ctranslate2; needs: names of what is asked for that only the torch engine has;
        compute_type: of CTranslate2, such as int8.
        Raises `UserError` where there is no such model, device or engine, or where the model's files are damaged.
        """
        from transformer_cli.run_folder import find_model

        folder = find_model(path)  # first: a mistyped MODEL need not wait for torch
        from transformer_cli.checkpoint import load_model
        from transformer_cli.decoding.torch_engine import TorchEngine, choose_device

        target = choose_device(device)
        loaded = load_model(folder, target)
        return cls(TorchEngine(loaded.model, target), loaded.codecs, loaded.config)

    @property
    def notes(self) -> list[str]:
        """What the user should know of the lines translated so far, a sentence each."""
        if not self.cut_lines:
            return []
        lines = "1 line was" if self.cut_lines == 1 else f"{self.cut_lines:,} lines were"
        return [f"{lines} longer than {self.max_length} tokens: cut into pieces, translated and joined"]

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
    ) -> list[Translation]:
        """The translations of some texts, in order; `options` default to the model's own. Alignments cost some time.

        demands: of each text's translation. Raises `UserError` where the vocabulary cannot write what is demanded.
        """
        asked = None
        if demands is not None:
            assert len(demands) == len(texts), "demands of each text"
            rest = iter(demands)  # lines are asked for in their order
            asked = lambda _: next(rest)  # noqa: E731
        request = _Request(options or SearchOptions.from_config(self.config.decoding), alignments, asked)
        return list(self._translate(iter([list(texts)]), request, together=False))

    def translate_lines(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        window: int = WINDOW,
        demands: Callable[[str], TextDemands] | None = None,
        *,
        alignments: bool = False,
    ) -> Iterator[Translation]:
        """One translation a line, in order, reading `window` lines ahead or more (1: each line is answered at once).

        demands: of the translation of a given line.
        """
        request = _Request(options or SearchOptions.from_config(self.config.decoding), alignments, demands)
        return self._translate(read_windows(lines, window), request, together=window > 1)

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

    def _translate(
        self, windows: Iterator[Sequence[str]], request: _Request, *, together: bool
    ) -> Iterator[Translation]:
        """together: windows may be read (and made ids) while the engine still searches those before."""
        first = 0  # lines that came before, so that sampling draws anew for each line of a stream
        waiting: deque[Window] = deque()
        ended = False

        def batches() -> Iterator[SearchBatch]:
            nonlocal first, ended
            for texts in windows:
                window = self._open(texts, request, first)
                first += len(texts)
                waiting.append(window)
                yield from window.search_batches()
                if not (together and window.batches):  # without any batch, only the end of the search tells
                    return
            ended = True

        while not ended:
            for found in search_batches(self.engine, batches(), request.options):
                self._take(waiting[0], found, request)
                while waiting and waiting[0].is_searched:
                    yield from self._close(waiting.popleft(), request)
            while waiting:
                yield from self._close(waiting.popleft(), request)

    def _open(self, texts: Sequence[str], request: _Request, first: int) -> Window:
        """Make lines pieces and batches."""
        limits = self.max_length, self.config.decoding.batch_tokens
        window = Window(texts, self.codecs, *limits, first=first, demands=request.demands)
        with self._counting:
            self.cut_lines += sum(len(pieces) > 1 for pieces in window.lines)
        return window

    def _take(self, window: Window, found: list[list[Hypothesis]], request: _Request) -> None:
        """Turn what was found for the next batch of a window to text."""
        batch = window.next_batch()
        pieces = [window.pieces[place] for place in batch]
        for place, candidates in zip(batch, self._candidates(pieces, found, request), strict=True):
            window.translated[place] = candidates

    def _close(self, window: Window, request: _Request) -> Iterator[Translation]:
        """The translations of a window's lines, once all batches are back."""
        rest = iter(window.translated)
        for line in window.lines:
            yield self._join(line, [next(rest) for _ in line], request)

    def _candidates(
        self, pieces: Sequence[Piece], found: Sequence[list[Hypothesis]], request: _Request
    ) -> list[list[Candidate]]:
        """What was found for some pieces, as text; aligned where that is asked for, or needed to copy words."""
        every = [
            (piece, hypothesis) for piece, hypotheses in zip(pieces, found, strict=True) for hypothesis in hypotheses
        ]
        copy = self.config.decoding.copy_unknown and not self.codecs.target.is_subword
        wanted = [
            place
            for place, (_, hypothesis) in enumerate(every)
            if request.alignments or (copy and UNK in hypothesis.ids)
        ]
        aligned: dict[int, list[int]] = {}
        if wanted:
            sources, targets = [every[place][0].ids for place in wanted], [every[place][1].ids for place in wanted]
            rows = self.engine.align(sources, targets, self.alignment_layer, self.alignment_heads)
            aligned = dict(zip(wanted, rows, strict=True))
        candidates = iter(
            [
                self._candidate(piece, hypothesis, aligned.get(place), copy, request.alignments)
                for place, (piece, hypothesis) in enumerate(every)
            ]
        )
        return [[next(candidates) for _ in hypotheses] for hypotheses in found]

    def _candidate(
        self, piece: Piece, hypothesis: Hypothesis, alignment: list[int] | None, copy: bool, alignments: bool
    ) -> Candidate:
        """Decode a hypothesis; each `<unk>` becomes the source word that attention points at."""
        unknowns: list[str] | None = None
        if copy and alignment is not None and UNK in hypothesis.ids:
            # Anew from the text: the ids may have lost the very words that are to be copied.
            words = self.codecs.source.tokenise(piece.text)[piece.start :]
            unknowns = [words[place] for token, place in zip(hypothesis.ids, alignment, strict=True) if token == UNK]
        return Candidate(
            text=one_line(self.codecs.target.decode(hypothesis.ids, unknowns)),
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            tokens=self.codecs.target.tokens(hypothesis.ids),
            alignment=alignment if alignments else None,
            ended=hypothesis.ended,
        )

    def _join(self, pieces: Sequence[Piece], translated: Sequence[list[Candidate]], request: _Request) -> Translation:
        """The translation of a line from those of its pieces: their best ones joined, then their second ones, …"""
        source_tokens = [token for piece in pieces for token in self.codecs.source.tokens(piece.ids)]
        if not pieces:
            return Translation([], [Candidate("", 0.0, 0.0, [], [] if request.alignments else None, True)])
        if len(pieces) == 1:
            return Translation(source_tokens, translated[0])
        hypotheses = []
        for rank in range(max(map(len, translated))):
            parts = [candidates[min(rank, len(candidates) - 1)] for candidates in translated]
            tokens = [token for part in parts for token in part.tokens]
            log_probability = sum(part.log_probability for part in parts)
            alignment: list[int] = []
            start = 0
            for piece, part in zip(pieces, parts, strict=True):
                alignment += [start + place for place in part.alignment or ()]
                start += len(piece.ids)
            hypotheses.append(
                Candidate(
                    text=join([part.text for part in parts], self.config.data.target_language),
                    score=log_probability / request.options.penalty(len(tokens)),
                    log_probability=log_probability,
                    tokens=tokens,
                    alignment=alignment if request.alignments else None,
                    ended=all(part.ended for part in parts),
                )
            )
        return Translation(source_tokens, hypotheses)
