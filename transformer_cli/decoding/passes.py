"""How a model that writes all tokens at once came to a translation, pass by pass. `tracing` asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_cli.decoding.engines.nonautoregressive_engine import NonAutoregressiveEngine
from transformer_cli.decoding.guard import search_again
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.search.mask_predict import Pass
from transformer_cli.model.nonautoregressive import MASK


@dataclass(frozen=True)
class Choice:
    """A token that may come next."""

    token: str
    id: int
    probability: float


@dataclass(frozen=True)
class Position:
    """A position of the target after a pass."""

    asked: bool  # in this pass; else the decoder saw the token that stands here
    token: Choice  # with the probability that it had when it was asked for


@dataclass(frozen=True)
class Passes:
    """All of a search."""

    lengths: list[tuple[int, float]]  # how many tokens were tried, and the probability of that; none for one_shot
    positions: int  # of the translation that won; of one_shot the canvas
    passes: list[list[Position]]


def follow_passes(
    engine: NonAutoregressiveEngine,
    source: Sequence[int],
    target: Sequence[int],
    options: SearchOptions,
    names: Sequence[str],
) -> Passes:
    """How `target` came of `source`, which has tokens; `names` of the ids."""
    followed = engine.follow(source, options)
    again = search_again(options)
    if followed.hypothesis.ids != [*target] and again is not None:  # the translator's guard has searched again
        followed = engine.follow(source, again)
    counts, chances = followed.lengths.tokens[0].tolist(), followed.lengths.log_probability[0].exp().tolist()
    predicted = engine.model.length_predictor is not None
    return Passes(
        list(dict(zip(counts, chances, strict=True)).items()) if predicted else [],
        counts[followed.chosen],
        [_positions(one, counts[followed.chosen], names) for one in followed.passes],
    )


def _positions(one: Pass, length: int, names: Sequence[str]) -> list[Position]:
    columns = (one.seen, one.tokens.ids, one.tokens.log_probability.exp())
    return [
        Position(seen == MASK, Choice(names[index], index, probability))
        for seen, index, probability in zip(*(values[0, :length].tolist() for values in columns), strict=True)
    ]
