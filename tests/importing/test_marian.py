"""A release of OPUS-MT becomes the very folder that transformers' conversion of the same model becomes."""

from pathlib import Path
from typing import Any

import pytest

from tests.importing.conftest import Make, write_release, zipped
from tests.importing.test_huggingface import import_model
from transformer_cli.importing.marian import read_vocabulary
from transformer_cli.storage.run_folder import find_model


def content(run: Path) -> dict[str, bytes]:
    folder = find_model(run)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return {name: (folder / name).read_bytes() for name in names if name not in ("config.yaml", "manifest.json")}


@pytest.mark.parametrize("variant", [{}, {"separate": True}, {"tags": [">>fra<<"], "activation_function": "gelu"}])
@pytest.mark.parametrize("packed", [False, True])
def test_weights_and_vocabulary_are_those_of_the_same_model_from_transformers(
    marian: Make, tmp_path: Path, variant: dict[str, Any], packed: bool
) -> None:
    made = marian(**variant)
    release = write_release(made, tmp_path / "opus-de-en")
    source = zipped(release, tmp_path / "opus.zip") if packed else release
    theirs = import_model(made.folder, tmp_path / "theirs")
    ours = import_model(source, tmp_path / "ours")
    assert content(tmp_path / "ours") == content(tmp_path / "theirs")
    assert (ours.model, ours.vocabulary) == (theirs.model, theirs.vocabulary)
    assert (ours.data.source_language, ours.data.target_language) == ("de", "en")
    assert (ours.data.license, theirs.data.license, ours.decoding.beam_size) == ("cc-by-4.0", None, 6)
    assert ours.data.imported_from == (source.name if packed else str(source))


def test_pieces_are_read_as_yaml_quotes_them(tmp_path: Path) -> None:
    """Escapes have as many digits as YAML says, whatever follows; in single quotes and without any there are none."""
    lines = [
        r'"\x41BC": 0',
        r'"\u0301e5": 1',
        r'"\U0001F600a": 2',
        r"'it''s \x41': 3",
        r"a\x41: 4",
        r'"\"": 5',
        "null: 6",
    ]
    (tmp_path / "vocab.yml").write_text("\n".join([*lines, "? long", ": 7", '":": 8', ""]))
    expected = ["ABC", "\u0301e5", "\U0001f600a", r"it's \x41", r"a\x41", '"', "null", "long", ":", "<pad>"]
    assert read_vocabulary(tmp_path / "vocab.yml") == {piece: row for row, piece in enumerate(expected)}
