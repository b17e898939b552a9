"""Training speed against `torch.nn.Transformer` in a plain loop: the same shape, batches and optimiser, interleaved.

    python benchmarks/bench_training.py [--device cuda] [--precision bf16] [--threads 2] [--rounds 12]

Prints target tokens a second (padding not counted), the median and the range of all rounds, and the ratio of medians.
Sentences are random ids of Multi30k's lengths (mean 13 tokens), so that no data is needed. The plain loop is what a
good engineer writes: fused Adam, boolean masks, label-smoothed cross-entropy over all positions, autocast where asked.
"""

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.batching import plan_epoch
from transformer_cli.data.loader import Position
from transformer_cli.model.build import build_model
from transformer_cli.model.masks import PAD
from transformer_cli.model.positions import sinusoidal_table
from transformer_cli.training.tuning import keep_large_buffers
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.training.precision import PRECISIONS, Precision

VOCABULARY = 8000
SHAPE = ModelConfig(encoder_layers=3, decoder_layers=3, d_model=256, heads=4, d_ff=1024, dropout=0.1, norm="pre")


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with tied, scaled embeddings and the paper's positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, SHAPE.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=SHAPE.d_model**-0.5)
        self.positions = nn.Buffer(sinusoidal_table(512, SHAPE.d_model), persistent=False)
        self.dropout = nn.Dropout(SHAPE.dropout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells that nested tensors, an inference feature, do not apply
            self.transformer = nn.Transformer(
                SHAPE.d_model,
                SHAPE.heads,
                SHAPE.encoder_layers,
                SHAPE.decoder_layers,
                SHAPE.d_ff,
                SHAPE.dropout,
                batch_first=True,
                norm_first=True,
            )

    def embed(self, ids: Tensor) -> Tensor:
        states: Tensor = self.dropout(self.embedding(ids) * math.sqrt(SHAPE.d_model) + self.positions[: ids.size(1)])
        return states

    def forward(self, batch: Batch) -> Tensor:
        padding = batch.source == PAD
        length = batch.target_input.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=padding.device).triu(1)
        hidden = self.transformer(
            self.embed(batch.source),
            self.embed(batch.target_input),
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        logits = hidden @ self.embedding.weight.t()
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=PAD, label_smoothing=0.1
        )


def make_batches(count: int, batch_tokens: int) -> list[Batch]:
    """Random ids of lengths like Multi30k's, bucketed by tfm's own plan: both sides get the same batches."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.empty(2, 20_000).normal_(13, 4, generator=generator).round().clamp(4, 40).int()
    lengths[1] = (lengths[0] + torch.empty(20_000).normal_(0, 2, generator=generator).round().int()).clamp(4, 40)
    plan = plan_epoch(lengths[0].numpy(), lengths[1].numpy(), batch_tokens=batch_tokens, seed=1, epoch=0)

    def sentence(length: int) -> list[int]:
        return torch.randint(4, VOCABULARY, (length - 1,), generator=generator).tolist()

    return [
        Batch.from_ids([(sentence(int(lengths[0, pair])), sentence(int(lengths[1, pair]))) for pair in plan[number]])
        for number in range(count)
    ]


def our_step(batches: list[Batch], device: torch.device, precision: str) -> Callable[[], int]:
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-4)
    torch.manual_seed(1)
    objective = TranslationObjective(build_model(SHAPE, VOCABULARY, VOCABULARY).to(device), config.label_smoothing)
    endless = ((Position(0, number), batches[number % len(batches)]) for number in iter(range(10**9)))
    optimizer = build_optimizer(objective, config)
    updates = train_steps(objective, optimizer, Precision(precision, device), config, endless)
    return lambda: next(updates).target_tokens


def plain_step(batches: list[Batch], device: torch.device, precision: str) -> Callable[[], int]:
    torch.manual_seed(1)
    model = PlainTransformer().to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    numbers = iter(range(10**9))

    def step() -> int:
        batch = batches[next(numbers) % len(batches)].to(device)
        kind = PRECISIONS[precision]
        with torch.autocast(device.type, dtype=kind, enabled=kind is not None):
            loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return batch.target_tokens

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_large_buffers()
    device = torch.device(options.device)
    batches = make_batches(16, options.batch_tokens)
    steps = {
        "tfm": our_step(batches, device, options.precision),
        "torch.nn.Transformer": plain_step(batches, device, options.precision),
    }
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds + 2):
        for name, step in steps.items():
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            tokens = step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number >= 2:  # the first rounds warm up
                speeds[name].append(tokens / (time.perf_counter() - began))
    print(f"torch {torch.__version__}, {device}, {options.precision}, {options.threads} threads")
    for name, values in speeds.items():
        print(f"{name:22} {statistics.median(values):9,.0f} tokens/s  ({min(values):,.0f} to {max(values):,.0f})")
    ratios = [ours / plain for ours, plain in zip(*speeds.values(), strict=True)]
    print(f"tfm ÷ torch.nn.Transformer: {statistics.median(ratios):.2f} (median of {len(ratios)} pairs)")


if __name__ == "__main__":
    main()
