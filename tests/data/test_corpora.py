"""Text files and tables give their pairs exactly, whatever is in them, or are refused with file and line."""

import csv
import gzip
import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_cli.config import HubDataset, TableFile, TextFiles
from transformer_cli.data.corpora import TableCorpus, TextCorpus, open_corpus
from transformer_cli.errors import UserError

# --- two text files -----------------------------------------------------------------------------------------------


def write(folder: Path, source: bytes, target: bytes) -> TextCorpus:
    (folder / "a.de").write_bytes(source)
    (folder / "a.en").write_bytes(target)
    return TextCorpus(folder / "a.de", folder / "a.en")


def test_lines_are_pairs(tmp_path: Path) -> None:
    corpus = write(tmp_path, "ä\n\nc d \u2028e\x85f\rg".encode(), b'A\nNA\n"')
    expected = [("ä", "A"), ("", "NA"), ("c d \u2028e\x85f\rg", '"')]
    assert list(corpus.pairs()) == expected
    assert list(corpus.pairs()) == expected  # again, from the start
    assert corpus.notes == []


def test_gzip_reads_the_same(tmp_path: Path) -> None:
    for name in ("a.de", "a.en"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(b"x\ny\n"))
    source = TextFiles(source=str(tmp_path / "a.de.gz"), target=str(tmp_path / "a.en.gz"))
    assert list(open_corpus(source, "de", "en").pairs()) == [("x", "x"), ("y", "y")]


def test_what_is_dropped_is_noted(tmp_path: Path) -> None:
    corpus = write(tmp_path, b"\xef\xbb\xbfa\r\nb\r\n", b"a\nb\n")
    assert list(corpus.pairs()) == [("a", "a"), ("b", "b")]
    assert len(corpus.notes) == 2
    assert "2 lines" in corpus.notes[0]
    assert "byte-order mark" in corpus.notes[1]
    assert all(str(tmp_path / "a.de") in note for note in corpus.notes)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"a\nb\nc\n", b"a\n", "a.de:2: has no counterpart: .*a.en has 1 lines and .*a.de 3;"),
        (b"a\n", b"a\nb\n", "a.en:2: has no counterpart: .*a.de has 1 lines and .*a.en 2;"),
        (b"", b"a\n", "a.en:1: has no counterpart: .*a.de has 0 lines"),
        (b"", b"", "a.de: is empty"),
        (b"a\nb\xff\n", b"a\nb\n", "a.de:2: "),
        (b"a\nb\n", b"a\n\xc3\n", "a.en:2: "),
    ],
)
def test_text_files_are_refused_with_file_and_line(tmp_path: Path, source: bytes, target: bytes, message: str) -> None:
    corpus = write(tmp_path, source, target)
    with pytest.raises(UserError, match=message) as error:
        list(corpus.pairs())
    assert "\n" not in str(error.value)


