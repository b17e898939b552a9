"""ONNX graphs of a model: an encoder, and a step of the decoder with its cache.

Called by `tfm export --format onnx`. `onnx_runner` runs them with onnxruntime, to verify what was written.
"""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from transformer_cli.build import LoadedModel, load_model
from transformer_cli.data.batch import Batch
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.errors import UserError
from transformer_cli.export.graphs import DecoderGraph, EncoderGraph
from transformer_cli.export.onnx_readme import readme
from transformer_cli.export.onnx_runner import OnnxModel
from transformer_cli.export.verify import (
    BATCH,
    Reference,
    check_plain,
    check_texts,
    greedy_references,
    largest_difference,
    our_logits,
    silent,
    verification_sentences,
    verified,
)
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import CONFIG, RunFolder
from transformer_cli.text.codec import vocabulary_files
from transformer_cli.text.vocabulary import BOS, EOS, PAD, UNK

POSITIONS = 1024  # rows of the table of sinusoids, at least
INSTALL = "pip install 'transformer-cli[onnx]'"


def export_onnx(folder: Path, out: Path, *, verify: bool = True, sentences: Path | None = None) -> str | None:
    """Publish as `out` a checkpoint's graphs `encoder.onnx` and `decoder.onnx`, what a program needs beside them, and a
    README.md that names every input and output.

    `verify` runs both with onnxruntime over `sentences` (else the first ones of `data.valid`): logits within 1e-4 of
    torch's, the same greedy translations. Raises `UserError` before anything is written, and
    `ExportDiffers` with nothing left. Tells how the check went.
    """
    for package in ("onnx", "onnxscript", *["onnxruntime"] * verify):
        if find_spec(package) is None:
            raise UserError(f"--format onnx: needs {package}, which is not installed; {INSTALL}")
    loaded = load_model(folder)
    check_plain(loaded.config.model, "onnx")
    loaded.model.float()
    references = greedy_references(loaded, verification_sentences(loaded.config, sentences)) if verify else []
    description = describe(loaded)
    sides = ("shared", "shared") if loaded.config.vocabulary.shared else ("source", "target")
    told = None

    def write(temporary: Path) -> None:
        nonlocal told
        with silent():
            _write_graphs(loaded, description, temporary)
        for name in [CONFIG, *vocabulary_files(loaded.config.vocabulary)]:
            (temporary / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, temporary / name)
        (temporary / "config.json").write_text(json.dumps(description, indent=2) + "\n")
        (temporary / "README.md").write_text(readme(description, sides), "utf-8")
        if verify:
            told = _verify(loaded, OnnxModel(temporary), references)

    RunFolder(out.parent).create()
    publish(out, write)
    return told


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """What a program that runs the graphs has to know, as config.json says it."""
    config, model = loaded.config, loaded.model
    options = SearchOptions.from_config(config.decoding)
    longest = max(config.data.max_length, options.length_limit(config.data.max_length)) + 1
    learned = config.model.positions == "learned"
    return {
        "source_language": config.data.source_language,
        "target_language": config.data.target_language,
        "source_vocabulary_size": len(loaded.codecs.source.vocabulary),
        "target_vocabulary_size": len(loaded.codecs.target.vocabulary),
        "tokenizer": config.vocabulary.tokenizer,
        "lowercase": config.vocabulary.lowercase,
        "normalization": config.vocabulary.normalization,
        "pad_id": PAD,
        "unk_id": UNK,
        "bos_id": BOS,
        "eos_id": EOS,
        "decoder_layers": config.model.decoder_layers,
        "heads": config.model.heads,
        "head_dim": config.model.head_dim or config.model.d_model // config.model.heads,
        "max_positions": model.max_source_length or longest if learned else max(POSITIONS, longest),
        "max_source_length": config.data.max_length,
        "max_length_ratio": config.decoding.max_length_ratio,
        "max_length_extra": config.decoding.max_length_extra,
    }


def _write_graphs(loaded: LoadedModel, description: dict[str, Any], folder: Path) -> None:
    rows, layers = description["max_positions"], description["decoder_layers"]
    names = [f"{part}_{number}" for number in range(layers) for part in ("keys", "values")]
    encoder = EncoderGraph(loaded.model, rows).eval()
    decoder = DecoderGraph(loaded.model, rows).eval()
    batch, source_length, target_length, past_length = map(
        Dim, ("batch", "source_length", "target_length", "past_length")
    )
    source, target = torch.full((3, 7), EOS), torch.full((3, 4), BOS)  # no length is 1: it would stay so
    # One object each: inputs that are one tensor would be one input.
    past = [torch.zeros(3, description["heads"], 5, description["head_dim"]) for _ in names]
    with torch.no_grad():
        memory = list(encoder(source))
        _write_graph(
            encoder,
            (source,),
            folder / "encoder.onnx",
            input_names=["source"],
            output_names=[f"memory_{name}" for name in names],
            dynamic_shapes=({0: batch, 1: source_length},),
        )
        _write_graph(
            decoder,
            (target, source, memory, past),
            folder / "decoder.onnx",
            input_names=[
                "target",
                "source",
                *(f"memory_{name}" for name in names),
                *(f"past_{name}" for name in names),
            ],
            output_names=["logits", *names],
            dynamic_shapes=(
                {0: batch, 1: target_length},
                {0: batch, 1: source_length},
                [{0: batch, 2: source_length}] * len(names),
                [{0: batch, 2: past_length}] * len(names),
            ),
        )


def _write_graph(graph: torch.nn.Module, inputs: tuple[Any, ...], path: Path, **names: Any) -> None:
    program = torch.onnx.export(graph, inputs, dynamo=True, verbose=False, **names)
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # traces of our own source, with the paths of this machine
    program.save(path)


def _verify(loaded: LoadedModel, exported: OnnxModel, references: list[Reference]) -> str:
    """Hold the graphs against our own model; raises `ExportDiffers`."""
    largest = 0.0
    texts = []
    for first in range(0, len(references), BATCH):
        part = references[first : first + BATCH]
        batch = Batch.from_ids([(one.source, one.target) for one in part])
        logits, _ = exported.step(batch.target_input.numpy(), exported.encode(batch.source.numpy()))
        expected = our_logits(loaded.model, batch)
        largest = max(largest, largest_difference(torch.from_numpy(logits), expected, batch.target_output != PAD))
        found = exported.greedy([one.source for one in part], [one.limit for one in part])
        texts += [loaded.codecs.target.decode(ids) for ids in found]
    check_texts(references, texts)
    return verified(references, largest)
