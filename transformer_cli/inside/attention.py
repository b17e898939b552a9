"""What a model attends to as it translates a sentence: the weights of every layer and head.

`tfm plot attention`, `tfm report` and the demo call it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from transformer_cli.data.batch import Batch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.inside.trace import MASKED, check_length, trace_refinement
from transformer_cli.search_options import SearchOptions
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK, all_masked

Weights = npt.NDArray[np.float32]


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
