"""The model and the search once more, from their description alone: numpy in float64 and plain Python.

It reads a checkpoint's `config.yaml` and `model.safetensors`, and knows nothing of the package.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import load_file

Array = np.ndarray[Any, np.dtype[np.float64]]
PAD, UNK, BOS, EOS = range(4)
erf = np.vectorize(math.erf, otypes=[np.float64])


def log_softmax(logits: Array) -> Array:
    shifted: Array = logits - logits.max(-1, keepdims=True)
    normalised: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


class NumpyModel:
    """The Transformer of a checkpoint folder, one source at a time; of T target positions every row is computed anew.

    Shapes: S source and T target positions, N targets of one source, D d_model, V target vocabulary.
    """

    def __init__(self, folder: Path) -> None:
        self.config = yaml.safe_load((folder / "config.yaml").read_text("utf-8"))["model"]
        self.weights = {
            name: tensor if tensor.dtype.kind == "i" else tensor.astype(np.float64)
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
        tied = self.config["tie_embeddings"]
        self.source_table = self.weights["source_embedding.tokens.table.weight"]
        self.target_table = self.source_table if tied == "all" else self.weights["target_embedding.tokens.table.weight"]
        self.output = self.target_table if tied != "none" else self.weights["generator.projection.weight"]

    # --- the boxes of the paper's figure --------------------------------------------------------------------------

    def linear(self, name: str, states: Array) -> Array:
        product: Array = states @ self.weights[f"{name}.weight"].T
        return product + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else product

    def norm(self, name: str, states: Array) -> Array:
        centred = states - states.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + float(self.config["norm_epsilon"]))
        scaled: Array = centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return scaled

    def sublayer(self, name: str, states: Array, change: Callable[[Array], Array]) -> Array:
        norm = f"{name}_residual.norm"
        if self.config["norm"] == "pre":
            return states + change(self.norm(norm, states))
        return self.norm(norm, states + change(states))

    def attend(self, name: str, states: Array, read: Array, causal: bool = False) -> tuple[Array, Array]:
        """States (…, T, D) attend to (…, S, D): what they get (…, T, D), and the weights (…, H, T, S)."""
        heads = self.config["heads"]
        key_dim = self.config["head_dim"] or self.config["d_model"] // heads
        value_dim = self.config["value_dim"] or key_dim
        query = self.linear(f"{name}.query", states)
        if value_dim == key_dim:
            key, value = np.split(self.linear(f"{name}.key_value", read), 2, axis=-1)
        else:
            key, value = self.linear(f"{name}.key", read), self.linear(f"{name}.value", read)
        own = name.endswith("self_attention")
        query, key = self.placed(query, heads if own else 1, own), self.placed(key, heads, own)
        parts, weights = [], []
        for head in range(heads):
            keys = slice(head * key_dim, (head + 1) * key_dim)
            scores = query[..., keys] @ np.swapaxes(key[..., keys], -1, -2) / math.sqrt(key_dim)
            if causal:
                scores = np.where(np.tri(scores.shape[-2], dtype=bool), scores, -np.inf)
            weights.append(np.exp(log_softmax(scores)))
            parts.append(weights[-1] @ value[..., head * value_dim : (head + 1) * value_dim])
        return self.linear(f"{name}.output", np.concatenate(parts, -1)), np.stack(weights, -3)

    def placed(self, vectors: Array, parts: int, turns: bool) -> Array:
        """Queries or keys (…, T, H·d), normalised in so many parts, each head's turned by the angles of its place."""
        if self.config["qk_norm"]:
            apart = np.array(np.split(vectors, parts, axis=-1))
            apart -= apart.mean(-1, keepdims=True)
            apart /= np.sqrt(np.square(apart).mean(-1, keepdims=True) + self.config["norm_epsilon"])
            vectors = np.concatenate([*apart], -1)
        vectors = np.array(np.split(vectors, self.config["heads"], axis=-1))  # (H, …, T, d)
        width = vectors.shape[-1]
        if self.config["positions"] == "rotary" and turns:
            for place in range(vectors.shape[-2]):
                for one in range(width // 2):
                    other, angle = one + width // 2, place / 10_000 ** (2 * one / width)
                    turned = (vectors[..., place, one] + 1j * vectors[..., place, other]) * np.exp(1j * angle)
                    vectors[..., place, one], vectors[..., place, other] = turned.real, turned.imag
        return np.concatenate([*vectors], -1)

    def feed_forward(self, name: str, states: Array) -> Array:
        kind = self.config["activation"]
        opening = self.linear(f"{name}.gate" if kind in ("swiglu", "geglu") else f"{name}.inner", states)
        if kind == "relu":
            opened = np.maximum(opening, 0.0)
        elif kind == "swiglu":
            opened = opening / (1.0 + np.exp(-opening)) * self.linear(f"{name}.inner", states)
        else:
            opened = opening * 0.5 * (1.0 + erf(opening / math.sqrt(2.0)))
            if kind == "geglu":
                opened = opened * self.linear(f"{name}.inner", states)
        return self.linear(f"{name}.outer", opened)

    def embed(self, side: str, ids: Sequence[int]) -> Array:
        table = self.source_table if side == "source" else self.target_table
        width = self.config["d_model"]
        states: Array = math.sqrt(width) * table[[token if token < len(table) else UNK for token in ids]]
        if self.config["positions"] == "learned":
            return states + self.weights[f"{side}_embedding.positions.table.weight"][: len(ids)]
        if self.config["positions"] == "rotary":
            return states
        for place in range(len(ids)):
            for channel in range(width):
                angle = place / 10_000 ** (channel // 2 * 2 / width)
                states[place, channel] += math.cos(angle) if channel % 2 else math.sin(angle)
        return states

    # --- encoder, decoder, generator ------------------------------------------------------------------------------

    def encode(self, source: Sequence[int]) -> Array:
        """Source ids with `</s>` → memory (S, D)."""
        states = self.embed("source", source)
        for number in range(self.config["encoder_layers"]):
            states, _ = self.layer(f"encoder.layers.{number}", states, None)
        return self.norm("encoder.norm", states) if self.config["norm"] == "pre" else states

    def decode(self, memory: Array, targets: Sequence[Sequence[int]]) -> tuple[Array, Array]:
        """Targets of one length, from `<s>` on → hidden states (N, T, D); the last layer's attention (N, H, T, S)."""
        states, weights = np.stack([self.embed("target", target) for target in targets]), np.empty(0)
        for number in range(self.config["decoder_layers"]):
            states, weights = self.layer(f"decoder.layers.{number}", states, memory)
        return (self.norm("decoder.norm", states) if self.config["norm"] == "pre" else states), weights

    def layer(self, name: str, states: Array, memory: Array | None) -> tuple[Array, Array]:
        """States after a layer of the encoder, or of the decoder (over a memory); attention to the memory."""
        weights: list[Array] = [np.empty(0)]
        causal = memory is not None and self.config["generation"] == "autoregressive"

        def attend(part: str, states: Array, read: Array | None, causal: bool = False) -> Array:
            mixed, weights[0] = self.attend(f"{name}.{part}", states, states if read is None else read, causal)
            return mixed

        states = self.sublayer(f"{name}.self_attention", states, lambda x: attend("self_attention", x, None, causal))
        if memory is not None:
            states = self.sublayer(f"{name}.cross_attention", states, lambda x: attend("cross_attention", x, memory))
        states = self.sublayer(f"{name}.feed_forward", states, lambda x: self.feed_forward(f"{name}.feed_forward", x))
        return states, weights[0]

    def log_probs(self, source: Sequence[int], memory: Array, targets: Sequence[Sequence[int]]) -> Array:
        """log p of what may come after each position of the targets, (N, T, V); with copies (N, T, V + S)."""
        hidden, attention = self.decode(memory, targets)
        logits = hidden @ self.output.T
        if "generator.projection.bias" in self.weights:
            logits = logits + self.weights["generator.projection.bias"]
        plain = log_softmax(logits)
        if self.config["generator"] == "softmax":
            return plain
        gate = 1.0 / (1.0 + np.exp(-self.linear("generator.mixture", hidden)))  # (N, T, 1)
        first_head = attention[:, 0]  # (N, T, S)
        resting = sum(first_head[..., place] for place, token in enumerate(source) if token <= EOS)
        mixed = np.zeros((*plain.shape[:2], plain.shape[2] + len(source)))
        mixed[..., : plain.shape[2]] = (gate + (1.0 - gate) * np.asarray(resting)[..., None]) * np.exp(plain)
        for place, token in enumerate(source):
            if token > EOS:
                mixed[..., self._column(source, token)] += (1.0 - gate[..., 0]) * first_head[..., place]
        with np.errstate(divide="ignore"):
            return np.log(mixed)

    def _column(self, source: Sequence[int], token: int) -> int:
        """Return the target id of a source token; of one that the target vocabulary lacks, where it first stands."""
        known, size = self.weights["generator.target_ids"], len(self.output)
        own = int(known[token]) if token < len(known) else token - len(known)
        return own if 0 <= own < size else size + list(source).index(token)

    # --- what is asked of it --------------------------------------------------------------------------------------

    def score(self, source: Sequence[int], target: Sequence[int]) -> list[float]:
        """log p of each target token, and of the end; both without specials."""
        ids = [*source, EOS]
        memory = self.encode(ids)
        if self.config["generation"] == "autoregressive":
            canvas, wanted = [BOS, *target], [*target, EOS]
        elif self.config["generation"] == "one_shot":  # the mask is <s>
            canvas, wanted = [BOS] * max(2 * len(source) + 8, len(target) + 1), [*target, EOS]
        else:
            canvas, wanted = [BOS] * len(target), [*target]
        rows = self.log_probs(ids, memory, [canvas])[0]
        values = [float(row[token]) for row, token in zip(rows, wanted, strict=False)]
        if self.config["generation"] == "mask_predict":
            lengths = log_softmax(self.linear("length_predictor.projection", memory.mean(0)))
            values.append(float(lengths[len(target) - len(source) + 128]))
        return values

    def search(self, source: Sequence[int], limit: int, size: int, alpha: float) -> list[tuple[list[int], float]]:
        """The `size` best translations by beam search, with their scores."""
        ids = [*source, EOS]
        memory = self.encode(ids)

        def after(hypotheses: Sequence[tuple[int, ...]]) -> Array:
            rows = self.log_probs(ids, memory, [(BOS, *hypothesis) for hypothesis in hypotheses])[:, -1]
            rows[:, [PAD, BOS]] = -np.inf  # no translation holds them
            return rows

        return beam_search(after, limit, size, alpha)


def beam_search(
    after: Callable[[Sequence[tuple[int, ...]]], Array], limit: int, size: int, alpha: float
) -> list[tuple[list[int], float]]:
    """Return the `size` best hypotheses with their scores, Σ log p / |y|^α, `</s>` in the sum and not in |y|.

    after: log p of each next token after hypotheses of one length. Of the 2K best continuations those ending among the
    first K are set aside, and the first K others continue; K ended hypotheses, or the limit, end the search. There the
    first K count as they are.
    """
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[list[int], float]] = []
    for length in range(1, limit + 1):
        rows = after([words for _, words in live])
        if length == 1:
            rows[:, EOS] = -np.inf  # no translation is empty
        candidates = [
            (total + float(value), (*words, token))
            for (total, words), row in zip(live, rows, strict=True)
            for token, value in enumerate(row)
            if value > -np.inf
        ]
        candidates = sorted(candidates, key=lambda one: -one[0])[: 2 * size]
        for total, words in candidates[:size]:
            if words[-1] == EOS:
                ended.append(([*words[:-1]], total / (length - 1) ** alpha))
            elif length == limit:
                ended.append(([*words], total / length**alpha))
        live = [one for one in candidates if one[1][-1] != EOS][:size]
        if len(ended) >= size:
            break
    return sorted(ended, key=lambda one: -one[1])[:size]
