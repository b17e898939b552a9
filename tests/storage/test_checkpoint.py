"""What is saved is loaded again, bit for bit; what is not whole or not of the model is refused, by name."""

import errno
import hashlib
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.environment import unmeasured
from transformer_cli.build import LoadedModel, build_model, load_model
from transformer_cli.config import Config, load_config, parse_config
from transformer_cli.errors import UserError
from transformer_cli.model import torch_private
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage import checkpoint
from transformer_cli.storage.checkpoint import (
    STATE_TENSORS,
    TrainingState,
    load_training_state,
    load_weights,
    save_model,
    save_training_state,
)
from transformer_cli.storage.holding import TEMPORARY
from transformer_cli.storage.publishing import MANIFEST, manifest_names, publish, verify
from transformer_cli.storage.run_folder import (
    CONFIG,
    STATE_VALUES,
    WEIGHTS,
    CheckpointIndex,
    RunFolder,
    average_name,
    step_name,
)
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs
from transformer_cli.training.averaging import average, mean_model

TEXT = """
data: {source_language: de, target_language: en, train: {source: a, target: b}, valid: {source: a, target: b}}
vocabulary: {tokenizer: whitespace}
model: {encoder_layers: 1, decoder_layers: 1, d_model: 8, heads: 2, d_ff: 12}
"""
PAIRS = [("ein Hund", "a dog"), ("eine Katze", "a cat")]


def make_config(*overrides: str) -> Config:
    return parse_config(TEXT, "test", overrides)


def make_codecs(config: Config, pairs: list[tuple[str, str]] = PAIRS) -> Codecs:
    return build_codecs(config, lambda: iter(pairs))[0]


def make_model(config: Config, codecs: Codecs, seed: int = 1) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary))


def publish_model(folder: Path, *overrides: str, seed: int = 1, dtype: torch.dtype = torch.float32) -> nn.Module:
    config = make_config(*overrides)
    codecs = make_codecs(config)
    model = make_model(config, codecs, seed).to(dtype)
    publish(folder, lambda new: save_model(new, model, config, codecs))
    return model


