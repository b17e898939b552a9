"""tfm: raw text in, raw text out, as `tfm translate` does it. Variants: torch, ctranslate2, ctranslate2-int8."""

import os
from collections.abc import Callable
from typing import Any

from transformer_cli import Translator
from transformer_cli.decoding.options import SearchOptions


def load(work: dict[str, Any], variant: str, threads: int) -> Callable[[int, int, range], int]:
    """Sentences of a range → how many tokens were put out."""
    engine, _, kind = variant.partition("-")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    translator = Translator.load(work["model"], "cpu", engine=engine, compute_type=kind or None)
    decoding = translator.config.decoding
    longest = max(map(len, work["tokens"])) + 1

    def decode(beam: int, batch: int, places: range) -> int:
        # As many tokens as so many of the longest sentences have: of shorter ones, a batch holds more.
        sizes = {"batch_tokens": batch * work["batch_length"] if batch > 1 else longest}
        translator.config = translator.config.model_copy(update={"decoding": decoding.model_copy(update=sizes)})
        options = SearchOptions.from_config(
            decoding, method="greedy" if beam == 1 else "beam", beam_size=beam if beam > 1 else 5
        )
        texts = [work["texts"][place] for place in places]
        groups = [texts] if batch > 1 else [[text] for text in texts]
        found = [one for group in groups for one in translator.translate_batch(group, options, alignments=False)]
        return sum(len(translation.tokens) for translation in found)

    return decode
