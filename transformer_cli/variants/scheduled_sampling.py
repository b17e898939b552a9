"""Scheduled sampling (Bengio et al. 2015): the decoder learns to continue its own predictions, not only the truth.

For a Transformer, which sees all positions at once, in two passes (Mihaylova and Martins 2019, "Scheduled Sampling for
Transformers"). `build_objective` chooses it.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from transformer_cli.config import ScheduledSampling
from transformer_cli.data.batch import Batch
from transformer_cli.model.linear import ROWS
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.training.objective import CHUNK_LOGITS, Loss, TranslationObjective, at_places


class ScheduledSamplingObjective(TranslationObjective):
    """Each target token is predicted from those before it, of which some are not the true ones but the model's.

    In training only. The first pass, without gradient, predicts every token from the true ones before it; then each
    input of the decoder but `<s>` is replaced by its prediction, with probability 1 - p(updates). The second pass reads
    the result; its loss, against the true tokens still, is what training minimises. Both read one memory.
    """

    updates = 2**62  # until the loop sets it: as at the end, which takes most memory, so that the probe sees it

    def __init__(self, model: Transformer, label_smoothing: float, sampling: ScheduledSampling) -> None:
        super().__init__(model, label_smoothing)
        self.sampling = sampling

    def forward(self, batch: Batch) -> Loss:
        """Return the loss summed over the batch's target tokens. Where no input is replaced, one pass."""
        truth = truth_probability(self.sampling, self.updates) if self.training else 1.0
        if truth == 1.0:
            return super().forward(batch)
        replaced = (torch.rand(batch.target_tokens) >= truth).nonzero().squeeze(1)  # on the CPU: nobody waits for a GPU
        if not len(replaced):
            return super().forward(batch)
        places = batch.target_places.index_select(0, replaced.to(batch.source.device, non_blocking=True))  # (M,)
        memory = self.model.encode(batch.source, batch.source_mask)
        predictions = self.predict(batch, memory, places)
        torch.clear_autocast_cache()  # else an older torch keeps weights that it cast without a gradient
        output = self.decode(batch, memory, places, predictions)
        return self.loss_at(output, self.passes(batch))

    @torch.no_grad()
    def predict(self, batch: Batch, memory: Tensor, places: Tensor) -> Tensor:
        """Return what the first pass predicts at these places (M,), as ids (M,) or probabilities (M, V)."""
        output = self.model.decode(batch.target_input, memory, batch.source_mask)
        predictions = []
        for logits in self._logits(output, batch.source, places):
            logits = logits / self.sampling.temperature
            if self.sampling.prediction == "sample":  # Gumbel's trick: the largest of these is a draw
                logits -= torch.empty_like(logits).exponential_().log()
            for special in (PAD, BOS, EOS):  # after which no search continues
                logits[:, special] = -torch.inf
            predictions.append(logits.softmax(1) if self.sampling.prediction == "mixture" else logits.argmax(1))
        return torch.cat(predictions)

    def _logits(self, output: DecoderOutput, source: Tensor, places: Tensor) -> Iterator[Tensor]:
        """Yield the logits at these places (M,), (≤ chunk, V) at a time, float32 or wider."""
        generator = self.model.generator
        projection = generator.projection
        chunk = max(ROWS, CHUNK_LOGITS.get(source.device.type, 2**24) // projection.out_features)
        if type(generator) is Generator:
            for hidden in torch.split(at_places(places, output.hidden), chunk):
                logits = linear(hidden, projection.weight, projection.bias)
                yield logits.to(torch.promote_types(logits.dtype, torch.float32))
        else:  # what it copies from beyond the vocabulary has no embedding
            yield at_places(places, generator(output, source))[:, : projection.out_features]

    def decode(self, batch: Batch, memory: Tensor, places: Tensor, predictions: Tensor) -> DecoderOutput:
        """Run the second pass, with gradient: predictions of these places (M,) replace the true tokens."""
        inputs = batch.target_input
        if self.sampling.prediction != "mixture":
            return self.model.decode(put_after(places, inputs, predictions, inputs), memory, batch.source_mask)
        embedding = self.model.target_embedding
        means = linear(predictions, embedding.tokens.table.weight.t()) * embedding.tokens.scale  # (M, D)
        vectors = put_after(places, embedding.tokens(inputs), means, inputs)  # (B, T, D)
        states = embedding.dropout(embedding.place(vectors, 0))
        output: DecoderOutput = self.model.decoder(states, batch.source_mask, self.model.start_cache(memory))
        return output


def put_after(places: Tensor, true: Tensor, predictions: Tensor, inputs: Tensor) -> Tensor:
    """Return true inputs (B, T, …) with predictions (M, …) one position after their places (M,) in B · T.

    `inputs` (B, T) ids: where they are padding, the true input stays.
    """
    rows, length = inputs.shape
    flat = true.flatten(0, 1)  # (B·T, …)
    predicted = torch.zeros_like(flat).index_copy(0, places, predictions.to(flat.dtype)).view_as(true)
    given = torch.zeros_like(inputs, dtype=torch.bool).flatten().index_fill(0, places, True).view(rows, length)
    given = given[:, :-1] & (inputs[:, 1:] != PAD)  # (B, T - 1)
    given = given.view(rows, length - 1, *(1,) * (true.dim() - 2))
    return torch.cat([true[:, :1], torch.where(given, predicted[:, :-1], true[:, 1:])], dim=1)


def truth_probability(sampling: ScheduledSampling, updates: int) -> float:
    """Return how probably the decoder reads a true token after so many updates: p(i) = f + (1 - f) · s(i).

    i are the updates since `start_step`, f is `floor`; before `start_step` p is 1. Of Bengio et al. 2015, §2.4, with n
    for `steps`: linear: s(i) = max(0, 1 - i / n). exponential: s(i) = k^i with k = ½^(1 / n). inverse_sigmoid:
    s(i) = k / (k + exp(i / k)) with k · ln k = n. So after n updates the first is at its floor, the others halfway.
    """
    since, steps = updates - sampling.start_step, sampling.steps
    if since < 0:
        return 1.0
    if sampling.schedule == "linear":
        share = max(0.0, 1.0 - since / steps)
    elif sampling.schedule == "exponential":
        share = 0.5 ** (since / steps)
    else:
        k = _inverse_sigmoid_k(steps)
        share = 1.0 / (1.0 + math.exp(min(700.0, (since - steps) / k)))  # exp(i / k) / k = exp((i - k ln k) / k)
    return sampling.floor + (1.0 - sampling.floor) * share


def _inverse_sigmoid_k(steps: int) -> float:
    """Return the k of which k · ln k = steps, by Newton's method, which comes down to it from above."""
    k = steps + 2.0
    for _ in range(20):  # half of them would do for any number of steps
        k -= (k * math.log(k) - steps) / (math.log(k) + 1.0)
    return k
