"""The parts of a page: text is escaped, pictures have alternative texts, empty columns are left out."""

import math
import re

import pytest

from transformer_cli.report.page import (
    Row,
    curves,
    duration,
    figure,
    heat_map,
    intervals,
    page,
    printable,
    short,
    table,
)

EVIL = "<script>alert('\"')</script>\x1b[2J"


def test_text_is_escaped_and_what_comes_back_is_html() -> None:
    parts = [
        figure(EVIL, intervals([Row(EVIL, 1.0, 0.5, 2.0, EVIL), Row("b", -1.0, -2.0, 0.0, "less")])),
        figure("a", curves({EVIL: [(0, 1.0), (2, math.nan), (4, 3.0)], "b": [(1, 2.0)]}, EVIL)),
        figure("b", heat_map([EVIL], ["x", EVIL], [[0.5, 0.001]], EVIL)),
        table([EVIL, "n"], [[EVIL, "1"]]),
    ]
    text = page(EVIL, parts)
    assert "<script" not in text
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;") >= 10
    assert not re.search(r"https?:|src=|@import|url\(", text)
    assert 'name="viewport"' in text
    assert "@media print" in text


def test_every_picture_says_in_words_what_it_shows() -> None:
    assert 'aria-label="short: 1; long: 2.5"' in intervals([Row("short", 1, 0, 1, "1"), Row("long", 2.5, 0, 3, "2.5")])
    picture = curves({"training": [(1, 4.0), (2, 3.0)], "validation": [(2, 3.5)]}, "nats")
    assert (
        'aria-label="nats; training: 4 at step 1 to 3 at step 2; validation: 3.5 at step 2 to 3.5 at step 2"' in picture
    )
    assert 'class="legend"' in picture
    assert "legend" not in curves({"training": [(1, 4.0)]}, "nats"), "one line needs no name"
    assert 'role="img"' in heat_map(["a"], ["b"], [[1.0]], "alt")


def test_intervals_stay_in_their_frame_and_zero_is_among_them() -> None:
    for sign in (1, -1):
        low, high = sorted((sign * 2.0, sign * 40.0))
        rows = [Row(name, sign * value, low, high, "x") for name, value in (("a", 3.0), ("b", 9.0))]
        picture = intervals(rows)
        starts = [float(found) for found in re.findall(r'd="M([\d.]+),', picture)]
        ends = [float(found) for found in re.findall(r"H([\d.]+)", picture)]
        dots = [float(found) for found in re.findall(r'cx="([\d.]+)"', picture)]
        assert all(start <= dot <= end <= 380 for start, dot, end in zip(starts[1:], dots, ends, strict=True))
        assert (starts[0] < min(starts[1:])) is (sign > 0), "the line at zero"
        assert (dots[0] < dots[1]) is (sign > 0)


def test_curves_stay_in_their_frame_and_small() -> None:
    long = {"loss": [(step, math.sin(step)) for step in range(100_000)]}
    picture = curves(long, "nats")
    assert len(picture) < 15_000
    points = re.findall(r"([\d.]+),([\d.]+)", re.search(r'points="(.*?)"', picture)[1])  # type: ignore[index]
    assert all(0 <= float(x) <= 480 and 0 <= float(y) <= 180 for x, y in points)
    assert points[-1][0] == "470.0", "the last step is there"
    assert "<circle" not in picture
    assert "<circle" in curves({"bleu": [(1, 2.0)]}, "BLEU")


def test_tables_leave_out_what_is_empty_and_align_numbers() -> None:
    text = table(["name", "tag", "count"], [["a", "", "1,000"], ["2 b", "", "0.5 (3 %)"]], "cards")
    assert "tag" not in text
    assert text.count('class="count"') == 3, "the column of numbers and its heading"
    assert 'data-label="name"' in text
    assert "<th" not in table(["", ""], [["a", "b"]])
    assert 'data-label=""' not in table(["", "b"], [["a", "b"]], "cards"), "a phone shows no label without a name"


def test_lengths_of_texts_and_times() -> None:
    assert printable("a\tb\x07") == "a\\x09b\\x07"
    assert printable("a\u2028\x85\xa0\u3000") == "a\\x2028\\x85\xa0\u3000"
    assert len(short("x" * 500)) == 160
    assert short("x") == "x"


@pytest.mark.parametrize(("seconds", "said"), [(40, "40 s"), (720, "12 min"), (11_100, "3 h 5 min")])
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
