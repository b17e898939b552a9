"""A generator that can copy source tokens, those outside the vocabulary too, and what it needs around it.

See, Liu and Manning 2017, "Get To The Point" (§2.2), with the cross-attention of a Transformer for theirs. `build`
chooses these parts for `generator: pointer`. Ids go beyond the vocabularies here (V_s source, V_t target tokens):
- a source id V_s + t is a token that only the target vocabulary knows, as t; V_s + V_t + k is one that neither knows,
  the k-th of its line;
- a target id V_t + p is the source token at position p of the row, where it first stands.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from transformer_cli.model.embedding import TokenEmbedding
from transformer_cli.model.linear import Linear
from transformer_cli.model.transformer import DecoderOutput, Generator
from transformer_cli.text.vocabulary import EOS, UNK

HEAD = 0  # of the last layer: whose attention copies. A single one can become sharp, while the others stay free


class PointerGenerator(Generator):
    """P(w) = g · softmax(hidden Wᵀ + b)(w) + (1 - p_gen) · Σ of the attention to the places of w in the source.

    p_gen = σ(hidden wᵀ + c) of the decoder state. What attention rests on `</s>` points at nothing, and counts for the
    vocabulary: g = p_gen + (1 - p_gen) · that attention. So P sums to 1 without dividing by what may be 0.
    """

    copies_source = True
    target_ids: Tensor

    def __init__(self, d_model: int, source_vocabulary_size: int, vocabulary_size: int, bias: bool) -> None:
        super().__init__(d_model, vocabulary_size, bias)
        self.mixture = Linear(d_model, 1)
        # (V_s,) the target id of each source token's string; -1: the target vocabulary lacks it
        self.register_buffer("target_ids", torch.full((source_vocabulary_size,), -1))

    def set_target_ids(self, target_ids: Sequence[int]) -> None:
        """Take the target id of each source token, -1 where there is none. It is stored with the weights."""
        self.target_ids.copy_(torch.tensor(target_ids))

    def forward(self, output: DecoderOutput, source: Tensor) -> Tensor:
        """Hidden states (B, T, D) with the last layer's attention on source ids (M, S) → log-probabilities
        (B, T, V_t + S), float32 or wider; -inf where a column is no token. B / M rows in a row read one source.
        """
        log_probs = super().forward(output, source)  # (B, T, V)
        rows, length, vocabulary = log_probs.shape
        tokens = (source > EOS, *self._places(source))  # `</s>` is the last of the ids that are never copied
        copied, first, columns = (
            each.repeat_interleave(rows // len(source), dim=0)[:, None].expand(-1, length, -1) for each in tokens
        )  # (B, T, S) each
        attention = output.cross_attention[-1][:, HEAD].to(log_probs.dtype)  # (B, T, S)
        copying = torch.zeros_like(attention).scatter_add(2, first, attention)  # of all places of a token, at its first
        resting = attention.masked_fill(copied, 0.0)

        gate = self.mixture(output.hidden).to(log_probs.dtype)  # (B, T, 1)
        generate, copy = functional.logsigmoid(gate), functional.logsigmoid(-gate)
        generate = torch.logaddexp(generate, copy + _log(resting.sum(2, keepdim=True)))
        possible = functional.pad(generate + log_probs, (0, source.size(1) + 1), value=-torch.inf)  # (B, T, V + S + 1)
        both = torch.logaddexp(possible.gather(2, columns), copy + _log(copying))
        # The last column takes what is nobody's, and goes.
        return possible.scatter(2, columns, both)[:, :, : vocabulary + source.size(1)]

    def _places(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return where each token of the source (M, S) first stands there, and the column that it has.

        Elsewhere, and where nothing is copied, that is the last column, which is nobody's. (M, S) each
        """
        length, known, vocabulary = source.size(1), len(self.target_ids), self.projection.out_features
        same = source[:, :, None] == source[:, None, :]  # (M, S, S)
        place = torch.arange(length, device=source.device)
        first = torch.where(same, place, length).amin(2)  # (M, S)
        beyond = torch.where(source < known + vocabulary, source - known, -1)
        own = torch.where(source < known, self.target_ids[source.clamp(max=known - 1)], beyond)
        columns = torch.where(own < 0, vocabulary + first, own)
        return first, torch.where((first == place) & (source > EOS), columns, vocabulary + length)


class OutOfVocabularyEmbedding(TokenEmbedding):
    """An embedding that sees `<unk>` in ids beyond its vocabulary."""

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) → (B, T, D)
        return super().forward(ids.masked_fill(ids >= self.table.num_embeddings, UNK))


def _log(values: Tensor) -> Tensor:
    """Return the log, finite at 0, and no gradient there."""
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()
