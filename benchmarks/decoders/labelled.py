"""tfm with a model and a way to decode of its own, for `speed_quality.py`. VARIANT is the number of an entry."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformer_cli import Translator
from transformer_cli.decoding.options import SearchOptions


def open_model(entry: Mapping[str, Any]) -> tuple[Translator, SearchOptions]:
    """A model as an entry describes it: `folder`, `engine`, `compute_type`, and values of `SearchOptions`, `search`."""
    translator = Translator.load(
        Path(entry["folder"]), "cpu", engine=entry["engine"], compute_type=entry["compute_type"]
    )
    return translator, SearchOptions.from_config(translator.config.decoding, **entry["search"])


def in_batches(translator: Translator, batch: int, texts: list[str]) -> int:
    """Let the translator take about `batch` sentences of these at a time; of short ones more, of long ones fewer."""
    lengths = [len(row) + 1 for row in translator.codecs.source.encode_batch(texts)]
    tokens = max(lengths) if batch == 1 else batch * round(sum(lengths) / len(lengths))
    decoding = translator.config.decoding.model_copy(update={"batch_tokens": tokens})
    translator.config = translator.config.model_copy(update={"decoding": decoding})
    return tokens


def load(work: dict[str, Any], variant: str, threads: int) -> Callable[[int, int, range], int]:
    """Sentences of a range → how many tokens were put out. The beam is the entry's own."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    translator, options = open_model(work["entries"][int(variant)])

    def decode(_: int, batch: int, places: range) -> int:
        in_batches(translator, batch, work["texts"])
        texts = [work["texts"][place] for place in places]
        groups = [texts] if batch > 1 else [[text] for text in texts]
        found = [one for group in groups for one in translator.translate_batch(group, options, alignments=False)]
        return sum(len(translation.tokens) for translation in found)

    return decode
