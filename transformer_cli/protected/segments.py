"""A line with protected text in pieces, for where one translation of the whole cannot be trusted. Pure; no torch.

`protecting` calls it: the stretches between protected texts are translated alone, and joined with those as they stood.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from transformer_cli.decoding.constraints import Constraints, Line
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.translation import Candidate, Confidence, Translation
from transformer_cli.protected.spans import Span, cut_out, find_spans, is_kept, uncapitalised

_LEAD = re.compile(r"[\W_]*")


class Stretch(NamedTuple):
    """A part of a line: what is translated, and punctuation and white space around it, which stay."""

    lead: str
    text: str
    trail: str


class SegmentedLine(NamedTuple):
    """Stretches, one more than protected texts, which stand between them."""

    stretches: list[Stretch]
    fixed: list[str]

    @property
    def spoken(self) -> list[str]:
        """What is to be translated."""
        return [stretch.text for stretch in self.stretches if stretch.text]


def segment_line(line: str, spans: Sequence[Span]) -> SegmentedLine:
    """Cut a line at its protected text."""
    stretches, fixed = cut_out(line, spans)
    return SegmentedLine([_stretch(text) for text in stretches], fixed)


def join_segments(line: SegmentedLine, translations: Sequence[str], demanded: Sequence[str] = ()) -> str:
    """The line with each spoken stretch replaced by its translation; what is `demanded` of those stays as it is."""
    rest = iter(translations)
    text = ""
    for stretch, fixed in zip(line.stretches, [*line.fixed, ""], strict=True):
        translation = _fitted(stretch, next(rest), tuple(demanded), first=not text) if stretch.text else ""
        text += stretch.lead + translation + stretch.trail + fixed
    return text


def _stretch(text: str) -> Stretch:
    lead = _LEAD.match(text)
    assert lead is not None, "it may match nothing"
    text = text[lead.end() :]
    return Stretch(lead[0], text.rstrip(), text[len(text.rstrip()) :])


def _fitted(stretch: Stretch, translation: str, demanded: tuple[str, ...], *, first: bool) -> str:
    """The translation of a part as part of a line: models begin with a capital, end in a full stop, and may make up
    what looks protected."""
    own = {span.text for span in find_spans(stretch.text)}  # beside its neighbours it was none: "%s" in "%shttps://"
    for span in reversed(find_spans(translation)):
        if span.text not in own:
            translation = translation[: span.start] + translation[span.end :]
    translation = " ".join(translation.split())
    if not first and stretch.text[0].islower() and not translation.startswith(demanded):
        translation = uncapitalised(translation)
    if not re.search(r"[.!?…]\W*\Z", stretch.text) and not translation.endswith(demanded):
        translation = translation.rstrip(".!?…")
    return translation


def segment_constraints(constraints: Constraints, line: SegmentedLine) -> list[Constraints]:
    """What each stretch that is translated must obey: none has forbidden words, the first begins with the prefix, and
    what is required goes to the first that holds it as it is, else to the first of all.
    """
    parts = [replace(constraints, prefix="", required=()) for _ in line.spoken]
    if parts:
        parts[0] = replace(parts[0], prefix=constraints.prefix)
    for text in constraints.required if parts else ():
        place = next((place for place, spoken in enumerate(line.spoken) if text in spoken), 0)
        parts[place] = replace(parts[place], required=(*parts[place].required, text))
    return parts


def merged(
    given: Line,
    line: SegmentedLine,
    parts: Sequence[Translation],
    spans: Sequence[Span],
    options: SearchOptions,
    confidence: Confidence | None,
    alignments: bool,
) -> Translation | None:
    """A line from the translations of its spoken stretches; None where a protected text of `spans` is lost in it."""
    demanded = [wanted for wanted in (given.constraints.prefix, *given.constraints.required) if wanted.strip()]
    text = join_segments(line, [part.text for part in parts], demanded)
    if not is_kept(text, spans):
        return None
    source_tokens: list[str] = []
    tokens: list[str] = []
    links: list[int] = []
    rest = iter(parts)
    for stretch, fixed in zip(line.stretches, [*line.fixed, None], strict=True):
        if stretch.text:
            part = next(rest)
            links += [len(source_tokens) + place for place in part.alignment or ()]
            source_tokens += part.source_tokens
            tokens += part.tokens
        if fixed is not None:
            links.append(len(source_tokens))
            source_tokens.append(fixed)
            tokens.append(fixed)
    log_probability = sum(part.hypotheses[0].log_probability for part in parts)
    own = " ".join(part.text for part in parts)
    best = Candidate(
        text,
        log_probability / options.penalty(len(tokens)),
        log_probability,
        tokens,
        links if alignments else None,
        ended=all(part.hypotheses[0].ended for part in parts),
        confidence=None if confidence is None else confidence.expect(own, log_probability),
    )
    return Translation(given, source_tokens, [best])


def untranslated(
    line: Line, text: str, spans: Sequence[Span], confidence: float | None, alignments: bool
) -> Translation:
    """A line as it is, but for a glossary's terms, which become what they are to become."""
    stretches, fixed = cut_out(text, spans)
    whole = stretches[0] + "".join(own + rest for own, rest in zip(fixed, stretches[1:], strict=True))
    links = list(range(len(fixed))) if alignments else None
    return Translation(line, list(fixed), [Candidate(whole, 0.0, 0.0, list(fixed), links, True, confidence=confidence)])
