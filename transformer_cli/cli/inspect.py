"""`tfm inspect`: the architecture of a model as a tree, with shapes, parameters and share of the compute."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from transformer_cli.cli.options import JsonOutput, Model, option

if TYPE_CHECKING:
    from transformer_cli.inside.architecture import Part, Weight

LENGTH = 25  # tokens: about a sentence of news

Row = tuple[str, ...]  # name, weights; parameters, multiply-adds, each with their share


def inspect(
    model: Model,
    source_length: Annotated[
        int, option("--source-length S", "Source tokens of the sentence, </s> included.", min=1, max=4096)
    ] = LENGTH,
    target_length: Annotated[
        int, option("--target-length T", "Target tokens of the sentence, <s> included.", min=1, max=4096)
    ] = LENGTH,
    depth: Annotated[
        int | None, option("--depth N", "Show so many levels of parts.  [default: all]", min=1, max=100)
    ] = None,
    json_output: JsonOutput = False,
) -> None:
    """Show a model's parts, shapes, parameters and compute.

    A tree of the model's parts by their names in the code, each with its class, the shapes of its weights, its
    parameters and its multiply-adds, and the share that they are of the whole model's. Parts that are alike are shown
    once, with the numbers of each. A matrix that several parts share is counted with the first of them; the others
    are marked as tied.

    Multiply-adds are counted in a real pass of the model over one sentence, encoder and decoder once over all its
    tokens, as training does: n·m a token for a linear layer from n to m dimensions, and T·S·H·(d_k + d_v) for
    attention of T positions to S in H heads (Q times K, then the weights times V), the whole square whether masked
    or not. Sums, norms, activations and look-ups are not counted.

    \b
    tfm inspect checkpoints/my
    tfm inspect checkpoints/my --source-length 100 --target-length 100 --depth 2
    tfm inspect checkpoints/my --json
    """
    from transformer_cli.storage.run_folder import find_model

    find_model(model)  # before the seconds that loading torch takes
    from transformer_cli.build import load_model
    from transformer_cli.inside.architecture import inspect_model

    loaded = load_model(model)
    tree = inspect_model(loaded.model, source_length, target_length)
    if json_output:
        lengths = {"source_length": source_length, "target_length": target_length}
        print(json.dumps({"model": str(model), **lengths, **as_object(tree, tree)}))
        return
    for line in lines(tree, source_length, target_length, depth):
        print(line)


def lines(tree: "Part", source_length: int, target_length: int, depth: int | None = None) -> Iterator[str]:
    """Yield the tree as it is printed, under its columns."""
    header = ("part", "weights", "parameters", "", "multiply-adds", "")
    rows = [header, _row(tree.kind, tree, tree), *_below(tree, tree, "", depth)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        texts = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        yield "  ".join([*texts, *numbers]).rstrip()
    yield ""
    for name in dict.fromkeys(_tied(tree)):
        yield f"tied: the same as {name}, and counted there"
    yield f"multiply-adds: of one sentence with {source_length:,} source and {target_length:,} target tokens"


def as_object(part: "Part", whole: "Part") -> dict[str, Any]:
    """Return a part and all below it for JSON."""
    return {
        "name": part.name,
        "path": part.path,
        "class": part.kind,
        "parameters": part.parameters,
        "parameters_share": _share(part.parameters, whole.parameters),
        "multiply_adds": part.multiply_adds,
        "multiply_adds_share": _share(part.multiply_adds, whole.multiply_adds),
        "own_multiply_adds": part.own_multiply_adds,
        "weights": [asdict(weight) for weight in part.weights],
        "parts": [as_object(inner, whole) for inner in part.parts],
    }


def _below(part: "Part", whole: "Part", indent: str, depth: int | None) -> Iterator[Row]:
    """Yield the rows of what is in a part, so many levels deep."""
    if depth == 0:
        return
    shown = [inner for inner in part.parts if _holds_anything(inner)]
    if shown and part.own_multiply_adds:
        count, share = f"{part.own_multiply_adds:,}", _percent(part.own_multiply_adds, whole.multiply_adds)
        yield f"{indent}├─ products of its own", "", "", "", count, share
    # Layers have numbers; of parts with names of their own each is shown.
    alike = [
        list(group) for _, group in groupby(shown, key=lambda one: (_content(one), one.name.isdigit() or one.name))
    ]
    for number, group in enumerate(alike, start=1):
        first, last = group[0], group[-1]
        is_last = number == len(alike)
        name = f"{first.name}: {first.kind}"
        if len(group) > 1:
            name = f"{first.name} … {last.name}: {len(group)} × {first.kind}, each"
        yield _row(f"{indent}{'└─' if is_last else '├─'} {name}", first, whole)
        yield from _below(first, whole, f"{indent}{'   ' if is_last else '│  '}", None if depth is None else depth - 1)


def _tied(part: "Part") -> Iterator[str]:
    """Yield what the tied weights in a part are tied to."""
    yield from (weight.tied_to for weight in part.weights if weight.tied_to is not None)
    for inner in part.parts:
        yield from _tied(inner)


def _holds_anything(part: "Part") -> bool:
    """Return whether a part has tensors or multiplies; dropout does neither."""
    return bool(part.weights or part.multiply_adds or any(map(_holds_anything, part.parts)))


def _content(part: "Part") -> object:
    """Return all that is shown of a part but its name."""
    return part.kind, part.weights, part.own_multiply_adds, tuple((one.name, _content(one)) for one in part.parts)


def _row(name: str, part: "Part", whole: "Part") -> Row:
    numbers = []
    for count, of in ((part.parameters, whole.parameters), (part.multiply_adds, whole.multiply_adds)):
        numbers += [f"{count:,}" if count else "", _percent(count, of)]
    return name, ", ".join(map(_weight, part.weights)), *numbers


def _weight(weight: "Weight") -> str:
    shape = "×".join(map(str, weight.shape)) or "1"
    mark = " (tied)" if weight.tied_to is not None else " (not trained)" if weight.constant else ""
    return f"{weight.name} {shape}{mark}"


def _share(count: int, of: int) -> float:
    return round(count / of, 6) if of else 0.0


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if count else ""
