"""The findings of `tfm doctor` as text for a terminal, as JSON, as filters for a config, and as one page of HTML."""

import html
import json
import re
import textwrap
from collections import Counter
from collections.abc import Iterator

from transformer_cli.config.yaml_file import dump_flow, dump_tree, parse_tree
from transformer_cli.doctor.findings import KINDS, Finding, Report
from transformer_cli.report.page import figure, page, printable, short

WIDTH = 80
INDENT = 22


def as_text(report: Report) -> Iterator[str]:
    """Yield lines for a terminal: the worst first."""
    for name, pairs in report.pairs.items():
        yield f"{name:<10}{pairs:,} pairs"
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
    """Return one object: `pairs` of each corpus, and `findings`."""
    findings = [finding.as_json() for finding in report.findings]
    return json.dumps({"pairs": report.pairs, "findings": findings}, ensure_ascii=False, indent=2)


def filters(report: Report) -> list[str | dict[str, float]]:
    """Return the `data.filters` that leave out what should not be trained on, and nothing that may be right."""
    found = [one.kind for one in report.findings if one.corpus == "train" and one.lines and one.kind in FILTERED]
    return [
        {kind: round(report.judgements["train"].length_ratio, 2)} if kind == "length_ratio" else kind for kind in found
    ]


def as_yaml(kinds: list[str | dict[str, float]]) -> str:
    """Return the lines of a config's `data` section that filter these kinds."""
    return f"  filters: {dump_flow(kinds)}\n"


def filtered_config(text: str, where: str, kinds: list[str | dict[str, float]]) -> str:
    """Return a config's text with these filters beside those that it has.

    Comments stay, unless the section is written in another way than one key per line; then all is written anew.
    """
    tree = parse_tree(text, where)
    own = list(tree["data"].get("filters") or [])
    named = {kind if isinstance(kind, str) else next(iter(kind)) for kind in own}  # whose own thresholds stay
    tree["data"]["filters"] = own + [
        kind for kind in kinds if (kind if isinstance(kind, str) else next(iter(kind))) not in named
    ]
    key = re.search(r"^data:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*([ \t]+)", text, re.MULTILINE)
    if key is not None:
        rest = re.sub(
            rf"^{key[1]}filters:.*\n(?:{key[1]}[ \t]+.*\n|{key[1]}-.*\n)*", "", text[key.start() :], count=1, flags=re.M
        )
        line = f"{key[1]}filters: {dump_flow(tree['data']['filters'])}\n"
        start = rest.index("\n") + 1
        changed = text[: key.start()] + rest[:start] + line + rest[start:]
        if parse_tree(changed, where) == tree:
            return changed
    return dump_tree(tree)


# What may be natural, and what training leaves out anyway, is not filtered unasked.
FILTERED = (
    "misaligned",
    "swapped_sides",
    "identical_sides",
    "wrong_language",
    "overlap_test",
    "overlap_valid",
    "length_ratio",
    "encoding_damage",
    "control_characters",
    "markup",
    "number_mismatch",
    "url_mismatch",
    "mixed_scripts",
    "duplicate_pair",
    "template",
)


def _finding(finding: Finding) -> Iterator[str]:
    known = KINDS[finding.kind]
    share = f" ({_percent(finding.share)})" if finding.lines else ""
    corpus = "" if finding.corpus == "train" else f" in {finding.corpus}"
    yield from _wrapped(f"{finding.kind}", f"{finding.count:,}{share}{corpus}: {known.what}")
    if finding.details:
        yield from _wrapped("", finding.details)
    if finding.lines and finding.kind != "misaligned":  # whose regions stand there
        yield from _wrapped("", f"lines {_numbers(finding.lines)}")
    if finding.corpus == "train":
        yield from _wrapped("", f"cost: {known.cost}")
    yield from _wrapped("", f"do: {finding.advice}")
    for example in finding.examples:
        for mark, side in ((f"{example['line']:,}", "source"), ("", "target")):
            yield f"{mark:>{INDENT - 2}}  {printable(short(example[side]))}".rstrip()


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}" if share >= 0.0001 else "less than 0.01%"


def _wrapped(head: str, text: str) -> list[str]:
    first, rest = f"  {head:<{INDENT - 2}}", " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def _numbers(lines: list[int], most: int = 8) -> str:
    """Return the first line numbers of many."""
    shown = ", ".join(f"{line:,}" for line in lines[:most])
    return shown if len(lines) <= most else f"{shown}, … (all with --format json)"


# --- a page -------------------------------------------------------------------------------------------------------


def as_html(report: Report, title: str) -> str:
    """Return one page that needs no network: findings with examples, and pictures of where they are."""
    parts = ["<p>", "; ".join(f"{html.escape(name)}: {pairs:,} pairs" for name, pairs in report.pairs.items()), "</p>"]
    for name, found in report.judgements.items():
        lengths = {f"<{1 << power}": found.lengths[power] for power in _span(found.lengths)}
        ratios = {f"{2 ** (quarters / 4):.2g}": found.ratios[quarters] for quarters in _span(found.ratios)}
        used = {one if one.isprintable() else f"U+{ord(one):X}": n for one, n in found.characters.most_common(41)}
        used.pop(" ", None)
        parts.append(figure(f"{name}: pairs by the characters of their source", _bars(lengths)))
        parts.append(figure(f"{name}: pairs by the ratio of their lengths; 1 is what is usual", _bars(ratios)))
        parts.append(figure(f"{name}: the characters that are used most", _bars(used)))
    for finding in report.findings:
        parts.append(_section(finding, report.pairs[finding.corpus]))
    if not report.findings:
        parts.append("<p>Nothing found that is wrong.</p>")
    return page(title, parts)


def _section(finding: Finding, pairs: int) -> str:
    known = KINDS[finding.kind]
    rows = "".join(
        f'<tr class="example"><td class="count">{example["line"]:,}</td>'
        f'<td dir="auto">{html.escape(printable(short(example["source"])))}</td>'
        f'<td dir="auto">{html.escape(printable(short(example["target"])))}</td></tr>'
        for example in finding.examples
    )
    table = f"<table><tr><th>line</th><th>source</th><th>target</th></tr>{rows}</table>" if rows else ""
    where = figure("where in the file", _strip(finding.lines, pairs)) if finding.lines else ""
    heading = f"{finding.kind} in {html.escape(finding.corpus)}"
    count = f"{finding.count:,} ({_percent(finding.share)})" if finding.lines else f"{finding.count:,}"
    details = f" {html.escape(finding.details)}." if finding.details else ""
    return (
        f'<section class="{"serious" if finding.is_serious else "look"}"><h2>{heading}</h2>'
        f"<p>{count}: {html.escape(known.what)}.{details}</p>"
        f"<p>Cost: {html.escape(known.cost)}.<br>Do: {html.escape(finding.advice)}.</p>{where}{table}</section>"
    )


def _span(counts: Counter[int], most: int = 33) -> range:
    """Return all values from the least to the largest, or those around 0 where they are too many."""
    return range(max(min(counts), -(most // 2)), min(max(counts), most // 2) + 1) if counts else range(0)


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
