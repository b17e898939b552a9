"""Our weights under the names, and in the order of channels, that a MarianMTModel has. Called by `huggingface`.

Its positions are all sines, then all cosines; ours take turns. So the channels of the residual stream (d_model) change
places, in every weight that reads or writes them, and the function stays the same. Heads and d_ff stay as they are.
"""

import torch
from torch import Tensor

from transformer_cli.config import ModelConfig
from transformer_cli.model.transformer import Transformer

ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
NORMS = {
    "self_attention_residual": "self_attn_layer_norm",
    "cross_attention_residual": "encoder_attn_layer_norm",
    "feed_forward_residual": "final_layer_norm",
}


def marian_weights(model: Transformer, config: ModelConfig) -> dict[str, Tensor]:
    """Tensors by Marian's names, float32; tied ones once, missing biases as zeros."""
    ours = {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}
    order = torch.cat([torch.arange(0, config.d_model, 2), torch.arange(1, config.d_model, 2)])
    target = ours["target_embedding.tokens.table.weight"][:, order]
    theirs = {"final_logits_bias": ours.get("generator.projection.bias", torch.zeros(len(target)))[None]}
    if config.tie_embeddings == "all":
        theirs["model.shared.weight"] = target
    else:
        theirs["model.decoder.embed_tokens.weight"] = target
        theirs["model.encoder.embed_tokens.weight"] = ours["source_embedding.tokens.table.weight"][:, order]
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for number in range(layers):
            prefix = f"{side}.layers.{number}."
            layer = {name.removeprefix(prefix): tensor for name, tensor in ours.items() if name.startswith(prefix)}
            theirs |= {f"model.{prefix}{name}": tensor for name, tensor in _layer(layer, order).items()}
    return {name: tensor.contiguous() for name, tensor in theirs.items()}


def _layer(ours: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    theirs: dict[str, Tensor] = {}

    def linear(name: str, weight: Tensor, bias: Tensor | None, *, reads: bool) -> None:
        """A projection that reads the residual stream, or one that writes to it."""
        bias = torch.zeros(len(weight)) if bias is None else bias
        theirs[f"{name}.weight"] = weight[:, order] if reads else weight[order]
        theirs[f"{name}.bias"] = bias if reads else bias[order]

    for mine, name in ATTENTIONS.items():
        if f"{mine}.query.weight" not in ours:
            continue  # an encoder's layer attends to itself only
        linear(f"{name}.q_proj", ours[f"{mine}.query.weight"], ours.get(f"{mine}.query.bias"), reads=True)
        halves = ours[f"{mine}.key_value.weight"].chunk(2)
        both = ours.get(f"{mine}.key_value.bias")
        biases = (None, None) if both is None else both.chunk(2)
        for part, weight, bias in zip("kv", halves, biases, strict=True):
            linear(f"{name}.{part}_proj", weight, bias, reads=True)
        linear(f"{name}.out_proj", ours[f"{mine}.output.weight"], ours.get(f"{mine}.output.bias"), reads=False)
    linear("fc1", ours["feed_forward.inner.weight"], ours.get("feed_forward.inner.bias"), reads=True)
    linear("fc2", ours["feed_forward.outer.weight"], ours.get("feed_forward.outer.bias"), reads=False)
    for mine, name in NORMS.items():
        if f"{mine}.norm.weight" in ours:
            theirs[f"{name}.weight"] = ours[f"{mine}.norm.weight"][order]
            theirs[f"{name}.bias"] = ours[f"{mine}.norm.bias"][order]
    return theirs
