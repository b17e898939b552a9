"""What `tfm tune --vary` names: which keys vary, between which values, and how a trial's values are drawn. No torch.

A draw is a function of the seed, the trial's number and the trials before it, so that an interrupted search continues
with the values that it would have drawn. Optuna's samplers draw, each time in a study in memory.
"""

import itertools
import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformer_cli.config import Config, config_of_tree, keys_within
from transformer_cli.config.yaml_file import dump_flow, merge, parse_tree, shown
from transformer_cli.errors import UserError

Values = dict[str, Any]  # by key: a number of a range, or one of some values, as JSON

NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})")
LOG_RATIO = 10.0  # a range whose ends are so far apart is drawn from on a logarithmic scale
MOST_COMBINATIONS = 1000  # of values: beyond, they are not written out
ATTEMPTS = 100  # draws, until one is a config and new

FIXED = {  # why these do not vary
    "trials that learn from or are judged on other data cannot be compared": "data",
    "it can be chosen when training is over: tfm evaluate and tfm translate have options for it": "decoding",
    "a preset is values of many keys; name these keys": "model.preset",
    "it is noise, not a setting; --seeds measures how much": "training.seed",
    "it decides how long a trial trains, which successive halving does": (
        "training.max_steps training.max_epochs training.patience"
    ),
    "it decides how trials are judged": ("training.validate_every training.validation_sentences training.best_metric"),
    "what a trial is judged by does not depend on it": (
        "training.save_every training.log_every training.keep_last training.keep_best training.average_last "
        "training.average_best training.max_skipped training.tensorboard training.compile vocabulary.symbols"
    ),
    "it names a file": (
        "training.init_from training.source_vectors training.target_vectors training.guided_attention.alignments"
    ),
}


