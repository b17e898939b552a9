"""Which engine searches: CTranslate2 where it is installed and can do what is asked for, else our own Transformer.

`Translator.load` calls it. torch is imported only where it is needed.
"""

import os
import re
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from transformer_cli.codecs import load_text_side
from transformer_cli.decoding.engines.protocol import Engine, LoadedEngine
from transformer_cli.errors import UserError, one_of

CHOICES = ("auto", "torch", "ctranslate2")
TORCH_TYPES = ("float32", "float16", "bfloat16")
COMPUTE_TYPES = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
INSTALL = "pip install 'transformer-cli[fast]'"


class _Lacks(UserError):
    """CTranslate2 has no place for what the model is."""


def load_engine(
    folder: Path,
    device: str = "auto",
    choice: str = "auto",
    *,
    compute_type: str | None = None,
    needs: Sequence[str] = (),
) -> tuple[LoadedEngine, str]:
    """The engine for a checkpoint folder, and a sentence that says which one it is and why.

    choice: auto, torch or ctranslate2. compute_type: what it computes in (default: float32; torch on a GPU: bfloat16).
    needs: what is asked for that only the torch engine has, by name (`torch_only.torch_needs` tells of search options).
    Raises `UserError` where wishes exclude each other, where there is no such device, or where files are damaged.
    """
    _check(choice, compute_type, needs)
    if choice == "torch" or needs:
        return _load_torch(folder, device, compute_type, needs[0] if needs and choice == "auto" else None)
    asked = choice == "ctranslate2" or compute_type not in (None, *TORCH_TYPES)
    place = _ctranslate2_device(device, asked)  # what both can compute in is torch's on a GPU
    reason = "the GPU" if place is None else None if find_spec("ctranslate2") else f"no ctranslate2: {INSTALL}"
    if place is not None and reason is None:
        try:
            if asked or compute_type in (None, *_compute_types(place)):
                return _load_ctranslate2(folder, device, place, compute_type or "float32", strict=asked)
            reason = f"ctranslate2 has no {compute_type} on this {place}"
        except (UserError, ImportError, OSError, RuntimeError, ValueError) as error:
            if asked:
                raise _explained(error) from error
            reason = _told(error) if isinstance(error, _Lacks) else f"ctranslate2 failed: {_told(error)}"
    if asked and place is not None:
        raise UserError(f"engine ctranslate2: is not installed; install it with {INSTALL}, or choose engine torch")
    return _load_torch(folder, device, compute_type, reason)


def _check(choice: str, compute_type: str | None, needs: Sequence[str]) -> None:
    """Raise `UserError` for names that there are not, and for wishes that exclude each other."""
    if choice not in CHOICES:
        raise UserError(f"there is no engine {choice!r}; choose {one_of(list(CHOICES))}")
    if compute_type is not None and compute_type not in COMPUTE_TYPES:
        raise UserError(f"there is no compute type {compute_type!r}; choose {one_of(list(COMPUTE_TYPES))}")
    reduced = compute_type not in (None, *TORCH_TYPES)
    if reduced and choice == "torch":
        raise UserError(f"engine torch and compute type {compute_type} exclude each other: only ctranslate2 has it")
    if reduced and needs:
        raise UserError(
            f"compute type {compute_type} and {needs[0]} exclude each other: only ctranslate2 has the one, only torch "
            "the other; leave one out"
        )
    if choice == "ctranslate2" and needs:
        raise UserError(
            f"engine ctranslate2 and {needs[0]} exclude each other: only torch has that; choose engine auto or torch"
        )


