"""Sampling: the distributions are the defined ones, and sentencepiece's."""

import itertools
import math
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.text import subword_sampling as sampling
from transformer_cli.text.codec import Codecs
from transformer_cli.text.subword import SubwordTokenizer
from transformer_cli.text.subword_sampling import BytePairSampler, UnigramSampler

PATIENT = settings(max_examples=60)
DRAWS = 3000

PROBABILITIES = {"a": 0.2, "b": 0.15, "c": 0.05, "ab": 0.2, "bc": 0.1, "abc": 0.2, "ca": 0.05, "aa": 0.05}
SCORES = {piece: math.log(probability) for piece, probability in PROBABILITIES.items()}
MERGES = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": 0.0, "ca": -1.0, "abc": -2.0, "abca": -3.0, "bc": -4.0, "aa": -5.0}

Distribution = dict[tuple[str, ...], float]


def segmentations(word: str) -> Iterator[tuple[str, ...]]:
    if not word:
        yield ()
    for end in range(1, len(word) + 1):
        for rest in segmentations(word[end:]):
            yield word[:end], *rest


def unigram_distribution(word: str, strength: float, scores: dict[str, float]) -> Distribution:
    """By enumeration: p(x)^α over its sum."""
    floor = min(scores.values()) - sampling.UNKNOWN_PENALTY
    weights = {}
    for parts in segmentations(word):
        known = [scores.get(part, floor if len(part) == 1 else -math.inf) for part in parts]
        weights[parts] = math.exp(strength * sum(known)) if strength else float(min(known) > -math.inf)
    total = sum(weights.values())
    return {parts: weight / total for parts, weight in weights.items() if weight}


def dropout_distribution(word: str, strength: float, scores: dict[str, float]) -> Distribution:
    """By following every decision. Neighbours are known by where they meet and what they are."""
    result: Counter[tuple[str, ...]] = Counter()

    def follow(parts: tuple[str, ...], dropped: frozenset[tuple[int, str, str]], probability: float) -> None:
        offers = []
        for place, (left, right) in enumerate(itertools.pairwise(parts)):
            pair = (len("".join(parts[: place + 1])), left, right)
            if left + right in scores and pair not in dropped:
                offers.append((-scores[left + right], place, pair))
        if not offers:
            result[parts] += probability  # type: ignore[assignment]
            return
        _, place, pair = min(offers)
        merged = (*parts[:place], pair[1] + pair[2], *parts[place + 2 :])
        follow(merged, dropped, probability * (1 - strength))
        follow(parts, dropped | {pair}, probability * strength)

    follow(tuple(word), frozenset(), 1.0)
    return dict(result)


def distance(drawn: Counter[tuple[str, ...]], expected: Distribution) -> float:
    """Half the sum of the differences of probabilities (total variation)."""
    total = drawn.total()
    return sum(abs(drawn[parts] / total - expected.get(parts, 0.0)) for parts in {*drawn, *expected}) / 2


def likely_distance(expected: Distribution) -> float:
    """What the distance of a true sample hardly exceeds: its mean is at most √(outcomes / draws) / 2."""
    return math.sqrt(len(expected) / DRAWS) / 2 + 2.5 / math.sqrt(DRAWS)


def draws(sampler: UnigramSampler | BytePairSampler, word: str, strength: float) -> Counter[tuple[str, ...]]:
    rng = random.Random(1)
    return Counter(tuple(sampler.draw(word, strength, rng)) for _ in range(DRAWS))


