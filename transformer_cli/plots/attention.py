"""What a model attends to as it translates a sentence: the weights of every layer and head, and their picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from transformer_cli.data.batch import Batch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.inside.trace import MASKED
from transformer_cli.plots.at_once import ask
from transformer_cli.plots.grid import Panel, draw_grid
from transformer_cli.plots.style import check_picture, save, style
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK

KINDS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}
Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Attention:
    """All attention weights of a sentence and its translation: L layers, H heads, S source and T target positions.

    Row t of the decoder's and of the cross-attention weights is from predicting `target_output[t]`; the decoder then
    sees `target_input[: t + 1]`, or, where all tokens are written at once, all T' positions, masked as they were in the
    last pass that asked for the token. Every row sums to one.
    """

    sentence: str
    translation: str
    source: list[str]  # (S,) tokens, then </s>
    target_input: list[str]  # (T,) <s>, then tokens; at once (T',) what stands at each position in the end, or masks
    target_output: list[str]  # (T,) tokens, then </s>, unless the length is predicted
    encoder: Weights  # (L, H, S, S)
    decoder: Weights  # (L, H, T, T), or (L, H, T, T')
    cross: Weights  # (L, H, T, S)
    at_once: bool = False

    def of(self, kind: str) -> Weights:
        """The weights of `encoder`, `decoder` or `cross`."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]


def attend(translator: Translator, sentence: str, target: str | None = None) -> Attention:
    """Translate a sentence, then run the model over it and its best translation (or `target`) with open attention.

    Raises `UserError` for a sentence without tokens or longer than the model takes in one piece.
    """
    engine, codecs = translator.engine, translator.codecs
    assert isinstance(engine, TorchEngine | NonAutoregressiveEngine), "attention is seen in torch"
    source_ids = codecs.source.encode(sentence if sentence.strip() else "")
    _check_length("the sentence", source_ids, translator.max_length)
    options = None
    if target is None:
        options = SearchOptions.from_config(translator.config.decoding)
        best = translator.translate_batch([sentence], options, alignments=False)[0]
        target, tokens = best.text, best.tokens
        target_ids = codecs.lookup_target(tokens, sentence)
    else:
        target_ids = codecs.target.encode(target if target.strip() else "")
        _check_length("the target", target_ids, engine.max_target_length)
        tokens = codecs.target.tokens(target_ids)
    model = engine.model.eval()  # no dropout
    batch = Batch.from_ids([(source_ids, target_ids)]).to(engine.device)
    with torch.inference_mode():
        memory, encoder = model.encoder(model.source_embedding(batch.source), batch.source_mask, need_weights=True)
        if isinstance(engine, NonAutoregressiveEngine):
            asking = ask(engine, source_ids, target_ids, options)
            decoder, cross = engine.attention(source_ids, asking.seen, asking.passes, asking.places)
            known = codecs.target.tokens(asking.stands)
            seen = [MASKED if index == MASK else token for index, token in zip(asking.stands, known, strict=True)]
        else:
            output = model.decode(batch.target_input, memory, batch.source_mask, need_weights=True)
            decoder, cross = [*output.self_attention], [*output.cross_attention]
            seen = ["<s>", *tokens]
    return Attention(
        sentence=sentence,
        translation=target,
        source=[*(codecs.source.tokenize(sentence) if codecs.copies else codecs.source.tokens(source_ids)), "</s>"],
        target_input=seen,
        target_output=[*tokens, "</s>"][: decoder[0].size(2)],
        encoder=_stack(encoder),
        decoder=_stack(decoder),
        cross=_stack(cross),
        at_once=isinstance(engine, NonAutoregressiveEngine),
    )


def _check_length(what: str, ids: Sequence[int], most: int | None) -> None:
    if not ids:
        raise UserError(f"{what} has no tokens; give one with words in it")
    if most is not None and len(ids) > most:
        raise UserError(f"{what} has {len(ids):,} tokens, but the model takes at most {most:,} at once; shorten it")


def _stack(layers: Sequence[Tensor]) -> Weights:
    """A layer's weights (1, H, T, S) each → (L, H, T, S)."""
    stacked: Weights = torch.cat(list(layers)).float().cpu().numpy()
    return stacked


def attention_figure(
    attention: Attention,
    kind: str = "cross",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    mean: bool = False,
) -> Figure:
    """A heat map for each layer (downwards) and head (across); both are counted from 1, None is all.

    `mean`: one map a layer, the mean of these heads. Raises `UserError` for a layer or head that there is not, and
    where the picture would be too large to read.
    """
    weights = attention.of(kind)
    layers = choose(layers, weights.shape[0], "layer")
    heads = choose(heads, weights.shape[1], "head")
    rows, columns = {
        "encoder": (attention.source, attention.source),
        "decoder": (attention.target_output, attention.target_input),
        "cross": (attention.target_output, attention.source),
    }[kind]
    panels = []
    for layer in layers:
        chosen = [(f"layer {layer}, head {head}", weights[layer - 1, head - 1]) for head in heads]
        if mean:
            which = f"{len(heads)} heads" if len(heads) < weights.shape[1] else "all heads"
            chosen = [(f"layer {layer}, mean of {which}", np.mean([values for _, values in chosen], axis=0))]
        panels.append([Panel(title, values, rows, columns) for title, values in chosen])
    if mean and len(panels) > 1:
        panels = _in_rows([panel for row in panels for panel in row], across=3)
    top = max(float(panel.values.max()) for row in panels for panel in row)

    def draw(axes: Axes, panel: Panel) -> AxesImage:
        return axes.imshow(panel.values, cmap="Blues", vmin=0.0, vmax=top, aspect="auto", interpolation="nearest")

    x_label = "target position" if attention.at_once else "target token so far"
    with style():
        return draw_grid(
            panels,
            title=KINDS[kind],
            lines=[attention.sentence] if kind == "encoder" else [attention.sentence, attention.translation],
            x_label=x_label if kind == "decoder" else "source token",
            y_label="source token" if kind == "encoder" else "target token predicted",
            draw=draw,
            legend=colour_bar,
            fewer="choose with --layers and --heads, or shorten the sentence",
        )


def _in_rows(panels: Sequence[Panel], across: int) -> list[list[Panel]]:
    return [list(panels[start : start + across]) for start in range(0, len(panels), across)]


def colour_bar(
    figure: Figure, image: AxesImage, place: tuple[float, float, float, float], what: str = "attention weight"
) -> None:
    """What the colours mean, in the place (left, bottom, width, height as fractions)."""
    bar = figure.colorbar(image, cax=figure.add_axes(place))
    bar.set_label(what, fontsize=8)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_linewidth(0.5)


def choose(numbers: Sequence[int] | None, count: int, what: str) -> list[int]:
    """The given numbers, None: all from 1 to `count`. Raises `UserError` for one that there is not."""
    for number in numbers or ():
        if not 1 <= number <= count:
            there = f"{what}s 1 to {count}" if count > 1 else f"one {what}, 1"
            raise UserError(f"{what} {number}: there is none; this model has {there}")
    return list(numbers or range(1, count + 1))


def plot_attention(
    model: str | Path,
    sentence: str,
    out: str | Path,
    *,
    target: str | None = None,
    kind: str = "cross",
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    mean: bool = False,
    device: str = "auto",
) -> list[str]:
    """Write the picture of a model's attention; return what the user should know of it. Raises `UserError`."""
    check_picture(out)
    attention = attend(Translator.load(model, device, engine="torch"), sentence, target)
    return save(attention_figure(attention, kind, layers, heads, mean=mean), out)
