"""The report of a comparison: words that follow from the numbers, JSON with all of them, a page that stands alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doctor.test_page import Page
from tests.evaluation.test_comparing import REFERENCES, damaged
from transformer_cli.evaluation.comparing import Comparison, compare, measure
from transformer_cli.evaluation.differences import Texts, find_where
from transformer_cli.evaluation.systems import System
from transformer_cli.report.comparison import Found, as_html, as_json, as_text, verdict

SURE = Comparison(
    *("bleu", "BLEU", True, 0, 1, [30.0], [31.4], 1.4, (0.6, 2.1), 0.38, 0.001, 1.07, 1000, 900),
    p_holm=0.001,
)
UNSURE = replace(SURE, difference=0.3, interval=(-0.31, 0.9), p_holm=0.42, standard_error=0.28, detectable=0.78)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (SURE, "B is better by 1.4 BLEU (95 %: 0.6 to 2.1, p = 0.001)"),
        (replace(SURE, p_holm=0.0001), "B is better by 1.4 BLEU (95 %: 0.6 to 2.1, p < 0.001)"),
        (
            replace(SURE, difference=-0.41, interval=(-0.78, -0.042)),
            "A is better by 0.41 BLEU (95 %: 0.04 to 0.78, p = 0.001)",
        ),
        (
            replace(SURE, difference=0.4, interval=(-0.04, 0.8)),
            "B is better by 0.40 BLEU (95 %: −0.04 to 0.80, p = 0.001)",
        ),
        (
            replace(SURE, difference=-1.4, interval=(-2.1, -0.6)),
            "A is better by 1.4 BLEU (95 %: 0.6 to 2.1, p = 0.001)",
        ),
        (
            replace(SURE, name="TER", higher_is_better=False, difference=-1.4, interval=(-2.1, -0.6)),
            "B is better by 1.4 TER (95 %: 0.6 to 2.1, p = 0.001)",
        ),
        (
            UNSURE,
            "no difference can be told from noise; with 1,000 sentences one of 0.8 or more would show "
            "(difference +0.3, 95 %: −0.3 to +0.9, p = 0.420)",
        ),
        (
            replace(UNSURE, scores_a=[1.0, 2.0], degrees_of_freedom=3.0, detectable=0.801),
            "no difference can be told from noise; with 1,000 sentences and 1 against 2 runs one of 0.9 or more would "
            "show (difference +0.3, 95 %: −0.3 to +0.9, p = 0.420)",
        ),
        (
            replace(UNSURE, differing=5, detectable=None),
            "no difference can be told from noise; 5 of 1,000 sentences differ, too few for any to show "
            "(difference +0.3, 95 %: −0.3 to +0.9, p = 0.420)",
        ),
        (
            replace(
                UNSURE,
                sentences=1,
                differing=1,
                detectable=None,
                difference=-97.8,
                interval=(-97.8, -97.8),
                p_holm=1.0,
                standard_error=1e-14,
            ),
            "no difference can be told from noise; 1 of 1 sentence differs, too few for any to show "
            "(difference −97.8, 95 %: −97.8 to −97.8, p = 1.000)",
        ),
        (replace(UNSURE, difference=0.0, differing=0, detectable=None), "the same for every sentence"),
        (
            replace(SURE, name="COMET", difference=0.0142, interval=(0.0061, 0.0213), standard_error=0.0038),
            "B is better by 0.014 COMET (95 %: 0.006 to 0.021, p = 0.001)",
        ),
    ],
)
def test_the_verdict_is_what_the_numbers_say(found: Comparison, said: str) -> None:
    assert verdict(found, "A", "B") == said


@pytest.fixture(scope="module")
def found() -> Found:
    names = ["base", "a & <b>", "C\x1b"]
    systems = [
        System(name, [Path(f"{place}{run}") for run in range(1 + 3 * (place == 1))]) for place, name in enumerate(names)
    ]
    outputs = [
        [damaged(REFERENCES, rate, 9 + run) for run, _ in enumerate(system.runs)]
        for system, rate in zip(systems, (0.5, 0.1, 0.5), strict=True)
    ]
    outputs[0][0][3] = "<script>alert(1)</script>"
    measures = [measure(metric, outputs, [REFERENCES], "en") for metric in ("bleu", "ter")]
    texts = Texts(None, REFERENCES, outputs)
    where = [find_where(measures[0], b, texts) for b in (1, 2)]
    return Found(systems, measures, compare(measures, trials=500), where, 1)


def test_text_has_scores_verdicts_groups_sentences_and_signatures(found: Found) -> None:
    lines = [*as_text(found)]
    assert lines[0].split() == ["BLEU", "TER"]
    assert lines[2].startswith("a & <b>, 4 runs  ")
    assert "a & <b> against base, 150 sentences (p corrected for 2 comparisons, by Holm)" in lines
    assert any(line.startswith("  BLEU  a & <b> is better by ") for line in lines)
    assert any(line.startswith("  TER   a & <b> is better by ") for line in lines)
    assert "  BLEU of a & <b> minus that of base (95 % interval)" in lines
    assert "    by length of the reference" in lines
    assert sum("translations are those of the first runs" in line for line in lines) == 1
    assert any("<script>" in line for line in lines)
    assert lines[-1].startswith("TER: #:1|")
    assert not any(character < " " for line in lines for character in line)
    assert not any("One run per system" in line for line in lines)


def test_json_has_every_comparison_and_metric(found: Found) -> None:
    tree = json.loads(as_json(found))
    assert [(one["metric"], one["a"], one["b"]) for one in tree["comparisons"]] == [
        *(("bleu", "base", "a & <b>"), ("bleu", "base", "C\x1b")),
        *(("ter", "base", "a & <b>"), ("ter", "base", "C\x1b")),
    ]
    first = tree["comparisons"][0]
    assert first["better"] == "a & <b>"
    assert first["interval"][0] <= first["difference"] <= first["interval"][1]
    assert first["p"] <= first["p_holm"] < 0.05
    assert first["verdict"].startswith("a & <b> is better by ")
    assert tree["comparisons"][1]["better"] is None
    assert [len(system["scores"]["ter"]) for system in tree["systems"]] == [1, 4, 1]
    assert (tree["sentences"], tree["references"], [*tree["signatures"]]) == (150, 1, ["bleu", "ter"])
    assert [one["b"] for one in tree["where"]] == ["a & <b>", "C\x1b"]


def test_the_page_stands_alone_and_runs_nothing(found: Found) -> None:
    text = as_html(found)
    assert "<h1>Is it better? base, a &amp; &lt;b&gt; and C" in text
    reader = Page(text)
    assert reader.open == []
    assert "script" not in {tag for tag, _ in reader.tags}
    assert not any(name in ("src", "href") for _, attributes in reader.tags for name in attributes)
    assert [tag for tag, _ in reader.tags].count("svg") == 4
    assert "&lt;script&gt;alert(1)" in text
    assert "<h2>a &amp; &lt;b&gt; against base</h2>" in text
    assert "\x1b" not in text
    assert "aria-label" in text


def test_one_run_a_side_is_about_these_outputs(found: Found) -> None:
    single = replace(found, systems=[System(system.name, system.runs[:1]) for system in found.systems])
    assert sum("about these outputs" in line for line in as_text(single)) == 1
    assert "about these outputs" in as_html(single)


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["/tmp/x/a.en", "/tmp/x/b.en"], ["a.en", "b.en"]),
        (["/tmp/a.en", "/var/b.en"], ["a.en", "b.en"]),
        (["one/test.en", "two/test.en"], ["one/test.en", "two/test.en"]),
        (["runs/", "runs/b"], ["runs/", "runs/b"]),
        (["A", "runs/b"], ["A", "b"]),
    ],
)
def test_paths_are_shown_by_what_tells_them_apart(found: Found, names: list[str], shown: list[str]) -> None:
    assert replace(found, systems=[System(name, []) for name in names]).names == shown
