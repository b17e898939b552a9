"""The Transformer that writes all tokens at once (Gu et al. 2018; mask-predict: Ghazvininejad et al. 2019).

Its decoder sees every position of the target. A token that is still to be predicted is the mask token, which is `<s>`:
a decoder that does not go from left to right has no other use for it, so vocabularies stay as they are. It is trained
for masked tokens and a length, or for a whole canvas of masks; `build.build_objective` chooses.
"""

import torch
from torch import Tensor, nn

from transformer_cli.data.batch import Batch
from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.linear import Linear
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Decoder, DecoderOutput, Encoder, Generator, Transformer
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.training.objective import (
    Loss,
    TranslationObjective,
    fused_linear_cross_entropy,
    smoothed_cross_entropy,
)

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
        self.projection = Linear(d_model, 2 * LENGTH_SPAN + 1)

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


# --- what it is trained for -----------------------------------------------------------------------------------------


class MaskedObjective(TranslationObjective):
    """A conditional masked language model (Ghazvininejad et al. 2019, §2.2), and the length of the target.

    Of a target of T tokens n are masked, n drawn evenly from 1 … T, and predicted from the others. On average these are
    (T + 1) / 2, so their loss counts twice: then a sentence has its T + 1 target tokens' weight, by which the loop
    divides, and what a token weighs does not depend on how many were masked beside it. The length is one more
    prediction, in the place of `</s>`.

    What is masked follows from torch's global generator. So an update from several batches is that of one large batch
    in the mean over what is drawn, and exactly that where the same tokens are masked.

    In evaluation nothing is drawn: all tokens are masked and count once. The loss is then that of a translation in one
    pass, over T + 1 predictions.
    """

    def forward(self, batch: Batch) -> Loss:
        """Return the loss summed over the batch's target tokens; padding takes no part."""
        target = without_end(batch.target_output)  # (B, T)
        masked = draw_masked(target) if self.training else target != PAD
        return self.loss_of(batch, target, masked, 2.0 if self.training else 1.0)

    def loss_of(self, batch: Batch, target: Tensor, masked: Tensor, weight: float) -> Loss:
        """Return the loss where the given tokens, (B, T), of the target (B, T) without `</s>` are masked."""
        model = self.model
        assert isinstance(model, NonAutoregressiveTransformer)
        memory = model.encode(batch.source, batch.source_mask)
        output = model.decode(target.masked_fill(masked, MASK), memory, batch.source_mask)
        tokens = token_loss(model.generator, output.hidden[masked], target[masked], self.label_smoothing)
        source_lengths, lengths = (batch.source != PAD).sum(dim=1) - 1, (target != PAD).sum(dim=1)
        log_probabilities = model.predict_lengths(memory, batch.source_mask)  # (B, classes)
        length = smoothed_cross_entropy(log_probabilities, length_class(lengths, source_lengths), self.label_smoothing)
        return Loss(weight * tokens.smoothed + length.smoothed, weight * tokens.likelihood + length.likelihood)


class OneShotObjective(TranslationObjective):
    """All tokens and the `</s>` after them from a canvas of masks, whose length the source alone decides.

    It is as long as in the search; where a target is longer, it holds just that. Behind `</s>` nothing is predicted.
    """

    def forward(self, batch: Batch) -> Loss:
        """Return the loss summed over the batch's target tokens; padding takes no part."""
        lengths = canvas_length((batch.source != PAD).sum(dim=1) - 1)  # (B,)
        if self.model.max_target_length is not None:
            lengths = lengths.clamp(max=self.model.max_target_length)
        lengths = torch.maximum(lengths, (batch.target_output != PAD).sum(dim=1))
        width = max(int(lengths.max()), batch.target_output.size(1))
        memory = self.model.encode(batch.source, batch.source_mask)
        hidden = self.model.decode(all_masked(lengths, width), memory, batch.source_mask).hidden
        written = batch.target_output != PAD  # (B, T)
        hidden = hidden[:, : written.size(1)][written]  # (N, D)
        return token_loss(self.model.generator, hidden, batch.target_output[written], self.label_smoothing)


def without_end(target_output: Tensor) -> Tensor:
    """Take off the end: y </s>, padded, (B, T + 1) → y, padded, (B, T); T is 1 at the least."""
    without = target_output.masked_fill(target_output == EOS, PAD)
    return without[:, :-1] if without.size(1) > 1 else without


def draw_masked(target: Tensor) -> Tensor:
    """Draw which tokens of targets (B, T) are masked, (B, T): n of them at random, n drawn evenly from 1 … all."""
    real = target != PAD
    share = torch.rand(len(target), device=target.device)
    count = (share * real.sum(dim=1)).long() + 1  # (B,); of no tokens none, since none is real
    order = torch.rand(target.shape, device=target.device).masked_fill(~real, 2.0).argsort(dim=1).argsort(dim=1)
    return (order < count[:, None]) & real


def token_loss(generator: Generator, hidden: Tensor, target: Tensor, smoothing: float) -> Loss:
    """Return the loss of hidden states (N, D) that should become these target ids (N,)."""
    projection = generator.projection
    return fused_linear_cross_entropy(hidden, projection.weight, projection.bias, target, smoothing)
