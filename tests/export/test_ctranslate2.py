"""Exports for CTranslate2: verified against our own engine, whole or not there at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.export.conftest import left_in
from transformer_cli.build import load_model
from transformer_cli.cli.app import main
from transformer_cli.config import TextFiles, load_config
from transformer_cli.decoding.engines import ctranslate2_model
from transformer_cli.errors import UserError
from transformer_cli.export import verify as verifying
from transformer_cli.export.ctranslate2 import export_ctranslate2
from transformer_cli.export.verify import ExportDiffers, verification_sentences
from transformer_cli.storage.publishing import manifest_names, verify

ctranslate2 = pytest.importorskip("ctranslate2", reason="this export needs CTranslate2")

Checkpoint = Callable[..., Path]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check with few sentences."""
    monkeypatch.setattr(verifying, "SENTENCES", 20)


@pytest.mark.usefixtures("short")
def test_the_folder_is_whole_verified_and_translates(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint(norm="pre", activation="swiglu")
    report = export_ctranslate2(folder, tmp_path / "below" / "exported")
    assert report is not None
    assert report.startswith("verified with 20 sentences: greedy 100.0% the same, scores within ")
    assert "; beam 5 100.0% the same, scores within " in report
    out = tmp_path / "below" / "exported"
    names = manifest_names(out)
    verify(out, names)
    assert set(names) >= {"model.bin", "config.json", "shared_vocabulary.json", "config.yaml", "vocab/shared.model"}
    result = ctranslate2.Translator(str(out)).translate_batch([["▁", "h", "u", "n", "d"]], max_decoding_length=8)
    assert result[0].hypotheses[0]


@pytest.mark.usefixtures("short")
def test_a_reduced_model_is_held_against_our_translations(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint(norm="pre")
    report = export_ctranslate2(folder, tmp_path / "small", quantization="float16")
    assert report is not None
    assert report.count("chrF") == 2
    assert (tmp_path / "small" / "model.bin").stat().st_size < 200_000


def broken(name: str) -> Callable[..., Any]:
    """`write_model` of a model in which one tensor is another."""
    write = ctranslate2_model.write_model

    def write_broken(folder: Path, loaded: Any, quantization: str | None = None) -> None:
        tensor = loaded.model.state_dict()[name]
        kept = tensor.clone()
        tensor.add_(1.0 + tensor.roll(1, 0))
        try:
            write(folder, loaded, quantization)
        finally:
            tensor.copy_(kept)

    return write_broken


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("quantization", "message"), [(None, "a score of the exported"), ("int8", "too different")])
def test_a_model_that_differs_leaves_nothing_behind(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str | None, message: str
) -> None:
    folder = checkpoint(norm="pre")
    monkeypatch.setattr(ctranslate2_model, "write_model", broken("decoder.layers.1.cross_attention.key_value.weight"))
    with pytest.raises(ExportDiffers, match=message):
        export_ctranslate2(folder, tmp_path / "exported", quantization=quantization)
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("short")
def test_the_command_says_in_one_line_what_differs(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctranslate2_model, "write_model", broken("target_embedding.tokens.table.weight"))
    arguments = ["export", str(checkpoint(norm="pre")), "--format", "ctranslate2", "--out", str(tmp_path / "exported")]
    assert main(arguments) == 1
    told = capfd.readouterr()
    assert told.err.startswith("error: ")
    assert told.err.endswith("; nothing was written\n")
    assert told.err.count("\n") == 1
    assert left_in(tmp_path) == []


def test_other_translations_alone_are_a_difference_too(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every score of ours is found again."""
    from transformer_cli.decoding.engines.ctranslate2_engine import CTranslate2Engine

    found = CTranslate2Engine.search

    def worse(self: Any, sources: Any, *rest: Any) -> Any:
        return found(self, [source[::-1] for source in sources], *rest)

    monkeypatch.setattr(CTranslate2Engine, "search", worse)
    with pytest.raises(ExportDiffers, match=r"\d+ of \d+ translations of the exported model \(greedy\) are other ones"):
        export_ctranslate2(checkpoint(norm="pre"), tmp_path / "exported")
    assert left_in(tmp_path) == []


def test_what_it_cannot_be_is_refused_before_anything_is_written(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    loaded = load_model(checkpoint())
    loaded.model.generator.register_parameter("copying", torch.nn.Parameter(torch.zeros(3)))
    monkeypatch.setattr("transformer_cli.export.ctranslate2.load_model", lambda folder: loaded)
    with pytest.raises(UserError, match=r"has no place for generator\.copying"):
        export_ctranslate2(checkpoint(), tmp_path / "below" / "exported")
    assert left_in(tmp_path) == []
    monkeypatch.setattr("transformer_cli.export.ctranslate2.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'transformer-cli\[fast\]'"):
        export_ctranslate2(checkpoint(), tmp_path / "below" / "exported")


def test_sentences_to_verify_with(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = checkpoint()
    config = load_config(folder / "config.yaml")
    assert len(verification_sentences(config, folder, None)) == 120
    (tmp_path / "lines.de").write_text("eins\n\n zwei \n")
    assert verification_sentences(config, folder, tmp_path / "lines.de") == ["eins", " zwei "]
    (tmp_path / "empty.de").write_text("\n \n")
    with pytest.raises(UserError, match=r"empty.de: holds no sentence to verify with"):
        verification_sentences(config, folder, tmp_path / "empty.de")
    data = config.data.model_copy(update={"valid": TextFiles(source="gone.de", target="gone.en")})
    with pytest.raises(UserError, match=r"but gone\.de: .*; give source sentences with --sentences FILE, or leave"):
        verification_sentences(config.model_copy(update={"data": data}), folder, None)
    data = config.data.model_copy(update={"valid": None})
    with pytest.raises(UserError, match=r"held its validation pairs out.*give source sentences with --sentences FILE"):
        verification_sentences(config.model_copy(update={"data": data}), folder, None)
    with pytest.raises(UserError, match=r"nowhere\.de"):
        verification_sentences(config, folder, tmp_path / "nowhere.de")
