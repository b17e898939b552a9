"""The engine that runs our own Transformer: search, forced scores and alignments of one batch of token ids.

`Translator` calls it. Source and target ids come and go without specials; the engine adds them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transformer_cli.data.batch import Batch
from transformer_cli.decoding.beam import beam_search
from transformer_cli.decoding.greedy import greedy_search
from transformer_cli.decoding.options import Hypothesis, SearchOptions
from transformer_cli.decoding.sampling import Key, sample
from transformer_cli.errors import UserError
from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.cache import DecoderCache
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.vocabulary import BOS, EOS, PAD

MAX_CELLS = 2**27  # of one tensor over the vocabulary or of attention weights: 512 MB in float32


def choose_device(name: str) -> torch.device:
    """The device called `name`; `auto` is the first there is of cuda, mps, cpu. `UserError` where it is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device {name!r}: unknown; give auto, cpu, cuda or mps") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device {name!r}: not supported; give auto, cpu, cuda or mps")
    count = {"cpu": 1, "mps": int(torch.backends.mps.is_available()), "cuda": torch.cuda.device_count()}[device.type]
    if (device.index or 0) >= count:
        what = "has no such device" if count == 0 else f"has only {count} of them"
        raise UserError(f"device {name!r}: this machine {what}; use --device auto or cpu")
    return device


@dataclass(frozen=True)
class SearchCache:
    """All that a step needs beside the tokens; rows are hypotheses."""

    decoder: DecoderCache
    source: Tensor  # (N, S)
    source_mask: Tensor  # (N, 1, 1, S)
    sentences: Tensor  # (N,) which sentence of the batch a row belongs to

    def select(self, rows: Tensor) -> "SearchCache":
        """The given rows, in the given order. While rows move within their sentences only, the memory stays put."""
        sentences = self.sentences[rows]
        if sentences.shape == self.sentences.shape and torch.equal(sentences, self.sentences):
            decoded = tuple(layer and layer.select(rows) for layer in self.decoder.decoded)
            decoder = DecoderCache(decoded, self.decoder.memory, self.decoder.length)
            return SearchCache(decoder, self.source, self.source_mask, sentences)
        return SearchCache(self.decoder.select(rows), self.source[rows], self.source_mask[rows], sentences)


