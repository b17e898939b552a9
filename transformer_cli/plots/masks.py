"""Which position may attend to which in a batch of real sentences: the padding mask, the causal one, and both."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from transformer_cli.data.batch import Batch
from transformer_cli.model.masks import causal_mask, padding_mask
from transformer_cli.plots.grid import Panel, draw_grid
from transformer_cli.plots.style import style
from transformer_cli.text.codec import Codec

COLOURS = ("#E3E3E3", "#0072B2")  # may not, may


def mask_figure(sentences: Sequence[Sequence[int]], codec: Codec, side: str) -> Figure:
    """For each sentence (ids without specials) of one batch, the three masks over its tokens.

    side: `source`, as the encoder sees it (tokens, `</s>`), or `target`, as the decoder does (`<s>`, tokens). Raises
    `UserError` where the picture would be too large to read.
    """
    empty: list[int] = []
    if side == "source":
        ids = Batch.from_ids([(sentence, empty) for sentence in sentences]).source  # (B, T)
    else:
        ids = Batch.from_ids([(empty, sentence) for sentence in sentences]).target_input  # (B, T)
    count, length = ids.shape
    padding = padding_mask(ids)[:, 0].expand(count, length, length)  # (B, T, T)
    causal = causal_mask(length, length).expand(count, length, length)  # (B, T, T)
    panels = []
    for sentence, row in enumerate(ids.tolist()):
        tokens = codec.tokens(row)
        masks = {"padding": padding, "causal": causal, "padding and causal": padding & causal}
        panels.append(
            [
                Panel(f"sentence {sentence + 1}: {name}", mask[sentence].numpy(), tokens, tokens)
                for name, mask in masks.items()
            ]
        )

    def draw(axes: Axes, panel: Panel) -> AxesImage:
        return axes.imshow(
            panel.values, cmap=ListedColormap(COLOURS), vmin=0, vmax=1, aspect="auto", interpolation="nearest"
        )

    sentence_count = "1 sentence" if count == 1 else f"{count} sentences"
    with style():
        return draw_grid(
            panels,
            title=f"Attention masks of a batch of {sentence_count}",
            lines=[f"{side} side: {count} × {length} positions, padding included"],
            x_label="position attended to",
            y_label="position that attends",
            draw=draw,
            legend=_legend,
            fewer="take fewer or shorter sentences",
        )


def _legend(figure: Figure, image: AxesImage, place: tuple[float, float, float, float]) -> None:
    patches = [Patch(color=COLOURS[1], label="may\nattend"), Patch(color=COLOURS[0], label="may\nnot")]
    left, bottom, _, height = place
    figure.legend(handles=patches, loc="upper left", bbox_to_anchor=(left, bottom + height), borderaxespad=0,
                  handlelength=0.8, handletextpad=0.4, fontsize=7, bbox_transform=figure.transFigure)  # fmt: skip
