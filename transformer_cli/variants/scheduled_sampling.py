"""Scheduled sampling (Bengio et al. 2015): the decoder learns to go on from its own predictions, not only the truth.

For a Transformer, which sees all positions at once, in two passes (Mihaylova and Martins 2019, "Scheduled Sampling for
Transformers"). `build_objective` chooses it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from transformer_cli.config import ScheduledSampling
from transformer_cli.data.batch import Batch
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.training.losses import CHUNK_LOGITS, LEAST_ROWS, Loss
from transformer_cli.training.objective import TranslationObjective, at_places
from transformer_cli.training.schedules import truth_probability


class ScheduledSamplingObjective(TranslationObjective):
    """Each target token is predicted from those before it, of which some are not the true ones but the model's.

    In training only. The first pass, without gradient, predicts every token from the true ones before it; then each
    input of the decoder but `<s>` gives way to its prediction, with probability 1 - p(updates). The second pass reads
    what came of it; its loss, against the true tokens still, is what training minimises. Both read one memory.
    """

    updates = 2**62  # until the loop tells: as at the end, which takes most memory, so that the probe sees it

    def __init__(self, model: Transformer, label_smoothing: float, sampling: ScheduledSampling) -> None:
        super().__init__(model, label_smoothing)
        self.sampling = sampling

    def forward(self, batch: Batch) -> Loss:
        """The loss summed over the batch's target tokens. Where no input gives way it costs one pass, the plain one."""
        truth = truth_probability(self.sampling, self.updates) if self.training else 1.0
        if truth == 1.0:
            return super().forward(batch)
        replaced = (torch.rand(batch.target_tokens) >= truth).nonzero().squeeze(1)  # on the CPU: nobody waits for a GPU
        if not len(replaced):
            return super().forward(batch)
        places = batch.target_places.index_select(0, replaced.to(batch.source.device, non_blocking=True))  # (M,)
        memory = self.model.encode(batch.source, batch.source_mask)
        predictions = self._predict(batch, memory, places)
        torch.clear_autocast_cache()  # else an older torch keeps weights that it cast without a gradient
        output = self._decode(batch, memory, places, predictions)
        target = at_places(batch.target_places, batch.target_output)  # (N,)
        return self._loss(output, batch.source, batch.target_places, target)

    @torch.no_grad()
    def _predict(self, batch: Batch, memory: Tensor, places: Tensor) -> Tensor:
        """The first pass: what the model predicts at these places (M,), as ids (M,) or probabilities (M, V)."""
        output = self.model.decode(batch.target_input, memory, batch.source_mask)
        predictions = []
        for logits in self._logits(output, batch.source, places):
            logits = logits / self.sampling.temperature
            if self.sampling.prediction == "sample":  # Gumbel's trick: the largest of these is a draw
                logits -= torch.empty_like(logits).exponential_().log()
            for special in (PAD, BOS, EOS):  # after which no search goes on
                logits[:, special] = -torch.inf
            predictions.append(logits.softmax(1) if self.sampling.prediction == "mixture" else logits.argmax(1))
        return torch.cat(predictions)

    def _logits(self, output: DecoderOutput, source: Tensor, places: Tensor) -> Iterator[Tensor]:
        """What the softmax is taken of at these places (M,): (≤ chunk, V) at a time, float32 or wider."""
        generator = self.model.generator
        projection = generator.projection
        chunk = max(LEAST_ROWS, CHUNK_LOGITS.get(source.device.type, 2**24) // projection.out_features)
        if type(generator) is Generator:
            for hidden in torch.split(at_places(places, output.hidden), chunk):
                logits = linear(hidden, projection.weight, projection.bias)
                yield logits.to(torch.promote_types(logits.dtype, torch.float32))
        else:  # what it copies from beyond the vocabulary has no embedding
            yield at_places(places, generator(output, source))[:, : projection.out_features]

    def _decode(self, batch: Batch, memory: Tensor, places: Tensor, predictions: Tensor) -> DecoderOutput:
        """The second pass, with gradient: predictions of these places (M,) stand for the true tokens."""
        inputs = batch.target_input
        if self.sampling.prediction != "mixture":
            return self.model.decode(put_after(places, inputs, predictions, inputs), memory, batch.source_mask)
        embedding = self.model.target_embedding
        means = linear(predictions, embedding.tokens.table.weight.t()) * embedding.tokens.scale  # (M, D)
        vectors = put_after(places, embedding.tokens(inputs), means, inputs)  # (B, T, D)
        states = embedding.dropout(vectors + embedding.positions(0, inputs.size(1)))
        output: DecoderOutput = self.model.decoder(states, batch.source_mask, self.model.start_cache(memory))
        return output


def put_after(places: Tensor, true: Tensor, predictions: Tensor, inputs: Tensor) -> Tensor:
    """True inputs (B, T, …) with a prediction (M, …) one position after each place (M,) of the flattened (B · T).

    `inputs` (B, T) ids: where they are padding, the true input stays.
    """
    rows, length = inputs.shape
    flat = true.flatten(0, 1)  # (B·T, …)
    predicted = torch.zeros_like(flat).index_copy(0, places, predictions.to(flat.dtype)).view_as(true)
    given = torch.zeros_like(inputs, dtype=torch.bool).flatten().index_fill(0, places, True).view(rows, length)
    given = given[:, :-1] & (inputs[:, 1:] != PAD)  # (B, T - 1)
    given = given.view(rows, length - 1, *(1,) * (true.dim() - 2))
    return torch.cat([true[:, :1], torch.where(given, predicted[:, :-1], true[:, 1:])], dim=1)
