"""A model as a folder of Hugging Face `transformers`: post-norm a MarianMTModel, pre-norm a
PegasusForConditionalGeneration, which is Marian with its norms elsewhere; both with a MarianTokenizer.

Called by `tfm export --format huggingface`; transformers itself is needed only to verify.
"""

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import pad

from transformer_cli.build import LoadedModel, load_model
from transformer_cli.config import Config
from transformer_cli.data.batch import Batch
from transformer_cli.errors import UserError
from transformer_cli.export.verify import (
    ExportDiffers,
    Reference,
    check_plain,
    compare,
    greedy_references,
    publish_verified,
    silent,
    verification_sentences,
)
from transformer_cli.model.transformer import Transformer
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.marian import MarianTokenizer
from transformer_cli.text.subword import ESCAPE, SPACE, SubwordTokenizer
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

CLASSES = {"post": "MarianMTModel", "pre": "PegasusForConditionalGeneration"}  # by model.norm
PLAIN = ("relu", "gelu", "swish")  # activations without a gate
SENTENCEPIECE = ("sentencepiece", "marian")  # tokenizers
NORM_EPSILON = 1e-5  # torch's default; neither class has a key for it
NEVER = -1e9  # the logit of a row that only the other vocabulary has
POSITIONS = 1024  # rows of the table of sinusoids, at least
INSTALL = "pip install 'transformer-cli[huggingface]'"
IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
PARTS = {  # of a layer's names, ours: theirs; replaced in this order
    "coder.norm": "coder.layer_norm",  # after the last layer, pre-norm only
    "feed_forward_residual.norm": "final_layer_norm",
    "_residual.norm": "_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "self_attention": "self_attn",
    "cross_attention": "encoder_attn",
    "query": "q_proj",
    "output": "out_proj",
}


def export_huggingface(folder: Path, out: Path, *, verify: bool = True, sentences: Path | None = None) -> str | None:
    """Publish as `out` a checkpoint as `AutoModelForSeq2SeqLM` and `AutoTokenizer` load it.

    `verify` loads it with transformers and translates `sentences` (else the first ones of `data.valid`) greedily: the
    same tokens go in, the same texts come out. Raises `UserError` before anything is written, where the model has a
    part that their class lacks, and `ExportDiffers` with nothing left. Returns how the check went.
    """
    loaded = load_model(folder)
    check_plain(loaded.config.model, "huggingface")
    check_expressible(loaded.config)
    if verify and find_spec("transformers") is None:
        raise UserError(f"--verify: needs transformers, which is not installed; {INSTALL}, or give --no-verify")
    loaded.model.float()
    references = []
    if verify:
        given = verification_sentences(loaded.config, loaded.folder, sentences)
        references = greedy_references(
            loaded, [sentence for sentence in given if _reads_alike(sentence, loaded.config)]
        )
        # Marian's tokenizer strips what it decodes.
        references = [dataclasses.replace(one, text=one.text.strip()) for one in references]

    def compare_folder(temporary: Path) -> str:
        with silent():
            return _compare(loaded, temporary, references)

    return publish_verified(out, lambda temporary: _write(loaded, temporary), compare_folder if verify else None)


def check_expressible(config: Config) -> None:
    """Raise `UserError` where the class for this model's norm cannot be this model, with the config's key and why."""
    model, vocabulary = config.model, config.vocabulary
    for key, value, refused, reason in (
        ("model.activation", model.activation, model.activation not in PLAIN, "has no gated feed-forward "
         f"layer ({', '.join(PLAIN)})"),
        ("model.positions", model.positions, (model.norm, model.positions) == ("post", "learned"), "has sinusoidal "
         "positions only"),
        ("model.positions", model.positions, model.positions == "rotary", "adds positions to the embeddings"),
        ("model.qk_norm", model.qk_norm, model.qk_norm, "does not normalise queries and keys"),
        ("model.norm_epsilon", model.norm_epsilon, model.norm_epsilon != NORM_EPSILON, f"has {NORM_EPSILON} built in"),
        ("model.head_dim", model.head_dim, model.head_dim not in (None, model.d_model / model.heads), "has heads of "
         "d_model / heads"),
        ("vocabulary.tokenizer", vocabulary.tokenizer, vocabulary.tokenizer not in SENTENCEPIECE, "reads text with "
         "sentencepiece only"),
        ("vocabulary.lowercase", vocabulary.lowercase, vocabulary.lowercase, "does not lowercase text"),
        ("vocabulary.normalization", vocabulary.normalization, vocabulary.normalization != "none", "does not normalise "
         "text so"),
    ):  # fmt: skip
        if refused:
            name = "its tokenizer" if key.startswith("vocabulary") else CLASSES[model.norm]
            raise UserError(f"{key}: {value}: {name} {reason}; export this model with --format onnx")


