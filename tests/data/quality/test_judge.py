"""What is planted is found, little else is, and how the work is divided changes nothing."""

import random
from collections.abc import Mapping

import numpy as np
import pytest

from tests.data.quality.conftest import Pair, Pairs, multi30k
from tests.data.quality.planting import plant, plant_otherwise
from transformer_cli.data.quality import judge as module
from transformer_cli.data.quality.judge import Bounds, Judgement, judge_corpus

NATURAL = ("duplicate_pair", "duplicate_source", "overlap_valid", "overlap_test")  # a sound corpus has some


def measure(found: Judgement, planted: Mapping[str, set[int]], clean: Judgement) -> dict[str, tuple[float, float]]:
    """Recall and precision of each kind; what a sound corpus repeats anyway is no mistake."""
    measured = {}
    for kind, lines in planted.items():
        named = {*found.lines.get(kind, np.zeros(0, int)).tolist()}
        if kind in NATURAL and kind in clean.lines:
            named -= {*clean.lines[kind].tolist()} - lines
        measured[kind] = len(named & lines) / len(lines), len(named & lines) / max(1, len(named))
    return measured


def check(measured: dict[str, tuple[float, float]], recall: float = 0.95, precision: float = 0.9) -> None:
    assert {kind: both for kind, both in measured.items() if both[0] < recall or both[1] < precision} == {}


def flagged(found: Judgement) -> float:
    """The share of pairs that are flagged by what a filter would drop, natural repetitions apart."""
    lines = set().union(*(lines.tolist() for kind, lines in found.lines.items() if kind not in NATURAL))
    return len(lines) / found.pairs


@pytest.mark.medium
def test_faults_planted_into_the_sample_are_found(sample: list[Pair]) -> None:
    pairs = sample[:6000]
    clean = judge_corpus(Pairs(pairs))
    assert flagged(clean) <= 0.005
    planted_pairs, planted = plant(pairs, seed=3)
    found = judge_corpus(Pairs(planted_pairs))
    for kind in ("duplicate_source", "wrong_language"):  # half of such a pair is new, and its numbers differ
        others = planted[kind] - planted["number_mismatch"]
        found.lines["number_mismatch"] = np.setdiff1d(found.lines["number_mismatch"], [*others])
    del planted["duplicate_source"]  # which so simple a corpus has many of by nature, two by two
    check(measure(found, planted, clean))


@pytest.mark.medium
def test_contradictions_are_left_out_and_several_translations_stay(sample: list[Pair]) -> None:
    """A pair with the source, or the target, of another goes, wherever it stands."""
    pairs = [pair for pair in sample if min(len(text.split()) for text in pair) > 5][:3000]
    drawn = random.Random(5).sample(range(len(pairs)), 120)
    changed, others = drawn[:60], drawn[60:]
    for place, other in zip(changed, others, strict=True):
        kept = place % 2
        pairs[place] = (pairs[place][0], pairs[other][1]) if kept else (pairs[other][0], pairs[place][1])
    good = [
        (source, f"Well , {target}") for source, target in pairs[:200] if pairs.index((source, target)) not in drawn
    ]
    judged = judge_corpus(Pairs([*pairs, *good]))
    clean = judge_corpus(Pairs([pair for place, pair in enumerate(pairs) if place not in changed]))
    found = {line - 1 for line in judged.left_out("duplicate_source").tolist()}
    assert len(found & {*changed}) >= 0.75 * len(changed)
    assert len(found - {*changed}) <= 3 + len(clean.left_out("duplicate_source"))
    named = {line - 1 for line in judged.lines["duplicate_source"].tolist()}
    assert found <= named
    assert {*range(len(pairs), len(pairs) + len(good))} <= named | {*others}


def test_a_third_language_on_both_sides_is_not_called_swapped(sample: list[Pair]) -> None:
    """Though one side looks rather like the other one's language, and that one like its."""
    like_english = ["Un homme tient une guitare et observe sa chemise.", "Deux hommes préparent une pomme."]
    like_german = ["Une petite fille danse dehors entre deux garçons.", "Des jeunes hommes grimpent dans les buissons."]
    pairs = [*sample[:3000], *zip(like_english, like_german, strict=True), *(pair[::-1] for pair in sample[3000:3010])]
    found = judge_corpus(Pairs(pairs))
    assert found.lines["swapped_sides"].tolist() == [*range(3003, 3013)]
    assert {3001, 3002} <= {*found.lines["wrong_language"].tolist()}


