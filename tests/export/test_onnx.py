"""Exported graphs are the same function as our own model, whole and step by step, for any batch and any length."""

import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.decoding.searching import search_batch
from transformer_cli import Translator
from transformer_cli.build import load_model
from transformer_cli.errors import UserError
from transformer_cli.export import onnx as onnx_export
from transformer_cli.export.onnx import DecoderGraph, EncoderGraph, OnnxModel, export_onnx
from transformer_cli.export.verify import ExportDiffers
from transformer_cli.model.masks import padding_mask
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD

Checkpoint = Callable[..., Path]
SOURCES = [[5, 6, 7, 8, 9, 10, 4, 4, 4, 11], [12], [7, 7, 5]]
TARGETS = [[BOS, 4, 9, 8], [BOS, 5, 6, 7], [BOS, 4, 4, 4]]
WORDS = {"tokenizer": "whitespace", "shared": False}
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {"decoder_layers": 1},  # the only one that each run of the tests exports
    "pre-norm, learned, gated": {"norm": "pre", "positions": "learned", "activation": "swiglu"},
    "untied, two vocabularies": {"vocabulary": WORDS, "tie_embeddings": "none", "activation": "geglu"},
    "wide heads, no biases": {"head_dim": 5, "heads": 3, "attention_bias": False, "feed_forward_bias": False},
    "tag": {"vocabulary": {"tokenizer": "whitespace", "symbols": ["<2en>"]}, "decoding": {"tag": "<2en>"}},
    "rotary, normalised": {"positions": "rotary", "qk_norm": True, "norm": "pre"},
    "gelu, biases": {"tie_embeddings": "decoder", "activation": "gelu", "generator_bias": True, "norm_epsilon": 1e-3},
}
EXPORTED = [name if number < 1 else pytest.param(name, marks=pytest.mark.slow) for number, name in enumerate(VARIANTS)]


