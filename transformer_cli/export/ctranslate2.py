"""A CTranslate2 model folder, with config, vocabulary and confidence beside it: all that tfm or another program needs.

Called by `tfm export --format ctranslate2`. `decoding.engines.ctranslate2_model` writes the model, here and for the
engine.
"""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from transformer_cli.build import LoadedModel, load_model
from transformer_cli.decoding.engines.protocol import Engine, Hypothesis, SearchBatch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.loading import INSTALL
from transformer_cli.decoding.translation import FILE as CONFIDENCE
from transformer_cli.decoding.translation import load_confidence
from transformer_cli.errors import UserError
from transformer_cli.evaluation.evaluate import corpus_metric
from transformer_cli.export.shortlist import FILE as SHORTLIST
from transformer_cli.export.shortlist import Shortlist, learn_shortlist
from transformer_cli.export.verify import (
    BATCH,
    ExportDiffers,
    check_plain,
    copy_text_files,
    encoded_sentences,
    publish_verified,
    verification_sentences,
)
from transformer_cli.search_options import SearchOptions

LEAST_IDENTICAL = 0.995  # of the translations of a float32 model
LARGEST_DIFFERENCE = 1e-3  # of a score, by forced decoding of the same translation
LARGEST_SHIFT = 0.1  # of a token's log-probability, on average, by reduced weights: int8 gives 0.02 to 0.04
LEAST_CHRF = 80.0  # between the translations of two models that may differ: one near tie makes another sentence


def export_ctranslate2(
    folder: Path,
    out: Path,
    *,
    quantization: str | None = None,
    shortlist: int | None = None,
    verify: bool = True,
    sentences: Path | None = None,
    progress: bool = False,
) -> str | None:
    """Publish as `out` a checkpoint as a CTranslate2 model; return how the check went (None: not checked).

    quantization: int8, int8_float32, float16, bfloat16; None: float32. shortlist: how many translations each source
    token has among the target tokens to choose from; None: all are. `verify` translates `sentences` (else the first
    ones of `data.valid`) with both engines. Raises `UserError` before anything is written, and `ExportDiffers` with
    nothing left.
    """
    if find_spec("ctranslate2") is None:
        raise UserError(f"--format ctranslate2: needs ctranslate2; {INSTALL}")
    from transformer_cli.decoding.engines.ctranslate2_model import build_spec, write_model

    loaded = load_model(folder)
    check_plain(loaded.config.model, "ctranslate2")
    spec = build_spec(folder, loaded.config, loaded.codecs)  # refuses what CTranslate2 cannot be
    compared = verification_sentences(loaded.config, loaded.folder, sentences) if verify else []
    lists = Shortlist() if shortlist is None else learn_shortlist(loaded, shortlist, progress)
    # Scores among fewer tokens are higher, so what confidence was fitted on other ones is not for them.
    confidence = [CONFIDENCE] if shortlist is None and load_confidence(folder) is not None else []

    def write(temporary: Path) -> None:
        write_model(temporary, spec, loaded.config, quantization, lists.common)
        if lists.text:
            (temporary / SHORTLIST).write_text(lists.text, encoding="utf-8", newline="\n")
        copy_text_files(loaded, folder, temporary, *confidence)

    def compare(temporary: Path) -> str:
        if quantization is None:
            return _compare(temporary, temporary, loaded, compared, quantization)
        with TemporaryDirectory(dir=temporary) as whole:  # a mistake of ours must not pass for a loss of precision
            write_model(Path(whole), build_spec(folder, loaded.config, loaded.codecs), loaded.config)
            return _compare(temporary, Path(whole), loaded, compared, quantization)

    return publish_verified(out, write, compare if verify else None)


