"""The trace of a sentence: the tensors that the parts of a model return while it runs, and how its tokens are chosen.

`tfm translate --trace` prints it; pictures of mask-predict attention follow the same search.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transformer_cli.decoding.engines.torch_engine import TorchEngine, evaluating
from transformer_cli.decoding.pipeline import search_again
from transformer_cli.decoding.translation import Candidate
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import DecoderOutput
from transformer_cli.protected.spans import find_spans
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK, all_masked
from transformer_cli.variants.mask_predict.search import RefinementTrace

SHOWN = 5  # values of a tensor, next tokens of a step


@dataclass(frozen=True)
class Stage:
    """A tensor that one part of the model returned."""

    name: str
    axes: str  # what its dimensions are, such as B, S, D
    shape: tuple[int, ...]
    first: tuple[float, ...]  # the first values of its first row


@dataclass(frozen=True)
class Choice:
    """A token, and its probability in its place."""

    token: str
    id: int
    probability: float


class Output(NamedTuple):
    """What a part of the model returns, or one of several tensors that it returns."""

    path: str  # of the module; *: each layer
    name: str
    axes: str


# The first layer is looked into, of the others only what comes out.
ENCODER = (
    Output("source_embedding.tokens.table", "embedding", "B, S, D"),
    Output("source_embedding.tokens", "times √d_model", "B, S, D"),
    Output("source_embedding.positions", "positions", "S, D"),
    Output("source_embedding", "both added", "B, S, D"),
    Output("encoder.rotary", "rotation: cosines", "S, d_k"),
    Output("encoder.rotary", "rotation: sines", "S, d_k"),
    Output("encoder.layers.0.self_attention.query", "layer 1: queries", "B, S, H·d_k"),
    Output("encoder.layers.0.self_attention.key_value", "layer 1: keys, values", "B, S, H·(d_k+d_v)"),
    Output("encoder.layers.0.self_attention.key", "layer 1: keys", "B, S, H·d_k"),  # of attention with a `value_dim`
    Output("encoder.layers.0.self_attention.value", "layer 1: values", "B, S, H·d_v"),
    Output("encoder.layers.0.self_attention", "layer 1: self-attention", "B, S, D"),
    Output("encoder.layers.0.self_attention", "layer 1: its weights", "B, H, S, S"),
    Output("encoder.layers.0.feed_forward.gate", "layer 1: feed-forward, gate", "B, S, d_ff"),
    Output("encoder.layers.0.feed_forward.inner", "layer 1: feed-forward, inner", "B, S, d_ff"),
    Output("encoder.layers.0.feed_forward", "layer 1: feed-forward", "B, S, D"),
    Output("encoder.layers.*", "layer {}", "B, S, D"),
    Output("encoder", "memory", "B, S, D"),
)
DECODER = (
    Output("target_embedding.tokens", "embedding, times √d_model", "B, T, D"),
    Output("target_embedding.positions", "positions", "T, D"),
    Output("target_embedding", "both added", "B, T, D"),
    Output("decoder.rotary", "rotation: cosines", "T, d_k"),
    Output("decoder.rotary", "rotation: sines", "T, d_k"),
    Output("decoder.layers.0.self_attention", "layer 1: self-attention", "B, T, D"),
    Output("decoder.layers.0.self_attention", "layer 1: its weights", "B, H, T, T"),
    Output("decoder.layers.0.cross_attention", "layer 1: cross-attention", "B, T, D"),
    Output("decoder.layers.0.cross_attention", "layer 1: its weights", "B, H, T, S"),
    Output("decoder.layers.0.feed_forward", "layer 1: feed-forward", "B, T, D"),
    Output("decoder.layers.*", "layer {}", "B, T, D"),
    Output("decoder", "hidden", "B, T, D"),
    Output("generator", "log-probabilities", "B, T, V"),
)


@contextmanager
def recorded(model: nn.Module, outputs: Sequence[Output]) -> Iterator[list[Stage]]:
    """Record what these parts make inside the block, in the order of the work; parts that a variant lacks are left out.

    Outputs with the same path are the tensors that the module returns, in their order.
    """
    stages: list[Stage] = []

    def record(named: Sequence[tuple[str, str]], _: nn.Module, __: object, output: Any) -> None:
        if isinstance(output, DecoderOutput):
            output = output.hidden
        tensors = (output,) if isinstance(output, Tensor) else output
        for (name, axes), tensor in zip(named, tensors, strict=False):
            if isinstance(tensor, Tensor):
                fits = axes.count(",") == tensor.dim() - 1
                first = tensor.flatten(0, -2)[0, :SHOWN].float().tolist()
                stages.append(Stage(name, axes if fits else "", tuple(tensor.shape), tuple(first)))

    hooks = []
    for path, module in model.named_modules():
        parent, _, last = path.rpartition(".")
        number = int(last) + 1 if last.isdigit() else 0
        named = [(one.name.format(number), one.axes) for one in outputs if one.path in (path, f"{parent}.*")]
        if named and not (isinstance(module, Embedding) and module.positions is None):  # then nothing is added
            hooks.append(module.register_forward_hook(partial(record, named)))
    try:
        yield stages
    finally:
        for hook in hooks:
            hook.remove()


MASKED = "▢"  # what stands for the mask token


@dataclass(frozen=True)
class Position:
    """A position of the target after a pass."""

    masked: bool  # in this pass, and so predicted; else the decoder saw the token
    token: Choice  # with the probability that it had when it was predicted


@dataclass(frozen=True)
class Refinement:
    """All passes of a search that predicts every position at once."""

    lengths: list[tuple[int, float]]  # that were tried, in tokens, and the probability of each; none for one_shot
    positions: int  # of the translation that won; of one_shot the canvas
    passes: list[list[Position]]
    left_out: int  # tokens that the translation lacks, because they repeat what is before them


def trace_refinement(
    engine: NonAutoregressiveEngine, source: Sequence[int], target: Sequence[int], options: SearchOptions
) -> RefinementTrace:
    """Return the search by which the translator found `target` for `source`, which has tokens, with these options."""
    found, again = engine.trace(source, options), search_again(options)
    if found.hypothesis.ids != [*target] and again is not None:  # the translator's guard has searched again
        found = engine.trace(source, again)
    assert found.hypothesis.ids == [*target], "a search that was not made"
    return found


def _refinement(found: RefinementTrace, names: Sequence[str], *, predicted: bool) -> Refinement:
    """Return all passes with names for the ids; `predicted`: the length was, before any token."""
    counts, probabilities = found.lengths.tokens[0].tolist(), found.lengths.log_probability[0].exp().tolist()
    length = counts[found.chosen]
    passes = []
    for one in found.passes:
        columns = (one.seen, one.tokens.ids, one.tokens.log_probability.exp())  # (1, T) each
        rows = zip(*(values[0, :length].tolist() for values in columns), strict=True)
        passes.append([Position(seen == MASK, Choice(names[index], index, value)) for seen, index, value in rows])
    read = length if predicted else found.places[-1] + 1
    lengths = list(dict(zip(counts, probabilities, strict=True)).items()) if predicted else []
    return Refinement(lengths, length, passes, read - len(found.places))


@dataclass(frozen=True)
class Step:
    """One token of the translation."""

    so_far: list[str]  # <s> and the tokens before it
    best: list[Choice]  # most probable first
    taken: Choice
    rank: int  # of the one taken, from 1


@dataclass(frozen=True)
class Trace:
    """A sentence's way through a model."""

    text: str
    words: list[str]  # what tokens are cut from, after lowercasing and normalisation
    tokens: list[str]  # then </s>
    ids: list[int]  # of the tokens, </s> too
    encoder: list[Stage]
    decoder: list[Stage]  # of the first step, or pass
    options: SearchOptions
    search: list[Step] | Refinement  # token by token, or pass by pass
    target_tokens: list[str]  # then </s>, unless search was cut at its length limit, or the length is predicted
    target_ids: list[int]
    translation: Candidate