@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("word", ["abcab", "aabca", "xabx", "a"])
def test_unigram_samples_are_distributed_as_defined(word: str, strength: float) -> None:
    expected = unigram_distribution(word, strength, SCORES)
    assert sum(expected.values()) == pytest.approx(1)
    assert distance(draws(UnigramSampler(SCORES), word, strength), expected) < likely_distance(expected)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("strength", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("word", ["abcabca", "aaaa", "xabx", "a"])
def test_dropped_merges_are_distributed_as_defined(
    word: str, strength: float, cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "LONGEST_CACHED", 99 if cached else 0)
    expected = dropout_distribution(word, strength, MERGES)
    assert sum(expected.values()) == pytest.approx(1)
    assert distance(draws(BytePairSampler(MERGES), word, strength), expected) < likely_distance(expected)


def test_a_distribution_that_is_off_is_noticed() -> None:
    """The tests above can fail: another strength is told apart."""
    expected = unigram_distribution("abcab", 0.5, SCORES)
    assert distance(draws(UnigramSampler(SCORES), "abcab", 1.0), expected) > likely_distance(expected)
    expected = dropout_distribution("abcabca", 0.5, MERGES)
    assert distance(draws(BytePairSampler(MERGES), "abcabca", 0.4), expected) > likely_distance(expected)


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_samples_are_distributed_as_sentencepiece_draws_them(
    codecs: Callable[..., Codecs], pairs: list[tuple[str, str]], algorithm: str
) -> None:
    tokenizer = codecs(algorithm).source.tokenizer
    assert isinstance(tokenizer, SubwordTokenizer)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    sentencepiece.set_random_generator_seed(1)
    rng = random.Random(1)
    strength = 0.3
    compared = 0
    for word in sorted({word for pair in pairs for word in pair[0].split()}):
        if not 3 <= len(tokenizer.tokens(word)) < len(word) - 1 < 7:
            continue
        theirs = Counter(
            tuple(processor.encode(word, out_type=str, enable_sampling=True, alpha=strength, nbest_size=-1))
            for _ in range(DRAWS)
        )
        if len(theirs) == 1:
            continue  # a word that has one segmentation only
        ours = Counter(tuple(tokenizer.sample(word, strength, rng)) for _ in range(DRAWS))
        expected = {parts: count / DRAWS for parts, count in theirs.items()}
        assert distance(ours, expected) < 2 * likely_distance(expected)
        compared += 1
        if compared == 3:
            return
    raise AssertionError(f"only {compared} words can be cut in several ways")


@PATIENT
@given(word=st.text("abcx", max_size=12), strength=st.sampled_from([0.1, 0.5, 1.0]), seed=st.integers(0, 9))
def test_a_sample_spells_the_word(word: str, strength: float, seed: int) -> None:
    for sampler in (UnigramSampler(SCORES), BytePairSampler(MERGES)):
        parts = sampler.draw(word, strength, random.Random(seed))
        assert "".join(parts) == word
        assert all(parts)
        assert sampler.draw(word, strength, random.Random(seed)) == parts


@PATIENT
@given(word=st.text("abcx", max_size=12))
def test_at_the_ends_sampling_is_no_sampling(word: str) -> None:
    rng = random.Random(1)
    byte_pair = BytePairSampler(MERGES)
    assert byte_pair.draw(word, 0.0, rng) == byte_pair.best(word)
    assert byte_pair.draw(word, 1.0, rng) == list(word)
    if 0 < len(word) < 8:
        expected = unigram_distribution(word, 1.0, SCORES)
        best = tuple(UnigramSampler(SCORES).best(word))
        assert expected[best] == pytest.approx(max(expected.values()))


def test_full_caches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["".join(random.Random(seed).choices("abcx", k=6)) for seed in range(30)] * 2
    for make in (lambda: UnigramSampler(SCORES), lambda: BytePairSampler(MERGES)):
        full = make()
        expected = [full.draw(word, 0.5, random.Random(1)) for word in words]
        with monkeypatch.context() as patch:
            patch.setattr(sampling, "CACHED_WORDS", 4)
            patch.setattr(sampling, "CACHED_STEPS", 9)
            sampler = make()
            assert [sampler.draw(word, 0.5, random.Random(1)) for word in words] == expected
            assert len(pickle.dumps(sampler)) < len(pickle.dumps(full)) / 2, "what is over is forgotten"


@pytest.mark.medium
@pytest.mark.parametrize("sampler", [UnigramSampler(SCORES), BytePairSampler(MERGES)])
def test_long_words_end(sampler: UnigramSampler | BytePairSampler) -> None:
    word = "abca" * 5000
    assert "".join(sampler.draw(word, 0.1, random.Random(1))) == word
    assert "".join(sampler.best(word)) == word
