"""Files that lie: one line, exit code 2, nothing written, nothing run."""

import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.importing.conftest import Make, write_release, zipped
from transformer_cli import Translator
from transformer_cli.cli.app import main

Check = Callable[[Path, str], None]
MUTANTS = 200
FEW = 24  # of them, without the slow tests


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Check:
    """`refused(source, reason)`: the one line on stderr says it, and nothing else happens."""

    def check(source: Path, reason: str) -> None:
        before = sorted(tmp_path.rglob("*"))
        capfd.readouterr()
        assert main(["import", str(source), "--out", str(tmp_path / "out" / "run")]) == 2
        printed, said = capfd.readouterr()
        assert printed == ""
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert reason in said
        assert sorted(tmp_path.rglob("*")) == before

    return check


def copy(made: Path, to: Path) -> Path:
    shutil.copytree(made, to)
    return to


def change_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


# --- one by one -------------------------------------------------------------------------------------------------------

FC1 = "model.encoder.layers.0.fc1.weight"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensors: tensors.pop(FC1), f"tensor {FC1} is missing"),
        (lambda tensors: tensors.update({FC1: tensors[FC1][:, 1:]}), f"tensor {FC1} is [48, 31], but"),
        (lambda tensors: tensors.update({"model.more": torch.ones(3)}), "tensor model.more has no place"),
        (lambda tensors: tensors[FC1].view(-1)[5].fill_(torch.nan), f"tensor {FC1} is not finite"),
        (lambda tensors: tensors.update({FC1: tensors[FC1].to(torch.int8)}), f"tensor {FC1} is of type I8"),
        (
            lambda tensors: tensors.update({"lm_head.weight": torch.ones(245, 32)}),
            "tensor lm_head.weight is [245, 32], but",
        ),
        (
            lambda tensors: tensors.update({"lm_head.weight": tensors["model.shared.weight"] + 1}),
            "tensors model.shared.weight and lm_head.weight differ, but the config makes them one",
        ),
        (
            lambda tensors: tensors.update({"model.encoder.embed_positions.weight": torch.ones(512, 32)}),
            "model.encoder.embed_positions.weight holds other positions than the sinusoids",
        ),
    ],
)
def test_weights_of_another_model(
    marian: Make, tmp_path: Path, refused: Check, change: Callable[[dict[str, torch.Tensor]], Any], reason: str
) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    change_weights(folder, change)
    refused(folder, reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation_function": "gelu_new"}, "activation_function: 'gelu_new' cannot be imported: supported are relu"),
        ({"normalize_embedding": True}, "normalize_embedding: True cannot be imported: only false is supported"),
        ({"scale_embedding": False}, "scale_embedding: False cannot be imported"),
        ({"static_position_embeddings": False}, "static_position_embeddings: False cannot be imported"),
        ({"decoder_attention_heads": 8}, "decoder_attention_heads: 8 cannot be imported: encoder_attention_heads is 4"),
        ({"decoder_ffn_dim": 64}, "decoder_ffn_dim: 64 cannot be imported: encoder_ffn_dim is 48"),
        ({"encoder_layers": 1}, "tensor model.encoder.layers.1."),
        ({"encoder_layers": 3}, "tensor model.encoder.layers.2.self_attn"),
        ({"encoder_layers": 10**9}, "encoder_layers: 1000000000 cannot be imported"),
        ({"encoder_layers": "two"}, "encoder_layers: 'two' cannot be imported"),
        ({"d_model": 64}, ", but config and vocabulary make it ["),
        ({"d_model": 10**9}, "model.d_model"),
        ({"dropout": "much"}, "model.dropout"),
        ({"pad_token_id": 3}, "pad_token_id: 3 cannot be imported: the vocabulary has <pad> at"),
        ({"decoder_start_token_id": 17}, "decoder_start_token_id: 17 cannot be imported: a target starts from"),
        ({"model_type": "bart"}, "is of bart, not of a MarianMTModel"),
        ({"architectures": ["MarianForCausalLM"]}, "is of ['MarianForCausalLM'], not of a MarianMTModel"),
        ({"max_position_embeddings": None}, "data.max_length"),
        ({"max_position_embeddings": -5}, "data.max_length"),
        ({"activation_function": ["relu"]}, "activation_function: ['relu'] cannot be imported"),
        ({"share_encoder_decoder_embeddings": "no"}, "share_encoder_decoder_embeddings: 'no' cannot be imported"),
    ],
)
def test_a_config_of_what_we_cannot_do_is_refused_by_key_and_value(
    marian: Make, tmp_path: Path, refused: Check, changes: dict[str, Any], reason: str
) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    change_json(folder / "config.json", **changes)
    refused(folder, reason)


