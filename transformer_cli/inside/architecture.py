"""What a model is made of: its parts as a tree, with the shapes of their tensors, parameters and share of the compute.

`tfm inspect` calls it. It walks modules as they are and counts multiplications as they happen, so it knows no variant.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from transformer_cli.decoding.engines.torch_engine import evaluating
from transformer_cli.errors import UserError
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer

ANY_TOKEN = 4  # the first id after the specials


@dataclass(frozen=True)
class Weight:
    """One tensor of a part."""

    name: str  # in its part
    shape: tuple[int, ...]
    tied_to: str | None = None  # the full name that it was counted under already
    constant: bool = False  # a table that nobody trains, such as sinusoids: no parameters

    @property
    def parameters(self) -> int:
        """Return how many it adds to the model's."""
        return 0 if self.constant or self.tied_to is not None else torch.Size(self.shape).numel()


@dataclass(frozen=True)
class Part:
    """A module with all that is in it."""

    name: str  # in the part that holds it; the model itself has none
    path: str  # from the model on, with dots
    kind: str  # its class
    weights: tuple[Weight, ...]  # its own
    parts: tuple["Part", ...]
    own_multiply_adds: int  # beside those of its parts

    @property
    def parameters(self) -> int:
        """Return its own and its parts', tied ones where they come first."""
        return sum(weight.parameters for weight in self.weights) + sum(part.parameters for part in self.parts)

    @property
    def multiply_adds(self) -> int:
        """Return its own and its parts'."""
        return self.own_multiply_adds + sum(part.multiply_adds for part in self.parts)


def inspect_model(model: Transformer, source_length: int, target_length: int) -> Part:
    """Return a model's tree, with the compute of one sentence: S source and T target tokens, specials included.

    The multiplications of matrices in one pass of teacher forcing are counted, a multiply-add each: a linear layer from
    n to m dimensions has n · m a token, attention T · S · H · (d_k + d_v) for Q Kᵀ and for the weights times V (the
    whole square, masked or not). Raises `UserError` where the model's position table is shorter than that.
    """
    for side, length, most in (
        ("source", source_length, model.max_source_length),
        ("target", target_length, model.max_target_length),
    ):
        if most is not None and length > most:
            raise UserError(f"{side} length {length:,}: this model's learned positions end at {most:,}; give that many")
    return _part("", "", model, _multiply_adds(model, source_length, target_length), {})


def _part(name: str, path: str, module: nn.Module, counted: dict[str, int], seen: dict[int, str]) -> Part:
    """Return a part; `seen`: the full name of every parameter met so far, by its identity."""
    prefix = f"{path}." if path else ""
    weights = []
    for own, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
        weights.append(Weight(own, tuple(parameter.shape), seen.get(id(parameter))))
        seen.setdefault(id(parameter), prefix + own)
    weights += [Weight(own, tuple(table.shape), constant=True) for own, table in module.named_buffers(recurse=False)]
    parts = [_part(inner, prefix + inner, child, counted, seen) for inner, child in module.named_children()]
    return Part(name, path, type(module).__name__, tuple(weights), tuple(parts), counted.get(path, 0))


def _multiply_adds(model: Transformer, source_length: int, target_length: int) -> dict[str, int]:
    """Return what each module multiplies by itself in one pass, by its path."""
    device = next(model.parameters()).device
    source = torch.full((1, source_length), ANY_TOKEN, device=device)  # (1, S)
    target = torch.full((1, target_length), ANY_TOKEN, device=device)  # (1, T)
    # A fused attention kernel is one operation, which torch may not know how to count; open products it knows.
    with evaluating(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Counter(model) as counter:
        source_mask = padding_mask(source)
        memory = model.encode(source, source_mask)
        model.generator(model.decode(target, memory, source_mask), source)
        predict_lengths = getattr(model, "length_predictor", None)  # of a mask-predict model
        if predict_lengths is not None:
            predict_lengths(memory, source_mask)
    return counter.counted


class _Counter(TorchDispatchMode):
    """Counts the multiply-adds of every product of matrices, for the innermost module that is running."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: where it is true, torch wraps `__torch_dispatch__` in what imports its compiler for seconds."""
        return False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted = {name: 0 for name, _ in model.named_modules()}
        self._names = {module: name for name, module in model.named_modules()}
        self._running = [""]  # what no module does by itself is the model's own
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "_Counter":
        for module in self._names:
            self._hooks.append(module.register_forward_pre_hook(self._begin))
            self._hooks.append(module.register_forward_hook(self._end))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _begin(self, module: nn.Module, *_: object) -> None:
        self._running.append(self._names[module])

    def _end(self, *_: object) -> None:
        self._running.pop()

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*arguments, **(options or {}))
        formula = flop_registry.get(operation._overloadpacket)
        if formula is not None:
            flops = formula(*arguments, **(options or {}), out_val=result)
            self.counted[self._running[-1]] += flops // 2  # a multiplication and an addition
        return result