def reseal(folder: Path) -> None:
    """Make the manifest true of what lies there now: damage that no hash shows."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    hashes = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / MANIFEST).write_text(json.dumps({"sha256": hashes}))


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    expected, found = first.state_dict(), second.state_dict()
    assert list(expected) == list(found)
    for name, tensor in expected.items():
        assert tensor.dtype == found[name].dtype
        assert torch.equal(tensor, found[name]), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    publish_model(tmp_path / "model")
    return tmp_path / "model"


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as raised:
        action()
    message = str(raised.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


# --- models -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tie", ["none", "decoder", "all"])
def test_round_trip(tmp_path: Path, tie: str) -> None:
    model = publish_model(tmp_path / "model", f"model.tie_embeddings={tie}", "model.generator_bias=true")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, LoadedModel)
    assert loaded.folder == tmp_path / "model"
    assert loaded.config == make_config(f"model.tie_embeddings={tie}", "model.generator_bias=true")
    assert loaded.codecs.fingerprint == make_codecs(loaded.config).fingerprint
    assert not loaded.model.training
    assert_same_weights(model, loaded.model)
    assert len(list(model.parameters())) == len(list(loaded.model.parameters()))  # tied again


@pytest.mark.parametrize("value_dim", [1, 64])
def test_values_of_another_width_are_no_damage(tmp_path: Path, value_dim: int) -> None:
    model = publish_model(tmp_path / "model", f"model.value_dim={value_dim}")
    assert_same_weights(model, load_model(tmp_path / "model").model)


def test_loaded_model_computes_what_the_saved_one_did(tmp_path: Path) -> None:
    model = publish_model(tmp_path / "model", "model.positions=learned", "model.norm=pre").eval()
    source, target = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 4]])
    mask = torch.ones(1, 1, 1, 3, dtype=torch.bool)
    with torch.no_grad():
        assert torch.equal(
            model(source, mask, target).hidden, load_model(tmp_path / "model").model(source, mask, target).hidden
        )


@pytest.mark.parametrize(("tie", "matrices"), [("none", 3), ("decoder", 2), ("all", 1)])
def test_tied_weights_are_stored_once(tmp_path: Path, tie: str, matrices: int) -> None:
    model = publish_model(tmp_path / "model", f"model.tie_embeddings={tie}")
    stored = load_file(tmp_path / "model" / WEIGHTS)
    vocabulary_size = load_model(tmp_path / "model").codecs.target.vocabulary.__len__()
    assert sum(tensor.shape == (vocabulary_size, 8) for tensor in stored.values()) == matrices
    assert sum(tensor.numel() for tensor in stored.values()) == sum(weight.numel() for weight in model.parameters())


def test_equal_weights_that_are_not_tied_are_all_stored(tmp_path: Path) -> None:
    config = make_config("model.tie_embeddings=none")
    codecs = make_codecs(config)
    model = make_model(config, codecs)
    for weight in model.parameters():
        nn.init.zeros_(weight)
    publish(tmp_path / "model", lambda new: save_model(new, model, config, codecs))
    assert len(load_file(tmp_path / "model" / WEIGHTS)) == len(list(model.parameters()))


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        publish_model(tmp_path / name)
    publish_model(tmp_path / "c", seed=2)
    first, second, other = ((tmp_path / name / MANIFEST).read_bytes() for name in "abc")
    assert first == second != other
    loaded = load_model(tmp_path / "a")
    publish(tmp_path / "d", lambda new: save_model(new, loaded.model, loaded.config, loaded.codecs))
    assert (tmp_path / "d" / MANIFEST).read_bytes() == first


def test_at_most_one_metadata_key(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    header = json.loads(content[8 : 8 + struct.unpack("<Q", content[:8])[0]])
    assert len(header.get("__metadata__", {})) <= 1


def test_files_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        publish_model(tmp_path / "model")
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").rglob("*") if path.is_file()} == {0o644}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_floats_keep_their_type(tmp_path: Path, dtype: torch.dtype) -> None:
    model = publish_model(tmp_path / "model", dtype=dtype)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model" / WEIGHTS).values()} == {dtype}
    assert_same_weights(model, load_model(tmp_path / "model").model)


def test_views_are_saved_as_what_they_show(tmp_path: Path) -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = torch.arange(12.0).view(3, 4)
            self.register_buffer("rows", base[1:])
            self.register_buffer("columns", base.t())
            self.register_buffer("whole", base)
            self.register_buffer("count", torch.tensor(3))
            self.register_buffer("nothing", torch.zeros(0, 2))
            self.register_buffer("nothing_else", torch.zeros(0, 2))

    config = make_config()
    publish(tmp_path / "model", lambda new: save_model(new, Views(), config, make_codecs(config)))
    other = Views()
    for buffer in other.buffers():
        buffer.zero_()
    load_weights(tmp_path / "model", other)
    assert torch.equal(torch.as_tensor(other.count), torch.tensor(3))
    stored = load_file(tmp_path / "model" / WEIGHTS)
    for name, buffer in Views().named_buffers():
        assert torch.equal(stored[name], buffer)


def test_loading_leaves_the_random_generator_alone(folder: Path) -> None:
    before = torch.get_rng_state()
    load_model(folder, torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())


def test_loading_continues_where_drawing_cannot_be_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another torch may know no way: slower, and nothing else."""
    monkeypatch.setattr(torch_private, "has", lambda name: False)
    before = torch.get_rng_state()
    expected = load_file(folder / WEIGHTS)
    for name, tensor in load_model(folder).model.state_dict().items():
        assert torch.equal(tensor, expected.get(name, tensor))
    assert torch.equal(before, torch.get_rng_state())


def test_load_weights_into_a_model_that_is_there(folder: Path) -> None:
    config = make_config()
    model = make_model(config, make_codecs(config), seed=7)
    weights = list(model.parameters())
    load_weights(folder, model)
    assert_same_weights(model, load_model(folder).model)
    assert all(new is old for new, old in zip(model.parameters(), weights, strict=True))  # an optimiser holds them


