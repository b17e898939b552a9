"""A model as Marian saves it, and as OPUS-MT releases it: a folder or a zip with .npz, .spm, vocab.yml and decoder.yml.

Its names and settings are translated into those of transformers' MarianMTModel, as transformers' own conversion does:
with a row of zeros for `<pad>`, from which a target starts.
"""

import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from transformer_cli.config.yaml_file import parse_yaml
from transformer_cli.errors import UserError
from transformer_cli.importing.huggingface import check_rows
from transformer_cli.importing.original import Original, Shapes, Weights, check_unpacked, open_npz, reading
from transformer_cli.storage.publishing import read_bytes

DECODER = "decoder.yml"
NEEDED = re.compile(r"decoder\.yml|source\.spm|target\.spm|README\.md|LICENSE|.*vocab.*\.yml|.*\.npz")
SETTINGS = "special:model.yml"
POSITIONS = 512  # that transformers gives each Marian model
DROPOUT = 0.1  # the same
LAYER = {  # of a layer's names, Marian's, with W or b, scale or bias in it: transformers'
    **{f"self_{{}}{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"context_{{}}{part}": f"encoder_attn.{part}_proj" for part in "qkv"},
    "self_{}o": "self_attn.out_proj",
    "context_{}o": "encoder_attn.out_proj",
    "ffn_{}1": "fc1",
    "ffn_{}2": "fc2",
    "self_Wo_ln_{}": "self_attn_layer_norm",
    "context_Wo_ln_{}": "encoder_attn_layer_norm",
    "ffn_ffn_ln_{}": "final_layer_norm",
}
KINDS = {"weight": ("W", "scale"), "bias": ("b", "bias")}
PARTS = {
    marian.format(KINDS[kind]["_ln_" in marian]): f"{theirs}.{kind}"
    for marian, theirs in LAYER.items()
    for kind in KINDS
}
Values = tuple[Any, ...]
REQUIRED: dict[str, Values] = {  # settings: what our Transformer has; the first where one is not there
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-preprocess": ("",),
    "transformer-postprocess": ("dan", "an"),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("",),
    "transformer-ffn-activation": ("swish", "relu", "gelu"),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-no-projection": (False,),
    "transformer-no-bias": (False,),
    "transformer-no-affine": (False,),
    "transformer-train-positions": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-disable-position-embeddings": (False,),
    "transformer-attention-mask": ("default",),
    "transformer-tied-layers": ([],),
    "lemma-dim-emb": (0,),
    "input-types": ([],),
    "ulr": (False,),
}


def unpack(archive: Path, folder: Path) -> None:
    """Copy out of a zip what a model is made of; `UserError` for names that lead elsewhere, and for bombs."""
    with reading(archive, "zip"), zipfile.ZipFile(archive) as file:
        check_unpacked(archive, file)
        for member in file.infolist():
            name = member.filename
            if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or ":" in name:
                raise UserError(f"{archive}: holds the name {name[:100]!r}, which leads out of it; take another file")
            plain = name.rpartition("/")[2]
            if NEEDED.fullmatch(plain):
                if (folder / plain).exists():
                    raise ValueError(f"it holds two files called {plain[:50]}")
                with file.open(member) as packed, open(folder / plain, "wb") as out:
                    shutil.copyfileobj(packed, out, 1 << 20)


def open_marian(folder: Path, name: str) -> Original:
    """Open the files of a folder; `UserError` where one is missing, damaged or of a kind that cannot be imported."""
    decoder = _settings(read_bytes(folder / DECODER), folder / DECODER)
    models, vocabularies = (_listed(folder, decoder, key) for key in ("models", "vocabs"))
    if len(models) != 1 or len(vocabularies) != 2:
        found = f"{len(models)} models and {len(vocabularies)} vocabs"
        raise UserError(f"{folder / DECODER}: names {found}; one model with two vocabs can be imported")
    content, shapes, read = open_npz(models[0], SETTINGS)
    settings = _settings(content.rstrip(b"\0"), models[0])
    check_settings(models[0], settings)
    shared = vocabularies[0] == vocabularies[1]
    source = read_vocabulary(vocabularies[0])
    target = source if shared else read_vocabulary(vocabularies[1])
    beam_size = decoder.get("beam-size")
    card = folder / "README.md"
    text = read_bytes(card).decode("utf-8", errors="replace") if card.is_file() else ""
    return Original(
        name=name,
        config=models[0],
        shape=_shape(settings, target),
        vocabularies=(source, target),
        subwords=(folder / "source.spm", folder / "target.spm"),
        weights=_weights(models[0], shapes, read, settings),
        languages=(_stated(text, "source"), _stated(text, "target")),
        license=_license(folder / "LICENSE"),
        beam_size=beam_size if type(beam_size) is int else None,
    )


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings(content: bytes, path: Path) -> dict[str, Any]:
    tree = parse_yaml(content.decode("utf-8", errors="replace"), str(path))
    if not isinstance(tree, dict):
        raise UserError(f"{path}: holds no settings of Marian's; copy it again")
    return tree


def _listed(folder: Path, decoder: Mapping[str, Any], key: str) -> list[Path]:
    """Return the files beside decoder.yml that it lists, by their plain names."""
    names = decoder.get(key)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{folder / DECODER}: has no list of {key}; copy it again")
    for name in names:
        if Path(name).name != name or name in ("", ".."):
            raise UserError(f"{folder / DECODER}: {key}: {name[:100]} is not the name of a file beside it")
    return [folder / name for name in names]


def check_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raise `UserError` where a model is of another kind than MarianMTModel, with the setting and its value."""
    for key, values in REQUIRED.items():
        if settings.get(key, values[0]) not in values:
            shown = " or ".join(repr(value) for value in values)
            raise UserError(f"{path}: {key}: {settings[key]!r} cannot be imported, only {shown}")
    width = settings.get("transformer-decoder-dim-ffn", 0)
    if width not in (0, settings.get("transformer-dim-ffn")):
        raise UserError(
            f"{path}: transformer-decoder-dim-ffn: {width!r} cannot be imported: transformer-dim-ffn is "
            f"{settings.get('transformer-dim-ffn')!r}; only equal ones are supported"
        )


def _shape(settings: Mapping[str, Any], target: Mapping[str, int]) -> dict[str, Any]:
    """Return the settings by the keys of transformers' config.json."""
    everything = bool(settings.get("tied-embeddings-all"))
    return {
        "is_encoder_decoder": True,
        "scale_embedding": True,
        "activation_function": settings.get("transformer-ffn-activation", "swish"),
        "d_model": settings.get("dim-emb"),
        "encoder_layers": settings.get("enc-depth"),
        "decoder_layers": settings.get("dec-depth"),
        "encoder_attention_heads": settings.get("transformer-heads"),
        "decoder_attention_heads": settings.get("transformer-heads"),
        "encoder_ffn_dim": settings.get("transformer-dim-ffn"),
        "decoder_ffn_dim": settings.get("transformer-dim-ffn"),
        "max_position_embeddings": POSITIONS,
        "dropout": DROPOUT,
        "share_encoder_decoder_embeddings": everything or _all_tied(settings),
        "tie_word_embeddings": everything or bool(settings.get("tied-embeddings")),
        "pad_token_id": target.get("<pad>"),
        "eos_token_id": target.get("</s>"),
        "decoder_start_token_id": target.get("<pad>"),
    }


def _all_tied(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("tied-embeddings") and settings.get("tied-embeddings-src"))


# --- vocabulary -------------------------------------------------------------------------------------------------------

_LINE = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^"'].*?)\s*: *([0-9]{1,9})\s*""")


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return a vocabulary that Marian wrote, piece: row, with `<pad>` in a row of its own at the end.

    It is read line by line: to a reader of YAML some pieces, such as U+0085, are ends of lines. Raises `UserError`.
    """
    text = read_bytes(path).decode("utf-8", errors="replace").removeprefix("---\n")
    entries: dict[str, int] = {}
    for number, line in enumerate(re.sub(r"^\? (.*)\n: ", r"\1: ", text, flags=re.MULTILINE).split("\n"), start=1):
        if not line:
            continue
        try:
            piece, row = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
            entries[_unquoted(piece)] = int(row)
        except (AttributeError, yaml.YAMLError, ValueError, OverflowError):
            shown = repr(line[:60])
            raise UserError(f"{path}, line {number}: {shown} is not a piece and its row; copy the file again") from None
    entries.setdefault("<pad>", len(entries))
    check_rows(path, entries)
    return entries


def _unquoted(key: str) -> str:
    """Return what a YAML key says; one of yaml's errors or `ValueError` where it has an escape that there is not."""
    if key.startswith("'"):
        return key[1:-1].replace("''", "'")
    if not key.startswith('"'):
        return key
    return str(yaml.safe_load(key)) if "\\" in key else key[1:-1]


