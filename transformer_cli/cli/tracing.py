"""`tfm translate --trace`: a sentence's way through the model, printed stage by stage."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from transformer_cli.cli.arguments import check_apart
from transformer_cli.cli.output import note
from transformer_cli.cli.settings import Settings
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.decoding.tracing import Choice, Stage, Step, Trace

WIDTH = 96  # columns of a table of tokens


def check_trace(text: Sequence[str] | None, engine: str, **others: object) -> None:
    """Raise `UserError` for options that a trace does not go with, where they are given (neither None nor False)."""
    check_apart("--trace", True, **{name: None if value is False else value for name, value in others.items()})
    if engine == "ctranslate2":
        raise UserError("--engine ctranslate2 and --trace exclude each other: only torch shows what is inside")
    if not text:
        raise UserError("--trace: missing TEXT; give a sentence to follow, in quotation marks")


def print_traces(settings: Settings, text: Sequence[str], *, quiet: bool) -> None:
    """Follow each sentence, an empty line between two."""
    settings.check()
    loaded = replace(settings, engine="torch").load()
    from transformer_cli.decoding.tracing import trace

    traces = [trace(loaded.translator, one, loaded.options, protect=settings.protect) for one in text]
    print("\n\n".join("\n".join(trace_lines(traced)) for traced in traces))
    for warning in [] if quiet else loaded.notes:
        note(f"warning: {warning}")


def trace_lines(traced: "Trace") -> Iterator[str]:
    """A trace as it is printed: numbered stages, with the shapes of tensors and some of their values."""
    source, target = len(traced.ids), len(traced.steps)
    size = traced.encoder[-1].shape[-1]
    yield f"B = 1 sentence, S = {source} source tokens, T = {target} target tokens, D = {size} dimensions (d_model)"
    yield from _headed("1. text", [_visible(traced.text)])
    yield from _headed("2. words", [" | ".join(map(_visible, traced.words))])
    yield from _headed("3. tokens and their ids", _columns(traced.tokens, traced.ids), f"(B, S) = (1, {source})")
    embedding = [stage for stage in traced.encoder if "layer" not in stage.name and stage.name != "memory"]
    layers = [stage for stage in traced.encoder if stage not in embedding]
    root = f"√d_model = {traced.scale:.2f}"
    yield from _headed(f"4. embedding and positions, {root}", _stages(embedding))
    yield from _headed("5. encoder", _stages(layers))
    yield from _headed("6. decoder, first step: what it sees of the target is <s>, so T = 1", _stages(traced.decoder))
    steps = (line for number, step in enumerate(traced.steps, start=1) for line in _step(number, step))
    title = f"7. decoding: the most probable next tokens; > is the one that {_search(traced.options)} took"
    yield from _headed(title, steps)
    best = traced.translation
    score = f"log-probability {best.log_probability:.3f}, score {best.score:.3f}"
    names = [step.taken.token for step in traced.steps]
    yield from _headed("8. ids of the translation", _columns(names, traced.target_ids), score)
    yield from _headed("9. text", [best.text])


def _headed(title: str, lines: Iterator[str] | Sequence[str], remark: str = "") -> Iterator[str]:
    yield ""
    yield f"{title}  {remark}".rstrip()
    for line in lines:
        yield f"   {line}".rstrip()


def _stages(stages: Sequence["Stage"]) -> Iterator[str]:
    """A line for each tensor: name, axes, shape, and how its first row begins."""
    if not stages:
        return
    names, axes, shapes = (
        [stage.name for stage in stages],
        [f"({stage.axes})" if stage.axes else "" for stage in stages],
        [f"({', '.join(map(str, stage.shape))})" for stage in stages],
    )
    widths = [max(map(len, column)) for column in (names, axes, shapes)]
    for stage, *cells in zip(stages, names, axes, shapes, strict=True):
        values = " ".join(f"{value:7.3f}" for value in stage.first)
        more = " …" if len(stage.first) < stage.shape[-1] else ""
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + f"  {values}{more}"


def _step(number: int, step: "Step") -> Iterator[str]:
    """What was written so far, and what may come next; > marks what search took."""
    yield f"{number:>2}  {_end([_visible(token) for token in step.so_far], WIDTH - 4)}"
    shown = "  ".join(_choice(choice, taken=choice.id == step.taken.id) for choice in step.best)
    if step.rank > len(step.best):
        shown += f"  … {_choice(step.taken, taken=True)} (place {step.rank})"
    yield f"    {shown}"


def _choice(choice: "Choice", *, taken: bool) -> str:
    return f"{'>' if taken else ' '}{_visible(choice.token)} {choice.probability:.3f}"


def _columns(tokens: Sequence[str], ids: Sequence[int]) -> Iterator[str]:
    """Tokens with their ids below, in as many pairs of lines as it takes."""
    from rich.cells import cell_len  # a Chinese character takes two columns

    above = below = ""
    for token, index in zip(map(_visible, tokens), map(str, ids), strict=True):
        width = max(cell_len(token), len(index)) + 2
        if above and len(below) + width > WIDTH:
            yield from (above, below)
            above = below = ""
        above += token + " " * (width - cell_len(token))
        below += index.ljust(width)
    yield from (above, below)


def _search(options: "SearchOptions") -> str:
    if options.method == "beam" and options.beam_size > 1:
        return f"the best hypothesis of beam search ({options.beam_size} beams)"
    return "greedy search"


def _end(tokens: list[str], width: int) -> str:
    """As many of the last tokens as one line takes; one at least."""
    text = " ".join(tokens)
    while len(text) > width and len(tokens) > 1:
        tokens = tokens[1:]
        text = " ".join(["…", *tokens])
    return text


def _visible(token: str) -> str:
    """A token without what would steer the terminal."""
    return "".join(one if one.isprintable() else f"<U+{ord(one):04X}>" for one in token)
