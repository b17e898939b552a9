"""The table of chrF is sacreBLEU's, and the candidate that is most like all comes first."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from tests.decoding.echo import Echo, MakeCodecs, make_config
from transformer_cli.decoding.engines.protocol import Hypothesis, TokenConstraints
from transformer_cli.decoding.mbr import by_utility, chrf_table
from transformer_cli.decoding.translation import Candidate
from transformer_cli.decoding.translator import Translator
from transformer_cli.search_options import SearchOptions

texts = st.lists(
    st.text("ab \u00e9漢", max_size=12) | st.sampled_from(["", " ", "a dog sleeps", "the dog sleeps.", "a" * 30]),
    min_size=1,
    max_size=7,
)


def candidate(text: str, score: float = -1.0) -> Candidate:
    return Candidate(text, score, 3 * score, text.split(), None, True)


def likeness(one: str, other: str) -> float:
    """sacreBLEU's sentence chrF, 0 to 1."""
    return 1.0 if one == other else CHRF().sentence_score(one, [other]).score / 100


@settings(max_examples=60)
@given(texts)
def test_the_table_is_that_of_sacrebleu(lines: list[str]) -> None:
    metric = CHRF()
    expected = np.array([[metric.sentence_score(one, [other]).score / 100 for other in lines] for one in lines])
    np.fill_diagonal(expected, 1.0)
    np.testing.assert_allclose(chrf_table(lines), expected, atol=1e-12)


@settings(max_examples=40)
@given(texts)
def test_the_one_most_like_the_others_comes_first(lines: list[str]) -> None:
    ranked = by_utility([candidate(line, -float(rank)) for rank, line in enumerate(lines)])
    means = {line: sum(likeness(line, other) for other in lines) / len(lines) for line in lines}
    assert sorted(one.text for one in ranked) == sorted(lines)
    assert [one.utility for one in ranked] == pytest.approx([means[one.text] for one in ranked])
    assert means[ranked[0].text] == pytest.approx(max(means.values()))
    scores = {(line, -float(rank), -3.0 * rank) for rank, line in enumerate(lines)}
    assert {(one.text, one.score, one.log_probability) for one in ranked} == scores, "scores stay the model's"


def test_one_candidate_is_itself() -> None:
    for text in ("a dog", ""):
        (found,) = by_utility([candidate(text)])
        assert (found.text, found.utility, found.score) == (text, 1.0, -1.0)


def test_among_equals_the_models_order_stays() -> None:
    lines = ["ab", "cd", "ef"]
    assert [one.text for one in by_utility([candidate(line) for line in lines])] == lines


def test_what_is_drawn_often_weighs_as_often() -> None:
    lines = ["a dog sleeps", "a dog sleeps there", "the cats eat", "the cats eat", "the cats eat"]
    assert by_utility([candidate(line) for line in lines])[0].text == "the cats eat"
    once = [candidate(line) for line in dict.fromkeys(lines)]
    assert by_utility(once)[0].text.startswith("a dog")


def test_a_hundred_candidates_take_no_time() -> None:
    words = [f"word{number % 11}" for number in range(18)]
    lines = [" ".join(words[turn % 17 :] + words[: turn % 13] + [str(turn)]) for turn in range(100)]
    chrf_table(lines)
    began = time.process_time()
    chrf_table(lines)
    between = time.process_time()
    for line in lines[:5]:  # of a hundred rows
        for other in lines:
            CHRF().sentence_score(line, [other])
    assert between - began < time.process_time() - between


class Drawing(Echo):
    """Draws the source, and again, and then something else."""

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        drawn = [[10, 11, 12], source, source]
        return [Hypothesis(ids, -float(rank), -float(rank), True) for rank, ids in enumerate(drawn)]


def test_a_translator_orders_by_utility_where_it_is_asked_to(make_codecs: MakeCodecs) -> None:
    config = make_config(max_length=3)
    translator = Translator(Drawing(), make_codecs(config), config)
    line = "one two three"
    options = SearchOptions(method="sample", n_best=3)
    plain = translator.translate_batch([line], options, alignments=False)[0]
    assert plain.text != line
    assert [one.utility for one in plain.hypotheses] == [None] * 3
    chosen = translator.translate_batch([line], options, alignments=False, mbr=True)[0]
    assert [one.text for one in chosen.hypotheses] == [line, line, plain.text]
    assert [one.score for one in chosen.hypotheses] == [-1.0, -2.0, 0.0]
    long = translator.translate_batch([f"{line} {line}"], options, alignments=False, mbr=True)[0]
    assert long.text == f"{line} {line}", "each piece by itself"
    assert long.hypotheses[0].utility == pytest.approx(chosen.hypotheses[0].utility)
