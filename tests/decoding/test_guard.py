"""Loops and runaways are flagged, what repeats itself for a reason is not; the better of two searches is kept."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.decoding.echo import Echo, MakeCodecs, make_config
from transformer_cli.decoding import pipeline
from transformer_cli.decoding.engines.protocol import Hypothesis, TokenConstraints
from transformer_cli.decoding.translator import Translator
from transformer_cli.search_options import SearchOptions

OPTIONS = SearchOptions(max_length_ratio=1.0, max_length_extra=0)
SAMPLE = Path(__file__).parents[2] / "data" / "sample"
PLAIN = list(range(100, 112))  # a source without repetition


def ended(ids: Sequence[int]) -> Hypothesis:
    return Hypothesis(list(ids), -1.0, -1.0, True)


@given(
    st.lists(st.integers(4, 30), max_size=6, unique=True),
    st.lists(st.integers(31, 60), min_size=1, max_size=20, unique=True),
    st.integers(3, 8),
    st.lists(st.integers(61, 90), max_size=6, unique=True),
)
def test_a_phrase_again_and_again_is_flagged(
    before: list[int], phrase: list[int], times: int, after: list[int]
) -> None:
    times += len(phrase) == 1  # "..." is three of a kind
    loop = [*before, *phrase * times, *after]
    assert pipeline.repeated(loop, PLAIN) > 0
    assert pipeline.repeated([*before, *phrase * 2, *after], PLAIN) == 0
    assert pipeline.repeated([*before, *phrase * (times + 1), *after], PLAIN) > pipeline.repeated(loop, PLAIN)


@given(st.lists(st.integers(4, 8), max_size=40))
def test_what_the_source_does_too_is_no_fault(ids: list[int]) -> None:
    assert pipeline.repeated(ids, ids) == 0


def test_repetition_in_the_source_excuses_as_much_and_a_little_more() -> None:
    ha, row = [7, 8] * 6, [9] * 10
    assert pipeline.repeated([4, *ha], [5, *ha]) == pipeline.repeated([9] * 11, row) == 0
    assert pipeline.repeated([7, 8] * 7, ha) == 0, "one more may be another way to count"
    assert pipeline.repeated([7, 8] * 8, ha) > 0
    assert pipeline.repeated([9] * 40, row) > 0


def test_a_phrase_that_comes_back_between_others_is_flagged() -> None:
    phrase = [5, 6, 7, 8]
    scattered = [token for number in range(4) for token in (*phrase, 20 + number)]
    assert pipeline.repeated(scattered, PLAIN) > 0
    assert pipeline.repeated(scattered[:-5], PLAIN) == 0, "three times may be right"
    assert pipeline.repeated(scattered, [1, 2, 3, 1, 2]) == 0, "what comes twice in the source may come four times"


@pytest.mark.parametrize("cut", [str.split, list], ids=["words", "characters"])
def test_no_human_translation_is_flagged(cut: Callable[[str], list[str]]) -> None:
    german, english = (
        (SAMPLE / f"train.{language}").read_text(encoding="utf-8").splitlines()[:1000] for language in ("de", "en")
    )
    for source, target in zip(german, english, strict=True):
        ids = [[zlib.crc32(token.encode()) for token in cut(text)] for text in (source, target)]
        assert pipeline.repeated(ids[1], ids[0]) == pipeline.repeated(ids[0], ids[1]) == 0, (source, target)


def test_only_a_limit_that_the_lengths_set_makes_a_runaway() -> None:
    long = list(range(4, 20))
    cut = Hypothesis(long, -1.0, -1.0, False)
    assert OPTIONS.length_limit(12) == len(long)
    assert pipeline.excess_tokens(cut, PLAIN, OPTIONS) == 4
    assert pipeline.excess_tokens(ended(long), PLAIN, OPTIONS) == 0
    assert pipeline.excess_tokens(cut, PLAIN, replace(OPTIONS, max_length=16)) == 0, "who asks for 16 tokens gets 16"
    assert pipeline.excess_tokens(replace(cut, ids=long[:-1]), PLAIN, OPTIONS) == 0, "the model's positions ended there"


def test_runs_are_counted_for_each_length() -> None:
    assert pipeline.runs([]) == pipeline.runs([1]) == []
    assert pipeline.runs([1, 1, 1, 1]) == [4, 2]
    assert pipeline.runs([1, 2, 1, 2, 1, 2, 1]) == [1, 3, 1]


# --- in a translator ----------------------------------------------------------------------------------------------


class Looping(Echo):
    """Gives back what it gets; where that is three tokens, ten times the last one, unless repetition is blocked."""

    def __init__(self, blocked: list[int] | None = None) -> None:
        super().__init__()
        self.blocked = blocked  # what is found instead then; None: the source

    @property
    def searched(self) -> list[tuple[int, int]]:
        """Sentences, and n of the n-grams blocked."""
        return [(len(batch), asked.no_repeat_ngram) for batch, asked in zip(self.batches, self.options, strict=True)]

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        if len(source) != 3:
            return [ended(source)]
        if options.no_repeat_ngram:
            return [ended(source if self.blocked is None else self.blocked)]
        return [ended([*source, *[source[-1]] * 9])]


def translator_of(make_codecs: MakeCodecs, engine: Looping, *, guarded: bool = True) -> Translator:
    config = make_config(max_length=10)
    return Translator(engine, make_codecs(config), config, guard=guarded)


LINES = ["a b c", "a b", "one two three", "", "five"]


def test_what_loops_is_searched_for_again_and_replaced(make_codecs: MakeCodecs) -> None:
    engine = Looping()
    translator = translator_of(make_codecs, engine)
    assert translator.translate(LINES) == LINES
    assert engine.searched == [(4, 0), (2, pipeline.BLOCKED_PHRASE)]
    assert len(translator.notes) == 1
    assert (translator.tally["flagged"], translator.tally["repaired"]) == (2, 2)


def test_what_is_no_better_the_second_time_stays(make_codecs: MakeCodecs) -> None:
    worse = [4] * 30
    engine = Looping(blocked=worse)
    translator = translator_of(make_codecs, engine)
    assert translator.translate(["a b c"]) == ["a b c" + " c" * 9]
    assert (translator.tally["flagged"], translator.tally["repaired"]) == (1, 0)


def test_the_guard_can_be_off(make_codecs: MakeCodecs) -> None:
    engine = Looping()
    translator = translator_of(make_codecs, engine, guarded=False)
    assert translator.translate(["a b c", "a"]) == ["a b c" + " c" * 9, "a"]
    assert engine.searched == [(2, 0)]
    assert translator.notes == []


class Several(Echo):
    """Finds what it is told, for every source."""

    def __init__(self, texts: Sequence[list[int]]) -> None:
        super().__init__()
        self.texts = texts

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [ended(ids) for ids in self.texts]


@pytest.mark.parametrize("guarded", [True, False])
def test_minimum_bayes_risk_never_chooses_a_loop_where_there_is_another(make_codecs: MakeCodecs, guarded: bool) -> None:
    codecs = make_codecs(make_config())
    loop, sound = codecs.target.encode("one two" + " one two" * 5), codecs.target.encode("three four")
    engine = Several([sound, loop, loop])
    translator = Translator(engine, codecs, make_config(), guard=guarded)
    (found,) = translator.translate_batch(["a b c"], SearchOptions(n_best=3), mbr=True)
    assert (found.text == "three four") is guarded
    assert len(engine.batches) == 1, "nothing is searched for again"


def test_where_repetition_is_blocked_already_nothing_is_searched_twice(make_codecs: MakeCodecs) -> None:
    engine = Looping(blocked=[4] * 30)
    translator = translator_of(make_codecs, engine)
    translator.translate_batch(["a b c"], SearchOptions(no_repeat_ngram=2))
    assert engine.searched == [(1, 2)]
    assert translator.tally["repaired"] == 0


@pytest.mark.parametrize("window", [1, 2, 100])
def test_repaired_translations_keep_their_places(make_codecs: MakeCodecs, window: int) -> None:
    lines = LINES * 5
    engine = Looping()
    translator = translator_of(make_codecs, engine)
    assert [one.text for one in translator.translate_lines(lines, window=window)] == lines
    assert translator.tally["repaired"] == 10
