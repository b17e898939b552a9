"""What `experiments/variants.py` makes of scores and of the table that is there already."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module("variants")


def test_a_line_from_more_seeds_stays(variants: Any, tmp_path: Path) -> None:
    """And one that OUT holds more seeds of gives way; what is nowhere gets no line; a name of old is kept, last."""
    for seed, bleu in ((2, 30.0), (3, 31.5)):
        for name in ("plain", "6+6"):
            scores = [{"name": "BLEU", "score": bleu}, {"name": "chrF2", "score": 50.0}]
            (tmp_path / f"{name}-{seed}.greedy.json").write_text(json.dumps({"scores": scores}))
    fuller = "| plain | greedy | 3 | 35.39 (35.19–35.66) | 54.78 (54.67–54.96) |"
    old = "| an older one | at once | 1 | 20.99 | 41.31 |"
    page = f"# Page\n\n{old}\n{fuller}\n| 6+6 | greedy | 1 | 34.91 | 54.29 |\n\nThe end.\n"
    places = variants.Places(tmp_path, tmp_path, None)
    lines = list(variants.table(variants.VARIANTS, places, variants.table_lines(page)))
    assert lines[2:] == [fuller, "| 6+6 | greedy | 2 | 30.75 (30.00–31.50) | 50.00 (50.00–50.00) |", old]


def test_the_table_of_the_page_is_read_whole(variants: Any) -> None:
    """Each line names a variant and a way of translating that there are, in their order."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    table = page.partition("<!-- written by experiments/variants.py")[2].partition("<!-- end -->")[0]
    found = variants.table_lines(table)
    assert list(found.values()) == [line for line in table.splitlines() if line.startswith("| ")][2:]
    known = [(variant.name, label) for variant in variants.VARIANTS for label in variant.evaluations]
    assert list(found) == [one for one in known if one in found]
