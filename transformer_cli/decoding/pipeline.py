"""From lines to translations: cut into chunks, searched in batches, checked, searched again where need be, and joined.

`Translator` makes a `Pipeline` for each call. No torch.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import eq
from typing import TYPE_CHECKING

from transformer_cli.decoding.chunks import Chunk, batches_by_length, cut, join, parts_of, source_words, words_read
from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Line, token_constraints, violations
from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch, TokenConstraints, occurs
from transformer_cli.decoding.translation import Candidate, Translation, joined_candidate
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.codec import Codec
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import UNK

if TYPE_CHECKING:
    from transformer_cli.decoding.translator import Translator

MOST_SPELLINGS = 20  # of a forbidden word, beside those that its text has
LONGEST_PHRASE = 20  # tokens of what is looked for in a row
IN_A_ROW = 2  # times that a phrase may come in a row whatever the source; a single token one time more, as in "..."
COUNTED_PHRASE = 4  # tokens of what is counted wherever it stands …
ANYWHERE = 3  # … and the times that it may come
BLOCKED_PHRASE = 3  # tokens that may not come twice, when a sentence is searched for again


Tokens = Sequence[Hashable]  # ids, or tokens as texts


@dataclass(eq=False)
class Task:
    """A chunk of a line, on its way from ids to candidates."""

    chunk: Chunk
    key: tuple[int, int]  # of what is drawn for it: how many lines, and chunks of its own line, came before
    forbidden: tuple[str, ...]  # words, as the user wrote them
    constraints: TokenConstraints | None  # None: no line of the window has any
    hypotheses: list[Hypothesis] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)


@dataclass(eq=False)
class Window:
    """Some lines with their chunks, the batches of which are still to be searched, and what the guard has flagged."""

    lines: list[tuple[Line, list[Task]]]
    pending: deque[list[Task]]
    flagged: list[Task] = field(default_factory=list)


@dataclass(frozen=True)
class Pipeline:
    """How the lines of one call of a translator are translated."""

    translator: "Translator"
    options: SearchOptions
    alignments: bool
    mbr: bool
    tag: str | None = None  # of lines that have none of their own

    @property
    def splits(self) -> bool:
        """Whether sentences of a line are translated one by one; never where the model's own way was not decided."""
        asked = self.options.split
        return (self.translator.config.decoding.split if asked == "auto" else asked) == "always"

    def translations(
        self, windows: Iterable[Sequence[Line]], *, together: bool, first: int = 0
    ) -> Iterator[Translation]:
        """Yield one translation per line, in order.

        together: windows may be read (and made ids) while the engine still searches those before. first: how many
        lines came before; it grows, so that sampling draws anew for each line of a stream.
        """
        opened = self._open(windows, first)
        for window in opened:
            waiting: deque[Window] = deque()
            batches = self._batches(chain([window], opened), waiting, together)
            for found in self.translator.engine.search(batches, self.options):
                self._take(waiting[0], found)
                while waiting and not waiting[0].pending:
                    yield from self._close(waiting.popleft())
            for rest in waiting:
                yield from self._close(rest)

    def _open(self, windows: Iterable[Sequence[Line]], first: int) -> Iterator[Window]:
        """Cut the lines of each window into chunks, and these into batches."""
        codecs, most = self.translator.codecs, self.translator.max_length
        source, language = codecs.source, self.translator.config.data.source_language
        for lines in windows:
            parts = [parts_of(line.text, language, split=self.splits) for line in lines]
            tags = [self.translator.tag_ids(self.tag if line.tag is None else line.tag) for line in lines]
            ids = iter(source.encode_batch([part for own in parts for part in own]))
            constrained = any(line.constraints != NO_CONSTRAINTS for line in lines)
            opened: list[tuple[Line, list[Task]]] = []
            for number, (line, own_parts, tag) in enumerate(zip(lines, parts, tags, strict=True), start=first):
                chunks = [chunk for part in own_parts for chunk in cut(part, next(ids), source, most, language, tag)]
                constraints: Sequence[TokenConstraints | None] = [None] * len(chunks)
                if constrained:
                    constraints = token_constraints(line.constraints, chunks, codecs.target, self._beside)
                tasks = [
                    Task(chunk, (number, part), line.constraints.forbidden, own)
                    for part, (chunk, own) in enumerate(zip(chunks, constraints, strict=True))
                ]
                opened.append((line, tasks))
            first += len(lines)
            counted = [
                (len(own), len(tasks)) for own, (line, tasks) in zip(parts, opened, strict=True) if not line.again
            ]
            self.translator.tally.add(
                several_sentences=sum(sentences > 1 for sentences, _ in counted),
                cut_lines=sum(chunks > sentences for sentences, chunks in counted),
            )
            yield Window(opened, deque(self._in_batches([task for _, tasks in opened for task in tasks])))

    def _batches(self, windows: Iterable[Window], waiting: deque[Window], together: bool) -> Iterator[SearchBatch]:
        """Yield what the engine is to search now; each window that is begun waits for its results."""
        for window in windows:
            batches = list(window.pending)
            waiting.append(window)
            yield from map(_search_batch, batches)
            if not (together and batches):  # without any batch, only the end of the search gives its lines
                return

    def _take(self, window: Window, found: Sequence[list[Hypothesis]]) -> None:
        """Write what was found for the next batch of a window; what the guard flags has to wait."""
        good: list[Task] = []
        for task, hypotheses in zip(window.pending.popleft(), found, strict=True):
            task.hypotheses = self._electable(task, hypotheses)
            flagged = self.translator.guarded and self._excess(task, task.hypotheses[0])
            (window.flagged if flagged else good).append(task)
        self._write(good)

    def _close(self, window: Window) -> Iterator[Translation]:
        """Yield the translations of a window's lines, once all batches are back."""
        if window.flagged:
            self._repair(window.flagged)
        self._enforce([task for _, tasks in window.lines for task in tasks if task.forbidden])
        for line, tasks in window.lines:
            yield self._translation(line, tasks)

    def _repair(self, flagged: Sequence[Task]) -> None:
        """Search again for what the guard has flagged, with repetition blocked, and take what is better."""
        repaired = 0
        options = search_again(self.options)
        if options is not None:
            for task, found in self._search_again(flagged, options):
                hypotheses = self._electable(task, found)
                if self._excess(task, hypotheses[0]) < self._excess(task, task.hypotheses[0]):
                    task.hypotheses = hypotheses
                    repaired += 1
        self.translator.tally.add(flagged=len(flagged), repaired=repaired)
        self._write(flagged)

    def _enforce(self, tasks: Sequence[Task]) -> None:
        """Search again where forbidden words were written with other tokens than those that were foreseen."""
        for _ in range(MOST_SPELLINGS):
            violating = [task for task in tasks if self._forbid_spellings(task)]
            if not violating:
                break
            tasks = []
            for task, hypotheses in self._search_again(violating, self.options):
                task.hypotheses = hypotheses
                tasks.append(task)
            self._write(tasks)

    def _forbid_spellings(self, task: Task) -> bool:
        """Forbid each way in which a forbidden word was written all the same; return whether there was any."""
        assert task.constraints is not None, "words are forbidden"
        codec = self._beside(task.chunk)
        known = (task.constraints.prefix, *task.constraints.required, *task.constraints.forbidden)
        more = [
            ids
            for candidate in task.candidates
            for ids in violations(candidate.text, codec.lookup(candidate.tokens), task.forbidden, codec)
            if not any(occurs(ids, text) for text in known)
        ]
        if more:
            task.constraints = replace(task.constraints, forbidden=(*task.constraints.forbidden, *dict.fromkeys(more)))
        return bool(more)

    def _search_again(self, tasks: Sequence[Task], options: SearchOptions) -> Iterator[tuple[Task, list[Hypothesis]]]:
        """Yield what is found for some tasks in another search."""
        batches = self._in_batches(tasks)
        found = self.translator.engine.search(map(_search_batch, batches), options)
        yield from zip(chain(*batches), chain.from_iterable(found), strict=True)

    def _in_batches(self, tasks: Sequence[Task]) -> list[list[Task]]:
        found = batches_by_length([len(task.chunk.ids) for task in tasks], self.translator.config.decoding.batch_tokens)
        return [[tasks[place] for place in batch] for batch in found]

    def _electable(self, task: Task, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses of which minimum Bayes risk may choose any: the sound ones, if there are such."""
        if not (self.translator.guarded and self.mbr):
            return hypotheses
        return [one for one in hypotheses if not self._excess(task, one)] or hypotheses

    def _excess(self, task: Task, hypothesis: Hypothesis) -> int:
        return excess_tokens(hypothesis, task.chunk.ids, self.options)

    def _beside(self, chunk: Chunk) -> Codec:
        """Return the target's codec beside a chunk: what a model that copies may write of it has no id elsewhere."""
        codecs = self.translator.codecs
        if not codecs.copies:
            return codecs.target
        return codecs.target_beside(words_read(chunk, codecs.source))

    # --- hypotheses to text ---------------------------------------------------------------------------------------

    def _write(self, tasks: Sequence[Task]) -> None:
        """Make candidates of some tasks' hypotheses; aligned where that is asked for, or needed to copy words."""
        wanted = [(task, one) for task in tasks for one in task.hypotheses if self.alignments or self._copies(one)]
        aligned: Iterator[list[int]] = iter(())
        if wanted:
            sources, targets = [task.chunk.ids for task, _ in wanted], [one.ids for _, one in wanted]
            layer, heads = self.translator.alignment_layer, self.translator.alignment_heads
            skip = [task.chunk.tag_length for task, _ in wanted]
            aligned = iter(self.translator.engine.align(sources, targets, layer, heads, skip))
        for task in tasks:
            task.candidates = [
                self._candidate(task.chunk, one, next(aligned) if self.alignments or self._copies(one) else None)
                for one in task.hypotheses
            ]
            if self.mbr:
                from transformer_cli.decoding.mbr import by_utility  # not at the top: numpy takes a while

                task.candidates = by_utility(task.candidates)

    def _copies(self, hypothesis: Hypothesis) -> bool:
        """Return whether each `<unk>` is to become the source word that attention points at."""
        is_word = self.translator.config.decoding.copy_unknown and not self.translator.codecs.target.is_subword
        return is_word and UNK in hypothesis.ids

    def _candidate(self, chunk: Chunk, hypothesis: Hypothesis, alignment: list[int] | None) -> Candidate:
        unknowns: list[str] | None = None
        if self._copies(hypothesis) and alignment is not None:
            words = source_words(chunk, self.translator.codecs.source)
            unknowns = [words[place] for token, place in zip(hypothesis.ids, alignment, strict=True) if token == UNK]
        codec = self._beside(chunk)
        text = one_line(codec.decode(hypothesis.ids, unknowns))
        return Candidate(
            text=text,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            tokens=codec.tokens(hypothesis.ids),
            alignment=alignment if self.alignments else None,
            ended=hypothesis.ended,
            confidence=self._confidence(text, hypothesis.log_probability),
            lengths=(len(hypothesis.ids),),
        )

    def _translation(self, line: Line, tasks: Sequence[Task]) -> Translation:
        """Join the translations of a line's chunks: their best ones, then their second ones, …"""
        chunks = [task.chunk for task in tasks]
        ids = [index for chunk in chunks for index in chunk.ids[chunk.tag_length :]]
        source_tokens = self.translator.codecs.source.tokens(ids)
        if not tasks:
            sure = None if self.translator.confidence is None else 1.0
            candidates = [Candidate("", 0.0, 0.0, [], [] if self.alignments else None, True, confidence=sure)]
        elif len(tasks) == 1:
            candidates = tasks[0].candidates
        else:
            ranks = range(max(len(task.candidates) for task in tasks))
            candidates = [
                self._joined(chunks, [task.candidates[min(rank, len(task.candidates) - 1)] for task in tasks])
                for rank in ranks
            ]
        return Translation(line, source_tokens, candidates, chunks)

    def _joined(self, chunks: Sequence[Chunk], parts: Sequence[Candidate]) -> Candidate:
        """Join one translation of each chunk of a line."""
        text = join([part.text for part in parts], self.translator.config.data.target_language)
        joined = joined_candidate(text, parts, [chunk.length for chunk in chunks], self.options, self.alignments)
        return replace(joined, confidence=self._confidence(text, joined.log_probability))

    def _confidence(self, text: str, log_probability: float) -> float | None:
        confidence = self.translator.confidence
        return None if confidence is None else confidence.expect(text, log_probability)


def _search_batch(tasks: Sequence[Task]) -> SearchBatch:
    constraints = [task.constraints for task in tasks if task.constraints is not None]
    return SearchBatch([task.chunk.ids for task in tasks], [task.key for task in tasks], constraints or None)


# --- the guard: translations that repeat themselves or never end, by their ids alone ----------------------------------


def excess_tokens(hypothesis: Hypothesis, source: Sequence[int], options: SearchOptions) -> int:
    """Return how many tokens of a translation are too many: it repeats itself, or was cut at its length limit.

    A limit that the user set (`max_length`) does not count.
    """
    cut = not hypothesis.ended and options.max_length is None
    runaway = cut and len(hypothesis.ids) >= options.length_limit(len(source))
    return repeated(hypothesis.ids, source) + (max(1, len(hypothesis.ids) - len(source)) if runaway else 0)


def repeated(ids: Tokens, source: Tokens) -> int:
    """Return how many tokens of a translation are one repetition too many; a source that repeats itself excuses it."""
    if len(ids) - len(set(ids)) <= IN_A_ROW:
        return 0  # nearly all: no phrase can have come too often
    return _repeated_in_a_row(ids, source) + _repeated_anywhere(ids, source)


def search_again(options: SearchOptions) -> SearchOptions | None:
    """Return how to search again for what is flagged; None: the search blocks repetition already."""
    if 0 < options.no_repeat_ngram <= BLOCKED_PHRASE:
        return None
    return replace(options, no_repeat_ngram=BLOCKED_PHRASE)


def runs(ids: Tokens) -> list[int]:
    """Return for each phrase length from 1 how many times a phrase of so many tokens comes in a row at the most."""
    found = []
    for size in range(1, min(LONGEST_PHRASE, len(ids) // 2) + 1):
        if sum(map(eq, ids, ids[size:])) < size:  # nearly always: too few for a whole phrase to come again
            found.append(1)
            continue
        longest = now = 0
        for one, other in zip(ids, ids[size:], strict=False):
            now = now + 1 if one == other else 0
            longest = max(longest, now)
        found.append(longest // size + 1)
    return found


def _repeated_in_a_row(ids: Tokens, source: Tokens) -> int:
    beyond = {
        size: times for size, times in enumerate(runs(ids), start=1) if times > IN_A_ROW + (size == 1)
    }  # nearly always none
    excused = 1 + max(runs(source), default=1) if beyond else 0
    return max([0, *((times - max(excused, IN_A_ROW + (size == 1))) * size for size, times in beyond.items())])


def _repeated_anywhere(ids: Tokens, source: Tokens) -> int:
    beyond = [times for times in _phrases(ids, COUNTED_PHRASE).values() if times > ANYWHERE]
    # Half as long in the source: where one language needs four tokens, another may need two.
    excused = 2 * max(_phrases(source, COUNTED_PHRASE // 2).values(), default=1) if beyond else 0
    return sum(max(0, times - max(excused, ANYWHERE)) for times in beyond)


def _phrases(ids: Tokens, size: int) -> Counter[tuple[Hashable, ...]]:
    return Counter(zip(*(ids[start:] for start in range(size)), strict=False))
