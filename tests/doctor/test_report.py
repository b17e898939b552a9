"""The report: the worst first, in text, JSON and HTML; filters written into a config beside what stands there."""

import json

from tests.data.quality.conftest import Pairs
from tests.doctor.conftest import COPY
from transformer_cli.data.quality.judge import KINDS as JUDGED
from transformer_cli.data.quality.judge import Bounds
from transformer_cli.doctor.findings import KINDS, Report, examine
from transformer_cli.doctor.proposal import FILTERED
from transformer_cli.doctor.report import as_json, as_text


def found(report: Report, kind: str, corpus: str = "train") -> dict[str, object]:
    return next(
        one for one in json.loads(as_json(report))["findings"] if (one["kind"], one["corpus"]) == (kind, corpus)
    )


def test_every_kind_is_explained_and_filtered_or_not_for_a_reason() -> None:
    assert {*KINDS} == {*JUDGED, "vocabulary", "too_small"}
    assert {*JUDGED} - {*FILTERED} == {"empty_side", "too_long"}
    assert not {*FILTERED} - {*JUDGED}


def test_json_has_all_lines(report: Report) -> None:
    copies = found(report, "identical_sides")
    assert copies["lines"] == [21, 22, 23, 24]
    assert copies["count"] == 4
    assert copies["examples"][0] == {"line": 21, "source": COPY, "target": COPY}  # type: ignore[index]
    assert copies["is_serious"]
    assert found(report, "overlap_valid")["lines"] == [4]
    assert found(report, "too_small")["lines"] == []
    assert "filter" not in str(found(report, "empty_side", "valid")["advice"]).removesuffix("filters do not apply here")
    assert json.loads(as_json(report))["pairs"] == {"train": 90, "valid": 2}


def test_what_filters_leave_out_is_done_with() -> None:
    """It is reported, by their own bound, as nothing that must be done; other kinds stay as serious as they are."""
    pairs = [(f"ein Hund {'a' * place}", f"a dog {'a' * place}") for place in range(90)]
    pairs += [("der Mann im Boot <b>ist alt</b>", text * 3) for text in ("the man is old. ", "he is not young. ")]
    filtered = {"train": {"markup": None, "length_ratio": 2.9}}
    before, after = (examine({"train": Pairs(pairs)}, Bounds(), filters=filters) for filters in ({}, filtered))
    for one in before.findings:
        if one.kind == "length_ratio":
            assert "length_ratio" not in {other.kind for other in after.findings}
        else:
            now = next(other for other in after.findings if other.kind == one.kind)
            assert (now.lines, now.is_filtered) == (one.lines, one.kind == "markup")
            assert now.is_serious == (one.is_serious and one.kind != "markup")
    assert found(before, "markup")["is_serious"]
    assert found(after, "markup")["advice"] == "nothing, or correct the lines"
    assert after.findings[-1].kind == "markup"


def test_the_worst_comes_first(report: Report) -> None:
    serious = [one.is_serious for one in report.findings]
    assert serious == sorted(serious, reverse=True)
    assert report.findings[0].kind == "identical_sides"
    assert report.is_serious


def test_text_fits_a_terminal_and_cannot_steer_it(report: Report) -> None:
    lines = [*as_text(report)]
    examples = {line for line in lines if COPY in line or "long long" in line}
    assert max(len(line) for line in lines if line not in examples) <= 80
    assert not any(character < " " for line in lines for character in line)
    assert any("\\x1b[31m" in line for line in lines)
    assert any(line.endswith("  line 4") for line in lines), "overlap_valid"
    assert any(line.endswith("  lines 21, 22, 23, 24") for line in lines), "copies"
    assert [*as_text(Report([], {"train": 3}))][-1] == "Nothing found that is wrong."
