"""Mixing encoded corpora: each pair comes as often as its weight says, drawn by seed and epoch alone."""

import copy
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.conftest import configure
from transformer_cli.config import Noise
from transformer_cli.data.corpora import JoinedCorpus, TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.data.held_out import TaggedCorpus
from transformer_cli.data.loader import START, Augmentation, CorpusBatches, load_updates
from transformer_cli.data.mixture import Mixture
from transformer_cli.data.noise import SourceNoise
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs

TAG = "<bt>"


@pytest.fixture(scope="module")
def codecs(corpus: TextCorpus) -> Codecs:
    config = configure("sentencepiece", algorithm="bpe", size=400, symbols=[TAG])
    return build_codecs(config, corpus.pairs)[0]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory, corpus: TextCorpus, codecs: Codecs) -> list[EncodedCorpus]:
    """Some pairs as they are, all pairs with a tag."""
    folder = tmp_path_factory.mktemp("few")
    for side in (corpus.source, corpus.target):
        lines = [*side.lines()][:30]
        (folder / Path(side.name).name).write_text("".join(f"{line}\n" for line in lines))
    few = TextCorpus(folder / "text.de", folder / "text.en")
    return [
        encode_corpus(one, codecs, max_length=60, keep_text=True, cache_folder=folder)
        for one in (few, TaggedCorpus(corpus, TAG))
    ]


def counts(mixture: Mixture, seed: int, epoch: int) -> list[Counter[int]]:
    """How many times each pair of each corpus comes in an epoch."""
    numbers = mixture.epoch(seed, epoch)
    assert len({*numbers.tolist()}) == len(numbers)
    of_all = Counter((numbers % len(mixture)).tolist())
    first = len(mixture.corpora[0])
    return [
        Counter({pair: count for pair, count in of_all.items() if pair < first}),
        Counter({pair: count for pair, count in of_all.items() if pair >= first}),
    ]


@given(weights=st.tuples(*[st.floats(0.01, 4)] * 2), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 1000))
def test_an_epoch_takes_each_pair_as_often_as_its_weight_says(
    weights: tuple[float, float], seed: int, epoch: int, corpora: list[EncodedCorpus]
) -> None:
    mixture = Mixture(corpora, weights)
    for weight, corpus, found in zip(weights, corpora, counts(mixture, seed, epoch), strict=True):
        assert found.total() == max(1, int(weight) * len(corpus) + round((weight - int(weight)) * len(corpus)))
        assert {found[pair] for pair in found} <= {int(weight), int(weight) + 1} - {0}
        assert int(weight) == 0 or len(found) == len(corpus)
    again = copy.deepcopy(mixture)  # as another process gets it
    assert np.array_equal(mixture.epoch(seed, epoch), again.epoch(seed, epoch))


def test_a_fraction_is_drawn_anew_in_each_epoch_and_by_each_seed(corpora: list[EncodedCorpus]) -> None:
    mixture = Mixture(corpora, [1, 0.5])
    drawn = [tuple(mixture.epoch(seed, epoch).tolist()) for seed, epoch in [(1, 0), (1, 1), (2, 0)]]
    assert len({*drawn}) == 3
    assert set.union(*[{*mixture.epoch(1, epoch).tolist()} for epoch in range(20)]) == {*range(len(mixture))}
    both = Mixture([corpora[1], corpora[1]], [0.5, 0.5]).epoch(1, 0)
    first, second = both[both < len(corpora[1])], both[both >= len(corpora[1])] - len(corpora[1])
    assert first.tolist() != second.tolist()  # one corpus twice: not the same half


def test_pairs_are_those_of_the_corpora_tags_before_their_sources(corpora: list[EncodedCorpus], codecs: Codecs) -> None:
    mixture = Mixture(corpora, [2, 1])
    few, tagged = corpora
    assert len(mixture) == len(few) + len(tagged)
    assert (mixture.left_out_empty, mixture.left_out_long) == (
        few.left_out_empty + tagged.left_out_empty,
        few.left_out_long + tagged.left_out_long,
    )
    pairs = np.array([0, len(few) - 1, len(few), len(mixture) - 1, len(mixture) + 3, 0])
    for pair, together in zip(pairs.tolist(), mixture.ids_of(pairs), strict=True):
        source, target = mixture.texts(pair)
        assert source.startswith(f"{TAG} ") == (pair % len(mixture) >= len(few))
        ids = [side.tolist() for side in mixture.ids(pair)]
        assert ids == [codecs.source.encode(source), codecs.target.encode(target)]
        assert ids == [side.tolist() for side in together]
        own = pair % len(mixture)
        assert [len(side) for side in ids] == [mixture.source_lengths[own], mixture.target_lengths[own]]
    with_tag, without = codecs.source.encode(f"{TAG} {few.texts(0)[0]}"), few.ids(0)[0].tolist()
    assert with_tag[-len(without) :] == without
    assert codecs.source.vocabulary[TAG] in with_tag
    assert 0 < len(with_tag) - len(without) <= 2


