"""`model.decode` and the generator as they are, one position at a time: for models that `LeanDecoder` does not know."""

from torch import Tensor

from transformer_cli.model.cache import DecoderCache
from transformer_cli.model.decoder import DecoderOutput
from transformer_cli.model.transformer import Transformer


class WholeDecoder:
    """A model's decoder and generator, for the steps of `TorchEngine`; they answer as `LeanDecoder` does."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def log_probabilities(self, output: DecoderOutput, source: Tensor) -> Tensor:
        """What the generator makes of hidden states (N, 1, D), source ids (M, S) → (N, columns), float32 or wider."""
        log_probs: Tensor = self._model.generator(output, source)
        return log_probs[:, 0].contiguous()  # a search reads a batch as one row; copying leaves a column out

    def step(self, tokens: Tensor, source_mask: Tensor, cache: DecoderCache) -> DecoderOutput:
        """Tokens (N,) that follow what the cache holds, mask (M, 1, 1, S) → hidden (N, 1, D), grown cache."""
        return self._model.decode(tokens[:, None], None, source_mask, cache)
