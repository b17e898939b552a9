"""The page stands alone, runs nothing whatever the texts hold, and can be read without its pictures."""

import html.parser
import itertools
import re
from collections import Counter

import pytest

from tests.data.quality.conftest import Pairs
from transformer_cli.data.quality.judge import Bounds, Judgement
from transformer_cli.doctor.findings import Report, examine
from transformer_cli.doctor.page import as_html

EVIL = "\"><script>alert('1')</script><img src=\"https://example.org/x.png\" onerror='alert(1)'> & \x1b"
Attributes = dict[str, str | None]


class Page(html.parser.HTMLParser):
    """Collects tags with their attributes, and texts; every tag must be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, Attributes]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_stands_alone_and_runs_nothing(report: Report) -> None:
    page = Page(as_html(report, "a & <b>"))
    names = {tag for tag, _ in page.tags}
    assert not {"script", "link", "img", "iframe"} & names
    assert "svg" in names
    ids = {f"#{attributes['id']}" for _, attributes in page.tags if "id" in attributes}
    assert {attributes["href"] for _, attributes in page.tags if "href" in attributes} == ids
    assert len(ids) == len(report.findings)
    assert not any(name == "src" or name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "a & <b>" in page.text
    policy = next(attributes for tag, attributes in page.tags if attributes.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_everything_is_escaped() -> None:
    """Texts, names of files, and characters in pictures: the tags of the page are those of a harmless one."""

    def tags(text: str) -> list[str]:
        corpora = {"train.0": Pairs([(text, text)]), "test": Pairs([(text, "")])}
        corpora["train.0"].describe = lambda: text  # type: ignore[method-assign]
        page = Page(as_html(examine(corpora, Bounds()), text))
        assert text.replace("\x1b", "\\x1b") in page.text
        assert not any(name.startswith("on") or name == "src" for _, attributes in page.tags for name in attributes)
        return sorted({tag for tag, _ in page.tags})

    assert tags(EVIL) == tags("a harmless text of some words")


def test_pictures_say_in_words_what_they_show(report: Report) -> None:
    page = Page(as_html(report, "x"))
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 3 * len(report.judgements) + sum(bool(finding.lines) for finding in report.findings)
    assert all(picture["role"] == "img" for picture in pictures)
    assert "Where in the file, from line 1 to line 90: in 4 of 100 parts, most around line 21" in [
        picture["aria-label"] for picture in pictures
    ]
    assert any("most: " in str(picture["aria-label"]).lower() for picture in pictures)


WIDE = Judgement(
    pairs=10,
    lengths=Counter({power: 2 + power for power in range(17)}),
    ratios=Counter({quarters: 20 - abs(quarters) for quarters in range(-20, 20)}),
    characters=Counter({chr(place): 1000 - place for place in range(0x60, 0xC0)}),
)
NARROW = Judgement(pairs=1, lengths=Counter({3: 123456789}), ratios=Counter({0: 1, 1: 1}))


@pytest.mark.parametrize("judgement", [WIDE, NARROW, Judgement()])
def test_labels_stay_within_the_picture_and_beside_each_other(judgement: Judgement) -> None:
    text = as_html(Report([], {"train": judgement.pairs}, {"train": judgement}), "x")
    Page(text)
    assert "Nothing found that is wrong." in text
    for picture in re.findall(r"<svg.*?</svg>", text):
        width = int(re.search(r'viewBox="0 0 (\d+)', picture)[1])  # type: ignore[index]
        rows: dict[str, list[tuple[float, float]]] = {}
        for x, y, label in re.findall(r'<text x="([\d.]+)" y="(\d+)"[^>]*>([^<]*)</text>', picture):
            half = 3 * len(html.unescape(label))  # 6 units a character
            rows.setdefault(y, []).append((float(x) - half, float(x) + half))
        for row in rows.values():
            assert row[0][0] >= 0
            assert row[-1][1] <= width
            assert all(end <= start for (_, end), (start, _) in itertools.pairwise(row))
