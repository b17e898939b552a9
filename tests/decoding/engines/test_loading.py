"""Which engine is taken and why; the cache of CTranslate2 models; no torch where none is needed."""

import errno
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.decoding.checkpoints import make_checkpoint
from tests.decoding.searching import search_batch
from transformer_cli.cli.app import main
from transformer_cli.decoding import loading as engines
from transformer_cli.decoding.engines import ctranslate2_cache
from transformer_cli.decoding.engines.ctranslate2_cache import KEPT, cache_folder, cached_model
from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch
from transformer_cli.decoding.loading import FoundModel, load_engine
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.holding import MARK, MARKED

ctranslate2 = pytest.importorskip("ctranslate2", reason="the ctranslate2 engine needs CTranslate2")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "model", generator_bias=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no GPU."""
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 0)
    monkeypatch.setattr(engines, "has_gpu", lambda: False)
    return tmp_path / "cache" / "ctranslate2"


def models(cache: Path) -> list[str]:
    """What lies in the cache, but for the lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != ".lock") if cache.exists() else []


# --- the choice ---------------------------------------------------------------------------------------------------


def test_auto_takes_ctranslate2_in_float32_and_says_so(checkpoint: Path, cache: Path) -> None:
    loaded, why = load_engine(checkpoint)
    assert loaded.engine.name == "ctranslate2"
    assert why == f"engine: ctranslate2 (float32); converted from model, cached in {cache / models(cache)[0]}"
    assert load_engine(checkpoint, "cpu")[1] == "engine: ctranslate2 (float32)"
    ours, why = load_engine(checkpoint, choice="torch")
    assert (ours.engine.name, why) == ("torch", "engine: torch")
    assert ours.codecs.fingerprint == loaded.codecs.fingerprint
    assert ours.config == loaded.config
    greedy = SearchOptions(method="greedy")
    found = [search_batch(one.engine, [[5, 6, 7]], greedy)[0][0].ids for one in (loaded, ours)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"needs": ["sampling"]}, r"engine: torch \(sampling\)"),
        ({"missing": True}, r"engine: torch \(no ctranslate2: pip install ctranslate2\)"),
        ({"unseen": True}, r"torch \(ctranslate2 does not see the GPU\)"),
        ({"gpu": 1}, r"torch \(ctranslate2 failed: .*"),  # it is seen, and cannot be used
        (
            {"compute_type": "bfloat16", "types": {"float32"}},
            r"torch \(ctranslate2 has no bfloat16 on this cpu, bfloat16\)",
        ),
        ({"compute_type": "bfloat16", "missing": True}, r"torch \(no ctranslate2: .*, bfloat16\)"),
    ],
)
def test_auto_takes_torch_where_ctranslate2_cannot(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, wishes: dict[str, Any], message: str
) -> None:
    if wishes.get("missing"):
        monkeypatch.setattr(engines, "find_spec", lambda name: name == "torch")
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: wishes.get("gpu", 0))
    monkeypatch.setattr(engines, "has_gpu", lambda: wishes.get("unseen", False))
    if "types" in wishes:
        monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: wishes["types"])
    loaded, why = load_engine(checkpoint, needs=wishes.get("needs", ()), compute_type=wishes.get("compute_type"))
    assert loaded.engine.name == "torch"
    assert re.search(message, why)
    assert models(cache) == []


class OnGPU:
    """Stands for a `CTranslate2Engine` on a GPU."""

    name = "ctranslate2"
    broken = False

    def __init__(self, folder: Path, codecs: object, other: object, **options: Any) -> None:
        self.options = options

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
        if self.broken:
            raise RuntimeError("Library libcublas.so.12 is not found or cannot be loaded")
        yield []


@pytest.mark.parametrize(
    ("arguments", "has", "expected"),
    [
        ({}, {"float32", "bfloat16"}, ("cuda", "bfloat16")),
        ({"device": "cuda:1"}, {"float32", "bfloat16"}, ("cuda:1", "bfloat16")),
        ({}, {"float32", "int8"}, ("cuda", "float32")),
        ({"compute_type": "float32"}, {"float32", "bfloat16"}, ("cuda", "float32")),
        ({"compute_type": "int8"}, {"float32", "int8"}, ("cuda", "int8")),
        ({"choice": "ctranslate2"}, {"float32", "bfloat16"}, ("cuda", "bfloat16")),
    ],
)
def test_auto_takes_ctranslate2_on_a_gpu_that_it_sees(
    checkpoint: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: dict[str, Any],
    has: set[str],
    expected: tuple[str, str],
) -> None:
    types = {"cuda": has, "cpu": {"float32"}}
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 2)
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: types[device])
    monkeypatch.setattr("transformer_cli.decoding.engines.ctranslate2_engine.CTranslate2Engine", OnGPU)
    loaded, why = load_engine(checkpoint, **arguments)
    assert isinstance(loaded.engine, OnGPU)
    assert (loaded.engine.options["device"], loaded.engine.options["compute_type"]) == expected
    assert why.startswith(f"engine: ctranslate2 ({expected[1]}, {expected[0]})")


