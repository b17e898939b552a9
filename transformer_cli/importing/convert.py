"""An `Original` becomes a run folder: config, vocabularies and weights, all checked before anything is written.

Marian's model is ours but for names and orders. Its sinusoids stand sines first, cosines after; ours alternate. What
the sums of a model run over may stand in any order, so the dimensions of the residual stream are put in ours, which
changes no number (an export puts them back).
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.build import build_model
from transformer_cli.config import Config, ModelConfig, config_of_tree, dump_config
from transformer_cli.errors import UserError
from transformer_cli.export.huggingface import NORM_EPSILON, sines_first, their_names, writes_to_residual
from transformer_cli.importing.original import Original, Weights
from transformer_cli.model.embedding import sinusoidal_table
from transformer_cli.model.torch_private import without_drawing
from transformer_cli.storage.checkpoint import save_weights
from transformer_cli.storage.holding import temporary
from transformer_cli.storage.publishing import read_bytes, sync_folder
from transformer_cli.storage.run_folder import VOCAB, CheckpointIndex, RunFolder, step_name
from transformer_cli.text.codec import Codecs, MarianCodec, Preparation
from transformer_cli.text.marian import LANGUAGE, MarianTokenizer
from transformer_cli.text.tokenizers import escape
from transformer_cli.text.vocabulary import BOS, SPECIALS, Vocabulary

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
NEVER = -100.0  # the bias of `<s>` at the output, where it is a copy of another row: e^-100 is added to no probability
ROWS = 4096  # of a table, copied at a time
LEAST_KNOWN = 0.9  # of a sentencepiece model's pieces, that its vocabulary has
PAD_TOKEN, UNK_TOKEN, START_TOKEN, EOS_TOKEN = SPECIALS
SOURCE, TARGET = (f"{side}_embedding.tokens.table.weight" for side in ("source", "target"))
OUTPUT = "generator.projection.weight"
POSITIONS = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
REQUIRED: dict[str, tuple[Any, Any]] = {  # keys of config.json: what they must be, and are where they are not there
    "is_encoder_decoder": (True, True),
    "scale_embedding": (True, False),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
    "static_position_embeddings": (True, True),
}


def convert(original: Original, languages: tuple[str | None, str | None], out: Path) -> Config:
    """Write a model as a run folder, and return its config; `UserError` before anything is written.

    languages: of source and target, in place of those that the model states.
    """
    check_shape(original)
    sides = _sides(original)
    config = _config(original, _languages(original, languages), [tokens for tokens, _ in sides])
    source, target = (_codec(original, side, tokens, config) for side, (tokens, _) in enumerate(sides))
    codecs = Codecs(source, target, config)
    weights = our_weights(original, config.model, [rows for _, rows in sides])
    _publish(out, weights, config, codecs)
    return config


# --- what it is -------------------------------------------------------------------------------------------------------


def check_shape(original: Original) -> None:
    """Raise `UserError` where the config asks for what our Transformer has no place for, with key and value."""
    shape = original.shape
    for key, (needed, default) in REQUIRED.items():
        if shape.get(key, default) is not needed:
            raise _unsupported(original, key, f"only {str(needed).lower()} is supported")
    if shape.get("activation_function") not in [*ACTIVATIONS]:  # which may be a list, too
        raise _unsupported(original, "activation_function", f"supported are {', '.join(ACTIVATIONS)}")
    for key in ("share_encoder_decoder_embeddings", "tie_word_embeddings"):
        if type(shape.get(key, True)) is not bool:
            raise _unsupported(original, key, "true or false is needed")
    for one, other in (("encoder_attention_heads", "decoder_attention_heads"), ("encoder_ffn_dim", "decoder_ffn_dim")):
        if shape.get(one) != shape.get(other):
            raise _unsupported(original, other, f"{one} is {shape.get(one)}; only equal ones are supported")
    for key in ("encoder_layers", "decoder_layers"):
        layers = shape.get(key)
        if type(layers) is not int or not 1 <= layers <= len(original.weights):
            raise _unsupported(original, key, f"there are {len(original.weights)} tensors")


def _unsupported(original: Original, key: str, why: str) -> UserError:
    value = repr(original.shape.get(key))[:100]
    return UserError(f"{original.config}: {key}: {value} cannot be imported: {why}")


def _languages(original: Original, given: tuple[str | None, str | None]) -> tuple[str, str]:
    """Return the languages that were given, else those that the model states, else those at the end of its name."""
    ends = Path(original.name).stem.split("-")[-2:]
    named = ends if len(ends) == 2 and all(end.isalpha() and 2 <= len(end) <= 3 for end in ends) else [None, None]
    found = [next(filter(None, known), "") for known in zip(given, original.languages, named, strict=True)]
    for side, language in zip(("source", "target"), found, strict=True):
        if not language:
            raise UserError(f"{original.name}: does not state its {side} language; give --{side}-language, such as de")
    return found[0], found[1]


def _config(original: Original, languages: tuple[str, str], sides: Sequence[Sequence[str]]) -> Config:
    """Return the config of a run that would have made the model; where it learned from is not known."""
    shape = original.shape
    shared, tied = (shape.get(key, True) for key in ("share_encoder_decoder_embeddings", "tie_word_embeddings"))
    tables = ("all" if shared else "decoder") if tied else "none"
    symbols = [token for token in sides[0] if LANGUAGE.fullmatch(token)]
    positions = shape.get("max_position_embeddings")
    tree = {
        "data": {
            "source_language": languages[0],
            "target_language": languages[1],
            "train": None,
            "imported_from": original.name,
            "license": original.license,
            "max_length": positions - 1 if type(positions) is int else None,
        },
        "vocabulary": {
            "tokenizer": "marian",
            "shared": original.vocabularies[0] is original.vocabularies[1],
            "size": max(map(len, sides)),
            "symbols": symbols,
        },
        "model": {
            "encoder_layers": shape.get("encoder_layers"),
            "decoder_layers": shape.get("decoder_layers"),
            "d_model": shape.get("d_model"),
            "heads": shape.get("encoder_attention_heads"),
            "d_ff": shape.get("encoder_ffn_dim"),
            **{key: shape.get(key, 0.0) for key in ("dropout", "attention_dropout", "activation_dropout")},
            "activation": ACTIVATIONS[shape["activation_function"]],
            "norm_epsilon": NORM_EPSILON,
            "tie_embeddings": tables,
            "generator_bias": True,
        },
        "decoding": {"split": "always", **({} if original.beam_size is None else {"beam_size": original.beam_size})},
    }
    return config_of_tree(tree, str(original.config))


# --- its vocabularies -------------------------------------------------------------------------------------------------


def _sides(original: Original) -> list[tuple[list[str], list[int]]]:
    """Return of source and target our tokens, and of each the row that it has in their tables.

    Ours begin with the specials. A model that starts from its `<pad>` has no `<s>`: that is a copy of this row then.
    """
    found = []
    for vocabulary in original.vocabularies:
        for token in (PAD_TOKEN, UNK_TOKEN, EOS_TOKEN):
            if token not in vocabulary:
                raise UserError(f"{original.name}: its vocabulary has no {token}; copy the whole model again")
        start = _start(original) if vocabulary is original.vocabularies[1] else PAD_TOKEN
        first = [vocabulary[token] for token in (PAD_TOKEN, UNK_TOKEN, start, EOS_TOKEN)]
        others = {row: token for token, row in vocabulary.items() if row not in first}
        rows = sorted(others)
        found.append(([*SPECIALS, *(escape(others[row]) for row in rows)], [*first, *rows]))
    return found


def _start(original: Original) -> str:
    """Return the token that a target starts from; `UserError` where the ids in the config are of other tokens."""
    vocabulary, shape = original.vocabularies[1], original.shape
    for key, token in (("pad_token_id", PAD_TOKEN), ("eos_token_id", EOS_TOKEN)):
        if shape.get(key) != vocabulary[token]:
            raise _unsupported(original, key, f"the vocabulary has {token} at {vocabulary[token]}")
    for token in (PAD_TOKEN, START_TOKEN, EOS_TOKEN):
        if vocabulary.get(token) == shape.get("decoder_start_token_id", shape["pad_token_id"]):
            return token
    raise _unsupported(
        original, "decoder_start_token_id", f"a target starts from {PAD_TOKEN}, {START_TOKEN} or {EOS_TOKEN}"
    )


def _codec(original: Original, side: int, tokens: Sequence[str], config: Config) -> MarianCodec:
    """Return the codec of a side; `UserError` where sentencepiece's model is damaged, or of another vocabulary."""
    path = original.subwords[side]
    try:
        tokenizer = MarianTokenizer(read_bytes(path))
    except ValueError as error:
        raise UserError(f"{path}: is damaged or {error}; copy it again") from None
    vocabulary = Vocabulary(tokens)
    known = sum(escape(piece) in vocabulary for piece in tokenizer.pieces)
    if known < LEAST_KNOWN * len(tokenizer.pieces):
        raise UserError(
            f"{path}: only {known:,} of its {len(tokenizer.pieces):,} pieces are in the vocabulary beside it, which is "
            "of another model; copy the whole model again"
        )
    return MarianCodec(tokenizer, vocabulary, Preparation(config.vocabulary))


