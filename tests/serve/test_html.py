"""Every tag and attribute of a document comes back, in a sane order; its texts are translated, and nothing else."""

import html
import re
import time
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.serve.conftest import translate
from transformer_cli.serve.files import html_parts
from transformer_cli.serve.html import runs


def upper(document: str, *, xml: bool = False) -> str:
    """The document with its words in capitals, and its tags kept by name as `Protector` keeps them."""
    parts = html_parts(document, xml=xml)
    return parts.write([re.sub(r"(<[^>]*>)|(\w+)", lambda one: one[1] or one[2].upper(), line) for line in parts.lines])


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ("a", "A"),
        ("", ""),
        (" a\n b ", " A B "),
        ("<p>a</p>", "<p>A</p>"),
        ("a &lt;b&gt; &amp; c", "A &lt;b&gt; &amp; C"),
        ('<A HREF="x?a=1&amp;b=2" title=\'"\'>a</A>', '<A HREF="x?a=1&amp;b=2" title=\'"\'>A</A>'),
        ("a <b>b <i>c</i></b> d", "A <b>B <i>C</i></b> D"),
        ("a<br>b<br/>c", "A<br>B<br/>C"),
        ("<script>a < b</script>a", "<script>a < b</script>A"),
        ("<style>a</style><pre>a\n <b>b</b></pre>a", "<style>a</style><pre>a\n <b>b</b></pre>A"),
        ("<!-- a --><!doctype html><?xml a?>a<!-- b", "<!-- a --><!doctype html><?xml a?>A<!-- b"),
        ('<p translate="no">a <b>b</b></p>a', '<p translate="no">a <b>b</b></p>A'),
        ('a <b class="x notranslate">b <b>c</b> d</b> a', 'A <b class="x notranslate">b <b>c</b> d</b> A'),
        ('<b class="notranslated">b</b>', '<b class="notranslated">B</b>'),
        ("a <code>b</code> c", "A <code>b</code> C"),
        ("a </i>b<u>c", "A </i>B<u>C"),  # no partners
        ("<b>a <i>b</b> c</i>", "<b>A <i>B</b> C</i>"),  # not nested
        ("<b>a<p>b</b>c", "<b>A<p>B</b>C"),  # a block within
        ("<td>a<td>b", "<td>A<td>B"),
        ("<p a='>'>a</p>", "<p a='>'>A</p>"),
        ("a < 5 > c", "A &lt; 5 &gt; C"),
        ("a <b", "A <b"),
        ("<g0>a</g0> &lt;g1&gt; &lt;/g0 &amp;", "<g0>A</g0> &lt;g1&gt; &lt;/g0 &amp;"),
        ("<textarea>a</textarea><iframe>a", "<textarea>a</textarea><iframe>a"),
        ("<x-y>a</x-y>", "<x-y>A</x-y>"),
        ("<p>&nbsp;</p><p>...</p>", "<p>&nbsp;</p><p>...</p>"),
    ],
)
def test_documents(document: str, wanted: str) -> None:
    assert upper(document) == wanted


def test_xml_knows_no_html() -> None:
    assert upper("<p>a <x id='1'/>b <script>c</script></p>", xml=True) == "<p>A <x id='1'/>B <script>C</script></p>"
    assert [run.line for run in runs("a <x>b</x> c", xml=True) if run.line] == ["a <g0>b</g0> c"]
    assert upper("<![CDATA[a]]>b", xml=True) == "<![CDATA[a]]>B"


def test_a_translation_that_loses_a_tag_is_not_taken() -> None:
    (run,) = runs("a <b>b</b> c")
    assert run.written("x <g0>y</g0> z") == "x <b>y</b> z"
    for wrong in ("x y z", "x <g0>y z", "<g0>x</g0> <g0>y</g0>", "<g0>x</g0><g1>"):
        assert run.written(wrong) == run.raw


def test_a_line_of_very_many_tags_is_cut_at_them() -> None:
    document = "a <b>b</b> " * 60
    assert [run.line for run in runs(document) if run.line] == ["a", "b"] * 60
    assert upper(document) == document.upper().replace("B>", "b>")


# --- whatever is written -------------------------------------------------------------------------------------------