@pytest.fixture(scope="session")
def exported(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported(variant)`: the folder of that variant's graphs, written and verified once."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in made:
            out = tmp_path_factory.mktemp("onnx") / "below" / "graphs"
            told = export_onnx(checkpoint(**VARIANTS[variant]), out)
            assert told is not None
            assert re.fullmatch(r"verified with 1\d\d sentences: .*, logits within \d\.\de-0[5-9]", told)
            made[variant] = out
        return made[variant]

    return get


def padded(sources: list[list[int]]) -> torch.Tensor:
    rows = [torch.tensor([*source, EOS]) for source in sources]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


def logits(folder: Path, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Our own model's."""
    model = load_model(folder).model
    with torch.inference_mode():
        result: torch.Tensor = model.generator.projection(model(source, padding_mask(source), target).hidden)
    return result


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_modules_are_the_model(checkpoint: Checkpoint, variant: str) -> None:
    folder = checkpoint(**VARIANTS[variant])
    model = load_model(folder).model.double()
    source, target = padded(SOURCES), torch.tensor(TARGETS)
    with torch.inference_mode():
        expected = model.generator.projection(model(source, padding_mask(source), target).hidden)
        memory = EncoderGraph(model, 50)(source)
        past = [keys_or_values[:, :, :0] for keys_or_values in memory]
        decoder = DecoderGraph(model, 50)
        for cuts in ([0, 4], [0, 1, 2, 3, 4], [0, 2, 3, 4]):
            grown, parts = past, []
            for first, end in pairwise(cuts):
                part, *grown = decoder(target[:, first:end], source, memory, grown)
                parts.append(part)
            torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-10, rtol=0)


def test_a_position_past_the_table_fails(checkpoint: Checkpoint) -> None:
    model = load_model(checkpoint()).model
    with pytest.raises(IndexError):
        EncoderGraph(model, 5)(padded(SOURCES))


@pytest.mark.medium
@pytest.mark.parametrize("variant", EXPORTED)
@pytest.mark.parametrize("rows", [slice(0, 3), slice(1, 2), slice(0, 1)])
def test_the_graphs_are_the_model(
    checkpoint: Checkpoint, exported: Callable[[str], Path], variant: str, rows: slice
) -> None:
    source, target = padded(SOURCES[rows]), torch.tensor(TARGETS[rows])
    expected = logits(checkpoint(**VARIANTS[variant]), source, target).numpy()
    graphs = OnnxModel(exported(variant))
    whole, _ = graphs.step(target.numpy(), graphs.encode(source.numpy()))
    np.testing.assert_allclose(whole, expected, atol=1e-4, rtol=0)
    state = graphs.encode(source.numpy())
    for position in range(target.size(1)):
        step, state = graphs.step(target[:, position : position + 1].numpy(), state)
        np.testing.assert_allclose(step[:, 0], expected[:, position], atol=1e-4, rtol=0)


def test_greedy_search_over_the_graphs_is_ours(checkpoint: Checkpoint, exported: Callable[[str], Path]) -> None:
    folder = checkpoint(**VARIANTS["the paper's"])
    translator = Translator.load(folder, "cpu")
    ours = search_batch(translator.engine, SOURCES, SearchOptions(method="greedy", max_length_ratio=3.0))
    limits = [SearchOptions(max_length_ratio=3.0).length_limit(len(source)) for source in SOURCES]
    assert len(set(limits)) > 1
    graphs = OnnxModel(exported("the paper's"))
    assert graphs.greedy(SOURCES, limits) == [found[0].ids for found in ours]


@pytest.mark.parametrize("variant", ["the paper's", pytest.param("tag", marks=pytest.mark.slow)])
def test_the_readmes_example_translates(
    checkpoint: Checkpoint, exported: Callable[[str], Path], tmp_path: Path, variant: str
) -> None:
    folder, out = checkpoint(**VARIANTS[variant]), exported(variant)
    code = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(code) == 1
    sentence = "ein kleiner Mann, groß"
    done = subprocess.run([sys.executable, "-c", code[0]], input=sentence, capture_output=True, text=True, cwd=out)
    translator = Translator.load(folder, "cpu")
    options = SearchOptions.from_config(translator.config.decoding, method="greedy")
    (read,) = translator.tagged([sentence])
    found = search_batch(translator.engine, [translator.codecs.source.encode(read)], options)[0][0]
    assert (read != sentence) == (variant == "tag")
    expected = translator.codecs.target.decode(found.ids)
    assert expected
    assert (done.stdout.removesuffix("\n"), done.stderr) == (expected, "")


def stand_in(monkeypatch: pytest.MonkeyPatch, graphs: Path) -> None:
    """Let every export write these graphs."""

    def save(path: Path) -> None:
        path.write_bytes((graphs / path.name).read_bytes())

    program = SimpleNamespace(model=SimpleNamespace(graph=[]), save=save)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: program)


def test_the_readmes_example_puts_the_tag_before_the_text(
    checkpoint: Checkpoint, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, exported("the paper's"))
    export_onnx(checkpoint(**VARIANTS["tag"]), tmp_path / "out", verify=False)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out" / "README.md").read_text("utf-8"), re.DOTALL)
    compile(code, "README.md", "exec")
    assert code.count("'<2en> ' + input()") == code.count("input()") == 1


def test_the_files_say_nothing_of_this_machine(exported: Callable[[str], Path]) -> None:
    out = exported("the paper's")
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "config.json",
        "config.yaml",
        "decoder.onnx",
        "encoder.onnx",
        "manifest.json",
        "vocab",
    ]
    for name in ("encoder.onnx", "decoder.onnx"):
        content = (out / name).read_bytes()
        assert not [word for word in (b"transformer_cli", b"File ", b".py") if word in content]


@pytest.mark.slow
def test_nothing_is_said_on_the_way(checkpoint: Checkpoint, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert export_onnx(checkpoint(decoder_layers=1), tmp_path / "out", verify=False) is None
    assert capfd.readouterr() == ("", "")


def test_graphs_that_differ_are_not_kept(
    checkpoint: Checkpoint, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model's graphs stand for a faulty export."""
    stand_in(monkeypatch, exported("the paper's"))
    with pytest.raises(ExportDiffers, match="a logit"):
        export_onnx(checkpoint(seed=2), tmp_path / "out")
    monkeypatch.setattr("transformer_cli.export.verify.LARGEST_LOGIT_DIFFERENCE", 1e9)
    with pytest.raises(ExportDiffers, match="translated differently"):
        export_onnx(checkpoint(seed=2), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_package_that_is_missing_is_named(
    checkpoint: Checkpoint, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(UserError, match=f"needs {package}"):
        export_onnx(checkpoint(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_sentences_there_is_no_check(checkpoint: Checkpoint, tmp_path: Path) -> None:
    nowhere = {"source": "none.de", "target": "none.en"}
    with pytest.raises(UserError, match="--no-verify"):
        export_onnx(checkpoint(data={"valid": nowhere}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
