"""The sentences that an exported model is checked with, and the check of a CTranslate2 model against our own engine.

Called by the exports; `tfm export --verify`, which is the default. `reference` has the checks of the other formats.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from transformer_cli.build import LoadedModel
from transformer_cli.config import Config, ModelConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.corpora import open_corpus
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.errors import UserError
from transformer_cli.model.transformer import Transformer
from transformer_cli.text.lines import read_lines

if TYPE_CHECKING:
    from transformer_cli.build import LoadedModel
    from transformer_cli.decoding.engines.protocol import Engine
    from transformer_cli.decoding.options import Hypothesis, SearchOptions


SENTENCES = 1000  # the most that are translated
BATCH = 50  # of them at a time
LEAST_IDENTICAL = 0.995  # of the translations of a float32 model
LARGEST_DIFFERENCE = 1e-3  # of a score, by forced decoding of the same translation
LEAST_CHRF = 95.0  # between the translations of a reduced model and those of our own


class ExportDiffers(Exception):
    """The exported model is not the same function: no fault of the user's."""


def verification_sentences(config: Config, path: Path | None) -> list[str]:
    """The source sentences of a file (plain or .gz), else of `data.valid` in the model's config: the first SENTENCES.

    Lines without text are left out. Raises `UserError` where there are none, saying what to give.
    """
    try:
        lines: Iterable[str] = read_lines(path) if path is not None else _configured(config)
        found = [line for line in islice(lines, SENTENCES) if line.strip()]
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


def _configured(config: Config) -> Iterator[str]:
    corpus = open_corpus(config.data.valid, config.data.source_language, config.data.target_language)
    return (source for source, _ in corpus.pairs())


def verify_ctranslate2(folder: Path, loaded: "LoadedModel", sentences: Sequence[str], quantization: str | None) -> str:
    """Translate with both engines, greedily and with beams; a sentence says how alike they are.

    Raises `ExportDiffers` where a float32 model gives fewer than LEAST_IDENTICAL of the same translations or other
    scores for them, or a reduced one translations of less than LEAST_CHRF.
    """
    from ctranslate2 import get_supported_compute_types

    from transformer_cli.decoding.engines.ctranslate2_engine import CTranslate2Engine
    from transformer_cli.decoding.engines.torch_engine import TorchEngine

    ours = TorchEngine(loaded.model)
    wanted = quantization or "float32"
    compute_type = wanted if wanted in get_supported_compute_types("cpu") else "float32"
    exported = CTranslate2Engine(folder, loaded.codecs, lambda: ours, compute_type=compute_type, strict=True)
    batches = _batches(loaded, sentences, ours.max_source_length)
    told = []
    for name, options in _searches(loaded):
        theirs, own = (_translations(engine, batches, options) for engine in (exported, ours))
        if quantization is None:
            alike = _compare_exactly(name, batches, theirs, own, exported, options)
        else:
            alike = _compare_roughly(name, theirs, own, loaded)
        told.append(f"{name} {alike}")
    return f"verified with {sum(map(len, batches)):,} sentences: {'; '.join(told)}"


def _batches(loaded: "LoadedModel", sentences: Sequence[str], longest: int | None) -> list[list[list[int]]]:
    """Source ids, longest first. Sentences too long for one piece are left out: only tfm cuts them."""
    most = min(loaded.config.data.max_length, longest or loaded.config.data.max_length)
    encoded = (loaded.codecs.source.encode(sentence) for sentence in sentences)
    kept = sorted((ids for ids in encoded if 0 < len(ids) <= most), key=len, reverse=True)
    if not kept:
        raise UserError(f"no sentence to verify with is of 1 to {most} tokens; give others with --sentences FILE")
    return [kept[start : start + BATCH] for start in range(0, len(kept), BATCH)]


def _searches(loaded: "LoadedModel") -> list[tuple[str, "SearchOptions"]]:
    """Both ways to search, but for what only the torch engine has."""
    from transformer_cli.decoding.options import SearchOptions

    decoding = loaded.config.decoding
    room = (len(loaded.codecs.target.vocabulary) - 4) // 2  # in a vocabulary of a test
    beam = max(1, min(decoding.beam_size if decoding.beam_size > 1 else 5, room))
    greedy = SearchOptions.from_config(decoding, method="greedy", stopping="first")
    return [
        ("greedy", greedy),
        (f"beam {beam}", SearchOptions.from_config(decoding, beam_size=beam, stopping="first")),
    ]


def _translations(
    engine: "Engine", batches: Sequence[list[list[int]]], options: "SearchOptions"
) -> list[list["Hypothesis"]]:
    """The best hypothesis of each source, batch by batch."""
    return [[found[0] for found in engine.search(batch, options)] for batch in batches]


