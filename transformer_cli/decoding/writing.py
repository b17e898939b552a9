"""From what an engine found to the text of a line: ids become text, unknown words are copied, pieces are joined.

`Translator` makes a `Writer` for each call. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from transformer_cli.config import Config
from transformer_cli.decoding.confidence import Confidence
from transformer_cli.decoding.engines.protocol import Engine
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.pieces import Piece, join, source_words
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.text.codec import Codecs
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

    def candidates(self, pieces: Sequence[Piece], found: Sequence[list[Hypothesis]]) -> list[list[Candidate]]:
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

    def line(self, pieces: Sequence[Piece], translated: Sequence[list[Candidate]]) -> Translation:
        """The translation of a line from those of its pieces: their best ones joined, then their second ones, …"""
        source_tokens = [token for piece in pieces for token in self.codecs.source.tokens(piece.ids)]
        if not pieces:
            sure = None if self.confidence is None else 1.0
            alignment: list[int] | None = [] if self.alignments else None
            return Translation([], [Candidate("", 0.0, 0.0, [], alignment, True, confidence=sure)])
        if len(pieces) == 1:
            return Translation(source_tokens, translated[0])
        ranks = range(max(map(len, translated)))
        return Translation(
            source_tokens,
            [
                self._joined(pieces, [candidates[min(rank, len(candidates) - 1)] for candidates in translated])
                for rank in ranks
            ],
        )

    def _candidate(self, piece: Piece, hypothesis: Hypothesis, alignment: list[int] | None, copy: bool) -> Candidate:
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

    def _joined(self, pieces: Sequence[Piece], parts: Sequence[Candidate]) -> Candidate:
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
