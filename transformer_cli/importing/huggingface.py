"""A MarianMTModel as transformers saves it: a folder, or a name on the Hugging Face Hub."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_cli.errors import UserError
from transformer_cli.importing.original import Original, open_bin, open_safetensors
from transformer_cli.storage.publishing import read_bytes

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
INSTALL = "pip install 'transformer-cli[hub]'"
CONFIG, WEIGHTS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
SMALL = [CONFIG, "generation_config.json", "tokenizer_config.json", "vocab.json", "target_vocab.json", "README.md"]
SUBWORDS = ["source.spm", "target.spm"]


def download(name: str) -> Path:
    """Return the folder of a model of the hub, downloaded unless it is in the cache. Raises `UserError`."""
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{name}: no such folder; a name of the Hugging Face Hub needs {INSTALL}") from None
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*SMALL, *SUBWORDS, WEIGHTS]))
        if not (folder / WEIGHTS).exists():
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[PICKLED]))
    except Exception as error:  # the client raises dozens of kinds
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{name}: cannot be downloaded ({reason}); check name and network, or name a folder") from None
    return folder


def open_huggingface(folder: Path, name: str) -> Original:
    """Open the files of a folder; `UserError` where one is missing or damaged."""
    shape, tokenizer = read_object(folder / CONFIG), _optional(folder / "tokenizer_config.json")
    check_class(folder / CONFIG, shape)
    if (folder / WEIGHTS).exists():
        weights = open_safetensors(folder / WEIGHTS)
    elif (folder / PICKLED).exists():
        weights = open_bin(folder / PICKLED)
    else:
        raise UserError(f"{folder}: has neither {WEIGHTS} nor {PICKLED}; copy the whole model")
    source = read_vocabulary(folder / "vocab.json")
    shared = not tokenizer.get("separate_vocabs", False)
    generation = _optional(folder / "generation_config.json")
    beam_size = generation.get("num_beams", shape.get("num_beams"))
    return Original(
        name=name,
        config=folder / CONFIG,
        shape=shape,
        vocabularies=(source, source if shared else read_vocabulary(folder / "target_vocab.json")),
        subwords=(folder / SUBWORDS[0], folder / SUBWORDS[1]),
        weights=weights,
        languages=(_text(tokenizer.get("source_lang")), _text(tokenizer.get("target_lang"))),
        license=card_license(folder / "README.md"),
        beam_size=beam_size if type(beam_size) is int else None,
    )


def check_class(path: Path, shape: Mapping[str, Any]) -> None:
    """Raise `UserError` where config.json is of another class than MarianMTModel."""
    classes = shape.get("architectures") or ["MarianMTModel"]
    if shape.get("model_type") != "marian" or classes != ["MarianMTModel"]:
        what = classes if shape.get("model_type") == "marian" else shape.get("model_type")
        raise UserError(f"{path}: is of {str(what)[:100]}, not of a MarianMTModel, which alone can be imported")


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON file that holds an object; `UserError` where it does not."""
    try:
        content = json.loads(read_bytes(path))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise UserError(f"{path}: is damaged (not a JSON object); copy it again")
    return content


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return a vocabulary, piece: row; `UserError` where it is not one."""
    content = read_object(path)
    check_rows(path, content)
    return content


def check_rows(path: Path, vocabulary: Mapping[str, Any]) -> None:
    """Raise `UserError` unless the pieces have the rows 0, 1, 2, …, each one."""
    rows = [row for row in vocabulary.values() if type(row) is int]
    if len(rows) < len(vocabulary) or sorted(rows) != list(range(len(rows))):
        raise UserError(f"{path}: does not give each row from 0 on to one piece; copy it again")
    if any("\ud800" <= character <= "\udfff" for piece in vocabulary for character in piece if not piece.isascii()):
        raise UserError(f"{path}: holds half of a surrogate pair; copy it again")


def card_license(path: Path) -> str | None:
    """Return the licence that a model card states in its front matter; None where there is none."""
    if not path.is_file():
        return None
    head = re.match(r"---\s*\n(.*?)\n---", read_bytes(path).decode("utf-8", errors="replace"), re.DOTALL)
    stated = head and re.search(r"^license:\s*['\"]?([A-Za-z0-9][A-Za-z0-9.+-]{0,99})['\"]?\s*$", head[1], re.MULTILINE)
    return stated[1] if stated else None


def _optional(path: Path) -> dict[str, Any]:
    return read_object(path) if path.is_file() else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
