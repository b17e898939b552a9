"""What is inside a model, as text: its parts as a tree (`tfm inspect`), a sentence's way (`tfm translate --trace`)."""

import json
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from transformer_cli.cli.options import JSON, Model, option
from transformer_cli.cli.streams import align, warn
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.inside.architecture import Part, Weight
    from transformer_cli.inside.trace import Choice, Position, Refinement, Stage, Step, Trace
    from transformer_cli.jobs.translating import TranslationOptions
    from transformer_cli.search_options import SearchOptions

LENGTH = 25  # tokens: about a sentence of news
WIDTH = 116  # columns of a trace that is not printed to a terminal
NOT_TRACED = (  # options of `tfm translate` that --trace does not go with
    *("input_file", "output_file", "format_", "sample", "prefix", "require", "forbid", "constraints", "mbr", "with_"),
    *("glossary", "n_best", "scores", "alignments", "min_confidence", "stream", "jobs"),
)

Row = tuple[str, ...]  # of a table
Section = tuple[str, Iterable[str]]  # of a trace: a title and lines


def inspect(
    model: Model,
    source_length: int = option(
        "--source-length S", "Source tokens of the sentence, </s> included.", LENGTH, min=1, max=4096
    ),
    target_length: int = option(
        "--target-length T", "Target tokens of the sentence, <s> included.", LENGTH, min=1, max=4096
    ),
    depth: int | None = option("--depth N", "Show this many levels of parts.  [default: all]", min=1, max=100),
    json_output: bool = JSON,
) -> None:
    """Show a model's parts, shapes, parameters and compute.

    \b
    tfm inspect checkpoints/my
    tfm inspect checkpoints/my --source-length 100 --target-length 100 --depth 2
    tfm inspect checkpoints/my --json

    A tree of the model's parts by their names in the code, each with its class, the shapes of its weights, its
    parameters and its multiply-adds, and the share that they are of the whole model's. Parts that are alike are shown
    once, with the numbers of each. A matrix that several parts share is counted with the first of them; the others
    are marked as tied.

    Multiply-adds are counted in a real pass of the model over one sentence, encoder and decoder once over all its
    tokens, as training does: n·m per token for a linear layer from n to m dimensions, and T·S·H·(d_k + d_v) for
    attention of T positions to S in H heads (Q times K, then the weights times V), the whole square whether masked
    or not. Sums, norms, activations and look-ups are not counted.
    """
    from transformer_cli.storage.run_folder import find_model

    find_model(model)  # before the seconds that loading torch takes
    from transformer_cli.build import load_model
    from transformer_cli.inside.architecture import inspect_model

    loaded = load_model(model)
    tree = inspect_model(loaded.model, source_length, target_length)
    if json_output:
        lengths = {"source_length": source_length, "target_length": target_length}
        print(json.dumps({"model": str(model), **lengths, **as_object(tree, tree)}))
        return
    for line in lines(tree, source_length, target_length, depth):
        print(line)


def lines(tree: "Part", source_length: int, target_length: int, depth: int | None = None) -> Iterator[str]:
    """Yield the tree as it is printed, under its columns."""
    header = ("part", "weights", "parameters", "", "multiply-adds", "")
    rows = [header, _row(tree.kind, tree, tree), *_below(tree, tree, "", depth)]
    yield from align(rows, left=2)
    yield ""
    for name in dict.fromkeys(_tied(tree)):
        yield f"tied: the same as {name}, and counted there"
    yield f"multiply-adds: of one sentence with {source_length:,} source and {target_length:,} target tokens"


def as_object(part: "Part", whole: "Part") -> dict[str, Any]:
    """Return a part and all below it for JSON."""
    return {
        "name": part.name,
        "path": part.path,
        "class": part.kind,
        "parameters": part.parameters,
        "parameters_share": _share(part.parameters, whole.parameters),
        "multiply_adds": part.multiply_adds,
        "multiply_adds_share": _share(part.multiply_adds, whole.multiply_adds),
        "own_multiply_adds": part.own_multiply_adds,
        "weights": [asdict(weight) for weight in part.weights],
        "parts": [as_object(inner, whole) for inner in part.parts],
    }


def _below(part: "Part", whole: "Part", indent: str, depth: int | None) -> Iterator[Row]:
    """Yield the rows of what is in a part, so many levels deep."""
    if depth == 0:
        return
    shown = [inner for inner in part.parts if _holds_anything(inner)]
    if shown and part.own_multiply_adds:
        count, share = f"{part.own_multiply_adds:,}", _percent(part.own_multiply_adds, whole.multiply_adds)
        yield f"{indent}├─ products of its own", "", "", "", count, share
    # Layers have numbers; of parts with names of their own each is shown.
    alike = [
        list(group) for _, group in groupby(shown, key=lambda one: (_content(one), one.name.isdigit() or one.name))
    ]
    for number, group in enumerate(alike, start=1):
        first, last = group[0], group[-1]
        is_last = number == len(alike)
        name = f"{first.name}: {first.kind}"
        if len(group) > 1:
            name = f"{first.name} … {last.name}: {len(group)} × {first.kind}, each"
        yield _row(f"{indent}{'└─' if is_last else '├─'} {name}", first, whole)
        yield from _below(first, whole, f"{indent}{'   ' if is_last else '│  '}", None if depth is None else depth - 1)


