"""`tfm tune`: hyper-parameters by successive halving."""

import os
from pathlib import Path

import typer

from transformer_cli.cli import options as opt
from transformer_cli.cli.streams import align, note, warn

VARY = "A key and its values: KEY=a,b,c, or a range KEY=LOW..HIGH, drawn from on a log scale if HIGH is 10 LOW or more."
BUDGET = "What all trials together may take: 20000steps, or a time (90m, 2h, 1d)."
STORAGE = "Keep the study in this storage of Optuna, which several machines can share.  [default: OUT/study.db]"


class Halving(opt.Options, panel="Search"):
    """What is tried, and how much."""

    vary: list[str] | None = opt.option("--vary KEY=VALUES", f"{VARY} Repeatable.")
    budget: str = opt.option("--budget B", BUDGET, ...)
    sampler: str = opt.option("--sampler NAME", "tpe, random, or grid (every combination, in random order).", "tpe")
    reduction: int = opt.option("--reduction N", "One of N trials continues to the next rung.", 3, min=2, max=100)
    min_steps: int | None = opt.option(
        "--min-steps N", "Steps that every trial trains at least.  [default: those of the warmup]", min=1
    )
    seeds: int = opt.option(
        "--seeds N", "Train the best two once more with N other seeds each, whole, to measure noise.", 0, min=0, max=10
    )


class Place(opt.Options, panel="Input and output"):
    """Where the trials are, and what is printed."""

    out: Path | None = opt.option("--out FOLDER", "The trials.  [default: checkpoints/<config name>-tune]")
    overrides: list[str] | None = opt.OVERRIDES
    jobs: int | None = opt.option(
        "--jobs N", f"Train N trials at once, over all GPUs.  [default: 1{opt.ON_CLUSTER}]", min=1, max=1000
    )
    cluster: str | None = opt.CLUSTER
    storage: str | None = opt.option("--storage URL", STORAGE)
    study: str | None = opt.option("--study NAME", "With --storage: the study.  [default: the config's name]")
    device: str = opt.DEVICE
    as_json: bool = opt.JSON
    quiet: bool = opt.QUIET


def tune(context: typer.Context, config: opt.ConfigFile, *, place: Place, search: Halving) -> None:
    """Find better hyper-parameters, by successive halving.

    \b
    tfm tune my.yaml --budget 20000steps --set training.max_steps=4000 \\
        --vary model.dropout=0.1,0.2,0.3 --vary training.warmup_steps=100..1000
    tfm tune my.yaml --budget 2h --seeds 3 --vary model.d_ff=256,512,1024 \\
        --out checkpoints/widths

    Many trials train a little, the best third of them three times as long, the best third of these again, until one or
    more have trained for training.max_steps. A trial continues exactly where it stood, under the schedule of a whole
    run. Judged is the best validation so far, by training.best_metric. Values are drawn by Optuna; CONFIG's own come
    first, if they are among those to try. Each trial is a run folder in OUT/trials, trained by a process of its own.

    Prints all trials, the best first, and what mattered most; OUT/best.yaml is the config of the best one. With --seeds
    it says whether the best is better than the second beyond the noise of the seed, and warns otherwise.

    The same command continues where it was interrupted, and comes to the same end. With --storage, several machines
    share a study, each with a folder of its own.
    """
    from transformer_cli.decoding.devices import choose_device
    from transformer_cli.jobs import tuning
    from transformer_cli.storage.origin import load_found_config, paths_of

    opt.check_together(context)
    if place.cluster is None:
        choose_device(place.device)  # what every trial would stumble over
    name = config.name.removesuffix(config.suffix)
    question = tuning.Question(
        load_found_config(config, place.overrides or []),
        tuple(search.vary or ()),
        search.budget,
        search.sampler,
        search.reduction,
        search.min_steps,
        search.seeds,
        place.storage,
        place.study or name,
    )
    out = place.out or Path("checkpoints") / f"{name}-tune"
    say = (lambda _: None) if place.quiet else note
    jobs = opt.workplace(context, [Path(path) for path in paths_of(question.config).values() if os.path.isfile(path)])
    answer = tuning.tune(question, out, jobs=jobs, device=place.device, note=say)
    if place.as_json:
        print(tuning.as_json(answer))
    else:
        print("\n".join(align([*tuning.rows(answer)])))
        for line in tuning.summary(answer):
            print(line)
    if answer.beyond_noise is not True:
        warn(answer.verdict)
