"""All that decides what becomes of a line, beside the line: what `tfm translate` makes of its options.

Settings can be sent to other processes, and have a fingerprint by which the parts of an interrupted translation are
known again. `LineTranslator` is the model that they describe, ready for lines.
"""

import dataclasses
import hashlib
import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli.constraints import beside, each_lines_demands
from transformer_cli.cli.layout import Layout
from transformer_cli.cli.loading import load_translator

if TYPE_CHECKING:
    from transformer_cli.decoding.demands import TextDemands
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.sharding import Line
    from transformer_cli.decoding.translator import Translator

COUNTED = ["cut_lines", "caught", "mended"]  # by a `Translator`, over all that it translates
# No fields that change a translation; of the model and the constraints the content counts, not the place.
WITHOUT_EFFECT = {"device", "model", "constraints"}


@dataclass(frozen=True)
class Settings:
    """How to translate."""

    model: Path
    device: str = "auto"
    search: Mapping[str, Any] = field(default_factory=dict)  # what is changed in the model's own `SearchOptions`
    batch_tokens: int | None = None
    keep_unknown: bool = False
    layout: Layout = field(default_factory=Layout)
    demands: "TextDemands | None" = None  # what every translation must obey; None: nothing at all
    constraints: Path | None = None  # a file with what each line's must obey beside that

    def check(self) -> None:
        """Raise `UserError` where there is no such model, or the options do not go with it; nothing is loaded."""
        from transformer_cli.config import load_config
        from transformer_cli.decoding.options import SearchOptions
        from transformer_cli.publishing import verify
        from transformer_cli.run_folder import CONFIG, find_model

        folder = find_model(self.model)
        verify(folder, [CONFIG])
        SearchOptions.from_config(load_config(folder / CONFIG).decoding, **self.search)

    @property
    def is_demanding(self) -> bool:
        """Whether anything is demanded of any translation."""
        return self.demands is not None

    def with_demands(self, lines: Iterable[str]) -> "Iterator[Line]":
        """Each line with what is demanded of its translation; None: nothing of any line."""
        if self.constraints is None or self.demands is None:
            return ((line, self.demands) for line in lines)
        return beside(lines, each_lines_demands(self.constraints, self.demands), self.constraints)

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

    def rows(self, lines: "Iterable[Line]", *, first: int = 0, live: bool = False) -> Iterator[list[str]]:
        """The output lines of each line, in order.

        first: how many lines came before. live: each line is answered before the next is read.
        """
        from transformer_cli.decoding.translator import WINDOW

        layout = self.settings.layout
        sources: deque[str] = deque()  # of the lines under way
        demanded: deque[TextDemands] = deque()  # of the lines read, but not yet begun

        def texts() -> Iterator[str]:
            for text, demands in lines:
                sources.append(text)
                if demands is not None:
                    demanded.append(demands)
                yield text

        found = self.translator.translate_lines(
            texts(),
            self.options,
            1 if live else WINDOW,
            (lambda _: demanded.popleft()) if self.settings.is_demanding else None,
            alignments=layout.alignments,
        )
        for number, translation in enumerate(found, start=first + 1):
            yield layout.rows(number, sources.popleft(), translation)


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
