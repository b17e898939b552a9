"""What `tfm doctor` found, as one page of HTML that needs no network and runs nothing."""

import html
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformer_cli.data.quality.judge import Judgement
from transformer_cli.doctor.findings import KINDS, Finding, Report
from transformer_cli.doctor.repairs import hint
from transformer_cli.doctor.report import numbers, percent, repair
from transformer_cli.report.page import figure, page, printable, short

Bar = tuple[str, str, int]  # what stands below it, what it is, how high it is

STYLE = """
:root { --bar: #2f74c0; --fault: #c62828; --line: #8886; }
@media (prefers-color-scheme: dark) { :root { --bar: #6ba6e8; --fault: #f06a6a; } }
h1, h2, p, td { overflow-wrap: anywhere; } h1 { line-height: 1.2; } h2 { margin-bottom: .5rem; }
td, th { padding: .3rem .6rem .3rem 0; } .count { white-space: nowrap; }
.serious::before { content: "●\\a0"; color: var(--fault); display: inline-block; }
.example td { font-size: .95em; } .example td + td { min-width: 6em; }
figcaption { font-size: .9em; } a { color: inherit; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 0 2rem; }
svg { display: block; width: 100%; max-width: none; } .strip { height: 1.75rem; outline: 1px solid var(--line); }
.bar { fill: var(--bar); } .fault { fill: var(--fault); } text { font: 10px system-ui, sans-serif; fill: currentColor; }
@media print { svg { max-width: none; } }
"""


def as_html(report: Report, title: str) -> str:
    """Return the page: what was found, each with examples and where in the file, and pictures of the corpora."""
    parts = [
        "<p>",
        "; ".join(
            f"{_text(name)}: {pairs:,} pairs" + (f" of {_text(report.files[name])}" if name in report.files else "")
            for name, pairs in report.pairs.items()
        ),
        "</p>",
        _contents(report) if report.findings else "<p>Nothing found that is wrong.</p>",
        *(_section(finding, report.pairs.get(finding.corpus, 0)) for finding in report.findings),
        *(_pictures(name, found) for name, found in report.judgements.items()),
    ]
    return page(printable(title), parts, STYLE)


def _text(text: str) -> str:
    return html.escape(printable(text))


def _contents(report: Report) -> str:
    rows = "".join(
        f'<tr><td><a href="#{_place(one)}"{_mark(one)}>{_text(one.kind)}</a></td><td>{_text(one.corpus)}</td>'
        f'<td class="count">{one.count:,}</td><td class="count">{percent(one.share) if one.lines else ""}</td></tr>'
        for one in report.findings
    )
    head = '<tr><th>what</th><th>where</th><th class="count">pairs</th><th class="count">share</th></tr>'
    legend = '<p><span class="serious"></span>do something before training</p>' if report.is_serious else ""
    return f"<table>{head}{rows}</table>{legend}"


def _place(finding: Finding) -> str:
    return html.escape(f"{finding.kind}-{finding.corpus}")


def _mark(finding: Finding) -> str:
    return ' class="serious"' if finding.is_serious else ""


def _section(finding: Finding, pairs: int) -> str:
    known = KINDS[finding.kind]
    share = f" ({percent(finding.share)})" if finding.lines else ""
    paragraphs = [f"{finding.count:,}{share}: {known.what}", finding.details]
    if finding.lines and not finding.details:
        paragraphs.append(f"Lines {numbers(finding.lines)}")
    paragraphs += [f"Cost: {finding.cost}", f"Do: {finding.advice}"]
    said = "<br>".join(_text(one) for one in paragraphs if one)
    tip = f"<p>{_text(advice)}</p>" if (advice := hint(finding.kind)) else ""
    where = _strip(finding, pairs) if finding.lines else ""
    return (
        f'<section><h2 id="{_place(finding)}"{_mark(finding)}>{_text(finding.kind)} in {_text(finding.corpus)}</h2>'
        f"<p>{said}</p>{where}{_examples(finding)}{tip}</section>"
    )


def _examples(finding: Finding) -> str:
    """Return a table of them, texts in their own direction."""
    rows = "".join(_row(f"{one['line']:,}", [one["source"], one["target"]], one) for one in finding.examples)
    head = '<tr><th class="count">line</th><th>source</th><th>target</th></tr>'
    return f"<table>{head}{rows}</table>" if rows else ""


def _row(head: str, texts: Sequence[str], example: dict[str, Any]) -> str:
    cells = "".join(f'<td dir="auto">{_text(short(text))}</td>' for text in texts)
    row = f'<tr class="example"><td class="count">{head}</td>{cells}</tr>'
    if "repair" in example:
        row += f'<tr class="example"><td>repair</td><td colspan="2" dir="auto">{html.escape(repair(example))}</td></tr>'
    return row


