"""The model folder alone: the same model to every command, nothing for training, whole or not at all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from transformer_cli import Translator
from transformer_cli.config import load_config
from transformer_cli.errors import UserError
from transformer_cli.export.verify import export_safetensors, verification_sentences
from transformer_cli.storage.publishing import manifest_names, verify

Checkpoint = Callable[..., Path]
SENTENCES = ["ein kleiner hund läuft über den Strand", "zwei", "", "die Frau, das Kind"]


@pytest.mark.parametrize("vocabulary", [{}, {"tokenizer": "whitespace", "shared": False}])
def test_it_is_the_same_model_and_nothing_for_training(
    checkpoint: Checkpoint, vocabulary: dict[str, object], tmp_path: Path
) -> None:
    folder = checkpoint(vocabulary=vocabulary, tie_embeddings="none")
    out = tmp_path / "below" / "exported"
    export_safetensors(folder, out)
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    assert names == sorted(["manifest.json", *manifest_names(out)])
    assert set(names) == {"manifest.json", *manifest_names(folder)} - {"training.json", "training.safetensors"}
    verify(out, manifest_names(out))
    assert all((out / name).read_bytes() == (folder / name).read_bytes() for name in manifest_names(out))
    assert Translator.load(out, "cpu").translate(SENTENCES) == Translator.load(folder, "cpu").translate(SENTENCES)


def test_an_export_can_be_exported(checkpoint: Checkpoint, tmp_path: Path) -> None:
    export_safetensors(checkpoint(), tmp_path / "one")
    export_safetensors(tmp_path / "one", tmp_path / "two", verify=False)
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors", "vocab/shared.json", "vocab/shared.model"])
def test_a_damaged_or_missing_file_is_refused(checkpoint: Checkpoint, name: str, check: bool, tmp_path: Path) -> None:
    for damage in (lambda path: path.write_bytes(path.read_bytes() + b" "), Path.unlink):
        folder = tmp_path / "model"
        shutil.copytree(checkpoint(), folder)
        damage(folder / name)
        with pytest.raises(UserError, match=name):
            export_safetensors(folder, tmp_path / "out", verify=check)
        shutil.rmtree(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_reaches_no_file_elsewhere(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "inner" / "model"
    shutil.copytree(checkpoint(), folder)
    secret = tmp_path / "secret"
    secret.write_text("")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"]["../../secret"] = manifest["sha256"][str(secret)] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    export_safetensors(folder, tmp_path / "out")
    assert "secret" not in (tmp_path / "out" / "manifest.json").read_text()


def test_exports_are_verified_with_sentences_as_the_model_reads_them(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint(vocabulary={"tokenizer": "whitespace", "symbols": ["<2en>"]}, decoding={"tag": "<2en>"})
    config = load_config(folder / "config.yaml")
    sentences = verification_sentences(config, folder, None)
    assert sentences
    assert all(sentence.startswith("<2en> ") for sentence in sentences)
    (tmp_path / "given").write_text("ein\n\nzwei\n")
    assert verification_sentences(config, folder, tmp_path / "given") == ["<2en> ein", "<2en> zwei"]
