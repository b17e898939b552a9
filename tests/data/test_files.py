"""Files in zip archives are read as files on the disk are; archives that are damaged, empty or bombs are refused."""

import contextlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import MosesZip, TmxFile
from transformer_cli.data.corpora import open_corpus
from transformer_cli.data.files import find_tmx, read_members
from transformer_cli.errors import UserError

BOOKS = {"Books.de-en.de": "Hallo\nWelt\n", "Books.de-en.en": "Hello\nWorld\n"}
TMX = '<tmx><body><tu><tuv xml:lang="de"><seg>a</seg></tuv><tuv xml:lang="en"><seg>b</seg></tuv></tu></body></tmx>'


def pack(path: Path, files: Mapping[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def moses(path: Path) -> list[tuple[str, str]]:
    return list(open_corpus(MosesZip(moses=str(path)), "de", "en").pairs())


def test_a_moses_zip_is_two_text_files(tmp_path: Path) -> None:
    others = {"README": "x", "LICENSE": "y", "Books.de-en.xml": "<x/>", "__MACOSX/._a.de": "z", ".hidden.en": "z"}
    path = pack(tmp_path / "de-en.txt.zip", {**others, **BOOKS})
    corpus = open_corpus(MosesZip(moses=str(path)), "de", "en")
    assert list(corpus.pairs()) == list(corpus.pairs()) == [("Hallo", "Hello"), ("Welt", "World")]
    assert next(iter(open_corpus(MosesZip(moses=str(path)), "en", "de").pairs())) == ("Hello", "Hallo")
    assert corpus.describe() == f"{path}/Books.de-en.de, {path}/Books.de-en.en"


def test_what_the_ends_of_names_say(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", {"x/a.pt_BR.txt": "a\n", "x/a.en_GB.txt": "b\n", "x/b.de": "c\n"})
    assert list(open_corpus(MosesZip(moses=str(path)), "pt", "en").pairs()) == [("a", "b")]
    other = MosesZip(moses=str(path), source_language="en-GB", target_language="pt-BR")
    assert list(open_corpus(other, "en", "pt").pairs()) == [("b", "a")]


def test_the_hash_follows_archive_and_languages(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    hashes = set()
    for content in ("Welt\n", "Erde\n"):
        pack(path, {**BOOKS, "Books.de-en.de": f"Hallo\n{content}"})
        for languages in (("de", "en"), ("en", "de")):
            hashes.add(open_corpus(MosesZip(moses=str(path)), *languages).content_hash())
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "the archive is empty"),
        ({"README": "x", "a.de": "y"}, r"no pair of files whose names end in \.de and \.en .* it has README and a\.de"),
        ({"a.de": "x", "b.en": "y"}, "no pair of files"),
        ({**BOOKS, "b.de": "x", "b.en": "y"}, "has 2 pairs of files"),
        ({"a.de": "x\ny\n", "a.en": "x\n"}, r"a\.zip/a\.de:2: has no counterpart"),
        ({"a.de": b"x\n\xff\n", "a.en": "x\ny\n"}, r"a\.zip/a\.de:2: is not valid UTF-8"),
        ({"a.de": bytes(30_000_000), "a.en": "x"}, r"a\.zip/a\.de: [0-9,]+ bytes would unpack to 30,000,000"),
        ({"a.de": b"x\n", "a.en": b"\n" * 30_000_000}, r"a\.zip/a\.en: [0-9,]+ bytes would unpack to 30,000,000"),
    ],
)
def test_what_is_refused(files: Mapping[str, str | bytes], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as error:
        moses(pack(tmp_path / "a.zip", files))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + bytes(50)])
def test_what_is_no_archive(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.zip: is not a zip archive"):
        moses(tmp_path / "a.zip")


def test_a_password_is_said(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", BOOKS)
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag of both headers
        content[content.index(mark) + place] |= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="has a password"):
        moses(path)


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_archive_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.zip"
    text = "".join(f"Satz {number * number}\n" for number in range(200))
    content = bytearray(pack(path, {"a.de": text, "a.en": text}).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))])
    with contextlib.suppress(UserError):
        moses(path)


def test_a_size_that_lies_is_not_believed(tmp_path: Path) -> None:
    """No more is read than the archive says, and the checksum then tells."""
    path = pack(tmp_path / "a.zip", {"a.de": bytes(5_000_000), "a.en": "x\n"})
    content = path.read_bytes()
    assert content.count((5_000_000).to_bytes(4, "little")) == 2
    path.write_bytes(content.replace((5_000_000).to_bytes(4, "little"), (1_000).to_bytes(4, "little")))
    with pytest.raises(UserError, match=r"a\.zip/a\.de:1: cannot be read: the zip data is damaged"):
        moses(path)


def test_names_inside_are_no_paths(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", {"../../out.de": "x\n", "../../out.en": "y\n"})
    assert moses(path) == [("x", "y")]
    assert [place.name for place in tmp_path.iterdir()] == ["a.zip"]


def test_a_tmx_file_in_an_archive(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tmx.zip", {"README": "x", "mem.tmx": TMX})
    assert list(open_corpus(TmxFile(tmx=str(path)), "de", "en").pairs()) == [("a", "b")]
    for files in ({"README": "x"}, {"a.tmx": TMX, "b.tmx": TMX}):
        with pytest.raises(UserError, match="files that end in"):
            find_tmx(pack(tmp_path / "a.zip", files))


def test_lines_may_be_read_half_way(tmp_path: Path) -> None:
    """What is open then closes with the last use of it, and without a warning."""
    (member, *_) = read_members(pack(tmp_path / "a.zip", BOOKS))
    assert next(member.lines()) == "Hallo"
    with member.open() as stream:
        assert isinstance(stream, io.BufferedReader)
