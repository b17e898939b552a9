"""Which tokens are masked again, what becomes of them, and which candidate wins."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD
from transformer_cli.variants.mask_predict.model import LENGTH_SPAN, MASK
from transformer_cli.variants.mask_predict.search import (
    Lengths,
    Pass,
    Tokens,
    best_hypotheses,
    best_tokens,
    cut,
    least_sure,
    likely_lengths,
    mask_predict,
    masked_count,
    one_shot,
    without_repeats,
)

VOCABULARY = 11


class Oracle:
    """Hidden states that are logits: random, by place and by what is seen around it; and what it was asked."""

    def __init__(self, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(8, 97, VOCABULARY, generator=generator, dtype=torch.float64)
        self.asked: list[Tensor] = []

    def __call__(self, ids: Tensor) -> Tensor:
        self.asked.append(ids)
        seen = (ids * torch.arange(1, ids.size(1) + 1)).sum(dim=1, keepdim=True) % 97
        return self.table[torch.arange(ids.size(1)) % 8, seen]  # (N, T, V)

    @property
    def masked(self) -> list[list[int]]:
        """How many positions of each row were masked at each call."""
        return [(ids == MASK).sum(dim=1).tolist() for ids in self.asked]


@pytest.fixture
def projection() -> nn.Linear:
    """Passes hidden states on as logits."""
    layer = nn.Linear(VOCABULARY, VOCABULARY, bias=False, dtype=torch.float64)
    nn.init.eye_(layer.weight)
    return layer.requires_grad_(False)


def last(passes: Iterator[Pass]) -> Tokens:
    """What stands after all of them."""
    *_, one = passes
    return one.tokens


def test_one_pass_takes_the_likeliest_token_everywhere(projection: nn.Linear) -> None:
    oracle, lengths = Oracle(), torch.tensor([3, 1, 5])
    found = last(mask_predict(oracle, projection, lengths, iterations=1))
    assert len(oracle.asked) == 1
    log_probs = oracle(oracle.asked[0]).log_softmax(dim=2)
    log_probs[:, :, [PAD, BOS, EOS]] = -torch.inf
    for row, length in enumerate(lengths.tolist()):
        assert found.ids[row, :length].tolist() == log_probs[row, :length].argmax(dim=1).tolist()
        assert torch.allclose(found.log_probability[row, :length], log_probs[row, :length].amax(dim=1))
        assert found.ids[row, length:].tolist() == [PAD] * (5 - length)
        assert not found.log_probability[row, length:].any()


@pytest.mark.parametrize("iterations", [1, 2, 4, 10, 30])
def test_as_many_are_masked_as_the_formula_says(iterations: int, projection: nn.Linear) -> None:
    oracle, lengths = Oracle(), [1, 4, 10, 17]
    last(mask_predict(oracle, projection, torch.tensor(lengths), iterations))
    expected = [[length * (iterations - done) // iterations for length in lengths] for done in range(iterations)]
    assert oracle.masked == [counts for counts in expected if any(counts)]


def test_as_many_passes_as_tokens_settle_one_or_more_each(projection: nn.Linear) -> None:
    for length in (1, 2, 5, 9):
        oracle = Oracle()
        last(mask_predict(oracle, projection, torch.tensor([length]), iterations=length))
        assert oracle.masked == [[count] for count in range(length, 0, -1)]


def test_what_is_not_masked_stays_and_the_least_sure_are_masked(projection: nn.Linear) -> None:
    oracle, lengths = Oracle(), torch.tensor([6])
    first = last(mask_predict(oracle, projection, lengths, 1))
    found = last(mask_predict(oracle, projection, lengths, 2))
    asked = oracle.asked[-1][0]
    worst = set(first.log_probability[0].argsort()[:3].tolist())
    assert set((asked == MASK).nonzero()[:, 0].tolist()) == worst
    for place in set(range(6)) - worst:
        assert asked[place] == found.ids[0, place] == first.ids[0, place]
        assert found.log_probability[0, place] == first.log_probability[0, place]


def test_the_least_sure_never_lie_in_the_padding() -> None:
    values = torch.tensor([[-1.0, -3.0, -2.0, -99.0], [-5.0, -9.0, -99.0, -99.0]])
    real = torch.tensor([[True, True, True, False], [True, True, False, False]])
    masked = least_sure(values, real, torch.tensor([2, 1]))
    assert masked.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert masked_count(torch.tensor([7, 3]), 2, 4).tolist() == [3, 1]


def test_nothing_forbidden_is_written_but_it_has_its_probability(
    projection: nn.Linear, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = torch.randn(50, VOCABULARY, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens, values = best_tokens(projection, hidden, (PAD, BOS, EOS))
    assert not {PAD, BOS, EOS} & {*tokens.tolist()}
    assert torch.allclose(values, hidden.log_softmax(dim=1).gather(1, tokens[:, None])[:, 0])
    monkeypatch.setattr("transformer_cli.variants.mask_predict.search.CHUNK_LOGITS", {"cpu": 3 * VOCABULARY})
    again = best_tokens(projection, hidden, (PAD, BOS, EOS))
    assert torch.equal(again[0], tokens)
    assert torch.equal(again[1], values)


def test_likely_lengths_keep_to_their_limits() -> None:
    scores = torch.full((3, 2 * LENGTH_SPAN + 1), -9.0)
    for difference, value in ((0, -1.0), (-3, -0.5), (2, -2.0), (1, -3.0), (-2, -4.0)):
        scores[:, LENGTH_SPAN + difference] = value

    def likely(sources: list[int], limits: list[int], least: int, count: int) -> list[list[tuple[int, float]]]:
        found = likely_lengths(scores, torch.tensor(sources), torch.tensor(limits), least, count)
        return [[*zip(*rows, strict=True)] for rows in zip(*(field.tolist() for field in found), strict=True)]

    one, two, three = likely([5, 3, 3], [16, 16, 3], 1, 3)
    assert one == [(2, -0.5), (5, -1.0), (7, -2.0)]
    assert two == [(3, -1.0), (5, -2.0), (4, -3.0)]
    assert three == [(3, -1.0), (1, -4.0), (2, -9.0)]
    assert likely([5, 3, 3], [16, 16, 4], 4, 1) == [[(5, -1.0)], [(5, -2.0)], [(4, -3.0)]]
    assert likely([5, 3, 3], [16, 16, 2], 1, 3)[2] == [(1, -4.0), (2, -9.0), (1, -4.0)]  # there are only two
    far = likely([500] * 3, [20] * 3, 1, 2)  # of its classes none is allowed
    assert [length for row in far for length, _ in row] == [20] * 6


def test_the_best_by_score_wins_and_one_length_counts_once() -> None:
    tokens = Tokens(
        torch.tensor([[4, 5, 6], [4, 5, PAD], [4, 5, PAD]]),
        torch.tensor([[-1.0, -1.0, -1.0], [-0.5, -2.0, 0.0], [-0.5, -2.0, 0.0]]),
    )
    lengths = Lengths(torch.tensor([[3, 2, 2]]), torch.tensor([[-3.0, -0.5, -0.5]]))
    (found,) = best_hypotheses(tokens, lengths, SearchOptions(n_best=3))
    assert [(one.ids, one.log_probability, one.score, one.ended) for one in found] == [
        ([4, 5], -3.0, -1.5, True),
        ([4, 5, 6], -6.0, -2.0, True),
    ]
    unlikely = lengths._replace(log_probability=torch.tensor([[-3.0, -3.0, -3.0]]))
    for penalty, expected in ((1.0, [4, 5, 6]), (0.0, [4, 5])):  # by the token, or in all
        (found,) = best_hypotheses(tokens, unlikely, SearchOptions(length_penalty=penalty))
        assert [one.ids for one in found] == [expected]


def test_one_long_output_is_cut_at_its_first_end(projection: nn.Linear) -> None:
    oracle = Oracle()
    oracle.table[0, :, EOS] = 99.0  # which no translation may begin with
    oracle.table[2, :, EOS] = 99.0
    oracle.table[5, :, EOS] = 99.0
    for least, end in ((1, 2), (3, 5), (6, 7)):
        lengths = torch.tensor([7, 2])
        found = cut(one_shot(oracle, projection, lengths, least).tokens, [7, 2], SearchOptions())
        assert [len(one.ids) for (one,) in found] == [end, 2]
        assert [one.ended for (one,) in found] == [least < 6, False]
        assert not any({PAD, BOS, EOS} & {*one.ids} for (one,) in found)
    (found_short,) = cut(one_shot(oracle, projection, torch.tensor([7]), 1).tokens, [1], SearchOptions())
    assert (len(found_short[0].ids), found_short[0].ended) == (1, False)


def test_the_end_counts_where_there_is_one() -> None:
    tokens = Tokens(torch.tensor([[4, 5, EOS, 6]]), torch.tensor([[-1.0, -2.0, -4.0, -8.0]]))
    ((whole,),) = cut(tokens, [4], SearchOptions())
    assert (whole.ids, whole.log_probability, whole.score, whole.ended) == ([4, 5], -7.0, -3.5, True)
    ((short,),) = cut(tokens, [1], SearchOptions())
    assert (short.ids, short.log_probability, short.ended) == ([4], -1.0, False)


def test_repeats_are_left_out() -> None:
    def left(ids: list[int], size: int) -> list[int]:
        return [ids[place] for place in without_repeats(ids, size)]

    assert left([4, 4, 5, 4], 1) == [4, 5]
    assert left([4, 4, 4, 5, 4, 4], 2) == [4, 4, 5, 4]
    assert left([4, 5, 6, 4, 5, 6, 7], 3) == [4, 5, 6, 4, 5, 7]
    assert left([4, 5], 3) == [4, 5]
    tokens = Tokens(torch.tensor([[4, 4, 4, 4, EOS]]), torch.tensor([[-1.0, -2.0, -4.0, -8.0, -0.5]]))
    ((one,),) = cut(tokens, [5], SearchOptions(no_repeat_ngram=2))
    assert (one.ids, one.log_probability) == ([4, 4], -3.5)