def test_moved_and_untouched(tmp_path: Path) -> None:
    """A run folder works elsewhere, and reading it writes nothing, so that it may be read-only."""
    run = RunFolder(tmp_path / "run")
    run.create()
    publish_model(run.path / step_name(1))
    run.write_index(CheckpointIndex([1], [1], 1))
    before = load_model(run.path).model
    moved = tmp_path / "elsewhere"
    os.rename(run.path, moved)
    paths = [moved, *moved.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    times = [path.stat().st_mtime_ns for path in paths]
    try:
        assert_same_weights(before, load_model(moved).model)
        assert sorted([moved, *moved.rglob("*")]) == sorted(paths)
        assert [path.stat().st_mtime_ns for path in paths] == times
    finally:
        for path in paths:
            path.chmod(0o755)


# --- damage -------------------------------------------------------------------------------------------------------


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    reseal(folder)


def test_missing_tensor(folder: Path) -> None:
    name = min(load_file(folder / WEIGHTS))
    change_weights(folder, lambda tensors: tensors.pop(name))
    assert f"tensor {name} is missing" in refusal(lambda: load_model(folder))


def test_unexpected_tensor(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors.update(intruder=torch.zeros(1)))
    assert "tensor intruder does not belong" in refusal(lambda: load_model(folder))


def test_misshapen_tensor(folder: Path) -> None:
    name = min(load_file(folder / WEIGHTS))
    change_weights(folder, lambda tensors: tensors.update({name: torch.zeros(2, 3, 1)}))
    message = refusal(lambda: load_model(folder))
    assert f"tensor {name} is [2, 3, 1], but" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_no_number(folder: Path, value: float) -> None:
    name = min(load_file(folder / WEIGHTS))
    change_weights(folder, lambda tensors: tensors[name].view(-1)[-1:].fill_(value))
    assert f"tensor {name} is not finite" in refusal(lambda: load_model(folder))


def test_transposed_tensor(tmp_path: Path) -> None:
    """As many numbers, in another order."""
    publish_model(tmp_path / "model")
    shapes = {name: tensor for name, tensor in load_file(tmp_path / "model" / WEIGHTS).items() if tensor.dim() == 2}
    name = next(name for name, tensor in shapes.items() if tensor.size(0) != tensor.size(1))
    change_weights(tmp_path / "model", lambda tensors: tensors.update({name: tensors[name].t().contiguous()}))
    assert f"tensor {name} is [" in refusal(lambda: load_model(tmp_path / "model"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_tensor_of_another_type(folder: Path, dtype: torch.dtype) -> None:
    name = min(load_file(folder / WEIGHTS))
    change_weights(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    assert f"tensor {name} is of type" in refusal(lambda: load_model(folder))


def test_all_tensors_of_a_type_that_no_model_has(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors.update({name: value.long() for name, value in tensors.items()}))
    assert "is of type torch.int64, not torch.float32" in refusal(lambda: load_model(folder))


def test_refused_weights_change_nothing(folder: Path) -> None:
    change_weights(folder, lambda tensors: tensors.pop(max(tensors)))
    config = make_config()
    model, same = (make_model(config, make_codecs(config), seed=3) for _ in range(2))
    refusal(lambda: load_weights(folder, model))
    assert_same_weights(model, same)


def bomb(header: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\x00" * 8,
        b"not a safetensors file at all",
        bomb(b"", 2**64 - 1),
        bomb(b"{}", 2**63),
        bomb(b"{}", 2**40),
        bomb(b"{}", 3),
        bomb(b"["),
        bomb(b"[" * 100_000),
        bomb(b"\xff\xff"),
        bomb(json.dumps({"a": entry([2**40], 0, 2**42)}).encode()),
        bomb(json.dumps({"a": entry([2**62, 4], 0, 0)}).encode()),
        bomb(json.dumps({"a": entry([1], 4, 0)}).encode()) + bytes(4),
        bomb(json.dumps({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}).encode()) + bytes(4),
        bomb(json.dumps({"a": entry([1], 0, 4, "X9")}).encode()) + bytes(4),
        bomb(json.dumps({"a": entry([4], 0, 4, "F8_E4M3")}).encode()) + bytes(4),
    ],
)
def test_garbage_is_refused_before_memory_is_taken(folder: Path, content: bytes) -> None:
    (folder / WEIGHTS).write_bytes(content)
    assert "does not match its manifest" in refusal(lambda: load_model(folder))
    reseal(folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert WEIGHTS in refusal(lambda: load_model(folder))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KB


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "vocab"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "empty"])
def test_every_file_read_is_checked(folder: Path, name: str, damage: str) -> None:
    file = folder / name if name != "vocab" else next(path for path in (folder / "vocab").iterdir())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    match damage:
        case "flip":
            file.write_bytes(content)
        case "truncate":
            file.write_bytes(content[:-1])
        case "empty":
            file.write_bytes(b"")
        case "delete":
            file.unlink()
    message = refusal(lambda: load_model(folder))
    assert str(folder) in message
    assert file.name in message
    assert re.search("copy (it|the whole folder) again", message)


@pytest.mark.parametrize("content", ["", "[]", "model: 1", "{", "data: {source_language: de}"])
def test_config_that_is_none(folder: Path, content: str) -> None:
    (folder / CONFIG).write_text(content)
    reseal(folder)
    assert CONFIG in refusal(lambda: load_model(folder))


def test_config_of_another_model(folder: Path) -> None:
    text = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(text.replace("d_ff: 12", "d_ff: 13"))
    assert load_config(folder / CONFIG).model.d_ff == 13
    reseal(folder)
    assert "tensor" in refusal(lambda: load_model(folder))


def test_file_the_manifest_does_not_vouch_for(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"sha256": {}}')
    assert "does not name config.yaml" in refusal(lambda: load_model(folder))


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_damage_is_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    """Bytes changed, cut or added anywhere, with hashes that fit: a UserError, or a model with its own tensors."""
    path = folder / WEIGHTS
    whole = folder.parent / "whole"
    if not whole.exists():
        shutil.copy(path, whole)
    content = bytearray(whole.read_bytes())
    header = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, header - 1) | st.integers(0, len(content) - 1))
        content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    reseal(folder)
    try:
        loaded = load_model(folder)
    except UserError:
        assert str(path) in refusal(lambda: load_model(folder))
    else:
        assert set(load_file(path)) <= set(loaded.model.state_dict())


