"""One batch searched by any engine, for tests that ask what is found of some sources."""

from collections.abc import Sequence

from transformer_cli.decoding.engines.protocol import Engine, Hypothesis, SearchBatch, TokenConstraints
from transformer_cli.search_options import SearchOptions


def search_batch(
    engine: Engine,
    sources: Sequence[Sequence[int]],
    options: SearchOptions,
    keys: Sequence[tuple[int, ...]] | None = None,
    constraints: Sequence[TokenConstraints] | None = None,
) -> list[list[Hypothesis]]:
    (found,) = engine.search([SearchBatch(sources, keys, constraints)], options)
    return found
