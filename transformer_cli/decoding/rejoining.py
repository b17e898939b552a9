"""The translation of a line whose stretches were translated alone: what each must obey, and the whole. No torch.

`protecting` calls it, once `stretches` has cut a line at its protected text.
"""

from collections.abc import Sequence
from dataclasses import replace

from transformer_cli.decoding.confidence import Confidence
from transformer_cli.decoding.demands import TextDemands
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.stretches import SplitLine, join_stretches
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.text.protected import Span, cut_out, is_kept


def shared_out(demands: TextDemands, line: SplitLine) -> list[TextDemands]:
    """What each stretch that is translated must obey: none has forbidden words, the first begins with the prefix, and
    what is required goes to the first that holds it as it is, else to the first of all.
    """
    parts = [replace(demands, prefix="", required=()) for _ in line.spoken]
    if parts:
        parts[0] = replace(parts[0], prefix=demands.prefix)
    for text in demands.required if parts else ():
        place = next((place for place, spoken in enumerate(line.spoken) if text in spoken), 0)
        parts[place] = replace(parts[place], required=(*parts[place].required, text))
    return parts


def rejoined(
    line: SplitLine,
    parts: Sequence[Translation],
    spans: Sequence[Span],
    demands: TextDemands,
    options: SearchOptions,
    confidence: Confidence | None,
    alignments: bool,
) -> Translation | None:
    """A line from the translations of its spoken stretches; None where a protected text of `spans` is lost in it."""
    demanded = [wanted for wanted in (demands.prefix, *demands.required) if wanted.strip()]
    text = join_stretches(line, [part.text for part in parts], demanded)
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
    return Translation(source_tokens, [best])


def untranslated(text: str, spans: Sequence[Span], confidence: float | None, alignments: bool) -> Translation:
    """A line as it is, but for a glossary's terms, which become what they are to become."""
    stretches, fixed = cut_out(text, spans)
    whole = stretches[0] + "".join(own + rest for own, rest in zip(fixed, stretches[1:], strict=True))
    links = list(range(len(fixed))) if alignments else None
    return Translation(list(fixed), [Candidate(whole, 0.0, 0.0, list(fixed), links, True, confidence=confidence)])
