"""What the figures of protected text rest on: where it is put, and what is counted."""

import importlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.protected.spans import find_spans

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LINE = "Ein Mann mit Hut geht, ohne zu reden."


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("protected_text")


def test_every_kind_puts_its_text_into_the_line_and_nothing_else(module: Any) -> None:
    make: Callable[[str, random.Random, int], Any]
    for make in module.KINDS.values():
        cases = [make(LINE, random.Random(number), number) for number in range(20)]
        assert len({case.line for case in cases}) > 5
        for case in cases:
            assert module.once(case.line, case.spans)
            assert module.without(case.line, case.spans) == LINE
            assert "".join(span.text for span in find_spans(case.line)) in (
                "".join(case.spans),
                "".join(sorted(case.spans, key=case.line.index)),
            )


def test_twice_and_never_are_not_once(module: Any) -> None:
    assert module.once("a {{x}} b", ["{{x}}"])
    assert not module.once("a {{x}} {{x}}", ["{{x}}"])
    assert not module.once("a {{x}}", ["{{x}}", "%s"])


def test_nouns_are_replaced_where_they_are_linked(module: Any) -> None:
    found = module.replaced_nouns(module.PAIRS)
    assert len(found) > 100
    assert all(source.count(noun) >= 1 and target.count(module.NAME) == 1 for source, noun, target in found)
    assert (
        "Ein brauner Hund rennt über die nasse Wiese.",
        "Hund",
        "A brown {{name}} is running across the wet meadow.",
    ) in found
