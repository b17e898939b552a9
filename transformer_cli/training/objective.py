"""What training minimises: a batch in, its summed loss out. The loop and the validation call it.

The loss is label-smoothed cross-entropy (§5.4; Szegedy et al. 2016): the plain formula, and one fused with the
projection. It is summed over target tokens; the loop divides once by the tokens of the whole update.

With R-Drop (Wu et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", eq. 4) a token has two rows, 2i and
2i + 1, of passes with different dropout. What is minimised is the sum of both rows' losses and α times the mean of the
two divergences, ½ (KL(p ‖ q) + KL(q ‖ p)). A token counts once; reported are means over the two passes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from transformer_cli.data.batch import Batch
from transformer_cli.model.linear import ROWS, spare_rows
from transformer_cli.model.transformer import DecoderOutput, Generator, Transformer

CHUNK_LOGITS = {"cpu": 2**23, "cuda": 2**27}  # logits that stand in memory at once: about what a cache or kernel likes


class Loss(NamedTuple):
    """Sums over the target tokens, in nats."""

    smoothed: Tensor  # () the label-smoothed loss, which is what training minimises without R-Drop
    likelihood: Tensor  # () Σ -log p[y], for perplexity; no gradient
    regularised: Tensor | None = None  # () with R-Drop: what training minimises then; the others have no gradient

    @property
    def minimised(self) -> Tensor:
        """Return what training minimises."""
        return self.smoothed if self.regularised is None else self.regularised


class Passes(NamedTuple):
    """What the model reads and what it has to predict from it: a batch, or with R-Drop a batch twice."""

    source: Tensor  # (B, S)
    source_mask: Tensor  # (B, 1, 1, S)
    target_input: Tensor  # (B, T)
    places: Tensor  # (N,) of the flattened (B, T): where an id is wanted; with R-Drop those of one token side by side
    target: Tensor  # (N,) these ids
    r_drop: float = 0.0


class TranslationObjective(nn.Module):
    """Teacher forcing: each target token is predicted from the true ones before it.

    With `r_drop` above 0 (its α) every sentence is in the batch twice, in training only, and each copy drops out for
    itself, but only while some of α is in force.
    """

    # The loop sets both, for whatever changes in the course of training.
    updates = 0  # applied so far
    r_drop_share = 1.0  # of α

    def __init__(self, model: Transformer, label_smoothing: float, r_drop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.label_smoothing, self.r_drop = label_smoothing, r_drop

    def forward(self, batch: Batch) -> Loss:
        """Return the loss summed over the batch's target tokens; padding takes no part."""
        passes = self.passes(batch)
        return self.loss_at(self.model(passes.source, passes.source_mask, passes.target_input), passes)

    def passes(self, batch: Batch) -> Passes:
        """Return what the model reads and has to predict: the batch, or with R-Drop in training the batch twice."""
        inputs = batch.source, batch.source_mask, batch.target_input
        places, target = batch.target_places, at_places(batch.target_places, batch.target_output)  # (N,) each
        r_drop = self.r_drop * self.r_drop_share if self.training else 0.0
        if not r_drop:
            return Passes(*inputs, places, target)
        places = torch.stack([places, places + batch.target_output.numel()], 1).flatten()  # (2N,): pairs of rows
        source, mask, target_input = map(_twice, inputs)
        return Passes(source, mask, target_input, places, target.repeat_interleave(2), r_drop)

    def loss_at(self, output: DecoderOutput, passes: Passes) -> Loss:
        """Return the loss of the output (B, T, D) at the places where ids are wanted."""
        places, target, r_drop = passes.places, passes.target, passes.r_drop
        generator = self.model.generator
        if type(generator) is Generator:  # a plain projection: its logits need never stand in memory at once
            hidden, projection = at_places(places, output.hidden), generator.projection
            return fused_linear_cross_entropy(
                hidden, projection.weight, projection.bias, target, self.label_smoothing, r_drop
            )
        log_probabilities = at_places(places, generator(output, passes.source))  # (N, V and what can be copied)
        words = generator.projection.out_features
        return smoothed_cross_entropy(log_probabilities, target, self.label_smoothing, r_drop, words)


def _twice(tensor: Tensor) -> Tensor:
    """Return the batch twice. (B, …) → (2B, …)"""
    return torch.cat([tensor, tensor])


def at_places(places: Tensor, values: Tensor) -> Tensor:
    """Pick values (B, T, …) at the places (N,) of the flattened (B · T). → (N, …)"""
    return values.flatten(0, 1).index_select(0, places)


