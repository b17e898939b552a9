"""A line with protected text in pieces, for where one translation of the whole cannot be trusted. Pure; no torch.

`protecting` calls it: the stretches between protected texts are translated alone, and joined with those as they stood.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from transformer_cli.text.glossary import uncapitalised
from transformer_cli.text.protected import Span, cut_out, find_spans

_LEAD = re.compile(r"[\W_]*")


class Stretch(NamedTuple):
    """A part of a line: what is translated, and punctuation and white space around it, which stay."""

    lead: str
    text: str
    trail: str


class SplitLine(NamedTuple):
    """Stretches, one more than protected texts, which stand between them."""

    stretches: list[Stretch]
    fixed: list[str]

    @property
    def spoken(self) -> list[str]:
        """What is to be translated."""
        return [stretch.text for stretch in self.stretches if stretch.text]


def split_line(line: str, spans: Sequence[Span]) -> SplitLine:
    """Cut a line at its protected text."""
    stretches, fixed = cut_out(line, spans)
    return SplitLine([_stretch(text) for text in stretches], fixed)


def join_stretches(line: SplitLine, translations: Sequence[str], demanded: Sequence[str] = ()) -> str:
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
