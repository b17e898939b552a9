"""Results wait in memory, bounded in size and time; subtitles come back in as many lines as they had."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.serve.files import FILES, FORMS, Results, subtitle_parts


def test_results_give_way_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("transformer_cli.serve.files.time.monotonic", lambda: now)
    results = Results(most_bytes=10, seconds=60.0)
    names = [results.keep(b"1234", ".txt") for _ in range(3)]
    assert [results.find(name) for name in names] == [None, b"1234", b"1234"]
    assert len({*names}) == 3
    assert all(len(name) > 30 and name.endswith(".txt") for name in names)
    now = 61.0
    assert [results.find(name) for name in names] == [None] * 3
    assert results.find(results.keep(b"more than there is room for", ".txt")) is None


@given(st.sampled_from([*FILES]), st.text(alphabet="ab\n\r .<>-1:0→WEBVT", max_size=200))
def test_a_file_keeps_its_lines(suffix: str, text: str) -> None:
    parts = FORMS[FILES[suffix]](text)
    if "htm" not in suffix:
        assert parts.write(["x y" for _ in parts.lines]).count("\n") == text.count("\n")
    if suffix == ".txt":
        assert parts.write(parts.lines) == text


def test_a_cue_is_one_text_in_lines_of_like_lengths() -> None:
    parts = subtitle_parts("1\n0 --> 1\n one two\nthree\n\nnot a cue\n")
    assert parts.lines == ["one two three"]
    assert parts.write(["a bb ccc dddd"]) == "1\n0 --> 1\na bb ccc\ndddd\n\nnot a cue\n"
    assert parts.write(["word"]) == "1\n0 --> 1\nword\n\u00a0\n\nnot a cue\n"
