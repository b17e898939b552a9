"""Guided attention on the copy task: how soon attention is diagonal, and copies right, with it and without.

    .venv/bin/python experiments/guided_attention.py data/copy_task OUT.json [--seeds 1 2 3] [--picture FILE.png]

The data is that of `python -m data.sample.make.numbers data/copy_task`, the model that of configs/copy_task.yaml.
Every `--every` steps the validation numbers are read with their true copies: *diagonal* is the share of the last
decoder layer's attention, the mean over its heads, that falls on the digit to be written or one beside it; *copied* the
share of numbers whose every token is the likeliest one, which is what greedy search then writes. Prints a Markdown
table; OUT keeps every value. A seed that is in OUT already is not trained again.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from transformer_cli.build import build_model, build_objective
from transformer_cli.config import Config, load_config
from transformer_cli.data.corpora import open_corpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.loader import CorpusBatches, load_updates
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.plots.style import PALETTE, count_axis, save, style
from transformer_cli.text.build import build_codecs
from transformer_cli.text.vocabulary import PAD
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import build_optimizer, train_steps

ROOT = Path(__file__).parents[1]
BAND = 1  # digits to either side that still count as diagonal
REACHED = 0.9  # of attention and of copies, for the table

Curve = list[dict[str, float]]  # of each measurement: step, diagonal, copied


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    curves: dict[str, Curve] = json.loads(options.out.read_text()) if options.out.exists() else {}
    for seed in options.seeds:
        for kind, name in (("plain", "copy_task"), ("guided", "guided_attention")):
            if f"{kind} {seed}" not in curves:
                config = _config(options.data, name, seed, options.steps)
                curves[f"{kind} {seed}"] = list(learn(config, options.every))
                options.out.write_text(json.dumps(curves, indent=1) + "\n")
    print("\n".join(table(curves)))
    if options.picture is not None:
        save(picture(curves), options.picture)


def _config(data: Path, name: str, seed: int, steps: int) -> Config:
    changes = [
        f"data.{part}={{source: {data}/{part}.source, target: {data}/{part}.target}}" for part in ("train", "valid")
    ]
    changes += ["data.test=null", f"training.seed={seed}", f"training.max_steps={steps}"]
    return load_config(ROOT / "configs" / f"{name}.yaml", changes)


def learn(config: Config, every: int) -> Iterator[dict[str, float]]:
    """Train to the last step of the config; what is measured, at the beginning and every so many steps."""
    languages = config.data.source_language, config.data.target_language
    assert config.data.valid is not None
    train, valid = (
        open_corpus(source, *languages) for source in (config.data.sources["data.train"], config.data.valid)
    )
    codecs, _ = build_codecs(config, train.pairs)
    encoded = encode_corpus(train, codecs, max_length=config.data.max_length)
    held_out = encode_corpus(valid, codecs, max_length=config.data.max_length)
    training = config.training
    torch.manual_seed(training.seed)
    model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary))
    objective = build_objective(model, config)
    optimizer = build_optimizer(objective, training)
    updates = load_updates(CorpusBatches(encoded, training.batch_tokens, training.seed))
    yield {"step": 0, **measure(model, held_out)}
    for update in train_steps(objective, optimizer, Precision("fp32", torch.device("cpu")), training, updates):
        if update.step % every == 0:
            found = {"step": update.step, **measure(model, held_out)}
            print(found, flush=True)
            yield found
        if update.step == training.max_steps:
            return


@torch.inference_mode()
def measure(model: Transformer, corpus: EncodedCorpus) -> dict[str, float]:
    """`diagonal` and `copied` over a corpus; see the module."""
    model.eval()
    diagonal = copied = tokens = 0.0
    batches = CorpusBatches(corpus, batch_tokens=4000, seed=0)
    plan = batches.plan(epoch=0)
    for number in range(len(plan)):
        batch = batches.read(plan[number])
        memory = model.encode(batch.source, batch.source_mask)
        output = model.decode(batch.target_input, memory, batch.source_mask, need_weights=True)
        attention = output.cross_attention[-1].mean(dim=1)  # (B, T, S)
        places = [torch.arange(size) for size in attention.shape[1:]]
        band = (places[0][:, None] - places[1]).abs() <= BAND  # (T, S): a copy is as long as its source
        is_token = batch.target_output != PAD  # (B, T)
        diagonal += float(((attention * band).sum(dim=2) * is_token).sum())
        tokens += batch.target_tokens
        right = model.generator(output, batch.source).argmax(dim=2) == batch.target_output
        copied += float((right | ~is_token).all(dim=1).sum())
    return {"diagonal": diagonal / tokens, "copied": copied / len(corpus)}


def table(curves: dict[str, Curve]) -> Iterator[str]:
    """After how many steps each kind is where it should be, over the seeds."""
    yield f"| training | seeds | steps to {REACHED:.0%} diagonal | steps to {REACHED:.0%} copied | diagonal | copied |"
    yield "|---|---|---|---|---|---|"
    for kind in ("plain", "guided"):
        of_kind = [curve for name, curve in sorted(curves.items()) if name.startswith(kind)]
        steps = [", ".join(_reached(curve, what) for curve in of_kind) for what in ("diagonal", "copied")]
        ends = [_spread([curve[-1][what] for curve in of_kind]) for what in ("diagonal", "copied")]
        yield f"| {kind} | {len(of_kind)} | {steps[0]} | {steps[1]} | {ends[0]} | {ends[1]} |"


def _reached(curve: Curve, what: str) -> str:
    return next((f"{point['step']:,.0f}" for point in curve if point[what] >= REACHED), "never")


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1%}{deviation}"


def picture(curves: dict[str, Curve]) -> Figure:
    """Both values over the steps: a thin line a seed, a thick one for their mean."""
    with style():
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        names = {"diagonal": "attention on the diagonal", "copied": "numbers copied without a mistake"}
        for axes, (what, name) in zip(figure.subplots(1, 2), names.items(), strict=True):
            for kind, colour in zip(("plain", "guided"), PALETTE, strict=False):
                of_kind = [curve for key, curve in sorted(curves.items()) if key.startswith(kind)]
                steps = [point["step"] for point in of_kind[0]]
                values = np.array([[point[what] for point in curve] for curve in of_kind])
                axes.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.5)
                axes.plot(steps, values.mean(axis=0), color=colour, label=kind)
            axes.set_title(name)
            axes.set_ylim(0, 1.02)
            axes.yaxis.set_major_formatter("{x:.0%}")
            count_axis(axes, "step (update of the weights)")
        figure.axes[0].legend(loc="lower right")
    return figure


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
