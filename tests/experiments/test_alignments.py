"""The alignment error rate, by hand; links read from a file."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.errors import UserError
from transformer_cli.text.alignments import AlignedPair

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
FIRST = AlignedPair("a b c", "x y z", sure={(0, 0), (1, 1)}, possible={(0, 0), (1, 1), (2, 1), (2, 2)})
SECOND = AlignedPair("a", "x y", sure={(0, 0)}, possible={(0, 0)})


@pytest.fixture
def alignments(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("alignments")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({(0, 0), (1, 1)}, 0.0),  # all sure ones and nothing else
        ({(0, 0), (1, 1), (2, 2)}, 0.0),  # possible ones cost nothing
        (set(), 1.0),
        ({(2, 0)}, 1.0),
        ({(0, 0), (0, 1)}, 1 - (1 + 1) / (2 + 2)),  # half of the sure ones, half of the found ones
        ({(0, 0), (2, 1), (0, 2)}, 1 - (1 + 2) / (3 + 2)),
    ],
)
def test_the_error_rate_is_what_it_is_by_hand(found: set[tuple[int, int]], expected: float, alignments: Any) -> None:
    assert alignments.alignment_error_rate([found], [FIRST]) == pytest.approx(expected)


def test_all_pairs_count_together(alignments: Any) -> None:
    found = [{(0, 0), (0, 1)}, {(0, 0)}]
    assert alignments.alignment_error_rate(found, [FIRST, SECOND]) == pytest.approx(1 - (2 + 2) / (3 + 3))


def test_a_diagonal_is_exact_on_sentences_of_one_length(alignments: Any) -> None:
    assert alignments.diagonal(AlignedPair("a b c", "x y z", set(), set())) == {(0, 0), (1, 1), (2, 2)}
    assert alignments.diagonal(AlignedPair("a b", "x y z w", set(), set())) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert alignments.diagonal(AlignedPair("a b c", "x", set(), set())) == {(1, 0)}


def test_the_hand_aligned_pairs_are_whole(alignments: Any) -> None:
    pairs = alignments.read_aligned_pairs(EXPERIMENTS / "hand_aligned.de-en.tsv")
    assert len(pairs) == 50
    for pair in pairs:
        assert pair.sure <= pair.possible
        assert {source for source, _ in pair.possible} == set(range(len(pair.source.split())))
        assert {target for _, target in pair.possible} == set(range(len(pair.target.split())))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\tb", "2: has 2 columns"),
        ("a\tb\t0-0\tmore", "2: has 4 columns"),
        ("a\tb\t0+0", "2: '0\\+0' is not a link"),
        ("a\tb\t-1-0", "2: '-1-0' is not a link"),
        ("a\tb\t0-1", "2: '0-1' links a word"),
        ("a\tb\t1?0", "2: '1\\?0' links a word"),
    ],
)
def test_bad_links_are_refused(tmp_path: Path, line: str, message: str, alignments: Any) -> None:
    path = tmp_path / "links.tsv"
    path.write_text(f"a b\tc\t0-0 1?0\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"links.tsv:{message}"):
        alignments.read_aligned_pairs(path)