def smoothed_cross_entropy(
    log_probabilities: Tensor, target: Tensor, smoothing: float, r_drop: float = 0.0, vocabulary_size: int | None = None
) -> Loss:
    """Return Σ over tokens of (1 - ε) · (-log p[y]) + ε / V · Σ_v (-log p[v]): torch's definition of label smoothing.

    Log-probabilities (N, V or more) and target ids (N,), padding already left out. `r_drop`: α; a token has two rows
    then. `vocabulary_size`: V, where further columns are of tokens to copy; those that are of none hold -inf.
    """
    likelihood = -log_probabilities.gather(1, target[:, None]).sum()
    words = log_probabilities[:, :vocabulary_size]  # (N, V)
    uniform = -words.sum() / words.size(1)
    smoothed = (1.0 - smoothing) * likelihood + smoothing * uniform
    if not r_drop:
        return Loss(smoothed, likelihood.detach())
    if words.size(1) < log_probabilities.size(1):  # a column of both rows or of none is -inf: they read one source
        log_probabilities = log_probabilities.masked_fill(log_probabilities == -torch.inf, 0.0)
    one, other = log_probabilities[::2], log_probabilities[1::2]
    divergence = 0.5 * ((one.exp() - other.exp()) * (one - other)).sum()
    return Loss(smoothed.detach() / 2, likelihood.detach() / 2, smoothed + r_drop * divergence)


