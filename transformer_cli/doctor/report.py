"""The findings of `tfm doctor` as text for a terminal, and as JSON."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from transformer_cli.doctor.findings import KINDS, Finding, Report, is_training
from transformer_cli.doctor.repairs import hint
from transformer_cli.report.page import printable, short

WIDTH = 80
INDENT = 22


def as_text(report: Report) -> Iterator[str]:
    """Yield lines for a terminal: the worst first."""
    for name, pairs in report.pairs.items():
        where = f"  {printable(report.files[name])}" if name in report.files else ""
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
    share = f" ({percent(finding.share)})" if finding.lines else ""
    corpus = "" if finding.corpus == "train" else f" in {finding.corpus}"
    yield from _wrapped(f"{finding.kind}", f"{finding.count:,}{share}{corpus}: {known.what}")
    if finding.details:
        yield from _wrapped("", finding.details)
    if finding.lines and finding.kind != "misaligned":  # whose regions stand there
        yield from _wrapped("", f"line{'s' * (len(finding.lines) > 1)} {numbers(finding.lines)}")
    if is_training(finding.corpus):
        yield from _wrapped("", f"cost: {finding.cost}")
    yield from _wrapped("", f"do: {finding.advice}")
    for example in finding.examples:
        for mark, side in ((f"{example['line']:,}", "source"), ("", "target")):
            yield f"{mark:>{INDENT - 2}}  {printable(short(example[side]))}".rstrip()
        if "repair" in example:
            yield f"{'repair':>{INDENT - 2}}  {repair(example)}"
    if (advice := hint(finding.kind)) is not None:
        yield from _wrapped("", advice)


def repair(example: dict[str, Any]) -> str:
    """Return damaged words with what they were."""
    return printable(short(", ".join(f"{damaged} → {whole}" for damaged, whole in example["repair"].items())))


def percent(share: float) -> str:
    """Return a share of pairs."""
    return f"{share:.1%}" if share >= 0.001 else f"{share:.2%}" if share >= 0.0001 else "less than 0.01%"


def _wrapped(head: str, text: str) -> list[str]:
    first, rest = f"  {head:<{INDENT - 2}}", " " * INDENT
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False)


def numbers(lines: list[int], most: int = 8) -> str:
    """Return the first line numbers of many."""
    shown = ", ".join(f"{line:,}" for line in lines[:most])
    return shown if len(lines) <= most else f"{shown}, … (all with --format json)"
