"""Where systems differ: groups hold every sentence once, and sentences add up to the difference."""

import numpy as np
import pytest

from tests.evaluation.test_comparing import damaged, sentences
from transformer_cli.evaluation.comparing import compare_two, measure, measure_of_numbers
from transformer_cli.evaluation.differences import Texts, contributions, find_where, has_name

REFERENCES = [f"{line} {number}" if number % 3 == 0 else line for number, line in enumerate(sentences(120))]
SOURCES = [line.upper() if number % 4 else f"Mit Peter {line}" for number, line in enumerate(REFERENCES)]


@pytest.mark.parametrize("metric", ["bleu", "chrf", "ter"])
def test_what_sentences_add_sums_up_to_the_difference(metric: str) -> None:
    one = measure(metric, [[damaged(REFERENCES, rate, 1)] for rate in (0.4, 0.2)], [REFERENCES], "en")
    changes = contributions(one, 1)
    assert changes.shape == (120,)
    assert changes.sum() == pytest.approx(compare_two(one, 0, 1, trials=10).difference, rel=0.05)


def test_sentences_that_differ_most_are_those_that_were_changed() -> None:
    outputs = [damaged(REFERENCES, 0.2, 1), damaged(REFERENCES, 0.2, 1)]
    outputs[1][17], outputs[0][30] = REFERENCES[17], REFERENCES[30]
    outputs[0][17] = outputs[1][30] = "nothing of it"
    one = measure("ter", [[output] for output in outputs], [REFERENCES], "en")
    found = find_where(one, 1, Texts(SOURCES, REFERENCES, [[output] for output in outputs]))
    assert [sentence.line for sentence in found.sentences] == [18, 31]
    first = found.sentences[0]
    assert first.change < 0  # TER falls
    assert (first.source, first.reference, first.a, first.b) == (
        *(SOURCES[17], REFERENCES[17], "nothing of it"),
        REFERENCES[17],
    )


def test_sentences_whose_shown_translations_are_the_same_are_left_out() -> None:
    """Of several runs the first is shown, and another one may be what differs."""
    same, other = damaged(REFERENCES, 0.2, 1), damaged(REFERENCES, 0.2, 1)
    other[17], other[30] = "nothing of it", REFERENCES[30]
    outputs = [[same, same], [[*same[:30], *other[30:]], other]]
    one = measure("chrf", outputs, [REFERENCES], "en")
    assert contributions(one, 1)[17] < 0
    found = find_where(one, 1, Texts(SOURCES, REFERENCES, outputs))
    assert [sentence.line for sentence in found.sentences] == [31]


def test_where_nothing_is_gained_no_sentence_is_said_to() -> None:
    numbers = [[[5.0] * 40], [[5.0 - number / 40 for number in range(40)]]]
    found = find_where(measure_of_numbers("COMET", numbers), 1, Texts(None, None, [[], []]))
    assert [sentence.line for sentence in found.sentences] == [*range(40, 30, -1)]


def test_groups_hold_every_sentence_once() -> None:
    one = measure("chrf", [[damaged(REFERENCES, rate, 1)] for rate in (0.4, 0.2)], [REFERENCES], "en")
    training = {word: count for count, word in enumerate(("the", "dog", "cat", "man", "woman", "runs", "a"))}
    found = find_where(one, 1, Texts(SOURCES, REFERENCES, [[], []]), training)
    length, rarest, numbers = found.groups.values()
    assert [*found.groups] == [
        "length of the source",
        "rarest word of the source in the training data",
        "numbers and names",
    ]
    assert sum(group.sentences for group in length) == 120
    assert [group.name for group in rarest] == ["not in it"]
    assert {group.name: group.sentences for group in numbers}["with a number"] == 40
    assert all(group.interval[0] <= group.difference <= group.interval[1] for group in length)
    assert found.sentences[0].a is None


def test_without_sources_the_reference_is_what_is_grouped_and_without_both_nothing() -> None:
    numbers = np.random.default_rng(1).normal(size=(2, 1, 120)).tolist()
    one = measure_of_numbers("COMET", numbers)
    found = find_where(one, 1, Texts(None, REFERENCES, [[], []]))
    assert [*found.groups] == ["length of the reference", "numbers and names"]
    found = find_where(one, 1, Texts(None, None, [[], []]))
    assert found.groups == {}
    assert len(found.sentences) == 20


def test_a_group_of_few_is_left_out_and_one_length_is_one_group() -> None:
    lines = ["a b c"] * 30 + ["4"] * 9
    one = measure_of_numbers("COMET", np.random.default_rng(1).normal(size=(2, 1, 39)).tolist())
    groups = find_where(one, 1, Texts(lines, lines, [[], []])).groups
    assert [group.name for group in groups["numbers and names"]] == ["with neither"]
    assert [group.sentences for group in groups["length of the source"]] == [39]


def test_names_are_words_with_a_capital_that_are_not_translated() -> None:
    assert has_name("Der Mann sieht Peter.", "The man sees Peter!")
    assert not has_name("Der Mann sieht einen Hund.", "The man sees a dog.")
    assert not has_name("Peter schläft.", "Peter sleeps.")  # it could be any first word
    assert not has_name("I A", "so A")