def fused_linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, r_drop: float = 0.0
) -> Loss:
    """Return `smoothed_cross_entropy` of log softmax(hidden Wᵀ + b), never holding all (tokens × vocabulary) logits.

    Hidden states (N, D), weight (V, D), bias (V,), target ids (N,), padding already left out. Under autocast the
    products run in its precision, the softmax in float32. A gradient is computed for those that learn only.
    """
    rows = CHUNK_LOGITS.get(hidden.device.type, 2**24) // weight.size(0)
    # The divergence takes many passes over float32 values, so its chunks are smaller; a token's two rows stay together.
    # Full blocks of rows on every device: products of fewer are slow however small the chunk.
    chunk = max(ROWS, rows if not r_drop else rows // 8) // ROWS * ROWS
    learns = torch.is_grad_enabled()
    apply: Callable[..., tuple[Tensor, Tensor, Tensor]] = _FusedLinearCrossEntropy.apply
    spare = spare_rows(len(hidden), hidden.device, _product_type(hidden)) if learns else 0
    hidden = functional.pad(hidden, (0, 0, 0, spare)) if spare else hidden
    minimised, likelihood, divergence = apply(hidden, weight, bias, target, smoothing, chunk, learns, r_drop)
    if not r_drop:
        return Loss(minimised, likelihood)
    return Loss((minimised.detach() - r_drop * divergence) / 2, likelihood / 2, minimised)


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """The gradient of softmax cross-entropy is known in closed form, so the forward pass turns each chunk of logits
    into its gradient, projects that back and continues with the next chunk in the same two buffers.

    A row's gradient is softmax - (1 - ε) · one-hot(y) - ε / V. The last term is the same for every row and word: what
    it adds to the loss and to the gradients follows from sums over hidden states and weights, without touching logits.
    Rows of zeros may follow those of the targets; they add nothing to any sum.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        smoothing: float,
        chunk: int,
        learns: bool,
        r_drop: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        device, words, narrow = hidden.device.type, weight.size(0), _product_type(hidden)
        accumulation = torch.promote_types(hidden.dtype, torch.float32)
        rows, matrix = hidden.to(narrow), weight.to(narrow)  # (N, D), (V, D)
        offset = None if bias is None else bias.to(narrow)
        moves_hidden, moves_weight, moves_bias = (learns and needed for needed in ctx.needs_input_grad[:3])
        hidden_gradient = torch.empty_like(rows) if moves_hidden else None
        weight_gradient = torch.zeros_like(weight) if moves_weight else None
        bias_gradient = torch.zeros_like(bias) if moves_bias and bias is not None else None
        likelihood = torch.zeros((), dtype=accumulation, device=hidden.device)
        divergence = torch.zeros_like(likelihood)
        normalisers = torch.zeros_like(likelihood)  # Σ log Σ exp(logits)
        buffers = torch.empty(2, min(chunk, len(rows)), words, dtype=narrow, device=hidden.device)
        places = torch.arange(buffers.size(1), device=hidden.device)
        with torch.autocast(device, enabled=False):
            for start in range(0, len(rows), chunk):
                some, wanted = rows[start : start + chunk], target[start : start + chunk, None]
                logits, out = buffers[:, : len(some)]  # (c, V) each
                torch.mm(some, matrix.t(), out=logits)
                if offset is not None:
                    logits += offset
                if r_drop:
                    gradient, log_likelihood, apart = _softmax_of_pairs(logits, wanted, out, r_drop)
                    divergence += apart
                else:
                    gradient, log_likelihood = _softmax(logits, wanted, out)
                likelihood -= log_likelihood.sum()
                normalisers += (logits.gather(1, wanted).to(accumulation) - log_likelihood).sum()
                if not learns:
                    continue
                gradient[places[: len(wanted)], wanted.squeeze(1)] -= 1.0 - smoothing
                if hidden_gradient is not None:
                    torch.mm(gradient, matrix, out=hidden_gradient[start : start + chunk])
                if bias_gradient is not None:
                    bias_gradient += gradient[: len(wanted)].sum(0, dtype=accumulation)
                if weight_gradient is not None and narrow == weight.dtype:
                    weight_gradient.addmm_(gradient.t(), some)
                elif weight_gradient is not None:
                    weight_gradient += gradient.t() @ some
            all_rows, all_words = rows.sum(0, dtype=accumulation), matrix.sum(0, dtype=accumulation)  # (D,) each
            logit_sum = all_rows @ all_words + (0.0 if bias is None else len(target) * bias.sum(dtype=accumulation))
            smoothed = (1.0 - smoothing) * likelihood + smoothing * (normalisers - logit_sum / words)
            if hidden_gradient is not None:
                hidden_gradient = hidden_gradient.to(accumulation).sub_(all_words, alpha=smoothing / words)
            if weight_gradient is not None:
                weight_gradient.sub_(all_rows, alpha=smoothing / words)
            if bias_gradient is not None:
                bias_gradient.sub_(len(target) * smoothing / words)
        ctx.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        ctx.mark_non_differentiable(likelihood, divergence)
        return smoothed + r_drop * divergence if r_drop else smoothed, likelihood, divergence

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        moved = (None if gradient is None else gradient * upstream[0] for gradient in ctx.saved_tensors)
        return *moved, None, None, None, None, None


def _product_type(hidden: Tensor) -> torch.dtype:
    """Return the type that products with the hidden states run in: autocast's where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def _softmax(logits: Tensor, wanted: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax of logits (c, V), in `out`, and log p of the wanted ids (c, 1), in float32 or wider.

    bfloat16 reaches as far down as float32, so its softmax is taken directly and rounds log p by 0.004 at most; other
    types go through the log-softmax, which no small probability underflows.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if logits.dtype == torch.bfloat16:
        torch.softmax(logits, 1, out=out)
        return out, out.gather(1, wanted).to(dtype).clamp_min_(torch.finfo(dtype).tiny).log_()
    if logits.dtype == dtype:
        log_probabilities = torch.log_softmax(logits, 1, out=out)
        log_likelihood = log_probabilities.gather(1, wanted)
        return log_probabilities.exp_(), log_likelihood
    log_probabilities = logits.log_softmax(1, dtype=dtype)
    return out.copy_(log_probabilities.exp()), log_probabilities.gather(1, wanted)


def _softmax_of_pairs(logits: Tensor, wanted: Tensor, out: Tensor, r_drop: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `_softmax` does, `r_drop` times the gradient of the divergence added to the softmax; and this: Σ over
    pairs of rows p, q of ½ (KL(p ‖ q) + KL(q ‖ p)), ().

    Logits (c, V), rows 2i and 2i + 1 a pair. By row p of logits the gradient of the sum of both is
    p ⊙ (log p - log q - KL(p ‖ q)) + p - q. All in float32 or wider: where p and q are near, their difference is small.
    """
    dtype, words = torch.promote_types(logits.dtype, torch.float32), logits.size(1)
    logs = logits.view(-1, 2, words).log_softmax(2, dtype=dtype)  # (c / 2, 2, V)
    log_likelihood = logs.view(-1, words).gather(1, wanted)
    apart = logs[:, 0] - logs[:, 1]  # (c / 2, V), as are the next four
    one, other = logs.exp_().unbind(1)
    of_one, of_other = one * apart, other * apart
    forward, backward = of_one.sum(1, keepdim=True), -of_other.sum(1, keepdim=True)  # (c / 2, 1) each
    of_one.addcmul_(one, 1.0 - forward).sub_(other)
    of_other.addcmul_(other, backward - 1.0).add_(one)  # of q, negative
    gradient = out.view(-1, 2, words)
    torch.add(one, of_one, alpha=0.5 * r_drop, out=gradient[:, 0])
    torch.sub(other, of_other, alpha=0.5 * r_drop, out=gradient[:, 1])
    return out, log_likelihood, 0.5 * (forward + backward).sum()