def _tied(part: "Part") -> Iterator[str]:
    """Yield what the tied weights in a part are tied to."""
    yield from (weight.tied_to for weight in part.weights if weight.tied_to is not None)
    for inner in part.parts:
        yield from _tied(inner)


def _holds_anything(part: "Part") -> bool:
    """Return whether a part has tensors or multiplies; dropout does neither."""
    return bool(part.weights or part.multiply_adds or any(map(_holds_anything, part.parts)))


def _content(part: "Part") -> object:
    """Return all that is shown of a part but its name."""
    return part.kind, part.weights, part.own_multiply_adds, tuple((one.name, _content(one)) for one in part.parts)


def _row(name: str, part: "Part", whole: "Part") -> Row:
    numbers = []
    for count, of in ((part.parameters, whole.parameters), (part.multiply_adds, whole.multiply_adds)):
        numbers += [f"{count:,}" if count else "", _percent(count, of)]
    return name, ", ".join(map(_weight, part.weights)), *numbers


def _weight(weight: "Weight") -> str:
    shape = "×".join(map(str, weight.shape)) or "1"
    mark = " (tied)" if weight.tied_to is not None else " (not trained)" if weight.constant else ""
    return f"{weight.name} {shape}{mark}"


def _share(count: int, of: int) -> float:
    return round(count / of, 6) if of else 0.0


