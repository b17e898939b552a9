"""How lines are translated, as one value: the model, its engine, search and protection. No torch.

`tfm translate` and `tfm distill` make it of their options, other programs of what they like. It can be sent to other
processes, and has a fingerprint by which the parts of an interrupted translation are known again.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformer_cli import __version__
from transformer_cli.decoding.constraints import tag_before
from transformer_cli.decoding.devices import kind_of
from transformer_cli.decoding.engines.protocol import torch_needs
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.translator import WINDOW, Line, Translation, Translator
from transformer_cli.errors import UserError
from transformer_cli.protected.protector import Protector
from transformer_cli.protected.spans import Glossary
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.publishing import MANIFEST, read_bytes


@dataclass(frozen=True)
class TranslationOptions:
    """All that decides what becomes of a line, beside the line. Raises `UserError` where the model cannot do it.

    No weights are loaded for that. Messages name the options of the command line.
    """

    model: FoundModel
    beside: tuple[FoundModel, ...] = ()  # models that decide on each token together with it
    device: str = "auto"
    engine: str = "auto"
    compute_type: str | None = None  # None: the engine's own
    search: Mapping[str, Any] = field(default_factory=dict)  # what is changed in the model's own `SearchOptions`
    mbr: bool = False
    guard: bool = True
    alignments: bool = False
    alignment_layer: int | None = None  # from 1; None: the last, or with no heads either what learned to align
    alignment_heads: tuple[int, ...] | None = None  # from 1; None: all, likewise
    batch_tokens: int | None = None  # None: the model's own
    keep_unknown: bool = False
    constrained: bool = False  # whether lines come with constraints
    protect: bool = True
    glossary: Path | None = None
    tag: str | None = None  # before each source text; None: the model's own `decoding.tag`; "": none

    def __post_init__(self) -> None:
        self.search_options  # noqa: B018  (raises)
        tag_before(self.model.config, self.tag)
        if self.beside:
            if self.engine == "ctranslate2" or self.compute_type not in (None, "float32"):
                raise UserError(
                    "--with: several models need the torch engine, in float32; leave out --engine and --compute-type"
                )
            for model in (self.model, *self.beside):
                model.check_token_by_token("--with")
        if self.constrained:
            self.model.check_token_by_token("--prefix, --require, --forbid and --constraints")
        if self.glossary is not None:
            Glossary.read(self.glossary)
        own = self.model.config.model
        for option, numbers, most in (
            ("--alignment-layer", [self.alignment_layer or 1], own.decoder_layers),
            ("--alignment-heads", self.alignment_heads or [1], own.heads),
        ):
            if not 1 <= min(numbers) <= max(numbers) <= most:
                raise UserError(
                    f"{option}: the decoder of {self.model.name} has {most} of them; give numbers up to that"
                )

    @property
    def search_options(self) -> SearchOptions:
        """How to search: the model's own way, with what is changed in it."""
        return self.model.search_options(self.search)

    @property
    def files(self) -> list[Path]:
        """The files that say what is in all others, and the glossary."""
        glossary = [] if self.glossary is None else [self.glossary]
        return [*(model.folder / MANIFEST for model in (self.model, *self.beside)), *glossary]

    def tagged_as(self, tag: str | None) -> "TranslationOptions":
        """Return the same with this tag before each source text, where none is asked for."""
        return self if self.tag is not None else dataclasses.replace(self, tag=tag)

    def fingerprint(self) -> dict[str, Any]:
        """Return what differs where any line might be translated differently; of models and files the content counts.

        A GPU computes in another type than a CPU by default; which of several GPUs it is makes no difference.
        """
        hashes = [hashlib.sha256(read_bytes(file)).hexdigest() for file in self.files]
        models = 1 + len(self.beside)
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        del values["beside"]
        return {
            **values,
            "tfm": __version__,
            "model": hashes[:models],
            "glossary": hashes[models:],
            "device": kind_of(self.device),
            "search": dict(sorted(self.search.items())),  # in whatever order they were given
        }

    def load_translator(self, device: str | None = None) -> Translator:
        """Load the model, on a device of its own. Raises `UserError` for a missing device or engine, damaged files."""
        device = device or self.device
        if self.beside:
            from transformer_cli.decoding.loading import load_ensemble

            models = [model.folder for model in (self.model, *self.beside)]
            translator = Translator(*load_ensemble(models, device), guard=self.guard)
            translator.engine_choice = f"engine: torch ({len(models)} models)"
        else:
            needs = ["words that must or must not appear"] if self.constrained else []
            translator = Translator.load(
                self.model,
                device,
                engine=self.engine,
                needs=[*needs, *torch_needs(self.search_options)],
                compute_type=self.compute_type,
                guard=self.guard,
            )
        config = translator.config
        changes: dict[str, Any] = {} if self.batch_tokens is None else {"batch_tokens": self.batch_tokens}
        changes |= {"copy_unknown": False} if self.keep_unknown else {}
        changes |= {} if self.tag is None else {"tag": self.tag or None}
        translator.config = config.model_copy(update={"decoding": config.decoding.model_copy(update=changes)})
        if self.alignment_layer is not None or self.alignment_heads is not None:  # not what the model has learned it by
            translator.alignment_layer = (self.alignment_layer or 0) - 1
            heads = self.alignment_heads
            translator.alignment_heads = None if heads is None else [head - 1 for head in heads]
        return translator

    def load(self, device: str | None = None) -> "LineTranslator":
        """Load the model, ready for lines. Raises as `load_translator` does."""
        return LineTranslator(self, self.load_translator(device))


class LineTranslator:
    """A loaded model with its options."""

    def __init__(self, options: TranslationOptions, translator: Translator) -> None:
        self.options = options
        self.translator = translator
        glossary = None if options.glossary is None else Glossary.read(options.glossary)
        self.protector = Protector(translator, glossary) if options.protect else None

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

    def translate(self, lines: Iterable[str | Line], *, first: int = 0, live: bool = False) -> Iterator[Translation]:
        """Yield the translation of each line, in order.

        first: how many lines came before. live: each line is answered before the next is read.
        """
        return (self.protector or self.translator).translate_lines(
            lines,
            self.options.search_options,
            1 if live else WINDOW,
            alignments=self.options.alignments,
            mbr=self.options.mbr,
            first=first,
        )