# --- training state -----------------------------------------------------------------------------------------------

STATE = TrainingState(
    {
        "random": torch.get_rng_state(),
        "step": torch.tensor(3.0),
        "moment": torch.arange(6, dtype=torch.float64).view(2, 3).t(),
        "flag": torch.tensor([True, False]),
        "none": torch.zeros(0),
    },
    {
        "step": 3,
        "position": [1, 2],
        "best": None,
        "loss": 0.1 + 0.2,
        "seed": 2**80,
        "text": "ä\u2028",
        "deep": {"a": [{}]},
    },
)


def publish_state(folder: Path, state: TrainingState = STATE) -> Path:
    return publish(folder, lambda new: save_training_state(new, state))


def test_training_state_round_trip(tmp_path: Path) -> None:
    loaded = load_training_state(publish_state(tmp_path / "step"))
    assert loaded.values == STATE.values
    assert set(loaded.tensors) == set(STATE.tensors)
    for name, tensor in STATE.tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name], tensor)
    torch.Generator().set_state(loaded.tensors["random"])


def test_training_state_is_reproducible(tmp_path: Path) -> None:
    first, second = (publish_state(tmp_path / name) for name in ("a", "b"))
    assert (first / MANIFEST).read_bytes() == (second / MANIFEST).read_bytes()


def test_loaded_state_does_not_lie_in_the_file(tmp_path: Path) -> None:
    folder = publish_state(tmp_path / "step")
    loaded = load_training_state(folder)
    with open(folder / STATE_TENSORS, "r+b") as file:
        file.write(bytes((folder / STATE_TENSORS).stat().st_size))  # in place: a mapping would show it
    assert torch.equal(loaded.tensors["moment"], STATE.tensors["moment"])


def test_a_state_of_many_views_is_saved(tmp_path: Path) -> None:
    flat = torch.arange(10.0)
    state = TrainingState({"a": flat[:4], "b": flat[2:], "c": flat}, {})
    loaded = load_training_state(publish_state(tmp_path / "step", state))
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in state.tensors.items())


def test_model_without_training_state_is_a_model(tmp_path: Path) -> None:
    folder = publish_model_and_state(tmp_path / "step")
    (folder / STATE_TENSORS).unlink()
    (folder / STATE_VALUES).unlink()
    load_model(folder)
    assert "no training state to resume from" in refusal(lambda: load_training_state(folder))
    publish_model(tmp_path / "shipped")
    assert "no training state to resume from" in refusal(lambda: load_training_state(tmp_path / "shipped"))


def publish_model_and_state(folder: Path) -> Path:
    config = make_config()
    codecs = make_codecs(config)

    def write(new: Path) -> None:
        save_model(new, make_model(config, codecs), config, codecs)
        save_training_state(new, STATE)

    return publish(folder, write)