# --- its weights ------------------------------------------------------------------------------------------------------


def our_weights(original: Original, shape: ModelConfig, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    """Return the model's tensors by our names, tied ones once. rows: of source and target, of each token theirs."""
    with torch.device("meta"), without_drawing():
        model = build_model(shape, *map(len, rows))
    theirs, place = original.weights, sines_first(shape.d_model).argsort()
    ours = _tables(original, shape, rows, place)
    for name, module in model.named_modules():
        if name.startswith(("encoder.", "decoder.")) and isinstance(module, nn.Linear | nn.LayerNorm):
            names = their_names(name)
            for kind, parameter in module.named_parameters():
                size = parameter.size(0) // len(names), *parameter.shape[1:]
                tensor = torch.cat([theirs.take(f"{one}.{kind}", *size) for one in names])
                if writes_to_residual(name, module):
                    tensor = tensor[place]
                elif kind == "weight":
                    tensor = tensor[:, place]
                ours[f"{name}.{kind}"] = tensor
    theirs.check_all_taken(["model.shared.weight"])  # which a model with tables of its own never looks into
    assert ours.keys() == dict(model.named_parameters()).keys()
    return ours


def _tables(original: Original, shape: ModelConfig, rows: Sequence[Sequence[int]], place: Tensor) -> dict[str, Tensor]:
    """Return what has a row for each token."""
    shared, encoder, decoder, output = (
        f"{name}.weight"
        for name in ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    )
    tables = {  # the names that each of our tables has with them
        "all": {SOURCE: [shared, encoder, decoder, output]},
        "decoder": {SOURCE: [encoder], TARGET: [decoder, output]},
        "none": {SOURCE: [encoder], TARGET: [decoder], OUTPUT: [output]},
    }[shape.tie_embeddings]
    sizes = [len(side) for side in original.vocabularies]
    source, target = (torch.tensor(side) for side in rows)
    ours = {}
    for name, names in tables.items():
        side, size = (source, sizes[0]) if name == SOURCE else (target, sizes[1])
        table = _one_table(original.weights, names, size, shape.d_model)
        ours[name] = torch.empty(len(side), shape.d_model)
        for first in range(0, len(side), ROWS):
            ours[name][first : first + ROWS] = table[side[first : first + ROWS]][:, place]
    bias = original.weights.take("final_logits_bias", 1, sizes[1])[0][target]
    if rows[1].count(rows[1][BOS]) > 1:
        bias[BOS] = NEVER
    ours["generator.projection.bias"] = bias
    for name in POSITIONS:  # older files hold what is computed
        if name in original.weights:
            count = original.shape["max_position_embeddings"]
            found = original.weights.take(name, count, shape.d_model)
            if not torch.allclose(found[:, place], sinusoidal_table(count, shape.d_model), atol=1e-4):
                raise UserError(f"{original.weights.path}: tensor {name} holds other positions than the sinusoids")
    return ours


def _one_table(weights: Weights, names: Sequence[str], *shape: int) -> Tensor:
    """Return the table that has one or more of these names; `UserError` where those differ."""
    there = [name for name in names if name in weights]
    table = weights.take((there or names)[0], *shape)
    for name in there[1:]:
        if not torch.equal(weights.take(name, *shape), table):
            raise UserError(f"{weights.path}: tensors {there[0]} and {name} differ, but the config makes them one")
    return table


# --- the run folder ---------------------------------------------------------------------------------------------------


def _publish(out: Path, weights: Mapping[str, Tensor], config: Config, codecs: Codecs) -> None:
    """Write the run folder under a temporary name, and rename it when all is on the disk."""
    RunFolder(out.parent).create()
    with temporary(out) as place:
        place.mkdir()
        run = RunFolder(place)
        run.config_path.write_text(dump_config(config), encoding="utf-8")
        run.publish(VOCAB, codecs.save_into)
        run.publish(step_name(0), lambda folder: save_weights(folder, weights, config, codecs))
        run.write_index(CheckpointIndex(steps=[0], best=[0], last=0, finished="imported"))
        sync_folder(place)
        os.rename(place, out)
        sync_folder(out.parent)
