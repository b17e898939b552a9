"""The model that a benchmark trains, and what an update costs in arithmetic. Needs nothing but Python."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A post-norm Transformer with one table for all embeddings and the projection."""

    layers: int = 3  # of the encoder, and as many of the decoder
    d_model: int = 256
    d_ff: int = 1024
    heads: int = 4
    vocabulary: int = 8000
    dropout: float = 0.1  # on embeddings and on each sub-layer's output
    label_smoothing: float = 0.1


def training_flops(shape: Shape, lengths: Iterable[tuple[int, int]]) -> int:
    """Floating-point operations that training on sentences of these lengths (source, target; `</s>` included) needs.

    Matrix products only, two operations a multiplication-addition; padding and recomputation are no need. Forward:

        encoder   N · (S · (8 D² + 4 D F) + 4 D S²)
        decoder   N · (T · (12 D² + 4 D F) + S · 4 D² + 4 D · (T (T + 1) / 2 + T S))
        output    T · 2 D V

    with N layers per side, D d_model, F d_ff, V vocabulary, S source and T target tokens of one sentence. A layer's
    self-attention has four D×D projections; so has its cross-attention, two of them over the source. Attention itself
    is two products (Q Kᵀ and weights × values), of which a causal one needs half. Backward is twice the forward.
    """
    D, F = shape.d_model, shape.d_ff
    forward = 0
    for S, T in lengths:
        encoder = S * (8 * D * D + 4 * D * F) + 4 * D * S * S
        decoder = T * (12 * D * D + 4 * D * F) + S * 4 * D * D + 2 * D * T * (T + 1) + 4 * D * T * S
        forward += shape.layers * (encoder + decoder) + T * 2 * D * shape.vocabulary
    return 3 * forward