def test_letters_of_another_script_and_addresses_are_no_language(sample: list[Pair]) -> None:
    pairs = list(sample[:3000])
    for line in range(0, 3000, 100):
        source, target = pairs[line]
        pairs[line] = (source.replace("e", "е"), target)
        pairs[line + 1] = tuple(f"{text} https://zqxj.kw/xzyqv/wpqzxjv?y=qvw" for text in pairs[line + 1])  # type: ignore[assignment]
    assert "wrong_language" not in judge_corpus(Pairs(pairs)).lines


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target", "third"), [("de", "en", "fr"), ("en", "fr", "de")])
@pytest.mark.parametrize("seed", [1, 7])
@pytest.mark.parametrize("other", [False, True], ids=["as planted", "otherwise"])
def test_faults_planted_into_multi30k_are_found(source: str, target: str, third: str, seed: int, other: bool) -> None:
    pairs = multi30k(source, target)
    names = {"valid": "val", "test": "test_2016_flickr"}
    others = {name: multi30k(source, target, split) for name, split in names.items()}
    corpora = {name: Pairs(some) for name, some in others.items()}
    foreign = [text for text, _ in multi30k(third, target)]
    clean = judge_corpus(Pairs(pairs), others=corpora)
    assert flagged(clean) <= 0.005
    assert clean.regions == []
    if other:
        found, planted = plant_otherwise(pairs, others, seed=seed, foreign=foreign)
    else:
        found, planted = plant(pairs, seed=seed, foreign=foreign)
    check(measure(judge_corpus(Pairs(found), others=corpora), planted, clean))


def lines_of(found: Judgement) -> dict[str, list[int]]:
    return {kind: lines.tolist() for kind, lines in found.lines.items()}


def test_neither_processes_nor_parts_change_what_is_found(sample: list[Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, _ = plant(sample[:2400], seed=2)
    others = {"test": Pairs(sample[100:140])}
    found = judge_corpus(Pairs(pairs), others=others)
    monkeypatch.setattr(module, "PART", 777)
    shared = judge_corpus(Pairs(pairs), others=others, workers=2)
    parts = judge_corpus(Pairs(pairs), others=others)
    for again in (shared, parts):
        assert lines_of(again) == lines_of(found)
        assert (again.regions, again.rare, again.characters) == (found.regions, found.rare, found.characters)
        assert (again.lengths, again.ratios) == (found.lengths, found.ratios)
    assert len(found.lines) > 12


@pytest.mark.parametrize("count", [0, 1, 3, 250])
def test_small_corpora_are_judged(sample: list[Pair], count: int) -> None:
    found = judge_corpus(Pairs([*sample[:count], ("", "x")]))
    assert found.lines["empty_side"].tolist() == [count + 1]
    assert found.pairs == count + 1


def test_a_corpus_of_one_language_is_not_said_to_be_in_the_wrong_one(sample: list[Pair]) -> None:
    """Its sides cannot be told apart, so nothing is said of languages."""
    texts = [target for _, target in sample[:3000]]
    found = judge_corpus(Pairs([*zip(texts[::2], texts[1::2], strict=True)]))
    assert not {"swapped_sides", "wrong_language"} & {*found.lines}


def test_the_bound_on_lengths_may_be_given(sample: list[Pair]) -> None:
    found = [judge_corpus(Pairs(sample[:2000]), Bounds(256, ratio)) for ratio in (1.2, 1.6, 9.0)]
    counts = [len(one.lines.get("length_ratio", [])) for one in found]
    assert counts[0] > counts[1] > counts[2] == 0


def test_what_is_shared_with_the_test_set_is_found_exactly_normalized_and_nearly(sample: list[Pair]) -> None:
    test = [pair for pair in sample if min(len(text.split()) for text in pair) > 6][:30]
    train = [pair for pair in sample[:2000] if pair not in test]
    source, target = test[0]
    words = test[3][1].split()
    words[2] = "suddenly"
    shared = [(source, "?"), ("!", target.upper()), (f"«{test[1][0]}»  !", "x"), ("y", " ".join(words))]
    found = judge_corpus(Pairs([*train, *shared]), others={"test": Pairs(test)})
    assert {*range(len(train) + 1, len(train) + 5)} <= {*found.lines["overlap_test"].tolist()}
    assert "overlap_valid" not in found.lines


def test_rare_characters_are_named_with_their_lines(sample: list[Pair]) -> None:
    pairs = [*sample[:300], ("ħ ħ", "]"), *sample[300:600], ("^", "ħ")]
    found = judge_corpus(Pairs(pairs))
    assert found.rare["ħ"] == [301, 602]
    assert (found.rare["]"], found.rare["^"]) == ([301], [602])


def test_the_sample_is_drawn_from_the_whole_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE", 100)
    pairs = [(str(number), "") for number in range(5000)]
    sample, count = module._sample(iter(pairs), seed=1)
    drawn = [int(source) for source, _ in sample]
    assert (count, len(set(drawn))) == (5000, 100)
    assert 1900 < sum(drawn) / 100 < 3100
    assert sample == module._sample(iter(pairs), seed=1)[0] != module._sample(iter(pairs), seed=2)[0]


def test_shuffled_lines_are_no_region(sample: list[Pair]) -> None:
    """A shift is what neighbours agree on."""
    pairs = sample[:3000]
    targets = [target for _, target in pairs[1000:1200]]
    random.Random(1).shuffle(targets)
    pairs[1000:1200] = [(source, target) for (source, _), target in zip(pairs[1000:1200], targets, strict=True)]
    assert judge_corpus(Pairs(pairs)).regions == []
