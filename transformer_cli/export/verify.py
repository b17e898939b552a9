"""A verified export: a folder that appears only once the exported model was compared with our own.

Every export of `tfm export` is published here; `--verify`, which is the default, compares it before. The model folder
alone (`--format safetensors`) is a copy of files.
"""

import contextlib
import logging
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from pathlib import Path

import torch
from torch import Tensor

from transformer_cli.build import LoadedModel, load_model
from transformer_cli.config import Config, ModelConfig, load_config
from transformer_cli.data.batch import Batch
from transformer_cli.data.held_out import open_saved, split_tag
from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.publishing import manifest_names, publish
from transformer_cli.storage.publishing import verify as check_hashes
from transformer_cli.storage.run_folder import CONFIG, WEIGHTS, RunFolder
from transformer_cli.text.codec import vocabulary_files
from transformer_cli.text.lines import read_lines, with_tag
from transformer_cli.text.vocabulary import PAD

SENTENCES = 1000  # the most that are read
COMPARED = 200  # of them, at most, where every translation must be the same
BATCH = 50  # sentences at a time
LARGEST_LOGIT_DIFFERENCE = 1e-4  # of a logit
TRAINING = "training."  # how the names of the files begin that only resuming needs


class ExportDiffers(Exception):
    """The exported model is not the same function: no fault of the user's."""


def check_plain(shape: ModelConfig, format_name: str) -> None:
    """Raise `UserError` for a model that only our own code can be."""
    if shape.own_variant:
        raise UserError(
            f"--format {format_name}: has no place for a model with {shape.own_variant}; "
            "give --format safetensors, or train the plain model"
        )


def publish_verified(out: Path, write: Callable[[Path], None], compare: Callable[[Path], str] | None) -> str | None:
    """Publish as `out` what `write` puts into a folder; return what `compare` says of it (None: not compared).

    Nothing is left where either raises.
    """
    report = None

    def write_and_compare(temporary: Path) -> None:
        nonlocal report
        write(temporary)
        report = compare(temporary) if compare else None

    RunFolder(out.parent).create()
    publish(out, write_and_compare, replace=False)
    return report


def copy_text_files(loaded: LoadedModel, folder: Path, out: Path, *more: str) -> None:
    """Put the checkpoint's config.yaml and vocab/, and `more` of its files, into an export."""
    _copy(folder, [CONFIG, *vocabulary_files(loaded.config.vocabulary), *more], out)


def export_safetensors(folder: Path, out: Path, *, verify: bool = True) -> None:
    """Publish as `out` a checkpoint folder without its training state: config.yaml, vocab/, model.safetensors.

    It is a MODEL to every command. `verify` loads the model first. Raises `UserError`, before anything is written,
    where a file is missing or damaged; `out` must not exist.
    """
    if verify:
        load_model(folder)
    check_hashes(folder, [CONFIG])
    named = manifest_names(folder)
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = [name for name in there if name in named and not name.startswith(TRAINING)]
    check_hashes(folder, [CONFIG, WEIGHTS, *vocabulary_files(load_config(folder / CONFIG).vocabulary), *names])
    publish_verified(out, lambda temporary: _copy(folder, names, temporary), None)


def _copy(folder: Path, names: Iterable[str], out: Path) -> None:
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, out / name)  # the modes are the user's own: the checkpoint may be read-only


# --- what both models translate -------------------------------------------------------------------------------------


def verification_sentences(config: Config, folder: Path, path: Path | None) -> list[str]:
    """Return the first SENTENCES of a file (plain or .gz), else the source sentences of the model's `data.valid`.

    Each has its tag, if it has one, before it: that of `data.valid`, or `decoding.tag`. Other programs read it as text.
    Lines without text are left out. Raises `UserError` where there are none, saying what to give.
    """
    try:
        if path is not None:
            lines: Iterable[str] = read_lines(path)
        else:
            lines = (source for source, _ in open_saved(config.data, "valid", folder).pairs())
        tag = config.decoding.tag if path is not None else split_tag(config, "valid")
        found = [with_tag(line, tag) for line in islice(lines, SENTENCES) if line.strip()]
    except UserError as error:
        if path is not None:
            raise
        raise UserError(
            f"data.valid of the model's config is needed to verify the export, but {error}; "
            "give source sentences with --sentences FILE, or leave the check out with --no-verify"
        ) from None
    if not found:
        raise UserError(f"{path or 'data.valid'}: holds no sentence to verify with; give others with --sentences FILE")
    return found


