"""tfm: raw text in, raw text out, as `tfm translate` does it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_cli import Translator
from transformer_cli.search_options import SearchOptions

LIBRARIES = ("transformer-cli",)


def start(
    work: dict[str, Any], folder: str, engine: str, compute_type: str | None, search: dict[str, Any]
) -> Callable[..., dict[str, Any]]:
    """`search`: values of `SearchOptions`; a turn may name its own beam, 1 for greedy."""
    translator, fixed = open_model(folder, engine, compute_type, search)
    lengths = source_lengths(translator, work["texts"])

    def translate(batch: int, first: int, count: int, beam: int | None = None) -> dict[str, Any]:
        options = fixed
        if beam is not None:
            method: dict[str, Any] = {"method": "greedy"} if beam == 1 else {"method": "beam", "beam_size": beam}
            options = SearchOptions.from_config(translator.config.decoding, **method)
        in_batches(translator, batch, lengths)
        texts = work["texts"][first : first + count]
        groups = [texts] if batch > 1 else [[text] for text in texts]
        found = [one for group in groups for one in translator.translate_batch(group, options, alignments=False)]
        return {"tokens": sum(len(translation.tokens) for translation in found)}

    return translate


def open_model(
    folder: str, engine: str, compute_type: str | None, search: dict[str, Any]
) -> tuple[Translator, SearchOptions]:
    """A model, and how it is to search."""
    translator = Translator.load(Path(folder), "cpu", engine=engine, compute_type=compute_type)
    return translator, SearchOptions.from_config(translator.config.decoding, **search)


def source_lengths(translator: Translator, texts: list[str]) -> list[int]:
    """Tokens of each text, `</s>` included."""
    return [len(row) + 1 for row in translator.codecs.source.encode_batch(texts)]


def in_batches(translator: Translator, batch: int, lengths: list[int]) -> None:
    """Let the translator take about `batch` sentences at a time; of short ones more, of long ones fewer."""
    tokens = max(lengths) if batch == 1 else batch * round(sum(lengths) / len(lengths))
    decoding = translator.config.decoding.model_copy(update={"batch_tokens": tokens})
    translator.config = translator.config.model_copy(update={"decoding": decoding})
