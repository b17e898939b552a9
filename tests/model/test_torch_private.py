"""Which torch has which of its names that are not for everybody, and what happens in one that lacks them."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer_cli
from transformer_cli.model import torch_private
from transformer_cli.model.torch_private import (
    cpu_capabilities,
    has,
    lerp_all,
    step_where,
    uncompiled,
    without_compiler,
    without_drawing,
)

# name → the first and the last release that is taken to have it. Only 2.13 was run; that 2.6, the oldest that the
# package takes, has them is not tested. A later one may lack a name: then the fallback runs, and this table is to be
# corrected.
NAMES = {
    "layer_norm": ("2.6", "2.13"),
    "embedding": ("2.6", "2.13"),
    "ops.mkldnn._linear_pointwise": ("2.6", "2.13"),
    "ops.mkldnn._reorder_linear_weight": ("2.6", "2.13"),
    "_foreach_lerp_": ("2.6", "2.13"),
    "_dynamo": ("2.6", "2.13"),
    "compiler.set_stance": ("2.6", "2.13"),
    "cpu.get_capabilities": ("2.13", "2.13"),  # when it came is not known here
    "overrides.TorchFunctionMode": ("2.6", "2.13"),
}


def release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


@pytest.fixture(params=[True, False], ids=["there", "lacking"])
def there(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the names that torch has, and without any."""
    if not request.param:
        monkeypatch.setattr(torch_private, "has", lambda name: False)
    return bool(request.param)


@pytest.mark.parametrize("name", NAMES)
def test_this_torch_has_what_it_is_known_to_have(name: str) -> None:
    first, last = map(release, NAMES[name])
    if name == "_dynamo":
        torch_private.import_compiler()
    assert has(name) or not first <= release(torch.__version__) <= last


def test_every_name_that_is_asked_for_is_in_the_table() -> None:
    source = Path(torch_private.__file__).read_text(encoding="utf-8")
    asked = [
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "has" and isinstance(node.args[0], ast.Constant)
    ]
    assert len(asked) > 4
    assert set(asked) <= set(NAMES)
    assert not has("no.such_name")


@pytest.mark.medium
def test_no_other_module_uses_private_names_of_torch() -> None:
    """But for `inside.architecture`, whose counting of products is a private class from top to bottom."""
    package = Path(transformer_cli.__file__).parent
    for path in package.rglob("*.py"):
        if path.name in ("torch_private.py", "architecture.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if isinstance(node, ast.ImportFrom):
                named = f"{node.module}."
            private = named.startswith("torch.") and any(part.startswith("_") for part in named.split(".")[1:])
            assert not private or "__" in named, f"{path.name}: {named}"
            assert not named.startswith("torch.ops."), f"{path.name}: {named}"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_an_optimizer_without_the_compiler_is_the_same(kind: type[torch.optim.Optimizer]) -> None:
    def trained(kind: type[torch.optim.Optimizer]) -> tuple[torch.Tensor, dict[str, Any]]:
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = kind([{"params": [weight], "weight_decay": 0.3}], lr=0.1)  # type: ignore[call-arg]
        for step in range(3):
            optimizer.zero_grad()
            weight.grad = torch.arange(3.0) * step
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        return weight.detach(), optimizer.state_dict()

    ours, expected = trained(without_compiler(kind)), trained(kind)
    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
    assert without_compiler(kind).__name__ == kind.__name__


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_is_taken_where_all_is_finite(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=fused)
    weight.grad = torch.ones(3)
    step_where(optimizer, torch.tensor(False))
    assert torch.equal(weight, torch.ones(3))
    step_where(optimizer, torch.tensor(True))
    assert torch.allclose(weight, torch.full((3,), 0.9))


def test_a_fused_optimizer_that_takes_no_word_from_outside_is_waited_for() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1, fused=True)
    optimizer._step_supports_amp_scaling = False
    weight.grad = torch.full((3,), torch.nan)
    step_where(optimizer, torch.tensor(False))
    assert not hasattr(optimizer, "found_inf")
    assert torch.equal(weight, torch.ones(3))


def test_averages_move_by_the_same_way(there: bool) -> None:
    averages, values = [torch.zeros(2), torch.ones(3)], [torch.ones(2), torch.zeros(3)]
    lerp_all(averages, values, 0.25)
    assert torch.equal(averages[0], torch.full((2,), 0.25))
    assert torch.equal(averages[1], torch.full((3,), 0.75))


def test_processors_and_compiled_layers(there: bool) -> None:
    assert isinstance(cpu_capabilities().get("avx2", False), bool)
    assert there or not cpu_capabilities()
    with uncompiled(True), uncompiled(False):
        assert torch.ones(1) + 1 == 2


def test_weights_are_left_undrawn_where_that_can_be_done(there: bool) -> None:
    with torch.random.fork_rng(devices=[]), without_drawing():
        before = torch.get_rng_state()
        torch.nn.init.normal_(torch.empty(3))
        assert torch.equal(before, torch.get_rng_state()) == there