def encoded_sentences(
    loaded: LoadedModel, sentences: Sequence[str], longest: int | None
) -> list[tuple[str, list[int]]]:
    """Return sentences with their source ids, but for those that only tfm translates, in chunks.

    longest: the most source tokens that the engine takes. Raises `UserError` where no sentence is left.
    """
    most = min(loaded.config.data.max_length, longest or loaded.config.data.max_length)
    encoded = ((sentence, loaded.codecs.source.encode(sentence)) for sentence in sentences)
    kept = [(sentence, ids) for sentence, ids in encoded if 0 < len(ids) <= most]
    if not kept:
        raise UserError(f"no sentence to verify with is of 1 to {most} tokens; give others with --sentences FILE")
    return kept


@dataclass(frozen=True)
class Reference:
    """A sentence and its greedy translation."""

    sentence: str
    source: list[int]  # without </s>
    target: list[int]  # without <s> and </s>
    limit: int  # the most tokens that the translation may have, </s> aside
    text: str


def greedy_references(loaded: LoadedModel, sentences: Sequence[str]) -> list[Reference]:
    """Return the first COMPARED sentences with our greedy translations, longest first; `UserError` where none fits."""
    engine = TorchEngine(loaded.model)
    options = SearchOptions.from_config(loaded.config.decoding, method="greedy")
    kept = encoded_sentences(loaded, sentences, engine.max_source_length)[:COMPARED]
    kept.sort(key=lambda pair: -len(pair[1]))
    sources = [ids for _, ids in kept]
    batches = [SearchBatch(sources[first : first + BATCH]) for first in range(0, len(sources), BATCH)]
    references = []
    for (sentence, source), (best, *_) in zip(kept, chain(*engine.search(batches, options)), strict=True):
        limit = options.length_limit(len(source))
        limit = limit if engine.max_target_length is None else max(1, min(limit, engine.max_target_length))
        references.append(Reference(sentence, source, best.ids, limit, loaded.codecs.target.decode(best.ids)))
    return references


# --- what may differ ------------------------------------------------------------------------------------------------


def compare(
    loaded: LoadedModel,
    references: Sequence[Reference],
    answer: Callable[[list[Reference], Batch], tuple[Tensor, list[str]]],
) -> str:
    """Compare an exported model with our own; return how alike they are, in a sentence.

    answer: the exported model's logits (B, T, V) of a batch of references with one limit, and its own greedy
    translations of their sentences. Raises `ExportDiffers` for a logit that is off by more than
    LARGEST_LOGIT_DIFFERENCE, or another translation.
    """
    largest, differing = 0.0, []
    for part in _batches(references):
        batch = Batch.from_ids([(one.source, one.target) for one in part])
        with torch.inference_mode():
            logits, texts = answer(part, batch)
            states = loaded.model(batch.source, batch.source_mask, batch.target_input)
            expected = loaded.model.generator.projection(states.hidden)  # (B, T, V)
        off = float((logits - expected).abs()[batch.target_output != PAD].max())
        if not off <= LARGEST_LOGIT_DIFFERENCE:
            raise ExportDiffers(
                f"a logit of the exported model is off by {off:.1e}, more than {LARGEST_LOGIT_DIFFERENCE}"
            )
        differing += [(one, text) for one, text in zip(part, texts, strict=True) if one.text != text]
        largest = max(largest, off)
    if differing:
        one, text = differing[0]
        raise ExportDiffers(
            f"{len(differing)} of {len(references)} sentences are translated differently by the exported model: "
            f"{one.sentence!r} to {text!r}, not {one.text!r}"
        )
    sentences = f"{len(references):,} sentence{'s' * (len(references) > 1)}"
    return f"verified with {sentences}: greedy translations are identical, logits within {largest:.1e}"


def _batches(references: Sequence[Reference]) -> Iterator[list[Reference]]:
    """Yield neighbours with the same limit together: a program such as transformers has one limit for a batch."""
    for _, group in groupby(references, key=lambda one: one.limit):
        while part := list(islice(group, BATCH)):
            yield part


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Silence other packages' warnings of what they do themselves, on which no user can act."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
