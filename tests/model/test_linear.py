"""Linear layers that multiply full blocks of rows give what torch's give."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_cli.data.batch import Batch
from transformer_cli.model import linear
from transformer_cli.model.linear import Linear, spare_rows
from transformer_cli.model.transformer import Transformer
from transformer_cli.training import objective

PRODUCTS = {
    torch.ops.aten.mm.default: (0, 1),
    torch.ops.aten.mm.out: (0, 1),
    torch.ops.aten.addmm.default: (1, 2),
    torch.ops.aten.addmm_.default: (1, 2),
}


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every size of every matrix that is multiplied."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for place in PRODUCTS.get(func, ()):
            self.sizes |= set(args[place].shape)
        return func(*args, **(kwargs or {}))


@contextmanager
def arithmetic(kind: torch.dtype) -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == torch.bfloat16):
        yield


def learn(layer: nn.Module, states: Tensor, kind: torch.dtype) -> tuple[list[Tensor], set[int]]:
    """The output, the gradients of weight, bias and input; and all sizes of what was multiplied."""
    given = states.clone().requires_grad_()
    with Shapes() as shapes:
        with arithmetic(kind):
            output = layer(given)
        output.float().square().sum().backward()
    assert given.grad is not None
    return [output.detach(), *(parameter.grad for parameter in layer.parameters()), given.grad], shapes.sizes


@pytest.mark.parametrize("shape", [(3, 37, 16), (5, 16), (2, 32, 16), (1, 1, 16)])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_output_and_gradients_are_those_of_torchs_layer(shape: tuple[int, ...], kind: torch.dtype) -> None:
    torch.manual_seed(1)
    ours = Linear(16, 32)
    theirs = nn.Linear(16, 32)
    theirs.load_state_dict(ours.state_dict())
    states = torch.randn(shape)
    (found, sizes), (expected, their_sizes) = (learn(layer, states, kind) for layer in (ours, theirs))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        near = 1e-2 if kind == torch.bfloat16 else 0.0
        torch.testing.assert_close(one, other, rtol=2 * near, atol=near)
    rows = states.numel() // 16
    if kind == torch.float32:
        assert sizes == their_sizes == {rows, 16, 32}
    else:
        assert sizes == {-(-rows // linear.ROWS) * linear.ROWS, 16, 32}
        assert their_sizes == {rows, 16, 32}


def test_only_bfloat16_on_a_cpu_gets_more_rows() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [spare_rows(rows, cpu, torch.bfloat16) for rows in (1, 63, 64, 65)] == [63, 1, 0, 63]
    assert spare_rows(1, cpu, torch.float32) == spare_rows(1, gpu, torch.bfloat16) == 0


def test_a_search_multiplies_the_rows_that_it_has() -> None:
    layer = Linear(16, 32)
    with torch.no_grad(), arithmetic(torch.bfloat16), Shapes() as shapes:
        layer(torch.randn(5, 16))
    assert shapes.sizes == {5, 16, 32}


@pytest.mark.medium
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk_logits", [1, 1900, 15200, 10**6])  # of 19 words each: 100 rows, with R-Drop an eighth
@pytest.mark.parametrize("r_drop", [0.0, 2.0])
def test_learning_multiplies_few_numbers_of_rows(
    build: Callable[..., Transformer],
    r_drop: float,
    chunk_logits: int,
    kind: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Layers and loss, there and back: in bfloat16 all rows are multiples of 64, the rest the model's sizes."""
    monkeypatch.setattr(objective, "CHUNK_LOGITS", {"cpu": chunk_logits})
    learning = objective.TranslationObjective(build(dropout=0.1).float(), 0.1, r_drop).train()
    model_sizes = {size for parameter in learning.parameters() for size in parameter.shape}
    with Shapes() as shapes:
        for count in (3, 5, 45):
            with arithmetic(kind):
                loss = learning(Batch.from_ids([([5, 6], [7, 8])] * count))
            loss.minimised.backward()
    rows = {size for size in shapes.sizes - model_sizes if size % linear.ROWS == 0}
    assert kind != torch.bfloat16 or {64, 320 if r_drop else 192} <= rows
    assert (shapes.sizes - model_sizes == rows) is (kind == torch.bfloat16)
