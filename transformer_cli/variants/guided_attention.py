"""Guided attention: beside the translation's loss, one on the decoder's attention to the source.

`build.build_objective` chooses it where the config has `training.guided_attention`. The guide is a prior, or links of
words: training reads an `AlignedCorpus` then, and the encoder of the corpus keeps the links of its pairs' tokens.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from transformer_cli.config import Config, GuidedAttention
from transformer_cli.data.batch import Batch
from transformer_cli.data.corpora import Corpus, count_lines, dropped, open_split
from transformer_cli.data.files import LocalFile
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.alignments import AlignedPair, aligned_pair
from transformer_cli.text.lines import TextLines, read_lines
from transformer_cli.text.vocabulary import PAD
from transformer_cli.training.objective import Loss, TranslationObjective, at_places
from transformer_cli.variants.lexicon import Lexicon

LEAST_WEIGHT = 1e-20  # of attention in a logarithm: far below what a softmax gives, and its inverse is still finite


class GuidedObjective(TranslationObjective):
    """Teacher forcing with guided attention, in training only; afterwards, and in validation, it is the plain one."""

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        guide: GuidedAttention,
        r_drop: float = 0.0,
        lexicon: Lexicon | None = None,
    ) -> None:
        super().__init__(model, label_smoothing, r_drop)
        self.guide, self.lexicon = guide, lexicon if guide.needs_lexicon else None

    def forward(self, batch: Batch) -> Loss:
        """Return the losses summed over the batch's target tokens; `regularised` has the guide's, times its weight."""
        guide = self.guide
        if not self.training or (guide.max_steps is not None and self.updates >= guide.max_steps):
            return super().forward(batch)
        passes = self.passes(batch)
        memory = self.model.encode(passes.source, passes.source_mask)
        output = self.model.decode(passes.target_input, memory, passes.source_mask, need_weights=True)
        translation = self.loss_at(output, passes)
        attention = output.cross_attention[guide.layer]  # (B, H, T, S)
        heads = guide.supervised_heads or guide.heads
        if heads is not None:
            attention = torch.stack([attention[:, head] for head in heads], dim=1)  # no list of indices goes to a GPU
        both = 2 if passes.r_drop else 1
        attention = torch.cat(attention.chunk(both), dim=1)  # (B, both · H, T, S): the heads of both passes
        guided = self.guide_weight() * both * self.guide_loss(attention, batch)
        return Loss(translation.smoothed.detach(), translation.likelihood, translation.minimised + guided)

    def guide_weight(self) -> float:
        """Return the weight of the guide's loss in the next update."""
        guide = self.guide
        if guide.start_weight is None:
            return guide.weight
        left = max(0.0, 1 - self.updates / guide.start_steps)
        return guide.weight + left * (guide.start_weight - guide.weight)

    def guide_loss(self, attention: Tensor, batch: Batch) -> Tensor:
        """Return the guide's loss over the batch's target tokens, the mean over heads; attention (B, H, T, S) → ()."""
        if self.guide.prior == "diagonal":
            return diagonal_loss(attention, batch, self.guide.width)
        if self.guide.needs_lexicon:
            assert self.lexicon is not None, "guided attention by statistics needs a lexicon"
            return lexicon_loss(attention, self.lexicon.alignment(batch))
        assert batch.links is not None, "the corpus was encoded without alignments"
        return alignment_loss(attention, batch.links)


def diagonal_loss(attention: Tensor, batch: Batch, width: float) -> Tensor:
    """Return Σ over target tokens of Σ_s A[t, s] · W[t, s], the mean over heads; attention (B, H, T, S) → ().

    W[t, s] = 1 - exp(-(s / S - t / T)² / 2g²) with g the width (Tachibana et al. 2017, "Efficiently Trainable
    Text-to-Speech System Based on Deep Convolutional Networks with Guided Attention", eq. 6-7); S and T are each
    sentence's own lengths, `</s>` included. The paper takes the mean over all T · S cells.
    """
    dtype = torch.promote_types(attention.dtype, torch.float32)
    along_source = _places_along(batch.source, dtype)  # (B, S)
    along_target = _places_along(batch.target_output, dtype)  # (B, T)
    apart = along_source[:, None, :] - along_target[:, :, None]  # (B, T, S)
    penalty = 1 - torch.exp(-(apart**2) / (2 * width**2))
    loss = (attention.to(dtype).mean(dim=1) * penalty).sum(dim=2, keepdim=True)  # (B, T, 1): padding has no attention
    return at_places(batch.target_places, loss).sum()


