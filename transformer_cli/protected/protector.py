"""Translation that leaves protected text alone: URLs, e-mail addresses, placeholders, tags; and a glossary's terms.

Protected text is left out of what the model reads and put back where the alignment says; a term stays, and what is
aligned to it is replaced. What comes out is verified; a line that fails is translated in pieces. No torch.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from transformer_cli.decoding.chunks import WITHOUT_SPACES
from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.pipeline import WINDOW_CHARACTERS, batches_by_length
from transformer_cli.decoding.translation import Candidate, Tally, Translation
from transformer_cli.decoding.translator import WINDOW, Translator
from transformer_cli.protected.reinsertion import (
    Edit,
    Output,
    placeholder_positions,
    term_edit,
    token_places,
    tokens_written,
    with_placeholders,
    written,
)
from transformer_cli.protected.segments import merged, segment_constraints, segment_line, untranslated
from transformer_cli.protected.spans import Glossary, Masked, Span, find_spans, is_kept, leave_out, occurrences
from transformer_cli.text.lines import one_line


@dataclass(frozen=True)
class _Line:
    """A line to translate that holds protected text."""

    given: Line
    text: str
    spans: list[Span]
    masked: Masked  # what the model reads of it; nothing where there is nothing to translate
    is_first_try: bool  # whether it reads terms and symbols too
    number: int  # how many lines came before


def translate_protected(
    translator: Translator,
    lines: Iterable[str | Line],
    options: SearchOptions | None = None,
    *,
    glossary: Glossary | None = None,
    window: int = WINDOW,
    alignments: bool = False,
) -> Iterator[Translation]:
    """One translation a line, in order, with protected text in it as it is and terms as `glossary` says.

    `Protector` does the same, and tells what it met.
    """
    return Protector(translator, glossary).translate_lines(lines, options, window, alignments=alignments)


class Protector:
    """A translator of lines that may hold protected text; other lines it translates as `Translator` does."""

    def __init__(self, translator: Translator, glossary: Glossary | None = None) -> None:
        self.translator = translator
        self.glossary = glossary
        self.tally = Tally()
        language = translator.config.data.target_language
        self._symbols = frozenset(translator.config.vocabulary.symbols)  # which the model was trained to copy
        self._spaces = language.replace("_", "-").split("-")[0].lower() not in WITHOUT_SPACES

    @property
    def notes(self) -> list[str]:
        """What the user should know of the lines translated so far, a sentence each."""
        return [*self.translator.notes, *self.tally.notes]

    @property
    def protected_lines(self) -> int:
        """How many lines so far held protected text."""
        return self.tally["protected_lines"]

    @property
    def split_lines(self) -> int:
        """How many of those had to be translated in pieces."""
        return self.tally["split_lines"]

    def translate_lines(
        self,
        lines: Iterable[str | Line],
        options: SearchOptions | None = None,
        window: int = WINDOW,
        *,
        alignments: bool = False,
        mbr: bool = False,
        first: int = 0,
    ) -> Iterator[Translation]:
        """One translation a line, in order; see `Translator.translate_lines`. Each protected text is one token."""
        options = options or SearchOptions.from_config(self.translator.config.decoding)
        read: deque[tuple[_Line | None, int]] = deque()  # lines, and their characters, that the translator is ahead by

        def masked() -> Iterator[Line]:
            for number, one in enumerate(lines, start=first):
                given = Line(one) if isinstance(one, str) else one
                line = self._open(given, number, is_first_try=True)
                read.append((line, len(given.text)))
                yield given if line is None else replace(given, text=line.masked.text)

        some: list[Translation] = []
        held: list[_Line | None] = []
        characters = 0
        for translation in self.translator.translate_lines(
            masked(), options, window, alignments=alignments, mbr=mbr, first=first
        ):
            line, length = read.popleft()
            some.append(translation)
            held.append(line)
            characters += length
            if len(some) >= window or characters >= WINDOW_CHARACTERS:
                self._restore(held, some, options, alignments, mbr)
                yield from some
                some, held, characters = [], [], 0
        self._restore(held, some, options, alignments, mbr)
        yield from some

    def _open(self, given: Line, number: int, *, is_first_try: bool) -> _Line | None:
        """A line without its protected text; None where it has none. At the first try what the model knows stays."""
        line = one_line(given.text)
        spans = find_spans(line, self.glossary)
        if not spans:
            return None
        masked = leave_out(line, spans)
        if not any(map(str.isalnum, masked.text)):
            masked = Masked("", [])
        elif is_first_try:
            masked = leave_out(line, [span for span in spans if not self._is_known(span)])
        return _Line(given, line, spans, masked, is_first_try, number)

    def _is_known(self, span: Span) -> bool:
        """Whether the model may know what to make of it: a glossary's term, or one of its vocabulary's symbols."""
        return span.kind == "term" or span.text in self._symbols

    def _restore(
        self,
        lines: Sequence[_Line | None],
        found: list[Translation],
        options: SearchOptions,
        alignments: bool,
        mbr: bool,
    ) -> None:
        """Put protected text back into translations, in place; translate again what fails."""
        held = {place: line for place, line in enumerate(lines) if line is not None}
        self.tally.add(protected_lines=len(held))
        failed = self._put_back(held, found, alignments)
        without = {
            place: line
            for place in failed
            if any(map(self._is_known, held[place].spans))
            and (line := self._open(held[place].given, held[place].number, is_first_try=False)) is not None
        }
        if without:
            parts = [[Line(line.masked.text, line.given.constraints)] for line in without.values()]
            again = self._again(list(without.values()), parts, options, alignments, mbr)
            for place, (translation,) in zip(without, again, strict=True):
                found[place] = translation
            still = self._put_back(without, found, alignments)
            failed = [place for place in failed if place not in without or place in still]
        if failed:
            self.tally.add(split_lines=len(failed))
            split = self._split([held[place] for place in failed], options, alignments)
            for place, translation in zip(failed, split, strict=True):
                found[place] = translation

    def _put_back(self, lines: dict[int, _Line], found: list[Translation], alignments: bool) -> list[int]:
        """Put protected text back into the translations of some lines, by place; which of them failed."""
        rows = iter(self._align([found[place] for place in lines]))
        failed = []
        for place, line in lines.items():
            translation = found[place]
            own = [next(rows) for _ in translation.hypotheses]
            if not line.masked.text:
                found[place] = self._untranslated(line, alignments, confidence=1.0)
                continue
            if not any(own):
                failed.append(place)
                continue
            before = self._tokens_before(line, [gap.place for gap in line.masked.gaps], translation)
            kept = [
                whole
                for one, row in zip(translation.hypotheses, own, strict=True)
                if row is not None and (whole := self._whole(line, translation, one, row, before, alignments))
            ]
            if kept:
                source_tokens = with_placeholders(translation.source_tokens, line.masked.gaps, before)
                found[place] = Translation(line.given, source_tokens, kept)
            else:
                failed.append(place)
        return failed

    def _whole(
        self,
        line: _Line,
        translation: Translation,
        candidate: Candidate,
        alignment: list[int],
        before: Sequence[int],
        alignments: bool,
    ) -> Candidate | None:
        """A hypothesis with everything protected in it, once; None where that cannot be."""
        places = token_places(candidate.tokens, candidate.text, self.translator.codecs.target.tokenizer)
        if not places:
            return None
        output = Output(candidate.text, places, alignment)
        edits = self._terms(line, translation, output)
        if edits is None:
            return None
        gaps = line.masked.gaps
        for number, (gap, place) in enumerate(
            zip(gaps, placeholder_positions(output, gaps, before, self._spaces), strict=True)
        ):
            for term in edits:
                if term.gap is None and term.start < place < term.end:
                    place = term.start if gap.opening else term.end
            edits.append(Edit(place, place, gap.text, before[number] + number, gap))
        text = written(candidate.text, edits)
        if not is_kept(text, line.spans):
            return None
        tokens, links = tokens_written(candidate.tokens, output, edits, before)
        return replace(candidate, text=text, tokens=tokens, alignment=links if alignments else None)

    def _terms(self, line: _Line, translation: Translation, output: Output) -> list[Edit] | None:
        """How to write the glossary's terms that the model has read; None where one of them has no place."""
        if not line.is_first_try or self.glossary is None:
            return []
        wanted = Counter(span.text for span in line.spans if span.kind == "term")
        missing = {text for text, count in wanted.items() if occurrences(output.text, [text]) < count}
        edits: list[Edit] = []
        for term in self.glossary.find(line.masked.text):
            if term.translation in missing:
                first, last = self._tokens_before(line, [term.start, term.end], translation)
                edit = term_edit(output, term.translation, first, last, self._spaces)
                if edit is None or any(edit.start < other.end and other.start < edit.end for other in edits):
                    return None
                edits.append(edit)
        return edits

    def _tokens_before(self, line: _Line, places: Sequence[int], translation: Translation) -> list[int]:
        """How many source tokens stand before each of some places of what the model reads."""
        encode = self.translator.codecs.source.encode
        most = len(translation.source_tokens)
        return [min(most, len(encode(line.masked.text[:place].rstrip()))) for place in places]

    def _align(self, translations: Sequence[Translation]) -> list[list[int] | None]:
        """The alignment of each hypothesis of each translation; None where the source is too long for one piece."""
        translator, codecs = self.translator, self.translator.codecs
        every = [(one.source_tokens, candidate) for one in translations for candidate in one.hypotheses]
        found = [candidate.alignment if len(source) <= translator.max_length else None for source, candidate in every]
        most = translator.engine.max_target_length
        wanted = [
            place
            for place, (source, candidate) in enumerate(every)
            if found[place] is None
            and 0 < len(source) <= translator.max_length
            and (most is None or len(candidate.tokens) <= most)
        ]
        lengths = [max(len(every[place][0]), len(every[place][1].tokens)) for place in wanted]
        for batch in batches_by_length(lengths, translator.config.decoding.batch_tokens):
            rows = [every[wanted[number]] for number in batch]
            sources = [codecs.source.lookup(source) for source, _ in rows]
            targets = [codecs.target.lookup(candidate.tokens) for _, candidate in rows]
            aligned = translator.engine.align(sources, targets, translator.alignment_layer, translator.alignment_heads)
            for number, row in zip(batch, aligned, strict=True):
                found[wanted[number]] = row
        return found

    def _split(self, lines: Sequence[_Line], options: SearchOptions, alignments: bool) -> list[Translation]:
        """The translations of some lines in pieces: protected text stays where it is."""
        split = [segment_line(line.text, line.spans) for line in lines]
        one_each = replace(options, n_best=1)
        parts = [
            list(map(Line, one.spoken, segment_constraints(line.given.constraints, one)))
            for line, one in zip(lines, split, strict=True)
        ]
        again = self._again(lines, parts, one_each, alignments, mbr=False)
        return [
            merged(line.given, one, translated, line.spans, options, self.translator.confidence, alignments)
            or self._untranslated(line, alignments, confidence=0.0)  # whatever it was: what is protected matters more
            for line, one, translated in zip(lines, split, again, strict=True)
        ]

    def _untranslated(self, line: _Line, alignments: bool, confidence: float) -> Translation:
        """A line in which nothing is translated but terms by the glossary; `confidence` where the model has one."""
        return untranslated(
            line.given, line.text, line.spans, None if self.translator.confidence is None else confidence, alignments
        )

    def _again(
        self,
        lines: Sequence[_Line],
        parts: Sequence[Sequence[Line]],
        options: SearchOptions,
        alignments: bool,
        mbr: bool,
    ) -> list[list[Translation]]:
        """The translations of the parts of some lines: of all together, but what is drawn, line by line.

        So it does not change what is drawn for a line which others are translated again beside it.
        """
        groups = [[place] for place in range(len(lines))] if options.method == "sample" else [[*range(len(lines))]]
        found: list[list[Translation]] = []
        for group in groups:
            translated = self.translator.translate_lines(
                [part for place in group for part in parts[place]],
                options,
                alignments=alignments,
                mbr=mbr,
                first=lines[group[0]].number if group else 0,
            )
            rest = iter(list(translated))
            found += [[next(rest) for _ in parts[place]] for place in group]
        return found
