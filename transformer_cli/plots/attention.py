"""What a model attends to as it translates a sentence: the weights of every layer and head, and their pictures.

`tfm plot attention` and the demo call it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from transformer_cli.data.batch import Batch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.inside.trace import MASKED, check_length, trace_refinement
from transformer_cli.plots.grid import Colours, Panel, draw_grid, in_rows
from transformer_cli.search_options import SearchOptions
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK, all_masked

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

Weights = npt.NDArray[np.float32]
Entropies = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Attention:
    """All attention weights of a sentence and its translation: L layers, H heads, S source and T target positions.

    Row t of the decoder's and of the cross-attention weights is from predicting `target_output[t]`; the decoder then
    sees `target_input[: t + 1]`, or, where it is not causal, all T' positions, masked as in the last pass that
    predicted the token. Every row sums to one.
    """

    sentence: str
    translation: str
    source: list[str]  # (S,) tokens, then </s>
    target_input: list[str]  # (T,) <s>, then tokens; not causal (T',) the final token at each position, or masks
    target_output: list[str]  # (T,) tokens, then </s>, unless the length is predicted
    encoder: Weights  # (L, H, S, S)
    decoder: Weights  # (L, H, T, T), or (L, H, T, T')
    cross: Weights  # (L, H, T, S)
    causal: bool = True

    def of(self, kind: str) -> Weights:
        """Return the weights of `encoder`, `decoder` or `cross`."""
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]


def attend(translator: Translator, sentence: str, target: str | None = None, *, tag: str | None = None) -> Attention:
    """Translate a sentence, then run the model over it and its best translation (or `target`) with open attention.

    `tag`: as in `translate_batch`; the model attends to it, so it is one of the source tokens. Raises `UserError` for a
    sentence without tokens or longer than the model takes at once, and for a tag that the model does not know.
    """
    engine, codecs = translator.engine, translator.codecs
    assert isinstance(engine, TorchEngine | NonAutoregressiveEngine), "attention is seen in torch"
    (read,) = translator.tagged([sentence], tag)
    source_ids = codecs.source.encode(read if sentence.strip() else "")
    check_length("the sentence", source_ids, translator.max_length)
    options = None
    if target is None:
        options = SearchOptions.from_config(translator.config.decoding)
        best = translator.translate_batch([sentence], options, alignments=False, tag=tag)[0]
        target, tokens = best.text, best.tokens
        target_ids = codecs.lookup_target(tokens, read)
    else:
        target_ids = codecs.target.encode(target if target.strip() else "")
        check_length("the target", target_ids, engine.max_target_length)
        tokens = codecs.target.tokens(target_ids)
    model = engine.model.eval()  # no dropout
    batch = Batch.from_ids([(source_ids, target_ids)]).to(engine.device)
    with torch.inference_mode():
        memory, encoder = model.encoder(model.source_embedding(batch.source), batch.source_mask, need_weights=True)
        if isinstance(engine, NonAutoregressiveEngine):
            queries = masked_queries(engine, source_ids, target_ids, options)
            decoder, cross = engine.attention(source_ids, queries.inputs, queries.passes, queries.positions)
            names = codecs.target.tokens(queries.labels)
            seen = [MASKED if index == MASK else name for index, name in zip(queries.labels, names, strict=True)]
        else:
            output = model.decode(batch.target_input, memory, batch.source_mask, need_weights=True)
            decoder, cross = [*output.self_attention], [*output.cross_attention]
            seen = ["<s>", *tokens]
    return Attention(
        sentence=sentence,
        translation=target,
        source=[*(codecs.source.tokenize(read) if codecs.copies else codecs.source.tokens(source_ids)), "</s>"],
        target_input=seen,
        target_output=[*tokens, "</s>"][: decoder[0].size(2)],
        encoder=_stack(encoder),
        decoder=_stack(decoder),
        cross=_stack(cross),
        causal=not isinstance(engine, NonAutoregressiveEngine),
    )


def _stack(layers: Sequence[Tensor]) -> Weights:
    """Return a layer's weights (1, H, T, S) each as (L, H, T, S)."""
    stacked: Weights = torch.cat(list(layers)).float().cpu().numpy()
    return stacked


class MaskedQueries(NamedTuple):
    """Where the T tokens of a translation are masked, and so predicted, in P passes of mask-predict's decoder."""

    inputs: Tensor  # (P, T') ids that the decoder sees, masked in places
    passes: list[int]  # T: the pass that predicts the token
    positions: list[int]  # T: its position there
    labels: list[int]  # T' ids: what the positions are called


def masked_queries(
    engine: NonAutoregressiveEngine, source: Sequence[int], target: Sequence[int], options: SearchOptions | None
) -> MaskedQueries:
    """Return how `target` is predicted from `source`, each with tokens.

    With options, those of the search that found it, each token is predicted in the last pass that masked it. A given
    translation (None) is predicted token by token with all others seen; by one_shot with `</s>` in the one pass, over
    masks alone.
    """
    if options is not None:
        refinement = trace_refinement(engine, source, target, options)
        length = int(refinement.lengths.tokens[0, refinement.chosen])
        inputs = torch.cat([one.seen[:, :length] for one in refinement.passes])
        last = [int((inputs[:, position] == MASK).nonzero().max()) for position in refinement.places]
        final: list[int] = refinement.passes[-1].tokens.ids[0, :length].tolist()
        return MaskedQueries(inputs, last, refinement.places, final if engine.predicts_length else [MASK] * length)
    count = len(target)
    if engine.predicts_length:
        inputs = torch.tensor([[*target]] * count).masked_fill(torch.eye(count, dtype=torch.bool), MASK)
        return MaskedQueries(inputs, [*range(count)], [*range(count)], [*target])
    canvas = max(engine.canvas(len(source)), count + 1)
    inputs = all_masked(torch.tensor([canvas]), canvas)
    return MaskedQueries(inputs, [0] * (count + 1), [*range(count + 1)], [MASK] * canvas)


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
