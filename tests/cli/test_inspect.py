"""`tfm inspect`: the tree as a table and as JSON, of any model folder; no torch before there is a model."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch import nn

from transformer_cli.build import build_model, count_parameters, load_model
from transformer_cli.cli.inspect import lines
from transformer_cli.config import ModelConfig
from transformer_cli.inside.architecture import inspect_model


def test_the_tree_is_printed_with_the_models_parameters(trial: Any, tfm: Any) -> None:
    result = tfm("inspect", trial.run)
    assert (result.code, result.err) == (0, "")
    header, whole, *rows = result.out.splitlines()
    assert header.split() == ["part", "weights", "parameters", "multiply-adds"]
    parameters = count_parameters(load_model(trial.run).model)
    assert whole.split()[:4] == ["Transformer", f"{parameters:,}", "100.0", "%"]
    tree = [row for row in rows if "─ " in row]
    assert [row.split(":")[0] for row in tree if re.match(r"[├└]", row)] == [
        "├─ source_embedding",
        "├─ target_embedding",
        "├─ encoder",
        "├─ decoder",
        "└─ generator",
    ]
    assert any("projection: Linear" in row and "(tied)" in row for row in tree)
    assert not any("Dropout" in row for row in tree)
    assert re.search("^tied: .*source_embedding.tokens.table.weight", rows[-2])
    assert re.search("^multiply-adds: .*25 source and 25 target tokens", rows[-1])


def test_layers_that_are_alike_are_shown_once() -> None:
    config = ModelConfig(encoder_layers=4, decoder_layers=2, d_model=8, heads=2, d_ff=8)
    model = build_model(config, 20, 20)
    shown = list(lines(inspect_model(model, 3, 3), 3, 3))
    assert sum("4 × EncoderLayer, each" in line for line in shown) == 1
    assert sum("feed_forward: " in line for line in shown) == 2
    model.get_submodule("encoder.layers.1.feed_forward").register_module("inner", nn.Linear(8, 8, bias=False))
    shown = list(lines(inspect_model(model, 3, 3), 3, 3))
    assert sum("EncoderLayer" in line for line in shown) == 3  # 0, 1, then 2 and 3


def test_depth_and_lengths(trial: Any, tfm: Any) -> None:
    shallow = tfm("inspect", trial.run, "--depth", 1, "--source-length", 3, "--target-length", 1).out
    assert shallow.count("─ ") == 5
    assert "with 3 source and 1 target tokens" in shallow
    assert "at 26" in tfm("inspect", trial.words, "--source-length", 27).refused()


def test_json_holds_the_whole_tree(trial: Any, tfm: Any) -> None:
    tree = json.loads(tfm("inspect", trial.run, "--json", "--target-length", "4").out)
    assert (tree["model"], tree["source_length"], tree["target_length"]) == (str(trial.run), 25, 4)
    model = load_model(trial.run).model
    assert tree["parameters"] == count_parameters(model)

    def check(part: dict[str, Any]) -> None:
        own = sum(
            math.prod(weight["shape"])
            for weight in part["weights"]
            if weight["tied_to"] is None and not weight["constant"]
        )
        assert part["parameters"] == own + sum(inner["parameters"] for inner in part["parts"])
        assert part["multiply_adds"] == part["own_multiply_adds"] + sum(one["multiply_adds"] for one in part["parts"])
        assert part["class"] == type(model.get_submodule(part["path"])).__name__
        for inner in part["parts"]:
            check(inner)

    check(tree)


def test_a_missing_model_is_told_without_torch(tmp_path: Path) -> None:
    program = "import sys; sys.modules['torch'] = None; from transformer_cli.cli.app import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "inspect", "none"], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: none: no such folder")
