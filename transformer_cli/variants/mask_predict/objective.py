"""What a model that writes all tokens at once is trained for: masked tokens and a length, or a whole canvas of masks.

`build.build_objective` chooses one.
"""

import torch
from torch import Tensor

from transformer_cli.data.batch import Batch
from transformer_cli.model.transformer import Generator
from transformer_cli.text.vocabulary import EOS, PAD
from transformer_cli.training.losses import Loss, fused_linear_cross_entropy, smoothed_cross_entropy
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.variants.mask_predict.model import (
    MASK,
    NonAutoregressiveTransformer,
    all_masked,
    canvas_length,
    length_class,
)


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
