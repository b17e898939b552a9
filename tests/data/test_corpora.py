"""Two text files give their pairs as they stand, or are refused with file and line."""

import gzip
import os
from pathlib import Path

import pytest

from transformer_cli.config import HubDataset, TableFile, TextFiles
from transformer_cli.data.corpora import TextCorpus, open_corpus
from transformer_cli.errors import UserError


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
def test_refused_with_file_and_line(tmp_path: Path, source: bytes, target: bytes, message: str) -> None:
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
