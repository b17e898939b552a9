"""Does the faster arithmetic cost BLEU? The same training twice: with tfm's ways on a CPU, or with torch's own.

    python experiments/arithmetic.py ours|torchs RUN CONFIG [--set KEY=VALUE ...]

`torchs` takes torch's dropout, its attention kernel, the plain loss over all logits, and leaves the process as it is.
Both are runs like any other: `tfm evaluate RUN` scores them. It takes as long as training does.
"""

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from transformer_cli.config import load_config
from transformer_cli.model import attention
from transformer_cli.model.dropout import Dropout
from transformer_cli.training import hardware as tuning
from transformer_cli.training import objective, run
from transformer_cli.training.objective import Loss, smoothed_cross_entropy


def plain_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, smoothing: float, r_drop: float = 0.0
) -> Loss:
    logits = functional.linear(hidden, weight, bias)
    return smoothed_cross_entropy(logits.log_softmax(1, dtype=torch.float32), target, smoothing, r_drop)


def plain_dropout(self: Dropout, states: Tensor) -> Tensor:
    return functional.dropout(states, self.rate)


def take_torchs() -> None:
    tuning.tune_process = lambda device: None
    attention.SHORT = 0
    Dropout.forward = plain_dropout  # type: ignore[method-assign]
    setattr(objective, "fused_linear_cross_entropy", plain_loss)  # noqa: B010  (mypy: it is imported there)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arithmetic", choices=("ours", "torchs"))
    parser.add_argument("run")
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    if options.arithmetic == "torchs":
        take_torchs()
    run.train(load_config(options.config, options.overrides), options.run)


if __name__ == "__main__":
    main()
