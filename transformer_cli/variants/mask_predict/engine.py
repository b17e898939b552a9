"""The engine that runs our non-autoregressive Transformer: search, forced scores and alignments of one batch of ids.

`Translator` calls it as it does `TorchEngine`. Source and target ids come and go without specials.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from transformer_cli.decoding.devices import use_quick_attention
from transformer_cli.decoding.engines.protocol import (
    UNCONSTRAINED,
    Hypothesis,
    SearchBatch,
    TokenConstraints,
    own_sources,
)
from transformer_cli.decoding.engines.torch_engine import (
    MAX_CELLS,
    check_attention,
    evaluating,
    padded_rows,
    search_in_threads,
    without_special,
)
from transformer_cli.decoding.search.dispatch import parts
from transformer_cli.decoding.search.greedy import accumulation_dtype
from transformer_cli.errors import UserError
from transformer_cli.model.attention import DecoderCache
from transformer_cli.model.layers import DecoderLayer
from transformer_cli.model.masks import padding_mask
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import EOS, PAD
from transformer_cli.variants.mask_predict.model import (
    MASK,
    NonAutoregressiveTransformer,
    all_masked,
    canvas_length,
    length_class,
)
from transformer_cli.variants.mask_predict.search import (
    Lengths,
    Pass,
    RefinementTrace,
    best_hypotheses,
    cut,
    likely_lengths,
    mask_predict,
    one_shot,
    trace_candidates,
    without_repeats,
)

Rows = Sequence[Sequence[int]]

MASKED_OF = 4  # for alignments one token of so many in a row is masked at a time, and its attention read


class NonAutoregressiveEngine:
    """Searches with a non-autoregressive Transformer, in evaluation mode whatever mode it is in; see `Engine`."""

    name = "torch"

    def __init__(self, model: NonAutoregressiveTransformer, device: torch.device | str = "cpu") -> None:
        use_quick_attention(torch.device(device))
        self.model = model.to(device)
        self.device = torch.device(device)
        self.vocabulary_size = model.generator.projection.out_features
        layers = cast(Sequence[DecoderLayer], model.decoder.layers)
        self.layers, self.heads = len(layers), layers[0].cross_attention.heads

    @property
    def predicts_length(self) -> bool:
        """Whether the model is a `mask_predict` one, which predicts the length first; `one_shot` writes `</s>`."""
        return self.model.length_predictor is not None

    @property
    def max_source_length(self) -> int | None:
        """The most source tokens that the model takes."""
        return without_special([self.model.max_source_length])

    @property
    def max_target_length(self) -> int | None:
        """The most target tokens that the model takes."""
        return without_special([self.model.max_target_length])

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
        """Yield the hypotheses of each batch, in order; mask_predict has at most `length_candidates` of a source.

        Beams are ignored, and keys, since nothing is drawn. `no_repeat_ngram` leaves tokens out afterwards. Raises
        `UserError` for what cannot be done at once: draws, constraints, coverage, diversity.
        """
        return search_in_threads(lambda batch: self._search(batch, options), [self.model], batches, self.device)

    def _search(self, batch: SearchBatch, options: SearchOptions) -> list[list[Hypothesis]]:
        self._check(options, batch.constraints)
        found: list[list[Hypothesis]] = []
        for part in parts(len(batch.sources), self._cells(batch.sources, options), MAX_CELLS):
            lengths, limits, passes = self._begin(batch.sources[part], options)
            (last,) = deque(passes, maxlen=1)  # none of the others is kept
            if self.predicts_length:
                found += best_hypotheses(last.tokens, lengths, options)
            else:
                found += cut(last.tokens, limits, options)
        return found

    def score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        """Return log p of each target token where all are masked, and after them of what ends the target.

        That is `</s>` (one_shot), or the length (mask_predict), before which the tokens of a target do not depend on
        each other: the sum is the log-probability of a translation in one pass.
        """
        scores: list[list[float]] = []
        longest = 1 + max(map(len, targets), default=0)
        for part in parts(len(sources), longest * self.vocabulary_size, MAX_CELLS):
            with evaluating(self.model), torch.inference_mode():
                scores += self._score(sources[part], targets[part])
        return scores

    def align(
        self,
        sources: Rows,
        targets: Rows,
        layer: int = -1,
        heads: Sequence[int] | None = None,
        skip: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """Return places as `Engine.align` does, by the attention with which each target token is predicted.

        Every fourth token is masked at a time, and the others seen (mask_predict), or all are masked (one_shot).
        """
        check_attention(self.layers, layer, self.heads, heads)
        skip = skip or [0] * len(sources)
        alignments: list[list[int]] = []
        longest = max(map(len, targets), default=0) * (1 + max(map(len, sources), default=0))
        for part in parts(len(sources), MASKED_OF * longest * self.layers * self.heads, MAX_CELLS):
            with evaluating(self.model), torch.inference_mode():
                tables = self._attend(sources[part], targets[part], layer, heads).cpu().numpy()  # (B, T, S)
            alignments += [
                own_sources(table[: len(target), first : len(source)])
                for table, source, target, first in zip(tables, sources[part], targets[part], skip[part], strict=True)
            ]
        return alignments

    def trace(self, source: Sequence[int], options: SearchOptions) -> RefinementTrace:
        """Return the search of one source, which has tokens, pass by pass. Raises `UserError` as `search` does."""
        self._check(options, None)
        with evaluating(self.model), torch.inference_mode():
            lengths, limits, found = self._begin([source], options)
            passes = list(found)
            if self.predicts_length:
                return trace_candidates(passes, lengths, options)
            (hypothesis,) = cut(passes[-1].tokens, limits, options)[0]
            ids = passes[-1].tokens.ids[0].tolist()
            places = without_repeats(ids[: ids.index(EOS)] if EOS in ids else ids, options.no_repeat_ngram)
            end = [ids.index(EOS)] if hypothesis.ended else []
            return RefinementTrace(lengths, 0, passes, [*places[: len(hypothesis.ids)], *end], hypothesis)

    def attention(
        self, source: Sequence[int], seen: Tensor, passes: Sequence[int], places: Sequence[int]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the decoder's self- and cross-attention of each layer where T tokens are predicted.

        Source with tokens; `seen` (P, T') ids, `MASK` in places, as `Pass` has them; for each token which of these P
        passes predicts it, and at which place. → (1, H, T, T') and (1, H, T, S) for each layer
        """
        seen, heads, count = seen.to(self.device), self.heads, len(places)
        with evaluating(self.model), torch.inference_mode():
            _, source_mask, memory, cache = self._encode([source])
            own = [memory.new_zeros(1, heads, count, seen.size(1)) for _ in range(self.layers)]
            cross = [memory.new_zeros(1, heads, count, memory.size(1)) for _ in range(self.layers)]
            for number in sorted(set(passes)):
                tokens = [token for token, one in enumerate(passes) if one == number]
                rows = [places[token] for token in tokens]
                output = self.model.decode(seen[number : number + 1], None, source_mask, cache, need_weights=True)
                for filled, layers in ((own, output.self_attention), (cross, output.cross_attention)):
                    for weights, new in zip(filled, layers, strict=True):
                        weights[:, :, tokens] = new[:, :, rows]
        return own, cross

    def _begin(self, sources: Rows, options: SearchOptions) -> tuple[Lengths, list[int], Iterator[Pass]]:
        """Return the lengths tried for each source, the most tokens that it may get, and the passes to come."""
        source, source_mask, memory, cache = self._encode(sources)
        most = self.max_target_length
        limits = [options.length_limit(len(one)) for one in sources]
        limits = limits if most is None else [min(limit, max(1, most)) for limit in limits]
        least, projection = max(1, options.min_length), self.model.generator.projection

        def decode(target: Tensor) -> Tensor:
            return self.model.decode(target, None, source_mask, cache).hidden

        source_lengths = (source != PAD).sum(dim=1) - 1
        if not self.predicts_length:
            canvases = self._canvases(source_lengths)
            limits = [min(limit, canvas) for limit, canvas in zip(limits, canvases.tolist(), strict=True)]
            certain = torch.zeros_like(canvases, dtype=torch.float32)[:, None]
            return Lengths(canvases[:, None], certain), limits, iter([one_shot(decode, projection, canvases, least)])
        lengths = likely_lengths(
            self.model.predict_lengths(memory, source_mask),
            source_lengths,
            torch.tensor(limits, device=self.device),
            least,
            options.length_candidates,
        )
        return lengths, limits, mask_predict(decode, projection, lengths.tokens.flatten(), options.iterations)

    def _encode(self, sources: Rows) -> tuple[Tensor, Tensor, Tensor, DecoderCache]:
        """Return source ids (B, S), their mask, the memory, and its keys and values."""
        source = padded_rows([*source, EOS] for source in sources).to(self.device)
        source_mask = padding_mask(source)
        memory = self.model.encode(source, source_mask)
        return source, source_mask, memory, self.model.start_cache(memory)

    def canvas(self, source_length: int) -> int:
        """Return how many positions one_shot writes for a source of so many tokens, `</s>` not counted."""
        return int(self._canvases(torch.tensor(source_length)))

    def _canvases(self, source_lengths: Tensor) -> Tensor:
        """Return how long the outputs of one_shot are before they are cut. (B,) → (B,)"""
        lengths, most = canvas_length(source_lengths), self.model.max_target_length
        return lengths if most is None else lengths.clamp(max=most)

    def _score(self, sources: Rows, targets: Rows) -> list[list[float]]:
        source, source_mask, memory, cache = self._encode(sources)
        source_lengths = (source != PAD).sum(dim=1) - 1
        lengths = torch.tensor([len(target) for target in targets], device=self.device)
        wanted = padded_rows([*target, EOS] for target in targets).to(self.device)  # (B, T + 1)
        masked = lengths
        if not self.predicts_length:
            masked = self._canvases(source_lengths).maximum(lengths + 1)
        canvas = all_masked(masked, max(int(masked.max()), wanted.size(1)))
        output = self.model.decode(canvas, None, source_mask, cache)
        logits = self.model.generator.projection(output.hidden[:, : wanted.size(1)])  # (B, T + 1, V)
        values = (
            logits.log_softmax(dim=2, dtype=accumulation_dtype(logits.dtype))
            .gather(2, wanted[:, :, None])[:, :, 0]
            .tolist()
        )
        rows: list[list[float]] = [row[: len(target) + 1] for row, target in zip(values, targets, strict=True)]
        if self.predicts_length:
            classes = length_class(lengths, source_lengths)[:, None]
            ends = self.model.predict_lengths(memory, source_mask).gather(1, classes)[:, 0].tolist()
            rows = [[*row[:-1], end] for row, end in zip(rows, ends, strict=True)]
        return rows

    def _attend(self, sources: Rows, targets: Rows, layer: int, heads: Sequence[int] | None) -> Tensor:
        """Return the attention of each target token as it is predicted, the mean over the heads. → (B, T, S)"""
        source, source_mask, _, cache = self._encode(sources)
        target = padded_rows(targets).to(self.device)  # (B, T)
        places, length = torch.arange(target.size(1), device=self.device), target.size(1)
        if not self.predicts_length:
            lengths = self._canvases((source != PAD).sum(dim=1) - 1).maximum((target != PAD).sum(dim=1))
            inputs = [(all_masked(lengths, max(int(lengths.max()), length)), places >= 0)]
        else:
            shares = [places % MASKED_OF == one for one in range(MASKED_OF)]
            inputs = [(target.masked_fill(share & (target != PAD), MASK), share) for share in shares]
        weights = torch.zeros(len(target), length, source.size(1), dtype=torch.float64, device=self.device)
        for ids, masked in inputs:
            output = self.model.decode(ids, None, source_mask, cache, need_weights=True)
            chosen = output.cross_attention[layer] if heads is None else output.cross_attention[layer][:, heads]
            weights += chosen.mean(dim=1)[:, :length] * masked[:, None]
        return weights

    def _cells(self, sources: Rows, options: SearchOptions) -> int:
        """Return the cells of the largest tensor that a sentence needs, with room: states of the positions written."""
        rows = 1 if not self.predicts_length else options.length_candidates
        longest = max(map(len, sources), default=0)
        positions = max(options.length_limit(longest), int(canvas_length(torch.tensor(longest))))
        width = self.model.target_embedding.tokens.table.embedding_dim
        return rows * positions * max(8 * width, self.heads * positions)

    def _check(self, options: SearchOptions, constraints: Sequence[TokenConstraints] | None) -> None:
        """Raise `UserError` for what takes a model that writes token after token."""
        wishes = {
            "sampling": options.method == "sample",
            "diverse beam search": options.diversity_groups > 1,
            "the coverage penalty": options.coverage_penalty > 0,
            "a prefix, or words that must or must not appear": any(one != UNCONSTRAINED for one in constraints or ()),
        }
        for name, wished in wishes.items():
            if wished:
                raise UserError(f"{name}: not with a model that writes all tokens at once; leave it out")
        most = 1 if not self.predicts_length else options.length_candidates
        if options.n_best > most:
            how = "one_shot finds one translation" if most == 1 else f"{most} length candidates find no more than that"
            raise UserError(f"n-best {options.n_best}: {how}; lower it, or raise the length candidates")