NAMES = ["a", "b", "i", "p", "div", "br", "img", "span", "li", "code", "script", "title", "x-y", "em", "B", "P"]
TEXTS = st.sampled_from(
    [
        "ein",
        "hund",
        " ",
        "\n",
        "&amp;",
        "&lt;b&gt;",
        "&#228;",
        "é",
        "<",
        ">",
        "&",
        "%s",
        "{0}",
        ".",
        '"',
        "'",
        "-->",
        "ﬁ",
    ]
)
ATTRIBUTES = st.sampled_from(
    ["", " a", " a=b", ' a="x > y"', " a='\"'", ' class="notranslate"', " translate=no", " a=1 b='2'", "/", " a =\n'b'"]
)
TAGS = st.builds("<{}{}{}>".format, st.sampled_from(["", "", "/"]), st.sampled_from(NAMES), ATTRIBUTES)
LOOSE = st.sampled_from(["<!-- x -->", "<!doctype html>", "<![CDATA[x]]>", "<?x?>", "</>", "<b", "<a href='", "<!--"])
ELEMENTS = st.recursive(
    TEXTS,
    lambda inner: st.builds(
        lambda name, attributes, parts: f"<{name}{attributes}>{''.join(parts)}</{name}>",
        st.sampled_from(["a", "b", "i", "p", "div", "span", "ul", "em"]),
        st.sampled_from(["", ' href="x?a=1&amp;b=2"', " class='y z'", ' title="<b>"']),
        st.lists(inner, max_size=5),
    ),
)
FRAGMENTS = st.lists(ELEMENTS, max_size=8).map("".join)
WILD = st.lists(TEXTS | TAGS | LOOSE, max_size=20).map("".join)


class Tags(HTMLParser):
    """What Python's own parser finds: the tags with their attributes, the path to each, and the text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.path: list[str] = []
        self.paths: Counter[tuple[str, ...]] = Counter()
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(("<", tag, *map(str, attrs)))
        self.path.append(tag)
        self.paths[tuple(self.path)] += 1

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((">", tag))
        if self.path and self.path[-1] == tag:
            self.path.pop()


@pytest.mark.medium
@given(WILD)
@settings(max_examples=500)
def test_what_is_cut_makes_up_the_document(document: str) -> None:
    for xml in (False, True):
        assert "".join(run.raw for run in runs(document, xml=xml)) == document


@pytest.mark.medium
@given(FRAGMENTS)
@settings(max_examples=100)
def test_a_translator_that_keeps_the_order_keeps_the_document(document: str) -> None:
    before, after = Tags(document), Tags(upper(document))
    assert after.tags == before.tags


def check_that_tags_come_back(client: TestClient, documents: list[str]) -> None:
    response = client.post("/translate", json=translate(q=documents, format="html"))
    for before, after in zip(documents, response.json()["translatedText"], strict=True):
        wanted, found = Tags(before), Tags(after)
        assert Counter(found.tags) == Counter(wanted.tags), (before, after)
        assert found.paths == wanted.paths, (before, after)


SOME = st.lists(FRAGMENTS.filter(bool), min_size=1, max_size=10)


@given(SOME)
@settings(max_examples=15)
def test_every_tag_and_attribute_comes_back_within_those_it_was_in(client: TestClient, documents: list[str]) -> None:
    check_that_tags_come_back(client, documents)


@pytest.mark.slow
def test_so_do_those_of_ten_thousand_fragments(client: TestClient) -> None:
    sent = 0

    @given(SOME)
    @settings(max_examples=1000, database=None)
    def check(documents: list[str]) -> None:
        nonlocal sent
        sent += len(documents)
        check_that_tags_come_back(client, documents)

    while sent < 10_000:
        check()


@given(st.lists(WILD, min_size=1, max_size=10))
@settings(max_examples=40)
def test_whatever_is_written_is_answered(client: TestClient, documents: list[str]) -> None:
    documents = [document or "x" for document in documents]
    response = client.post("/translate", json=translate(q=documents, format="html"))
    assert response.status_code == 200
    for before, after in zip(documents, response.json()["translatedText"], strict=True):
        assert Counter(Tags(after).tags) == Counter(Tags(before).tags), (before, after)


@pytest.mark.medium
@pytest.mark.parametrize(
    "part",
    [
        "<b>",
        "</b>",
        "<b></i>",
        "<!--",
        "<a href='",
        "<a b",
        "&",
        "<",
        '<b class="',
        "<b a=",
        "<x translate=no>",
        "<script>",
    ],
)
def test_a_long_document_takes_no_longer_by_what_is_wrong_in_it(part: str) -> None:
    def seconds(times: int) -> float:
        document = f"a {part}" * times
        began = time.process_time()
        assert "".join(run.raw for run in runs(document)) == document
        return time.process_time() - began

    few, many = (min(seconds(times) for _ in range(3)) for times in (2_000, 8_000))
    assert many < 8 * few + 0.05  # quadratic: 16 times


def test_entities_are_read_and_written() -> None:
    (run,) = runs("&auml; &lt;b&gt; &copy &#x1F600;")
    assert run.line == "ä <g0/> © 😀"
    assert run.written(run.line) == html.escape("ä <b> © 😀", quote=False)
