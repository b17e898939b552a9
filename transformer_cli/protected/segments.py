"""A line with protected text in segments, for where one translation of the whole cannot be trusted. Pure; no torch.

`Protector` calls it: the text between protected texts is translated alone, and joined with those as they stood.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from transformer_cli.decoding.constraints import NO_CONSTRAINTS, Constraints, Line
from transformer_cli.decoding.translation import Candidate, Confidence, Translation, joined_candidate
from transformer_cli.protected.spans import Span, cut_out, find_spans, uncapitalised
from transformer_cli.search_options import SearchOptions

_LEAD = re.compile(r"[\W_]*")


class Segment(NamedTuple):
    """A part of a line: what is translated, what stays around it, and the protected text after that."""

    lead: str  # punctuation and white space
    text: str
    trail: str
    fixed: str  # "" after the last segment


def segment_line(line: str, spans: Sequence[Span]) -> list[Segment]:
    """Cut a line at its protected text."""
    segments = []
    for text, fixed in cut_out(line, spans):
        start = _LEAD.match(text).end()  # type: ignore[union-attr]  # it may match nothing
        end = max(start, len(text.rstrip()))
        segments.append(Segment(text[:start], text[start:end], text[end:], fixed))
    return segments


def segment_lines(segments: Sequence[Segment], constraints: Constraints) -> list[Line]:
    """Return what is to be translated of segments, with what it must obey.

    Words are forbidden in all, the first begins with the prefix, and what is required goes to the first that holds it
    as it is, else to the first of all.
    """
    texts = [segment.text for segment in segments if segment.text]
    required: list[list[str]] = [[] for _ in texts]
    for text in constraints.required if texts else ():
        required[next((place for place, own in enumerate(texts) if text in own), 0)].append(text)
    return [
        Line(text, replace(constraints, prefix="" if place else constraints.prefix, required=tuple(own)))
        for place, (text, own) in enumerate(zip(texts, required, strict=True))
    ]


def join_segments(
    segments: Sequence[Segment], translations: Sequence[str], constraints: Constraints = NO_CONSTRAINTS
) -> str:
    """Join translations of the segments that have text with what stays; prefix and required texts stay as they are."""
    rest = iter(translations)
    kept = tuple(text for text in (constraints.prefix, *constraints.required) if text.strip())
    joined = ""
    for segment in segments:
        translation = _fitted(segment.text, next(rest), kept, first=not joined) if segment.text else ""
        joined += segment.lead + translation + segment.trail + segment.fixed
    return joined


def _fitted(source: str, translation: str, kept: tuple[str, ...], *, first: bool) -> str:
    """Return the translation of a segment as part of a line.

    Models begin with a capital, end in a full stop, and may make up what looks protected.
    """
    own = {span.text for span in find_spans(source)}  # beside its neighbours it was none: "%s" in "%shttps://"
    for span in reversed(find_spans(translation)):
        if span.text not in own:
            translation = translation[: span.start] + translation[span.end :]
    translation = " ".join(translation.split())
    if not first and source[0].islower() and not translation.startswith(kept):
        translation = uncapitalised(translation)
    if not re.search(r"[.!?…]\W*\Z", source) and not translation.endswith(kept):
        translation = translation.rstrip(".!?…")
    return translation


def joined_translation(
    line: Line,
    segments: Sequence[Segment],
    parts: Sequence[Translation],
    options: SearchOptions,
    alignments: bool,
    confidence: Confidence | None,
) -> Translation:
    """Return the translation of a line from those of the segments that have text; they make its confidence."""
    source_tokens: list[list[str]] = []
    candidates: list[Candidate] = []
    rest = iter(parts)
    for segment in segments:
        if segment.text:
            part = next(rest)
            source_tokens.append(part.source_tokens)
            candidates.append(part.hypotheses[0])
        if segment.fixed:
            source_tokens.append([segment.fixed])
            candidates.append(Candidate(segment.fixed, 0.0, 0.0, [segment.fixed], [0], ended=True))
    text = join_segments(segments, [part.text for part in parts], line.constraints)
    best = joined_candidate(text, candidates, [*map(len, source_tokens)], options, alignments)
    if confidence is not None:
        own = " ".join(part.text for part in parts)
        best = replace(best, confidence=confidence.expect(own, best.log_probability))
    return Translation(line, [token for tokens in source_tokens for token in tokens], [best])
