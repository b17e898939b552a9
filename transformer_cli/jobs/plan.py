"""How many trials a search has, and how long each trains: rungs and budget. No torch."""

import math
from dataclasses import dataclass

from transformer_cli.config import Config
from transformer_cli.errors import UserError

HALVINGS = 3  # at most, of the steps that a trial trains
MOST_TRIALS = 10_000
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class Plan:
    """How long trials train, and how many of them."""

    rungs: tuple[int, ...]  # steps, the last one those of a whole run
    reduction: int  # of so many trials at a rung, one continues to the next
    seeds: int = 0  # other seeds that the best two are trained with at the end, whole

    def sizes(self, trials: int) -> list[int]:
        """Return how many trials reach each rung."""
        return [max(1, trials // self.reduction**number) for number in range(len(self.rungs))]

    def cost(self, trials: int, jobs: int = 1) -> int:
        """Return the steps that it takes, of each of `jobs` processes that train at once."""
        steps = [after - before for before, after in zip((0, *self.rungs), self.rungs, strict=False)]
        halving = sum(math.ceil(size / jobs) * length for size, length in zip(self.sizes(trials), steps, strict=True))
        return halving + math.ceil(2 * self.seeds / jobs) * self.rungs[-1]

    def affordable(self, steps: float, jobs: int = 1) -> int:
        """Return the largest number of trials that takes at most so many steps; 0: not even one."""
        trials = 0
        while trials < MOST_TRIALS and self.cost(trials + 1, jobs) <= steps:
            trials += 1
        return trials


def make_plan(config: Config, reduction: int, first: int | None, seeds: int) -> Plan:
    """Return the plan for a config, whose rungs are steps that are validated.

    first: the fewest steps of a trial; None: those of the warmup, or until the first validation. Raises `UserError`
    where the config does not say how long a run is.
    """
    steps, every = config.training.max_steps, config.training.validate_every
    if steps is None:
        raise UserError("training.max_steps: is null, but trials are stopped at shares of it; set it")
    least = max(every, config.training.warmup_steps) if first is None else first
    rungs = [steps]
    for number in range(1, HALVINGS + 1):
        rung = math.ceil(steps / reduction**number / every) * every
        if steps / reduction**number < least or rung >= rungs[0]:
            break
        rungs.insert(0, rung)
    return Plan(tuple(rungs), reduction, seeds)


@dataclass(frozen=True)
class Budget:
    """How much is trained: updates over all trials, or seconds."""

    text: str
    steps: int | None = None
    seconds: float | None = None


def parse_budget(text: str) -> Budget:
    """Return what `20000steps` or `2h` says; raises `UserError` where it is neither."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ").replace(",", "")
    unit = text[len(text.rstrip("abcdefghijklmnopqrstuvwxyz ")) :].strip()
    try:
        amount = float(number)
    except ValueError:
        amount = math.nan
    if not 0 < amount < 1e12 or unit not in ("steps", *UNITS):
        raise UserError(f"--budget {text[:40]!r}: write it as 20000steps, or as 90m, 2h or 1d")
    if unit == "steps":
        return Budget(text, steps=int(amount))
    return Budget(text, seconds=amount * UNITS[unit])
