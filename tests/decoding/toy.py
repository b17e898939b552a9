"""A model to search with, whose every word depends on all before, and what a search of it must find."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch, TokenConstraints
from transformer_cli.decoding.search.dispatch import StepModel, search
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD, UNK

VOCABULARY = 7
WORDS = (UNK, 4, 5, 6)


@dataclass(frozen=True)
class Histories:
    """The toy's cache: for each row its sentence and its tokens so far."""

    sentences: Tensor  # (N,)
    tokens: Tensor  # (N, t)

    def select(self, rows: Tensor) -> "Histories":
        return Histories(self.sentences[rows], self.tokens[rows])


@dataclass
class Toy:
    """Log-probabilities by a random table over sentence, position, last word and a sum of all words before."""

    seed: int
    sentences: int
    sharpness: float = 2.0
    size: int = VOCABULARY
    rows: list[int] = field(default_factory=list)  # of each step taken

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.sentences, 8, self.size, 5, self.size)
        logits = self.sharpness * torch.randn(shape, generator=generator, dtype=torch.float64)
        logits[..., [PAD, BOS]] = -torch.inf
        self.table = logits.log_softmax(dim=-1)

    def start(self, sources: Sequence[Sequence[int]] | None = None) -> Histories:
        """Sources are the numbers of sentences; default: all of them."""
        numbers = range(self.sentences) if sources is None else [number for number, *_ in sources]
        return Histories(torch.tensor([*numbers]), torch.zeros(len(numbers), 0, dtype=torch.long))

    def step(self, tokens: Tensor, cache: Histories) -> tuple[Tensor, Histories]:
        self.rows.append(len(tokens))
        history = torch.cat([cache.tokens, tokens[:, None]], dim=1)
        places = torch.arange(1, history.size(1) + 1)
        mixed = (history * places).sum(dim=1) % 5
        return self.table[cache.sentences, history.size(1) % 8, tokens, mixed], Histories(cache.sentences, history)

    def attending_step(self, tokens: Tensor, cache: Histories) -> tuple[Tensor, Tensor, Histories]:
        """Attention on five places, by the words before."""
        log_probs, grown = self.step(tokens, cache)
        mixed = (grown.tokens * torch.arange(2, grown.tokens.size(1) + 2)).sum(dim=1)
        logits = torch.sin(mixed[:, None] * torch.tensor([1.0, 2.0, 3.0, 5.0, 7.0], dtype=torch.float64))
        return log_probs, (4 * logits).softmax(dim=1), grown

    def search(
        self,
        options: SearchOptions,
        constraints: Sequence[TokenConstraints] | None = None,
        sentences: Sequence[int] | None = None,
    ) -> list[list[Hypothesis]]:
        """As an engine would."""
        numbers = range(self.sentences) if sentences is None else sentences
        device = torch.device("cpu")
        model = StepModel(self.start, self.step, self.attending_step, self.size, None, device)
        sources, keys = [[number] for number in numbers], [(number,) for number in numbers]
        return search(model, SearchBatch(sources, keys, constraints), options, max_cells=2**20)

    def log_probs(self, sentence: int, ids: Sequence[int]) -> list[float]:
        """What the model gives every token after <s> and these ids."""
        history = torch.tensor([[BOS, *ids[:-1]]]) if ids else torch.zeros(1, 0, dtype=torch.long)
        last = torch.tensor([ids[-1] if ids else BOS])
        values: list[float] = self.step(last, Histories(torch.tensor([sentence]), history))[0][0].tolist()
        return values

    def forced(self, sentence: int, ids: Sequence[int]) -> float:
        """Σ log p of ids, `</s>` among them if it is to count."""
        return sum(self.log_probs(sentence, ids[:place])[token] for place, token in enumerate(ids))


def brute_force(
    toy: Toy,
    sentence: int,
    limit: int,
    options: SearchOptions,
    admits: Callable[[list[int], bool], bool] = lambda words, ended: True,
) -> list[tuple[float, list[int]]]:
    """Every text there can be: shorter than the limit with `</s>`, or as long as the limit. Best first.

    `admits` is asked of each text, and whether it ended.
    """
    found = []
    for length in range(1, limit + 1):
        for words in itertools.product(WORDS, repeat=length):
            if admits([*words], length < limit):
                ids = [*words] if length == limit else [*words, EOS]
                found.append((toy.forced(sentence, ids) / options.penalty(length), [*words]))
    return sorted(found, key=lambda one: -one[0])


def admissible(options: SearchOptions, constraint: TokenConstraints, words: Sequence[int], ended: bool) -> bool:
    """Whether a text satisfies the options and the constraint."""
    return (
        tuple(words[: len(constraint.prefix)]) == constraint.prefix
        and all(times(one, words) >= constraint.required.count(one) for one in constraint.required)
        and not any(times(one, words) for one in constraint.forbidden)
        and repeated(words, options.no_repeat_ngram) <= {token for one in constraint.required for token in one}
        and (not ended or len(words) >= options.min_length)
    )


def times(sequence: Sequence[int], words: Sequence[int]) -> int:
    """How often the words hold the sequence."""
    return sum([*words[place:][: len(sequence)]] == [*sequence] for place in range(len(words)))


def repeated(words: Sequence[int], size: int) -> set[int]:
    """With which tokens `size` words come a second time; size 0: none."""
    grams = [tuple(words[place : place + size]) for place in range(len(words) - size + 1)] if size else []
    return {gram[-1] for place, gram in enumerate(grams) if gram in grams[:place]}


def same(found: Sequence[Hypothesis], expected: Sequence[Hypothesis], tolerance: float = 1e-12) -> None:
    """Hold the hypotheses of one sentence against others."""
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert [one.ended for one in found] == [one.ended for one in expected]
    for name in ("score", "log_probability"):
        values, others = ([getattr(one, name) for one in group] for group in (found, expected))
        assert values == pytest.approx(others, abs=tolerance)
