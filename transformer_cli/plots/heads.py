"""All heads of a model side by side: a grid of small maps of what each attends to, and how widely each attends."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.plots.attention import KINDS, Attention, Weights, attend, choose, colour_bar
from transformer_cli.plots.style import check_picture, save, shorten, style, visible_line

MAP = (1.0, 1.8)  # inches of a small map's longer side, as it takes for POSITION of each
POSITION = 0.035
LEAST = 0.5  # inches of its shorter side: room for the name of a head
CELL = 0.42  # inches of a head's cell in the picture of entropies
LOWEST = 0.9  # inches: room for what stands beside a bar of colours
MARGIN = 0.15
LEFT = 0.65  # inches for the names of layers
MOST = 16  # heads across and layers down: more are too small to see, or too large a picture

Entropies = npt.NDArray[np.float64]


def entropy(weights: npt.NDArray[np.floating]) -> Entropies:
    """−Σ p ln p of each row of attention weights (…, S) → (…), in nats: ln S if all get the same, 0 if one gets all."""
    positive = np.where(weights > 0, weights, 1.0).astype(np.float64)  # 0 ln 0 is 0
    summed: Entropies = -(positive * np.log(positive) * (weights > 0)).sum(axis=-1)
    return np.maximum(summed, 0.0)


def mean_entropy(attentions: Sequence[Attention], kind: str) -> Entropies:
    """The mean over all positions of some sentences, for each layer and head: (L, H), in nats."""
    rows = [entropy(attention.of(kind)) for attention in attentions]  # (L, H, T) each
    mean: Entropies = np.concatenate(rows, axis=-1).mean(axis=-1)
    return mean


def heads_figure(
    attention: Attention,
    kind: str = "cross",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Figure:
    """A small map for each layer (downwards) and head (across); both are counted from 1, None is all.

    Raises `UserError` for a layer or head that there is not, and where there are more than a picture can show.
    """
    weights = attention.of(kind)
    layers, heads = _chosen(weights, layers, heads)
    rows, columns = weights.shape[2:]
    longest = max(rows, columns)
    size = min(max(MAP[0], POSITION * longest), MAP[1])
    across, down = max(size * columns / longest, LEAST), max(size * rows / longest, LEAST)
    lines = [attention.sentence] if kind == "encoder" else [attention.sentence, attention.translation]
    top = 0.45 + 0.2 * len(lines) + 0.15  # inches above the maps
    width = max(LEFT + len(heads) * (across + 0.08) + 0.75, 4.5)
    height = top + max(len(layers) * (down + 0.08), LOWEST) + 0.3
    with style():
        figure = Figure(figsize=(width, height))
        _head(figure, f"{KINDS[kind]}: head by head", lines)
        image = None
        for r, layer in enumerate(layers):
            for c, head in enumerate(heads):
                left, above = LEFT + c * (across + 0.08), top + r * (down + 0.08)
                axes = figure.add_axes(
                    (left / width, 1 - (above + down) / height, across / width, down / height),
                    label=f"layer {layer}, head {head}",
                )
                image = axes.imshow(weights[layer - 1, head - 1], cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
                axes.set(xticks=[], yticks=[])
                axes.grid(False)
                for spine in axes.spines.values():
                    spine.set(visible=True, color="#888888", linewidth=0.5)
                if r == 0:
                    axes.set_title(f"head {head}", loc="center", fontsize=8, pad=3)
                if c == 0:
                    axes.set_ylabel(f"layer {layer}", fontsize=8, labelpad=3)
        assert image is not None
        place = LEFT + len(heads) * (across + 0.08) + 0.1
        high = min(1.0, max(len(layers) * (down + 0.08) - 0.08, LOWEST))
        colour_bar(figure, image, (place / width, 1 - (top + high) / height, 0.1 / width, high / height))
        seen = "source" if kind == "encoder" else "target"
        read = "target" if kind == "decoder" else "source"
        text = f"{rows} {seen} positions (down) attend to {columns} {read} positions (across)"
        figure.text(MARGIN / width, 0.14 / height, text, fontsize=8, color="#444444", va="center")
    return figure


def entropy_figure(
    attentions: Sequence[Attention],
    kinds: Sequence[str] = tuple(KINDS),
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
) -> Figure:
    """A map of layers by heads for each kind of attention: the mean entropy over all positions of the sentences."""
    assert attentions, "entropy of some sentences"
    found = []
    for kind in kinds:
        chosen = _chosen(attentions[0].of(kind), layers, heads)
        values = mean_entropy(attentions, kind)[np.ix_(*([number - 1 for number in side] for side in chosen))]
        found.append((kind, values, *chosen))
    highest = max(float(values.max()) for _, values, _, _ in found)
    sizes = [(CELL * len(heads), max(CELL * 0.75 * len(layers), LOWEST)) for _, _, layers, heads in found]
    wide = [max(across, 1.6) for across, _ in sizes]
    count = len(attentions)
    lines = [attentions[0].sentence if count == 1 else f"mean over {count} sentences", _positions(attentions, kinds)]
    top, width = 1.1, max(sum(wide) + LEFT * len(wide) + 0.95, 5.0)
    height = top + max(down for _, down in sizes) + 0.45
    with style():
        figure = Figure(figsize=(width, height))
        _head(figure, "Entropy of each head's attention", lines)
        left = LEFT
        image = None
        for (kind, values, of_layers, of_heads), (across, down), room in zip(found, sizes, wide, strict=True):
            axes = figure.add_axes((left / width, 1 - (top + down) / height, across / width, down / height), label=kind)
            image = axes.imshow(values, cmap="viridis", vmin=0.0, vmax=max(highest, 0.1), aspect="auto")
            axes.set_title(KINDS[kind], fontsize=9, pad=4)
            axes.set_xticks(range(len(of_heads)), [str(head) for head in of_heads], fontsize=8)
            axes.set_yticks(range(len(of_layers)), [str(layer) for layer in of_layers], fontsize=8)
            axes.set_xlabel("head")
            axes.set_ylabel("layer")
            axes.grid(False)
            axes.tick_params(length=0)
            for (row, column), value in np.ndenumerate(values):
                colour = "black" if value > 0.6 * highest else "white"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
            left += room + LEFT
        assert image is not None
        high = min(1.0, sizes[0][1])
        place = ((left - LEFT + 0.15) / width, 1 - (top + high) / height, 0.1 / width, high / height)
        colour_bar(figure, image, place, "entropy (nats)")
    return figure


def _positions(attentions: Sequence[Attention], kinds: Sequence[str]) -> str:
    """What entropies are to be held against: those of attention that is the same everywhere."""
    even = []
    for kind in kinds:
        seen = [_seen(attention, kind) for attention in attentions]
        mean = float(np.mean(np.concatenate([np.log(counts) for counts in seen])))
        even.append(f"{kind} {mean:.2f}")
    return f"0: all weight on one position; the same weight on all: {', '.join(even)}"


def _seen(attention: Attention, kind: str) -> npt.NDArray[np.int64]:
    """How many positions each position may attend to."""
    rows, columns = attention.of(kind).shape[2:]
    causal = kind == "decoder" and not attention.at_once
    return np.arange(1, rows + 1) if causal else np.full(rows, columns)


def _chosen(weights: Weights, layers: Sequence[int] | None, heads: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """The layers and heads to show, from 1."""
    chosen = choose(layers, weights.shape[0], "layer"), choose(heads, weights.shape[1], "head")
    if max(map(len, chosen)) > MOST:
        sizes = f"{len(chosen[0])} layers with {len(chosen[1])} heads"
        raise UserError(f"{sizes} are too many for one picture; choose up to {MOST} with --layers and --heads")
    return chosen


def _head(figure: Figure, title: str, lines: Iterable[str]) -> None:
    """A title and lines under it, cut to the picture's width."""
    width, height = figure.get_size_inches()
    room = 0.95 * (width - 2 * MARGIN)  # drawn pixel by pixel, letters are a little wider than measured
    figure.text(MARGIN / width, 1 - 0.22 / height, shorten(title, 11 * 1.12, room), va="center", fontsize=11,
                fontweight="bold")  # fmt: skip
    for number, line in enumerate(lines):
        place = 1 - (0.46 + 0.2 * number) / height
        text = shorten(visible_line(line), 9, room)
        figure.text(MARGIN / width, place, text, va="center", fontsize=9, color="#444444")


def plot_heads(
    model: str | Path,
    sentence: str,
    out: str | Path,
    *,
    target: str | None = None,
    kind: str = "cross",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    device: str = "auto",
) -> list[str]:
    """Write the grid of a model's heads; return what the user should know of it. Raises `UserError`."""
    check_picture(out)
    attention = attend(Translator.load(model, device, engine="torch"), sentence, target)
    return save(heads_figure(attention, kind, layers, heads), out)


def plot_entropy(
    model: str | Path,
    sentences: Sequence[str],
    out: str | Path,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    device: str = "auto",
) -> list[str]:
    """Write the picture of the entropies of a model's heads. Raises `UserError`."""
    check_picture(out)
    translator = Translator.load(model, device, engine="torch")
    return save(entropy_figure([attend(translator, one) for one in sentences], kinds, layers, heads), out)
