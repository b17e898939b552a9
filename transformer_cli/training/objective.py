"""What training minimises: a batch in, its summed loss out. The loop and the validation call it."""

from torch import Tensor, nn

from transformer_cli.data.batch import Batch
from transformer_cli.model.generator import Generator
from transformer_cli.model.transformer import Transformer
from transformer_cli.training.losses import Loss, fused_linear_cross_entropy, smoothed_cross_entropy


class TranslationObjective(nn.Module):
    """Teacher forcing: each target token is predicted from the true ones before it."""

    def __init__(self, model: Transformer, label_smoothing: float) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Loss:
        """The loss summed over the batch's target tokens; padding takes no part."""
        output = self.model(batch.source, batch.source_mask, batch.target_input)
        target = _at(batch.target_places, batch.target_output)  # (N,)
        generator = self.model.generator
        if type(generator) is Generator:  # a plain projection: its logits need never stand in memory at once
            projection = generator.projection
            return fused_linear_cross_entropy(
                _at(batch.target_places, output.hidden),
                projection.weight,
                projection.bias,
                target,
                self.label_smoothing,
            )
        log_probabilities = _at(batch.target_places, generator(output, batch.source))  # (N, V)
        return smoothed_cross_entropy(log_probabilities, target, self.label_smoothing)


def _at(places: Tensor, values: Tensor) -> Tensor:
    """Of values (B, T, …) those at the places (N,) of the flattened (B · T). → (N, …)"""
    return values.flatten(0, 1).index_select(0, places)
