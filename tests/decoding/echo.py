"""An engine that needs no model, and the config of a tiny one, for tests of what is around engines."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from transformer_cli.config import Config
from transformer_cli.decoding.engines.protocol import UNCONSTRAINED, Hypothesis, SearchBatch, TokenConstraints
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.codec import Codecs

MakeCodecs = Callable[[Config], Codecs]

TEXT = [
    "a b c",
    "one two three four five",
    'Yes. No! Why? One two. ( three ) four… "five" six.',
    "¿ é ß 漢 字 😀 ? </s>",
]


class Echo:
    """An engine that gives back what it gets, each token aligned to itself, and remembers what it was asked.

    Others answer otherwise: `answer` searches for one sentence, `links` aligns one.
    """

    name = "echo"
    max_target_length = None

    def __init__(self, max_source_length: int | None = None) -> None:
        self.max_source_length = max_source_length
        self.batches: list[list[list[int]]] = []
        self.options: list[SearchOptions] = []  # of each batch
        self.constraints: list[list[TokenConstraints] | None] = []

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
        return (self.search_one(batch, options) for batch in batches)

    def search_one(self, batch: SearchBatch, options: SearchOptions) -> list[list[Hypothesis]]:
        sources, constraints = batch.sources, batch.constraints
        assert sources
        assert all(sources), "no model call for an empty line"
        self.batches.append([list(source) for source in sources])
        self.options.append(options)
        self.constraints.append(None if constraints is None else list(constraints))
        each = constraints or [UNCONSTRAINED] * len(sources)
        return [self.answer(list(source), options, one) for source, one in zip(sources, each, strict=True)]

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis(source, -float(rank), -float(len(source)), True) for rank in range(options.n_best)]

    def score(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-1.0] * len(target) + [-0.5] for target in targets]

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
        skip: Sequence[int] | None = None,
    ) -> list[list[int]]:
        rows = zip(sources, targets, skip or [0] * len(sources), strict=True)
        return [[max(0, place - first) for place in self.links(source, target)] for source, target, first in rows]

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        return list(range(len(target)))


def make_config(tokenizer: str = "whitespace", max_length: int = 8, **sections: dict[str, Any]) -> Config:
    files = {"source": "a", "target": "b"}
    values: dict[str, Any] = {
        "data": {
            "source_language": "de", "target_language": "en", "train": files, "valid": files, "max_length": max_length
        },
        "vocabulary": {"tokenizer": tokenizer, "size": 300},
        "model": {"encoder_layers": 1, "decoder_layers": 2, "d_model": 12, "heads": 2, "d_ff": 16, "dropout": 0.0},
        "decoding": {"beam_size": 2, "max_length_ratio": 0.5, "max_length_extra": 0, "batch_tokens": 64},
    }  # fmt: skip
    for name, section in sections.items():
        values[name] = {**values[name], **section}
    return Config.model_validate(values)
