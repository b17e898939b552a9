"""ONNX graphs of a model: an encoder, and a step of the decoder with its cache.

Called by `tfm export --format onnx`. `onnx_readme.md` is the README beside the graphs; `OnnxModel` runs them with
onnxruntime, to verify what was written.
"""

import json
from collections.abc import Iterable, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from transformer_cli.build import LoadedModel, load_model
from transformer_cli.data.batch import Batch
from transformer_cli.errors import UserError
from transformer_cli.export.verify import (
    Reference,
    check_plain,
    compare,
    copy_text_files,
    greedy_references,
    publish_verified,
    silent,
    verification_sentences,
)
from transformer_cli.model.attention import KeysValues, MultiHeadAttention, Rotation
from transformer_cli.model.embedding import Embedding, RotaryPositions, as_rotation
from transformer_cli.model.layers import DecoderLayer, EncoderLayer
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import Transformer
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD, UNK

POSITIONS = 1024  # rows of the table of sinusoids, at least
INSTALL = "pip install 'transformer-cli[onnx]'"
# The README's example reads text without anything of ours, where sentencepiece alone gives the ids trained with.
SENTENCEPIECE = {
    "packages": "numpy onnxruntime sentencepiece",
    "setup": """import sentencepiece

models = [sentencepiece.SentencePieceProcessor(model_file=f"vocab/{side}.model") for side in SIDES]
text = input()""",
    "encode": "models[0].encode(text)",
    "decode": "models[1].decode(ids)",
}
CODECS = {
    "packages": "transformer-cli onnxruntime",
    "setup": """from transformer_cli.config import load_config
from transformer_cli.text.codec import Codecs

codecs = Codecs.load(".", load_config("config.yaml"))
text = input()""",
    "encode": "codecs.source.encode(text)",
    "decode": "codecs.target.decode(ids)",
}


def export_onnx(folder: Path, out: Path, *, verify: bool = True, sentences: Path | None = None) -> str | None:
    """Publish as `out` a checkpoint's graphs `encoder.onnx` and `decoder.onnx`, what a program needs beside them, and a
    README.md that names every input and output.

    `verify` runs both with onnxruntime over `sentences` (else the first ones of `data.valid`): logits within 1e-4 of
    torch's, the same greedy translations. Raises `UserError` before anything is written, and
    `ExportDiffers` with nothing left. Returns how the check went.
    """
    for package in ("onnx", "onnxscript", *["onnxruntime"] * verify):
        if find_spec(package) is None:
            raise UserError(f"--format onnx: needs {package}, which is not installed; {INSTALL}")
    loaded = load_model(folder)
    check_plain(loaded.config.model, "onnx")
    loaded.model.float()
    references = (
        greedy_references(loaded, verification_sentences(loaded.config, loaded.folder, sentences)) if verify else []
    )
    description = describe(loaded)

    def write(temporary: Path) -> None:
        with silent():
            _write_graphs(loaded, description, temporary)
        copy_text_files(loaded, folder, temporary)
        (temporary / "config.json").write_text(json.dumps(description, indent=2) + "\n")
        (temporary / "README.md").write_text(_readme(description, loaded.config.vocabulary.shared), "utf-8")

    def compare_graphs(temporary: Path) -> str:
        graphs = OnnxModel(temporary)

        def answer(part: list[Reference], batch: Batch) -> tuple[Tensor, list[str]]:
            logits, _ = graphs.step(batch.target_input.numpy(), graphs.encode(batch.source.numpy()))
            found = graphs.greedy([one.source for one in part], [one.limit for one in part])
            return torch.from_numpy(logits), [loaded.codecs.target.decode(ids) for ids in found]

        return compare(loaded, references, answer)

    return publish_verified(out, write, compare_graphs if verify else None)


def describe(loaded: LoadedModel) -> dict[str, Any]:
    """Return what a program that runs the graphs has to know, as config.json says it."""
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
        "head_dim": config.model.head_width,
        "max_positions": model.max_source_length or longest if learned else max(POSITIONS, longest),
        "max_source_length": config.data.max_length,
        "max_length_ratio": config.decoding.max_length_ratio,
        "max_length_extra": config.decoding.max_length_extra,
        "tag": config.decoding.tag,
    }


