"""What the pages of HTML have in common: one file, no network, nothing that runs, readable on a phone and on paper.

`doctor` and `report` make pages of these parts. What they take as text is escaped here; what they return is HTML.
"""

import html
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"  # no script, no request: a browser holds the page to it
SHOWN = 160  # characters of an example
COLOURS = ("#48c", "#d60", "#2a6", "#a4c", "#c33", "#888")
NUMBER = re.compile(r"[+−-]?\d[\d.,]*( \(.*\)| to \d.*)?$")
MOST_POINTS = 300  # of a line
DOTS = 40  # at most on a line

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem; vertical-align: top; } tr + tr td { border-top: 1px solid #8884; }
td.count, th.count { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: min(100%, 40rem); height: auto; } figure { margin: 1rem 0; } code { font-size: .95em; }
.wide { overflow-x: auto; } .legend span { display: inline-block; margin-right: 1rem; } pre { overflow-x: auto; }
code { overflow-wrap: anywhere; }
@media (max-width: 40rem) {
  .cards tr, .cards td { display: block; } .cards tr:has(th), .cards td:empty { display: none; }
  .cards td, .cards td.count { padding: .1rem 0; text-align: left; overflow-wrap: anywhere; }
  .cards td[data-label]::before { content: attr(data-label) ": "; color: #888; }
  .cards tr { border-top: 1px solid #8884; padding: .4rem 0; } .cards tr + tr td { border: 0; }
}
@media print {
  body { max-width: none; margin: 0; font-size: 11px; } svg { max-width: 28rem; }
  tr, figure { break-inside: avoid; } h2, h3 { break-after: avoid; }
}
"""


def page(title: str, parts: Sequence[str], style: str = "") -> str:
    """Return a whole page of parts in HTML below its title, which is text; style: more, for this page."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f'<meta http-equiv="Content-Security-Policy" content="{NOTHING_ELSE}">',
            f"<title>{escaped(title)}</title><style>{STYLE}{style}</style></head><body>",
            f"<h1>{escaped(title)}</h1>",
            *parts,
            "</body></html>\n",
        ]
    )


def figure(caption: str, svg: str) -> str:
    """Return a picture with its caption, which is text."""
    return f"<figure><figcaption>{escaped(caption)}</figcaption>{svg}</figure>"


class Row(NamedTuple):
    """A line of `intervals`."""

    name: str
    value: float
    low: float
    high: float
    said: str  # all that in words; the first of them, the value, stands beside the line


def intervals(rows: Sequence[Row], width: int = 440) -> str:
    """Return for each row a line from `low` to `high` and a dot at its value, as SVG; a line down at zero."""
    low, high = min(0.0, *(row.low for row in rows)), max(0.0, *(row.high for row in rows))
    left, height = 7 * max(len(row.name) for row in rows) + 10, 24 * len(rows) + 2
    scale = (width - 60 - left) / ((high - low) or 1.0)
    drawn = [f'<path d="M{left - low * scale:.1f},0V{height}" stroke="currentColor" stroke-dasharray="2 3"/>']
    for number, row in enumerate(rows):
        middle = 24 * number + 13
        start, end, dot = (left + (value - low) * scale for value in (row.low, row.high, row.value))
        drawn += [
            svg_text(left - 10, middle + 4, row.name, "end"),
            f'<path d="M{start:.1f},{middle}H{end:.1f}" stroke="#48c" stroke-width="3"/>',
            f'<circle cx="{dot:.1f}" cy="{middle}" r="5" fill="#48c"/>',
            svg_text(width, middle + 4, row.said.split()[0], "end"),
        ]
    return svg(width, height, "; ".join(f"{row.name}: {row.said}" for row in rows), "".join(drawn))


def curves(lines: Mapping[str, Sequence[tuple[int, float]]], unit: str, width: int = 480, height: int = 180) -> str:
    """Return lines over steps as SVG, each in a colour of its own; points that are not finite are left out.

    unit: of the y axis. Each line has a finite point.
    """
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in lines.items()}
    values = [value for points in finite.values() for _, value in points]
    low, high = min(values), max(values)
    last = max(step for points in finite.values() for step, _ in points) or 1
    top, bottom, left, right = 10, height - 30, 70, width - 10

    def y(value: float) -> float:
        return bottom - (bottom - top) * ((value - low) / (high - low) if high > low else 0.5)

    drawn, alt = [], [unit]
    for number, (name, points) in enumerate(finite.items()):
        colour, kept = COLOURS[number % len(COLOURS)], points[:: max(1, len(points) // MOST_POINTS)] + points[-1:]
        at = [(left + (right - left) * step / last, y(value)) for step, value in kept]
        way = " ".join(f"{across:.1f},{down:.1f}" for across, down in at)
        drawn.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        dots = at if len(at) <= DOTS else []
        drawn += [f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{colour}"/>' for across, down in dots]
        ends = (f"{value:.3g} at step {step:,}" for step, value in (points[0], points[-1]))
        alt.append(f"{name}: {' to '.join(ends)}")
    marks = [svg_text(left - 6, y(value) + 4, f"{value:.3g}", "end") for value in dict.fromkeys((low, high))]
    marks += [svg_text(left, height - 10, "0"), svg_text(right, height - 10, f"step {last:,}", "end")]
    names = [
        f'<span><svg width="18" height="8" aria-hidden="true"><rect width="18" height="4" y="2" '
        f'fill="{COLOURS[number % len(COLOURS)]}"/></svg> {escaped(name)}</span>'
        for number, name in enumerate(finite)
    ]
    legend = f'<p class="legend">{" ".join(names)}</p>' if len(names) > 1 else ""
    frame = f'<path d="M{left},{top}V{bottom}H{right}" fill="none" stroke="#8888"/>'
    return svg(width, height, "; ".join(alt), "".join([frame, *marks, *drawn])) + legend


def heat_map(rows: Sequence[str], columns: Sequence[str], weights: Sequence[Sequence[float]], alt: str) -> str:
    """Return a cell for each row and column as SVG, darker where its weight, 0 to 1, is larger."""
    cell, left, top = 20, 8 * max(map(len, rows)) + 10, 7 * max(map(len, columns)) + 10
    drawn = [svg_text(left - 4, top + cell * y + 14, row, "end") for y, row in enumerate(rows)]
    for x, column in enumerate(columns):
        at = left + cell * x + 14
        drawn.append(svg_text(at, top - 4, column, "start", f' transform="rotate(-60 {at} {top - 4})"'))
    drawn += [
        f'<rect x="{left + cell * x}" y="{top + cell * y}" width="{cell - 1}" height="{cell - 1}" fill="#48c" '
        f'fill-opacity="{weight:.2f}"><title>{escaped(f"{row} ← {columns[x]}: {weight:.2f}")}</title></rect>'
        for y, row in enumerate(rows)
        for x, weight in enumerate(weights[y])
        if weight >= 0.005
    ]
    width, height = left + cell * len(columns) + 40, top + cell * len(rows) + 4
    return svg(width, height, alt, "".join(drawn), f' style="width: {width}px"')


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """Return a table of texts without its empty columns; columns of numbers stand to the right.

    kind: `cards`, whose rows are a block each on a phone; others scroll where they are too wide.
    """
    head, rows = in_use(head, rows)
    right = [all(NUMBER.match(cell) for cell in cells if cell) for cells in zip(*rows, strict=True)]

    def cell(tag: str, place: int, text: str) -> str:
        label = f' data-label="{escaped(head[place])}"' if tag == "td" and head[place] else ""
        side = ' class="count"' if right[place] else ' dir="auto"'
        shown = escaped(text) if tag == "td" else escaped(text).replace(".", ".<wbr>").replace("_", "_<wbr>")
        return f"<{tag}{side}{label}>{shown}</{tag}>"

    lines = [("th", head)] * any(head) + [("td", row) for row in rows]
    body = "".join(f"<tr>{''.join(cell(tag, *one) for one in enumerate(row))}</tr>" for tag, row in lines)
    return f'<div class="wide"><table class="{kind}">{body}</table></div>'


def in_use(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Return a table without the columns that are empty in every row."""
    kept = [place for place in range(len(head)) if any(row[place] for row in rows)]
    return [head[place] for place in kept], [[row[place] for place in kept] for row in rows]


def svg(width: float, height: float, alt: str, drawn: str, more: str = "") -> str:
    """Return a picture; alt: what it shows, in words."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escaped(alt)}"{more}>{drawn}</svg>'


def svg_text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    """Return a text in a picture."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" text-anchor="{anchor}" fill="currentColor"{more}>'
        f"{escaped(text)}</text>"
    )


def duration(seconds: float) -> str:
    """Return `40 s`, `12 min` or `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def short(text: str) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def escaped(text: str) -> str:
    """Return a text as HTML."""
    return html.escape(printable(text))


def printable(text: str) -> str:
    """Return a text with its control characters and line ends written out; spaces of all widths stay."""
    return "".join(
        one if one.isprintable() or unicodedata.category(one) == "Zs" else f"\\x{ord(one):02x}" for one in text
    )
