"""The findings of `tfm doctor` as text for a terminal, as JSON, and as one page of HTML."""

import html
import json
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

from transformer_cli.doctor.findings import KINDS, Finding, Report, is_training
from transformer_cli.doctor.repairs import hint

WIDTH = 80
INDENT = 22
SHOWN = 160  # characters of an example


def as_text(report: Report) -> Iterator[str]:
    """Yield lines for a terminal: the worst first."""
    for name, pairs in report.pairs.items():
        where = f"  {_printable(report.files[name])}" if name in report.files else ""
        yield f"{name:<10}{pairs:,} pairs{where}"
    if not report.findings:
        yield ""
        yield "Nothing found that is wrong."
    serious = [finding for finding in report.findings if finding.is_serious]
    rest = [finding for finding in report.findings if not finding.is_serious]
    for heading, findings in (("Serious: do something before training", serious), ("Worth a look", rest)):
        if findings:
            yield ""
            yield heading
            for finding in findings:
                yield ""
                yield from _finding(finding)


def as_json(report: Report) -> str:
    """Return one object: `pairs` of each corpus, and `findings`, with their `file` where there are several sources."""
    findings: list[dict[str, Any]] = [finding.as_json() for finding in report.findings]
    for one in findings:
        if report.files:  # which of several sources
            one["file"] = report.files.get(one["corpus"])
    return json.dumps({"pairs": report.pairs, "findings": findings}, ensure_ascii=False, indent=2)


def _finding(finding: Finding) -> Iterator[str]:
    known = KINDS[finding.kind]
    share = f" ({_percent(finding.share)})" if finding.lines else ""
    corpus = "" if finding.corpus == "train" else f" in {finding.corpus}"
    yield from _wrapped(f"{finding.kind}", f"{finding.count:,}{share}{corpus}: {known.what}")
    if finding.details:
        yield from _wrapped("", finding.details)
    if finding.lines and finding.kind != "misaligned":  # whose regions stand there
        yield from _wrapped("", f"lines {_numbers(finding.lines)}")
    if is_training(finding.corpus):
        yield from _wrapped("", f"cost: {known.cost}")
    yield from _wrapped("", f"do: {finding.advice}")
    for example in finding.examples:
        for mark, side in ((f"{example['line']:,}", "source"), ("", "target")):
            yield f"{mark:>{INDENT - 2}}  {_printable(_short(example[side]))}".rstrip()
        if "repair" in example:
            yield f"{'repair':>{INDENT - 2}}  {_repair(example)}"
    if (advice := hint(finding.kind)) is not None:
        yield from _wrapped("", advice)


def _repair(example: dict[str, Any]) -> str:
    """Return damaged words with what they were."""
    return _printable(_short(", ".join(f"{damaged} → {whole}" for damaged, whole in example["repair"].items())))


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}" if share >= 0.0001 else "less than 0.01%"


def _wrapped(head: str, text: str) -> list[str]:
    first, rest = f"  {head:<{INDENT - 2}}", " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def _numbers(lines: list[int], most: int = 8) -> str:
    """Return the first line numbers of many."""
    shown = ", ".join(f"{line:,}" for line in lines[:most])
    return shown if len(lines) <= most else f"{shown}, … (all with --format json)"


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() or (one.isspace() and one > " ") else f"\\x{ord(one):02x}" for one in text)