@dataclass(frozen=True)
class Dimension:
    """One key and its values: some that are named, or the numbers from `low` to `high`."""

    key: str
    choices: tuple[str, ...] = ()  # as JSON
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # only whole numbers

    @property
    def log(self) -> bool:
        """Return whether numbers are drawn on a logarithmic scale."""
        return not self.choices and self.low > 0 and self.high / self.low >= LOG_RATIO

    def __str__(self) -> str:
        if self.choices:
            return f"{self.key}: {', '.join(self.choices)}"
        scale = "logarithmic" if self.log else "linear"
        return f"{self.key}: {self.low:g} to {self.high:g} ({scale} scale{', whole numbers' * self.whole})"

    def ends(self) -> list[Any]:
        """Return the values that are checked before anything starts, as those of a trial."""
        return [*self.choices] or [self.low, self.high]

    def holds(self, value: Any) -> bool:
        """Return whether a value, as those of a trial, is one of these."""
        if self.choices:
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def distribution(self) -> Any:
        """Return it as Optuna has it."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.choices:
            return CategoricalDistribution(self.choices)
        if self.whole:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(self.low, self.high, log=self.log)


def parse_dimension(setting: str, config: Config) -> Dimension:
    """Return what `KEY=a,b,c` or `KEY=LOW..HIGH` says; raises `UserError` where it says nothing that can vary."""
    key, equals, text = (part.strip() for part in setting.partition("="))
    if not equals or not key or not text:
        raise UserError(
            f"--vary {shown(setting)}: write it as KEY=a,b,c or KEY=LOW..HIGH, such as model.dropout=0.1,0.3"
        )
    for why, fixed in FIXED.items():
        if any(key == one or key.startswith(f"{one}.") for one in fixed.split()):
            raise UserError(f"--vary {key}: this key cannot vary: {why}")
    noise = key.startswith("training.noise") and not config.training.takes_vocabulary
    if (noise or key.startswith("vocabulary.")) and config.training.best_metric == "loss":
        raise UserError(
            f"--vary {key}: losses of different vocabularies cannot be compared; set training.best_metric: bleu"
        )
    if key in Config.model_fields:
        raise UserError(f"--vary {key}: is a section; name its keys")
    if key not in dict(keys_within(Config)):
        tree: dict[str, Any] = {}
        merge(tree, f"{key}=0")
        config_of_tree({**config.model_dump(mode="json"), **tree}, f"--vary {key}")  # says which was meant
    if found := RANGE.fullmatch(text):
        return _range(key, found[1], found[2], config)
    named = parse_tree(f"values: [{text}]", f"--vary {key}")["values"]
    choices = tuple(dict.fromkeys(json.dumps(value) for value in named))
    if len(choices) < 2:
        raise UserError(
            f"--vary {key}: names one value, so that nothing varies; name several, as {key}=a,b, or --set it"
        )
    return Dimension(key, choices)


def _range(key: str, first: str, last: str, config: Config) -> Dimension:
    low, high = float(first), float(last)
    if not low < high or not math.isfinite(high - low):
        raise UserError(f"--vary {key}: the range {first}..{last} is empty; write the lower end first")
    whole = low.is_integer() and high.is_integer() and _fault(config, key, low + 0.5) is not None
    return Dimension(key, (), int(low) if whole else low, int(high) if whole else high, whole)


def with_values(config: Config, values: Values) -> Config:
    """Return the config of a trial with these values; raises `UserError` where they do not fit together."""
    where = f"--vary {', '.join(values)}"
    return config_of_tree(config.model_dump(mode="json"), where, settings(values))


def settings(values: Values) -> list[str]:
    """Return the values as `--set` takes them."""
    return [f"{key}={dump_flow(plain(value))}" for key, value in values.items()]


def plain(value: Any) -> Any:
    """Return the value of a trial as a config has it."""
    return json.loads(value) if isinstance(value, str) else value


def _fault(config: Config, key: str, value: Any) -> UserError | None:
    try:
        with_values(config, {key: value})
    except UserError as error:
        return error
    return None


@dataclass(frozen=True)
class Space:
    """All keys that vary, over a config that has everything else."""

    config: Config
    dimensions: tuple[Dimension, ...]

    @cached_property
    def combinations(self) -> list[Values] | None:
        """Return all values that trials can have; None where they are not finite, or too many to write out."""
        lists = [dimension.choices for dimension in self.dimensions]
        if not all(lists) or math.prod(map(len, lists)) > MOST_COMBINATIONS:
            return None
        every = [dict(zip(self._keys(), values, strict=True)) for values in itertools.product(*lists)]
        return [values for values in every if self.fits(values)]

    def _keys(self) -> list[str]:
        return [dimension.key for dimension in self.dimensions]

    def fits(self, values: Values) -> bool:
        """Return whether the values make a config."""
        try:
            with_values(self.config, values)
        except UserError:
            return False
        return True

    def check(self) -> None:
        """Raise `UserError` for a value that makes no config, whatever the other keys' values are."""
        if not self.dimensions:
            raise UserError("nothing varies: name a key and its values, such as --vary model.dropout=0.1,0.2,0.3")
        if len(set(self._keys())) < len(self.dimensions):
            twice = next(key for key in self._keys() if self._keys().count(key) > 1)
            raise UserError(f"--vary {twice}: is given twice; name all of its values at once")
        choose = random.Random(0)
        for dimension in self.dimensions:
            others = [other for other in self.dimensions if other is not dimension]
            for value in dimension.ends():
                fault = _fault(self.config, dimension.key, value)
                tries = ({other.key: choose.choice(other.ends()) for other in others} for _ in range(ATTEMPTS))
                if fault and not any(self.fits({dimension.key: value, **values}) for values in tries if values):
                    raise fault

    def own(self) -> Values | None:
        """Return the values that the config itself has; None where they are not among those to try."""
        found: Values = {}
        for dimension in self.dimensions:
            value: Any = self.config.model_dump(mode="json")
            for part in dimension.key.split("."):
                value = (value or {}).get(part)
            found[dimension.key] = json.dumps(value) if dimension.choices else value
        return found if all(dimension.holds(found[dimension.key]) for dimension in self.dimensions) else None

    def draw(
        self, sampler: str, number: int, seen: Sequence[Values], scored: Sequence[tuple[Values, float]], maximize: bool
    ) -> Values | None:
        """Return the values of the trial with this number; None where no others are left than those of earlier ones.

        sampler: tpe (Bergstra et al. 2011), random, or grid. seen: those of the trials before it, which are not drawn
        again; scored: what some of them reached. The first trial has the config's own values, where these are among
        those to try. Raises `UserError` where the draws for the first trial make no config.
        """
        seed = self.config.training.seed
        left = None if self.combinations is None else [values for values in self.combinations if values not in seen]
        own = self.own()
        if number == 0 and own is not None and sampler != "grid":
            return own
        if sampler != "grid":
            for attempt in range(ATTEMPTS):
                values = self._ask(sampler, hash_of(seed, number, attempt), scored, maximize)
                if values not in seen and self.fits(values):
                    return values
        if left == [] or (left is None and seen):
            return None
        if left is None:
            raise UserError(
                f"--vary: {ATTEMPTS} draws made no new config that is valid; name values that fit together, such as "
                "model.d_model=128,256 in the place of a range"
            )
        return random.Random(hash_of(seed, number, ATTEMPTS)).choice(left)

    def _ask(self, sampler: str, seed: int, scored: Sequence[tuple[Values, float]], maximize: bool) -> Values:
        import optuna

        samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        study = self.study_of(scored, maximize, samplers[sampler](seed=seed))
        drawn = study.ask({dimension.key: dimension.distribution() for dimension in self.dimensions}).params
        return {dimension.key: _rounded(drawn[dimension.key], dimension) for dimension in self.dimensions}

    def study_of(self, scored: Sequence[tuple[Values, float]], maximize: bool, sampler: Any = None) -> Any:
        """Return an Optuna study, in memory, of trials with these values and scores."""
        import optuna

        study = optuna.create_study(sampler=sampler, direction="maximize" if maximize else "minimize")
        distributions = {dimension.key: dimension.distribution() for dimension in self.dimensions}
        for values, score in scored:
            study.add_trial(optuna.create_trial(params=values, distributions=distributions, value=score))
        return study


def hash_of(*numbers: int) -> int:
    """Return a seed that follows from these numbers, the same in every process."""
    return random.Random(repr(numbers)).getrandbits(32)


def _rounded(value: Any, dimension: Dimension) -> Any:
    """Return a number as people write it, three digits long."""
    if not isinstance(value, float):
        return value
    return min(dimension.high, max(dimension.low, float(f"{value:.3g}")))