def _percent(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if count else ""


# --- tfm translate --trace --------------------------------------------------------------------------------------------


def check_trace(context: typer.Context) -> None:
    """Raise `UserError` where the command line of `tfm translate --trace` lacks TEXT, or has more than goes with it."""
    given = context.params
    for one in context.command.params:
        if one.name in NOT_TRACED and given[one.name] not in (None, (), one.default):
            raise UserError(f"{one.opts[0]} and --trace exclude each other: leave one out")
    if given["engine"] == "ctranslate2":
        raise UserError("--engine ctranslate2 and --trace exclude each other: only torch shows what is inside")
    if not given["text"]:
        raise UserError("--trace: missing TEXT; give a sentence to follow, in quotation marks")


def print_traces(options: "TranslationOptions", text: Sequence[str], *, quiet: bool) -> None:
    """Print the trace of each sentence, an empty line between two."""
    loaded = options.load()
    from transformer_cli.inside.trace import trace

    traces = [trace(loaded.translator, one, options.search_options, protect=options.protect) for one in text]
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    print("\n\n".join("\n".join(trace_lines(traced, width)) for traced in traces))
    if not quiet:
        warn(*loaded.notes)


def trace_lines(traced: "Trace", width: int) -> Iterator[str]:
    """Yield a trace as it is printed: numbered stages, with the shapes of tensors and as many values as fit."""
    room = width - 3
    source, size = len(traced.ids), traced.encoder[-1].shape[-1]
    embedding = [stage for stage in traced.encoder if "layer" not in stage.name and stage.name != "memory"]
    layers = [stage for stage in traced.encoder if stage not in embedding]
    best = traced.translation
    score = f"log-probability {best.log_probability:.3f}, score {best.score:.3f}"
    sections: list[Section] = [
        ("text", [_visible(traced.text)]),
        ("words", [" | ".join(map(_visible, traced.words))]),
        (f"tokens and their ids  (B, S) = (1, {source})", _columns(room, traced.tokens, map(str, traced.ids))),
        (f"embedding and positions, √d_model = {size**0.5:.2f}", _stages(embedding, room)),
        ("encoder", _stages(layers, room)),
        *(_steps if isinstance(traced.search, list) else _passes)(traced, room),
        (
            f"ids of the translation{_kept(traced.search)}  {score}",
            _columns(room, traced.target_tokens, map(str, traced.target_ids)),
        ),
        ("text", [best.text]),
    ]
    positions = len(traced.search) if isinstance(traced.search, list) else traced.search.positions
    written = "tokens" if positions == len(traced.target_ids) else "positions"
    yield f"B = 1 sentence, S = {source} source tokens, T = {positions} target {written}, D = {size} (d_model)"
    for number, (title, lines) in enumerate(sections, start=1):
        yield ""
        yield from textwrap.wrap(f"{number}. {title}", max(width, 40), subsequent_indent="   ")
        for line in lines:
            yield f"   {line}".rstrip()


def _steps(traced: "Trace", room: int) -> Iterator[Section]:
    """Yield the decoder token by token."""
    assert isinstance(traced.search, list)
    yield "decoder, first step: what it sees of the target is <s>, so T = 1", _stages(traced.decoder, room)
    lines = (line for number, step in enumerate(traced.search, start=1) for line in _step(number, step, room))
    yield f"decoding: the most probable next tokens; > is the one that {_search(traced.options)} took", lines


def _passes(traced: "Trace", room: int) -> Iterator[Section]:
    """Yield the decoder pass by pass."""
    from transformer_cli.inside.trace import MASKED

    search = traced.search
    assert not isinstance(search, list)
    if search.lengths:
        counts = [f"{'>' * (length == search.positions)}{length}" for length, _ in search.lengths]
        tried = _columns(room, counts, (f"{chance:.3f}" for _, chance in search.lengths))
        yield "length: how many tokens the target may have, how probable; > is the one whose translation won", tried
    masked = f"all T = {search.positions} positions are masked ({MASKED})"
    yield f"decoder, first pass: {masked}", _stages(traced.decoder, room)
    count = f"{len(search.passes)} passes" if len(search.passes) > 1 else "one pass"
    lines = (line for number, one in enumerate(search.passes, start=1) for line in _pass(number, one, MASKED, room))
    yield f"decoding in {count}: what the decoder sees, what it writes in the place of {MASKED}, how probable", lines


def _pass(number: int, positions: Sequence["Position"], masked: str, room: int) -> Iterator[str]:
    seen = [masked if one.masked else one.token.token for one in positions]
    written = [one.token.token if one.masked else "" for one in positions]
    chances = [f"{one.token.probability:.2f}" if one.masked else "" for one in positions]
    for place, line in enumerate(_columns(room - 4, seen, written, chances)):
        yield f"{number if place == 0 else '':>2}  {line}"


def _kept(search: "list[Step] | Refinement") -> str:
    """Return what became of the positions that the translation lacks."""
    if isinstance(search, list):
        return ""
    upto = "" if search.lengths else ", read up to the first </s>"
    tokens = "token" if search.left_out == 1 else "tokens"
    return upto + (f", {search.left_out} repeated {tokens} left out" if search.left_out else "")


def _stages(stages: Sequence["Stage"], room: int) -> list[str]:
    """Return a line for each tensor: name, axes, shape, and how its first row begins, in as many values as fit."""
    heads = [(stage.name, f"({stage.axes})" if stage.axes else "", f"({_commas(stage.shape)})") for stage in stages]
    taken = sum(max(map(len, column)) + 2 for column in zip(*heads, strict=True)) + len(" …")
    count = max(1, (room - taken + 1) // 8)
    rows = []
    for stage, head in zip(stages, heads, strict=True):
        first = stage.first[:count]
        more = " …" if len(first) < stage.shape[-1] else ""
        rows.append((*head, " ".join(f"{value:7.3f}" for value in first) + more))
    return align(rows, left=len(heads[0]) + 1)


def _commas(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _step(number: int, step: "Step", room: int) -> Iterator[str]:
    """Yield what was written so far, and what may come next, as far as it fits; > marks what search took."""
    yield f"{number:>2}  {_end([_visible(token) for token in step.so_far], room - 4)}"
    best = [_choice(choice, taken=choice.id == step.taken.id) for choice in step.best]
    last = f"  … {_choice(step.taken, taken=True)} (place {step.rank})" if step.rank > len(step.best) else ""
    while len(best) > max(step.rank if not last else 1, 1) and _cells("  ".join(best) + last) > room - 4:
        best.pop()
    yield f"    {'  '.join(best)}{last}"


def _choice(choice: "Choice", *, taken: bool) -> str:
    return f"{'>' if taken else ' '}{_visible(choice.token)} {choice.probability:.3f}"


def _columns(width: int, *rows: Iterable[str]) -> Iterator[str]:
    """Yield tokens with what belongs to them below, in as many groups of lines as it takes."""
    lines, filled = [""] * len(rows), 0
    for cells in zip(*rows, strict=True):
        shown = [_visible(cell) for cell in cells]
        widest = max(map(_cells, shown))
        if filled and filled + widest > width:
            yield from lines
            lines, filled = [""] * len(rows), 0
        lines = [line + cell + " " * (widest + 2 - _cells(cell)) for line, cell in zip(lines, shown, strict=True)]
        filled += widest + 2
    yield from lines


def _cells(text: str) -> int:
    """Return the columns that a text takes on a terminal: a Chinese character takes two."""
    from rich.cells import cell_len

    return cell_len(text)


def _search(options: "SearchOptions") -> str:
    if options.method == "beam" and options.beam_size > 1:
        return f"the best hypothesis of beam search ({options.beam_size} beams)"
    return "greedy search"


def _end(tokens: list[str], width: int) -> str:
    """Return as many of the last tokens as one line takes; one at least."""
    text = " ".join(tokens)
    while _cells(text) > width and len(tokens) > 1:
        tokens = tokens[1:]
        text = " ".join(["…", *tokens])
    return text


def _visible(token: str) -> str:
    """Return a token without what would steer the terminal."""
    return "".join(one if one.isprintable() else f"<U+{ord(one):04X}>" for one in token)
