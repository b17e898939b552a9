"""The Transformer that writes all tokens at once (Gu et al. 2018; mask-predict: Ghazvininejad et al. 2019).

Its decoder sees every position of the target. A token that is still to be predicted is the mask token, which is `<s>`:
a decoder that does not go from left to right has no other use for it, so vocabularies stay as they are.
"""

import torch
from torch import Tensor, nn

from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Decoder, DecoderOutput, Encoder, Generator, Transformer
from transformer_cli.text.vocabulary import BOS, PAD

MASK = BOS
LENGTH_SPAN = 128  # tokens that a target may be longer or shorter than its source; what is beyond counts as this
CANVAS_RATIO, CANVAS_EXTRA = 2, 8  # one_shot: positions for a source of S tokens, S · ratio + extra


class LengthPredictor(nn.Module):
    """How many tokens the target has, from the mean of the memory: classes of target length - source length.

    The difference, not the length itself: its distribution is narrow and alike for short and long sources, so that few
    classes are learned from all of them. What the mean of the memory does not tell, the source's length, is added.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.projection = nn.Linear(d_model, 2 * LENGTH_SPAN + 1)

    def forward(self, memory: Tensor, source_mask: Tensor) -> Tensor:
        """Memory (B, S, D), mask (B, 1, 1, S) → log-probabilities (B, 2 · `LENGTH_SPAN` + 1), float32 or wider."""
        real = source_mask[:, 0, 0, :, None]  # (B, S, 1)
        mean = (memory * real).sum(dim=1) / real.sum(dim=1)  # (B, D)
        logits: Tensor = self.projection(mean)
        return logits.log_softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def length_class(target_length: Tensor, source_length: Tensor) -> Tensor:
    """Return the class of a target's length, both without specials. (B,) → (B,)"""
    return (target_length - source_length).clamp(-LENGTH_SPAN, LENGTH_SPAN) + LENGTH_SPAN


def canvas_length(source_length: Tensor) -> Tensor:
    """Return how many positions one_shot writes for sources of so many tokens, `</s>` not counted. (B,) → (B,)

    The source alone decides it: a canvas as long as the target would give away where that ends.
    """
    return CANVAS_RATIO * source_length + CANVAS_EXTRA


def all_masked(lengths: Tensor, width: int) -> Tensor:
    """Return targets of which only the lengths (B,) are known: `MASK` so often, then padding. → ids (B, width)"""
    places = torch.arange(width, device=lengths.device)
    return torch.where(places < lengths[:, None], MASK, PAD)


class NonAutoregressiveTransformer(Transformer):
    """A Transformer whose decoder sees all positions, of which some are masked; `length_predictor`: mask_predict only.

    `build.build_model` puts it together.
    """

    def __init__(
        self,
        source_embedding: Embedding,
        target_embedding: Embedding,
        encoder: Encoder,
        decoder: Decoder,
        generator: Generator,
        length_predictor: LengthPredictor | None,
    ) -> None:
        super().__init__(source_embedding, target_embedding, encoder, decoder, generator)
        self.length_predictor = length_predictor

    def predict_lengths(self, memory: Tensor, source_mask: Tensor) -> Tensor:
        """Memory (B, S, D), mask (B, 1, 1, S) → log-probabilities (B, classes) of `length_class`."""
        assert self.length_predictor is not None, "one_shot predicts no lengths"
        log_probabilities: Tensor = self.length_predictor(memory, source_mask)
        return log_probabilities

    def decode(
        self,
        target: Tensor,
        memory: Tensor | None,
        source_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """Target ids (B, T), padded on the right, each seeing all others, over the memory (B, S, D), mask (B, 1, 1, S).

        With a cache the memory may be None. Rows of G targets each may share a row of the memory, as beams do.
        """
        if cache is None:
            assert memory is not None, "decoding needs a memory or a cache"
            cache = self.start_cache(memory)
        mask = padding_mask(target)
        mask[..., 0] = True  # a softmax over nothing has no value: a target without any token sees its padding
        output: DecoderOutput = self.decoder(self.target_embedding(target), source_mask, cache, need_weights, mask)
        return output
