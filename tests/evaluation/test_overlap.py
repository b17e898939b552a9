"""Test lines that the training data has too are all found, and no others; scores without them are those of the rest."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_cli.config import config_of_tree
from transformer_cli.data.held_out import HeldOut
from transformer_cli.errors import UserError
from transformer_cli.evaluation import overlap as module
from transformer_cli.evaluation.evaluate import Evaluation, EvaluationSet, corpus_scores, subset_scores
from transformer_cli.evaluation.overlap import Overlap, find_overlap, scores_without, shared_lines
from transformer_cli.processes import map_in_processes
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import HELD_OUT

Pair = tuple[str, str]
METRICS = ["bleu", "chrf", "ter"]


class Pairs:
    """A corpus in memory."""

    def __init__(self, pairs: list[Pair]) -> None:
        self.notes: list[str] = []
        self._pairs = pairs

    def pairs(self) -> Iterator[Pair]:
        yield from self._pairs

    def content_hash(self) -> str:
        raise NotImplementedError

    def describe(self) -> str:
        raise NotImplementedError


def draw_pairs(count: int, seed: int = 1) -> list[Pair]:
    draw = random.Random(seed)
    return [
        (
            " ".join(f"{side}{draw.randrange(3000)}" for _ in range(9)),
            " ".join(f"t{draw.randrange(3000)}" for _ in range(9)),
        )
        for side in "s" * count
    ]


def set_of(pairs: list[Pair], *others: list[str]) -> EvaluationSet:
    sources, first = (list(side) for side in zip(*pairs, strict=True))
    return EvaluationSet(sources, [first, *others], [])


def lines(mask: Any) -> list[int]:
    return (mask.nonzero()[0] + 1).tolist()  # type: ignore[no-any-return]


def changed(text: str) -> str:
    words = text.split()
    return " ".join([*words[:4], "other", *words[5:]])


def test_a_line_is_named_where_a_side_of_it_is_in_training_exactly_normalized_or_nearly() -> None:
    test = draw_pairs(12)
    train = [
        (test[0][0], "x"),
        ("x", test[1][1]),
        (f"«{test[2][0].upper()}»  !", "x"),
        ("x", changed(test[4][1])),
        (test[6][1], test[7][0]),  # on the other side each
        (" ".join(reversed(test[8][0].split())), "x"),
    ]
    assert lines(shared_lines(set_of(test), Pairs(draw_pairs(300, seed=2) + train))) == [1, 2, 3, 5]


def test_every_reference_counts() -> None:
    test = draw_pairs(6)
    others = [[pair[1] for pair in draw_pairs(6, seed)] for seed in (3, 4)]
    train = [("x", others[0][1]), ("y", changed(others[1][4])), (others[0][5], "z")]
    assert lines(shared_lines(set_of(test, *others), Pairs(train))) == [2, 5]


def test_pairs_with_an_empty_side_are_not_trained_on() -> None:
    test = [*draw_pairs(2), ("", "t1 t2"), ("s1 s2", "")]
    train = [("", "a"), ("b", " "), (test[0][0], ""), ("\t", test[1][1])]
    assert not shared_lines(set_of(test, ["", "", "u", "v"]), Pairs(train)).any()


def test_all_lines_that_look_alike_are_named() -> None:
    """Not only those that are compared first."""
    text = draw_pairs(1)[0][0].split()
    test = [(" ".join([*text, str(number)]), f"t{number}") for number in range(20)] + [(" ".join(text), "t")] * 5
    assert lines(shared_lines(set_of(test), Pairs([(" ".join([*text, "end"]), "x")]))) == [*range(1, 26)]


@pytest.mark.medium
@pytest.mark.parametrize("workers", [0, 2])
def test_large_training_data_is_compared_by_processes(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 100)
    monkeypatch.setattr(module, "FEW", 2)
    used: list[int] = []

    def watched(prepare: Any, items: Any, workers: int) -> Any:
        used.append(workers)
        return map_in_processes(prepare, items, workers)

    monkeypatch.setattr(module, "map_in_processes", watched)
    test = draw_pairs(10)
    train = draw_pairs(950, seed=2)
    for place, line in ((0, 0), (450, 3), (949, 8)):
        train[place] = test[line]
    assert lines(shared_lines(set_of(test), Pairs(train), workers)) == [1, 4, 9]
    assert used == ([2] if workers else [])
    shared_lines(set_of(test), Pairs(train[:200]), workers)
    assert len(used) == (1 if workers else 0), "few pairs need none"


# --- what a model was trained on -------------------------------------------------------------------------------------


def write(folder: Path, name: str, pairs: list[Pair]) -> dict[str, str]:
    for side, texts in zip("ab", zip(*pairs, strict=True), strict=True):
        (folder / f"{name}.{side}").write_text("".join(f"{text}\n" for text in texts))
    return {"source": str(folder / f"{name}.a"), "target": str(folder / f"{name}.b")}


def model(folder: Path, **data: Any) -> Any:
    tree = {"data": {"source_language": "de", "target_language": "en", "workers": 0, **data}}
    (folder / "run" / "step-00000001").mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(config=config_of_tree(tree, "config"), folder=folder / "run" / "step-00000001")


def test_all_sources_of_the_training_data_and_all_models_count(tmp_path: Path) -> None:
    test = draw_pairs(8)
    sources = [
        {**write(tmp_path, "one", [*draw_pairs(5, 2), test[2]]), "tag": "<a>"},
        {**write(tmp_path, "two", [test[5], *draw_pairs(5, 3)]), "weight": 0.5},
    ]
    valid = write(tmp_path, "valid", draw_pairs(5, 4))
    mixed = model(tmp_path, train=sources, valid=valid)
    other = model(tmp_path, train=write(tmp_path, "three", [test[0]]), valid=valid)
    assert find_overlap([mixed], set_of(test)) == Overlap(8, [3, 6])
    assert find_overlap([mixed, other], set_of(test)).lines == [1, 3, 6]


def test_a_source_with_a_tag_may_have_its_sides_exchanged(tmp_path: Path) -> None:
    test = draw_pairs(8)
    both = [(target, source) for source, target in test[:2]]
    plain, back = write(tmp_path, "plain", [*draw_pairs(5, 2), test[3]]), write(tmp_path, "back", both)
    valid = write(tmp_path, "valid", draw_pairs(5, 4))
    tagged = model(tmp_path, train=[plain, {**back, "tag": "<2de>"}], valid=valid)
    assert find_overlap([tagged], set_of(test)).lines == [1, 2, 4]
    assert find_overlap([model(tmp_path, train=[plain, back], valid=valid)], set_of(test)).lines == [4]


def test_what_was_filtered_or_held_out_was_not_trained_on(tmp_path: Path) -> None:
    test = draw_pairs(8)
    train = write(tmp_path, "train", [*draw_pairs(300, 2), test[1], test[4], ("x", test[6][1])])
    files = write(tmp_path, "test", test[:5])
    valid = write(tmp_path, "valid", draw_pairs(5, 4))
    filtered = model(tmp_path, train=train, test=files, valid=valid, filters=["overlap_test"])
    assert find_overlap([filtered], set_of(test)).lines == [7], "of data.test nothing is left"

    trained = model(tmp_path, train=train)
    assert find_overlap([trained], set_of(test)).lines == [2, 5, 7]
    folder = tmp_path / "run" / HELD_OUT
    publish(folder, HeldOut([test[4], *draw_pairs(2, 5)], trained.config.data, folder).save)
    assert find_overlap([trained], set_of(test)).lines == [2, 7]


def test_where_the_training_data_cannot_be_read_it_is_said_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    valid = write(tmp_path, "valid", draw_pairs(5, 4))
    gone = model(tmp_path, train={"source": str(tmp_path / "no.a"), "target": str(tmp_path / "no.b")}, valid=valid)
    found = find_overlap([gone], set_of(draw_pairs(3)))
    assert (found.lines, found.unknown) == ([], f"{tmp_path}/no.a: no such file")

    for error in (UserError("hub: cannot be downloaded: no route; use local files"), OSError("hub: cannot be read")):

        def fail(*_: Any, raised: Exception = error) -> None:
            raise raised

        monkeypatch.setattr(module, "open_trained", fail)
        unknown = find_overlap([gone], set_of(draw_pairs(3))).unknown
        assert unknown == str(error).removesuffix("; use local files")


# --- scores ----------------------------------------------------------------------------------------------------------


def evaluated(copied: set[int], count: int = 120) -> tuple[Evaluation, EvaluationSet]:
    """Translations of which those copied are perfect, the others half as good."""
    test = draw_pairs(count)
    draw = random.Random(3)
    translations = []
    for line, (_, target) in enumerate(test, start=1):
        words = target.split()
        place = draw.randrange(3, 6)
        translations.append(target if line in copied else " ".join([*words[:place], "no", *words[place + 1 :]]))
    test_set = set_of(test)
    return Evaluation(
        translations, corpus_scores(translations, test_set.references, "en", METRICS, intervals=True), 1.0
    ), test_set


def test_the_scores_without_some_lines_are_those_of_the_others_and_memorised_lines_matter() -> None:
    copied = {*range(1, 121, 3)}
    evaluation, test_set = evaluated(copied)
    found = scores_without(Overlap(120, sorted(copied)), evaluation, test_set, "en")
    rest = [line for line in range(120) if line + 1 not in copied]
    expected = corpus_scores(
        [evaluation.translations[line] for line in rest],
        [[test_set.references[0][line] for line in rest]],
        "en",
        METRICS,
        intervals=True,
    )
    for score, own, whole in zip(found, expected, evaluation.scores, strict=True):
        assert {**vars(score), "by_chance": None} == {**vars(own), "by_chance": None}
        low, high = score.by_chance
        assert low < whole.score < high
        assert score.differs


@pytest.mark.medium
def test_lines_like_any_others_do_not_matter() -> None:
    evaluation, test_set = evaluated({*range(1, 121, 4)})
    overlap = Overlap(120, [line for line in range(1, 121) if line % 12 in (1, 2, 3, 4)])
    assert not any(score.differs for score in scores_without(overlap, evaluation, test_set, "en"))
    perfect, test_set = evaluated({*range(1, 121)})
    assert not any(score.differs for score in scores_without(overlap, perfect, test_set, "en"))


@pytest.mark.medium
def test_chance_alone_seldom_differs() -> None:
    evaluation, test_set = evaluated({*range(1, 121, 4)})
    draw = random.Random(5)
    differing = 0
    for _ in range(40):
        chosen = sorted(draw.sample(range(1, 121), 80))
        (score,) = subset_scores(evaluation.translations, test_set.references, "en", ["bleu"], chosen)
        differing += score.differs
    assert differing <= 7  # two are expected


def test_without_overlap_the_scores_are_those_of_all_and_without_the_rest_there_are_none() -> None:
    evaluation, test_set = evaluated(set(), count=10)
    found = scores_without(Overlap(10, []), evaluation, test_set, "en")
    assert [(one.metric, one.score, one.mean, one.differs) for one in found] == [
        (one.metric, one.score, one.mean, False) for one in evaluation.scores
    ]
    assert scores_without(Overlap(10, [*range(1, 11)]), evaluation, test_set, "en") == []
    assert scores_without(Overlap(10, [], "gone"), evaluation, test_set, "en") == []