def _readme(description: dict[str, Any], shared: bool) -> str:
    """Return the README.md of a folder that config.json describes so; shared: whether vocab/ has one vocabulary."""
    plain = not description["lowercase"] and description["normalization"] == "none"
    example = SENTENCEPIECE if description["tokenizer"] == "sentencepiece" and plain else CODECS
    sides = ("shared", "shared") if shared else ("source", "target")
    parts = {name: text.replace("SIDES", repr(sides)) for name, text in example.items()}
    if tag := description["tag"]:
        parts["setup"] = parts["setup"].replace("input()", f"{tag + ' '!r} + input()")
    template = (resources.files("transformer_cli.export") / "onnx_readme.md").read_text("utf-8")
    return Template(template).substitute(description, **parts, last_layer=description["decoder_layers"] - 1)


# --- the graphs: the model's own layers between plain tensors, every length free --------------------------------------


class ByHead(NamedTuple):
    """Keys and values as the graphs take them, each (B, H, S, d), in the place of `KeysValues`."""

    keys: Tensor
    values: Tensor

    def split(self) -> tuple[Tensor, Tensor]:
        return self

    def append(self, new: KeysValues) -> "ByHead":
        return ByHead(*(torch.cat(pair, dim=2) for pair in zip(self, new.split(), strict=True)))


def _attend(
    attention: MultiHeadAttention,
    states: Tensor,
    keys_values: ByHead,
    mask: Tensor,
    rotation: Rotation | None = None,
) -> Tensor:
    """Attend openly, as asking for the weights makes it: graph formats have no fused kernel for every length."""
    by_head = cast(KeysValues, keys_values)
    mixed: Tensor = attention(states, by_head, mask, rotation=rotation, need_weights=True)[0]
    return mixed


class PlacedEmbedding(nn.Module):
    """`Embedding` with a table of positions, of which it takes any part: added, or returned as a rotation."""

    positions: Tensor

    def __init__(self, embedding: Embedding, rotary: RotaryPositions | None, rows: int) -> None:
        super().__init__()
        self.tokens, self.rotates = embedding.tokens, rotary is not None
        positions = embedding.positions if rotary is None else rotary.sinusoids
        assert positions is not None
        self.register_buffer("positions", positions(0, rows).detach().clone())

    def forward(self, ids: Tensor, start: int) -> tuple[Tensor, Rotation | None]:
        """Ids (B, T) at positions start, start + 1, … → (B, T, D). Past the table it fails: nothing is cut short."""
        places = torch.arange(ids.size(1), device=ids.device) + start
        positions, states = self.positions.index_select(0, places), self.tokens(ids)
        return (states, as_rotation(positions)) if self.rotates else (states + positions, None)


class EncoderGraph(nn.Module):
    """Source ids to the keys and values of the memory that every decoder layer attends to."""

    def __init__(self, model: Transformer, rows: int) -> None:
        super().__init__()
        self.embedding = PlacedEmbedding(model.source_embedding, model.encoder.rotary, rows)
        self.layers, self.norm = model.encoder.layers, model.encoder.norm
        decoder_layers = cast(Iterable[DecoderLayer], model.decoder.layers)
        self.cross_attentions = nn.ModuleList(layer.cross_attention for layer in decoder_layers)

    def forward(self, source: Tensor) -> tuple[Tensor, ...]:
        """Source ids (B, S), `</s>` last, then padding → keys, values, keys, … of each layer, all (B, H, S, d)."""
        mask = padding_mask(source)
        states, rotation = self.embedding(source, 0)  # (B, S, D)
        for layer in cast(Iterable[EncoderLayer], self.layers):
            states, _ = layer(states, mask, need_weights=True, rotation=rotation)
        memory = self.norm(states)
        attentions = cast(Iterable[MultiHeadAttention], self.cross_attentions)
        return tuple(part for attention in attentions for part in attention.keys_values(memory).split())


