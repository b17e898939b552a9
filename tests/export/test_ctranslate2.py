"""Exports for CTranslate2: verified against our own engine, whole or not there at all."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.conftest import left_in
from transformer_cli.cli.app import main
from transformer_cli.config import TextFiles, load_config
from transformer_cli.decoding.engines import ctranslate2_model
from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.loading import load_engine
from transformer_cli.decoding.translation import Confidence
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.calibration import keep_confidence
from transformer_cli.export import verify as verifying
from transformer_cli.export.ctranslate2 import export_ctranslate2
from transformer_cli.export.verify import ExportDiffers, verification_sentences
from transformer_cli.storage.publishing import manifest_names, publish, verify

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
    assert report.count(" in float32 100.0% the same, scores within ") == 2
    assert report.count(" in float16 chrF ") == 2
    assert report.count(" between both, log-probabilities differ by 0.00") == 2
    assert [path for path in (tmp_path / "small").iterdir() if path.is_dir()] == [tmp_path / "small" / "vocab"]
    verify(tmp_path / "small", manifest_names(tmp_path / "small"))
    assert (tmp_path / "small" / "model.bin").stat().st_size < 200_000


def broken(name: str) -> Callable[..., Any]:
    """`take` of weights of which one is another."""
    take = ctranslate2_model._Weights.take

    def take_broken(self: Any, wanted: str, *size: int) -> Any:
        tensor = take(self, wanted, *size)
        return tensor + 1.0 + np.roll(tensor, 1, 0) if wanted == name else tensor

    return take_broken


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("quantization", "named"), [(None, r"\(greedy\)"), ("int8", r"\(greedy in float32\)")])
def test_a_model_that_differs_leaves_nothing_behind(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str | None, named: str
) -> None:
    folder = checkpoint(norm="pre")
    monkeypatch.setattr(ctranslate2_model._Weights, "take", broken("decoder.layers.1.cross_attention.key_value.weight"))
    with pytest.raises(ExportDiffers, match=f"a score of the exported model {named}"):
        export_ctranslate2(folder, tmp_path / "exported", quantization=quantization)
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("short")
def test_reduced_weights_that_lose_too_much_leave_nothing_behind(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ctranslate2_model.write_model

    def write_lossy(out: Path, spec: Any, config: Any, quantization: str | None = None, shortlist: int = 0) -> None:
        """As if eight bits left nothing of the weights of the last product."""
        if quantization is not None:
            spec.decoder.projection.weight = np.zeros_like(spec.decoder.projection.weight)
        write(out, spec, config, quantization, shortlist)

    monkeypatch.setattr(ctranslate2_model, "write_model", write_lossy)
    with pytest.raises(ExportDiffers, match=r"in int8 \(greedy\) differ by \d\.\d+ on average, over 0\.1"):
        export_ctranslate2(checkpoint(norm="pre", tie_embeddings="none"), tmp_path / "exported", quantization="int8")
    monkeypatch.setattr("transformer_cli.export.ctranslate2.LARGEST_SHIFT", 1000.0)
    with pytest.raises(ExportDiffers, match=r"\(greedy in int8\) are too different: chrF \d+\.\d between both"):
        export_ctranslate2(checkpoint(norm="pre", tie_embeddings="none"), tmp_path / "exported", quantization="int8")
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("short")
def test_the_command_says_in_one_line_what_differs(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ctranslate2_model._Weights, "take", broken("target_embedding.tokens.table.weight"))
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

    def worse(self: Any, batches: Iterable[SearchBatch], *rest: Any) -> Any:
        return found(self, [SearchBatch([source[::-1] for source in batch.sources]) for batch in batches], *rest)

    monkeypatch.setattr(CTranslate2Engine, "search", worse)
    with pytest.raises(ExportDiffers, match=r"\d+ of \d+ translations of the exported model \(greedy\) are other ones"):
        export_ctranslate2(checkpoint(norm="pre"), tmp_path / "exported")
    assert left_in(tmp_path) == []


def test_what_it_cannot_be_is_refused_before_anything_is_written(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ctranslate2_model._read
    more = {"generator.copying": np.zeros(3, np.float32)}
    monkeypatch.setattr(ctranslate2_model, "_read", lambda path: {**read(path), **more})
    with pytest.raises(UserError, match=r"has no place for generator\.copying"):
        export_ctranslate2(checkpoint(), tmp_path / "below" / "exported")
    assert left_in(tmp_path) == []
    monkeypatch.setattr("transformer_cli.export.ctranslate2.find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs ctranslate2; pip install ctranslate2"):
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


# --- as a MODEL of tfm's own commands -------------------------------------------------------------------------------


@pytest.fixture
def exported(checkpoint: Checkpoint, tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint that is calibrated, and its export."""
    folder = shutil.copytree(checkpoint(norm="pre"), tmp_path / "model")
    keep_confidence(folder, Confidence([-2.0, 0.0], [0.1, 0.9], 10, 10, 0.1))
    export_ctranslate2(folder, tmp_path / "exported", verify=False)
    return folder, tmp_path / "exported"


