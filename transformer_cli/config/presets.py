"""Values that suit a corpus of some size, for the keys that a config leaves out: `model.preset`.

`tfm train` and `tfm build-vocab` resolve a config here before anything else; docs/results.md says how the values were
chosen; docs/generate.py writes the tables of docs/config.md from them.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_cli.config import Config, DataConfig, config_of_tree
from transformer_cli.config.yaml_file import Tree
from transformer_cli.errors import UserError

Values = Mapping[str, Any]  # by key, such as `model.d_model`

# Few layers: without R-Drop, anything larger memorises little text. Muon, rotary positions, normalised queries and
# keys, and statistics of which word translates which, for attention and in `small` for embeddings, let a model find the
# source soon; R-Drop and weight decay keep a model from memorising what it has seen dozens of times (docs/results.md,
# "Little text"). The rate falls once nothing gets better at its peak; `max_steps` only limits training. Until then the
# moving average stands in for a lower rate.
_LITTLE_TEXT: Values = {
    "vocabulary.algorithm": "bpe",
    "model.encoder_layers": 3,
    "model.decoder_layers": 3,
    "model.heads": 4,
    "model.d_ff": 512,
    "model.norm": "pre",
    "model.positions": "rotary",
    "model.qk_norm": True,
    "training.batch_tokens": 1000,
    "training.optimizer": "muon",
    "training.guided_attention": {"prior": "alignments", "start_weight": 0.5, "weight": 0.05, "layer": -2},
    "training.schedule": "wsd",
    "training.patience": 3,
    "training.ema_decay": 0.995,
    "training.label_smoothing": 0.1,
    "training.precision": "auto",
}
# Vaswani et al. 2017, sections 5.1 and 5.3 to 6.1.
_PAPER: Values = {
    "vocabulary.algorithm": "bpe",
    "vocabulary.size": 37_000,
    "model.encoder_layers": 6,
    "model.decoder_layers": 6,
    "model.norm": "post",
    "training.schedule": "noam",
    "training.factor": 1.0,
    "training.warmup_steps": 4000,
    "training.label_smoothing": 0.1,
    "training.precision": "auto",
}
FAST = 0.005  # the peak of `small`, with what it was found with; else a lower one for up to twice as long
FAST_WITH: Values = {"model.positions": "rotary", "model.qk_norm": True, "training.optimizer": "muon"}
PRESETS: Mapping[str, Values] = {
    "tiny": {
        **_LITTLE_TEXT,
        "vocabulary.size": 2000,
        "model.d_model": 128,
        "model.dropout": 0.3,
        "training.r_drop": 5.0,
        "training.weight_decay": 1.5,
        "training.batch_tokens": 2000,
        "training.peak_learning_rate": 0.003,
        "training.max_steps": 9000,
        "training.warmup_steps": 300,
        "training.validate_every": 150,
        "training.save_every": 150,
    },
    "small": {
        **_LITTLE_TEXT,
        "vocabulary.size": 8000,
        "model.d_model": 192,
        "model.dropout": 0.2,
        "training.init_embeddings": "lexicon",
        "training.dropout_warmup_steps": 3000,
        "training.peak_learning_rate": FAST,
        "training.max_steps": 18_000,
        "training.warmup_steps": 250,
        "training.validate_every": 450,
        "training.save_every": 450,
    },
    "base": {
        **_PAPER,
        "model.d_model": 512,
        "model.heads": 8,
        "model.d_ff": 2048,
        "model.dropout": 0.1,
        "training.batch_tokens": 12_500,  # of two batches per update: 25,000 tokens per side
        "training.accumulation": 2,
        "training.max_steps": 100_000,
    },
    "big": {
        **_PAPER,
        "model.d_model": 1024,
        "model.heads": 16,
        "model.d_ff": 4096,
        "model.dropout": 0.3,
        "training.batch_tokens": 6250,
        "training.accumulation": 4,
        "training.max_steps": 300_000,
    },
}


class CorpusSize(NamedTuple):
    """How much text there is to learn from: what `auto` goes by."""

    pairs: int
    different: int  # pairs that are not repetitions of others, letter for letter
    letters: int  # characters of the targets of these, spaces included
    characters: int = 0  # different ones that make up nearly all of both sides

    def __str__(self) -> str:
        repeated = f", {self.different:,} of them different" if self.different < self.pairs else ""
        return f"{self.pairs:,} pairs{repeated}, {self.letters:,} letters of target text"


class Rung(NamedTuple):
    """What `auto` takes for at least so much target text, in letters: a caption of Multi30k has 61."""

    letters: int
    preset: str
    changes: Values = MappingProxyType({})

    def values(self) -> Values:
        """Return those of the preset, with the changes."""
        return {**PRESETS[self.preset], **self.changes}


# Ten times a thousand updates: the paper's rate falls slowly, and so do losses late in training.
_UNTIL_NOTHING_IMPROVES: Values = {"training.patience": 10}
# Plain `small` memorises 10,000 captions from update 1,600 on.
_AGAINST_MEMORISING: Values = {"model.dropout": 0.3, "training.r_drop": 5.0}
LADDER = (
    Rung(0, "tiny"),
    Rung(180_000, "small", {**_AGAINST_MEMORISING, "training.weight_decay": 0.3}),
    Rung(600_000, "small", {**_AGAINST_MEMORISING, "training.weight_decay": 0.2}),
    Rung(1_000_000, "small"),
    Rung(3_600_000, "small", {"training.batch_tokens": 2000}),
    # What is usual for talks (IWSLT's 160,000 pairs): the paper's layers, narrower inside, more dropout, small updates.
    Rung(
        12_000_000,
        "base",
        {
            "vocabulary.size": 10_000,
            "model.heads": 4,
            "model.d_ff": 1024,
            "model.dropout": 0.3,
            "training.factor": 0.7,
            "training.batch_tokens": 4096,
            "training.accumulation": 1,
            "training.max_steps": 50_000,
            **_UNTIL_NOTHING_IMPROVES,
        },
    ),
    Rung(100_000_000, "base", _UNTIL_NOTHING_IMPROVES),
    Rung(1_000_000_000, "big", _UNTIL_NOTHING_IMPROVES),
)
# Tokens that updates hold until dropout has risen, per letter of the text: about six passes over it. 1,000 captions,
# seen 42 times in 600 updates, were memorised meanwhile (docs/results.md, "Dropout that rises").
RISING = 5 / 3
BESIDE = 260  # pieces of a vocabulary that are bytes and special symbols
# Updates that so many letters take at most with `tiny` and `small`; in between their logarithms rise evenly. The first
# three are of 1,000, 5,000 and 29,000 captions, which patience ended after 5,200, 8,500 and 10,800 updates
# (docs/results.md, "Training that ends by patience").
UPDATES = ((60_000, 9000), (300_000, 15_000), (1_800_000, 18_000), (12_000_000, 50_000))


def resolve_preset(config: Config, measure: Callable[[DataConfig], CorpusSize]) -> tuple[Config, list[str]]:
    """Return the config with the preset's values for all that it does not set, `preset` null then; and lines to show.

    `measure` gives the size of the training text, which `auto` asks for. Raises `UserError` where values that are set
    and values of the preset do not fit together.
    """
    if config.model.preset is None:
        return config, []
    if config.model.preset == "auto":
        size = measure(config.data)
        rung, why = rung_for(size.letters), f" for {size}"
        values: dict[str, Any] = {**rung.values(), **_length_of_training(rung, size.letters)}
        values["vocabulary.size"] = max(values["vocabulary.size"], _room_for(size.characters))
    else:
        rung, why = Rung(0, config.model.preset), ""
        values = dict(rung.values())
    sections = config.model_dump(exclude_unset=True)
    given = {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}
    wanted = _adapted(values, given)
    kept: list[str] = []
    for name in filter(given.__contains__, wanted):
        own, of_preset = given[name], wanted[name]
        inside = isinstance(own, dict) and isinstance(of_preset, Mapping) and "prior" not in own  # else another guide
        given[name] = {**of_preset, **own} if inside else own
        kept += [f"{name}.{key}" for key in own] if inside else [name]
    tree: Tree = {}
    for name, value in {**wanted, **given, "model.preset": None}.items():
        section, key = name.split(".")
        tree.setdefault(section, {})[key] = value
    resolved = config_of_tree(tree, f"model.preset {rung.preset}{why}")
    lines = [f"preset       {rung.preset}{why}: {_summary(resolved)}"]
    if kept:
        lines.append(f"             not from the preset, because the config sets them: {', '.join(kept)}")
    return resolved, lines


def rung_for(letters: int) -> Rung:
    """Return what `auto` takes for so much target text."""
    return [rung for rung in LADDER if rung.letters <= letters][-1]


def _room_for(characters: int) -> int:
    """Return how large a vocabulary must be for characters and bytes to take at most half of it: the rest is words."""
    return 500 * math.ceil(2 * (characters + BESIDE) / 500)


def _length_of_training(rung: Rung, letters: int) -> Values:
    """Return how long to train for so much target text, how often to validate and save meanwhile, and how long dropout
    rises."""
    if rung.preset not in ("tiny", "small"):
        return {}
    known, updates = ([math.log(value) for value in column] for column in zip(*UPDATES, strict=True))
    place = min(max(math.log(max(1, letters)), known[0]), known[-1])
    after = max(1, sum(value < place for value in known))
    share = (place - known[after - 1]) / (known[after] - known[after - 1])
    steps = 100 * round(math.exp(updates[after - 1] + share * (updates[after] - updates[after - 1])) / 100)
    of_preset = rung.values()
    every = round(steps * of_preset["training.validate_every"] / of_preset["training.max_steps"])
    length = {"training.max_steps": steps, "training.validate_every": every, "training.save_every": every}
    if "training.dropout_warmup_steps" in of_preset:
        length["training.dropout_warmup_steps"] = 100 * round(
            RISING * letters / of_preset["training.batch_tokens"] / 100
        )
    return length


def _adapted(values: Values, given: Values) -> dict[str, Any]:
    """Return the preset's values as far as they mean something beside those that the config gives."""
    values = dict(values)
    own_schedule = values["training.schedule"]
    if given.get("training.max_steps", 0) is None and values["training.schedule"] == "wsd":
        values["training.schedule"] = "inverse_sqrt"  # which needs no end
    both = {**values, **given}
    elsewhere = given.get("model.generation", "autoregressive") != "autoregressive"
    apart = elsewhere or given.get("training.scheduled_sampling") is not None
    if apart or both["model.decoder_layers"] < 2:
        values.pop("training.guided_attention", None)
    if apart or not both["model.dropout"]:
        values.pop("training.r_drop", None)
    if given.get("training.init_from"):  # a parent knows where to look, and should not forget it
        for key in ("weight_decay", "dropout_warmup_steps", "init_embeddings"):
            values.pop(f"training.{key}", None)
        if guide := values.get("training.guided_attention"):
            values["training.guided_attention"] = {key: guide[key] for key in guide if key != "start_weight"}
    if both.get("training.optimizer") != "muon":
        values.pop("training.weight_decay", None)
    dropouts = (value for key, value in both.items() if key.startswith("model.") and key.endswith("dropout"))
    if given.get("training.compile") or not any(dropouts):
        values.pop("training.dropout_warmup_steps", None)
    if rise := values.get("training.dropout_warmup_steps"):  # over as many passes where updates are larger
        size = both["training.batch_tokens"] * given.get("training.accumulation", 1)
        values["training.dropout_warmup_steps"] = max(1, round(rise * values["training.batch_tokens"] / size))
    if any(given.get(f"training.{key}") for key in ("source_vectors", "target_vectors")):
        values.pop("training.init_embeddings", None)
    if both["training.schedule"] != own_schedule:  # with cosine, patience would end training before the rate has fallen
        values.pop("training.patience", None)
        if own_schedule == "wsd":
            values["training.max_steps"] //= 2  # what was a limit is the length of training now
    if (given.get("model.head_dim") or both["model.d_model"] // both["model.heads"]) % 2:
        for key in ("model.positions", "model.qk_norm"):  # rotary positions turn dimensions two by two
            values.pop(key, None)
    otherwise = apart or any({**values, **given}.get(key) != FAST_WITH[key] for key in FAST_WITH)
    if otherwise and values.get("training.peak_learning_rate") == FAST:
        values["training.peak_learning_rate"] = 0.0015
        for key in ("max_steps", "validate_every", "save_every"):
            values[f"training.{key}"] *= 2
    if given.get("vocabulary.tokenizer", "sentencepiece") != "sentencepiece":
        for key in ("vocabulary.algorithm", "vocabulary.size", "training.subword_sampling"):
            values.pop(key, None)
    schedule, steps, warmup = (both[f"training.{key}"] for key in ("schedule", "max_steps", "warmup_steps"))
    if schedule in ("cosine", "wsd") and steps is not None:  # shorter for a trial
        values["training.warmup_steps"] = min(values["training.warmup_steps"], steps // 5)
    if schedule != "noam" and "training.factor" in given:
        raise UserError(f"training.factor: the {schedule} schedule has none; set peak_learning_rate, or schedule: noam")
    scale = math.sqrt(both["model.d_model"] * max(1, warmup))  # noam's factor over its peak
    if schedule == "noam" and "training.peak_learning_rate" in values:
        values["training.factor"] = values.pop("training.peak_learning_rate") * scale
    if schedule != "noam" and "training.factor" in values:
        values["training.peak_learning_rate"] = values.pop("training.factor") / scale
    return values


def _summary(config: Config) -> str:
    """Return what the user will want to know of a resolved config."""
    model, training = config.model, config.training
    parts = [
        f"vocabulary of {config.vocabulary.size:,}",
        f"{model.encoder_layers}+{model.decoder_layers} layers",
        f"d_model {model.d_model}",
        f"{model.heads} heads",
        f"d_ff {model.d_ff}",
        f"dropout {model.dropout:g}",
        f"updates of {training.accumulation * training.batch_tokens:,} tokens",
        f"warmup {training.warmup_steps:,}",
        *([f"{'at most ' * bool(training.patience)}{training.max_steps:,} steps"] if training.max_steps else []),
    ]
    return ", ".join(parts)
