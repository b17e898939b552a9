"""Pictures of what a model attends to: a map for each layer and head, and how spread their attention is.

`tfm plot attention` and the demo call it.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from transformer_cli.errors import UserError
from transformer_cli.inside.attention import Attention, Weights
from transformer_cli.plots.grid import Colours, Panel, draw_grid, in_rows

KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
MAP = (1.0, 1.8)  # inches of a small map's longer side, as it takes for POSITION of each
POSITION = 0.035
LEAST = 0.5  # inches of its shorter side: room for the name of a head
CELL = (0.42, 0.315)  # inches of a head in the picture of entropies
MOST = 16  # heads across and layers down: more are too small to see, or too large a picture

Entropies = npt.NDArray[np.float64]


def _choose(
    weights: Weights, layers: Sequence[int] | None, heads: Sequence[int] | None, *, few: bool = True
) -> tuple[list[int], list[int]]:
    """Return the layers and heads to show, from 1; None is all. `few`: refuse more than one picture can show.

    Raises `UserError` for one that there is not.
    """
    chosen = []
    for what, numbers, count in (("layer", layers, weights.shape[0]), ("head", heads, weights.shape[1])):
        for number in numbers or ():
            if not 1 <= number <= count:
                there = f"{what}s 1 to {count}" if count > 1 else f"one {what}, 1"
                raise UserError(f"{what} {number}: there is none; this model has {there}")
        chosen.append(list(numbers or range(1, count + 1)))
    if few and max(map(len, chosen)) > MOST:
        sizes = f"{len(chosen[0])} layers with {len(chosen[1])} heads"
        raise UserError(f"{sizes} are too many for one picture; choose up to {MOST} with --layers and --heads")
    return chosen[0], chosen[1]


def _texts(attention: Attention, kind: str) -> list[str]:
    return [attention.sentence] if kind == "encoder" else [attention.sentence, attention.translation]


def attention_figure(
    attention: Attention,
    kind: str = "cross",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    mean: bool = False,
) -> Figure:
    """Draw a heat map for each layer (downwards) and head (across); both are counted from 1, None is all.

    `mean`: one map per layer, the mean of these heads. Raises `UserError` for a layer or head that there is not, and
    where the picture would be too large to read.
    """
    weights = attention.of(kind)
    layers, heads = _choose(weights, layers, heads, few=False)
    labels = {
        "encoder": (attention.source, attention.source),
        "decoder": (attention.target_output, attention.target_input),
        "cross": (attention.target_output, attention.source),
    }[kind]
    if mean:
        which = f"{len(heads)} heads" if len(heads) < weights.shape[1] else "all heads"
        of_heads = weights[:, [head - 1 for head in heads]].mean(axis=1)  # (L, T, S)
        maps = [Panel(f"layer {layer}, mean of {which}", of_heads[layer - 1], labels) for layer in layers]
        panels = in_rows(maps)
    else:
        panels = [
            [Panel(f"layer {layer}, head {head}", weights[layer - 1, head - 1], labels) for head in heads]
            for layer in layers
        ]
    highest = max(float(panel.values.max()) for row in panels for panel in row)
    x_label = "source token" if kind != "decoder" else "target token so far" if attention.causal else "target position"
    return draw_grid(
        panels,
        title=KINDS[kind],
        lines=_texts(attention, kind),
        x_label=x_label,
        y_labels=["source token" if kind == "encoder" else "target token predicted"] * len(panels),
        colours=Colours("attention weight", "Blues", 0.0, highest),
        fewer="choose with --layers and --heads, or shorten the sentence",
    )


def heads_figure(
    attention: Attention,
    kind: str = "cross",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Figure:
    """Draw a small map without tokens for each layer (downwards) and head (across), counted from 1; None is all.

    Raises `UserError` for a layer or head that there is not, and where there are more than a picture can show.
    """
    weights = attention.of(kind)
    layers, heads = _choose(weights, layers, heads)
    rows, columns = weights.shape[2:]
    longest = max(rows, columns)
    size = min(max(MAP[0], POSITION * longest), MAP[1])
    cell = max(size / longest, LEAST / columns), max(size / longest, LEAST / rows)
    seen, read = ("source" if kind == "encoder" else "target"), ("target" if kind == "decoder" else "source")
    return draw_grid(
        [
            [
                Panel(
                    f"layer {layer}, head {head}",
                    weights[layer - 1, head - 1],
                    title=f"head {head}" if layer == layers[0] else "",
                )
                for head in heads
            ]
            for layer in layers
        ],
        title=f"{KINDS[kind]}: head by head",
        lines=[
            *_texts(attention, kind),
            f"down {rows} {seen} positions, across the {columns} {read} positions they read",
        ],
        x_label="",
        y_labels=[f"layer {layer}" for layer in layers],
        colours=Colours("attention weight", "Blues", 0.0, 1.0),
        cell=cell,
    )


def entropy(weights: npt.NDArray[np.floating]) -> Entropies:
    """Return −Σ p ln p of each row of attention weights (…, S) → (…), in nats.

    That is ln S where all positions get the same weight, and 0 where one gets all.
    """
    positive = np.where(weights > 0, weights, 1.0).astype(np.float64)  # 0 ln 0 is 0
    summed: Entropies = -(positive * np.log(positive) * (weights > 0)).sum(axis=-1)
    return np.maximum(summed, 0.0)


def mean_entropy(attentions: Sequence[Attention], kind: str) -> Entropies:
    """Return the mean over all positions of some sentences, for each layer and head: (L, H), in nats."""
    rows = [entropy(attention.of(kind)) for attention in attentions]  # (L, H, T) each
    mean: Entropies = np.concatenate(rows, axis=-1).mean(axis=-1)
    return mean


def entropy_figure(
    attentions: Sequence[Attention],
    kinds: Sequence[str] = tuple(KINDS),
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Figure:
    """Draw layers by heads for each kind of attention: the mean entropy over all positions of the sentences."""
    assert attentions, "entropy of some sentences"
    panels = []
    for kind in kinds:
        chosen = _choose(attentions[0].of(kind), layers, heads)
        values = mean_entropy(attentions, kind)[np.ix_(*([number - 1 for number in side] for side in chosen))]
        panels.append(Panel(KINDS[kind], values, labels=(list(map(str, chosen[0])), list(map(str, chosen[1])))))
    highest = max(float(panel.values.max()) for panel in panels)
    most_layers, most_heads = (max(panel.values.shape[axis] for panel in panels) for axis in (0, 1))
    even = ", ".join(f"{kind} {_even_entropy(attentions, kind):.2f}" for kind in kinds)
    count = len(attentions)
    figure = draw_grid(
        [panels],
        title="Entropy of each head's attention",
        lines=[
            attentions[0].sentence if count == 1 else f"mean over {count} sentences",
            f"0: all weight on one position; the same weight on all: {even}",
        ],
        x_label="head",
        y_labels=["layer"],
        colours=Colours("entropy (nats)", "viridis", 0.0, max(highest, 0.1)),
        cell=(max(CELL[0], 1.6 / most_heads), max(CELL[1], 0.9 / most_layers)),
    )
    for axes, panel in zip(figure.axes, panels, strict=False):
        for (row, column), value in np.ndenumerate(panel.values):
            colour = "black" if value > 0.6 * highest else "white"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    return figure


def _even_entropy(attentions: Sequence[Attention], kind: str) -> float:
    """Return the mean entropy of attention that is the same to every position that may be attended to."""
    counts = []
    for attention in attentions:
        rows, columns = attention.of(kind).shape[2:]
        counts.append(np.arange(1, rows + 1) if kind == "decoder" and attention.causal else np.full(rows, columns))
    return float(np.mean(np.log(np.concatenate(counts))))