# --- weights ----------------------------------------------------------------------------------------------------------


def _weights(path: Path, shapes: Shapes, read: Callable[[str], Tensor], settings: Mapping[str, Any]) -> Weights:
    """Return the arrays under transformers' names and in its shapes."""
    found: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {}
    for name, shape in shapes.items():
        if len(shape) == 2 and name in OF_ROWS:
            for theirs in _table_names(name, settings):
                found[theirs] = name, OF_ROWS[name]
        elif match := re.fullmatch(r"(encoder|decoder)_l([0-9]{1,4})_(.+)", name):
            part = PARTS.get(match[3], match[3])
            theirs = f"model.{match[1]}.layers.{int(match[2]) - 1}.{part}"
            found[theirs] = name, _turned if len(shape) == 2 else torch.clone
        else:
            found[name] = name, torch.clone
    with reading(path, "npz"):
        theirs_shapes = {
            theirs: tuple(change(torch.empty(shapes[name], device="meta")).shape)
            for theirs, (name, change) in found.items()
        }
    return Weights(path, theirs_shapes, lambda theirs: found[theirs][1](read(found[theirs][0])))


def _turned(array: Tensor) -> Tensor:
    """Return a matrix as transformers has it, on its other side, and a vector, which is a row in Marian."""
    return array[0] if len(array) == 1 else array.T


