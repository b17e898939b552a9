"""A run that starts from another model, its parent, with a vocabulary of its own (`training.init_vocabulary: own`).

All weights are the parent's (Zoph et al. 2016) but for the tables with a row for each token, which are made here of the
parent's table in the same place: encoder input, decoder input, output. `run` calls it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from transformer_cli.build import LoadedModel
from transformer_cli.config import Config
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.checkpoint import stored_weights
from transformer_cli.text.codec import Codec, Codecs
from transformer_cli.text.vocabulary import UNK

TABLES = {
    "source_embedding.tokens.table.weight": "source",
    "target_embedding.tokens.table.weight": "target",
    "generator.projection.weight": "target",
    "generator.projection.bias": "target",
}
OF_CODECS = "generator.target_ids"  # a pointer's, which follow from the vocabularies


@dataclass(frozen=True)
class Beginnings:
    """What the rows of a vocabulary begin as, by id; those in neither have nothing in the parent's."""

    same: dict[int, int]  # the parent's id of the same token
    parts: dict[int, list[int]]  # the parent's ids of a token's parts


def begin_as_parent(model: Transformer, codecs: Codecs, config: Config, parent: LoadedModel) -> list[str]:
    """Give a fresh model of the parent's shape its weights; return lines to show."""
    sides = {}
    for side in ("source", "target"):
        child: Codec = getattr(codecs, side)
        symbols = child.tokenizer.symbol_tokens(config.vocabulary.symbols)
        sides[side] = find_beginnings(child, getattr(parent.codecs, side), symbols)
    theirs = parent.model.float().state_dict()
    for name, tensor in stored_weights(model).items():
        if name in TABLES:
            fill_rows(tensor, theirs[name], sides[TABLES[name]])
        elif name != OF_CODECS:
            tensor.copy_(theirs[name])
    shown = ["source"] if config.vocabulary.shared else list(sides)
    lines = [_count(side, sides[side], getattr(codecs, side)) for side in shown]
    return [f"start        weights of {parent.folder} (training.init_from), with a vocabulary of its own", *lines]


def find_beginnings(child: Codec, parent: Codec, symbols: Iterable[str]) -> Beginnings:
    """Return for the tokens of a child's vocabulary their counterparts in its parent's.

    The same token is the same text at the same place, whichever tokenizers cut it: at the beginning of a word, or
    within. The parts of any other are what the parent makes of its text (Gee et al. 2022), lowercased where the parent
    does that, else the same text at the other place. A symbol has no parts: it means something else than its letters.
    """
    known = {_spelling(parent, token): index for index, token in enumerate(parent.vocabulary.get_itos())}
    same, parts, symbols = {}, {}, {*symbols}
    for index, token in enumerate(child.vocabulary.get_itos()):
        text, begins = _spelling(child, token)
        if (text, begins) in known:
            same[index] = known[text, begins]
        elif begins is not None:
            found = [] if token in symbols else _parts(parent, text, begins)
            elsewhere = [known[text, not begins]] if (text, not begins) in known else []
            if found or elsewhere:
                parts[index] = found or elsewhere
    return Beginnings(same, parts)


def _spelling(codec: Codec, token: str) -> tuple[str, bool | None]:
    """Return the text of a token, and whether a word begins with it; None: a special or a byte, which has no text."""
    join = codec.tokenizer.join
    if token in codec.vocabulary.specials or token in codec.tokenizer.byte_tokens:
        return token, None
    text = join([token])
    return text, join([token, token]) == f"{text} {text}"


def _parts(codec: Codec, text: str, begins: bool) -> list[int]:
    """Return the ids of a text at the beginning of a word, or within one, without those that are unknown."""
    first, *others = codec.tokenizer.words(codec.preparation(text)) or [""]
    tokens = codec.tokenizer.tokens(first, begins)
    for word in others:  # normalization may make a space
        tokens += codec.tokenizer.tokens(word)
    return [index for index in codec.vocabulary.lookup_indices(tokens) if index != UNK]


def fill_rows(table: Tensor, old: Tensor, beginnings: Beginnings) -> None:
    """Fill a table (V, …) from the parent's (V', …): rows of the same tokens, means of parts, else the mean of all.

    A token with the mean of all rows is never likelier than the parent's tokens are on average (by Jensen's inequality;
    Hewitt 2021), where one with a row that is drawn may be, whatever stands before it.
    """
    table.copy_(old.mean(0).expand_as(table))
    for index, parts in beginnings.parts.items():
        table[index] = old[parts].mean(0)
    table[list(beginnings.same)] = old[list(beginnings.same.values())]


def _count(side: str, beginnings: Beginnings, codec: Codec) -> str:
    """Return how many tokens, specials left out, begin as what."""
    specials, counts = len(codec.vocabulary.specials), codec.vocabulary.counts
    same = [index for index in beginnings.same if index >= specials]
    types, tokens = len(codec.vocabulary) - specials, sum(counts[specials:])
    running = f" ({sum(counts[index] for index in same) / tokens:.1%} of running tokens)" if tokens else ""
    mixed = len(beginnings.parts)
    return (
        f"             {side}: of {types:,} types {len(same):,} take over their rows{running}; {mixed:,} begin as the "
        f"mean of their parts, {types - len(same) - mixed:,} as the mean of all"
    )
