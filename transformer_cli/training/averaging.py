"""Averages of weights: a moving one beside training, and the mean of several checkpoints at its end.

`session` uses both, `tfm average` the mean alone.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from transformer_cli.build import LoadedModel, load_model
from transformer_cli.codecs import load_text_side
from transformer_cli.config import Config, TrainingConfig
from transformer_cli.errors import UserError
from transformer_cli.model.torch_private import lerp_all
from transformer_cli.storage.checkpoint import load_weights, read_tensors, save_model, stored_weights
from transformer_cli.storage.publishing import publish, verify
from transformer_cli.storage.run_folder import CONFIG, WEIGHTS, CheckpointIndex, RunFolder, find_model
from transformer_cli.training.distributed import Ranks


def average(folders: Sequence[str | Path], out: Path) -> None:
    """Publish as `out` the model whose weights are the means of several checkpoints' (Vaswani et al. 2017, §6.1).

    Raises `UserError`, before anything is written, where `out` exists or the models are not of one kind.
    """
    if os.path.lexists(out):
        raise UserError(f"{out}: exists already; name a new folder with --out")
    mean = mean_model([find_model(folder) for folder in folders])
    RunFolder(out.parent).create()
    publish(out, lambda folder: save_model(folder, mean.model, mean.config, mean.codecs), replace=False)


def average_checkpoints(run: RunFolder, name: str, steps: list[int], model: nn.Module, ranks: Ranks) -> None:
    """Publish under `name` the mean of these steps' models, and give it to the model of every rank."""
    if ranks.is_main:
        mean = mean_model([run.step_folder(step) for step in steps])
        load_weights(run.publish(name, lambda new: save_model(new, mean.model, mean.config, mean.codecs)), model)
    ranks.copy_weights(model)


def steps_to_average(training: TrainingConfig, index: CheckpointIndex) -> list[int]:
    """Return the steps that `average_last` or `average_best` means; none where there are less than two."""
    steps: list[int] = []
    if training.average_last is not None:
        steps = index.steps[-training.average_last :]
    elif training.average_best is not None:
        steps = sorted(index.best[: training.average_best])
    return steps if len(steps) > 1 else []


def mean_model(folders: Sequence[Path]) -> LoadedModel:
    """Return the model of the first folder with the mean weights of all, summed in float64; one is held in memory."""
    if not folders:
        raise UserError("no checkpoint to average; name at least one")
    first = load_model(folders[0])
    stored = [read_tensors(folders[0] / WEIGHTS)]
    for folder in folders[1:]:
        config, codecs = load_text_side(folder)
        verify(folder, [WEIGHTS])
        if config.model != first.config.model or _languages(config) != _languages(first.config):
            raise UserError(
                f"{folder}: is another kind of model than {folders[0]} ({CONFIG} differs); average one run's"
            )
        if codecs.fingerprint != first.codecs.fingerprint:
            raise UserError(f"{folder}: has another vocabulary than {folders[0]}; average checkpoints of one run")
        stored.append(read_tensors(folder / WEIGHTS))
        if _layout(stored[-1]) != _layout(stored[0]):
            raise UserError(f"{folder / WEIGHTS}: has other tensors than {folders[0] / WEIGHTS}; copy it again")
    with torch.no_grad():
        for name, tensor in stored_weights(first.model).items():  # the others stay in their files
            if tensor.is_floating_point():
                total = torch.zeros(tensor.shape, dtype=torch.float64)
                for tensors in stored:
                    total += tensors[name]
                tensor.copy_(total / len(stored))
    return first


def _layout(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def _languages(config: Config) -> tuple[str, str]:
    return config.data.source_language, config.data.target_language


LEARNED = "weights."  # before a parameter's name in the training state: what training continues with


class MovingAverage:
    """An exponential moving average of the weights that learn (Polyak and Juditsky 1992), on their device.

    Update t moves it by 1 - min(`decay`, (1 + t) / (10 + t)) of the way to the weights: the ramp of TensorFlow's
    `ExponentialMovingAverage`, without which a short run would average its own beginning. `decay` None: there is no
    average, and nothing here does anything.
    """

    def __init__(self, model: nn.Module, decay: float | None) -> None:
        learned = [] if decay is None else [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.decay = decay or 0.0
        self._names = [name for name, _ in learned]
        self._weights: list[Tensor] = [parameter for _, parameter in learned]
        self._averages = [parameter.detach().clone() for parameter in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after this update; a pure function of them, the average and `step`."""
        if self._weights:
            decay = min(self.decay, (1 + step) / (10 + step))
            lerp_all(self._averages, self._weights, 1.0 - decay)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Let the model's weights be the averages inside: what is validated and saved. Nothing is copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for number, parameter in enumerate(self._weights):
            parameter.data, self._averages[number] = self._averages[number], parameter.data

    def learned(self) -> dict[str, Tensor]:
        """Return the weights that training continues with: the checkpoint's model has the averages."""
        return {LEARNED + name: weight.detach() for name, weight in zip(self._names, self._weights, strict=True)}

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Keep the averages of a checkpoint that the model holds, and give it back what `learned` took.

        Raises `UserError` where that is not among the tensors.
        """
        for name, parameter, average in zip(self._names, self._weights, self._averages, strict=True):
            learned = tensors.get(LEARNED + name)
            if learned is None or learned.shape != parameter.shape:
                raise UserError(
                    f"the training state lacks the weights beside their moving average ({name}); start again with "
                    "--fresh"
                )
            average.copy_(parameter)
            parameter.copy_(learned)