@pytest.mark.parametrize("name", [STATE_TENSORS, STATE_VALUES])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"\xff", b"[" * 99_999, b"9" * 9_999])
def test_damaged_training_state(tmp_path: Path, name: str, content: bytes) -> None:
    folder = publish_state(tmp_path / "step")
    (folder / name).write_bytes(content)
    assert "does not match its manifest" in refusal(lambda: load_training_state(folder))
    reseal(folder)
    assert str(folder / name) in refusal(lambda: load_training_state(folder))


# --- full disks and kills -----------------------------------------------------------------------------------------


@contextmanager
def small_files_only(size: int) -> Iterator[None]:
    """A process that may write so many bytes to a file: for the writer the same as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [100, 3000])
def test_full_disk_while_saving(tmp_path: Path, size: int) -> None:
    """At the first file, and at the weights: the error is an OSError and the old checkpoint stays."""
    run = RunFolder(tmp_path)
    publish_model(run.path / step_name(1))
    run.write_index(CheckpointIndex([1], [1], 1))
    before = sorted(tmp_path.rglob("*"))
    config = make_config("model.d_ff=600")
    codecs = make_codecs(config)
    model = make_model(config, codecs)
    with small_files_only(size), pytest.raises(OSError, match="File too large") as raised:
        run.publish(step_name(2), lambda new: save_model(new, model, config, codecs))
    assert raised.value.errno == errno.EFBIG
    assert sorted(tmp_path.rglob("*")) == before
    load_model(run.path)


@pytest.mark.parametrize(("text", "code"), [("No space left on device (os error 28)", errno.ENOSPC), ("?", errno.EIO)])
def test_hidden_disk_errors_are_os_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: {text}")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        save_training_state(tmp_path, STATE)
    assert raised.value.errno == code


SAVE_FOR_EVER = """
import itertools, sys
from pathlib import Path
import torch
from transformer_cli.storage.checkpoint import TrainingState, save_model, save_training_state
from transformer_cli.build import load_model
from transformer_cli.storage.run_folder import CheckpointIndex, RunFolder, step_name
run = RunFolder(sys.argv[1])
start = load_model(run.path)
for step in itertools.count(2):
    def write(folder):
        save_model(folder, start.model, start.config, start.codecs)
        save_training_state(folder, TrainingState({"m": torch.full((100_000,), step)}, {"step": step}))
    run.publish(step_name(step), write)
    run.write_index(CheckpointIndex([step], [step], step))
    run.prune()
    print(step, flush=True)