def test_the_folder_is_a_model_that_does_what_the_checkpoint_does(
    exported: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shorter = tmp_path / "some.de"
    shorter.write_text(
        "\n".join(verification_sentences(load_config(exported[0] / "config.yaml"), exported[0], None)[:20])
    )
    files = ["--source", str(shorter)]
    for arguments in (
        ["translate", "-i", str(shorter), "--format", "json"],
        ["score", *files, "--target", str(shorter)],
        ["align", *files, "--target", str(shorter)],
        ["evaluate", *files, "--reference", str(shorter)],
    ):
        command, *rest = arguments
        found = []
        for model in exported:
            assert main([command, str(model), *rest, "--device", "cpu", "--quiet"]) == 0
            found.append(capfd.readouterr().out)
        assert found[0] == found[1] != "", command
        if command == "translate":
            assert '"confidence": 0.' in found[1], "what tfm calibrate found comes along"


def test_reduced_weights_are_computed_with_as_they_are(checkpoint: Checkpoint, tmp_path: Path) -> None:
    export_ctranslate2(checkpoint(norm="pre"), tmp_path / "small", quantization="int8", verify=False)
    assert load_engine(tmp_path / "small", "cpu")[1] == "engine: ctranslate2 (int8)"
    assert load_engine(tmp_path / "small", "cpu", compute_type="float32")[1] == "engine: ctranslate2 (float32)"
    description = json.loads((tmp_path / "small" / "tfm.json").read_text())
    del description["quantization"]
    (tmp_path / "small" / "tfm.json").write_text(json.dumps(description))
    (tmp_path / "small" / "manifest.json").unlink()

    def write(new: Path) -> None:
        shutil.copytree(tmp_path / "small", new, dirs_exist_ok=True)

    publish(tmp_path / "older", write)
    assert load_engine(tmp_path / "older", "cpu")[1] == "engine: ctranslate2 (float32)", "exports of before do not say"


@pytest.mark.parametrize("name", ["model.bin", "config.yaml", "vocab/shared.model", "confidence.json"])
def test_a_damaged_export_is_refused(exported: tuple[Path, Path], name: str) -> None:
    with open(exported[1] / name, "ab") as file:
        file.write(b"\n")
    with pytest.raises(UserError, match=f"{name}: does not match its manifest"):
        Translator.load(exported[1], "cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("translate MODEL a --engine torch", "engine torch: MODEL was exported for CTranslate2; give the model"),
        ("translate MODEL a --sample", "engine torch (sampling): MODEL was exported for CTranslate2; give the model"),
        ("translate MODEL a --trace", "engine torch: MODEL was exported for CTranslate2; give the model"),
        ("translate MODEL a --beam 500", "cannot do a beam of half the vocabulary; leave that out, or give the model"),
        ("inspect MODEL", "MODEL: was exported for CTranslate2, without the weights that this needs; give the model"),
        ("average MODEL MODEL --out OUT", "MODEL: was exported for CTranslate2, without the weights"),
        ("export MODEL --format onnx --out OUT", "MODEL: was exported for CTranslate2, without the weights"),
        ("plot attention MODEL a", "MODEL: was exported for CTranslate2, without the weights"),
    ],
)
def test_what_only_torch_does_is_refused_by_name(
    exported: tuple[Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": str(exported[1]), "OUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in arguments.split()]) == 2
    told = capfd.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert message.replace("MODEL", str(exported[1])) in told.err
    assert told.err.endswith("give the model that it was exported from\n")