def _compare(folder: Path, whole: Path, loaded: LoadedModel, sentences: Sequence[str], quantization: str | None) -> str:
    """Translate with both engines, greedily and with beams; return how alike they are, in a sentence.

    whole: the float32 model, which is `folder` itself if nothing is reduced. Raises `ExportDiffers` where it gives
    fewer than LEAST_IDENTICAL of the same translations or other scores for them, where reduced weights give the tokens
    of our translations other log-probabilities, and where these or shortlists lead to other translations.
    """
    from ctranslate2 import get_supported_compute_types

    from transformer_cli.decoding.engines.ctranslate2_engine import CTranslate2Engine

    ours = TorchEngine(loaded.model)

    def engine(model: Path, wanted: str) -> CTranslate2Engine:
        compute_type = wanted if wanted in get_supported_compute_types("cpu") else "float32"
        advice = "give --no-verify"
        return CTranslate2Engine(model, loaded.codecs, lambda: ours, compute_type=compute_type, advice=advice)

    exact = engine(whole, "float32")
    exported = engine(folder, quantization) if quantization else exact
    kept = [ids for _, ids in encoded_sentences(loaded, sentences, ours.max_source_length)]
    kept.sort(key=len, reverse=True)
    batches = [SearchBatch(kept[start : start + BATCH]) for start in range(0, len(kept), BATCH)]
    alone = [SearchBatch([ids]) for ids in kept]  # a batch has the lists of all its sentences

    def translate(by: Engine, inputs: Sequence[SearchBatch], options: SearchOptions) -> list[Hypothesis]:
        return [one for found in by.search(inputs, options) for one, *_ in found]

    described, alike = exported.description, []
    for name, options in _searches(loaded):
        exported.description = replace(described, shortlist=0)
        own, theirs = translate(ours, batches, options), translate(exact, batches, options)
        forced = exact.score(kept, [one.ids for one in own])
        exactly = f"{name} in float32" if quantization else name
        alike.append(_compare_exactly(exactly, theirs, own, forced, options))
        if quantization is not None:
            theirs = translate(exported, batches, options)
            shift = _shift(exported.score(kept, [one.ids for one in own]), forced)
            if not shift <= LARGEST_SHIFT:
                raise ExportDiffers(
                    f"log-probabilities of the exported model in {quantization} ({name}) differ by {shift:.3f} on "
                    f"average, over {LARGEST_SHIFT}; if its translations will do, give --no-verify"
                )
            likeness = _compare_roughly(f"{name} in {quantization}", theirs, own, loaded)
            alike.append(f"{likeness}, log-probabilities differ by {shift:.3f} on average")
        if described.shortlist:
            exported.description = described
            chosen = translate(exported, alone, options)
            alike.append(_compare_roughly(f"{name} with shortlists", chosen, theirs, loaded))
    return f"verified with {len(kept):,} sentences: {'; '.join(alike)}"


def _shift(scores: Sequence[list[float]], exact: Sequence[list[float]]) -> float:
    """Return the mean absolute difference of the log-probabilities of the same tokens."""
    return fmean(
        abs(one - other)
        for row, right in zip(scores, exact, strict=True)
        for one, other in zip(row, right, strict=True)
    )


def _searches(loaded: LoadedModel) -> list[tuple[str, SearchOptions]]:
    """Return both ways to search, but for what only the torch engine has."""
    decoding = loaded.config.decoding
    room = (len(loaded.codecs.target.vocabulary) - 4) // 2  # in a vocabulary of a test
    beam = max(1, min(decoding.beam_size if decoding.beam_size > 1 else 5, room))
    return [
        ("greedy", SearchOptions.from_config(decoding, method="greedy", stopping="first")),
        (f"beam {beam}", SearchOptions.from_config(decoding, beam_size=beam, stopping="first")),
    ]


def _compare_exactly(
    name: str,
    theirs: Sequence[Hypothesis],
    own: Sequence[Hypothesis],
    forced: Sequence[list[float]],
    options: SearchOptions,
) -> str:
    """Check a float32 model: as good as all translations are the same, and it scores ours alike.

    forced: its log-probabilities of the tokens of our translations, and of `</s>`.
    """
    scores = (
        sum(row if one.ended else row[:-1]) / options.penalty(len(one.ids))
        for row, one in zip(forced, own, strict=True)
    )
    largest = max(abs(score - one.score) for score, one in zip(scores, own, strict=True))
    if not largest <= LARGEST_DIFFERENCE:
        raise ExportDiffers(
            f"a score of the exported model ({name}) is off by {largest:.1e}, over {LARGEST_DIFFERENCE}"
        )
    same = sum(one.ids == other.ids for one, other in zip(theirs, own, strict=True))
    if same < LEAST_IDENTICAL * len(own):
        raise ExportDiffers(
            f"{len(own) - same} of {len(own)} translations of the exported model ({name}) are other ones"
        )
    return f"{name} {same / len(own):.1%} the same, scores within {largest:.0e}"


def _compare_roughly(name: str, theirs: Sequence[Hypothesis], own: Sequence[Hypothesis], loaded: LoadedModel) -> str:
    """Check a model with reduced weights, or one with shortlists: the translations are much alike."""
    found, expected = ([loaded.codecs.target.decode(one.ids) for one in side] for side in (theirs, own))
    chrf = corpus_metric("chrf", found, [expected], loaded.config.data.target_language).score
    if not chrf >= LEAST_CHRF:
        raise ExportDiffers(
            f"the translations of the exported model ({name}) are too different: chrF {chrf:.1f} between both, less "
            f"than {LEAST_CHRF:.0f}; if its translations will do, give --no-verify"
        )
    return f"{name} chrF {chrf:.1f} between both"
