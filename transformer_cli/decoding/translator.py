"""Text in, text out, whatever engine searches: the command line, evaluation, training and other programs call it.

Lines become ids, long lines chunks, chunks batches of like length; what comes back is put in order again. No torch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

from transformer_cli.config import Config
from transformer_cli.decoding.chunks import batches_by_length, windows_of
from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Constraints, Line, as_lines, as_texts, tag_before
from transformer_cli.decoding.engines.protocol import Engine
from transformer_cli.decoding.pipeline import Pipeline
from transformer_cli.decoding.translation import Candidate, Confidence, Scored, Tally, Translation, load_confidence
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.codec import Codecs
from transformer_cli.text.lines import with_tag

if TYPE_CHECKING:
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.text.alignments import Links

__all__ = ["Candidate", "Constraints", "Engine", "Line", "Scored", "Translation", "Translator"]

WINDOW = 2000  # lines read ahead and sorted by length

Ids = Sequence[int]
RowT = TypeVar("RowT", int, float)  # what an engine gives of a target token


class Translator:
    """A model that takes raw text and gives raw text."""

    def __init__(
        self,
        engine: Engine,
        codecs: Codecs,
        config: Config,
        *,
        guard: bool = True,
        confidence: Confidence | None = None,
        alignment_layer: int | None = None,
        alignment_heads: Sequence[int] | None = None,
    ) -> None:
        """guard: search again, with repetition blocked, where a translation repeats itself or never ends.

        confidence: what `tfm calibrate` found. alignment_layer, alignment_heads: of the decoder, whose attention
        alignments are read from. Without both, those that learned it, else the last layer; without heads, all of it.
        """
        self.engine = engine
        self.codecs = codecs
        self.config = config
        self.alignment_layer: int
        self.alignment_heads: Sequence[int] | None
        if alignment_layer is None and alignment_heads is None:
            self.alignment_layer, self.alignment_heads = config.alignment_attention
        else:
            self.alignment_layer = -1 if alignment_layer is None else alignment_layer
            self.alignment_heads = alignment_heads
        self.guarded = guard
        self.confidence = confidence
        self.engine_choice = f"engine: {engine.name}"  # a sentence for the user
        self.tally = Tally()

    @classmethod
    def load(
        cls,
        path: "str | Path | FoundModel",
        device: str = "auto",
        *,
        engine: str = "auto",
        needs: Sequence[str] = (),
        compute_type: str | None = None,
        guard: bool = True,
    ) -> "Translator":
        """Load the model in a run folder (its best checkpoint), one checkpoint folder or one exported for CTranslate2.

        device: auto, cpu, cuda or mps; engine: auto, torch or ctranslate2; needs: names of what is asked for that only
        the torch engine has; compute_type: what is computed in, such as int8 (CTranslate2) or bfloat16.
        Raises `UserError` where there is no such model, device or engine, or where the model's files are damaged.
        """
        from transformer_cli.decoding.loading import FoundModel, load_engine

        found = path if isinstance(path, FoundModel) else FoundModel.at(path)  # first: a mistyped MODEL need not wait
        loaded, choice = load_engine(found, device, engine, compute_type=compute_type, needs=needs)
        translator = cls(*loaded, guard=guard, confidence=load_confidence(found.folder))
        translator.engine_choice = choice
        return translator

    @property
    def notes(self) -> list[str]:
        """What the user should know of the lines translated so far, a sentence each."""
        return self.tally.notes

    @property
    def max_length(self) -> int:
        """The most source tokens (`</s>` not counted) that are translated in one chunk."""
        own = self.config.data.max_length
        return own if self.engine.max_source_length is None else min(own, self.engine.max_source_length)

    def tag_ids(self, tag: str | None) -> list[int]:
        """Return the ids that the model reads before a text; `tag` as in `Line`. Raises as `tag_before` does."""
        own = tag_before(self.config, tag)
        return self.codecs.source.encode_tag(own) if own else []

    def tagged(self, texts: Iterable[str], tag: str | None = None) -> list[str]:
        """Return source texts as the model reads them, each with its tag; arguments as `tag_ids`."""
        own = tag_before(self.config, tag)
        return [with_tag(text, own) for text in texts]

    @overload
    def translate(self, texts: str) -> str: ...  # type: ignore[overload-overlap]  # a text is not a list of texts
    @overload
    def translate(self, texts: Sequence[str]) -> list[str]: ...

    def translate(self, texts: str | Sequence[str]) -> str | list[str]:
        """Return the best translation of each text, or of the one text; texts without any word give empty ones.

        Raises `TypeError` that says where something is not a text.
        """
        if isinstance(texts, str):
            return self.translate([texts])[0]
        return [translation.text for translation in self.translate_batch(texts, alignments=False)]

    def translate_batch(
        self,
        texts: Sequence[str],
        options: SearchOptions | None = None,
        constraints: Sequence[Constraints] | None = None,
        *,
        alignments: bool = True,
        mbr: bool = False,
        tag: str | None = None,
        demands: Sequence[Constraints] | None = None,
    ) -> list[Translation]:
        """Return the translations of some texts, in order; `options` default to the model's own.

        alignments: cost some time. constraints: of each text's translation; `demands` is their old name. mbr: order the
        `n_best` found by their likeness to each other. tag: a symbol that the model was trained with, put before each
        text (None: `decoding.tag` of its config; "": none). Raises `UserError` where the vocabulary cannot write what
        is required, or the model does not know the tag.
        """
        texts = as_texts(texts, "texts")
        constraints = demands if constraints is None else constraints
        if constraints is None:
            constraints = [NO_CONSTRAINTS] * len(texts)
        _check_pairs(texts, constraints, "constraints")
        lines = [Line(text, wanted) for text, wanted in zip(texts, constraints, strict=True)]
        return list(self._pipeline(options, alignments, mbr, tag).translations(iter([lines]), together=False))

    def translate_lines(
        self,
        lines: Iterable[str | Line],
        options: SearchOptions | None = None,
        window: int = WINDOW,
        *,
        alignments: bool = False,
        mbr: bool = False,
        tag: str | None = None,
        first: int = 0,
    ) -> Iterator[Translation]:
        """Yield one translation per line, in order, reading `window` lines ahead or more (1: answers each at once).

        A line is a text, or a `Line` with what its translation must obey, and its tag if it has one of its own. mbr,
        tag: as in `translate_batch`. first: how many lines came before, in another call, so that sampling draws as it
        would in one.
        """
        windows = windows_of(as_lines(lines), window, lambda line: len(line.text))
        return self._pipeline(options, alignments, mbr, tag).translations(windows, together=window > 1, first=first)

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        options: SearchOptions | None = None,
        *,
        tag: str | None = None,
    ) -> list[Scored]:
        """Return how likely the model finds each target as a translation of its source; `tag` as in `translate_batch`.

        Raises `UserError`, with the number of the pair, where one is longer than the model's position table.
        """
        options = options or SearchOptions.from_config(self.config.decoding)
        sources, targets = as_texts(sources, "sources"), as_texts(targets, "targets")
        _check_pairs(sources, targets, "targets")
        sources = self.tagged(sources, tag)
        source_ids, target_ids = self.codecs.encode_pairs(sources, targets)
        self.check_lengths(source_ids, target_ids)
        scored = []
        rows = self._in_batches(lambda some, others, _: self.engine.score(some, others), source_ids, target_ids)
        for source, ids, row in zip(sources, target_ids, rows, strict=True):
            total = sum(row)
            beside = self.codecs.source.tokenize(source) if self.codecs.copies else ()
            tokens = [*self.codecs.target_beside(beside).tokens(ids), "</s>"]
            scored.append(Scored(tokens, row, total, total / options.penalty(len(ids))))
        return scored

    def align(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        *,
        words: bool = True,
        attention: tuple[int, Sequence[int] | None] | None = None,
        tag: str | None = None,
    ) -> "list[Links]":
        """Return the links that the model finds between words, or between tokens, of given sources and targets.

        Words are linked where any of their tokens are. `attention`: the decoder layer, and its heads (None: all), whose
        attention to the source gives them; None: those that the model itself takes. `tag`: as in `translate_batch`; it
        has no links and no place.
        A text without tokens has no links; nor have the words of one whose normalisation changes where words end.
        """
        from transformer_cli.text.alignments import word_links  # not at the top: numpy takes a while

        sources, targets = as_texts(sources, "sources"), as_texts(targets, "targets")
        _check_pairs(sources, targets, "targets")
        source_ids, target_ids = self.codecs.source.encode_batch(sources), self.codecs.target.encode_batch(targets)
        filled = [pair for pair, both in enumerate(zip(source_ids, target_ids, strict=True)) if all(both)]
        before = self.tag_ids(tag)
        rows = self.align_ids(
            [[*before, *source_ids[pair]] for pair in filled],
            [target_ids[pair] for pair in filled],
            attention,
            [len(before)] * len(filled),
        )
        found: list[Links] = [set() for _ in sources]
        for pair, row in zip(filled, rows, strict=True):
            links = {(source, target) for target, source in enumerate(row)}
            found[pair] = word_links(self.codecs, sources[pair], targets[pair], row) if words else links
        return found

    def align_ids(
        self,
        sources: Sequence[Ids],
        targets: Sequence[Ids],
        attention: tuple[int, Sequence[int] | None] | None = None,
        skip: Sequence[int] = (),
    ) -> list[list[int]]:
        """Return for each target token of some pairs the place of its source token, counted after the tokens of a tag.

        `attention` as in `align`; `skip`: how many tokens of a tag each source begins with.
        """
        layer, heads = attention or (self.alignment_layer, self.alignment_heads)

        def work(some: list[Ids], others: list[Ids], pairs: list[int]) -> list[list[int]]:
            return self.engine.align(some, others, layer, heads, [skip[pair] for pair in pairs] if skip else None)

        return self._in_batches(work, sources, targets)

    def _in_batches(
        self,
        work: Callable[[list[Ids], list[Ids], list[int]], list[list[RowT]]],
        sources: Sequence[Ids],
        targets: Sequence[Ids],
    ) -> list[list[RowT]]:
        """Return what `work` gives for each pair of ids, in order; it gets pairs of like lengths and their places."""
        lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
        found: dict[int, list[RowT]] = {}
        for batch in batches_by_length(lengths, self.config.decoding.batch_tokens):
            rows = work([sources[pair] for pair in batch], [targets[pair] for pair in batch], batch)
            found.update(zip(batch, rows, strict=True))
        return [found[pair] for pair in range(len(lengths))]

    def check_lengths(
        self, sources: Iterable[Ids], targets: Iterable[Ids], places: tuple[str, str] = ("source ", "target ")
    ) -> None:
        """Raise `UserError` where a text is longer than the model's position table; `places` name the two sides."""
        most = self.engine.max_source_length, self.engine.max_target_length
        for place, side, limit in zip(places, (sources, targets), most, strict=True):
            for number, ids in enumerate(side if limit is not None else (), start=1):
                if limit is not None and len(ids) > limit:
                    raise UserError(
                        f"{place}{number}: {len(ids):,} tokens, but this model's learned positions end at {limit:,};"
                        " shorten it, or leave the pair out"
                    )

    def _pipeline(self, options: SearchOptions | None, alignments: bool, mbr: bool, tag: str | None) -> Pipeline:
        tag_before(self.config, tag)  # even where no line is to come
        return Pipeline(self, options or SearchOptions.from_config(self.config.decoding), alignments, mbr, tag)


def _check_pairs(texts: Sequence[str], others: Sequence[object], name: str) -> None:
    if len(others) != len(texts):
        raise ValueError(f"{len(others):,} {name} for {len(texts):,} texts: give one for each")