class DecoderGraph(nn.Module):
    """One step of the decoder: the next target ids, after those that the cache holds."""

    def __init__(self, model: Transformer, rows: int) -> None:
        super().__init__()
        self.embedding = PlacedEmbedding(model.target_embedding, model.decoder.rotary, rows)
        self.layers, self.norm = model.decoder.layers, model.decoder.norm
        self.projection = model.generator.projection

    def forward(
        self, target: Tensor, source: Tensor, memory: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Target ids (B, T), source ids (B, S), memory as `EncoderGraph` gives it, past (B, H, P, d), P ≥ 0.

        → logits (B, T, V) of the token after each, then the grown cache: keys, values, keys, … (B, H, P + T, d).
        """
        before = past[0].size(2)
        memory_mask = padding_mask(source)
        queries = torch.arange(target.size(1), device=target.device)[:, None]  # (T, 1)
        mask = torch.arange(before + target.size(1), device=target.device)[None, :] <= queries + before  # (T, P + T)
        states, rotation = self.embedding(target, before)  # (B, T, D)
        grown: list[Tensor] = []
        # Not the layer's own forward: it chooses its mask by the lengths, which are free here.
        for number, layer in enumerate(cast(Iterable[DecoderLayer], self.layers)):
            keys_and_values = slice(2 * number, 2 * number + 2)
            seen = layer.self_attention_residual.enter(states)
            decoded = ByHead(*past[keys_and_values]).append(layer.self_attention.keys_values(seen, rotation))
            grown += decoded
            change = _attend(layer.self_attention, seen, decoded, mask, rotation)
            states = layer.self_attention_residual.leave(states, change)
            seen = layer.cross_attention_residual.enter(states)
            change = _attend(layer.cross_attention, seen, ByHead(*memory[keys_and_values]), memory_mask)
            states = layer.cross_attention_residual.leave(states, change)
            change = layer.feed_forward(layer.feed_forward_residual.enter(states))
            states = layer.feed_forward_residual.leave(states, change)
        logits: Tensor = self.projection(self.norm(states))
        return (logits, *grown)


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
            input_names=["target", "source", *(f"{kind}_{name}" for kind in ("memory", "past") for name in names)],
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


# --- verifying --------------------------------------------------------------------------------------------------------

Array = np.ndarray[Any, Any]


class OnnxModel:
    """The two graphs of an exported folder, run by onnxruntime.

    A state is what the decoder's graph reads beside the tokens, by the inputs' names: the source ids, the memory's keys
    and values, and those of what was decoded so far.
    """

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting takes no CPU
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(folder / "encoder.onnx", options, providers)
        self._decoder = onnxruntime.InferenceSession(folder / "decoder.onnx", options, providers)
        self._memory = [output.name for output in self._encoder.get_outputs()]
        self._past = [entry for entry in self._decoder.get_inputs() if entry.name.startswith("past_")]

    def encode(self, source: Array) -> dict[str, Array]:
        """Read source ids (B, S), `</s>` last, then padding → the state before the first step."""
        outputs = self._encoder.run(self._memory, {"source": source})
        past = {
            entry.name: np.zeros((len(source), entry.shape[1], 0, entry.shape[3]), np.float32) for entry in self._past
        }
        return {"source": source, **dict(zip(self._memory, outputs, strict=True)), **past}

    def step(self, target: Array, state: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Read the next target ids (B, T) → logits (B, T, V), and the state after them."""
        logits, *grown = self._decoder.run(None, {"target": target, **state})
        return logits, state | {entry.name: value for entry, value in zip(self._past, grown, strict=True)}

    def greedy(self, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        """Take the likeliest token at each step, as our greedy search does; ids come and go without specials."""
        source = np.full((len(sources), 1 + max(map(len, sources))), PAD)
        for row, ids in zip(source, sources, strict=True):
            row[: len(ids) + 1] = [*ids, EOS]
        state = self.encode(source)
        target = np.full((len(sources), 1), BOS)
        path = np.zeros((len(sources), 0), np.int64)
        while path.shape[1] < max(limits) and not (path == EOS).any(axis=1).all():
            logits, state = self.step(target, state)
            logits[:, :, [PAD, BOS]] = -np.inf
            if path.shape[1] == 0:
                logits[:, :, EOS] = -np.inf
            target = logits[:, -1:].argmax(axis=-1)
            path = np.concatenate([path, target], axis=1)
        rows = [row[:limit] for row, limit in zip(path.tolist(), limits, strict=True)]
        return [row[: row.index(EOS)] if EOS in row else row for row in rows]