class TorchEngine:
    """Searches with a Transformer, in evaluation mode whatever mode it is in."""

    def __init__(self, model: Transformer, device: torch.device | str = "cpu") -> None:
        self.model = model.to(device)
        self.device = torch.device(device)
        self.vocabulary_size = model.generator.projection.out_features
        decoder = model.decoder.modules()
        self.attention_heads = sum(module.heads for module in decoder if isinstance(module, MultiHeadAttention))

    @property
    def max_source_length(self) -> int | None:
        """The most source tokens, `</s>` not counted; None: any number."""
        return None if self.model.max_source_length is None else self.model.max_source_length - 1

    @property
    def max_target_length(self) -> int | None:
        """The most target tokens, `</s>` not counted; None: any number."""
        return None if self.model.max_target_length is None else self.model.max_target_length - 1

    def search(
        self, sources: Sequence[Sequence[int]], options: SearchOptions, keys: Sequence[Key] | None = None
    ) -> list[list[Hypothesis]]:
        """The `n_best` hypotheses of each source, best first.

        `keys` seed each source's draws in sampling (default: its place here).
        """
        rows = {"beam": options.beam_size, "greedy": 1, "sample": options.n_best}[options.method]
        keys = [(place,) for place in range(len(sources))] if keys is None else keys
        found = []
        for part in _parts(len(sources), rows * self.vocabulary_size):
            with _evaluating(self.model):
                found += self._search(sources[part], options, keys[part])
        return found

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """log p of each target token and of `</s>` after them, given the source and the target tokens before it."""
        scores: list[list[float]] = []
        longest = 1 + max(map(len, targets), default=0)
        for part in _parts(len(sources), longest * self.vocabulary_size):
            batch = Batch.from_ids(list(zip(sources[part], targets[part], strict=True))).to(self.device)
            with _evaluating(self.model):
                output = self.model(batch.source, batch.source_mask, batch.target_input)
                log_probs = self.model.generator(output, batch.source)  # (B, T, V)
                chosen = log_probs.gather(2, batch.target_output[:, :, None])[:, :, 0]  # (B, T)
            scores += [row[: len(target) + 1] for row, target in zip(chosen.tolist(), targets[part], strict=True)]
        return scores

    def align(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[int]]:
        """For each target token, the position of the source token that the decoder attends to most as it predicts it.

        The mean over the heads of the last layer counts; `</s>` of the source is no choice. Needs no empty source.
        """
        alignments: list[list[int]] = []
        longest = max(map(len, targets), default=0) * (1 + max(map(len, sources), default=0))
        for part in _parts(len(sources), longest * self.attention_heads):
            # The last token is predicted from those before it: it need not go in.
            batch = Batch.from_ids(
                [(source, target[:-1]) for source, target in zip(sources[part], targets[part], strict=True)]
            ).to(self.device)
            with _evaluating(self.model):
                memory = self.model.encode(batch.source, batch.source_mask)
                output = self.model.decode(batch.target_input, memory, batch.source_mask, need_weights=True)
                weights = output.cross_attention[-1].mean(dim=1)  # (B, T, S)
                words = (batch.source != PAD) & (batch.source != EOS)  # (B, S)
                best = weights.masked_fill(~words[:, None, :], -1.0).argmax(dim=-1)  # (B, T)
            alignments += [row[: len(target)] for row, target in zip(best.tolist(), targets[part], strict=True)]
        return alignments

    def _search(
        self, sources: Sequence[Sequence[int]], options: SearchOptions, keys: Sequence[Key]
    ) -> list[list[Hypothesis]]:
        limits = [self._limit(options, len(source)) for source in sources]
        cache = self._start(sources)
        if options.method == "sample":
            draws = options.n_best
            repeated = torch.arange(len(sources), device=self.device).repeat_interleave(draws)
            drawn = sample(
                self._step,
                cache.select(repeated) if draws > 1 else cache,
                [limit for limit in limits for _ in range(draws)],
                options,
                [(*key, draw) for key in keys for draw in range(draws)],
                self.device,
            )
            groups = [drawn[place : place + draws] for place in range(0, len(drawn), draws)]
            return [sorted(group, key=lambda hypothesis: -hypothesis.score) for group in groups]
        if options.method == "greedy" or (options.beam_size == 1 and options.stopping == "first"):
            return [[one] for one in greedy_search(self._step, cache, limits, options, self.device)]
        return beam_search(self._step, cache, limits, options, self.device)

    def _limit(self, options: SearchOptions, source_length: int) -> int:
        limit = options.length_limit(source_length)
        return limit if self.max_target_length is None else max(1, min(limit, self.max_target_length))

    def _start(self, sources: Sequence[Sequence[int]]) -> SearchCache:
        """Encode a batch; one row a sentence."""
        rows = [torch.tensor([*source, EOS]) for source in sources]
        source = pad_sequence(rows, batch_first=True, padding_value=PAD).to(self.device)  # (B, S)
        source_mask = padding_mask(source)
        decoder = self.model.start_cache(self.model.encode(source, source_mask))
        return SearchCache(decoder, source, source_mask, torch.arange(len(sources), device=self.device))

    def _step(self, tokens: Tensor, cache: SearchCache) -> tuple[Tensor, SearchCache]:
        """The pure step of every search: tokens (N,) → log-probabilities (N, V) of the next ones, grown cache."""
        output = self.model.decode(tokens[:, None], None, cache.source_mask, cache.decoder)
        log_probs = self.model.generator(output, cache.source)[:, -1]  # (N, V)
        log_probs[:, PAD] = log_probs[:, BOS] = -torch.inf  # no translation holds them
        return log_probs, SearchCache(output.cache, cache.source, cache.source_mask, cache.sentences)


def _parts(count: int, cells_each: int) -> Iterator[slice]:
    """Cut `count` rows so that no part needs tensors of more than MAX_CELLS cells (or it is a single row)."""
    rows = max(1, MAX_CELLS // max(1, cells_each))
    return (slice(first, first + rows) for first in range(0, count, rows))


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout and no gradients inside; after it, the mode as before."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)