def trace(translator: Translator, text: str, options: SearchOptions | None = None, *, protect: bool = False) -> Trace:
    """Translate a sentence as `Translator` does, and follow it and its best translation through the model.

    protect: refuse a sentence with text that `Protector` would keep away from the model. Raises `UserError` for that,
    and for a sentence without tokens or too long for one piece.
    """
    codecs, engine = translator.codecs, translator.engine
    assert isinstance(engine, TorchEngine | NonAutoregressiveEngine), "only torch shows what is inside"
    options = options or SearchOptions.from_config(translator.config.decoding)
    line = one_line(text)
    (read,) = translator.tagged([line])  # what the model reads is shown, its tag too
    source_ids = _source_ids(translator, line, protect)
    best = translator.translate_batch([text], options, alignments=False)[0].hypotheses[0]
    ids = codecs.lookup_target(best.tokens, read)
    writes_end = best.ended and not (isinstance(engine, NonAutoregressiveEngine) and engine.predicts_length)
    target_ids = [*ids, *([EOS] if writes_end else [])]
    source = torch.tensor([[*source_ids, EOS]], device=engine.device)  # (B, S)
    source_mask = padding_mask(source)
    model = engine.model
    tokens = [*codecs.source.tokenize(read), SPECIALS[EOS]]
    names = [*codecs.target.vocabulary.get_itos(), *tokens]  # ids past the vocabulary copy a source token
    with evaluating(model), torch.inference_mode():
        with recorded(model, ENCODER) as encoder:
            states = model.source_embedding(source)  # (B, S, D)
            memory = model.encoder(states, source_mask, need_weights=True)[0]
        search: list[Step] | Refinement
        if isinstance(engine, NonAutoregressiveEngine):
            found = trace_refinement(engine, source_ids, ids, options)
            search = _refinement(found, names, predicted=engine.predicts_length)
            begun = all_masked(torch.tensor([search.positions], device=engine.device), search.positions)
        else:
            search = list(_steps(engine, source, memory, target_ids, names))
            begun = torch.full((1, 1), BOS, device=engine.device)
        with recorded(model, DECODER) as decoder:
            output = model.decode(begun, memory, source_mask, need_weights=True)
            model.generator(output, source)
            if codecs.copies:
                decoder[-1] = replace(decoder[-1], axes="B, T, V+S")
    return Trace(
        text=text,
        words=list(codecs.source.tokenizer.words(codecs.source.preparation(read))),
        tokens=tokens,
        ids=source[0].tolist(),
        encoder=encoder,
        decoder=decoder,
        options=options,
        search=search,
        target_tokens=[names[index] for index in target_ids],
        target_ids=target_ids,
        translation=best,
    )


