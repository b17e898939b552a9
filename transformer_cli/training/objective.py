"""What training minimises: a batch in, its summed loss out. The loop and the validation call it."""

import torch
from torch import Tensor, nn

from transformer_cli.data.batch import Batch
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer
from transformer_cli.training.losses import Loss, fused_linear_cross_entropy, smoothed_cross_entropy


class TranslationObjective(nn.Module):
    """Teacher forcing: each target token is predicted from the true ones before it.

    With `r_drop` above 0 (its α) every sentence is in the batch twice, in training only, and each copy drops out for
    itself.
    """

    updates = 0  # applied so far: the loop sets it, for whatever changes in the course of training

    def __init__(self, model: Transformer, label_smoothing: float, r_drop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing, self.r_drop = label_smoothing, r_drop

    def forward(self, batch: Batch) -> Loss:
        """Return the loss summed over the batch's target tokens; padding takes no part."""
        r_drop = self.r_drop if self.training else 0.0
        inputs = batch.source, batch.source_mask, batch.target_input
        places, target = batch.target_places, at_places(batch.target_places, batch.target_output)  # (N,) each
        if r_drop:
            inputs = _twice(inputs[0]), _twice(inputs[1]), _twice(inputs[2])
            places = torch.stack([places, places + batch.target_output.numel()], 1).flatten()  # (2N,): pairs of rows
            target = target.repeat_interleave(2)
        return self.loss_at(self.model(*inputs), inputs[0], places, target, r_drop)

    def loss_at(
        self, output: DecoderOutput, source: Tensor, places: Tensor, target: Tensor, r_drop: float = 0.0
    ) -> Loss:
        """Return the loss at the places (N,) of the output (B, T, D), where the target ids (N,) are wanted."""
        generator = self.model.generator
        if type(generator) is Generator:  # a plain projection: its logits need never stand in memory at once
            hidden, projection = at_places(places, output.hidden), generator.projection
            return fused_linear_cross_entropy(
                hidden, projection.weight, projection.bias, target, self.label_smoothing, r_drop
            )
        log_probabilities = at_places(places, generator(output, source))  # (N, V and what can be copied)
        words = generator.projection.out_features
        return smoothed_cross_entropy(log_probabilities, target, self.label_smoothing, r_drop, words)


def _twice(tensor: Tensor) -> Tensor:
    """Return the batch twice. (B, …) → (2B, …)"""
    return torch.cat([tensor, tensor])


def at_places(places: Tensor, values: Tensor) -> Tensor:
    """Pick values (B, T, …) at the places (N,) of the flattened (B · T). → (N, …)"""
    return values.flatten(0, 1).index_select(0, places)
