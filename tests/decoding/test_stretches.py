"""A line in pieces: what is protected stays where it is, and the pieces make one sentence."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_cli.protected.segments import join_segments, segment_line
from transformer_cli.protected.spans import find_spans

parts = st.sampled_from(["{{x}}", "<b>", "</b>", "%s", "https://a.de/b", " ", " ", "Wort", "a", ".", ",", "(", "😀"])


@given(st.lists(parts, max_size=12).map("".join))
@example("Wort%shttps://a.de/b")
def test_pieces_that_are_copied_give_the_line_back(line: str) -> None:
    split = segment_line(line, find_spans(line))
    assert len(split.stretches) == len(split.fixed) + 1
    assert all(any(map(str.isalnum, text)) for text in split.spoken)
    assert "".join(join_segments(split, split.spoken).split()) == "".join(line.split())


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
def test_pieces_make_one_sentence(line: str, translations: list[str], expected: str) -> None:
    assert join_segments(segment_line(line, find_spans(line)), translations) == expected


def test_what_is_demanded_stays_as_it_is() -> None:
    split = segment_line("a {{x}} b {{y}} c", find_spans("a {{x}} b {{y}} c"))
    translations = ["A", "Berlin", "C etc."]
    assert join_segments(split, translations) == "A {{x}} berlin {{y}} c etc"
    assert join_segments(split, translations, ["Berlin", "etc."]) == "A {{x}} Berlin {{y}} c etc."
