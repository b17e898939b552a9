"""TMX files give the text of their units and nothing else, in little memory, or are refused with line and column."""

import contextlib
import gzip
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import TmxFile
from transformer_cli.data import tmx
from transformer_cli.data.corpora import open_corpus
from transformer_cli.data.files import LocalFile
from transformer_cli.data.tmx import TmxCorpus, read_languages
from transformer_cli.errors import UserError

HEAD = '<?xml version="1.0" encoding="{encoding}"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
UNIT = '<tu><tuv xml:lang="{}"><seg>{}</seg></tuv>\n<tuv xml:lang="{}"><seg>{}</seg></tuv></tu>\n'


def memory(units: str, head: str = HEAD, encoding: str = "UTF-8") -> str:
    begin = '<tmx version="1.4">\n<header srclang="en" datatype="plaintext"/>\n<body>\n'
    return head.format(encoding=encoding) + begin + units + "</body>\n</tmx>\n"


def unit(source: str, target: str, tags: tuple[str, str] = ("de-DE", "en-US")) -> str:
    return UNIT.format(tags[0], escape(source), tags[1], escape(target))


def read(folder: Path, content: str | bytes, languages: tuple[str, str] = ("de", "en")) -> list[tuple[str, str]]:
    path = folder / "a.tmx"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(TmxCorpus(LocalFile(path), languages).pairs())


texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Cn", "Z"]), max_size=20)


@settings(max_examples=40)
@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=8), encoding=st.sampled_from(["utf-8", "utf-16"]))
def test_every_text_comes_back(
    pairs: list[tuple[str, str]], encoding: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tmx")
    content = memory("".join(unit(*pair) for pair in pairs), encoding=encoding)
    assert read(folder, content.encode(encoding)) == pairs


def test_the_size_of_chunks_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"Käse {number} & so", f"cheese {number} < that") for number in range(20)]
    content = memory("".join(unit(*pair) for pair in pairs))
    for size in (1, 7, 100):
        monkeypatch.setattr(tmx, "_CHUNK", size)
        assert read(tmp_path, content) == pairs


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ('Ein <bpt i="1">&lt;b></bpt>Hund<ept i="1">&lt;/b></ept>.', "Ein Hund."),
        ('Ein <hi type="b">Hund</hi>.', "Ein Hund."),
        ("a<ph>{0}</ph> b<it pos='begin'>[</it> c<ut>x</ut>", "a b c"),
        ('Bild<ph>&lt;img alt="<sub>ein <hi>Hund</hi></sub>"></ph>hier', "Bild ein Hund hier"),
        ("<ph><bpt>x</bpt>y</ph>z<other>kept</other>", "zkept"),
        ("\n   zwei\n   Zeilen \n", "zwei Zeilen"),
        ("a&#13;b&#x2028;c&amp;d&#x1F600;", "a b c&d😀"),
        ("<![CDATA[<a> & b]]><!-- no text --><?code x?>", "<a> & b"),
        ("", ""),
    ],
)
def test_markup_goes_and_text_stays(segment: str, text: str, tmp_path: Path) -> None:
    content = memory(f'<tu><tuv lang="DE"><seg>{segment}</seg></tuv><tuv xml:lang="en_GB"><seg>x</seg></tuv></tu>')
    assert read(tmp_path, content) == [(text, "x")]


def test_what_is_beside_segments_is_no_text(tmp_path: Path) -> None:
    unit = '<tu><note>n</note><prop type="x">p</prop><tuv xml:lang="de"><prop>q</prop><seg>a</seg></tuv>{}</tu>'
    english = '<tuv xml:lang="en"><note>m</note><seg>b</seg></tuv>'
    assert read(tmp_path, memory(unit.format(english))) == [("a", "b")]


@pytest.mark.parametrize(
    ("languages", "tags", "found"),
    [
        (("de", "en"), ["de-AT", "EN"], ("0", "1")),
        (("en", "de"), ["de-AT", "EN"], ("1", "0")),
        (("de", "en"), ["de-AT", "de", "en-US", "en"], ("1", "3")),  # the one itself before one of its kind
        (("de", "en"), ["de-AT", "de-CH", "en"], ("0", "2")),
        (("pt-BR", "pt-PT"), ["pt_pt", "pt_br"], ("1", "0")),
        (("de", "de-AT"), ["de-AT", "de"], ("1", "0")),
        (("de", "de-AT"), ["de-AT", "fr"], None),  # one text is no translation of itself
        (("de-DE", "en"), ["de", "en"], None),
        (("de", "en"), ["den", "en"], None),
        (("de", "en"), ["", "en"], None),
    ],
)
def test_which_variants_are_taken(
    languages: tuple[str, str], tags: list[str], found: tuple[str, str] | None, tmp_path: Path
) -> None:
    variants = "".join(f'<tuv xml:lang="{tag}"><seg>{place}</seg></tuv>' for place, tag in enumerate(tags))
    content = memory(f"<tu>{variants}</tu>" + unit("x", "y", languages))
    expected = ([found] if found else []) + [("x", "y")]
    assert read(tmp_path, content, languages) == expected


