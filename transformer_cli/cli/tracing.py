"""`tfm translate --trace`: a sentence's way through the model, printed stage by stage."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_cli.cli.options import check_apart
from transformer_cli.cli.streams import note
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.decoding.options import SearchOptions
    from transformer_cli.inside.trace import Choice, Position, Refinement, Stage, Step, Trace
    from transformer_cli.jobs.translating import TranslationOptions

WIDTH = 96  # columns of a table of tokens

Section = tuple[str, Iterable[str]]  # a title and lines


def check_trace(text: Sequence[str] | None, engine: str, **others: object) -> None:
    """Raise `UserError` for options that a trace does not go with, where they are given (neither None nor False)."""
    check_apart("--trace", True, **{name: None if value is False else value for name, value in others.items()})
    if engine == "ctranslate2":
        raise UserError("--engine ctranslate2 and --trace exclude each other: only torch shows what is inside")
    if not text:
        raise UserError("--trace: missing TEXT; give a sentence to follow, in quotation marks")


def print_traces(options: "TranslationOptions", text: Sequence[str], *, quiet: bool) -> None:
    """Print the trace of each sentence, an empty line between two."""
    loaded = options.load()
    from transformer_cli.inside.trace import trace

    traces = [trace(loaded.translator, one, options.search_options, protect=options.protect) for one in text]
    print("\n\n".join("\n".join(trace_lines(traced)) for traced in traces))
    for warning in [] if quiet else loaded.notes:
        note(f"warning: {warning}")


def trace_lines(traced: "Trace") -> Iterator[str]:
    """Yield a trace as it is printed: numbered stages, with the shapes of tensors and some of their values."""
    source, size = len(traced.ids), traced.encoder[-1].shape[-1]
    embedding = [stage for stage in traced.encoder if "layer" not in stage.name and stage.name != "memory"]
    layers = [stage for stage in traced.encoder if stage not in embedding]
    best = traced.translation
    score = f"log-probability {best.log_probability:.3f}, score {best.score:.3f}"
    sections: list[Section] = [
        ("text", [_visible(traced.text)]),
        ("words", [" | ".join(map(_visible, traced.words))]),
        (f"tokens and their ids  (B, S) = (1, {source})", _columns(traced.tokens, map(str, traced.ids))),
        (f"embedding and positions, √d_model = {traced.scale:.2f}", _stages(embedding)),
        ("encoder", _stages(layers)),
        *(_steps(traced, traced.search) if isinstance(traced.search, list) else _passes(traced, traced.search)),
        (
            f"ids of the translation{_kept(traced.search)}  {score}",
            _columns(traced.target_tokens, map(str, traced.target_ids)),
        ),
        ("text", [best.text]),
    ]
    positions = len(traced.search) if isinstance(traced.search, list) else traced.search.positions
    written = "tokens" if positions == len(traced.target_ids) else "positions"
    yield (
        f"B = 1 sentence, S = {source} source tokens, T = {positions} target {written}, D = {size} dimensions (d_model)"
    )
    for number, (title, lines) in enumerate(sections, start=1):
        yield ""
        yield f"{number}. {title}"
        for line in lines:
            yield f"   {line}".rstrip()


def _steps(traced: "Trace", steps: Sequence["Step"]) -> Iterator[Section]:
    """Yield the decoder token by token."""
    yield "decoder, first step: what it sees of the target is <s>, so T = 1", _stages(traced.decoder)
    lines = (line for number, step in enumerate(steps, start=1) for line in _step(number, step))
    yield f"decoding: the most probable next tokens; > is the one that {_search(traced.options)} took", lines


def _passes(traced: "Trace", search: "Refinement") -> Iterator[Section]:
    """Yield the decoder pass by pass."""
    from transformer_cli.inside.trace import MASKED

    if search.lengths:
        counts = [f"{'>' * (length == search.positions)}{length}" for length, _ in search.lengths]
        tried = _columns(counts, (f"{chance:.3f}" for _, chance in search.lengths))
        yield "length: how many tokens the target may have, how probable; > is the one whose translation won", tried
    masked = f"all T = {search.positions} positions are masked ({MASKED})"
    yield f"decoder, first pass: {masked}", _stages(traced.decoder)
    count = f"{len(search.passes)} passes" if len(search.passes) > 1 else "one pass"
    lines = (line for number, one in enumerate(search.passes, start=1) for line in _pass(number, one, MASKED))
    yield f"decoding in {count}: what the decoder sees, what it writes in the place of {MASKED}, how probable", lines


def _pass(number: int, positions: Sequence["Position"], masked: str) -> Iterator[str]:
    seen = [masked if one.masked else one.token.token for one in positions]
    written = [one.token.token if one.masked else "" for one in positions]
    chances = [f"{one.token.probability:.2f}" if one.masked else "" for one in positions]
    for place, line in enumerate(_columns(seen, written, chances, width=WIDTH - 4)):
        yield f"{number if place == 0 else '':>2}  {line}"


def _kept(search: "list[Step] | Refinement") -> str:
    """Return what became of the positions that the translation lacks."""
    if isinstance(search, list):
        return ""
    upto = "" if search.lengths else ", read up to the first </s>"
    tokens = "token" if search.left_out == 1 else "tokens"
    return upto + (f", {search.left_out} repeated {tokens} left out" if search.left_out else "")


def _stages(stages: Sequence["Stage"]) -> Iterator[str]:
    """Yield a line for each tensor: name, axes, shape, and how its first row begins."""
    rows = [
        (stage.name, f"({stage.axes})" if stage.axes else "", f"({', '.join(map(str, stage.shape))})")
        for stage in stages
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for stage, row in zip(stages, rows, strict=True):
        values = " ".join(f"{value:7.3f}" for value in stage.first)
        more = " …" if len(stage.first) < stage.shape[-1] else ""
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + f"  {values}{more}"


def _step(number: int, step: "Step") -> Iterator[str]:
    """Yield what was written so far, and what may come next; > marks what search took."""
    yield f"{number:>2}  {_end([_visible(token) for token in step.so_far], WIDTH - 4)}"
    shown = "  ".join(_choice(choice, taken=choice.id == step.taken.id) for choice in step.best)
    if step.rank > len(step.best):
        shown += f"  … {_choice(step.taken, taken=True)} (place {step.rank})"
    yield f"    {shown}"


def _choice(choice: "Choice", *, taken: bool) -> str:
    return f"{'>' if taken else ' '}{_visible(choice.token)} {choice.probability:.3f}"


def _columns(*rows: Iterable[str], width: int = WIDTH) -> Iterator[str]:
    """Yield tokens with what belongs to them below, in as many groups of lines as it takes."""
    from rich.cells import cell_len  # a Chinese character takes two columns

    lines, filled = [""] * len(rows), 0
    for cells in zip(*rows, strict=True):
        shown = [_visible(cell) for cell in cells]
        widest = max(map(cell_len, shown)) + 2
        if filled and filled + widest > width:
            yield from lines
            lines, filled = [""] * len(rows), 0
        lines = [line + cell + " " * (widest - cell_len(cell)) for line, cell in zip(lines, shown, strict=True)]
        filled += widest
    yield from lines


def _search(options: "SearchOptions") -> str:
    if options.method == "beam" and options.beam_size > 1:
        return f"the best hypothesis of beam search ({options.beam_size} beams)"
    return "greedy search"


def _end(tokens: list[str], width: int) -> str:
    """Return as many of the last tokens as one line takes; one at least."""
    text = " ".join(tokens)
    while len(text) > width and len(tokens) > 1:
        tokens = tokens[1:]
        text = " ".join(["…", *tokens])
    return text


def _visible(token: str) -> str:
    """Return a token without what would steer the terminal."""
    return "".join(one if one.isprintable() else f"<U+{ord(one):04X}>" for one in token)
