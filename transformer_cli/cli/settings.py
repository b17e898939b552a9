"""All that decides what becomes of a line, beside the line: what `tfm translate` makes of its options.

Settings can be sent to other processes, and have a fingerprint by which the parts of an interrupted translation are
known again. `LineTranslator` is the model that they describe, ready for lines.
"""

import dataclasses
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli.layout import Layout
from transformer_cli.cli.loading import load_translator

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Translator

COUNTED = ["cut_lines", "caught", "mended"]  # by a `Translator`, over all that it translates
WITHOUT_EFFECT = {"device", "model"}  # on translations; of the model the hashes count, not the place


@dataclass(frozen=True)
class Settings:
    """How to translate."""

    model: Path
    device: str = "auto"
    search: Mapping[str, Any] = field(default_factory=dict)  # what is changed in the model's own `SearchOptions`
    batch_tokens: int | None = None
    keep_unknown: bool = False
    layout: Layout = field(default_factory=Layout)

    def check(self) -> None:
        """Raise `UserError` where there is no such model, or the options do not go with it; nothing is loaded."""
        from transformer_cli.config import load_config
        from transformer_cli.decoding.options import SearchOptions
        from transformer_cli.publishing import verify
        from transformer_cli.run_folder import CONFIG, find_model

        folder = find_model(self.model)
        verify(folder, [CONFIG])
        SearchOptions.from_config(load_config(folder / CONFIG).decoding, **self.search)

    def load(self, device: str | None = None) -> "LineTranslator":
        """The model, ready to translate. Raises `UserError`."""
        translator, options = load_translator(
            self.model,
            device or self.device,
            batch_tokens=self.batch_tokens,
            keep_unknown=self.keep_unknown,
            changes=dict(self.search),
        )
        return LineTranslator(self, translator, options)

    def fingerprint(self) -> str:
        """Differs where any line might be translated differently. Raises `UserError` where there is no model."""
        from transformer_cli import __version__
        from transformer_cli.publishing import MANIFEST, read_bytes
        from transformer_cli.run_folder import find_model

        manifest = hashlib.sha256(read_bytes(find_model(self.model) / MANIFEST)).hexdigest()
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in WITHOUT_EFFECT}
        return json.dumps([__version__, manifest, fields], sort_keys=True, default=str)


class LineTranslator:
    """A loaded model with its settings: lines in, the rows of each line out."""

    def __init__(self, settings: Settings, translator: "Translator", options: "SearchOptions") -> None:
        self.settings = settings
        self.translator = translator
        self.options = options

    @property
    def counts(self) -> Counter[str]:
        """What was counted so far."""
        return Counter({name: getattr(self.translator, name, 0) for name in COUNTED})

    def rows(self, lines: Iterable[str], *, first: int = 0, live: bool = False) -> Iterator[list[str]]:
        """The output lines of each line, in order.

        first: how many lines came before. live: each line is answered before the next is read.
        """
        from transformer_cli.decoding.translator import WINDOW

        layout = self.settings.layout
        read, shown = itertools.tee(lines)
        window = 1 if live else WINDOW
        found = self.translator.translate_lines(read, self.options, window, alignments=layout.alignments)
        for number, (translation, source) in enumerate(zip(found, shown, strict=False), start=first + 1):
            yield layout.rows(number, source, translation)


def notes(counts: Counter[str]) -> list[str]:
    """What the user should know of the lines translated, a sentence each."""
    found = []
    if cut := counts["cut_lines"]:
        were = "1 line was" if cut == 1 else f"{cut:,} lines were"
        found.append(f"{were} longer than the model takes: cut into pieces, translated and joined")
    if caught := counts["caught"]:
        were = "1 translation" if caught == 1 else f"{caught:,} translations"
        found.append(
            f"{were} ran in circles or had no end: searched for again without repetition, {counts['mended']:,} mended"
        )
    return found