def alignment_loss(attention: Tensor, links: Tensor) -> Tensor:
    """Return -Σ over linked target tokens of Σ_s G[t, s] · log A[t, s], mean over heads; attention (B, H, T, S) → ().

    Links (L, 3) are of tokens: the row of the pair, the place in its target, the place in its source. G is 1 over the
    links of the target token, so it is a distribution; tokens without links take no part (Garg et al. 2019, "Jointly
    Learning to Align and Translate with Transformer Models", eq. 5).
    """
    batch, _, length, _ = attention.shape
    row, target, source = links.unbind(1)  # (L,) each
    chosen = attention[row, :, target, source]  # (L, H)
    log_weights = chosen.to(torch.promote_types(chosen.dtype, torch.float32)).clamp_min(LEAST_WEIGHT).log().mean(dim=1)
    token = row * length + target
    counts = log_weights.new_zeros(batch * length).index_add_(0, token, torch.ones_like(log_weights))
    return -(log_weights / counts[token]).sum()


def lexicon_loss(attention: Tensor, alignment: Tensor) -> Tensor:
    """Return -Σ over t and s of G[t, s] · log A[t, s], mean over heads; attention (B, H, T, S), G (B, T, S) → ().

    As `alignment_loss`, but G is how sure each link is: a token of whose translation nothing is known takes no part.
    """
    dtype = torch.promote_types(attention.dtype, torch.float32)
    log_weights = attention.to(dtype).clamp_min(LEAST_WEIGHT).log().mean(dim=1)  # (B, T, S)
    return -(alignment * log_weights).sum()


def _places_along(ids: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far along its sentence each token is, from 0 to below 1; ids (B, L) with padding → (B, L)."""
    lengths = (ids != PAD).sum(dim=1, keepdim=True)  # (B, 1)
    return torch.arange(ids.size(1), device=ids.device).to(dtype) / lengths.to(dtype)


def check_alignments(config: Config) -> None:
    """Raise `UserError` where `training.guided_attention.alignments` are not those of `data.train`."""
    guide = config.training.guided_attention
    if guide is not None and guide.alignments is not None:
        for _ in AlignedCorpus(open_split(config.data, "train"), guide.alignments).pairs():
            pass


class AlignedCorpus:
    """The pairs of a corpus with the links that a file has for them."""

    def __init__(self, corpus: Corpus, alignments: str | Path):
        self.corpus, self.alignments = corpus, LocalFile(alignments)
        self.notes: list[str] = []

    def pairs(self) -> Iterator[AlignedPair]:
        """Yield each pair with the links of its line.

        Raises `UserError`, with file and line, at what is not a link, at links of words that are not there, and where
        the file has fewer or more lines than the corpus has pairs; and whatever the corpus raises.
        """
        lines = read_lines(self.alignments.path)
        number = 0
        for number, (source, target) in enumerate(self.corpus.pairs(), start=1):
            line = next(lines, None)
            if line is None:
                raise UserError(
                    f"{lines.name}:{number}: is missing: the file has {number - 1:,} lines, and "
                    f"{self.corpus.describe()} more pairs; it needs a line for each pair, an empty one for none linked"
                )
            try:
                pair = aligned_pair(source, target, line)
            except UserError as error:
                hint = f"check that the file is of {self.corpus.describe()}"
                raise UserError(f"{lines.name}:{number}: {error}; {hint}") from None
            yield pair
        self._check_end(lines, number)
        self.notes = [*self.corpus.notes, *dropped(lines)]

    def _check_end(self, lines: TextLines, pairs: int) -> None:
        if next(lines, None) is not None:
            count = count_lines(pairs + 1, lines)
            raise UserError(
                f"{lines.name}:{pairs + 1}: has no counterpart: the file has {count} lines, and "
                f"{self.corpus.describe()} {pairs:,} pairs; it needs a line for each pair"
            )

    def content_hash(self) -> str:
        """Return a hash of the corpus and the bytes of the file."""
        parts = f"aligned {self.corpus.content_hash()} {self.alignments.content_hash()}"
        return hashlib.sha256(parts.encode()).hexdigest()

    def describe(self) -> str:
        """Name the corpus and the file."""
        return f"{self.corpus.describe()}, {self.alignments.path}"
