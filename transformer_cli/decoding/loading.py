"""Which engine searches: CTranslate2 where it is installed and can do what is asked for, else our own Transformer.

`Translator.load` calls it. torch is imported only where it is needed.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformer_cli.codecs import load_codecs
from transformer_cli.config import Config, load_config
from transformer_cli.decoding.devices import has_gpu
from transformer_cli.decoding.engines.protocol import Engine, LoadedEngine, SearchBatch
from transformer_cli.errors import TRAIN, UserError, not_importable, one_of
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.publishing import locate, read_json, verify
from transformer_cli.storage.run_folder import CONFIG, EXPORTED, find_model, is_export
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import UNK

CHOICES = ("auto", "torch", "ctranslate2")
TORCH_TYPES = ("float32", "float16", "bfloat16")
COMPUTE_TYPES = ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16")
INSTALL = "pip install ctranslate2"
ORIGINAL = "give the model that it was exported from"


class _Lacks(UserError):
    """CTranslate2 cannot be had here, or cannot be this model."""


TOKEN_BY_TOKEN = {  # search options that only a model that writes token by token has
    "beam_size": "--beam (and --mbr and --best-of, which need beams)",
    "coverage_penalty": "--coverage-penalty",
    "diversity_groups": "--diverse-groups",
}
REFINING = {"iterations": "--iterations", "length_candidates": "--length-candidates"}  # only mask-predict has


@dataclass(frozen=True)
class FoundModel:
    """What MODEL stands for: a checkpoint folder or an export, and its config, held against its hash and read once."""

    name: Path  # as the user gave it
    folder: Path
    config: Config

    @classmethod
    def at(cls, path: str | Path) -> "FoundModel":
        """Find it. Raises `UserError` where there is none, or its config is damaged."""
        given = locate(Path(path))
        folder = given if is_export(given) else find_model(path)
        verify(folder, [CONFIG])
        return cls(Path(path), folder, load_config(folder / CONFIG))

    @property
    def exported(self) -> bool:
        """Whether it is what `tfm export --format ctranslate2` wrote, so that no other engine can be this model."""
        return is_export(self.folder)

    def search_options(self, changes: Mapping[str, Any]) -> SearchOptions:
        """Return the model's own way to search, with some values changed.

        Raises `UserError`, by the options of the command line, where the model has no place for one of them.
        """
        generation, own = self.config.model.generation, self.config.decoding
        if generation != "mask_predict":
            for name, option in REFINING.items():
                if name in changes:
                    raise UserError(
                        f"{option}: is of models with generation: mask_predict, but {self.name} has {generation};"
                        " leave it out"
                    )
        if generation == "autoregressive":
            return SearchOptions.from_config(own, **changes)
        for name, option in TOKEN_BY_TOKEN.items():
            if name in changes:
                self.check_token_by_token(option)
        if changes.get("method") == "sample":
            self.check_token_by_token("--sample")
        wanted = changes.get("n_best", 1)
        most = changes.get("length_candidates", own.length_candidates) if generation == "mask_predict" else 1
        if wanted > most:
            finds = f"--length-candidates {most}" if generation == "mask_predict" else f"generation {generation}"
            raise UserError(f"--n-best {wanted}: {finds} finds no more than {most}; raise that, or lower this")
        unused = max(wanted, own.beam_size)
        return SearchOptions.from_config(own, **{**changes, "beam_size": unused})

    def check_token_by_token(self, option: str) -> None:
        """Raise `UserError` where the model does not write token after token, as an option needs it."""
        if (generation := self.config.model.generation) != "autoregressive":
            raise UserError(
                f"{option}: {self.name} has generation: {generation} and writes all tokens at once; leave it out"
            )


def load_engine(
    model: Path | FoundModel,
    device: str = "auto",
    choice: str = "auto",
    *,
    compute_type: str | None = None,
    needs: Sequence[str] = (),
) -> tuple[LoadedEngine, str]:
    """Return the engine for a model, and a sentence that says which one it is and why.

    choice: auto, torch or ctranslate2. compute_type: what it computes in (default: float32; on a GPU bfloat16, where it
    has that).
    needs: what is asked for that only the torch engine has, by name (`protocol.torch_needs` of search options).
    Raises `UserError` where wishes exclude each other, where there is no such device, or where files are damaged.
    """
    _check(choice, compute_type, needs)
    found = model if isinstance(model, FoundModel) else FoundModel.at(model)
    if choice == "torch" or needs:
        if found.exported:
            what = f"engine torch ({needs[0]})" if needs else "engine torch"
            raise UserError(f"{what}: {found.name} was exported for CTranslate2; {ORIGINAL}")
        return _load_torch(found, device, compute_type, needs[0] if needs and choice == "auto" else None)
    asked = choice == "ctranslate2" or compute_type not in (None, *TORCH_TYPES)
    alone = asked or found.exported or not find_spec("torch")
    if alone and not find_spec("ctranslate2"):
        raise UserError(f"engine ctranslate2: is not installed; {INSTALL}, or {_instead(found)}")
    try:
        return _load_ctranslate2(found, device, compute_type, alone=alone)
    except (UserError, ImportError, OSError, RuntimeError, ValueError) as error:
        if alone:
            raise _explained(error, _instead(found)) from error
        reason = _reason(error) if isinstance(error, _Lacks) else f"ctranslate2 failed: {_reason(error)}"
    return _load_torch(found, device, compute_type, reason)


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


def _ctranslate2_device(device: str, alone: bool) -> str:
    """Return the device that CTranslate2 would run on: cpu, cuda or cuda:N. Raises `UserError` where it sees none such.

    `auto` is the GPU where there is one; where it is not seen, the CPU only if nothing but CTranslate2 will do.
    """
    if device == "cpu":
        return "cpu"
    count = _cuda_devices()
    if device == "auto" and (count or alone or not has_gpu()):
        return "cuda" if count else "cpu"
    is_cuda = re.fullmatch(r"cuda(:[0-9]+)?", device)
    if not alone and not (is_cuda and int(is_cuda[0][5:] or 0) < count):
        raise _Lacks(f"ctranslate2 does not see {'the GPU' if device == 'auto' else device}")
    if not is_cuda:
        raise UserError(f"device {device!r}: ctranslate2 runs on cpu and cuda only; choose one, or engine torch")
    if int(is_cuda[0][5:] or 0) >= count:
        what = "sees no such device" if not count else f"sees only {count} of them"
        raise UserError(f"device {device!r}: ctranslate2 {what} on this machine; use --device auto or cpu")
    return device


def _cuda_devices() -> int:
    """Return how many GPUs CTranslate2 sees."""
    try:
        import ctranslate2

        return int(ctranslate2.get_cuda_device_count())
    except (ImportError, RuntimeError):
        return 0


def _compute_types(place: str) -> set[str]:
    """Return what CTranslate2 can compute in on its device."""
    import ctranslate2

    return set(ctranslate2.get_supported_compute_types(place.partition(":")[0]))


def _load_ctranslate2(
    found: FoundModel, device: str, compute_type: str | None, *, alone: bool
) -> tuple[LoadedEngine, str]:
    """device: of the torch engine too that takes over what CTranslate2 cannot do; alone: refuse that instead."""
    from transformer_cli.decoding.engines.ctranslate2_cache import cached_model
    from transformer_cli.decoding.engines.ctranslate2_engine import CTranslate2Engine, Description

    if not find_spec("ctranslate2"):
        raise _Lacks(f"no ctranslate2: {INSTALL}")
    place = _ctranslate2_device(device, alone)
    supported = _compute_types(place)
    if found.exported:
        verify(found.folder)
        own = read_json(found.folder / EXPORTED, Description).quantization
        compute_type = own if compute_type is None and own in supported else compute_type
    if compute_type is None:
        compute_type = "bfloat16" if place != "cpu" and "bfloat16" in supported else "float32"
    if compute_type not in supported:
        if not alone:
            raise _Lacks(f"ctranslate2 has no {compute_type} on this {place}")
        raise UserError(f"compute type {compute_type}: not on this {place}; choose {one_of(sorted(supported))}")
    folder, config = found.folder, found.config
    codecs = load_codecs(folder, config)
    if config.model.own_variant:
        raise _Lacks(f"ctranslate2 has no {config.model.own_variant}")
    model, made = (folder, False) if found.exported else cached_model(folder)

    def other() -> Engine:
        return _load_torch(found, device, compute_type if compute_type in TORCH_TYPES else None)[0].engine

    advice = f"leave that out, or {_instead(found)}" if alone else None
    engine = CTranslate2Engine(model, codecs, other, device=place, compute_type=compute_type, advice=advice)
    if place != "cpu":  # CUDA's libraries are looked for when first used, and may be missing
        list(engine.search([SearchBatch([[UNK]])], SearchOptions(method="greedy", max_length=1)))
    what = compute_type if place == "cpu" else f"{compute_type}, {place}"
    kept = f"; converted from {folder.name}, cached in {model}" if made else ""
    return LoadedEngine(engine, codecs, config), f"engine: ctranslate2 ({what}){kept}"


def _load_torch(
    found: FoundModel, device: str, compute_type: str | None, reason: str | None = None
) -> tuple[LoadedEngine, str]:
    """compute_type: one of `TORCH_TYPES`, or None: the device's own."""
    with _importing_torch(reason):
        import torch

        from transformer_cli.build import build_engine, load_model
    from transformer_cli.decoding.devices import choose_device, choose_type

    target = choose_device(device)
    loaded = load_model(found.folder, target, found.config)
    dtype = choose_type(compute_type, target)
    model = loaded.model if dtype is None else loaded.model.to(dtype)
    engine = build_engine(model, target, constant=True)
    reduced = None if dtype in (None, torch.float32) else str(dtype).removeprefix("torch.")
    why = ", ".join(remark for remark in (reason, reduced) if remark)
    return LoadedEngine(engine, loaded.codecs, loaded.config), f"engine: torch ({why})" if why else "engine: torch"


