"""A generator that can copy source tokens, those outside the vocabulary too, and what it needs around it.

See, Liu and Manning 2017, "Get To The Point" (§2.2), with the cross-attention of a Transformer for theirs. `build`
chooses these parts for `generator: pointer`. Ids go beyond the vocabularies here (V_s source, V_t target tokens):
- a source id V_s + t is a token that only the target vocabulary knows, as t; V_s + V_t + k is one that neither knows,
  the k-th of its line;
- a target id V_t + p is the source token at position p of the row, where it first stands.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.embedding import TokenEmbedding
from transformer_cli.model.layers import DecoderLayer
from transformer_cli.model.transformer import Decoder, DecoderOutput, Generator
from transformer_cli.training.losses import Loss

UNK, EOS = 1, 3  # the ids of <unk> and </s> in every vocabulary; </s> is the last of those that are never copied
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
        self.mixture = nn.Linear(d_model, 1)
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
        tokens = (source > EOS, *self._places(source))
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
        """Where each token of the source (M, S) first stands there, and the column that it has; elsewhere, and where
        nothing is copied, that is the last one, which is nobody's. (M, S) each
        """
        length, known, vocabulary = source.size(1), len(self.target_ids), self.projection.out_features
        same = source[:, :, None] == source[:, None, :]  # (M, S, S)
        place = torch.arange(length, device=source.device)
        first = torch.where(same, place, length).amin(2)  # (M, S)
        beyond = torch.where(source < known + vocabulary, source - known, -1)
        own = torch.where(source < known, self.target_ids[source.clamp(max=known - 1)], beyond)
        columns = torch.where(own < 0, vocabulary + first, own)
        return first, torch.where((first == place) & (source > EOS), columns, vocabulary + length)


class PointerDecoder(Decoder):
    """A decoder that always hands out its last layer's attention."""

    def forward(
        self, states: Tensor, memory_mask: Tensor, cache: DecoderCache, need_weights: bool = False
    ) -> DecoderOutput:
        """As `Decoder`; without `need_weights` the attention is that of the last layer alone."""
        decoded, self_attention, cross_attention = [], [], []
        layers = list(cast(Iterable[DecoderLayer], self.layers))
        for layer, before, memory in zip(layers, cache.decoded, cache.memory, strict=True):
            wanted = need_weights or layer is layers[-1]
            states, so_far, self_weights, cross_weights = layer(states, before, memory, memory_mask, wanted)
            decoded.append(so_far)
            if wanted:
                self_attention.append(self_weights)
                cross_attention.append(cross_weights)
        grown = DecoderCache(tuple(decoded), cache.memory, cache.length + states.size(1))
        return DecoderOutput(self.norm(states), grown, tuple(self_attention), tuple(cross_attention))


class OutOfVocabularyEmbedding(TokenEmbedding):
    """An embedding that sees `<unk>` in ids beyond its vocabulary."""

    def forward(self, ids: Tensor) -> Tensor:  # (B, T) → (B, T, D)
        return super().forward(ids.masked_fill(ids >= self.table.num_embeddings, UNK))


def _log(values: Tensor) -> Tensor:
    """log, finite at 0, and no gradient there."""
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()


def pointer_cross_entropy(
    log_probabilities: Tensor, target: Tensor, vocabulary_size: int, smoothing: float, r_drop: float = 0.0
) -> Loss:
    """Σ over tokens of (1 - ε) · (-log p[y]) + ε / V · Σ_v (-log p[v]), v of the vocabulary alone, y any column.

    Log-probabilities (N, V + S) and target ids (N,), padding already left out. `r_drop`: α of `losses`; a token has two
    rows then, and their divergence is over all that is possible in both.
    """
    likelihood = -log_probabilities.gather(1, target[:, None]).sum()
    uniform = -log_probabilities[:, :vocabulary_size].sum() / vocabulary_size
    smoothed = (1.0 - smoothing) * likelihood + smoothing * uniform
    if not r_drop:
        return Loss(smoothed, likelihood.detach())
    impossible = log_probabilities == -torch.inf  # in both rows or in none: they read one source
    one, other = log_probabilities.masked_fill(impossible, 0.0).view(-1, 2, log_probabilities.size(1)).unbind(1)
    divergence = 0.5 * ((one.exp() - other.exp()) * (one - other)).sum()
    return Loss(smoothed.detach() / 2, likelihood.detach() / 2, smoothed + r_drop * divergence)