def test_units_in_other_languages_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a.tmx").write_text(memory(unit("a", "b") + unit("c", "d", ("de", "fr")) * 2 + "<tu/>"))
    corpus = TmxCorpus(LocalFile(tmp_path / "a.tmx"), ("de", "en"))
    assert list(corpus.pairs()) == list(corpus.pairs()) == [("a", "b")]
    assert corpus.notes == [f"{tmp_path / 'a.tmx'}: left out 3 of 4 units, not in both de and en"]


BOMB = '<!DOCTYPE tmx [<!ENTITY a "haha"><!ENTITY b "&a;&a;&a;&a;">]>\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (memory(unit("&b;", "x"), BOMB), r"a\.tmx:1: column \d+: has a DTD inside"),
        (memory(unit("x", "y"), '<!DOCTYPE tmx [<!ENTITY x SYSTEM "/etc/passwd">]>'), "has a DTD inside"),
        (memory(unit("x", "y"), "<!DOCTYPE tmx [<!ELEMENT tmx ANY>]>"), "has a DTD inside"),
        (memory(unit("x", "y").replace(">x<", ">x&nbsp;z<")), r"a\.tmx:6: column \d+: the entity 'nbsp'"),
        (memory(unit("x", "y").replace(">x<", ">x&nbsp;z<"), ""), r"a\.tmx:4: column \d+: .*undefined entity"),
        (memory("").replace("</body>", ""), r"a\.tmx:7: column 3: is not valid XML \(mismatched tag\)"),
        (memory(unit("a", "b"))[:150], r"a\.tmx:\d+: column \d+: is not valid XML"),
        (memory(unit("a", "b")).encode() + b"\xff", r"a\.tmx:10: column 1: is not valid XML"),
        (memory(unit("a", "b"), encoding="klingon"), r"a\.tmx:1: column \d+: cannot be read \(unknown encoding"),
        (memory(unit("a", "b"), encoding="shift_jis"), "multi-byte encodings are not supported"),
        ("<html><body/></html>", r"a\.tmx:1: column 1: is XML, but not TMX: it begins with <html>"),
        ("Ein Hund.", r"a\.tmx:1: column 1: is not valid XML"),
        ("", "no element found"),
        (memory(""), r"no unit in both de and en; its 0 units are in no language"),
        (memory(unit("a", "b", ("fr", "it")) * 3), r"no unit in both de and en; its 3 units are in .*fr \(3\)"),
        ("<tmx>" + "<a>" * 200, "more than 100 elements inside each other"),
    ],
    ids=str,
)
def test_what_is_refused(content: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path, content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<tmx a='" + "x" * 200_000, "a tag of more than"),
        ("<tmx><body><tu><tuv><seg>" + "a " * 100_000, "a unit has more than"),
        ("<tmx><body><tu>" + "<tuv><seg/></tuv>" * 10_000, "a unit has more than"),
        ("<tmx><body><tu><tuv><seg><ph>" + "a " * 100_000, "a unit has more than"),
    ],
    ids=["tag", "text", "variants", "code"],
)
def test_nothing_without_end_is_held_in_memory(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmx, "LONGEST_LINE", 70_000)
    with pytest.raises(UserError, match=message):
        read(tmp_path, content)


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(memory("".join(unit(f"ä{number}", f"b{number}") for number in range(5))).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        read(folder, bytes(content))


def test_damaged_gzip_data_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx.gz"
    packed = gzip.compress(memory(unit("a", "b") * 100).encode())
    path.write_bytes(packed)
    assert len(list(TmxCorpus(LocalFile(path), ("de", "en")).pairs())) == 100
    path.write_bytes(packed[:60])
    with pytest.raises(UserError, match=r"a\.tmx\.gz: the gzip data ends too early"):
        list(TmxCorpus(LocalFile(path), ("de", "en")).pairs())


def test_a_config_names_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    path.write_text(memory(unit("a", "b") + unit("c", "d", ("de-AT", "en"))))
    assert list(open_corpus(TmxFile(tmx=str(path)), "en", "de").pairs()) == [("b", "a"), ("d", "c")]
    austrian = open_corpus(TmxFile(tmx=str(path), source_language="de-AT"), "de", "en")
    assert list(austrian.pairs()) == [("c", "d")]
    assert austrian.describe() == str(path)
    hashes = {open_corpus(TmxFile(tmx=str(path)), *pair).content_hash() for pair in (("de", "en"), ("en", "de"))}
    assert len(hashes | {austrian.content_hash()}) == 3
    with pytest.raises(UserError, match="both source and target"):
        open_corpus(TmxFile(tmx=str(path), source_language="EN"), "de", "en")


def test_the_header_says_which_language_is_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.tmx").write_text(memory(unit("a", "b")))
    assert read_languages(LocalFile(tmp_path / "a.tmx")) == ["en-US", "de-DE"]
    (tmp_path / "a.tmx").write_text(memory(unit("a", "b")).replace('srclang="en"', 'srclang="*all*"'))
    assert read_languages(LocalFile(tmp_path / "a.tmx")) == ["de-DE", "en-US"]