def _ctranslate2_device(device: str, asked: bool) -> str | None:
    """The device that CTranslate2 would run on (cpu, cuda, cuda:N); None: left to torch.

    Where CTranslate2 is not `asked` for, a GPU is torch's. Raises `UserError` for a device that it cannot run on.
    """
    if device == "cpu":
        return "cpu"
    if not asked and device != "auto":
        return None
    if device not in ("auto", "cuda") and not re.fullmatch(r"cuda:[0-9]+", device):
        raise UserError(f"device {device!r}: ctranslate2 runs on cpu and cuda only; choose one, or engine torch")
    count = _cuda_devices()
    if device == "auto":
        return "cuda" if asked and count else "cpu" if asked or not (count or _has_gpu()) else None
    if int(device.partition(":")[2] or 0) >= count:
        what = "sees no such device" if not count else f"sees only {count} of them"
        raise UserError(f"device {device!r}: ctranslate2 {what} on this machine; use --device auto or cpu")
    return device


def _cuda_devices() -> int:
    """How many GPUs CTranslate2 sees."""
    try:
        import ctranslate2
    except ImportError:
        return 0
    return int(ctranslate2.get_cuda_device_count())


def _compute_types(place: str) -> set[str]:
    """What CTranslate2 can compute in on its device."""
    import ctranslate2

    return set(ctranslate2.get_supported_compute_types(place.partition(":")[0]))


def _has_gpu() -> bool:
    """Whether there may be a GPU for torch that CTranslate2, as it was built, does not see."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "kfd"))


def _load_ctranslate2(
    folder: Path, device: str, place: str, compute_type: str, *, strict: bool
) -> tuple[LoadedEngine, str]:
    """place: CTranslate2's device; device: of the torch engine that takes over what CTranslate2 cannot do."""
    from transformer_cli.decoding.engines.ctranslate2_cache import cached_model
    from transformer_cli.decoding.engines.ctranslate2_engine import CTranslate2Engine

    supported = _compute_types(place)
    if compute_type not in supported:
        raise UserError(f"compute type {compute_type}: not on this {place}; choose {one_of(sorted(supported))}")
    config, codecs = load_text_side(folder)
    if config.model.own_variant:
        raise _Lacks(f"ctranslate2 has no {config.model.own_variant}")
    model, made = cached_model(folder)
    other = _once(lambda: _load_torch(folder, device, compute_type if compute_type in TORCH_TYPES else None)[0].engine)
    engine = CTranslate2Engine(model, codecs, other, device=place, compute_type=compute_type, strict=strict)
    kept = f"; made from {folder.name}, kept in {model}" if made else ""
    return LoadedEngine(engine, codecs, config), f"engine: ctranslate2 ({compute_type}){kept}"


def _load_torch(
    folder: Path, device: str, compute_type: str | None, reason: str | None = None
) -> tuple[LoadedEngine, str]:
    """compute_type: one of `TORCH_TYPES`, or None: the device's own."""
    import torch

    from transformer_cli.build import build_engine, load_model
    from transformer_cli.decoding.engines.torch_engine import choose_device, choose_type

    target = choose_device(device)
    loaded = load_model(folder, target)
    dtype = choose_type(compute_type, target)
    model = loaded.model if dtype is None else loaded.model.to(dtype)
    engine = build_engine(model, target, constant=True)
    reduced = None if dtype in (None, torch.float32) else str(dtype).removeprefix("torch.")
    why = ", ".join(remark for remark in (reason, reduced) if remark)
    return LoadedEngine(engine, loaded.codecs, loaded.config), f"engine: torch ({why})" if why else "engine: torch"


def _once(load: Callable[[], Engine]) -> Callable[[], Engine]:
    """`load`, called when first asked for and never again, whichever threads ask."""
    loaded: list[Engine] = []
    lock = threading.Lock()

    def get() -> Engine:
        with lock:
            if not loaded:
                loaded.append(load())
            return loaded[0]

    return get


def _told(error: Exception) -> str:
    """What an error says, without the number of an `OSError`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())[:200]


def _explained(error: Exception) -> Exception:
    """What the user is told where CTranslate2 was asked for and cannot be had."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return UserError(
            f"{where}cannot write the ctranslate2 model: {error.strerror or error}; set TFM_CACHE to a folder with "
            "room, or choose engine torch"
        )
    return UserError(f"engine ctranslate2: {_told(error)}; choose engine torch")
