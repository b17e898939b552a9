"""Runs exported ONNX graphs with onnxruntime: greedy search in numpy. `onnx` verifies with it; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_cli.text.vocabulary import BOS, EOS, PAD

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class OnnxState:
    """What a step needs beside the tokens: inputs of the decoder's graph by their names."""

    memory: dict[str, Array]  # source ids (B, S); keys and values of the memory (B, H, S, d)
    past: dict[str, Array]  # keys and values of what was decoded so far (B, H, P, d)


class OnnxModel:
    """The two graphs of an exported folder."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting takes no CPU
        providers = ["CPUExecutionProvider"]
        self._encoder = onnxruntime.InferenceSession(folder / "encoder.onnx", options, providers)
        self._decoder = onnxruntime.InferenceSession(folder / "decoder.onnx", options, providers)
        self._memory = [output.name for output in self._encoder.get_outputs()]
        self._grown = [output.name for output in self._decoder.get_outputs()][1:]
        past = [entry for entry in self._decoder.get_inputs() if entry.name.startswith("past_")]
        self._past_shapes = {entry.name: (entry.shape[1], entry.shape[3]) for entry in past}  # heads, head_dim

    def encode(self, source: Array) -> OnnxState:
        """Source ids (B, S), `</s>` last, then padding → the state before the first step."""
        outputs = self._encoder.run(self._memory, {"source": source})
        past = {
            name: np.zeros((len(source), heads, 0, width), np.float32)
            for name, (heads, width) in self._past_shapes.items()
        }
        return OnnxState({"source": source, **dict(zip(self._memory, outputs, strict=True))}, past)

    def step(self, target: Array, state: OnnxState) -> tuple[Array, OnnxState]:
        """The next target ids (B, T) → logits (B, T, V), and the state after them."""
        logits, *grown = self._decoder.run(["logits", *self._grown], {"target": target, **state.memory, **state.past})
        past = {f"past_{name}": value for name, value in zip(self._grown, grown, strict=True)}
        return logits, OnnxState(state.memory, past)

    def greedy(self, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> list[list[int]]:
        """The likeliest token at each step, as `decoding.greedy` takes it; ids come and go without specials."""
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