def _reads_alike(sentence: str, config: Config) -> bool:
    """Return whether Marian's tokenizer reads the sentence as ours does: U+2581 is its space, `>>de<<` a tag."""
    if config.vocabulary.tokenizer == "marian":
        return True
    return SPACE not in sentence and ESCAPE not in sentence and not sentence.startswith(">>")


# --- writing ------------------------------------------------------------------------------------------------------


def _write(loaded: LoadedModel, out: Path) -> None:
    save_file(their_weights(loaded.model, loaded.config), out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(out.stat().st_mode & 0o666)
    for side, codec in (("source", loaded.codecs.source), ("target", loaded.codecs.target)):
        assert isinstance(codec.tokenizer, SubwordTokenizer | MarianTokenizer)
        (out / f"{side}.spm").write_bytes(codec.tokenizer.model)
    files: dict[str, Any] = {
        "config.json": _model_config(loaded),
        "generation_config.json": _generation_config(loaded.config),
        "tokenizer_config.json": _tokenizer_config(loaded.config),
        "vocab.json": loaded.codecs.source.vocabulary.get_stoi(),
    }
    if not loaded.config.vocabulary.shared:
        files["target_vocab.json"] = loaded.codecs.target.vocabulary.get_stoi()
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _longest(config: Config) -> int:
    """Return the most tokens of a translation, without specials."""
    longest = SearchOptions.from_config(config.decoding).length_limit(config.data.max_length)
    return max(1, min(longest, config.model.max_positions - 1)) if config.model.positions == "learned" else longest


def _position_count(config: Config) -> int:
    if config.model.positions == "learned":
        return config.model.max_positions
    return max(POSITIONS, config.data.max_length + 1, _longest(config) + 1)


def _model_config(loaded: LoadedModel) -> dict[str, Any]:
    model = loaded.config.model
    source, target = (len(codec.vocabulary) for codec in (loaded.codecs.source, loaded.codecs.target))
    tables = {
        "vocab_size": source,
        "decoder_vocab_size": target,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
    }
    if model.norm == "pre":  # Pegasus ties all tables or none, of one size
        tables = {"vocab_size": max(source, target), "tie_word_embeddings": model.tie_embeddings == "all"}
    return {
        "architectures": [CLASSES[model.norm]],
        "model_type": "marian" if model.norm == "post" else "pegasus",
        "is_encoder_decoder": True,
        "dtype": "float32",
        **tables,
        "scale_embedding": True,
        "max_position_embeddings": _position_count(loaded.config),
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        "encoder_attention_heads": model.heads,
        "decoder_attention_heads": model.heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": model.activation,
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.activation_dropout,
        **IDS,
        "forced_eos_token_id": None,  # the default would end what is cut off with another token
    }


def _generation_config(config: Config) -> dict[str, Any]:
    decoding = config.decoding
    return {
        **IDS,
        "suppress_tokens": [PAD, BOS],  # no translation holds them
        "min_new_tokens": 1,  # none is empty
        "max_length": _longest(config) + 1,  # with <s>
        "num_beams": decoding.beam_size,
        "length_penalty": decoding.length_penalty if decoding.length_penalty_kind == "average" else 1.0,
        "early_stopping": True if decoding.stopping == "first" else "never",
    }


def _tokenizer_config(config: Config) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "model_max_length": min(config.data.max_length + 1, _position_count(config)),
        "separate_vocabs": not config.vocabulary.shared,
        "pad_token": SPECIALS[PAD],
        "unk_token": SPECIALS[UNK],
        "bos_token": SPECIALS[BOS],  # else it would stay in the text
        "eos_token": SPECIALS[EOS],
        "split_special_tokens": True,  # </s> in a text is text
        "clean_up_tokenization_spaces": False,
    }


def their_weights(model: Transformer, config: Config) -> dict[str, Tensor]:
    """Return tensors by their names, float32; tied ones once, missing biases as zeros."""
    order = sines_first(config.model.d_model)
    theirs = _tables(model, config, order)
    for name, module in model.named_modules():
        if name.startswith(("encoder.", "decoder.")) and isinstance(module, nn.Linear | nn.LayerNorm):
            theirs |= _part(name, module, order)
    return {name: tensor.contiguous() for name, tensor in theirs.items()}