@contextlib.contextmanager
def _importing_torch(reason: str | None) -> Iterator[None]:
    """Raise `UserError` where torch cannot be imported; reason: why it is wanted, where nobody chose it."""
    try:
        yield
    except Exception as error:
        if missing := not_importable(error):
            raise UserError(f"engine torch{f' ({reason})' if reason else ''} needs {missing}") from error
        raise


def load_ensemble(folders: Sequence[Path], device: str = "auto") -> LoadedEngine:
    """Return the models of some checkpoint folders as one engine, with the first one's text side and config.

    Raises `UserError` where vocabularies differ, or where `load_model` or `choose_device` do.
    """
    with _importing_torch(f"{len(folders)} models"):
        from transformer_cli.build import load_model
        from transformer_cli.decoding.engines.torch_engine import TorchEngine
    from transformer_cli.decoding.devices import choose_device

    target = choose_device(device)
    models = [load_model(folder, target) for folder in folders]
    for loaded in models:
        if loaded.config.model.generation != "autoregressive":
            raise UserError(
                f"{loaded.folder}: writes all tokens at once; models decide together token after token only"
            )
    for other in models[1:]:
        check_vocabularies(models[0].codecs, models[0].folder, other.codecs, other.folder)
        if other.config.model.generator != models[0].config.model.generator:
            raise UserError(
                f"{other.folder}: its generator is not that of {models[0].folder} ({other.config.model.generator} and "
                f"{models[0].config.model.generator}); models work together only if all copy or none"
            )
    first, *others = models
    engine = TorchEngine(first.model, target, others=[other.model for other in others], constant=True)
    return LoadedEngine(engine, first.codecs, first.config)


