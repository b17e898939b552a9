"""One of two processes that train together, for test_distributed: it answers calls, so that torch is imported once.

A call is a line of JSON on stdin, `[case, arguments]`, the same for both; the answer is a line of JSON on stdout.
"""

import faulthandler
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from tests.training.conftest import _tree, write_corpus
from transformer_cli.build import build_model
from transformer_cli.config import Config
from transformer_cli.data.batch import Batch
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.held_out import open_corpora
from transformer_cli.data.loader import CorpusBatches, UpdateBatches, load_updates
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.distributed import Ranks, Stop, join_ranks
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import Update, build_optimizer, train_steps
from transformer_cli.training.objective import Loss, TranslationObjective
from transformer_cli.training.run import find_run_state, make_learner
from transformer_cli.training.start import load_or_build_codecs
from transformer_cli.training.training_data import prepare_training_data
from transformer_cli.training.validation import Validation, Validator

CPU = torch.device("cpu")
PATIENCE = 120  # seconds for one call, before it shows where it stands and ends

calls: dict[str, int] = {}  # of collective functions


def count_calls(name: str) -> None:
    """Count how often the processes do this together."""
    real = getattr(distributed, name)

    def counted(*arguments: Any, **named: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        return real(*arguments, **named)

    setattr(distributed, name, counted)


class Case:
    """What the cases share: a corpus, and a config over it."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self.ranks, self.folder = ranks, folder
        data = folder / f"data-{ranks.rank}"  # the same in both
        data.mkdir()
        self.tree = _tree(data)
        self.config = self.configure()
        corpora = open_corpora(self.config, RunFolder(folder / "run"), resuming=False)
        self.codecs, notes = load_or_build_codecs(self.config, corpora.train, None, None, progress=False)
        self.data = prepare_training_data(self.config, corpora, self.codecs, notes, progress=False)

    def configure(self, dropout: float = 0.0, **training: Any) -> Config:
        """The config of the corpus, with these values."""
        defaults = {"schedule": "constant", "warmup_steps": 0, "peak_learning_rate": 0.01, "epsilon": 1e-4}
        changed = {
            "training": self.tree["training"] | defaults | training,
            "model": self.tree["model"] | {"dropout": dropout},
        }
        return Config.model_validate(self.tree | changed)

    def objective(self, config: Config) -> TranslationObjective:
        """The same weights on every call and rank."""
        torch.manual_seed(1)
        sizes = len(self.codecs.source.vocabulary), len(self.codecs.target.vocabulary)
        return TranslationObjective(build_model(config.model, *sizes).double(), 0.1)

    # --- the cases ------------------------------------------------------------------------------------------------

    def train(self, updates: int = 20, alone: bool = False, signalled: int | None = None, **values: Any) -> Any:
        """Train so many updates; `alone`: rank 0 by itself with the same batches in an update.

        `signalled`: rank 1 gets a SIGTERM before that update. `poisoned`: in rank 1's backward pass of that number the
        gradient is not finite. `memory`: so many sentences fit into rank 1's memory.
        """
        if alone and not self.ranks.is_main:
            return None
        ranks = Ranks() if alone else replace(self.ranks, stop=Stop())
        poisoned, memory = values.pop("poisoned", None), values.pop("memory", None)
        if alone:
            values["accumulation"] = values.get("accumulation", 1) * self.ranks.count
        config = self.configure(**values)
        objective = self.objective(config)
        if ranks.rank == 1 and poisoned is not None:
            poison(objective, poisoned)
        if ranks.rank == 1 and memory is not None:
            limit_memory(objective, memory)
        shares: list[UpdateBatches] = []
        steps = train_steps(
            objective,
            build_optimizer(objective, config.training),
            Precision("fp32", CPU),
            config.training,
            self.shares(config, ranks, shares),
            ranks=ranks,
        )
        calls.clear()
        made: list[Update] = []
        for number, update in zip(range(updates), steps, strict=False):
            made.append(update)
            if ranks.rank == 1 and number + 1 == signalled:
                ranks.stop.signal_number = 15
        steps.close()
        return {
            "weights": weights(objective).tolist(),
            "updates": [vars(update) | {"next_position": list(update.next_position)} for update in made],
            "batches": [len(share.batches) for share in shares[:updates]],
            "tokens": [sum(batch.target_tokens for batch in share.batches) for share in shares[:updates]],
            "calls": dict(calls),
        }

    def shares(self, config: Config, ranks: Ranks, seen: list[UpdateBatches]) -> Iterator[UpdateBatches]:
        """This rank's shares of the updates; `seen` keeps them."""
        training = config.training
        for share in load_updates(
            CorpusBatches(self.data.train, training.batch_tokens, training.seed),
            accumulation=training.accumulation,
            rank=ranks.rank,
            ranks=ranks.count,
        ):
            seen.append(share)
            yield share

    def validate(self, pairs: int, sentences: int, alone: bool = False, signalled: bool = False) -> Any:
        """Validate a model that has learnt a little on so many pairs, and translate so many of them.

        `signalled`: rank 1 gets a SIGTERM meanwhile.
        """
        if alone and not self.ranks.is_main:
            return None
        config = self.configure(validation_sentences=sentences, batch_tokens=60, max_steps=60)
        config = config.model_copy(update={"decoding": config.decoding.model_copy(update={"batch_tokens": 30})})
        if not hasattr(self, "learnt"):
            self.learnt = self.objective(config)
            if self.ranks.is_main:
                self.teach(self.learnt, config)
            self.ranks.copy_weights(self.learnt)
        ranks = Ranks() if alone else replace(self.ranks, stop=Stop())
        validator = Validator(self.learnt, self.codecs, config, self.corpus(pairs), Precision("fp32", CPU), ranks)
        if signalled and ranks.rank == 1:
            ranks.stop.signal_number = 15
        calls.clear()
        validation: Validation | None = validator.validate()
        found = None if validation is None else vars(validation) | {"samples": [vars(s) for s in validation.samples]}
        return {"weights": weights(self.learnt).tolist(), "validation": found, "calls": dict(calls)}

    def teach(self, objective: TranslationObjective, config: Config) -> None:
        """Enough for some BLEU."""
        updates = load_updates(CorpusBatches(self.data.train, batch_tokens=200, seed=1))
        steps = train_steps(
            objective, build_optimizer(objective, config.training), Precision("fp32", CPU), config.training, updates
        )
        for _ in zip(range(150), steps, strict=False):
            pass
        steps.close()

    def corpus(self, pairs: int) -> EncodedCorpus:
        """A corpus of so many pairs."""
        with tempfile.TemporaryDirectory() as folder:
            files = write_corpus(Path(folder), "valid", pairs, 2)
            text = TextCorpus(files["source"], files["target"])
            return encode_corpus(text, self.codecs, max_length=30, keep_text=True)

    def dropout(self, rate: float) -> Any:
        """What learns at a run's start, and the loss that it would have of one and the same batch."""
        config = self.configure(dropout=rate)
        state = find_run_state(RunFolder(self.folder / "run"), config, config, resuming=False, resume=None)
        learner, _ = make_learner(state, self.data, CPU, ranks=self.ranks)
        batch = self.data.batches.read(self.data.plan[0])
        return {"weights": weights(learner.objective).tolist(), "loss": float(learner.objective(batch).smoothed)}

    def main_process_first(self, fails: bool) -> Any:
        """What rank 0 wrote is there for the others; where it fails, they get an error too."""
        file = self.folder / "written"
        file.unlink(missing_ok=True)
        self.ranks.gather(None)
        try:
            with self.ranks.main_process_first():
                if self.ranks.is_main and fails:
                    raise ValueError("this is wrong")
                if self.ranks.is_main:
                    file.touch()
                return file.exists()
        except (ValueError, ConnectionError) as error:
            return type(error).__name__


def poison(objective: TranslationObjective, number: int) -> None:
    """Spoil the gradient of the backward pass of this number, from 1."""
    passes = 0

    def spoil(gradient: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        return gradient * torch.nan if passes == number else gradient

    next(iter(objective.parameters())).register_hook(spoil)  # type: ignore[no-untyped-call]


def limit_memory(objective: TranslationObjective, sentences: int) -> None:
    """No batch of more than so many sentences fits."""
    real: Callable[[Batch], Loss] = objective.forward

    def forward(batch: Batch) -> Loss:
        if len(batch.source) > sentences:
            raise torch.OutOfMemoryError("no memory")
        return real(batch)

    vars(objective)["forward"] = forward


def weights(objective: TranslationObjective) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in objective.parameters()])


def main(folder: Path) -> None:
    """Answer until stdin ends."""
    for name in ("all_reduce", "all_gather_object", "broadcast"):
        count_calls(name)
    with join_ranks("cpu") as (ranks, _):
        case = Case(ranks, folder)
        for line in sys.stdin:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            name, arguments = json.loads(line)
            print(json.dumps(partial(getattr(case, name), **arguments)()), flush=True)
            faulthandler.cancel_dump_traceback_later()
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert not [name for name in threads if "gloo" in name], "they can abort a process that leaves"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