def test_the_vocabulary_of_another_model(marian: Make, tmp_path: Path, refused: Check) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    shutil.copyfile(marian(size=170).folder / "vocab.json", folder / "vocab.json")
    refused(folder, "cannot be imported: the vocabulary has <pad> at")


def test_the_vocabulary_of_another_model_of_the_same_size(marian: Make, tmp_path: Path, refused: Check) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    rows = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    other = {token if token[0] == "<" else f"{token}x": row for token, row in rows.items()}
    (folder / "vocab.json").write_text(json.dumps(other), encoding="utf-8")
    refused(folder, "pieces are in the vocabulary beside it, which is of another model")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"<pad>": 0, "<unk>": 0, "</s>": 1}', "does not give each row from 0 on to one piece"),
        ('{"<pad>": 0, "<unk>": 2, "</s>": 1, "a": "3"}', "does not give each row from 0 on to one piece"),
        ('{"<pad>": 0, "<unk>": 2}', "does not give each row from 0 on to one piece"),
        ('{"<pad>": 0, "<unk>": 1}', "its vocabulary has no </s>"),
        ('{"<pad>": 0, "<unk>": 1, "\\ud800": 2}', "holds half of a surrogate pair"),
        ("[1]", "is damaged (not a JSON object)"),
        ("[" * 100_000, "is damaged (not a JSON object)"),
    ],
)
def test_a_vocabulary_that_is_none(marian: Make, tmp_path: Path, refused: Check, text: str, reason: str) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    (folder / "vocab.json").write_text(text, encoding="utf-8")
    refused(folder, reason)


