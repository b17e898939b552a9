"""A search's cache and step in fixed buffers (`static_buffers`), behind the contract that every search knows.

`TorchEngine` takes this on CUDA. A cache is good for one step: the next is written over it. A batch enters the buffers
after its first step, when its beams are there, and moves to others where it outgrows their room or half of its
sentences have left. On its way it is an ordinary `SearchCache`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transformer_cli.decoding.engines.search_cache import SearchCache
from transformer_cli.decoding.engines.static_buffers import BufferPool, Buffers, Shape
from transformer_cli.model.cache import DecoderCache, KeysValues
from transformer_cli.model.decoder import DecoderOutput


@dataclass(frozen=True)
class Placed:
    """N rows in buffers: of M sentences, W beams each."""

    buffers: Buffers
    rows: Tensor  # (N,) the row of the buffers that each one is
    length: int  # positions decoded so far
    source: Tensor  # (M, S)
    source_mask: Tensor  # (M, 1, 1, S)

    @classmethod
    def enter(cls, buffers: Buffers, cache: SearchCache) -> "Placed":
        """Copy a cache into cleared buffers; it has decoded one position at least."""
        decoder, (M, S) = cache.decoder, cache.source.shape
        W, t = buffers.shape.beams, decoder.length
        for number, (decoded, memory) in enumerate(zip(decoder.decoded, decoder.memory, strict=True)):
            assert decoded is not None, "no step yet"
            by_beam = decoded.both.view(M, W, 2, t, -1).permute(0, 2, 3, 1, 4)  # (M, 2, t, W, E)
            buffers.decoded[number, :M, :, :t] = by_beam
            buffers.memory[number, :M, :, :S] = memory.both
        buffers.source_mask[:M, :, :, :S] = cache.source_mask
        buffers.position.fill_(t)
        rows = torch.arange(M * W, device=cache.source.device)
        return cls(buffers, rows, t, cache.source, cache.source_mask)

    def leave(self) -> SearchCache:
        """A copy of all that these rows hold, outside the buffers."""
        shape, t = self.buffers.shape, self.length
        sentences = self.rows // shape.beams  # (N,)
        past = self.buffers.past.flatten(0, 1)[self.rows, :t].long()  # (N, t)
        positions = torch.arange(t, device=past.device)
        once = sentences[:: shape.beams]  # (M,)
        heads, S = self.buffers.layers[0].self_attention.heads, self.source.size(1)
        decoder = DecoderCache(
            decoded=tuple(
                KeysValues(layer[sentences[:, None], :, positions, past].transpose(1, 2), heads)
                for layer in self.buffers.decoded
            ),
            memory=tuple(KeysValues(layer[once, :, :S], heads) for layer in self.buffers.memory),
            length=t,
        )
        places = torch.arange(len(once), device=past.device).repeat_interleave(shape.beams)
        return SearchCache(decoder, self.source, self.source_mask, places)

    def select(self, rows: Tensor) -> "SearchCache | Placed":
        """The given rows, in the given order. As many rows as there are: each sentence keeps its own, in any order."""
        W = self.buffers.shape.beams
        if len(rows) == len(self.rows):  # which is not looked at: that would wait for the GPU
            self._continue(self.rows, self.rows[rows])
            return self
        sentences, counts = torch.unique_consecutive(rows // W, return_counts=True)
        fewer = self.buffers.shape.holding_sentences(len(sentences)) != self.buffers.shape
        if fewer or not bool((counts == W).all()):
            return self.leave().select(rows)
        # The others leave a hole, in which the step goes on over nothing.
        own = self.rows.view(-1, W)[sentences].flatten()
        self._continue(own, self.rows[rows])
        return replace(self, rows=own, source=self.source[sentences], source_mask=self.source_mask[sentences])

    def _continue(self, rows: Tensor, from_rows: Tensor) -> None:
        """These rows of the buffers go on from those, of the same sentences."""
        if self.buffers.shape.beams > 1:
            past = self.buffers.past.flatten(0, 1)  # (M·W, R)
            past.index_copy_(0, rows, past.index_select(0, from_rows))


@dataclass(frozen=True)
class StaticCache:
    """A batch in buffers, or on its way to some."""

    now: SearchCache | Placed

    def select(self, rows: Tensor) -> "StaticCache":
        """The given rows, in the given order; `rows` (N,) may repeat. See `Placed.select`."""
        return StaticCache(self.now.select(rows))


class StaticSteps:
    """The steps of one search at a time. To be closed, so that its buffers can serve another."""

    def __init__(
        self,
        pool: BufferPool,
        first_step: Callable[[Tensor, SearchCache], tuple[Tensor, SearchCache]],
        generate: Callable[[DecoderOutput, Tensor], Tensor],
    ) -> None:
        """`first_step` is the ordinary one; `generate`: hidden states, source (M, S) → log-probabilities (N, V)."""
        self.pool, self.first_step, self.generate = pool, first_step, generate
        self.taken: Buffers | None = None

    def step(self, tokens: Tensor, cache: StaticCache) -> tuple[Tensor, StaticCache]:
        """Tokens (N,) → log-probabilities (N, V) of the next ones, and the cache to go on with."""
        now = cache.now
        if isinstance(now, SearchCache) and now.decoder.length == 0:
            log_probs, grown = self.first_step(tokens, now)
            return log_probs, StaticCache(grown)
        if isinstance(now, Placed) and now.length == now.buffers.shape.room:
            now = now.leave()
        if isinstance(now, SearchCache):
            now = self._enter(now)
        now.buffers.tokens.index_copy_(0, now.rows, tokens)
        now.buffers.step()
        now = replace(now, length=now.length + 1)
        hidden = now.buffers.hidden.index_select(0, now.rows)[:, None]  # (N, 1, D)
        output = DecoderOutput(hidden, DecoderCache((), (), now.length))
        return self.generate(output, now.source), StaticCache(now)

    def close(self) -> None:
        """Hand back what was taken."""
        if self.taken is not None:
            self.pool.give(self.taken)
            self.taken = None

    def _enter(self, cache: SearchCache) -> Placed:
        M, S = cache.source.shape
        self.close()  # where the cache comes from other buffers, it is a copy
        self.taken = self.pool.take(Shape.holding(M, len(cache.places) // M, cache.decoder.length + 1, S))
        return Placed.enter(self.taken, cache)