def test_refused_when_opened(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x\n")
    os.mkfifo(tmp_path / "pipe")
    for name in ("nowhere", ".", "pipe"):
        with pytest.raises(UserError, match=str(tmp_path)):
            TextCorpus(tmp_path / "a", tmp_path / name)


def test_content_hash_follows_the_content(tmp_path: Path) -> None:
    hashes = set()
    for source, target in ((b"a\n", b"b\n"), (b"b\n", b"a\n"), (b"a\n", b"c\n"), (b"a\nb\n", b"")):
        corpus = write(tmp_path, source, target)
        for path in (tmp_path / "a.de", tmp_path / "a.en"):
            os.utime(path, (1, 1))  # the date tells nothing
        hashes.add(TextCorpus(tmp_path / "a.de", tmp_path / "a.en").content_hash())
        assert corpus.content_hash() in hashes
    assert len(hashes) == 4


def test_a_corpus_that_is_open_sees_an_edit(tmp_path: Path) -> None:
    corpus = write(tmp_path, b"a\n", b"b\n")
    before = corpus.content_hash()
    (tmp_path / "a.en").write_bytes(b"bc\n")
    assert corpus.content_hash() != before


def test_each_kind_of_source_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("de\ten\nx\ty\n")
    table = open_corpus(TableFile(file=str(tmp_path / "a.tsv")), "de", "en")
    assert list(table.pairs()) == [("x", "y")]
    assert table.describe() == str(tmp_path / "a.tsv")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.jsonl").write_text('{"de": "x", "en": "y"}\n')
    dataset = open_corpus(HubDataset(dataset=str(tmp_path / "folder"), split="train"), "de", "en")
    assert list(dataset.pairs()) == [("x", "y")]


# --- tables ------------------------------------------------------------------------------------------------------

TRAPS = ["NA", "null", "None", "nan", "#N/A", '"', '""', 'say "hi"', "a,b", " x ", "", "\\n", "\\", "#x", "'", "1.0"]
# what a row's text may hold: no line feed, and no carriage return, which ends a line together with one
texts = st.text(st.characters(exclude_characters="\n\r\t", exclude_categories=["Cs"]), max_size=20)
rows = st.lists(st.tuples(texts, texts), min_size=1, max_size=10)


def read(path: Path, content: str | bytes, columns: tuple[str, str] = ("de", "en")) -> list[tuple[str, str]]:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return list(TableCorpus(path, columns).pairs())


def as_tsv(pairs: list[tuple[str, str]]) -> str:
    return "en\tid\tde\n" + "".join(f"{target}\t7\t{source}\n" for source, target in pairs)


def as_csv(pairs: list[tuple[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([["en", "id", "de"], *((target, "7", source) for source, target in pairs)])
    return text.getvalue()


def as_jsonl(pairs: list[tuple[str, str]]) -> str:
    return "".join(json.dumps({"en": target, "id": 7, "de": source}) + "\n" for source, target in pairs)


WRITERS = {".tsv": as_tsv, ".csv": as_csv, ".jsonl": as_jsonl}


@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("kind", WRITERS)
def test_traps_are_text(tmp_path: Path, kind: str, gz: str) -> None:
    pairs = list(zip(TRAPS, reversed(TRAPS), strict=True))
    assert read(tmp_path / f"table{kind}{gz}", WRITERS[kind](pairs)) == pairs


@pytest.mark.parametrize("kind", WRITERS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=rows)
def test_any_text_comes_back(tmp_path: Path, kind: str, pairs: list[tuple[str, str]]) -> None:
    assert read(tmp_path / f"table{kind}", WRITERS[kind](pairs)) == pairs


def test_a_quoted_csv_field_may_hold_line_breaks(tmp_path: Path) -> None:
    """They become spaces, since a line of text to translate could never hold them."""
    content = 'de,en\r\n"a\nb","c\r\nd"\r\n"e ""f"" g",h\r\n'
    assert read(tmp_path / "a.csv", content) == [("a b", "c d"), ('e "f" g', "h")]


def test_a_jsonl_text_may_hold_line_breaks(tmp_path: Path) -> None:
    assert read(tmp_path / "a.jsonl", '{"de": "a\\nb", "en": "c\\r\\nd\\u2028"}') == [("a b", "c d\u2028")]


def test_long_csv_fields(tmp_path: Path) -> None:
    assert read(tmp_path / "a.csv", f"de,en\n{'x' * 200_000},y\n") == [("x" * 200_000, "y")]


def test_nested_and_dotted_columns(tmp_path: Path) -> None:
    columns = ("translation.de", "translation.en")
    content = '{"translation": {"de": "x", "en": "y"}}\n{"translation.de": "u", "translation": {"en": "v"}}\n'
    assert read(tmp_path / "a.jsonl", content, columns) == [("x", "y"), ("u", "v")]


def test_notes_and_kind_of_file_by_name(tmp_path: Path) -> None:
    path = tmp_path / "A.TSV"
    path.write_bytes(b"\xef\xbb\xbfde\ten\r\nx\ty\r\n")
    corpus = TableCorpus(path, ("de", "en"))
    assert list(corpus.pairs()) == [("x", "y")]
    assert len(corpus.notes) == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("name", "content"), [("a.csv", "de,en\nx,y\n"), ("a.jsonl", '{"de": "x", "en": "y"}\n')])
def test_blank_lines_may_end_a_file(tmp_path: Path, name: str, content: str, end: str) -> None:
    assert read(tmp_path / name, content + end * 3) == [("x", "y")]


def test_a_csv_may_end_its_lines_with_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"de,en\r\nx,y\r\n")
    corpus = TableCorpus(path, ("de", "en"))
    assert list(corpus.pairs()) == [("x", "y")]
    assert corpus.notes == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "de\tfr\nx\ty\n", "a.tsv:1: no column 'en'; the first line names 'de', 'fr'"),
        ("a.tsv", "de\ten\tde\nx\ty\tz\n", "a.tsv:1: more than one column 'de'"),
        ("a.tsv", "de\ten\nx\ty\nx\n", "a.tsv:3: has 1 columns where the first line has 2"),
        ("a.tsv", "de\ten\nx\ty\tz\n", "a.tsv:2: has 3 columns where"),
        ("a.tsv", b"de\ten\nx\t\xff\n", "a.tsv:2: "),
        ("a.tsv", "", "a.tsv:1: no column 'de'; the first line names none"),
        ("a.tsv", "de\ten\n", "a.tsv: has no rows"),
        ("a.csv", "", "a.csv:1: no column 'de'"),
        ("a.csv", "de,en\n", "a.csv: has no rows"),
        ("a.csv", 'de,en\nx,y\n"a\nb",c,d\n', "a.csv:3: has 3 columns"),
        ("a.csv", 'de,en\nx,"\ny,z\n', "a.csv:2: the row that begins here is not valid CSV"),
        ("a.csv", 'de,en\nx,y\nx,"a"b\n', "a.csv:3: the row that begins here is not valid CSV"),
        ("a.csv", "de,en\nx,a\rb\n", "a.csv:2: "),
        ("a.csv", "de,en\n\nx,y\n", "a.csv:2: has 0 columns"),
        ("a.jsonl", "", "a.jsonl: has no rows"),
        ("a.csv", "de,en\nx,y\n\n\nx,y\n", "a.csv:3: has 0 columns"),
        ("a.csv", "de,en\n\n", "a.csv: has no rows"),
        ("a.jsonl", '{"de": "x", "en": "y"}\n\n\n{"de": "x", "en": "y"}\n', "a.jsonl:2: is not valid JSON"),
        ("a.jsonl", "\n", "a.jsonl: has no rows"),
        ("a.jsonl", '{"de": "x", "en": "y"}\n["x"]\n', "a.jsonl:2: is not a JSON object"),
        ("a.jsonl", '{"de": "x", "en": "y"}\n{"de": "x"}\n', "a.jsonl:2: has no 'en', only 'de'"),
        ("a.jsonl", '{"de": "x", "en": null}\n', "a.jsonl:1: 'en' is null, not text"),
        ("a.jsonl", '{"de": "x", "en": 3}\n', "a.jsonl:1: 'en' is a number, not text"),
        ("a.jsonl", '{"de": "x", "en": "\\ud800"}\n', "a.jsonl:1: 'en' holds half of a surrogate pair"),
        ("a.jsonl", "[" * 100_000 + "\n", "a.jsonl:1: is not valid JSON"),
        ("a.jsonl", '{"de": ' + "1" * 10_000 + "}\n", "a.jsonl:1: is not valid JSON"),
        ("a.xlsx", "", "a.xlsx: unknown kind of table; its name must end in .tsv, .csv, .jsonl or .parquet"),
    ],
)
def test_tables_are_refused_with_file_and_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        read(tmp_path / name, content)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_content_hash_follows_content_and_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    hashes = []
    for content, columns in (("x\ty\n", ("de", "en")), ("x\ty\n", ("en", "de")), ("x\tz\n", ("de", "en"))):
        path.write_text(f"de\ten\n{content}")
        hashes += [TableCorpus(path, columns).content_hash() for _ in range(2)]
    assert hashes[::2] == hashes[1::2]
    assert len(set(hashes)) == 3


