"""The Transformer of *Attention Is All You Need* (Vaswani et al. 2017, figure 1): two verbs, encode and decode.

Training and search both go through them; `forward` is the two in a row, for teacher forcing.
"""

from torch import Tensor, nn

from transformer_cli.model.cache import DecoderCache
from transformer_cli.model.decoder import Decoder, DecoderOutput
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.encoder import Encoder
from transformer_cli.model.generator import Generator


class Transformer(nn.Module):
    """Embeddings, encoder, decoder, generator; `model.build.build_model` puts them together."""

    def __init__(
        self,
        source_embedding: Embedding,
        target_embedding: Embedding,
        encoder: Encoder,
        decoder: Decoder,
        generator: Generator,
    ) -> None:
        super().__init__()
        self.source_embedding = source_embedding
        self.target_embedding = target_embedding
        self.encoder = encoder
        self.decoder = decoder
        self.generator = generator

    @property
    def max_source_length(self) -> int | None:
        """The longest source, `</s>` included, that the position table allows; None: any."""
        return self.source_embedding.positions.max_length

    @property
    def max_target_length(self) -> int | None:
        """The longest target, `<s>` included, that the position table allows; None: any."""
        return self.target_embedding.positions.max_length

    def encode(self, source: Tensor, source_mask: Tensor) -> Tensor:
        """Source ids (B, S), mask (B, 1, 1, S) → memory (B, S, D)."""
        memory: Tensor = self.encoder(self.source_embedding(source), source_mask)[0]  # (B, S, D)
        return memory

    def start_cache(self, memory: Tensor) -> DecoderCache:
        """The cache that a search begins with, over the memory (B, S, D)."""
        return self.decoder.start_cache(memory)

    def decode(
        self,
        target: Tensor,
        memory: Tensor | None,
        source_mask: Tensor,
        cache: DecoderCache | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """Target ids (B, T), each seeing those before it, over the memory (B, S, D) with mask (B, 1, 1, S).

        With a cache, `target` holds only the new positions, and the memory (it is in the cache) may be None.
        """
        if cache is None:
            assert memory is not None, "decoding needs a memory or a cache"
            cache = self.start_cache(memory)
        states = self.target_embedding(target, start=cache.length)  # (B, T, D)
        output: DecoderOutput = self.decoder(states, source_mask, cache, need_weights)
        return output

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> DecoderOutput:
        """Teacher forcing: source ids (B, S), mask (B, 1, 1, S), shifted target ids (B, T) → hidden (B, T, D)."""
        return self.decode(target, self.encode(source, source_mask), source_mask)
