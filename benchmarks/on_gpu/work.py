"""What all parts measure with: the device, the shape of the model, the sentences. `gpu.py` makes it."""

import torch
from batches import MULTI30K, WMT, generate_sentences
from contenders.train_tfm import model_config
from shape import Shape, training_flops
from training import make_batches

from transformer_cli.build import build_model
from transformer_cli.model.transformer import Transformer

BASE = Shape(layers=6, d_model=512, d_ff=2048, heads=8, vocabulary=37_000)
SMALL = Shape(layers=1, d_model=32, d_ff=64, heads=2, vocabulary=500)


class Work:
    """The paper's base model at about 25,000 + 25,000 tokens per update; `small`, next to nothing."""

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.small = torch.device(device), small
        self.shape = SMALL if small else BASE
        self.updates = 4 if small else 40  # measured, in 4 rounds
        lengths, tokens = (MULTI30K, 1000) if small else (WMT, 25_000)
        self.pairs = generate_sentences(2_000 if small else 60_000, self.shape.vocabulary, lengths)
        self.batches, self.batch_tokens = make_batches(self.pairs, tokens, self.updates)
        self.target_tokens = sum(len(target) + 1 for batch in self.batches for _, target in batch)
        self.flops = training_flops(self.shape, [(len(s) + 1, len(t) + 1) for batch in self.batches for s, t in batch])
        self.peaks: list[float] = []  # operations per second in bf16 products, as often as measured

    def model(self) -> Transformer:
        """tfm's own, freshly drawn."""
        torch.manual_seed(1)
        return build_model(model_config(self.shape), self.shape.vocabulary, self.shape.vocabulary).to(self.device)
