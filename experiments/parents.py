"""What `training_data.py parents` trains on: a parent from German, and children from French with few pairs.

The parent has 24,000 pairs of Multi30k, drawn by the seed, the children 1,000 of the others: no English caption is in
both. A child keeps the updates that are best on the validation set.
"""

import random

from planted_faults import read
from training_rows import BUDGET, OTHER_SEEDS, Work, write_config, write_pairs

from transformer_cli.config.yaml_file import Tree

PARENT_PAIRS, CHILD_PAIRS = 24_000, 1_000
CHILD: Tree = {"max_steps": 600, "warmup_steps": 100, "validate_every": 200, "save_every": 200}
LEARNING_RATE = 0.0005  # the highest of a child; a third of the parent's
# What `model.preset: tiny` had for so few pairs; a model as large as the parent is too much for them.
TINY: Tree = {"d_model": 128}
SCRATCH: Tree = {"max_steps": 1500, "warmup_steps": 300, "validate_every": 250, "save_every": 250}
FEW_SUBWORDS = 2000
DROPOUT: Tree = {"dropout": 0.3}  # of children, as `tiny` has it: their few pairs are soon learned by heart
UPWEIGHTED = 5.0  # how often an epoch of both languages takes the few pairs
OLD_SHARE = 0.1  # of the parent's pairs, in each epoch of a child that is not to forget them


def train_files(work: Work, language: str) -> Tree:
    """Write the parent's pairs (`de`) or the children's (`fr`), once for all rows; return them as a config has them."""
    own = work.other(f"from {language}")
    if not own.own("en").exists():
        places = list(range(len(read(work.data, "train", "de", "en"))))
        random.Random(OTHER_SEEDS + work.seed).shuffle(places)
        chosen = places[:PARENT_PAIRS] if language == "de" else places[PARENT_PAIRS:][:CHILD_PAIRS]
        pairs = read(work.data, "train", language, "en")
        write_pairs(own, [pairs[place] for place in chosen], (language, "en"))
    return {"source": str(own.own(language)), "target": str(own.own("en"))}


def prepare_parent(work: Work) -> None:
    """Write the config of the parent."""
    write_config(work, train_files(work, "de"))


def fine_tuning(work: Work) -> Tree:
    """Train the parent, where there is none yet; return the training of a child that starts from it."""
    parent = work.other("parent")
    prepare_parent(parent)
    parent.train()
    return {**CHILD, "peak_learning_rate": LEARNING_RATE, "init_from": str(parent.run)}


def prepare_scratch(work: Work) -> None:
    """Write the config of a child without a parent."""
    few: Tree = {"size": FEW_SUBWORDS}
    model = {**TINY, **DROPOUT}
    write_config(work, train_files(work, "fr"), ("fr", "en"), vocabulary=few, model=model, training=SCRATCH)


def prepare_old(work: Work, *more: Tree) -> None:
    """Write the config of a child with its parent's vocabulary, and its language, which that vocabulary goes with."""
    train = [train_files(work, "fr"), *more] if more else train_files(work, "fr")
    named: Tree = {"source_language": "de"}
    write_config(work, train, ("fr", "en"), data=named, model=DROPOUT, training=fine_tuning(work))


def prepare_mixed(work: Work) -> None:
    """Write the same with some of the parent's pairs in each epoch."""
    prepare_old(work, {**train_files(work, "de"), "weight": OLD_SHARE})


def prepare_new(work: Work) -> None:
    """Write the config of a child with a vocabulary of its own."""
    training = {**fine_tuning(work), "init_vocabulary": "own"}
    few: Tree = {"size": FEW_SUBWORDS}
    write_config(work, train_files(work, "fr"), ("fr", "en"), vocabulary=few, model=DROPOUT, training=training)


def prepare_joint(work: Work) -> None:
    """Write a config for both languages in one model, which has the updates of the parent and of a child."""
    train = [{**train_files(work, language), "tag": f"<{language}>"} for language in ("fr", "de")]
    train[0]["weight"] = UPWEIGHTED
    steps = BUDGET["max_steps"] + CHILD["max_steps"]
    write_config(work, train, ("fr", "en"), training={"max_steps": steps, "validate_every": 650, "save_every": 650})
