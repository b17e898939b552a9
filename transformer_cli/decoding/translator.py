"""Text in, text out, whatever engine searches: the command line, evaluation, training and other programs call it.

Lines become ids, long lines pieces, pieces batches of like length; what comes back is put in order again. No torch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from transformer_cli.config import Config
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.pieces import Piece, cut, join
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import UNK

WINDOW = 2000  # lines read ahead and sorted by length
WINDOW_CHARACTERS = 4_000_000  # of a window, so that very long lines stay within memory


class Engine(Protocol):
    """What searches: ids in, ids out, without specials."""

    @property
    def max_source_length(self) -> int | None: ...

    @property
    def max_target_length(self) -> int | None: ...

    def search(
        self, sources: Sequence[Sequence[int]], options: SearchOptions, keys: Sequence[tuple[int, ...]] | None = None
    ) -> list[list[Hypothesis]]: ...

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]: ...

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[int]]: ...


@dataclass(frozen=True)
class Candidate:
    """One translation of a line."""

    text: str
    score: float  # log_probability by the length penalty; the higher the better
    log_probability: float
    tokens: list[str]
    alignment: list[int] | None  # for each token the place of its source token; None: not asked for
    ended: bool  # False: cut off at the length limit


@dataclass(frozen=True)
class Translation:
    """What became of a line: its hypotheses, best first, at least one. The best one's fields are its own."""

    source_tokens: list[str]
    hypotheses: list[Candidate]

    @property
    def text(self) -> str:
        return self.hypotheses[0].text

    @property
    def score(self) -> float:
        return self.hypotheses[0].score

    @property
    def tokens(self) -> list[str]:
        return self.hypotheses[0].tokens

    @property
    def alignment(self) -> list[int] | None:
        return self.hypotheses[0].alignment


@dataclass(frozen=True)
class Scored:
    """A given translation of a given source, as likely as the model finds it."""

    tokens: list[str]  # the target's, then </s>
    log_probabilities: list[float]  # of each of them
    log_probability: float  # their sum
    score: float  # the sum by the length penalty, as search would give it


class Translator:
    """A model that takes raw text and gives raw text."""

    def __init__(self, engine: Engine, codecs: Codecs, config: Config) -> None:
        self.engine = engine
        self.codecs = codecs
        self.config = config
        self.cut_lines = 0  # lines so far that were too long for one piece

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> "Translator":
        """The model in a run folder (its best checkpoint) or in one checkpoint folder; device auto, cpu, cuda or mps.

        Raises `UserError` where there is no such model or device, or where its files are damaged.
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
        self, texts: Sequence[str], options: SearchOptions | None = None, *, alignments: bool = True
    ) -> list[Translation]:
        """The translations of some texts, in order; `options` default to the model's own. Alignments cost some time."""
        options = options or SearchOptions.from_config(self.config.decoding)
        return self._translate(texts, options, alignments, first=0)

    def translate_lines(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        window: int = WINDOW,
        *,
        alignments: bool = False,
    ) -> Iterator[Translation]:
        """One translation a line, in order, reading `window` lines ahead (1: each line is answered at once)."""
        options = options or SearchOptions.from_config(self.config.decoding)
        first = 0
        for texts in _windows(lines, window):
            yield from self._translate(texts, options, alignments, first)
            first += len(texts)

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
        for batch in _batches(lengths, self.config.decoding.batch_tokens):
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
        self, texts: Sequence[str], options: SearchOptions, alignments: bool, first: int
    ) -> list[Translation]:
        """`first`: how many lines came before, so that sampling draws anew for each line of a stream."""
        codec = self.codecs.source
        lines = [text if text.strip() else "" for text in texts]
        spoken = [place for place, line in enumerate(lines) if line]
        ids = dict(zip(spoken, codec.encode_batch([lines[place] for place in spoken]), strict=True))
        cuts = [cut(line, ids.get(place, []), codec, self.max_length) for place, line in enumerate(lines)]
        self.cut_lines += sum(len(pieces) > 1 for pieces in cuts)

        pieces = [piece for line in cuts for piece in line]
        keys = [(first + place, part) for place, line in enumerate(cuts) for part in range(len(line))]
        translated: list[list[Candidate]] = [[] for _ in pieces]
        for batch in _batches([len(piece.ids) for piece in pieces], self.config.decoding.batch_tokens):
            found = self._search(
                [pieces[place] for place in batch], options, [keys[place] for place in batch], alignments
            )
            for place, candidates in zip(batch, found, strict=True):
                translated[place] = candidates

        rest = iter(translated)
        return [self._join(line, [next(rest) for _ in line], options, alignments) for line in cuts]

    def _search(
        self, pieces: Sequence[Piece], options: SearchOptions, keys: Sequence[tuple[int, ...]], alignments: bool
    ) -> list[list[Candidate]]:
        """Search for one batch, and turn what is found to text."""
        found = self.engine.search([piece.ids for piece in pieces], options, keys)
        every = [
            (piece, hypothesis) for piece, hypotheses in zip(pieces, found, strict=True) for hypothesis in hypotheses
        ]
        copy = self.config.decoding.copy_unknown and not self.codecs.target.is_subword
        wanted = [
            place for place, (_, hypothesis) in enumerate(every) if alignments or (copy and UNK in hypothesis.ids)
        ]
        aligned: dict[int, list[int]] = {}
        if wanted:
            sources, targets = [every[place][0].ids for place in wanted], [every[place][1].ids for place in wanted]
            aligned = dict(zip(wanted, self.engine.align(sources, targets), strict=True))
        candidates = iter(
            [
                self._candidate(piece, hypothesis, aligned.get(place), copy, alignments)
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

    def _join(
        self, pieces: Sequence[Piece], translated: Sequence[list[Candidate]], options: SearchOptions, alignments: bool
    ) -> Translation:
        """The translation of a line from those of its pieces: their best ones joined, then their second ones, …"""
        source_tokens = [token for piece in pieces for token in self.codecs.source.tokens(piece.ids)]
        if not pieces:
            return Translation([], [Candidate("", 0.0, 0.0, [], [] if alignments else None, True)])
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
                    score=log_probability / options.penalty(len(tokens)),
                    log_probability=log_probability,
                    tokens=tokens,
                    alignment=alignment if alignments else None,
                    ended=all(part.ended for part in parts),
                )
            )
        return Translation(source_tokens, hypotheses)


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Which sentences go together, longest first: sentences × longest (with `</s>`) is at most `batch_tokens`."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if batch and (len(batch) + 1) * (lengths[batch[0]] + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _windows(lines: Iterable[str], window: int) -> Iterator[list[str]]:
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
