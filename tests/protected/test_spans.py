"""What is protected, and what a line is without it."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.protected.spans import Glossary, cut_out, find_spans, is_kept, leave_out


def texts(line: str, glossary: Glossary | None = None) -> list[str]:
    return [span.text for span in find_spans(line, glossary)]


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("url", "siehe https://a.de/x?y=1&z=%20#top.", ["https://a.de/x?y=1&z=%20#top"]),
        ("url", "(https://a.de/b_(c)), http://ü.de/ä!", ["https://a.de/b_(c)", "http://ü.de/ä"]),
        ("url", "„www.a.de“ ftp://a.b/c… 'https://x.y/it's'", ["www.a.de", "ftp://a.b/c", "https://x.y/it's"]),
        ("url", "https://a.de/{{id}}?x=%s", ["https://a.de/{{id}}?x=%s"]),
        ("url", "www. und http ://x", []),
        ("email", "an a.b+c@d-e.co.uk, <x@y.de>.", ["a.b+c@d-e.co.uk", "x@y.de"]),
        ("email", "a@b @c d@", []),
        ("placeholder", "{{name}} {{ user.name }} {x} {0}", ["{{name}}", "{{ user.name }}", "{x}", "{0}"]),
        ("placeholder", "{} {0:.2f} {a[b]!r}", ["{}", "{0:.2f}", "{a[b]!r}"]),
        ("placeholder", "${HOME} #{x} %{y}", ["${HOME}", "#{x}", "%{y}"]),
        ("placeholder", "%s %5.2f %-3s %(name)s", ["%s", "%5.2f", "%-3s", "%(name)s"]),
        ("placeholder", "%d %1$s %@ %ld", ["%d", "%1$s", "%@", "%ld"]),
        ("placeholder", "50 % der 100%ige 3%d %sth { x y } {", []),
        ("tag", "<b>a</b> <br/> <!-- x > - y -->", ["<b>", "</b>", "<br/>", "<!-- x > - y -->"]),
        ("tag", "<img src=\"a>b\" alt='x'>", ["<img src=\"a>b\" alt='x'>"]),
        ("tag", "<ns:tag a=1></ns:tag >", ["<ns:tag a=1>", "</ns:tag >"]),
        ("tag", "a < b > c <3 <- -> << x<y", []),
    ],
)  # fmt: skip
def test_each_kind_is_found(kind: str, line: str, expected: list[str]) -> None:
    spans = find_spans(line)
    assert [span.text for span in spans] == expected
    assert {span.kind for span in spans} <= {kind}
    assert all(line[span.start : span.end] == span.text for span in spans)


def test_of_overlapping_finds_the_first_counts() -> None:
    assert texts("https://a.de/a@b.de") == ["https://a.de/a@b.de"]
    assert texts('<a href="https://a.de/{{x}}">x@y.de</a>') == ['<a href="https://a.de/{{x}}">', "x@y.de", "</a>"]


def test_terms_count_only_outside_of_other_spans() -> None:
    glossary = Glossary({"b": "B", "name": "N", "rot": "red"})
    assert texts("<b>rot</b> {{name}} b rot", glossary) == ["<b>", "red", "</b>", "{{name}}", "B", "red"]


@pytest.mark.parametrize(
    ("line", "without", "placeholders"),
    [
        ("a {{x}} b", "a b", ["{{x}}"]),
        ("{{x}} a", "a", ["{{x}}"]),
        ("a {{x}}.", "a.", ["{{x}}"]),
        ("a {{x}}, b", "a, b", ["{{x}}"]),
        ("{{x}}{{y}} a", "a", ["{{x}}{{y}}"]),
        ("{{x}} {{y}} a", "a", ["{{x}}", "{{y}}"]),
        ("a<br/>b", "a b", ["<br/>"]),
        ("<b><i>a</i></b> b", "a b", ["<b>", "<i>", "</i>", "</b>"]),
        ("<b>a</b><i>b</i>", "a b", ["<b>", "</b><i>", "</i>"]),
        ("a ({{x}}) b", "a b", ["({{x}})"]),
        ("a „{{x}}“.", "a.", ["„{{x}}“"]),
        ("(<b>a</b>)", "(a)", ["<b>", "</b>"]),
        ("{{x}}", "", ["{{x}}"]),
        ("  {{x}}  ", "", ["{{x}}"]),
        ("שלום {{x}} עולם", "שלום עולם", ["{{x}}"]),
        ("漢字{{x}}漢字", "漢字漢字", ["{{x}}"]),
        ("漢字 {{x}} 漢字", "漢字 漢字", ["{{x}}"]),
        ("😀{{x}}😀", "😀😀", ["{{x}}"]),
    ],
)
def test_a_line_without_its_spans(line: str, without: str, placeholders: list[str]) -> None:
    masked = leave_out(line, find_spans(line))
    assert (masked.text, [one.text for one in masked.placeholders]) == (without, placeholders)
    places = [one.place for one in masked.placeholders]
    assert places == sorted(places)
    assert all(0 <= place <= len(masked.text) for place in places)


def test_placeholders_know_what_stood_beside_them() -> None:
    line = "x {{a}} {{b}}, <i>y</i>"
    before, after, pair, close = leave_out(line, find_spans(line)).placeholders
    assert (before.before, before.after, before.left, before.right) == (" ", " ", "", "")
    assert (after.before, after.after, after.left, after.right) == (" ", "", "", ",")
    assert (pair.opening, pair.closing, pair.partners) == (True, False, (3, 3))
    assert (close.opening, close.closing, close.partners) == (False, True, (2, 2))


def test_tags_that_open_or_close_together_are_placeholders_of_their_own() -> None:
    line = "x <b><i>y</i> z</b>!"
    placeholders = leave_out(line, find_spans(line)).placeholders
    assert [(one.text, one.opening, one.closing, one.partners) for one in placeholders] == [
        ("<b>", True, False, (3, 3)),
        ("<i>", True, False, (2, 2)),
        ("</i>", False, True, (1, 1)),
        ("</b>", False, True, (0, 0)),
    ]


spanned_lines = st.lists(
    st.sampled_from(["{{x}}", "<b>", "</b>", "%s", "https://a.de/b", "a@b.de", " ", "Wort", ".", "(", ")", "😀", "א"]),
    max_size=12,
).map("".join)


@settings(max_examples=300)
@given(spanned_lines | st.text(st.characters(codec="utf-8"), max_size=30))
def test_cut_out_loses_nothing_and_leave_out_no_span(line: str) -> None:
    spans = find_spans(line)
    parts = cut_out(line, spans)
    assert "".join(text + fixed for text, fixed in parts) == line
    masked = leave_out(line, spans)
    assert [*(one.text for one in masked.placeholders), ""] == [fixed for _, fixed in parts]
    kept = "".join(masked.text.split())
    assert kept == "".join("".join(text for text, _ in parts).split())
    assert is_kept(line, spans) or any(span.kind == "tag" for span in spans)


@pytest.mark.parametrize(
    ("translation", "kept"),
    [
        ("<b>x</b> {{a}} {{a}} %s", True),
        ("{{a}} %s <b>{{a}} y</b>", True),
        ("<b>x</b> {{a}} %s", False),
        ("<b>x</b> {{a}} {{a}} {{a}} %s", False),
        ("<b>x</b> {{a}} {{b}} %s", False),
        ("<b>x</b> {{a}} {{a}} %s https://a.de", False),
        ("</b>x<b> {{a}} {{a}} %s", False),
    ],
)
def test_every_span_stands_once_and_nothing_is_added(translation: str, kept: bool) -> None:
    assert is_kept(translation, find_spans("{{a}} <b>y</b> %s {{a}}")) is kept


def test_tags_stay_well_nested() -> None:
    spans = find_spans("<b>a</b> <i>c</i>")
    assert is_kept("<i>c</i> <b>a</b>", spans)
    assert not is_kept("<i>c <b>a</b></i>", spans), "what was bold is italic too"
    assert not is_kept("<i>c <b>a</i></b>", spans)


def test_a_terms_translation_stands_as_often_as_the_term_at_least() -> None:
    spans = find_spans("Hund und Hund", Glossary({"Hund": "dog"}))
    assert is_kept("Dog and dog", spans)
    assert is_kept("dog, dog, dog", spans)
    assert not is_kept("dog and dogs", spans)


def test_what_looks_protected_in_a_terms_translation_belongs_there() -> None:
    spans = find_spans("Seite {{x}} Fett", Glossary({"Seite": "www.a.de", "Fett": "<b>"}))
    assert is_kept("{{x}} <b> www.a.de", spans)
    assert not is_kept("{{x}} <b> www.a.de www.a.de", spans)
    assert not is_kept("{{x}} <b> www.b.de", spans)


@pytest.mark.medium
@pytest.mark.parametrize(
    "part",
    ["<a ", "<a b='", '<a "', "{{", "{", "%(", "%5", "www.(", "https://((", "a@", "a.b@c.", "<!--", "'", "(", "%"],
)
def test_finding_takes_linear_time(part: str) -> None:
    def seconds(times: int) -> float:
        began = time.process_time()
        find_spans(part * times + "@")
        return time.process_time() - began

    few, many = (min(seconds(times) for _ in range(3)) for times in (10_000, 40_000))
    assert many < 8 * few + 0.05  # quadratic: 16 times
