"""Translation that leaves protected text alone: URLs, e-mail addresses, placeholders, tags; and a glossary's terms.

Protected text is left out of what the model reads and put back where the alignment says; a term stays, and what is
aligned to it is replaced. What comes out is verified; a line that fails is translated in segments. No torch.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from transformer_cli.decoding.chunks import Chunk, windows_of, writes_spaces
from transformer_cli.decoding.constraints import Line, as_lines
from transformer_cli.decoding.translation import Tally, Translation
from transformer_cli.decoding.translator import WINDOW, Translator
from transformer_cli.protected.reinsertion import (
    Edit,
    Output,
    placeholder_edits,
    term_edit,
    token_places,
    tokens_written,
    with_placeholders,
    written,
)
from transformer_cli.protected.segments import Segment, joined_translation, segment_line, segment_lines
from transformer_cli.protected.spans import (
    Glossary,
    Masked,
    Placeholder,
    Span,
    cut_out,
    find_spans,
    is_kept,
    leave_out,
    occurrences,
)
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.codec import Codec
from transformer_cli.text.lines import one_line


def translate_protected(
    translator: Translator,
    lines: Iterable[str | Line],
    options: SearchOptions | None = None,
    *,
    glossary: Glossary | None = None,
    window: int = WINDOW,
    alignments: bool = False,
) -> Iterator[Translation]:
    """Return one translation per line, in order, with protected text in it as it is and terms as `glossary` says.

    `Protector` does the same, and reports what it met.
    """
    return Protector(translator, glossary).translate_lines(lines, options, window, alignments=alignments)


class Protector:
    """A translator of lines that may hold protected text; other lines it translates as `Translator` does."""

    def __init__(self, translator: Translator, glossary: Glossary | None = None) -> None:
        self.translator = translator
        self.glossary = glossary
        self.tally = Tally()

    @property
    def notes(self) -> list[str]:
        """What the user should know of the lines translated so far, a sentence each."""
        return [*self.translator.notes, *self.tally.notes]

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
        """Yield one translation per line, in order; see `Translator.translate_lines`. A protected text is one token."""
        options = options or SearchOptions.from_config(self.translator.config.decoding)
        restoration = _Restoration(self.translator, self.glossary, self.tally, options, alignments, mbr)
        masked = (restoration.mask(line, number) for number, line in enumerate(as_lines(lines), start=first))
        found = self.translator.translate_lines(masked, options, window, alignments=alignments, mbr=mbr, first=first)
        for group in windows_of(found, window, _characters):
            yield from restoration.restore(group)


def _characters(translation: Translation) -> int:
    line = translation.line
    return len(line.given.text if isinstance(line, MaskedLine) else line.text)


@dataclass(frozen=True, kw_only=True)
class MaskedLine(Line):
    """What the model reads of a line with protected text; "" where there is nothing to translate."""

    given: Line
    number: int  # how many lines came before
    source: str  # the given text, without characters that some program takes for a line end
    spans: list[Span]
    placeholders: list[Placeholder]  # left out of the text
    holds_known: bool  # whether what the model may know is still in the text: terms and symbols


@dataclass(frozen=True)
class _Restoration:
    """How one call of `Protector` masks lines with protected text, and restores it in their translations."""

    translator: Translator
    glossary: Glossary | None
    tally: Tally
    options: SearchOptions
    alignments: bool
    mbr: bool

    def mask(self, line: Line, number: int) -> Line:
        """Return what the model is to read of a line at first: the line itself where nothing in it is protected."""
        source = one_line(line.text)
        spans = [span for span in find_spans(source, self.glossary) if not self._is_tag(span, source)]
        if not spans:
            return line
        masked = Masked("", [])
        if any(map(str.isalnum, leave_out(source, spans).text)):
            masked = leave_out(source, [span for span in spans if not self._is_known(span)])
        return MaskedLine(
            masked.text,
            line.constraints,
            tag=line.tag,
            given=line,
            number=number,
            source=source,
            spans=spans,
            placeholders=masked.placeholders,
            holds_known=True,
        )

    def restore(self, found: Sequence[Translation]) -> list[Translation]:
        """Return translations with all protected text in them, each of the line that was given.

        What the model read is tried as it is, then without the terms and symbols that it may know, then segment by
        segment; at last the line stays untranslated: whatever it says, what is protected in it matters more.
        """
        lines = [one.line for one in found if isinstance(one.line, MaskedLine)]
        restored = self._put_back(lines, [one for one in found if isinstance(one.line, MaskedLine)])
        self.tally.add(protected_lines=len(lines))
        for way in (self._without_known, self._in_segments, self._untranslated):
            failed = [place for place, one in enumerate(restored) if one is None]
            again = way([lines[place] for place in failed]) if failed else []
            for place, translation in zip(failed, again, strict=True):
                restored[place] = translation
        rest = (one for one in restored if one is not None)  # by now all of them
        return [next(rest) if isinstance(one.line, MaskedLine) else one for one in found]

    # --- the ways: a translation for each line, None where protected text is lost in it -------------------------------

    def _put_back(self, lines: Sequence[MaskedLine], found: Sequence[Translation]) -> list[Translation | None]:
        """Put protected text back into the translations of lines, where the alignment says."""
        return [
            self._restored(line, translation, alignments) if line.text else self._verbatim(line, confidence=1.0)
            for line, translation, alignments in zip(lines, found, self._align(found), strict=True)
        ]

    def _without_known(self, lines: Sequence[MaskedLine]) -> list[Translation | None]:
        """Translate lines without the terms and symbols that the model may know, where they have any."""
        again = []
        for line in lines:
            if any(map(self._is_known, line.spans)):
                text, placeholders = leave_out(line.source, line.spans)
                again.append(replace(line, text=text, placeholders=placeholders, holds_known=False, again=True))
        found = self._translate(again, [[line] for line in again], self.options, self.mbr)
        restored = self._put_back(again, [one for (one,) in found])
        by_number = {line.number: one for line, one in zip(again, restored, strict=True)}
        return [by_number.get(line.number) for line in lines]

    def _in_segments(self, lines: Sequence[MaskedLine]) -> list[Translation | None]:
        """Translate the text between protected texts, which stay where they are."""
        self.tally.add(split_lines=len(lines))
        segments = [segment_line(line.source, line.spans) for line in lines]
        parts = [
            [replace(part, again=True, tag=line.tag) for part in segment_lines(own, line.constraints)]
            for line, own in zip(lines, segments, strict=True)
        ]
        translated = self._translate(lines, parts, replace(self.options, n_best=1), mbr=False)
        found = map(self._joined, lines, segments, translated)
        return [one if is_kept(one.text, line.spans) else None for line, one in zip(lines, found, strict=True)]

    def _untranslated(self, lines: Sequence[MaskedLine]) -> list[Translation | None]:
        return [self._verbatim(line, confidence=0.0) for line in lines]

    # --- what they are made of ------------------------------------------------------------------------------------

    def _is_known(self, span: Span) -> bool:
        """Return whether the model may know it: a glossary's term, or a symbol that it was trained to copy."""
        return span.kind == "term" or span.text in self.translator.config.vocabulary.symbols

    def _is_tag(self, span: Span, source: str) -> bool:
        """Return whether it is the model's own, typed before a text: what comes after is what is translated."""
        config = self.translator.config
        return span.text in [*config.data.tags, config.decoding.tag] and not source[: span.start].strip()

    def _translate(
        self, lines: Sequence[MaskedLine], parts: Sequence[Sequence[Line]], options: SearchOptions, mbr: bool
    ) -> list[list[Translation]]:
        """Return the translations of the parts of some lines: of all together, but what is drawn, line by line.

        So it does not change what is drawn for a line which others are translated again beside it.
        """

        def translated(some: Sequence[Line], first: int) -> list[Translation]:
            found = self.translator.translate_lines(some, options, alignments=self.alignments, mbr=mbr, first=first)
            return list(found)

        if options.method == "sample":
            return [translated(own, line.number) for line, own in zip(lines, parts, strict=True)]
        together = iter(translated([part for own in parts for part in own], 0))
        return [list(islice(together, len(own))) for own in parts]

    def _joined(self, line: MaskedLine, segments: Sequence[Segment], parts: Sequence[Translation]) -> Translation:
        confidence = self.translator.confidence
        return joined_translation(line.given, segments, parts, self.options, self.alignments, confidence)

    def _verbatim(self, line: MaskedLine, confidence: float) -> Translation:
        """Return a line in which nothing is translated but terms; `confidence` where the model has one."""
        segments = [
            Segment(lead=text, text="", trail="", fixed=fixed) for text, fixed in cut_out(line.source, line.spans)
        ]
        joined = self._joined(line, segments, [])
        sure = None if self.translator.confidence is None else confidence
        return replace(joined, hypotheses=[replace(joined.hypotheses[0], confidence=sure)])

    def _restored(
        self, line: MaskedLine, translation: Translation, alignments: Sequence[list[int] | None]
    ) -> Translation | None:
        """Return the hypotheses that hold everything protected once; None where there is none."""
        if not any(alignments):
            return None
        counts = self._tokens_before(line, [one.place for one in line.placeholders], translation)
        placeholders = [one._replace(tokens=count) for one, count in zip(line.placeholders, counts, strict=True)]
        restored = []
        for candidate, alignment in zip(translation.hypotheses, alignments, strict=True):
            places = token_places(candidate.tokens, candidate.text, self.translator.codecs.target.tokenizer)
            if not places or alignment is None:
                continue
            output = Output(candidate.text, places, alignment)
            terms = self._terms(line, translation, output)
            if terms is None:
                continue
            edits = [*terms, *placeholder_edits(output, placeholders, terms, self._spaces)]
            text = written(candidate.text, edits)
            if is_kept(text, line.spans):
                tokens, links = tokens_written(candidate.tokens, output, edits, placeholders)
                own = links if self.alignments else None
                restored.append(replace(candidate, text=text, tokens=tokens, alignment=own))
        source_tokens = with_placeholders(translation.source_tokens, placeholders)
        return Translation(line.given, source_tokens, restored) if restored else None

    @property
    def _spaces(self) -> bool:
        return writes_spaces(self.translator.config.data.target_language)

    def _terms(self, line: MaskedLine, translation: Translation, output: Output) -> list[Edit] | None:
        """Return how to write the terms that the model has read; None where one of them has no place."""
        if not line.holds_known or self.glossary is None:
            return []
        wanted = Counter(span.text for span in line.spans if span.kind == "term")
        missing = {text for text, count in wanted.items() if occurrences(output.text, [text]) < count}
        edits: list[Edit] = []
        for term in self.glossary.find(line.text):
            if term.translation in missing:
                first, last = self._tokens_before(line, [term.start, term.end], translation)
                edit = term_edit(output, term.translation, first, last, self._spaces)
                if edit is None or any(edit.start < other.end and other.start < edit.end for other in edits):
                    return None
                edits.append(edit)
        return edits

    def _tokens_before(self, line: MaskedLine, places: Sequence[int], translation: Translation) -> list[int]:
        """Return how many source tokens stand before each of some places of what the model read."""
        encode = self.translator.codecs.source.encode
        counts = [0] * len(places)
        end = 0
        for chunk in translation.chunks:
            start = line.text.index(chunk.text, end)
            end = start + len(chunk.text)
            for number, place in enumerate(places):
                counts[number] += min(chunk.length, len(encode(line.text[start : min(place, end)].rstrip())))
        return counts

    def _align(self, translations: Sequence[Translation]) -> list[list[list[int] | None]]:
        """Return the alignment of each hypothesis of each translation; None where a sentence was cut."""
        codecs, most = self.translator.codecs, self.translator.engine.max_target_length
        rows: list[list[list[int] | None]] = []
        wanted: list[tuple[int, int]] = []  # translation and hypothesis
        for number, one in enumerate(translations):
            is_whole = not any(chunk.start for chunk in one.chunks)
            rows.append([candidate.alignment if is_whole else None for candidate in one.hypotheses])
            for rank, candidate in enumerate(one.hypotheses):
                fits = is_whole and one.chunks and (most is None or max(candidate.lengths) <= most)
                if fits and candidate.alignment is None:
                    wanted.append((number, rank))
        pairs = [_by_chunk(translations[number], rank, codecs.target) for number, rank in wanted]
        every = [pair for own in pairs for pair in own]
        sources, targets = [chunk.ids for chunk, _ in every], [ids for _, ids in every]
        skip = [chunk.tag_length for chunk, _ in every]
        aligned = iter(self.translator.align_ids(sources, targets, skip=skip))
        for (number, rank), own in zip(wanted, pairs, strict=True):
            start, links = 0, []
            for chunk, _ in own:
                links += [start + place for place in next(aligned)]
                start += chunk.length
            rows[number][rank] = links
        return rows


def _by_chunk(translation: Translation, rank: int, target: Codec) -> list[tuple[Chunk, list[int]]]:
    """Return each chunk of a hypothesis with its target ids."""
    tokens = iter(translation.hypotheses[rank].tokens)
    lengths = translation.hypotheses[rank].lengths
    return [
        (chunk, target.lookup(islice(tokens, length)))
        for chunk, length in zip(translation.chunks, lengths, strict=True)
    ]
