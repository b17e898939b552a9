"""A line in segments: what is protected stays where it is, and the segments make one sentence."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_cli.decoding.constraints import Constraints, Line
from transformer_cli.protected.segments import join_segments, segment_line, segment_lines
from transformer_cli.protected.spans import find_spans

parts = st.sampled_from(["{{x}}", "<b>", "</b>", "%s", "https://a.de/b", " ", " ", "Wort", "a", ".", ",", "(", "😀"])


@given(st.lists(parts, max_size=12).map("".join))
@example("Wort%shttps://a.de/b")
def test_segments_that_are_copied_give_the_line_back(line: str) -> None:
    segments = segment_line(line, find_spans(line))
    assert [bool(one.fixed) for one in segments] == [True] * (len(segments) - 1) + [False]
    spoken = [one.text for one in segments if one.text]
    assert all(any(map(str.isalnum, text)) for text in spoken)
    assert "".join(join_segments(segments, spoken).split()) == "".join(line.split())


@pytest.mark.parametrize(
    ("line", "translations", "expected"),
    [
        ("Ein Hund, {{x}} bellt laut.", ["A dog.", "Barks loudly."], "A dog {{x}} barks loudly."),
        ("Der Hund {{x}}, Ende", ["The dog", "End."], "The dog {{x}}, End"),
        ("{{x}} bellt!", ["Barks!"], "{{x}} barks!"),
        ("bellt {{x}}", ["Barks"], "Barks {{x}}"),
        ("a {{x}} b", ["A {{y}}", "b %s c"], "A {{x}} b c"),
        ("({{x}})", [], "({{x}})"),
    ],
)
def test_segments_make_one_sentence(line: str, translations: list[str], expected: str) -> None:
    assert join_segments(segment_line(line, find_spans(line)), translations) == expected


def test_what_is_required_stays_as_it_is() -> None:
    segments = segment_line("a {{x}} b {{y}} c", find_spans("a {{x}} b {{y}} c"))
    translations = ["A", "Berlin", "C etc."]
    assert join_segments(segments, translations) == "A {{x}} berlin {{y}} c etc"
    assert (
        join_segments(segments, translations, Constraints(required=("Berlin", "etc.", " ")))
        == "A {{x}} Berlin {{y}} c etc."
    )


def test_each_segment_gets_the_constraints_that_are_its_own() -> None:
    line = "a {{x}} b, c {{y}}, d"
    constraints = Constraints("P", required=("c", "d", "e"), forbidden=("z",))
    assert segment_lines(segment_line(line, find_spans(line)), constraints) == [
        Line("a", Constraints("P", required=("e",), forbidden=("z",))),
        Line("b, c", Constraints(required=("c",), forbidden=("z",))),
        Line("d", Constraints(required=("d",), forbidden=("z",))),
    ]
    assert segment_lines(segment_line("{{x}}", find_spans("{{x}}")), constraints) == []