def sines_first(d_model: int) -> Tensor:
    """Return the places of our dimensions in their order: all sines of the positions, then all cosines. → (D,)"""
    return torch.arange(d_model).view(-1, 2).T.reshape(-1)


def _tables(model: Transformer, config: Config, order: Tensor) -> dict[str, Tensor]:
    """Return what has a row for each token or position, and the output's bias."""
    sides = {"encoder": model.source_embedding, "decoder": model.target_embedding}
    source, target = (_plain(side.tokens.table.weight) for side in sides.values())
    output, bias = _plain(model.generator.projection.weight), _plain(model.generator.projection.bias, len(target))
    rows = {"model.encoder.embed_tokens": source, "model.decoder.embed_tokens": target}
    if config.model.tie_embeddings == "all":
        rows = {"model.shared": target}
    elif config.model.norm == "pre":  # all of one size; the shared one is never looked into
        rows |= {"model.shared": source, "lm_head": output}
        size = max(len(source), len(target))
        rows = {name: pad(table, (0, 0, 0, size - len(table))) for name, table in rows.items()}
        bias = pad(bias, (0, size - len(bias)), value=NEVER)
    elif config.model.tie_embeddings == "none":
        rows |= {"lm_head": output}
    if config.model.norm == "pre":  # Marian computes them
        count = _position_count(config)
        for name, side in sides.items():
            assert side.positions is not None, "rotary ones are refused"
            rows[f"model.{name}.embed_positions"] = _plain(side.positions(0, count))
    return {"final_logits_bias": bias[None], **{f"{name}.weight": table[:, order] for name, table in rows.items()}}


def _part(name: str, module: nn.Linear | nn.LayerNorm, order: Tensor) -> dict[str, Tensor]:
    """Return a part of a layer by their names; the projection to keys and values is two of them."""
    weight, bias = _plain(module.weight), _plain(module.bias, len(module.weight))
    if writes_to_residual(name, module):
        weight, bias = weight[order], bias[order]
    else:  # it reads from that
        weight = weight[:, order]
    names = their_names(name)
    theirs: dict[str, Tensor] = {}
    for one, rows, offsets in zip(names, weight.chunk(len(names)), bias.chunk(len(names)), strict=True):
        theirs |= {f"{one}.weight": rows, f"{one}.bias": offsets}
    return theirs


def their_names(name: str) -> list[str]:
    """Return what they call a part of a layer; the projection to keys and values is two parts, one below the other."""
    for ours, other in PARTS.items():
        name = name.replace(ours, other)
    names = [name.replace("key_value", part) for part in ("k_proj", "v_proj")] if "key_value" in name else [name]
    return [f"model.{one}" for one in names]


def writes_to_residual(name: str, module: nn.Module) -> bool:
    """Return whether the rows of a part of a layer are dimensions of the residual stream, and not its columns."""
    return isinstance(module, nn.LayerNorm) or name.endswith((".output", ".outer"))


def _plain(parameter: Tensor | None, size: int = 0) -> Tensor:
    """Return a parameter as float32 on the CPU; `size` zeros for a bias that is not there."""
    return torch.zeros(size) if parameter is None else parameter.detach().cpu().float()


# --- verifying ----------------------------------------------------------------------------------------------------


def _compare(loaded: LoadedModel, folder: Path, references: list[Reference]) -> str:
    """Compare what transformers loads from the folder with our model."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils import logging

    def answer(part: list[Reference], batch: Batch) -> tuple[Tensor, list[str]]:
        inputs = tokenizer([one.sentence for one in part], return_tensors="pt", padding=True)
        if not torch.equal(inputs["input_ids"], batch.source):
            raise ExportDiffers(f"Marian's tokenizer makes other tokens of sentences such as {part[0].sentence!r}")
        logits = model(**inputs, decoder_input_ids=batch.target_input).logits[
            :, :, : len(loaded.codecs.target.vocabulary)
        ]
        found = model.generate(**inputs, num_beams=1, early_stopping=False, max_length=part[0].limit + 1)
        return logits, tokenizer.batch_decode(found, skip_special_tokens=True)

    shown: bool = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, local_files_only=True)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    return compare(loaded, references, answer)
