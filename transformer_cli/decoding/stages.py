"""What a trace is made of: tensors that the parts of a model make while it runs, as hooks see them, and tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from transformer_cli.model.decoder import DecoderOutput

SHOWN = 5  # values of a tensor


@dataclass(frozen=True)
class Stage:
    """A tensor that one part of the model made."""

    name: str
    axes: str  # what its dimensions are, such as B, S, D
    shape: tuple[int, ...]
    first: tuple[float, ...]  # the first values of its first row


@dataclass(frozen=True)
class Choice:
    """A token, and how probable the model held it to be in its place."""

    token: str
    id: int
    probability: float


# A part of the model, what its outputs are called, and their axes. The first layer is looked into, others pass by.
Part = tuple[str, tuple[tuple[str, str], ...]]
ENCODER: tuple[Part, ...] = (
    ("source_embedding.tokens.table", (("embedding", "B, S, D"),)),
    ("source_embedding.tokens", (("times √d_model", "B, S, D"),)),
    ("source_embedding.positions", (("positions", "S, D"),)),
    ("source_embedding", (("both added", "B, S, D"),)),
    ("encoder.layers.0.self_attention.query", (("layer 1: queries", "B, S, H·d_k"),)),
    ("encoder.layers.0.self_attention.key_value", (("layer 1: keys, values", "B, S, H·(d_k+d_v)"),)),
    ("encoder.layers.0.self_attention.key", (("layer 1: keys", "B, S, H·d_k"),)),  # of attention with a `value_dim`
    ("encoder.layers.0.self_attention.value", (("layer 1: values", "B, S, H·d_v"),)),
    (
        "encoder.layers.0.self_attention",
        (("layer 1: self-attention", "B, S, D"), ("layer 1: its weights", "B, H, S, S")),
    ),
    ("encoder.layers.0.feed_forward.gate", (("layer 1: feed-forward, gate", "B, S, d_ff"),)),
    ("encoder.layers.0.feed_forward.inner", (("layer 1: feed-forward, inner", "B, S, d_ff"),)),
    ("encoder.layers.0.feed_forward", (("layer 1: feed-forward", "B, S, D"),)),
    ("encoder.layers.*", (("layer {}", "B, S, D"),)),
    ("encoder", (("memory", "B, S, D"),)),
)
DECODER: tuple[Part, ...] = (
    ("target_embedding.tokens", (("embedding, times √d_model", "B, T, D"),)),
    ("target_embedding.positions", (("positions", "T, D"),)),
    ("target_embedding", (("both added", "B, T, D"),)),
    (
        "decoder.layers.0.self_attention",
        (("layer 1: self-attention", "B, T, D"), ("layer 1: its weights", "B, H, T, T")),
    ),
    (
        "decoder.layers.0.cross_attention",
        (("layer 1: cross-attention", "B, T, D"), ("layer 1: its weights", "B, H, T, S")),
    ),
    ("decoder.layers.0.feed_forward", (("layer 1: feed-forward", "B, T, D"),)),
    ("decoder.layers.*", (("layer {}", "B, T, D"),)),
    ("decoder", (("hidden", "B, T, D"),)),
    ("generator", (("log-probabilities", "B, T, V"),)),
)


@contextmanager
def recorded(model: nn.Module, parts: Sequence[Part]) -> Iterator[list[Stage]]:
    """What these parts make inside, in the order in which they are done; parts that a variant lacks are left out."""
    stages: list[Stage] = []
    modules = dict(model.named_modules())
    hooks = []
    for path, outputs in parts:
        listed = path.endswith(".*")
        matching = [name for name in modules if name.rpartition(".")[0] == path[:-2]] if listed else [path]
        for number, name in enumerate(matching, start=1):
            if name in modules:
                named = [(title.format(number), axes) for title, axes in outputs]
                hooks.append(modules[name].register_forward_hook(_record(stages, named)))
    try:
        yield stages
    finally:
        for hook in hooks:
            hook.remove()


def _record(stages: list[Stage], outputs: Sequence[tuple[str, str]]) -> Callable[[nn.Module, object, Any], None]:
    def hook(_: nn.Module, __: object, output: Any) -> None:
        if isinstance(output, DecoderOutput):
            output = output.hidden
        tensors = (output,) if isinstance(output, Tensor) else output
        for (name, axes), tensor in zip(outputs, tensors, strict=False):
            if isinstance(tensor, Tensor):
                fits = axes.count(",") == tensor.dim() - 1
                first = tensor.flatten(0, -2)[0, :SHOWN].float().tolist()
                stages.append(Stage(name, axes if fits else "", tuple(tensor.shape), tuple(first)))

    return hook