"""


@pytest.mark.medium
def test_a_killed_trainer_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    publish_model(run.path / step_name(1))
    run.write_index(CheckpointIndex([1], [1], 1))
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=unmeasured(OMP_NUM_THREADS="1")) as process:
        assert process.stdout is not None
        seen = [int(process.stdout.readline()) for _ in range(3)]
        time.sleep(0.017)
        process.kill()
    last = run.index().last
    assert last is not None
    assert last >= seen[-1]
    load_model(run.path)
    state = load_training_state(run.step_folder(last))
    assert state.values == {"step": last}
    assert torch.equal(state.tensors["m"], torch.full((100_000,), last))
    run.clean_temporaries()
    run.prune()
    assert sorted(entry.name for entry in run.path.iterdir()) == ["checkpoints.json", step_name(last)]


# --- averaging ----------------------------------------------------------------------------------------------------


def test_average_is_the_mean_in_float64(tmp_path: Path) -> None:
    models = [publish_model(tmp_path / str(seed), seed=seed) for seed in range(3)]
    folders = [tmp_path / str(seed) for seed in range(3)]
    average(folders, tmp_path / "out" / "mean")
    mean = load_model(tmp_path / "out" / "mean")
    verify(mean.folder, manifest_names(mean.folder))
    assert set(manifest_names(mean.folder)) == set(manifest_names(folders[0]))
    for name, tensor in mean.model.state_dict().items():
        expected = sum(model.state_dict()[name].double() for model in models) / 3
        assert torch.equal(tensor, torch.as_tensor(expected).float())


def fill(value: float, tensors: dict[str, Tensor]) -> None:
    for tensor in tensors.values():
        tensor.fill_(value)


def test_average_keeps_small_differences(tmp_path: Path) -> None:
    """A float32 sum would lose the first 1, and come to 0.25."""
    values = [1e8, 1.0, -1e8, 1.0]
    for number, value in enumerate(values):
        publish_model(tmp_path / str(number))
        change_weights(tmp_path / str(number), partial(fill, value))
    average([tmp_path / str(number) for number in range(4)], tmp_path / "mean")
    assert all(bool((weight == 0.5).all()) for weight in load_model(tmp_path / "mean").model.parameters())


def test_average_of_one_is_itself(tmp_path: Path, folder: Path) -> None:
    for number in (1, 2, 3):
        average([folder] * number, tmp_path / str(number))
        assert (tmp_path / str(number) / MANIFEST).read_bytes() == (folder / MANIFEST).read_bytes()


def test_average_inside_a_run(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    for step in (1, 2):
        publish_model(run.path / step_name(step), seed=step)
    name = average_name(2)
    mean = mean_model([run.step_folder(1), run.step_folder(2)])
    run.publish(name, lambda new: save_model(new, mean.model, mean.config, mean.codecs))
    run.write_index(CheckpointIndex([1, 2], [2], 2))
    average([run.path / step_name(1), run.path], tmp_path / "outside")  # the run stands for its best
    run.write_index(CheckpointIndex([1, 2], [2], 2, average=name))
    assert load_model(run.path).folder == run.path / name
    assert (run.path / name / MANIFEST).read_bytes() == (tmp_path / "outside" / MANIFEST).read_bytes()


def test_average_keeps_the_type(tmp_path: Path) -> None:
    for seed in (1, 2):
        publish_model(tmp_path / str(seed), seed=seed, dtype=torch.bfloat16)
    average([tmp_path / "1", tmp_path / "2"], tmp_path / "mean")
    assert {weight.dtype for weight in load_model(tmp_path / "mean").model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (["model.d_ff=16"], "another kind of model"),
        (["model.dropout=0.3", "model.norm=pre"], "another kind of model"),
        (["data.source_language=nl"], "another kind of model"),
        (["vocabulary.size=9"], "another vocabulary"),
        (["vocabulary.lowercase=true"], "another vocabulary"),
    ],
)
def test_average_refuses_other_models(tmp_path: Path, folder: Path, overrides: list[str], what: str) -> None:
    publish_model(tmp_path / "other", *overrides)
    message = refusal(lambda: average([folder, tmp_path / "other"], tmp_path / "out" / "mean"))
    assert message.startswith(f"{tmp_path / 'other'}: ")
    assert what in message
    assert not (tmp_path / "out").exists()


def test_average_of_a_run_continued_with_other_limits(tmp_path: Path, folder: Path) -> None:
    publish_model(tmp_path / "later", "training.max_steps=5", "decoding.beam_size=2", "data.workers=0", seed=2)
    average([folder, tmp_path / "later"], tmp_path / "mean")
    first, later, mean = (load_model(path) for path in (folder, tmp_path / "later", tmp_path / "mean"))
    assert mean.config == first.config != later.config, "what may differ is as in the first"
    for name, tensor in mean.model.state_dict().items():
        one, other = first.model.state_dict()[name], later.model.state_dict()[name]
        assert torch.equal(tensor, ((one.double() + other.double()) / 2).float()), name


def test_average_refuses_other_types(tmp_path: Path, folder: Path) -> None:
    publish_model(tmp_path / "other", dtype=torch.float64)
    assert "has other tensors" in refusal(lambda: average([folder, tmp_path / "other"], tmp_path / "mean"))


def test_average_never_overwrites(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "there").mkdir()
    for out in (tmp_path / "there", folder):
        assert "exists already" in refusal(partial(average, [folder], out))
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refusal(lambda: average([folder], tmp_path / "file" / "mean"))
    assert "at least one" in refusal(lambda: average([], tmp_path / "mean"))
    assert not (tmp_path / "mean").exists()


def test_average_refuses_a_damaged_one(tmp_path: Path, folder: Path) -> None:
    publish_model(tmp_path / "other")
    with open(tmp_path / "other" / WEIGHTS, "ab") as file:
        file.write(b"\0")
    assert "does not match its manifest" in refusal(lambda: average([folder, tmp_path / "other"], tmp_path / "mean"))
    assert not any(path.name.startswith((TEMPORARY, "mean")) for path in tmp_path.iterdir())
