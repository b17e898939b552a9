"""The alignment error rate, by hand; links read from a file, and found by an engine."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from transformer_cli.config import Config
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.alignments import align_texts, alignment_error_rate, diagonal, read_aligned_pairs
from transformer_cli.text.alignments import AlignedPair, token_words
from transformer_cli.text.build import build_codecs

HAND_ALIGNED = Path(__file__).parents[2] / "experiments" / "hand_aligned.de-en.tsv"
FIRST = AlignedPair("a b c", "x y z", sure={(0, 0), (1, 1)}, possible={(0, 0), (1, 1), (2, 1), (2, 2)})
SECOND = AlignedPair("a", "x y", sure={(0, 0)}, possible={(0, 0)})


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
def test_the_error_rate_is_what_it_is_by_hand(found: set[tuple[int, int]], expected: float) -> None:
    assert alignment_error_rate([found], [FIRST]) == pytest.approx(expected)


def test_all_pairs_count_together() -> None:
    found = [{(0, 0), (0, 1)}, {(0, 0)}]
    assert alignment_error_rate(found, [FIRST, SECOND]) == pytest.approx(1 - (2 + 2) / (3 + 3))


def test_a_diagonal_is_exact_on_sentences_of_one_length() -> None:
    assert diagonal(AlignedPair("a b c", "x y z", set(), set())) == {(0, 0), (1, 1), (2, 2)}
    assert diagonal(AlignedPair("a b", "x y z w", set(), set())) == {(0, 0), (0, 1), (1, 2), (1, 3)}
    assert diagonal(AlignedPair("a b c", "x", set(), set())) == {(1, 0)}


def test_the_hand_aligned_pairs_are_whole() -> None:
    pairs = read_aligned_pairs(HAND_ALIGNED)
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
def test_bad_links_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "links.tsv"
    path.write_text(f"a b\tc\t0-0 1?0\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"links.tsv:{message}"):
        read_aligned_pairs(path)


class Reversing:
    """Aligns the last token to the first, and so on."""

    name = "reversing"
    max_source_length = max_target_length = None

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
    ) -> list[list[int]]:
        self.asked = layer, heads
        return [
            [max(0, len(source) - 1 - place) for place in range(len(target))]
            for source, target in zip(sources, targets, strict=True)
        ]


@pytest.mark.parametrize("tokenizer", ["whitespace", "character", "sentencepiece"])
def test_links_of_tokens_become_links_of_words(tokenizer: str) -> None:
    files = {"source": "a", "target": "b"}
    config = Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "train": files, "valid": files},
            "vocabulary": {"tokenizer": tokenizer, "size": 270, "algorithm": "bpe"},
        }
    )
    codecs, _ = build_codecs(config, lambda: [("abc de f", "abc de f")])
    for text in ("abc de f", "f", "abcdef, 😀 x"):
        words = token_words(codecs.source, text)
        assert len(words) == len(codecs.source.encode(text))
        assert sorted(set(words)) == list(range(len(text.split())))
        assert words == sorted(words)
    engine = Reversing()
    translator = Translator(engine, codecs, config)  # type: ignore[arg-type]
    (links,) = align_texts(translator, ["abc de"], ["abc de"], attention=(1, [0]))
    assert {(0, 1), (1, 0)} <= links
    assert engine.asked == (1, [0])
