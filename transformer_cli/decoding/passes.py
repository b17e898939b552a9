"""How a model that writes all tokens at once came to a translation, pass by pass: for traces and pictures."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformer_cli.decoding.engines.nonautoregressive_engine import NonAutoregressiveEngine
from transformer_cli.decoding.guard import search_again
from transformer_cli.decoding.options import SearchOptions
from transformer_cli.decoding.search.mask_predict import Followed, Pass
from transformer_cli.decoding.stages import Choice
from transformer_cli.model.nonautoregressive import MASK

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


def retrace(
    engine: NonAutoregressiveEngine, source: Sequence[int], target: Sequence[int], options: SearchOptions
) -> Followed:
    """The search in which the translator found `target` for `source`, which has tokens, with these options."""
    followed, again = engine.follow(source, options), search_again(options)
    if followed.hypothesis.ids != [*target] and again is not None:  # the translator's guard has searched again
        followed = engine.follow(source, again)
    assert followed.hypothesis.ids == [*target], "a search that was not made"
    return followed


def refinement(followed: Followed, names: Sequence[str], *, predicted: bool) -> Refinement:
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
