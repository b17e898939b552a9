"""torch's names that are private, undocumented or young, each with what is done in a torch that lacks it.

Steps of a search, updates and loading call it; nothing else in the package uses such names.
tests/model/test_torch_private.py says which torch has which.
"""

import contextlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def has(name: str) -> bool:
    """Return whether this torch has a name, such as `compiler.set_stance`."""
    try:
        attrgetter(name)(torch)
    except AttributeError:
        return False
    return True


# The functions behind `torch.nn.functional`'s, without its checks, which cost as much as the work for one token.
layer_norm: Callable[..., Tensor] = torch.layer_norm if has("layer_norm") else functional.layer_norm
embedding: Callable[[Tensor, Tensor], Tensor] = (
    torch.embedding if has("embedding") else lambda table, tokens: functional.embedding(tokens, table)
)


def can_pack(weight: Tensor) -> bool:
    """Return whether oneDNN can take a weight packed: float32 on a CPU, in a torch that has its kernels."""
    names = ("ops.mkldnn._linear_pointwise", "ops.mkldnn._reorder_linear_weight")
    oneDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return oneDNN and weight.device.type == "cpu" and weight.dtype == torch.float32 and all(map(has, names))


def packed_linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Return x Wᵀ + b with a copy of W packed for oneDNN, as `torch.compile` does with constants. See `can_pack`."""
    with torch.inference_mode():
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
    multiply = torch.ops.mkldnn._linear_pointwise
    return lambda states: cast(Tensor, multiply(states, packed, bias, "none", [], ""))


def step_where(optimizer: torch.optim.Optimizer, finite: Tensor) -> None:
    """Take a step of the optimizer where `finite`, (), is true.

    Fused optimizers read two attributes (they are how `torch.amp.GradScaler` talks to them), so that the decision falls
    on the device and nobody waits for it. For others it is read first.
    """
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        optimizer.grad_scale, optimizer.found_inf = None, (~finite).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif bool(finite):
        optimizer.step()


def lerp_all(averages: list[Tensor], values: list[Tensor], weight: float) -> None:
    """Move each average towards its value, in place, by `weight` of the way."""
    if has("_foreach_lerp_"):
        torch._foreach_lerp_(averages, values, weight)
        return
    for average, value in zip(averages, values, strict=True):
        average.lerp_(value, weight)


def without_compiler(kind: type[Kind]) -> type[Kind]:
    """Return an optimizer's class as one that does not import the compiler, which takes seconds.

    torch wraps an optimizer's methods for those who compile it, and these look for the compiler when first called. Here
    are the methods within, none of which wants to be differentiated (torch's option `differentiable` means nothing).
    """
    names = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(inspect.unwrap(kind.step))})


def import_compiler() -> None:
    """Import the compiler, where this torch has one."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._dynamo")


def uncompiled(compiled: bool) -> AbstractContextManager[object]:
    """Return a context in which layers that are compiled run as they are written, where torch can do that.

    A search, with its cache growing, would only compile more.
    """
    return torch.compiler.set_stance("force_eager") if compiled and has("compiler.set_stance") else nullcontext()


def cpu_capabilities() -> Mapping[str, object]:
    """Return which instructions the processor has; nothing where torch does not say."""
    found: Mapping[str, object] = torch.cpu.get_capabilities() if has("cpu.get_capabilities") else {}
    return found


def without_drawing() -> AbstractContextManager[object]:
    """Return a context that leaves out drawing initial weights: half the time that loading takes, for nothing."""
    if not has("overrides.TorchFunctionMode"):
        return nullcontext()
    drawing = {Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}

    class NoDrawing(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            if func in drawing:
                return args[0] if args else (kwargs or {})["tensor"]
            return func(*args, **(kwargs or {}))

    return NoDrawing()