def test_batches_of_an_epoch_hold_what_the_weights_say(corpora: list[EncodedCorpus], codecs: Codecs) -> None:
    mixture = Mixture(corpora, [2.5, 0.25])
    batches = CorpusBatches(mixture, 300, seed=5)
    for epoch in range(3):
        plan = batches.plan(epoch)
        taken = np.concatenate([plan[batch] for batch in range(len(plan))])
        assert sorted(taken.tolist()) == mixture.epoch(5, epoch).tolist()
        assert plan.target_tokens == sum(len(mixture.ids(pair)[1]) + 1 for pair in taken.tolist())
    sampling = Augmentation(codecs, 60, subword_sampling=0.3)
    drawn = CorpusBatches(mixture, 300, 5, 1, sampling)
    copies = np.array([3, 3 + len(mixture)])  # the same pair, twice in the epoch
    segmentations = [drawn.read(copies[[time]]).source.tolist() for time in range(2)]
    assert segmentations[0] != segmentations[1]
    assert drawn.read(copies[[1]]).source.tolist() == segmentations[1]
    assert drawn.largest(copies).source.size(1) >= max(len(rows[0]) for rows in segmentations)


def test_noise_leaves_tags_alone_and_is_drawn_for_each_time_that_a_pair_comes(
    corpora: list[EncodedCorpus], codecs: Codecs
) -> None:
    noise = SourceNoise(Noise(capitals=0.2, typos=0.5), (TAG,))
    mixture = Mixture(corpora, [1.0, 3.0])
    batches = CorpusBatches(mixture, 300, 5, 1, Augmentation(codecs, 299, noise=noise))
    plan = batches.plan(0)
    sources: dict[int, set[str]] = {}
    for number in range(len(plan)):
        batch = batches.read(plan[number])
        assert batch.source.size(1) <= 1.5 * plan.longest_source[number]
        for row, pair in enumerate(plan[number].tolist()):
            own = pair % len(mixture)
            text = codecs.source.decode(batch.source[row].tolist())
            assert text.startswith(f"{TAG} ") == mixture.texts(own)[0].startswith(f"{TAG} ")
            sources.setdefault(own, set()).add(text)
    assert {len(texts) for own, texts in sources.items() if own < len(corpora[0])} == {1}
    repeated = [len(texts) for own, texts in sources.items() if own >= len(corpora[0])]
    assert sum(count > 1 for count in repeated) > 0.7 * len(repeated)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_resumes_at_any_place(workers: int, corpora: list[EncodedCorpus]) -> None:
    batches = CorpusBatches(Mixture(corpora, [1.5, 0.5]), 300, seed=5)
    count = len(batches.plan(0)) + 3  # into the second epoch
    all_of_them = [*islice(load_updates(batches, start=START), count)]
    place = all_of_them[4].next_position
    rest = islice(load_updates(batches, start=place, workers=workers), count - 5)
    for expected, found in zip(all_of_them[5:], rest, strict=True):
        assert found.next_position == expected.next_position
        assert [one.source.tolist() for one in found.batches] == [one.source.tolist() for one in expected.batches]


def test_the_key_says_what_is_mixed_and_how(corpora: list[EncodedCorpus]) -> None:
    ways = [
        Mixture(corpora, [1, 2]),
        Mixture(corpora, [2, 1]),
        Mixture(corpora[::-1], [1, 2]),
        Mixture(corpora, [1, 1]),
    ]
    assert len({mixture.key for mixture in ways}) == len(ways)
    assert Mixture(corpora, [1, 2]).key == ways[0].key


def test_joined_corpora_follow_each_other(corpus: TextCorpus) -> None:
    tagged = TaggedCorpus(corpus, TAG)
    joined = JoinedCorpus([corpus, tagged])
    assert [*joined.pairs()] == [*corpus.pairs(), *tagged.pairs()]
    assert joined.notes == [*corpus.notes, *tagged.notes]
    assert joined.describe() == f"{corpus.describe()}; {corpus.describe()}"
    assert JoinedCorpus([corpus] * 5).describe().endswith("; and 2 more")
    assert len({joined.content_hash(), JoinedCorpus([tagged, corpus]).content_hash(), corpus.content_hash()}) == 3
    assert TaggedCorpus(corpus, "<x>").content_hash() != tagged.content_hash()


def test_a_blank_source_gets_no_tag(corpus: TextCorpus, tmp_path: Path) -> None:
    for name, text in (("a", " \nx\n"), ("b", "y\nz\n")):
        (tmp_path / name).write_text(text)
    pairs = [*TaggedCorpus(TextCorpus(tmp_path / "a", tmp_path / "b"), TAG).pairs()]
    assert pairs == [(" ", "y"), (f"{TAG} x", "z")]  # so that it is left out as empty