# --- a page -------------------------------------------------------------------------------------------------------

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem; vertical-align: top; } tr + tr td { border-top: 1px solid #8884; }
.count { text-align: right; font-variant-numeric: tabular-nums; } svg { max-width: 100%; height: auto; }
section { margin: 2rem 0; } .serious h2::before { content: "● "; color: #c33; }
code { font-size: .95em; } .example td { font-size: .95em; overflow-wrap: anywhere; } figure { margin: 1rem 0; }
"""


def as_html(report: Report, title: str) -> str:
    """Return one page that needs no network: findings with examples, and pictures of where they are."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1><p>",
        "; ".join(
            f"{html.escape(name)}: {pairs:,} pairs"
            + html.escape(f" of {file}" if (file := report.files.get(name)) else "")
            for name, pairs in report.pairs.items()
        ),
        "</p>",
    ]
    for name, found in report.judgements.items():
        lengths = {f"<{1 << power}": found.lengths[power] for power in _span(found.lengths)}
        ratios = {f"{2 ** (quarters / 4):.2g}": found.ratios[quarters] for quarters in _span(found.ratios)}
        used = {one if one.isprintable() else f"U+{ord(one):X}": n for one, n in found.characters.most_common(41)}
        used.pop(" ", None)
        parts.append(_figure(f"{name}: pairs by the characters of their source", _bars(lengths)))
        parts.append(_figure(f"{name}: pairs by the ratio of their lengths; 1 is what is usual", _bars(ratios)))
        parts.append(_figure(f"{name}: the characters that are used most", _bars(used)))
    for finding in report.findings:
        parts.append(_section(finding, report.pairs.get(finding.corpus, 0)))
    if not report.findings:
        parts.append("<p>Nothing found that is wrong.</p>")
    return "\n".join([*parts, "</body></html>"]) + "\n"


def _section(finding: Finding, pairs: int) -> str:
    known = KINDS[finding.kind]
    rows = "".join(
        f'<tr class="example"><td class="count">{example["line"]:,}</td>'
        f'<td dir="auto">{html.escape(_printable(_short(example["source"])))}</td>'
        f'<td dir="auto">{html.escape(_printable(_short(example["target"])))}</td></tr>'
        + (_repair_row(example) if "repair" in example else "")
        for example in finding.examples
    )
    table = f"<table><tr><th>line</th><th>source</th><th>target</th></tr>{rows}</table>" if rows else ""
    where = _figure("where in the file", _strip(finding.lines, pairs)) if finding.lines else ""
    tip = f"<p>{html.escape(advice)}</p>" if (advice := hint(finding.kind)) else ""
    heading = f"{finding.kind} in {html.escape(finding.corpus)}"
    count = f"{finding.count:,} ({_percent(finding.share)})" if finding.lines else f"{finding.count:,}"
    details = f" {html.escape(finding.details)}." if finding.details else ""
    return (
        f'<section class="{"serious" if finding.is_serious else "look"}"><h2>{heading}</h2>'
        f"<p>{count}: {html.escape(known.what)}.{details}</p>"
        f"<p>Cost: {html.escape(known.cost)}.<br>Do: {html.escape(finding.advice)}.</p>{where}{table}{tip}</section>"
    )


def _repair_row(example: dict[str, Any]) -> str:
    return f'<tr class="example"><td>repair</td><td colspan="2" dir="auto">{html.escape(_repair(example))}</td></tr>'


def _span(counts: Counter[int], most: int = 33) -> range:
    """Return all values from the least to the largest, or those around 0 where they are too many."""
    return range(max(min(counts), -(most // 2)), min(max(counts), most // 2) + 1) if counts else range(0)


def _figure(caption: str, svg: str) -> str:
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>"


def _bars(values: dict[str, int], width: int = 640, height: int = 120) -> str:
    """Return a bar for each value, labels below, as SVG."""
    most = max([1, *values.values()])
    step = width / max(1, len(values))
    bars = "".join(
        f'<rect x="{place * step + 1:.1f}" y="{height - 100 * count / most:.1f}" width="{step - 2:.1f}" '
        f'height="{100 * count / most:.1f}" fill="#48c"><title>{html.escape(label)}: {count:,}</title></rect>'
        f'<text x="{(place + 0.5) * step:.1f}" y="{height + 14}" font-size="10" text-anchor="middle" '
        f'fill="currentColor">{html.escape(label)}</text>'
        for place, (label, count) in enumerate(values.items())
    )
    return f'<svg viewBox="0 0 {width} {height + 20}" role="img">{bars}</svg>'


def _strip(lines: list[int], pairs: int, regions: int = 100, width: int = 640, height: int = 28) -> str:
    """Return the file from its first to its last line as a strip, darker where more lines have the fault."""
    counts = [0] * regions
    for line in lines:
        counts[min(regions - 1, (line - 1) * regions // max(1, pairs))] += 1
    most, step = max(counts), width / regions
    cells = "".join(
        f'<rect x="{place * step:.1f}" y="0" width="{step:.1f}" height="{height}" fill="#c33" '
        f'fill-opacity="{count / most:.2f}"/>'
        for place, count in enumerate(counts)
        if count
    )
    frame = f'<rect x="0" y="0" width="{width}" height="{height}" fill="none" stroke="#8888"/>'
    return f'<svg viewBox="0 0 {width} {height}" role="img">{cells}{frame}</svg>'
