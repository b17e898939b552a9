"""What is wrong with a synthetic sentence leaves out its pair, by name; the list of sources gets one more."""

import pickle
from dataclasses import replace

import pytest

from transformer_cli.config import Config, parse_config
from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.backtranslating import FAULTS, KEPT, PairFilters, beside
from transformer_cli.jobs.shards import Shard

TEXT = "two dogs run in a park"
SHARD = Shard(0, 0, [])


def translation(text: str, source: str = TEXT, *, score: float = -1.0, ended: bool = True) -> Translation:
    best = Candidate(text, score, score, text.split(), None, ended)
    return Translation(Line(source), source.split(), [best, replace(best, text="another", ended=True)])


FAULTY = {
    "": translation("zwei hunde laufen im park"),
    "empty_side": translation(" "),
    "too_long": translation("zwei hunde laufen im park und noch ein hund", ended=True),
    "length_ratio": translation("hunde", TEXT + " and two more"),
    "repetition": translation("hunde hunde hunde hunde hunde"),
    "identical_sides": translation("Two dogs run in a park!"),
    "low_score": translation("zwei hunde laufen im park", score=-2.1),
}


def kinds(filters: PairFilters, *translations: Translation) -> list[str]:
    return [row.split("\t", 2)[0] for row in filters.rows(SHARD, translations)]


def test_each_fault_is_found_by_its_name() -> None:
    filters = PairFilters(8, min_score=-2.0)
    assert kinds(filters, *FAULTY.values()) == [*FAULTY]
    assert {*FAULTS} == {*FAULTY, "wrong_language"} - {""}
    assert kinds(filters, translation("zwei hunde", ended=False)) == ["too_long"]


@pytest.mark.parametrize("fault", KEPT)
def test_what_is_to_be_kept_is_no_fault(fault: str) -> None:
    found = kinds(PairFilters(8, min_score=-2.0, keep=frozenset({fault})), *FAULTY.values())
    assert found == ["" if kind == fault else kind for kind in FAULTY]
    with pytest.raises(UserError, match="--keep low_score: there is no such fault; choose too_long"):
        PairFilters(8, keep=frozenset({fault, "low_score"}))


def test_the_bounds_are_inclusive() -> None:
    score, eight = translation("zwei hunde laufen", score=-2.0), translation("a b c d e f g h")
    assert kinds(PairFilters(8, min_score=-2.0), score, eight) == ["", ""]
    assert kinds(PairFilters(8, min_score=-1.9), score) == ["low_score"]
    twelve = translation("a b c d e f g h i j k l", "A B C D")  # (12 + 4) / (4 + 4)
    assert kinds(PairFilters(99), twelve) == [""]
    assert kinds(PairFilters(99, max_ratio=1.99), twelve) == ["length_ratio"]


def test_short_copies_are_names() -> None:
    assert kinds(PairFilters(8), translation("New York", "new york!"), translation("...", "...")) == ["", ""]


def test_a_row_holds_fault_score_and_text() -> None:
    text = "zwei\thunde laufen im park"
    assert [*PairFilters(8).rows(SHARD, [translation(text)])] == [f"\t-1.0000\t{text}"]
    assert [*PairFilters(8).rows(SHARD, [])] == []


def test_another_language_is_found_where_one_is_known() -> None:
    texts = [f"the dog and the water {number} with this thing" for number in "abcdefgh" * 30]
    others = [f"der hund und das wasser {number} mit diesem ding" for number in "abcdefgh" * 30]
    languages = LanguageIdentifier.learn(texts, others, ("en", "de"))
    assert languages is not None
    filters = pickle.loads(pickle.dumps(PairFilters(20, languages)))  # noqa: S301  (as it goes to other processes)
    german, english = translation("der hund und das wasser"), translation("the dog and that thing")
    foreign = translation("жук ёж щука юла эхо")
    assert kinds(filters, german, english, foreign) == ["", "wrong_language", "wrong_language"]
    assert kinds(replace(filters, keep=frozenset({"wrong_language"})), english) == [""]
    assert kinds(PairFilters(20), english) == [""]


def config(train: str) -> Config:
    return parse_config(f"data: {{source_language: de, target_language: en, train: {train}}}", "config.yaml")


def test_the_list_of_sources_gets_one_more_once() -> None:
    made = {"source": "out/train.de", "target": "out/train.en", "tag": "<bt>"}
    own = {"source": "a.de", "target": "a.en"}
    assert beside(config("{source: a.de, target: a.en}"), made) == [own, made]
    assert beside(config("{source: out/train.de, target: out/train.en}"), made) == [
        {"source": "out/train.de", "target": "out/train.en"}
    ]
    both = config("[{source: a.de, target: a.en, weight: 2}, {file: b.tsv, tag: null}]")
    assert beside(both, made) == [{**own, "weight": 2.0}, {"file": "b.tsv"}, made]
    hub = {"dataset": "bentrevett/multi30k", "split": "train"}
    assert beside(config("{dataset: bentrevett/multi30k, split: train}"), made) == [hub, made]
