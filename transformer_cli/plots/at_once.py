"""When a model that writes all tokens at once was asked for each, and what its decoder saw then.

`attention.attend` shows what it attended to.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_cli.decoding.options import SearchOptions
from transformer_cli.inside.trace import trace_refinement
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import MASK, all_masked
from transformer_cli.variants.mask_predict.search import RefinementTrace


class MaskedQueries(NamedTuple):
    """Of T tokens, in which of P passes each is asked for, and where: see `NonAutoregressiveEngine.attention`."""

    seen: Tensor  # (P, T') ids, masked in places
    passes: list[int]  # T
    places: list[int]  # T
    stands: list[int]  # T' ids: what its position is called


def ask(
    engine: NonAutoregressiveEngine, source: Sequence[int], target: Sequence[int], options: SearchOptions | None
) -> MaskedQueries:
    """How `target` was found for `source`, each with tokens; without options it was not, but is given."""
    if options is not None:
        return asked_last(trace_refinement(engine, source, target, options), named=engine.predicts_length)
    if engine.predicts_length:
        return asked_alone(target)
    return asked_together(len(target) + 1, max(engine.canvas(len(source)), len(target) + 1))


def asked_last(followed: RefinementTrace, *, named: bool) -> MaskedQueries:
    """A search: each token in the last pass that asked for it. `named`: positions by what they hold in the end."""
    length = int(followed.lengths.tokens[0, followed.chosen])
    seen = torch.cat([one.seen[:, :length] for one in followed.passes])
    last = [int((seen[:, place] == MASK).nonzero().max()) for place in followed.places]
    end = followed.passes[-1].tokens.ids[0, :length].tolist()
    return MaskedQueries(seen, last, followed.places, end if named else [MASK] * length)


def asked_alone(target: Sequence[int]) -> MaskedQueries:
    """A translation for mask_predict: each token in a pass of its own, which sees all others."""
    count = len(target)
    seen = torch.tensor([[*target]] * count).masked_fill(torch.eye(count, dtype=torch.bool), MASK)
    return MaskedQueries(seen, [*range(count)], [*range(count)], [*target])


def asked_together(count: int, canvas: int) -> MaskedQueries:
    """A translation for one_shot: so many tokens, `</s>` with them, in the one pass over the canvas."""
    return MaskedQueries(all_masked(torch.tensor([canvas]), canvas), [0] * count, [*range(count)], [MASK] * canvas)
