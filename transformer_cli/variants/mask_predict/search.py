"""Mask-predict (Ghazvininejad et al. 2019, §3): all tokens at once, then again those that the model is least sure of.

And the plain way, one long output that ends at its first `</s>`. `NonAutoregressiveEngine` calls both. Shapes: B
sentences, K lengths tried for each, N = B · K rows, T positions of the longest row, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transformer_cli.decoding.engines.protocol import Hypothesis
from transformer_cli.decoding.search.greedy import accumulation_dtype
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.variants.mask_predict.model import LENGTH_SPAN, MASK, all_masked

CHUNK_LOGITS = {"cpu": 2**22, "cuda": 2**27}  # logits that stand in memory at once

Decode = Callable[[Tensor], Tensor]  # ids (N, T), masked in places → hidden states (N, T, D)


@dataclass(frozen=True)
class Tokens:
    """The token at each position, and how probable it was when it was last predicted."""

    ids: Tensor  # (N, T) masked in places, padded
    log_probability: Tensor  # (N, T) of masks and padding 0

    def filled(self, places: Tensor, projection: nn.Linear, hidden: Tensor, forbidden: Sequence[int]) -> "Tokens":
        """Put the likeliest token at these places (N, T), by the hidden states (N, T, D); none of the forbidden."""
        ids, values = best_tokens(projection, hidden[places], forbidden)
        return Tokens(self.ids.masked_scatter(places, ids), self.log_probability.masked_scatter(places, values))

    def row(self, row: int) -> "Tokens":
        """Return one row alone, (1, T)."""
        return Tokens(self.ids[row : row + 1], self.log_probability[row : row + 1])


def blank(lengths: Tensor, dtype: torch.dtype) -> Tokens:
    """Return masks of the given lengths, (N,); log-probabilities get this type, or float32 if that is wider."""
    ids = all_masked(lengths, int(lengths.max()))
    return Tokens(ids, torch.zeros(ids.shape, dtype=accumulation_dtype(dtype), device=ids.device))


class Pass(NamedTuple):
    """What the decoder saw, and what it made of it."""

    seen: Tensor  # (N, T) ids, `MASK` where a token was predicted
    tokens: Tokens


def mask_predict(decode: Decode, projection: nn.Linear, lengths: Tensor, iterations: int) -> Iterator[Pass]:
    """Yield so many passes over rows of given lengths (N,), each 1 or more.

    Each pass predicts what is masked, and leaves the rest. The first masks all; pass t + 1 of n masks of a row of T
    tokens those ⌊T (n - t) / n⌋ with the least probability (§3.1). Where no row has any left, it ends early.
    """
    tokens = blank(lengths, projection.weight.dtype)
    masked = real = tokens.ids != PAD
    for done in range(iterations):
        if done:
            masked = least_sure(tokens.log_probability, real, masked_count(lengths, done, iterations))
            if not masked.any():
                break
        seen = tokens.ids.masked_fill(masked, MASK)
        tokens = tokens.filled(masked, projection, decode(seen), (PAD, BOS, EOS))
        yield Pass(seen, tokens)


def masked_count(lengths: Tensor, done: int, iterations: int) -> Tensor:
    """Return how many tokens of rows of these lengths are masked after `done` passes: ⌊T (n - t) / n⌋. (N,) → (N,)"""
    return lengths * (iterations - done) // iterations


def least_sure(log_probability: Tensor, real: Tensor, count: Tensor) -> Tensor:
    """Return in each row the `count` (N,) real positions (N, T) with the least log-probability. → (N, T)"""
    order = log_probability.masked_fill(~real, torch.inf).argsort(dim=1, stable=True)
    places = torch.arange(order.size(1), device=order.device)
    return torch.zeros_like(real).scatter_(1, order, places < count[:, None])


def best_tokens(projection: nn.Linear, hidden: Tensor, forbidden: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the likeliest allowed token at each hidden state (M, D), and its log-probability; (M,) each."""
    tokens, values = [], []
    rows = max(1, CHUNK_LOGITS.get(hidden.device.type, 2**24) // projection.out_features)
    for start in range(0, len(hidden), rows):
        some = hidden[start : start + rows]
        logits = projection(some)  # (m, V)
        logits = logits.to(accumulation_dtype(logits.dtype))
        normaliser = logits.logsumexp(dim=1)
        for token in forbidden:  # a column each: an index of all would be one more tensor to bring to the device
            logits[:, token] = -torch.inf
        best, which = logits.max(dim=1)
        tokens.append(which)
        values.append(best - normaliser)
    return torch.cat(tokens), torch.cat(values)


class Lengths(NamedTuple):
    """The lengths that are tried for each sentence, best first; where there are fewer, the best comes again."""

    tokens: Tensor  # (B, K)
    log_probability: Tensor  # (B, K)

    def candidate(self, which: int) -> "Lengths":
        """Return one of the K alone, (B, 1)."""
        return Lengths(self.tokens[:, which : which + 1], self.log_probability[:, which : which + 1])


def likely_lengths(log_probability: Tensor, source_lengths: Tensor, limits: Tensor, least: int, count: int) -> Lengths:
    """Return the K ≤ `count` likeliest target lengths of each sentence, from `least` to its limit.

    Log-probabilities of `length_class` (B, classes), source lengths and limits (B,).
    """
    differences = torch.arange(log_probability.size(1), device=log_probability.device) - LENGTH_SPAN
    lengths = source_lengths[:, None] + differences  # (B, classes)
    allowed = (lengths >= least) & (lengths <= limits[:, None])
    values, which = log_probability.masked_fill(~allowed, -torch.inf).topk(min(count, lengths.size(1)), dim=1)
    missing = values == -torch.inf  # all but the limit itself, where the source is that much longer
    chosen = lengths.gather(1, which).minimum(limits[:, None]).clamp(min=least)
    values = log_probability.gather(1, which)
    return Lengths(torch.where(missing, chosen[:, :1], chosen), torch.where(missing, values[:, :1], values))


def best_hypotheses(tokens: Tokens, lengths: Lengths, options: SearchOptions) -> list[list[Hypothesis]]:
    """Return the `n_best` of the candidates of each sentence, by score; rows (B · K), each length counted once.

    log p is that of each token when it was last predicted, beside the other tokens of then, and of the length, in the
    place of `</s>`: by their tokens alone, short candidates would win that leave out what is hard to say.
    """
    found: list[list[Hypothesis]] = []
    rows = iter(zip(tokens.ids.tolist(), tokens.log_probability.tolist(), strict=True))
    for candidates in zip(lengths.tokens.tolist(), lengths.log_probability.tolist(), strict=True):
        by_length = {
            length: hypothesis(ids[:length], [*values[:length], end], True, options)
            for length, end, (ids, values) in zip(*candidates, rows, strict=False)
        }
        found.append(sorted(by_length.values(), key=lambda one: -one.score)[: options.n_best])
    return found


class RefinementTrace(NamedTuple):
    """A search of one sentence, pass by pass."""

    lengths: Lengths  # that were tried, (1, K)
    chosen: int  # whose translation won
    passes: list[Pass]  # those that wrote some of it, of that one alone: (1, T)
    places: list[int]  # of the T that the translation is made of; the others repeat, or are behind its end
    hypothesis: Hypothesis


def trace_candidates(passes: Sequence[Pass], lengths: Lengths, options: SearchOptions) -> RefinementTrace:
    """Return which of the K candidates of one sentence won, and the passes that wrote it."""
    found = [
        best_hypotheses(passes[-1].tokens.row(which), lengths.candidate(which), options)[0][0]
        for which in range(lengths.tokens.size(1))
    ]
    scores = [one.score for one in found]
    won = scores.index(max(scores))
    own = [Pass(one.seen[won : won + 1], one.tokens.row(won)) for one in passes]
    written = own[-1].tokens.ids[0, : int(lengths.tokens[0, won])].tolist()
    writing = [one for one in own if (one.seen == MASK).any()]
    return RefinementTrace(lengths, won, writing, without_repeats(written, options.no_repeat_ngram), found[won])


def one_shot(decode: Decode, projection: nn.Linear, lengths: Tensor, least: int) -> Pass:
    """Run the one pass that writes canvases of the given lengths, (N,), in full; no `</s>` before `least` tokens."""
    tokens = blank(lengths, projection.weight.dtype)
    seen, hidden, real = tokens.ids, decode(tokens.ids), tokens.ids != PAD
    may_end = torch.arange(real.size(1), device=real.device) >= least
    for places, forbidden in ((real & ~may_end, (PAD, BOS, EOS)), (real & may_end, (PAD, BOS))):
        if places.any():
            tokens = tokens.filled(places, projection, hidden, forbidden)
    return Pass(seen, tokens)


def cut(tokens: Tokens, limits: Sequence[int], options: SearchOptions) -> list[list[Hypothesis]]:
    """Return what each canvas holds before its first `</s>`, or up to its limit."""
    found = []
    for ids, values, limit in zip(tokens.ids.tolist(), tokens.log_probability.tolist(), limits, strict=True):
        end = ids.index(EOS) if EOS in ids else len(ids)
        ended = end <= limit and EOS in ids
        kept = min(end, limit)
        found.append([hypothesis(ids[:kept], values[: kept + ended], ended, options)])
    return found


def hypothesis(ids: list[int], values: list[float], ended: bool, options: SearchOptions) -> Hypothesis:
    """Return the hypothesis of these tokens and log-probabilities, that of `</s>` last if they have one.

    Tokens that are written together cannot avoid repeats: these are left out afterwards, see `without_repeats`.
    """
    if options.no_repeat_ngram:
        kept = without_repeats(ids, options.no_repeat_ngram)
        ids, values = [ids[place] for place in kept], [values[place] for place in kept] + values[len(ids) :]
    value = sum(values)
    return Hypothesis(ids, value / options.penalty(len(ids)), value, ended)


def without_repeats(ids: Sequence[int], size: int) -> list[int]:
    """Return the places of the tokens that stay if each that would complete a sequence of `size` once more is left out.

    `size` 0: all of them.
    """
    if not size:
        return [*range(len(ids))]
    seen: set[tuple[int, ...]] = set()
    kept: list[int] = []
    for place, token in enumerate(ids):
        gram = (*(ids[before] for before in kept[len(kept) - size + 1 :]), token) if len(kept) >= size - 1 else ()
        if gram and gram in seen:
            continue
        seen.add(gram)
        kept.append(place)
    return kept
