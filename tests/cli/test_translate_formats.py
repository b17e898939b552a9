"""Text, tsv and JSON lines tell the same; a line of input is one object, or as many rows as were asked for."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

LINES = ["ein hund schläft", "", "zwei\tkatze \u2028 sieht \x85"]
OF_A_TRANSLATION = ["translation", "score", "confidence", "below", "utility", "tokens", "alignment"]
KEYS = ["line", "source", *OF_A_TRANSLATION, "source_tokens", "n_best"]


def test_json_lines_have_the_same_keys_whatever_is_asked_for(trial: Any, tfm: Any) -> None:
    plain = tfm("translate", trial.run, *LINES).out.split("\n")[:-1]
    for options in ([], ["--alignments"], ["--n-best", 2], ["--sample"], ["--greedy", "--alignments"]):
        done = tfm("translate", trial.run, *LINES, "--format", "json", *options)
        assert not re.search("[\x85\u2028]", done.out)
        objects = [json.loads(row) for row in done.out.split("\n")[:-1]]
        assert [list(one) for one in objects] == [KEYS] * 3
        assert [one["line"] for one in objects] == [1, 2, 3]
        assert [one["source"] for one in objects] == LINES
        for one in objects:
            assert one["score"] <= 0
            assert bool(one["translation"]) == bool(one["tokens"]) == bool(one["source"])
            assert (one["alignment"] is not None) == ("--alignments" in options)
            assert (one["n_best"] is not None) == ("--n-best" in options)
            for source, target in one["alignment"] or []:
                assert source < len(one["source_tokens"])
                assert target < len(one["tokens"])
        if not options:
            assert [one["translation"] for one in objects] == plain


def test_an_n_best_list_begins_with_the_translation(trial: Any, tfm: Any) -> None:
    done = tfm("translate", trial.run, *LINES, "--format", "json", "--n-best", 3, "--alignments")
    for one in map(json.loads, done.out.split("\n")[:-1]):
        best = one["n_best"][0]
        assert list(best) == OF_A_TRANSLATION
        assert {key: one[key] for key in best} == best
        values = [other["score"] for other in one["n_best"]]
        assert values == sorted(values, reverse=True)
        assert len(values) == (3 if one["source"] else 1)


def test_a_table_has_seven_columns(trial: Any, tfm: Any) -> None:
    objects = [json.loads(row) for row in tfm("translate", trial.run, *LINES, "--format", "json").out.splitlines()]
    for options, ranks in (([], 1), (["--n-best", 2, "--alignments"], 2)):
        rows = [
            row.split("\t") for row in tfm("translate", trial.run, *LINES, "--format", "tsv", *options).out.split("\n")
        ]
        assert rows.pop() == [""]
        assert [len(row) for row in rows] == [7] * (3 * ranks)
        assert [row[:2] for row in rows] == [[str(line), str(rank + 1)] for line in (1, 2, 3) for rank in range(ranks)]
        assert [row[6] for row in rows[::ranks]] == ["ein hund schläft", "", "zwei katze   sieht  "]
        for row, one in zip(rows[::ranks], objects, strict=True):
            assert row[2] == one["translation"].replace("\t", " ")
            assert float(row[3]) == pytest.approx(one["score"], abs=1e-5)
            assert row[4] == ""
            assert bool(row[5]) == (bool(options) and bool(row[2]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "xml"], "'xml' is not one of 'text', 'json', 'tsv'"),
        (["--format", "json", "--scores"], "--scores and --format json or tsv"),
        (["--alignments", "--n-best", 2], "add --format json"),
    ],
)
def test_formats_that_are_not_there_are_refused(
    arguments: list[object], message: str, trial: Any, tfm: Any, tmp_path: Path
) -> None:
    assert message in tfm("translate", trial.run, "ein", *arguments).refused()