def check_vocabularies(codecs: Codecs, folder: Path, other: Codecs, other_folder: Path) -> None:
    """Raise `UserError` unless every id means the same token in both models, on either side."""
    for side in ("source", "target"):
        tokens, others = (getattr(each, side).vocabulary.get_itos() for each in (codecs, other))
        if tokens != others:
            if len(tokens) != len(others):
                difference = f"{len(tokens):,} and {len(others):,} tokens"
            else:
                place = next(place for place, token in enumerate(tokens) if token != others[place])
                difference = f"token {place} is {tokens[place]!r} and {others[place]!r}"
            raise UserError(
                f"{other_folder}: its {side} vocabulary is not that of {folder} ({difference}); "
                "models work together only if they were trained with one vocabulary"
            )


def _reason(error: Exception) -> str:
    """Return what an error says, without the number of an `OSError`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())[:200]


def _instead(found: FoundModel) -> str:
    """Return what may be done where CTranslate2 cannot."""
    if found.exported:
        return ORIGINAL
    return "choose engine torch" if find_spec("torch") else f"install PyTorch for engine torch: {TRAIN}"


def _explained(error: Exception, instead: str) -> Exception:
    """Return the error to show where nothing but CTranslate2 will do, and it fails; instead: what may be done then."""
    if isinstance(error, _Lacks):
        return UserError(f"{error}; {instead}")
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return UserError(
            f"{where}cannot write the ctranslate2 model: {error.strerror or error}; set TFM_CACHE to a folder with "
            f"room, or {instead}"
        )
    return UserError(f"engine ctranslate2: {_reason(error)}; {instead}")
