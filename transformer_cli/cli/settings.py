"""All that decides what becomes of a line, beside the line: what `tfm translate` makes of its options.

Settings can be sent to other processes, and have a fingerprint by which the parts of an interrupted translation are
known again. `LineTranslator` is the model that they describe, ready for lines.
"""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli.constraints import beside, constraints_by_line
from transformer_cli.cli.generation import check_token_by_token
from transformer_cli.cli.layout import Layout
from transformer_cli.cli.loading import check_engine, load_translator, read_options
from transformer_cli.errors import UserError
from transformer_cli.jobs.torchrun import kind_of

if TYPE_CHECKING:
    from transformer_cli.decoding.constraints import Constraints, Line
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.translator import Translator
    from transformer_cli.protected.protector import Protector

# No fields that change a translation by themselves: of models and files the content counts, of the device its kind.
WITHOUT_EFFECT = {"device", "model", "beside", "constraints_file", "glossary"}


@dataclass(frozen=True)
class Settings:
    """How to translate."""

    model: Path
    beside: tuple[Path, ...] = ()  # models that decide on each token together with it
    device: str = "auto"
    engine: str = "auto"
    compute_type: str | None = None  # None: the engine's own
    search: Mapping[str, Any] = field(default_factory=dict)  # what is changed in the model's own `SearchOptions`
    mbr: bool = False
    guard: bool = True
    alignment_layer: int | None = None  # from 1; None: the last, or with no heads either what learned to align
    alignment_heads: tuple[int, ...] | None = None  # from 1; None: all, likewise
    batch_tokens: int | None = None
    keep_unknown: bool = False
    layout: Layout = field(default_factory=Layout)
    constraints: "Constraints | None" = None  # what every translation must obey; None: nothing at all
    constraints_file: Path | None = None  # a file with what each line's must obey beside that
    protect: bool = True
    glossary: Path | None = None

    def check(self) -> None:
        """Raise `UserError` where there is no such model, or the options do not go with it; no weights are loaded."""
        from transformer_cli.decoding.translation import load_confidence
        from transformer_cli.protected.glossary import Glossary
        from transformer_cli.storage.run_folder import find_model

        config, _ = read_options(self.model, self.search)
        if self.beside:
            check_engine(self.engine, self.compute_type)
            if self.layout.min_confidence is not None:
                raise UserError(
                    "--min-confidence and --with exclude each other: it is known of one model alone; leave one out"
                )
            check_token_by_token("--with", self.model, config)
        for other in self.beside:
            check_token_by_token("--with", other, read_options(other, {})[0])
        if self.is_constrained:
            check_token_by_token("--prefix, --require, --forbid and --constraints", self.model, config)
        if self.glossary is not None:
            Glossary.read(self.glossary)
        for option, numbers, most in (
            ("--alignment-layer", [self.alignment_layer or 1], config.model.decoder_layers),
            ("--alignment-heads", self.alignment_heads or [1], config.model.heads),
        ):
            if not 1 <= min(numbers) <= max(numbers) <= most:
                raise UserError(f"{option}: the decoder of {self.model} has {most} of them; give numbers up to that")
        if self.layout.min_confidence is not None and load_confidence(find_model(self.model)) is None:
            raise UserError(f"--min-confidence: {self.model} is not calibrated; run tfm calibrate {self.model} first")

    @property
    def is_constrained(self) -> bool:
        """Whether anything is demanded of any translation."""
        return self.constraints is not None

    def with_constraints(self, lines: Iterable[str]) -> "Iterator[Line]":
        """Each line with what its translation must obey."""
        from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Line

        if self.constraints_file is None or self.constraints is None:
            return (Line(line, self.constraints or NO_CONSTRAINTS) for line in lines)
        return beside(lines, constraints_by_line(self.constraints_file, self.constraints), self.constraints_file)

    def load(self, device: str | None = None) -> "LineTranslator":
        """The model, ready to translate. Raises `UserError`."""
        translator, options = load_translator(
            self.model,
            device or self.device,
            batch_tokens=self.batch_tokens,
            keep_unknown=self.keep_unknown,
            changes=self.search,
            engine=self.engine,
            compute_type=self.compute_type,
            needs=["words that must or must not appear"] if self.is_constrained else [],
            guard=self.guard,
            beside=self.beside,
        )
        if self.alignment_layer is not None or self.alignment_heads is not None:  # not what the model has learned it by
            translator.alignment_layer = (self.alignment_layer or 0) - 1
            heads = self.alignment_heads
            translator.alignment_heads = None if heads is None else [head - 1 for head in heads]
        return LineTranslator(self, translator, options)

    def fingerprint(self) -> str:
        """Differs where any line might be translated differently. Raises `UserError` where there is no model.

        A GPU computes in another type than a CPU by default; which of several GPUs it is makes no difference.
        """
        from transformer_cli import __version__
        from transformer_cli.storage.publishing import MANIFEST, read_bytes
        from transformer_cli.storage.run_folder import find_model

        files = [find_model(model) / MANIFEST for model in (self.model, *self.beside)]
        files += [] if self.glossary is None else [self.glossary]
        hashes = [hashlib.sha256(read_bytes(file)).hexdigest() for file in files]
        fields = {name: value for name, value in dataclasses.asdict(self).items() if name not in WITHOUT_EFFECT}
        return json.dumps([__version__, hashes, kind_of(self.device), fields], sort_keys=True, default=str)


class LineTranslator:
    """A loaded model with its settings: lines in, the rows of each line out."""

    def __init__(self, settings: Settings, translator: "Translator", options: "SearchOptions") -> None:
        self.settings = settings
        self.translator = translator
        self.options = options
        self.protector = _protector(translator, settings.glossary) if settings.protect else None

    @property
    def counts(self) -> Counter[str]:
        """What was counted so far, for a `Tally`."""
        counts = Counter(self.translator.tally.counts)
        if self.protector is not None:
            counts.update(self.protector.tally.counts)
        return counts

    @property
    def notes(self) -> list[str]:
        """What the user should know of the lines translated so far, a sentence each."""
        return (self.protector or self.translator).notes

    def rows(self, lines: "Iterable[Line]", *, first: int = 0, live: bool = False) -> Iterator[list[str]]:
        """The output lines of each line, in order.

        first: how many lines came before. live: each line is answered before the next is read.
        """
        from transformer_cli.decoding.translator import WINDOW

        layout = self.settings.layout
        found = (self.protector or self.translator).translate_lines(
            lines,
            self.options,
            1 if live else WINDOW,
            alignments=layout.alignments,
            mbr=self.settings.mbr,
            first=first,
        )
        for number, translation in enumerate(found, start=first + 1):
            yield layout.rows(number, translation)


def _protector(translator: "Translator", glossary: Path | None) -> "Protector":
    from transformer_cli.protected.glossary import Glossary
    from transformer_cli.protected.protector import Protector

    return Protector(translator, None if glossary is None else Glossary.read(glossary))