def _source_ids(translator: Translator, line: str, protect: bool) -> list[int]:
    """Return the ids of a sentence that goes into the model as it is and at once; else a `UserError`."""
    spans = find_spans(line) if protect else []
    if spans:
        kept = line[spans[0].start : spans[0].end]
        raise UserError(f"--trace: {kept[:40]!r} would be kept away from the model; add --no-protect to see it go in")
    ids = translator.codecs.source.encode(*translator.tagged([line])) if line.strip() else []
    check_length("--trace: the sentence", ids, translator.max_length)
    return ids


def check_length(what: str, ids: Sequence[int], most: int | None) -> None:
    """Raise `UserError` for a text without tokens, or of more than the model takes at once."""
    if not ids:
        raise UserError(f"{what} has no tokens; give one with words in it")
    if most is not None and len(ids) > most:
        raise UserError(f"{what} has {len(ids):,} tokens, but the model takes at most {most:,} at once; shorten it")


def _steps(
    engine: TorchEngine, source: Tensor, memory: Tensor, target_ids: Sequence[int], names: Sequence[str]
) -> Iterator[Step]:
    """Yield the model's own probabilities at each step, token after token through the cache as search does."""
    model, cache, source_mask = engine.model, engine.model.start_cache(memory), padding_mask(source)
    token, so_far = BOS, [SPECIALS[BOS]]
    for taken in target_ids:
        output = model.decode(torch.tensor([[token]], device=engine.device), None, source_mask, cache)
        cache = output.cache
        log_probs = model.generator(output, source)[0, -1].float()  # (V,)
        log_probs[[PAD, BOS]] = -torch.inf  # no translation holds them
        probabilities, order = log_probs.exp().sort(descending=True, stable=True)
        ids, values = order[:SHOWN].tolist(), probabilities[:SHOWN].tolist()
        best = [Choice(names[index], index, value) for index, value in zip(ids, values, strict=True)]
        rank = int((order == taken).nonzero()[0, 0])
        chosen = Choice(names[taken], taken, float(probabilities[rank]))
        yield Step(list(so_far), best, chosen, rank + 1)
        token = taken
        so_far.append(chosen.token)