# --- pictures -----------------------------------------------------------------------------------------------------


def _pictures(name: str, found: Judgement) -> str:
    """Return what a corpus looks like."""
    lengths = [(_below(power), f"fewer than {1 << power:,}", found.lengths[power]) for power in _span(found.lengths)]
    every = len(_span(found.ratios)) <= 12
    ratios = [
        (ratio if every else "" if quarters % 4 else _power(quarters // 4), ratio, found.ratios[quarters])
        for quarters in _span(found.ratios)
        for ratio in [f"{2 ** (quarters / 4):.2g}"]
    ]
    used = [one for one in found.characters.most_common(31) if one[0] != " "][:30]
    named = [
        (one if one.isprintable() else "□", one if one.isprintable() else f"U+{ord(one):04X}", n) for one, n in used
    ]
    figures = [
        _bars("Pairs by the characters of their source", lengths),
        _bars("Pairs by the ratio of their lengths; 1 is what is usual", ratios),
        _bars("The characters that are used most", named),
    ]
    return f'<section><h2>{_text(name)}</h2><div class="pictures">{"".join(figures)}</div></section>'


def _below(power: int) -> str:
    return f"<{1 << power}" if power < 10 else f"<{1 << power - 10}k"


def _power(exponent: int) -> str:
    return str(2**exponent) if exponent >= 0 else f"1/{2**-exponent}"


def _span(counts: Counter[int], most: int = 33) -> range:
    """Return all values from the least to the largest, or those around 0 where they are too many."""
    return range(max(min(counts), -(most // 2)), min(max(counts), most // 2) + 1) if counts else range(0)


def _bars(caption: str, bars: Sequence[Bar], width: int = 360, height: int = 100) -> str:
    """Return a bar for each value, as SVG, with as many of the labels below as there is room for; the highest has its
    number."""
    if not bars:
        return ""
    step = width / len(bars)
    wide = max(len(tick) for tick, _, _ in bars) * 6 + 4
    every = math.ceil(wide / step) if all(tick for tick, _, _ in bars) else 1
    highest = max(range(len(bars)), key=lambda place: bars[place][2])
    most = max(1, bars[highest][2])
    drawn = []
    for place, (tick, what, count) in enumerate(bars):
        size, middle = height * count / most, (place + 0.5) * step
        drawn.append(
            f'<rect class="bar" x="{place * step + 0.5:.1f}" y="{height + 14 - size:.1f}" width="{step - 1:.1f}" '
            f'height="{size:.1f}"><title>{_text(what)}: {count:,}</title></rect>'
        )
        if tick and place % every == 0:
            drawn.append(_label(tick, middle, height + 26, width))
    drawn.append(_label(f"{most:,}", (highest + 0.5) * step, 10, width))
    what = f"{caption}. Most: {bars[highest][1]}, {most:,}; from {bars[0][1]} to {bars[-1][1]}."
    svg = f'<svg viewBox="0 0 {width} {height + 32}" role="img" aria-label="{_text(what)}">{"".join(drawn)}</svg>'
    return figure(caption, svg)


def _label(text: str, middle: float, y: int, width: int) -> str:
    """Return a label below or above the middle of a bar, or as near to it as the edges let it be."""
    half = 3 * len(text) + 1
    return f'<text x="{min(max(middle, half), width - half):.1f}" y="{y}" text-anchor="middle">{_text(text)}</text>'


def _strip(finding: Finding, pairs: int, regions: int = 100) -> str:
    """Return the file from its first to its last line as a strip, darker where more lines have the fault."""
    counts = [0] * regions
    for line in finding.lines:
        counts[min(regions - 1, (line - 1) * regions // max(1, pairs))] += 1
    most = max(counts)
    cells = "".join(
        f'<rect class="fault" x="{place}" width="1.02" height="1" fill-opacity="{0.15 + 0.85 * count / most:.2f}"/>'
        for place, count in enumerate(counts)
        if count
    )
    caption = f"Where in the file, from line 1 to line {pairs:,}"
    what = f"{caption}: in {sum(map(bool, counts))} of {regions} parts, most around line {_middle(counts, pairs):,}"
    svg = (
        f'<svg class="strip" viewBox="0 0 {regions} 1" role="img" preserveAspectRatio="none" aria-label="{what}">'
        f"{cells}</svg>"
    )
    return figure(caption, svg)


def _middle(counts: Sequence[int], pairs: int) -> int:
    """Return the line in the middle of the part that has most."""
    return int((counts.index(max(counts)) + 0.5) * pairs / len(counts)) + 1