def test_a_gpu_whose_libraries_are_missing_leaves_torch_and_an_explicit_wish_is_refused(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    monkeypatch.setattr(ctranslate2, "get_supported_compute_types", lambda device: {"float32"})
    monkeypatch.setattr(OnGPU, "broken", True)
    monkeypatch.setattr("transformer_cli.decoding.engines.ctranslate2_engine.CTranslate2Engine", OnGPU)
    loaded, why = load_engine(checkpoint)
    assert loaded.engine.name == "torch"
    assert why.startswith("engine: torch (ctranslate2 failed: Library libcublas.so.12 is not found")
    with pytest.raises(UserError, match=r"libcublas.so.12 is not found or cannot be loaded; choose engine torch"):
        load_engine(checkpoint, choice="ctranslate2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"choice": "marian"}, "there is no engine 'marian'; choose auto, torch or ctranslate2"),
        ({"compute_type": "int3"}, "there is no compute type 'int3'"),
        ({"choice": "ctranslate2", "needs": ["sampling"]}, "engine ctranslate2 and sampling exclude each other"),
        ({"choice": "torch", "compute_type": "int8"}, "engine torch and compute type int8 exclude each other"),
        ({"compute_type": "int8", "needs": ["sampling"]}, "compute type int8 and sampling exclude each other"),
        ({"choice": "ctranslate2", "device": "mps"}, "device 'mps': ctranslate2 runs on cpu and cuda only"),
        ({"choice": "ctranslate2", "device": "cuda"}, "device 'cuda': ctranslate2 sees no such device"),
        (
            {"choice": "ctranslate2", "compute_type": "float16", "device": "cpu"},
            "compute type float16: not on this cpu; choose {all_types}",
        ),
        ({"device": "abacus"}, "device 'abacus'"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused_before_anything_is_written(
    checkpoint: Path, cache: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        load_engine(checkpoint, **arguments)
    *types, last = sorted(ctranslate2.get_supported_compute_types("cpu"))  # processors differ
    assert message.format(all_types=f"{', '.join(types)} or {last}") in str(error.value)
    assert "\n" not in str(error.value)
    assert models(cache) == []


def test_an_explicit_wish_is_refused_where_ctranslate2_is_missing(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: name == "torch")
    for wishes in ({"choice": "ctranslate2"}, {"compute_type": "int8"}):
        with pytest.raises(UserError, match=r"is not installed; pip install ctranslate2, or choose engine torch"):
            load_engine(checkpoint, **wishes)


def test_int8_is_taken_when_asked_for_and_shares_the_cached_model(checkpoint: Path, cache: Path) -> None:
    for compute_type in ("float32", "int8"):
        loaded, why = load_engine(checkpoint, compute_type=compute_type)
        assert why.startswith(f"engine: ctranslate2 ({compute_type})")
        assert search_batch(loaded.engine, [[5, 6]], SearchOptions(beam_size=3))[0][0].ids
    assert len(models(cache)) == 1


def test_torch_takes_over_what_ctranslate2_cannot_do_and_an_explicit_choice_refuses_it(
    checkpoint: Path, cache: Path
) -> None:
    sample = SearchOptions(method="sample", n_best=2, seed=3)
    found = search_batch(load_engine(checkpoint)[0].engine, [[5, 6]], sample, [(0,)])
    assert found == search_batch(load_engine(checkpoint, choice="torch")[0].engine, [[5, 6]], sample, [(0,)])
    with pytest.raises(UserError, match="the ctranslate2 engine cannot do sampling"):
        search_batch(load_engine(checkpoint, choice="ctranslate2")[0].engine, [[5, 6]], sample)


# --- the cache ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["model.bin", "tfm.json", "manifest.json", "gone", "file"])
def test_a_damaged_cache_is_noticed_and_made_again(checkpoint: Path, cache: Path, damage: str) -> None:
    place, made = cached_model(checkpoint)
    assert made
    whole = (place / "model.bin").read_bytes()
    if damage == "gone":
        (place / "model.bin").unlink()
    elif damage == "file":
        shutil.rmtree(place)
        place.write_text("no folder")
    else:
        content = bytearray((place / damage).read_bytes())
        content[len(content) // 2] ^= 1
        (place / damage).write_bytes(content)
    assert cached_model(checkpoint) == (place, True)
    assert (place / "model.bin").read_bytes() == whole
    assert cached_model(checkpoint) == (place, False)
    assert models(cache) == [place.name]


def test_other_weights_or_another_program_make_another_model(
    checkpoint: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_model(checkpoint)
    shutil.copytree(checkpoint, tmp_path / "moved")
    assert not cached_model(tmp_path / "moved")[1], "a copy is the same model"
    cached_model(make_checkpoint(tmp_path / "other", seed=2))
    cached_model(make_checkpoint(tmp_path / "third", heads=2))
    monkeypatch.setattr("ctranslate2.__version__", "0.1")
    cached_model(checkpoint)
    monkeypatch.setattr(ctranslate2_cache, "FORMAT", 99)
    cached_model(checkpoint)
    assert len(models(cache)) == 5


def test_the_models_used_longest_ago_go_first_and_so_do_abandoned_ones(checkpoint: Path, cache: Path) -> None:
    cache.mkdir(parents=True)
    now = time.time()
    for number in range(KEPT):
        (cache / f"{number:032x}").mkdir()
        os.utime(cache / f"{number:032x}", (now - 1000 + number,) * 2)
    for name, mark in ((".tmp-x-00000000", MARKED), (".tmp-y-00000000", "mine"), ("mine", "mine")):
        (cache / name).mkdir()
        (cache / name / MARK).write_text(mark)
        os.utime(cache / name, (0, 0))
    place, _ = cached_model(checkpoint)
    kept = [".tmp-y-00000000", "mine", *(f"{number:032x}" for number in range(1, KEPT)), place.name]
    assert models(cache) == sorted(kept)


def test_a_model_just_made_stays_though_the_clock_was_set_back(checkpoint: Path, cache: Path) -> None:
    """All others look younger then."""
    cache.mkdir(parents=True)
    for number in range(KEPT):
        (cache / f"{number:032x}").mkdir()
        os.utime(cache / f"{number:032x}", (time.time() + 86_400 + number,) * 2)
    place, _ = cached_model(checkpoint)
    assert models(cache) == sorted([*(f"{number:032x}" for number in range(1, KEPT)), place.name])


def test_two_at_once_make_one_model(checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Path, bool]] = []
    threads = [threading.Thread(target=lambda: made.append(cached_model(checkpoint))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({place for place, _ in made}) == 1
    assert sorted(new for _, new in made) == [False, False, False, True]


def test_a_full_disk_leaves_torch_and_nothing_behind(
    checkpoint: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *_: object) -> None:
        (folder / "model.bin").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("transformer_cli.decoding.engines.ctranslate2_model.write_model", full)
    loaded, why = load_engine(checkpoint)
    assert loaded.engine.name == "torch"
    assert "No space left on device" in why
    with pytest.raises(UserError, match=r"No space left on device; set TFM_CACHE to a folder with room"):
        load_engine(checkpoint, choice="ctranslate2")
    assert models(cache) == []


def test_a_cache_that_cannot_be_made_leaves_torch(
    checkpoint: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "file" / "below"))
    loaded, why = load_engine(checkpoint)
    assert (loaded.engine.name, why.startswith("engine: torch (ctranslate2 failed: ")) == ("torch", True)


def test_the_cache_lies_where_the_user_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder() == Path(os.environ["TFM_CACHE"]) / "ctranslate2"
    monkeypatch.delenv("TFM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache_folder() == Path("/caches/tfm/ctranslate2")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/tfm/ctranslate2")


def test_a_checkpoint_is_never_written_to(checkpoint: Path, cache: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in [checkpoint, *checkpoint.rglob("*")]}
    load_engine(checkpoint)
    assert {path: path.stat().st_mtime_ns for path in [checkpoint, *checkpoint.rglob("*")]} == before


@pytest.mark.parametrize("name", ["config.yaml", "vocab/shared.json"])
def test_damaged_text_files_are_refused_by_either_engine(
    checkpoint: Path, cache: Path, tmp_path: Path, name: str
) -> None:
    FoundModel.at(checkpoint)
    copy = tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    cached_model(copy)
    with open(copy / name, "a") as file:
        file.write("\n")
    for choice in engines.CHOICES:
        with pytest.raises(UserError, match=f"{name}: does not match its manifest"):
            load_engine(copy, choice=choice)


# --- no torch -----------------------------------------------------------------------------------------------------


def test_translating_scoring_and_aligning_through_ctranslate2_import_no_torch(checkpoint: Path, cache: Path) -> None:
    """From an empty cache on."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # importing it raises ImportError
        "from transformer_cli import Translator\n"
        "from transformer_cli.search_options import SearchOptions\n"
        f"translator = Translator.load({str(checkpoint)!r}, 'cpu', guard=False)\n"
        "found = translator.translate_batch(['ba be'], SearchOptions(beam_size=3, n_best=2), alignments=True)[0]\n"
        "assert found.hypotheses[1].tokens and found.alignment is not None\n"
        "assert translator.score(['ba'], ['be'])[0].log_probability < 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_command_translates_without_torch(checkpoint: Path, cache: Path) -> None:
    cached_model(checkpoint)
    code = (
        "import sys\n"
        "from transformer_cli.cli.app import main\n"
        f"code = main(['translate', {str(checkpoint)!r}, 'ba be', '--greedy', '--device', 'cpu', '--no-guard'])\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'numpy', 'transformers', 'pyarrow'}))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == [""], "one translation, and none of those modules"


def test_the_same_line_whatever_the_engine(checkpoint: Path, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = []
    for choice in engines.CHOICES:
        assert main(["translate", str(checkpoint), "ba be de", "--greedy", "--engine", choice, "--quiet"]) == 0
        lines.append(capfd.readouterr().out)
    assert len(set(lines)) == 1
