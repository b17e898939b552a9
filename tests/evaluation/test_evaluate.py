"""Evaluating is translating and scoring: in order, in windows, with faults found before the first sentence."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_cli.errors import UserError
from transformer_cli.evaluation import evaluate as module
from transformer_cli.evaluation.evaluate import evaluate, read_test_set


class Shouter:
    """Translates by upper-casing, and remembers what it was asked for."""

    def __init__(self, language: str = "en") -> None:
        self.config: Any = SimpleNamespace(data=SimpleNamespace(target_language=language))
        self.windows: list[int] = []

    def translate_batch(self, texts: Sequence[str], options: Any = None, *, alignments: bool = True) -> list[Any]:
        assert not alignments
        self.windows.append(len(texts))
        return [SimpleNamespace(text=text.upper()) for text in texts]


def test_translations_keep_their_order_over_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 3)
    sources = [f"line {number}" for number in range(8)]
    translator: Any = Shouter()
    reported: list[int] = []
    evaluation = evaluate(translator, sources, [[line.upper() for line in sources]], report=reported.append)
    assert evaluation.translations == [line.upper() for line in sources]
    assert translator.windows == [3, 3, 2]
    assert reported == [3, 6, 8]
    assert [score.name for score in evaluation.scores] == ["BLEU", "chrF2", "TER"]
    assert evaluation.scores[1].score == pytest.approx(100.0)
    assert evaluation.seconds >= 0


def test_an_unknown_metric_is_found_before_translating() -> None:
    translator: Any = Shouter()
    with pytest.raises(UserError, match="no metric"):
        evaluate(translator, ["a"], [["b"]], metrics=["bleu", "meteor"])
    assert translator.windows == []


def test_reading_drops_and_counts_carriage_returns_and_marks(tmp_path: Path) -> None:
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_bytes("\ufeffa\r\nb\u2028c\r\nd".encode())
    reference.write_bytes(b"1\n2\n3\n")
    test_set = read_test_set(source, [reference, reference])
    assert test_set.sources == ["a", "b\u2028c", "d"]
    assert test_set.references == [["1", "2", "3"]] * 2
    assert len(test_set.notes) == 2
    assert all(note.startswith(f"{source}: dropped") for note in test_set.notes)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b"a\n", "has 1 lines, but"), (b"a\n\xff\n", ":2: is not valid UTF-8")],
)
def test_files_that_do_not_fit_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_bytes(b"" if content == b"" else b"a\nb\n")
    reference.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_test_set(source, [reference])
