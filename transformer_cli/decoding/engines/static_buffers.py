"""A decoder's step in buffers of one fixed shape, which a GPU records once and replays: a CUDA graph.

A step is a hundred small kernels and more, and to launch one takes longer than most of them run. `static_step` lends
these buffers to searches. Shapes: M sentences, W beams of each, room for R target and S source positions, L layers,
D d_model, E heads × head_dim.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from transformer_cli.model.cache import KeysValues
from transformer_cli.model.layers import DecoderLayer
from transformer_cli.model.transformer import Transformer

WARM_UPS = 2  # steps before the one that is recorded: libraries set themselves up in the first
SENTENCES, ROOM, SOURCE = 8, 32, 16  # the least of each that buffers are made for


class Shape(NamedTuple):
    """Sizes, all but the beams rounded up, so that few shapes serve all batches."""

    sentences: int  # M
    beams: int  # W
    room: int  # R
    source: int  # S

    @classmethod
    def holding(cls, sentences: int, beams: int, room: int, source: int) -> "Shape":
        """The smallest that holds so much: powers of two."""
        return cls(_power_of_two(sentences, SENTENCES), beams, _power_of_two(room, ROOM), _power_of_two(source, SOURCE))

    def holding_sentences(self, sentences: int) -> "Shape":
        """The same for so many sentences."""
        return self.holding(sentences, self.beams, self.room, self.source)


class Buffers:
    """What a step reads and writes, all of it in place.

    Beams never move: each keeps its place among a sentence's W · R keys and values, whichever beam it continues, and a
    table says at which place each position of its past lies. All beams of a sentence attend to all places, masked.
    """

    def __init__(self, model: Transformer, shape: Shape) -> None:
        self.model, self.shape = model, shape
        self.layers = cast(Sequence[DecoderLayer], model.decoder.layers)
        M, W, R, S = shape
        table = model.target_embedding.tokens.table.weight
        attention = self.layers[0].self_attention
        L, D, E = len(self.layers), table.size(1), attention.heads * attention.head_dim
        self.tokens = table.new_zeros(M * W, dtype=torch.long)
        self.position = table.new_zeros(1, dtype=torch.long)
        self.decoded = table.new_zeros(L, M, 2, R, W, E)  # keys, values
        self.past = table.new_zeros(M, W, R, dtype=torch.int32)  # the beam at whose place each position lies
        self.memory = table.new_zeros(L, M, 2, S, E)
        self.source_mask = table.new_zeros(M, 1, 1, S, dtype=torch.bool)
        self.hidden = table.new_zeros(M * W, D)
        longest = model.max_target_length
        self.positions = model.target_embedding.positions(0, R if longest is None else min(R, longest))  # (≤ R, D)
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def bytes(self) -> int:
        """The memory it takes, roughly."""
        return self.decoded.nbytes + self.memory.nbytes

    def step(self) -> None:
        """Tokens at a position → hidden states; the position moves on."""
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def record(self, pool: Any) -> None:
        """Have the GPU record the step; its intermediate results lie in the memory `pool`."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # others may go on meanwhile
            self._step()
        self.graph = graph

    def clear(self) -> None:
        """Forget all; what a masked place holds counts nothing, but it must be a number."""
        for buffer in (self.decoded, self.memory, self.hidden, self.tokens, self.position):
            buffer.zero_()
        self.past.copy_(torch.arange(self.shape.beams, device=self.past.device)[:, None])
        self.source_mask.zero_()
        self.source_mask[..., 0] = True  # idle sentences: no row may be all False

    def _step(self) -> None:
        M, W, R, _ = self.shape
        beams = torch.arange(W, device=self.past.device)
        self.past.index_copy_(2, self.position, beams.to(self.past.dtype)[None, :, None].expand(M, W, 1))
        reached = torch.arange(R, device=beams.device) <= self.position
        mask = (self.past[..., None] == beams) & reached[:, None]  # (M, W, R, W)
        mask = mask.view(M, 1, W, R * W)
        states = self.model.target_embedding.tokens(self.tokens[:, None])  # (M·W, 1, D)
        states = states + self.positions.index_select(0, self.position)
        for layer, decoded, memory in zip(self.layers, self.decoded, self.memory, strict=True):
            states = self._layer(layer, states, decoded, mask, memory)
        self.hidden.copy_(self.model.decoder.norm(states)[:, 0])
        self.position.add_(1)

    def _layer(self, layer: DecoderLayer, states: Tensor, decoded: Tensor, mask: Tensor, memory: Tensor) -> Tensor:
        """`DecoderLayer.forward` of one position, but that it writes into `decoded` (M, 2, R, W, E)."""
        M, W = self.shape.sentences, self.shape.beams
        heads = layer.self_attention.heads
        seen = layer.self_attention_residual.enter(states)
        new = layer.self_attention.keys_values(seen).both  # (M·W, 2, 1, E)
        decoded.index_copy_(2, self.position, new.view(M, W, 2, 1, -1).permute(0, 2, 3, 1, 4))
        change, _ = layer.self_attention(seen, KeysValues(decoded.flatten(2, 3), heads), mask)
        states = layer.self_attention_residual.leave(states, change)  # (M·W, 1, D)

        seen = layer.cross_attention_residual.enter(states)
        change, _ = layer.cross_attention(seen, KeysValues(memory, heads), self.source_mask)
        states = layer.cross_attention_residual.leave(states, change)

        change = layer.feed_forward(layer.feed_forward_residual.enter(states))
        return layer.feed_forward_residual.leave(states, change)


class BufferPool:
    """The buffers of a model, by shape. Each serves one search at a time; several threads may take and give."""

    def __init__(self, model: Transformer, device: torch.device) -> None:
        self.model, self.device = model, device
        self.kept: list[Buffers] = []  # idle, the longest unused first
        self.lock = threading.Lock()
        self.most = 2**30  # bytes to keep
        self.graph_memory: Any = None
        if device.type == "cuda":
            self.most = torch.cuda.get_device_properties(device).total_memory // 4
            self.graph_memory = torch.cuda.graph_pool_handle()

    def take(self, shape: Shape) -> Buffers:
        """Buffers of this shape, cleared; on CUDA with their step recorded."""
        with self.lock:
            buffers = next((each for each in reversed(self.kept) if each.shape == shape), None)
            if buffers is not None:
                self.kept.remove(buffers)
            else:
                buffers = Buffers(self.model, shape)
                buffers.clear()
                if self.device.type == "cuda":
                    with torch.cuda.device(self.device):
                        buffers.record(self.graph_memory)
        buffers.clear()
        return buffers

    def give(self, buffers: Buffers) -> None:
        """Hand them back."""
        with self.lock:
            self.kept.append(buffers)
            while sum(each.bytes for each in self.kept) > self.most:
                self.kept.pop(0)


def _power_of_two(number: int, least: int) -> int:
    """The smallest that is neither below `number` nor below `least`, a power of two itself."""
    return max(least, 1 << (number - 1).bit_length())
