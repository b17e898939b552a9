"""Muon: the momentum of hidden matrices, made nearly orthogonal, as their update; Adam for all else.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks". An update is scaled so that its entries
are about as large as Adam's (Liu et al. 2025, "Muon is Scalable for LLM Training", §2.2): one learning rate suits both.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from transformer_cli.model.torch_private import without_compiler
from transformer_cli.model.transformer import Transformer

# Coefficients of x, x³ and x⁵, a triple per iteration (Amsel et al. 2025, "The Polar Express", §4): one after the other
# they take singular values in [0.0109, 1] to [0.75, 1.25], and no three with this margin take a wider interval there.
# The margin: each is fitted up to ROUNDING times the largest value that can reach it, since it grows steeply beyond
# that, and rounding to bfloat16 can take values there.
POLYNOMIALS = ((8.05833, -23.48228, 17.33632), (3.56429, -2.61842, 0.50861), (2.59332, -1.89089, 0.42994))
ROUNDING = 1.01
MOMENTUM = 0.95
SIZE = 0.2  # of the entries of an update, as a root of their mean square: what Adam's usually have


@without_compiler
class MuonAndAdam(torch.optim.Optimizer):
    """Muon for `matrices`, each a parameter with the number of equal matrices that stand in it one above the other; for
    all others the given Adam. The learning rate is that of `param_groups`, as for any optimizer.

    products: the type that updates are computed in; bfloat16 is enough, and fast where the device multiplies it itself.
    decay: by how much the matrices shrink at a step, times the learning rate (decoupled, as in Liu et al. 2025, §2.2).
    """

    def __init__(
        self,
        matrices: Iterable[tuple[nn.Parameter, int]],
        adam: torch.optim.Optimizer,
        products: torch.dtype = torch.float32,
        decay: float = 0.0,
    ) -> None:
        self.adam, self.products, self.decay = adam, products, decay
        self._parts = dict(matrices)
        super().__init__([{"params": [*self._parts]}], {"lr": 0.0})
        self.param_groups += adam.param_groups
        self.state = adam.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step with the gradients that there are."""
        assert closure is None, "the loop computes the loss itself"
        alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        updates: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
            momentum = state["exp_avg"]
            momentum.lerp_(parameter.grad, 1 - MOMENTUM)
            update = parameter.grad.lerp(momentum, MOMENTUM)  # Nesterov's
            for matrix, change in zip(*(it.chunk(self._parts[parameter]) for it in (parameter, update)), strict=True):
                alike[tuple(matrix.shape)].append(matrix)
                updates[tuple(matrix.shape)].append(change)
        for shape, matrices in alike.items():  # those of one shape in one product
            rate = self.param_groups[0]["lr"]
            scale = -rate * SIZE * max(shape) ** 0.5
            for matrix, update in zip(matrices, orthogonal(torch.stack(updates[shape]), self.products), strict=True):
                matrix.mul_(1 - rate * self.decay).add_(update, alpha=scale)
        self.adam.step()


def orthogonal(matrices: Tensor, products: torch.dtype) -> Tensor:
    """Return approximate polar factors of matrices (n, R, C): the same singular vectors, singular values near 1.

    products: the type to compute in. The iteration needs values at 1 or below, so they are first divided by an upper
    bound on the largest: the fourth root of the sum of their fourth powers (the Schatten 4-norm), which comes from the
    first product, and is far closer than the Frobenius norm (Grishina et al. 2025, "Accelerating Newton-Schulz
    Iteration for Orthogonalization via Chebyshev-type Polynomials", §3.4). They end between 0.75 and 1.25; those below
    0.0109 times the bound end lower.
    """
    rows = matrices.to(products)
    rows = rows.mT if rows.size(1) > rows.size(2) else rows  # (n, fewer, more): the product below is the smaller one
    rows = rows / rows.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    square = rows @ rows.mT
    bound = ROUNDING * square.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7).sqrt()  # on the largest singular value
    rows, square = rows / bound, square / bound**2
    for number, (first, third, fifth) in enumerate(POLYNOMIALS):
        square = rows @ rows.mT if number else square
        rows = torch.baddbmm(rows, torch.baddbmm(square, square, square, beta=third, alpha=fifth), rows, beta=first)
    return (rows.mT if matrices.size(1) > matrices.size(2) else rows).to(matrices.dtype)


def hidden_matrices(model: Transformer) -> Iterator[tuple[nn.Parameter, int]]:
    """Yield what of a model's weights Muon is for: matrices that are neither embeddings nor the output's.

    Each with the number of matrices in it: keys and values are one parameter.
    """
    for part in (model.encoder, model.decoder):
        for name, module in part.named_modules():
            if isinstance(module, nn.Linear) and module.weight.requires_grad:
                yield cast(nn.Parameter, module.weight), 1 + name.endswith("key_value")
