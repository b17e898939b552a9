"""Stages are recorded in the order in which parts work, as long as somebody looks."""

import pytest
import torch
from torch import nn

from transformer_cli.inside.trace import Output, recorded


def make_model() -> nn.Module:
    """Two layers, then one that works first."""
    model = nn.Module()
    model.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    model.first = nn.Linear(2, 3)
    return model


PARTS = (
    Output("layers.*", "layer {}", "B, D"),
    Output("first", "in", "B, D"),
    Output("absent", "of a variant", "B, D"),
)


def run(model: nn.Module) -> list[torch.Tensor]:
    made = [model.get_submodule("first")(torch.ones(4, 2))]
    for name in ("layers.0", "layers.1"):
        made.append(model.get_submodule(name)(made[-1]))
    return made


def test_in_the_order_of_the_work_with_first_values() -> None:
    model = make_model()
    with recorded(model, PARTS) as stages:
        made = run(model)
    assert [stage.name for stage in stages] == ["in", "layer 1", "layer 2"]
    for stage, tensor in zip(stages, made, strict=True):
        assert (stage.axes, stage.shape) == ("B, D", (4, 3))
        assert stage.first == pytest.approx(tensor[0].tolist())


def test_nothing_is_recorded_afterwards_even_where_it_failed() -> None:
    model, seen = make_model(), []

    def fail() -> None:
        with recorded(model, PARTS) as stages:
            seen.append(stages)
            run(model)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    run(model)
    assert [len(stages) for stages in seen] == [3]
    assert not any(module._forward_hooks for module in model.modules())


def test_axes_are_named_only_where_they_fit() -> None:
    model = make_model()
    with recorded(model, [Output("first", "in", "B, S, D")]) as stages:
        run(model)
    assert stages[0].axes == ""