class Runs:
    """What makes a file, should anybody unpickle it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["torch.save", "torch.save, as it was before 1.6", "pickle", "a tensor's subclass"])
def test_a_pickle_with_code_is_not_run(marian: Make, tmp_path: Path, refused: Check, how: str) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    tensors: dict[str, Any] = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    trace = tmp_path / "ran"
    path = folder / "pytorch_model.bin"
    if how == "pickle":
        path.write_bytes(pickle.dumps({**tensors, "more": Runs(trace)}))
    elif how == "a tensor's subclass":
        torch.save({**tensors, FC1: torch.nn.Linear(2, 2)}, path)
    else:
        torch.save({**tensors, "more": Runs(trace)}, path, _use_new_zipfile_serialization=how == "torch.save")
    refused(folder, "cannot be read as a PyTorch file")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda tensor: tensor.to("meta"), "is larger than what is stored of it"),
        (lambda tensor: torch.zeros(1).expand(tensor.shape), "is larger than what is stored of it"),
        (lambda tensor: tensor.to_sparse(), "is not a tensor"),
        (lambda tensor: tensor.to(torch.complex64), "is of type torch.complex64"),
    ],
)
def test_tensors_that_hold_no_numbers_of_their_own(
    marian: Make, tmp_path: Path, refused: Check, change: Callable[[torch.Tensor], torch.Tensor], reason: str
) -> None:
    folder = copy(marian().folder, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**tensors, FC1: change(tensors[FC1])}, folder / "pytorch_model.bin")
    refused(folder, reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda array: array.astype("U8"), "array encoder_l1_ffn_W1 is of type <U8"),
        (lambda array: array.astype("c8"), "array encoder_l1_ffn_W1 is of type complex64"),
        (lambda array: array.astype("i1"), "array encoder_l1_ffn_W1 is of type int8"),
        (lambda array: array[None], f"tensor {FC1} is [1, 32, 48], but"),
        (lambda array: array * np.nan, f"tensor {FC1} is not finite"),
    ],
)
def test_arrays_that_are_no_weights(
    marian: Make, tmp_path: Path, refused: Check, change: Callable[[Any], Any], reason: str
) -> None:
    release = write_release(marian(), tmp_path / "opus")
    change_npz(release, "encoder_l1_ffn_W1", change)
    refused(release, reason)


def change_npz(release: Path, name: str, change: Callable[[Any], Any], compressed: bool = False) -> None:
    with np.load(release / "opus.npz") as file:
        arrays = {one: file[one] for one in file}
    (np.savez_compressed if compressed else np.savez)(release / "opus.npz", **{**arrays, name: change(arrays[name])})


@pytest.mark.parametrize("key", ['"\\U99999999"', '"\\xZZ"', '"open', '"\\"'])
def test_a_line_of_vocab_yml_that_says_no_piece(marian: Make, tmp_path: Path, refused: Check, key: str) -> None:
    release = write_release(marian(), tmp_path / "opus")
    lines = (release / "opus.vocab.yml").read_text().split("\n")
    lines[50] = f"{key}: 50"
    (release / "opus.vocab.yml").write_text("\n".join(lines))
    refused(release, "line 51: ")


def test_what_would_block(marian: Make, tmp_path: Path, refused: Check) -> None:
    for name in ("model.safetensors", "source.spm"):
        folder = copy(marian().folder, tmp_path / name)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        refused(folder, "not a regular file")


def test_npz_with_objects_is_not_unpickled(marian: Make, tmp_path: Path, refused: Check) -> None:
    release = write_release(marian(), tmp_path / "opus")
    change_npz(release, "Wemb", lambda _: np.array([Runs(tmp_path / "ran")], dtype=object))
    refused(release, "array Wemb is of type object")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["../source.spm", "/tmp/source.spm", "a/../../b.npz", "..\\decoder.yml", "C:\\x.npz"])
def test_names_that_lead_out_of_a_zip(marian: Make, tmp_path: Path, refused: Check, name: str) -> None:
    release = zipped(write_release(marian(), tmp_path / "opus"), tmp_path / "opus.zip")
    with zipfile.ZipFile(release, "a") as archive:
        archive.writestr(name, "x")
    refused(release, "which leads out of it")


def test_bombs(marian: Make, tmp_path: Path, refused: Check) -> None:
    folder = write_release(marian(), tmp_path / "opus")
    release = tmp_path / "opus.zip"
    for name in ("opus.npz", "source.spm"):
        with zipfile.ZipFile(release, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, bytes(70_000_000))
        refused(release, "would unpack to 70,000,000 bytes")
    with zipfile.ZipFile(release, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):  # each small enough
            archive.writestr(f"{number}.vocab.yml", bytes(1_000_000))
    refused(release, "would unpack to 20,000,000 bytes")
    change_npz(folder, "special:model.yml", lambda text: np.append(text[:-1], np.full(70_000_000, 32, np.uint8)), True)
    refused(folder, "it would unpack to 70,")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("type", "s2s", "type: 's2s' cannot be imported, only 'transformer'"),
        ("transformer-decoder-autoreg", "rnn", "transformer-decoder-autoreg: 'rnn' cannot be imported"),
        ("transformer-preprocess", "n", "transformer-preprocess: 'n' cannot be imported, only ''"),
        ("transformer-postprocess", "da", "transformer-postprocess: 'da' cannot be imported, only 'dan' or 'an'"),
        ("transformer-postprocess-emb", "nd", "transformer-postprocess-emb: 'nd' cannot be imported"),
        ("transformer-ffn-activation", "mish", "transformer-ffn-activation: 'mish' cannot be imported"),
        ("transformer-tied-layers", [1, 1], "transformer-tied-layers: [1, 1] cannot be imported"),
        ("transformer-train-positions", True, "transformer-train-positions: True cannot be imported"),
        ("transformer-decoder-dim-ffn", 64, "transformer-decoder-dim-ffn: 64 cannot be imported"),
        ("dim-emb", "wide", "model.d_model"),
        ("enc-depth", 3, "tensor model.encoder.layers.2.self_attn"),
    ],
)
def test_settings_of_marian_that_we_cannot_do(
    marian: Make, tmp_path: Path, refused: Check, key: str, value: Any, reason: str
) -> None:
    release = write_release(marian(), tmp_path / "opus", **{key: value})
    refused(release, reason)


def test_decoder_yml_names_files_beside_it(marian: Make, tmp_path: Path, refused: Check) -> None:
    release = write_release(marian(), tmp_path / "opus")
    text = (release / "decoder.yml").read_text()
    for old, new, reason in (
        ("opus.npz", "../opus.npz", "models: ../opus.npz is not the name of a file beside it"),
        ("opus.npz", "/etc/passwd", "models: /etc/passwd is not the name of a file beside it"),
        ("- opus.npz", "- opus.npz\n- other.npz", "names 2 models and 2 vocabs"),
        ("models", "modes", "has no list of models"),
    ):
        (release / "decoder.yml").write_text(text.replace(old, new))
        refused(release, reason)


def test_missing_files(marian: Make, tmp_path: Path, refused: Check) -> None:
    folder, release = marian().folder, write_release(marian(), tmp_path / "opus")
    for path in [*sorted(folder.iterdir()), *sorted(release.iterdir())]:
        if path.name in ("README.md", "LICENSE", "tokenizer_config.json", "generation_config.json"):
            continue
        copied = copy(path.parent, tmp_path / f"{path.parent.name}-without-{path.name}")
        (copied / path.name).unlink()
        refused(copied, path.name if path.name != "model.safetensors" else "neither model.safetensors nor")


def test_what_is_no_model(tmp_path: Path, refused: Check) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("text")
    refused(tmp_path / "empty", "has neither config.json nor decoder.yml")
    refused(tmp_path / "text", "cannot be read as a zip file")
    refused(tmp_path / "nowhere" / "at" / "all", "no such file or folder; give a folder or zip of Marian's")


# --- at random --------------------------------------------------------------------------------------------------------


def damage(path: Path, draw: random.Random) -> None:
    """Flip bytes of a file, cut it off, double a part or put another file's bytes into it."""
    content = bytearray(path.read_bytes())
    place = draw.randrange(min(len(content), draw.choice((200, 5000, len(content)))))  # headers more often
    kind = draw.randrange(4)
    if kind == 0:
        for _ in range(draw.choice((1, 3, 50))):
            content[min(place + draw.randrange(50), len(content) - 1)] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del content[place:]
    elif kind == 2:
        content[place:place] = content[place : place + draw.randrange(1, 300)]
    else:
        content[place : place + 8] = draw.choice((b"\xff" * 8, bytes(8), b"99999999", b"../../..", b'"a": [[['))
    path.write_bytes(content)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(MUTANTS)]
)
def test_a_damaged_file_is_refused_or_makes_a_model(
    marian: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str], seed: int
) -> None:
    """What damage leaves a model is one: some other weight, or another piece."""
    draw = random.Random(seed)
    made = marian()
    source = tmp_path / "model"
    kind = draw.choice(["transformers", "bin", "marian", "zip"])
    if kind in ("transformers", "bin"):
        copy(made.folder, source)
        if kind == "bin":
            torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
            (source / "model.safetensors").unlink()
    else:
        write_release(made, source)
    if kind == "zip":
        source = zipped(source, tmp_path / "model.zip")
        damage(source, draw)
    else:
        damage(draw.choice(sorted(source.iterdir())), draw)
    before = sorted(tmp_path.rglob("*"))
    capfd.readouterr()  # transformers shows its progress in writing the release
    code = main(["import", str(source), "--out", str(tmp_path / "run"), "--source-language=de", "--target-language=en"])
    said = capfd.readouterr().err
    if code == 0:
        translator = Translator.load(tmp_path / "run", engine="torch")
        assert len(translator.translate(["Ein Hund.", ""])) == 2
    else:
        assert code == 2, said
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