def _compare_exactly(
    name: str,
    batches: Sequence[list[list[int]]],
    found: Sequence[list["Hypothesis"]],
    expected: Sequence[list["Hypothesis"]],
    exported: "Engine",
    options: "SearchOptions",
) -> str:
    """Of a float32 model: as good as all translations are the same, and the model scores them alike."""
    same, total, largest = 0, 0, 0.0
    for batch, theirs, ours in zip(batches, found, expected, strict=True):
        forced = exported.score(batch, [one.ids for one in ours])
        for row, one, other in zip(forced, theirs, ours, strict=True):
            same += one.ids == other.ids
            total += 1
            score = sum(row if other.ended else row[:-1]) / options.penalty(len(other.ids))
            largest = max(largest, abs(score - other.score))
    if not largest <= LARGEST_DIFFERENCE:
        raise ExportDiffers(
            f"a score of the exported model ({name}) is off by {largest:.1e}, over {LARGEST_DIFFERENCE}"
        )
    if same < LEAST_IDENTICAL * total:
        raise ExportDiffers(f"{total - same} of {total} translations of the exported model ({name}) are other ones")
    return f"{same / total:.1%} the same, scores within {largest:.0e}"


def _compare_roughly(
    name: str, found: Sequence[list["Hypothesis"]], expected: Sequence[list["Hypothesis"]], loaded: "LoadedModel"
) -> str:
    """Of a model with reduced weights: the translations are much alike."""
    from transformer_cli.evaluation.metrics import corpus_metric

    theirs, ours = (
        [loaded.codecs.target.decode(one.ids) for batch in side for one in batch] for side in (found, expected)
    )
    chrf = corpus_metric("chrf", theirs, [ours], loaded.config.data.target_language).score
    if not chrf >= LEAST_CHRF:
        raise ExportDiffers(
            f"the translations of the exported model ({name}) are too different: chrF {chrf:.1f} between both, less "
            f"than {LEAST_CHRF:.0f}"
        )
    return f"chrF {chrf:.1f} between both"


COMPARED = 200  # sentences, at most
LARGEST_LOGIT_DIFFERENCE = 1e-4  # of a logit


@dataclass(frozen=True)
class Reference:
    """A sentence and its greedy translation."""

    sentence: str
    source: list[int]  # without </s>
    target: list[int]  # without <s> and </s>
    limit: int  # the most tokens that the translation may have, </s> aside
    text: str


def greedy_references(loaded: LoadedModel, sentences: Sequence[str]) -> list[Reference]:
    """The first COMPARED sentences with our greedy translations, the longest first.

    Those longer than the model translates in one piece are left out: only tfm cuts them into pieces. Raises
    `UserError` where none is left.
    """
    engine = TorchEngine(loaded.model)
    longest = min(loaded.config.data.max_length, engine.max_source_length or loaded.config.data.max_length)
    options = SearchOptions.from_config(loaded.config.decoding, method="greedy")
    codecs = loaded.codecs
    encoded = [(sentence, codecs.source.encode(sentence)) for sentence in sentences]
    short = [pair for pair in encoded if 0 < len(pair[1]) <= longest]
    kept = sorted(short[:COMPARED], key=lambda pair: -len(pair[1]))
    if not kept:
        raise UserError(f"no sentence to verify with is of 1 to {longest} tokens; give others with --sentences FILE")
    references = []
    for first in range(0, len(kept), BATCH):
        batch = kept[first : first + BATCH]
        for (sentence, source), found in zip(batch, engine.search([ids for _, ids in batch], options), strict=True):
            limit = options.length_limit(len(source))
            limit = limit if engine.max_target_length is None else max(1, min(limit, engine.max_target_length))
            references.append(Reference(sentence, source, found[0].ids, limit, codecs.target.decode(found[0].ids)))
    return references


def our_logits(model: Transformer, batch: Batch) -> Tensor:
    """The logits (B, T, V) of the target's tokens, given those before."""
    with torch.inference_mode():
        logits: Tensor = model.generator.projection(model(batch.source, batch.source_mask, batch.target_input).hidden)
    return logits


def largest_difference(found: Tensor, expected: Tensor, counted: Tensor) -> float:
    """Between logits (B, T, V), at the places (B, T) that count; raises `ExportDiffers` where it is too large."""
    largest = float((found - expected).abs()[counted].max())
    if not largest <= LARGEST_LOGIT_DIFFERENCE:
        raise ExportDiffers(
            f"a logit of the exported model is off by {largest:.1e}, more than {LARGEST_LOGIT_DIFFERENCE}"
        )
    return largest


def check_texts(references: Sequence[Reference], texts: Sequence[str]) -> None:
    """Raise `ExportDiffers`, with the first sentence, where a text is not the reference's."""
    differing = [(one, text) for one, text in zip(references, texts, strict=True) if one.text != text]
    if differing:
        one, text = differing[0]
        raise ExportDiffers(
            f"{len(differing)} of {len(references)} sentences are translated differently by the exported model: "
            f"{one.sentence!r} to {text!r}, not {one.text!r}"
        )


def verified(references: Sequence[Reference], largest: float) -> str:
    """What the user is told of a check that went well."""
    sentences = f"{len(references):,} sentence{'s' * (len(references) > 1)}"
    return f"verified with {sentences}: greedy translations are identical, logits within {largest:.1e}"


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Other packages warn of what they do themselves, and of packages that nobody needs: no user can act on that."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def check_plain(shape: ModelConfig, format_name: str) -> None:
    """Raise `UserError` for a model that only our own code can be."""
    if shape.own_variant:
        raise UserError(
            f"--format {format_name}: has no place for a model with {shape.own_variant}; "
            "give --format safetensors, or train the plain model"
        )
