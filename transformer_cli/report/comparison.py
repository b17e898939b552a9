"""What `tfm compare` found, in plain words for a terminal, as JSON, and as one page of HTML."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean

from transformer_cli.evaluation.comparing import LEVEL, Comparison, Measure
from transformer_cli.evaluation.differences import Group, Where
from transformer_cli.evaluation.systems import System
from transformer_cli.report.page import Row, escaped, figure, intervals, page, printable, short, table

SHOWN = 3  # sentences on either side on a terminal
LABEL = 20  # characters of a system's name beside its translation
SEEDS = (
    "One run per system: this is about these outputs. To learn whether it holds for other seeds too, give several runs "
    "per system: A=run1,run2,run3."
)


@dataclass(frozen=True)
class Found:
    """All that is reported."""

    systems: Sequence[System]
    measures: Sequence[Measure]
    comparisons: Sequence[Comparison]
    where: Sequence[Where]
    references: int

    @cached_property
    def names(self) -> list[str]:
        """The names of the systems; of paths the last part, if that tells them apart."""
        whole = [system.name for system in self.systems]
        last = [os.path.basename(name) for name in whole]
        return [printable(name) for name in (last if len({*last} - {""}) == len(last) else whole)]

    @property
    def seeds_unknown(self) -> bool:
        """Whether nothing is known of the noise of the seed."""
        return all(len(system.runs) == 1 for system in self.systems)


def verdict(found: Comparison, a: str, b: str) -> str:
    """Return what follows from a comparison, in plain words."""
    digits, p = _digits(found.standard_error), _p(found.p_holm)
    if found.better is None:
        if found.differing == 0:
            return "the same for every sentence"
        beside = f"(difference {_range(found.difference, found.interval, digits)}, {p})"
        if found.detectable is None:
            differ = "differs" if found.differing == 1 else "differ"
            few = f"{found.differing:,} of {_sentences(found.sentences)} {differ}"
            return f"no difference can be told from noise; {few}, too few for any to show {beside}"
        least = math.ceil(round(found.detectable * 10**digits, 6)) / 10**digits
        runs = (
            "" if found.degrees_of_freedom is None else f" and {len(found.scores_b)} against {len(found.scores_a)} runs"
        )
        with_ = f"with {_sentences(found.sentences)}{runs} one of {least:.{digits}f} or more would show"
        return f"no difference can be told from noise; {with_} {beside}"
    gain, (low, high) = found.difference, found.interval
    if gain < 0:
        gain, low, high = -gain, -high, -low
    while low and round(low, digits) == 0 and digits < 6:  # an end that is not zero is not written as zero
        digits += 1
    name = b if found.better == found.b else a
    ends = f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−")
    return f"{name} is better by {gain:.{digits}f} {found.name} (95 %: {ends}, {p})"


def _digits(error: float) -> int:
    """Return how many decimals say something of a number with this standard error; one where it is no more than
    rounding."""
    return min(6, max(1, math.ceil(-math.log10(error)))) if error > 1e-9 else 1


def _sentences(count: int) -> str:
    return "1 sentence" if count == 1 else f"{count:,} sentences"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def _range(value: float, interval: tuple[float, float], digits: int) -> str:
    low, high = (_signed(one, digits) for one in interval)
    return f"{_signed(value, digits)}, 95 %: {low} to {high}"


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if not text.strip("+−0.") else text


def _score(measure: Measure, system: int) -> str:
    """Return the score of a system: the mean of its runs, and between which they are."""
    scores, digits = measure.of_runs(system), 2 if measure.signature else 4
    runs = f" ({min(scores):.{digits}f} to {max(scores):.{digits}f})" if len(scores) > 1 else ""
    return f"{fmean(scores):.{digits}f}{runs}"


# --- a terminal -----------------------------------------------------------------------------------------------------


def as_text(found: Found) -> Iterator[str]:
    """Yield lines for a terminal: scores, verdicts, where systems differ, signatures."""
    rows = [["", *(measure.name for measure in found.measures)]]
    for place, system in enumerate(found.systems):
        runs = f", {len(system.runs)} runs" if len(system.runs) > 1 else ""
        rows.append([f"{printable(system.name)}{runs}", *(_score(measure, place) for measure in found.measures)])
    yield from _columns(rows)
    several = len(found.systems) > 2
    for where in found.where:
        ours = [one for one in found.comparisons if one.b == where.b]
        yield ""
        corrected = f" (p corrected for {len(found.systems) - 1} comparisons, by Holm)" if several else ""
        yield f"{found.names[where.b]} against {found.names[0]}, {_sentences(ours[0].sentences)}{corrected}"
        names = [one.name for one in ours]
        for one in ours:
            yield f"  {one.name:<{max(map(len, names))}}  {verdict(one, found.names[0], found.names[where.b])}"
        yield from _where(found, where)
    yield ""
    if found.seeds_unknown:
        yield SEEDS
    for measure in found.measures:
        if measure.signature:
            yield f"{measure.name}: {measure.signature}"


def _where(found: Found, where: Where) -> Iterator[str]:
    groups = [group for several in where.groups.values() for group in several]
    width = max((len(group.name) for group in groups), default=0)
    names = found.names[0], found.names[where.b]
    if groups:
        yield f"  {where.name} of {names[1]} minus that of {names[0]} (95 % interval)"
    for by, several in where.groups.items():
        yield f"    by {by}"
        for group in several:
            yield f"      {group.name:<{width}}  {group.sentences:>7,} sentences  {_group(group)}"
    gains = [one for one in where.sentences if one.b is not None]
    if gains:
        yield f"  sentences that differ most, and what each adds to the difference{_first_runs(found, where)}"
    half = [one for one in gains if one.change > 0][:SHOWN], [one for one in gains if one.change < 0][-SHOWN:]
    labels = ["source", "reference", *(name if len(name) <= LABEL else f"…{name[1 - LABEL :]}" for name in names)]
    for one in sorted([*half[0], *half[1]], key=lambda one: -one.change):
        yield f"    line {one.line:,}: {_signed(one.change, 3)}"
        texts = zip(labels, (one.source, one.reference, one.a, one.b), strict=True)
        known = [(name, text) for name, text in texts if text is not None]
        for name, text in known:
            yield f"      {name:<{max(len(label) for label, _ in known)}}  {printable(short(text))}".rstrip()


def _first_runs(found: Found, where: Where) -> str:
    several = any(len(found.systems[place].runs) > 1 for place in (0, where.b))
    return "; translations are those of the first runs" * several


def _group(group: Group) -> str:
    digits = _digits((group.interval[1] - group.interval[0]) / 4)
    low, high = (_signed(one, digits) for one in group.interval)
    return f"{_signed(group.difference, digits):>6}  ({low} to {high})"


def _columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# --- JSON -----------------------------------------------------------------------------------------------------------


def as_json(found: Found) -> str:
    """Return one object: systems with their scores, `comparisons`, and where systems differ."""
    names = [system.name for system in found.systems]
    systems = [
        {
            "name": system.name,
            "runs": [str(run) for run in system.runs],
            "scores": {measure.metric: measure.of_runs(place) for measure in found.measures},
        }
        for place, system in enumerate(found.systems)
    ]
    comparisons = [
        {
            **asdict(one),
            "a": names[one.a],
            "b": names[one.b],
            "better": None if one.better is None else names[one.better],
            "verdict": verdict(one, names[one.a], names[one.b]),
        }
        for one in found.comparisons
    ]
    where = [{**asdict(one), "a": names[one.a], "b": names[one.b]} for one in found.where]
    tree = {
        "sentences": found.measures[0].sentences,
        "references": found.references,
        "signatures": {measure.metric: measure.signature for measure in found.measures if measure.signature},
        "systems": systems,
        "comparisons": comparisons,
        "where": where,
    }
    return json.dumps(tree, ensure_ascii=False, indent=2)


# --- a page ---------------------------------------------------------------------------------------------------------


def as_html(found: Found) -> str:
    """Return one page that needs no network: verdicts, differences with intervals as pictures, sentences."""
    rows = [
        [system.name, str(len(system.runs)), *(_score(measure, place) for measure in found.measures)]
        for place, system in enumerate(found.systems)
    ]
    parts = [table(["system", "runs", *(measure.name for measure in found.measures)], rows)]
    if found.seeds_unknown:
        parts.append(f"<p>{escaped(SEEDS)}</p>")
    for where in found.where:
        parts += _section(found, where)
    test = (
        "approximate randomization" if found.seeds_unknown else "a test of seeds and sentences where runs are several"
    )
    how = f"{_sentences(found.measures[0].sentences)}; two-sided tests at {LEVEL:.0%} by {test}; 95 % intervals."
    title = f"Is it better? {', '.join(found.names[:-1])} and {found.names[-1]}"
    signatures = [f"{measure.name}: {measure.signature}" for measure in found.measures if measure.signature]
    return page(title, [*parts, f"<h2>How it was tested</h2><p>{how}</p>", *listed(signatures)])


def _section(found: Found, where: Where) -> Iterator[str]:
    names = found.names[0], found.names[where.b]
    yield f"<h2>{escaped(names[1])} against {escaped(names[0])}</h2>"
    yield from listed(f"{one.name}: {verdict(one, *names)}" for one in found.comparisons if one.b == where.b)
    if len(found.systems) > 2:
        yield f"<p>p is corrected for {len(found.systems) - 1} comparisons, by Holm's method.</p>"
    for by, groups in where.groups.items():
        rows = [
            Row(f"{one.name} ({one.sentences:,})", one.difference, *one.interval, " ".join(_group(one).split()))
            for one in groups
        ]
        yield figure(f"{where.name} of {names[1]} minus that of {names[0]}, by {by}; 95 % intervals", intervals(rows))
    sentences = [
        [f"{one.line:,}", _signed(one.change, 3), *(text or "" for text in (one.source, one.reference, one.a, one.b))]
        for one in where.sentences
        if one.b is not None
    ]
    if sentences:
        yield f"<h3>Sentences that differ most{_first_runs(found, where)}</h3>"
        yield table(["line", "adds", "source", "reference", *names], sentences, "cards")


def listed(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts as a list."""
    yield f"<ul>{''.join(f'<li>{escaped(text)}</li>' for text in texts)}</ul>"
