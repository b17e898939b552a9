"""A checkpoint becomes a CTranslate2 model without torch, bit for bit what torch would read, or is refused by name."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.decoding.checkpoints import make_checkpoint
from transformer_cli.build import load_model
from transformer_cli.codecs import load_text_side
from transformer_cli.errors import UserError
from transformer_cli.model.embedding import sinusoidal_table
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import CONFIG, WEIGHTS

pytest.importorskip("ctranslate2", reason="the ctranslate2 engine needs CTranslate2")
from transformer_cli.decoding.engines.ctranslate2_model import build_spec, position_count

VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "generator's bias": {"generator_bias": True},
    "pre-norm, learned, gated": {"norm": "pre", "positions": "learned", "activation": "swiglu"},
    "two vocabularies": {"shared": False, "tie_embeddings": "none", "activation": "geglu", "generator_bias": True},
    "decoder tied": {"shared": False, "tie_embeddings": "decoder", "activation": "gelu", "generator_bias": True},
    "wide heads": {"head_dim": 5, "tie_embeddings": "none", "positions": "learned"},
    "no biases": {"attention_bias": False, "feed_forward_bias": False, "activation": "swiglu"},
    "one-hot": {"embedding": "one_hot"},
    "rotary, normalised": {"positions": "rotary", "qk_norm": True},
}
QUERIES = "encoder.layers.0.self_attention.query.weight"


def variables(folder: Path) -> dict[str, Any]:
    """The arrays of the specification, by CTranslate2's names."""
    spec = build_spec(folder, *load_text_side(folder))
    return {name: value for name, value in spec.variables().items() if isinstance(value, np.ndarray)}


def rewritten(folder: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """The checkpoint with other tensors, its hashes right."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)

    def write(new: Path) -> None:
        for file in (CONFIG, *(str(path.relative_to(folder)) for path in (folder / "vocab").iterdir())):
            (new / file).parent.mkdir(exist_ok=True)
            (new / file).write_bytes((folder / file).read_bytes())
        save_file(tensors, new / WEIGHTS)

    return publish(out, write)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_weight_is_there_bit_for_bit_and_nothing_else(tmp_path: Path, variant: str) -> None:
    loaded = load_model(make_checkpoint(tmp_path / "model", **VARIANTS[variant]))
    arrays = variables(loaded.folder)
    content = [array.tobytes() for array in arrays.values()]
    weights = loaded.model.state_dict()  # tied ones under all their names
    for name, tensor in weights.items():
        assert any(tensor.numpy().tobytes() in one for one in content), name
    others = re.compile("position_encodings|[qk]_norm|rotary")  # what is not a weight of ours
    written_ones = sum(array.size for name, array in arrays.items() if not others.search(name))
    assert written_ones == sum(tensor.numel() for name, tensor in weights.items() if ".positions." not in name)
    norms = {name: array for name, array in arrays.items() if re.search("[qk]_norm", name)}
    assert bool(norms) is loaded.config.model.qk_norm
    assert all((array == float(name.endswith("gamma"))).all() for name, array in norms.items())
    for side, embedding in (
        ("encoder", loaded.model.source_embedding),
        ("decoder", loaded.model.target_embedding),
    ):
        if embedding.positions is None:
            assert f"{side}/position_encodings/encodings" not in arrays
            continue
        rows = position_count(loaded.config)
        written = arrays[f"{side}/position_encodings/encodings"]
        assert written.tobytes() == embedding.positions(0, rows).detach().contiguous().numpy().tobytes()


@pytest.mark.parametrize("d_model", [2, 24, 250, 512])
def test_sinusoids_are_the_models_bit_for_bit(tmp_path: Path, d_model: int) -> None:
    """numpy's and torch's own sines differ now and then in the last bit, of 250 dimensions for instance."""
    folder = make_checkpoint(tmp_path / "model", d_model=d_model, heads=1)
    table = sinusoidal_table(2048, d_model)
    assert variables(folder)["encoder/position_encodings/encodings"].tobytes() == table.numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_another_type_become_float32_as_torch_makes_them(tmp_path: Path, dtype: torch.dtype) -> None:
    plain = make_checkpoint(tmp_path / "plain")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    folder = rewritten(plain, tmp_path / "other", change)
    expected = rewritten(folder, tmp_path / "expected", to_float32)
    found, wanted = variables(folder), variables(expected)
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in wanted.items()
    }


def to_float32(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: tensor.float() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda all_: all_.pop(QUERIES), f"tensor {QUERIES} is missing; copy the whole folder again"),
        (lambda all_: all_.update({QUERIES: torch.zeros(24, 23)}), rf"{QUERIES} is \[24, 23\], but .* \[24, 24\]"),
        (lambda all_: all_[QUERIES].fill_(torch.nan), f"tensor {QUERIES} is not finite"),
        (lambda all_: all_.update({QUERIES: all_[QUERIES].double()}), "tensors are of type F32, F64"),
        (lambda all_: all_.update({name: one.long() for name, one in all_.items()}), "tensors are of type I64"),
        (lambda all_: all_.clear(), "cannot be read as a safetensors file"),
        (lambda all_: all_.update({"intruder": torch.zeros(3)}), "has no place for intruder; use the torch engine"),
    ],
)
def test_weights_that_are_not_this_models_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    folder = rewritten(make_checkpoint(tmp_path / "model"), tmp_path / "other", change)
    with pytest.raises(UserError, match=message) as error:
        variables(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


def test_damaged_weights_are_seen_by_their_hash(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model")
    with open(folder / WEIGHTS, "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x42")
    with pytest.raises(UserError, match=f"{WEIGHTS}: does not match its manifest"):
        variables(folder)


@pytest.mark.medium
def test_it_is_written_without_torch_as_with_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", generator_bias=True)
    for name, first in (("with", ""), ("without", "import sys; sys.modules['torch'] = None\n")):
        (tmp_path / name).mkdir()
        code = first + (
            "from pathlib import Path\n"
            "from transformer_cli.codecs import load_text_side\n"
            "from transformer_cli.decoding.engines.ctranslate2_model import build_spec, write_model\n"
            f"folder, out = Path({str(folder)!r}), Path({str(tmp_path / name)!r})\n"
            "config, codecs = load_text_side(folder)\n"
            "write_model(out, build_spec(folder, config, codecs), config, 'int8')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("with", "without")]
    assert files[0] == files[1]
    assert "model.bin" in files[0]
