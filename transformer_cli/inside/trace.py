"""What a trace is made of: tensors that the parts of a model make while it runs, as hooks see them, and tokens."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from transformer_cli.decoding.engines.torch_engine import TorchEngine, evaluating
from transformer_cli.decoding.guard import search_again
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.translation import Candidate
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.transformer import DecoderOutput
from transformer_cli.protected.spans import find_spans
from transformer_cli.text.lines import one_line
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK, all_masked
from transformer_cli.variants.mask_predict.search import Pass, RefinementTrace

SHOWN = 5  # values of a tensor, next tokens of a step


@dataclass(frozen=True)
class Stage:
    """A tensor that one part of the model made."""

    name: str
    axes: str  # what its dimensions are, such as B, S, D
    shape: tuple[int, ...]
    first: tuple[float, ...]  # the first values of its first row


@dataclass(frozen=True)
class Choice:
    """A token, and how probable the model held it to be in its place."""

    token: str
    id: int
    probability: float


# A part of the model, what its outputs are called, and their axes. The first layer is looked into, others pass by.
Part = tuple[str, tuple[tuple[str, str], ...]]
ENCODER: tuple[Part, ...] = (
    ("source_embedding.tokens.table", (("embedding", "B, S, D"),)),
    ("source_embedding.tokens", (("times √d_model", "B, S, D"),)),
    ("source_embedding.positions", (("positions", "S, D"),)),
    ("source_embedding", (("both added", "B, S, D"),)),
    ("encoder.layers.0.self_attention.query", (("layer 1: queries", "B, S, H·d_k"),)),
    ("encoder.layers.0.self_attention.key_value", (("layer 1: keys, values", "B, S, H·(d_k+d_v)"),)),
    ("encoder.layers.0.self_attention.key", (("layer 1: keys", "B, S, H·d_k"),)),  # of attention with a `value_dim`
    ("encoder.layers.0.self_attention.value", (("layer 1: values", "B, S, H·d_v"),)),
    (
        "encoder.layers.0.self_attention",
        (("layer 1: self-attention", "B, S, D"), ("layer 1: its weights", "B, H, S, S")),
    ),
    ("encoder.layers.0.feed_forward.gate", (("layer 1: feed-forward, gate", "B, S, d_ff"),)),
    ("encoder.layers.0.feed_forward.inner", (("layer 1: feed-forward, inner", "B, S, d_ff"),)),
    ("encoder.layers.0.feed_forward", (("layer 1: feed-forward", "B, S, D"),)),
    ("encoder.layers.*", (("layer {}", "B, S, D"),)),
    ("encoder", (("memory", "B, S, D"),)),
)
DECODER: tuple[Part, ...] = (
    ("target_embedding.tokens", (("embedding, times √d_model", "B, T, D"),)),
    ("target_embedding.positions", (("positions", "T, D"),)),
    ("target_embedding", (("both added", "B, T, D"),)),
    (
        "decoder.layers.0.self_attention",
        (("layer 1: self-attention", "B, T, D"), ("layer 1: its weights", "B, H, T, T")),
    ),
    (
        "decoder.layers.0.cross_attention",
        (("layer 1: cross-attention", "B, T, D"), ("layer 1: its weights", "B, H, T, S")),
    ),
    ("decoder.layers.0.feed_forward", (("layer 1: feed-forward", "B, T, D"),)),
    ("decoder.layers.*", (("layer {}", "B, T, D"),)),
    ("decoder", (("hidden", "B, T, D"),)),
    ("generator", (("log-probabilities", "B, T, V"),)),
)


@contextmanager
def recorded(model: nn.Module, parts: Sequence[Part]) -> Iterator[list[Stage]]:
    """What these parts make inside, in the order in which they are done; parts that a variant lacks are left out."""
    stages: list[Stage] = []
    modules = dict(model.named_modules())
    hooks = []
    for path, outputs in parts:
        listed = path.endswith(".*")
        matching = [name for name in modules if name.rpartition(".")[0] == path[:-2]] if listed else [path]
        for number, name in enumerate(matching, start=1):
            if name in modules:
                named = [(title.format(number), axes) for title, axes in outputs]
                hooks.append(modules[name].register_forward_hook(_record(stages, named)))
    try:
        yield stages
    finally:
        for hook in hooks:
            hook.remove()


def _record(stages: list[Stage], outputs: Sequence[tuple[str, str]]) -> Callable[[nn.Module, object, Any], None]:
    def hook(_: nn.Module, __: object, output: Any) -> None:
        if isinstance(output, DecoderOutput):
            output = output.hidden
        tensors = (output,) if isinstance(output, Tensor) else output
        for (name, axes), tensor in zip(outputs, tensors, strict=False):
            if isinstance(tensor, Tensor):
                fits = axes.count(",") == tensor.dim() - 1
                first = tensor.flatten(0, -2)[0, :SHOWN].float().tolist()
                stages.append(Stage(name, axes if fits else "", tuple(tensor.shape), tuple(first)))

    return hook


MASKED = "▢"  # what stands for the mask token, where a token is still to be found


@dataclass(frozen=True)
class Position:
    """A position of the target after a pass."""

    asked: bool  # in this pass; else the decoder saw the token that stands here
    token: Choice  # with the probability that it had when it was asked for


@dataclass(frozen=True)
class Refinement:
    """All passes of a search."""

    lengths: list[tuple[int, float]]  # how many tokens were tried, and the probability of that; none for one_shot
    positions: int  # of the translation that won; of one_shot the canvas
    passes: list[list[Position]]
    left_out: int  # tokens that the translation lacks, because they repeat what stands before


def trace_refinement(
    engine: NonAutoregressiveEngine, source: Sequence[int], target: Sequence[int], options: SearchOptions
) -> RefinementTrace:
    """The search in which the translator found `target` for `source`, which has tokens, with these options."""
    followed, again = engine.trace(source, options), search_again(options)
    if followed.hypothesis.ids != [*target] and again is not None:  # the translator's guard has searched again
        followed = engine.trace(source, again)
    assert followed.hypothesis.ids == [*target], "a search that was not made"
    return followed


def refinement(followed: RefinementTrace, names: Sequence[str], *, predicted: bool) -> Refinement:
    """What a search did; `names` of the ids, `predicted`: the length was, before any token."""
    counts, chances = followed.lengths.tokens[0].tolist(), followed.lengths.log_probability[0].exp().tolist()
    positions = counts[followed.chosen]
    end = positions if predicted else followed.places[-1] + 1
    return Refinement(
        list(dict(zip(counts, chances, strict=True)).items()) if predicted else [],
        positions,
        [_positions(one, positions, names) for one in followed.passes],
        end - len(followed.places),
    )


def _positions(one: Pass, length: int, names: Sequence[str]) -> list[Position]:
    columns = (one.seen, one.tokens.ids, one.tokens.log_probability.exp())
    return [
        Position(seen == MASK, Choice(names[index], index, probability))
        for seen, index, probability in zip(*(values[0, :length].tolist() for values in columns), strict=True)
    ]


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
    scale: float  # √d_model
    encoder: list[Stage]
    decoder: list[Stage]  # of the first step, or pass
    options: SearchOptions
    search: list[Step] | Refinement  # token by token, or all at once
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
    source_ids = _source_ids(translator, line, protect)
    best = translator.translate_batch([text], options, alignments=False)[0].hypotheses[0]
    ids = codecs.lookup_target(best.tokens, line)
    writes_end = best.ended and not (isinstance(engine, NonAutoregressiveEngine) and engine.predicts_length)
    target_ids = [*ids, *([EOS] if writes_end else [])]
    source = torch.tensor([[*source_ids, EOS]], device=engine.device)  # (B, S)
    source_mask = padding_mask(source)
    model = engine.model
    tokens = [*codecs.source.tokenize(line), SPECIALS[EOS]]
    vocabulary = codecs.target.vocabulary.get_itos()
    names = _Names(vocabulary, tokens)
    with evaluating(model), torch.inference_mode():
        with recorded(model, ENCODER) as encoder:
            states = model.source_embedding(source)  # (B, S, D)
            memory = model.encoder(states, source_mask, need_weights=True)[0]
        search: list[Step] | Refinement
        if isinstance(engine, NonAutoregressiveEngine):
            followed = trace_refinement(engine, source_ids, ids, options)
            search = refinement(followed, vocabulary, predicted=engine.predicts_length)
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
        words=list(codecs.source.tokenizer.words(codecs.source.preparation(line))),
        tokens=tokens,
        ids=source[0].tolist(),
        scale=float(memory.size(-1)) ** 0.5,
        encoder=encoder,
        decoder=decoder,
        options=options,
        search=search,
        target_tokens=[names[index] for index in target_ids],
        target_ids=target_ids,
        translation=best,
    )


def _source_ids(translator: Translator, line: str, protect: bool) -> list[int]:
    """The ids of a sentence that goes into the model as it is and at once; else a `UserError`."""
    spans = find_spans(line) if protect else []
    if spans:
        kept = line[spans[0].start : spans[0].end]
        raise UserError(f"--trace: {kept[:40]!r} would be kept away from the model; add --no-protect to see it go in")
    ids = translator.codecs.source.encode(line) if line.strip() else []
    if not ids:
        raise UserError("--trace: the sentence has no tokens; give one with words in it")
    if len(ids) > translator.max_length:
        raise UserError(
            f"--trace: the sentence has {len(ids):,} tokens, but the model takes {translator.max_length:,} at once; "
            "shorten it"
        )
    return ids


@dataclass(frozen=True)
class _Names:
    """What target ids are called; from the vocabulary's size on they are places of source tokens, to be copied."""

    vocabulary: Sequence[str]
    source: Sequence[str]

    def __getitem__(self, index: int) -> str:
        known = len(self.vocabulary)
        return self.vocabulary[index] if index < known else self.source[index - known]


def _steps(
    engine: TorchEngine, source: Tensor, memory: Tensor, target_ids: Sequence[int], names: _Names
) -> Iterator[Step]:
    """The model's own probabilities at each step, token after token through the cache as search does."""
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