def _with_row(table: Tensor) -> Tensor:
    """Return a table with one more row, of zeros: that of `<pad>`."""
    return torch.nn.functional.pad(table, (0, 0, 0, 1))


OF_ROWS: dict[str, Callable[[Tensor], Tensor]] = {  # what has a row for each piece, or a column
    **dict.fromkeys(("Wemb", "encoder_Wemb", "decoder_Wemb", "decoder_ff_logit_out_Wt"), _with_row),
    "decoder_ff_logit_out_W": lambda table: _with_row(table.T),
    "decoder_ff_logit_out_b": lambda bias: _with_row(bias.T).T,
}


def _table_names(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return transformers' names for what has a row for each piece."""
    if name.startswith("decoder_ff"):
        return ["final_logits_bias" if name.endswith("_b") else "lm_head.weight"]
    if name == "Wemb" and (settings.get("tied-embeddings-all") or _all_tied(settings)):
        return ["model.shared.weight"]
    return [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder") if name in ("Wemb", f"{side}_Wemb")]


# --- where it comes from ----------------------------------------------------------------------------------------------


def _stated(card: str, side: str) -> str | None:
    """Return the one language that OPUS-MT's README states for a side, as in `* source language(s): de`."""
    match = re.search(rf"^\* {side} language\(s\): ([A-Za-z_-]+) *$", card, re.MULTILINE)
    return match[1] if match else None


def _license(path: Path) -> str | None:
    """Return the licence in a release's LICENSE, where it is the one of OPUS-MT's models; None where it is not."""
    text = read_bytes(path).decode("utf-8", errors="replace")[:2000] if path.is_file() else ""
    return "cc-by-4.0" if re.search(r"Attribution 4\.0 International|CC[ -]BY[ -]4\.0", text) else None