# --- what is not a corpus ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["the same path", "another path", "a symlink", "a hard link"])
def test_a_file_is_not_paired_with_itself(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").write_text("ein Satz\n")
    other = {"the same path": "a", "another path": f"../{tmp_path.name}/a"}.get(kind, "b")
    if kind == "a symlink":
        (tmp_path / "b").symlink_to("a")
    if kind == "a hard link":
        (tmp_path / "b").hardlink_to(tmp_path / "a")
    source = TextFiles(source=str(tmp_path / "a"), target=str(tmp_path / other))
    with pytest.raises(UserError, match=rf"{other}: is the same file as the source, .*the target is another"):
        open_corpus(source, "de", "en")


def test_a_copy_is_another_file(tmp_path: Path) -> None:
    """Some tasks copy: their files are equal."""
    for name in ("a", "b"):
        (tmp_path / name).write_text("ein Satz\n")
    source = TextFiles(source=str(tmp_path / "a"), target=str(tmp_path / "b"))
    assert list(open_corpus(source, "de", "en").pairs()) == [("ein Satz", "ein Satz")]


TMX = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4">\n<header/><body></body></tmx>\n'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (TMX, "TMX"),
        (f"\ufeff{TMX}", "TMX"),
        ('<tmx version="1.4"><header creationtool="x"/>\n', "TMX"),
        ('<?xml version="1.0" encoding="utf-8"?>\n<!-- made by hand -->\n<corpus>\n', "XML"),
        ('<?xml version="1.0"?><xliff version="1.2"><file>\n', "XLIFF"),
        ("<!DOCTYPE html>\n<html>\n<head>\n", "HTML"),
        ("\n  <HTML lang=de>\n<body>", "HTML"),
        ("<!DOCTYPE tmx [\n<!ENTITY a 'b'>\n]>", "TMX"),
        ('<refset setid="newstest2013" srclang="any" trglang="en">\n<doc sysid="ref">\n', "XML"),
        ('{"de": "ein Satz", "en": "a sentence"}\n', "JSON"),
        ('[\n  {\n    "translation": {"de": "ein", "en": "a"}\n', "JSON"),
    ],
)
@pytest.mark.parametrize("name", ["c.tmx", "c.gz"])
def test_markup_is_not_text(tmp_path: Path, text: str, kind: str, name: str) -> None:
    """Also where it is paired with itself, which is how one would try it."""
    advice = {"JSON": "NAME.jsonl", "TMX": "NAME.tmx"}.get(kind, "to one text file")
    for encoding in ("utf-8", "utf-16"):
        content = text.encode(encoding)
        (tmp_path / name).write_bytes(gzip.compress(content) if name == "c.gz" else content)
        with pytest.raises(
            UserError,
            match=rf"c\.\w+: is {kind}, not text .*; .*{advice}",
        ) as told:
            open_corpus(TextFiles(source=str(tmp_path / name), target=str(tmp_path / name)), "de", "en")
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "line",
    [
        "<3 dich",
        "<b>Ein</b> <i>Satz</i>",
        "<html> ist das erste Element einer Seite.",
        "<html> steht vor <body>.",
        "<?xml steht am Anfang.",
        "<2de> <html>",
        "[Beifall]",
        "[1]",
        "{name} ist hier",
        '{"a"} ist eine Menge',
        '"a": b',
        "<!-- ein Kommentar -->",
        "",
    ],
)
def test_text_may_begin_with_a_bracket(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.de").write_text(f"{line}\nzwei\n")
    (tmp_path / "a.en").write_text(f"{line}\ntwo\n")
    corpus = open_corpus(TextFiles(source=str(tmp_path / "a.de"), target=str(tmp_path / "a.en")), "de", "en")
    assert list(corpus.pairs()) == [(line, line), ("zwei", "two")]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "Ein Satz.\tA sentence.\n", r"put a line with names before it: de<TAB>en$"),
        ("a.csv", "Ein Satz.,A sentence.\n", r"put a line with names before it: de,en$"),
        ("a.csv", "de;en\nein Satz;a sentence\n", r"are separated by semicolons, not commas; write it with commas"),
        (
            "a.csv",
            '"de";"en"\n"ein, zwei";"one, two"\n',
            r"are separated by semicolons, not commas; write it with commas",
        ),
        ("a.csv", "Ein Satz;A sentence\n", r"are separated by semicolons, not commas; write it with commas"),
        ("a.csv", "de\ten\nein Satz\ta sentence\n", r"are separated by tabs, not commas; rename it to \.tsv"),
        ("a.tsv", "de,en\nein Satz,a sentence\n", r"are separated by commas, not tabs; rename it to \.csv"),
        ("a.tsv", "de;en\nein Satz;a sentence\n", r"are separated by semicolons, not tabs; write it with commas"),
        ("a.tsv", "de\tde\ten\n", r"more than one column 'de'"),
        ("a.csv", "id;de,en\n", r"no column 'de'; the first line names 'id;de', 'en'"),
    ],
)
def test_a_table_that_is_read_wrongly_says_what_to_do(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}:1: .*{message}") as told:
        open_corpus(TableFile(file=str(tmp_path / name)), "de", "en")
    assert "\n" not in str(told.value)


def test_a_header_may_hold_other_separators(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("de\ten; by hand, or not\nein; zwei\tone, two\n")
    table = open_corpus(TableFile(file=str(tmp_path / "a.tsv"), target_column="en; by hand, or not"), "de", "en")
    assert list(table.pairs()) == [("ein; zwei", "one, two")]


def test_a_column_is_not_paired_with_itself(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("de\ten\nein\tone\n")
    with pytest.raises(UserError, match=r"a\.tsv: column 'de' is both source and target; set source_column"):
        open_corpus(TableFile(file=str(tmp_path / "a.tsv"), target_column="de"), "de", "en")
