"""What becomes of a sentence on its way through the model, stage by stage: for those who want to see it once.

`tfm translate --trace` calls it. The values are those of real passes: one of the encoder, then of the decoder one for
each token of the translation that search found, or those in which all tokens were written at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transformer_cli.decoding.engines.nonautoregressive_engine import NonAutoregressiveEngine
from transformer_cli.decoding.engines.torch_engine import TorchEngine, evaluating
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.passes import Refinement, refinement, retrace
from transformer_cli.decoding.stages import DECODER, ENCODER, Choice, Stage, recorded
from transformer_cli.decoding.translation import Candidate
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.model.masks import padding_mask
from transformer_cli.model.nonautoregressive import all_masked
from transformer_cli.text.lines import one_line
from transformer_cli.text.protected import find_spans
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS

SHOWN = 5  # next tokens of a step


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
    tokens = [*codecs.source.tokenise(line), SPECIALS[EOS]]
    vocabulary = codecs.target.vocabulary.get_itos()
    names = _Names(vocabulary, tokens)
    with evaluating(model), torch.inference_mode():
        with recorded(model, ENCODER) as encoder:
            states = model.source_embedding(source)  # (B, S, D)
            memory = model.encoder(states, source_mask, need_weights=True)[0]
        search: list[Step] | Refinement
        if isinstance(engine, NonAutoregressiveEngine):
            followed = retrace(engine, source_ids, ids, options)
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
        words=list(codecs.source.tokeniser.words(codecs.source.preparation(line))),
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
