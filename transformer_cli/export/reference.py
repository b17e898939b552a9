"""What our own engine makes of the sentences that an export is checked with, and the refusal of one that differs.

`onnx` and `huggingface` hold against it what they wrote, before it gets its name.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_cli.checkpoint import LoadedModel
from transformer_cli.data.batch import Batch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.errors import UserError
from transformer_cli.export.verify import ExportDiffers as ExportDiffers
from transformer_cli.model.transformer import Transformer

COMPARED = 200  # sentences, at most
BATCH = 50  # of them at a time
LARGEST_DIFFERENCE = 1e-4  # of a logit


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
    """Between logits (B, T, V), at the places (B, T) that count. Raises `ExportDiffers` over LARGEST_DIFFERENCE."""
    largest = float((found - expected).abs()[counted].max())
    if not largest <= LARGEST_DIFFERENCE:
        raise ExportDiffers(f"a logit of the exported model is off by {largest:.1e}, more than {LARGEST_DIFFERENCE}")
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
