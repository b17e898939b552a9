"""A corpus is encoded once, alike by any number of processes, and again when anything it depends on changes."""

import copy
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from transformer_cli.data import encoded as module
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import EncodedCorpus, encode_corpus
from transformer_cli.errors import UserError
from transformer_cli.storage.holding import MARK, MARKED, temporary
from transformer_cli.text import build
from transformer_cli.text.codec import Codecs


def write_pairs(folder: Path, pairs: list[tuple[str, str]]) -> TextCorpus:
    for name, side in (("a.de", 0), ("a.en", 1)):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return TextCorpus(folder / "a.de", folder / "a.en")


def everything(encoded: EncodedCorpus) -> list[tuple[list[int], list[int]]]:
    return [(source.tolist(), target.tolist()) for source, target in map(encoded.ids, range(len(encoded)))]


@pytest.mark.parametrize("kind", ["word", "subword"])
def test_ids_are_the_codecs_of_the_pairs_that_stay(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, subword_codecs: Codecs, kind: str
) -> None:
    codecs = word_codecs if kind == "word" else subword_codecs
    encoded = encode_corpus(corpus, codecs, max_length=30, keep_text=True, cache_folder=tmp_path)
    pairs = [(codecs.source.encode(source), codecs.target.encode(target)) for source, target in corpus.pairs()]
    texts = list(corpus.pairs())
    empty = [bool(not source.strip() or not target.strip()) for source, target in texts]
    long = [max(map(len, pair)) > 30 and not blank for pair, blank in zip(pairs, empty, strict=True)]
    kept = [not (blank or much) for blank, much in zip(empty, long, strict=True)]
    assert (encoded.left_out_empty, encoded.left_out_long) == (sum(empty), sum(long))
    assert encoded.left_out_empty == 1
    assert encoded.left_out_long >= 1
    assert everything(encoded) == [pair for pair, stays in zip(pairs, kept, strict=True) if stays]
    assert list(map(encoded.texts, range(len(encoded)))) == [
        text for text, stays in zip(texts, kept, strict=True) if stays
    ]
    assert encoded.source_lengths.tolist() == [len(source) for source, _ in everything(encoded)]
    assert encoded.target_lengths.tolist() == [len(target) for _, target in everything(encoded)]
    with pytest.raises(IndexError):
        encoded.ids(len(encoded))


@pytest.mark.medium
def test_pairs_that_are_fetched_together_are_those_that_are_fetched_alone(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order, again and again, from chunks of any size."""
    for size in (1, 7, 4096):
        monkeypatch.setattr("transformer_cli.data.encoded.CHUNK_PAIRS", size)
        encoded = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path / str(size))
        pairs = np.random.default_rng(1).integers(0, len(encoded), 3 * len(encoded))
        together = [(source.tolist(), target.tolist()) for source, target in encoded.ids_of(pairs)]
        assert together == [everything(encoded)[pair] for pair in pairs]
        assert encoded.ids_of(pairs[:0]) == []
        for wrong in (-1, len(encoded)):
            with pytest.raises(IndexError):
                encoded.ids_of(np.array([0, wrong]))


def test_exactly_max_length_stays(tmp_path: Path, word_codecs: Codecs) -> None:
    corpus = write_pairs(tmp_path, [("a b c", "d"), ("a", "b c d e"), ("a b", "c d e")])
    encoded = encode_corpus(corpus, word_codecs, max_length=3, cache_folder=tmp_path / "cache")
    assert encoded.source_lengths.tolist() == [3, 2]
    assert encoded.left_out_long == 1


@pytest.mark.medium
def test_processes_change_nothing(
    tmp_path: Path, corpus: TextCorpus, subword_codecs: Codecs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_PAIRS", 50)
    alone = encode_corpus(corpus, subword_codecs, max_length=40, keep_text=True, cache_folder=tmp_path / "0")
    monkeypatch.setattr(build, "INLINE_SECONDS", 0.0)
    shared = encode_corpus(
        corpus, subword_codecs, max_length=40, keep_text=True, workers=2, cache_folder=tmp_path / "2"
    )
    assert alone.path.read_bytes() == shared.path.read_bytes()


def test_another_copy_reads_the_same(tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs) -> None:
    encoded = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
    assert everything(copy.copy(encoded)) == everything(encoded)  # a copy goes through the form that processes send


def test_the_second_time_it_comes_from_the_cache(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
    monkeypatch.setattr(TextCorpus, "pairs", lambda self: pytest.fail("read again"))
    second = encode_corpus(corpus, word_codecs, max_length=30, workers=3, cache_folder=tmp_path)
    assert second.path == first.path
    assert (second.left_out_empty, second.left_out_long) == (first.left_out_empty, first.left_out_long)
    assert {path.name for path in tmp_path.iterdir()} == {f"{first.key}.arrow", f"{first.key}.sha256"}
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}, "nobody else can read the text"


def test_what_changes_the_ids_changes_the_file(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, subword_codecs: Codecs
) -> None:
    paths = {
        encode_corpus(corpus, codecs, max_length=max_length, keep_text=keep_text, cache_folder=tmp_path).path
        for codecs, max_length, keep_text in [
            (word_codecs, 30, False),
            (word_codecs, 31, False),
            (word_codecs, 30, True),
            (subword_codecs, 30, False),
        ]
    }
    assert len(paths) == 4


def test_a_file_edited_in_place_is_seen(tmp_path: Path, word_codecs: Codecs) -> None:
    """Same path, size and date, other text."""
    sides = []
    for words in ("ba be", "bi bo"):
        corpus = write_pairs(tmp_path, [(words, words)])
        for name in ("a.de", "a.en"):
            os.utime(tmp_path / name, (1, 1))
        encoded = encode_corpus(
            TextCorpus(corpus.source.path, corpus.target.path),
            word_codecs,
            max_length=9,
            keep_text=True,
            cache_folder=tmp_path / "cache",
        )
        sides.append(encoded.texts(0))
    assert sides == [("ba be", "ba be"), ("bi bo", "bi bo")]


def test_a_file_edited_while_it_is_read_is_refused(tmp_path: Path, word_codecs: Codecs) -> None:
    class Edited(TextCorpus):
        def pairs(self):  # type: ignore[no-untyped-def]
            yield from super().pairs()
            self.target.path.write_text("other\n")

    write_pairs(tmp_path, [("a", "b")])
    with pytest.raises(UserError, match="changed while it was read"):
        encode_corpus(
            Edited(tmp_path / "a.de", tmp_path / "a.en"), word_codecs, max_length=9, cache_folder=tmp_path / "cache"
        )
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "emptied", "no counts"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, damage: str) -> None:
    encoded = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
    expected, path = everything(encoded), encoded.path
    data = path.read_bytes()
    if damage == "no counts":
        data = data.replace(b"left_out_empty", b"left_out_other")
    path.unlink()  # the old file stays mapped
    path.write_bytes(data if damage == "no counts" else data[: len(data) // 2] if damage == "cut" else b"")
    with pytest.raises((ValueError, OSError)):
        EncodedCorpus(path)
    assert everything(encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)) == expected


def test_a_cache_with_other_bytes_inside_is_made_anew(tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs) -> None:
    """Arrow opens such a file: only its end is checked, and the ids may be anything."""
    encoded = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
    expected, path, data = everything(encoded), encoded.path, encoded.path.read_bytes()
    ids = encoded.ids(len(encoded) // 2)[0].tobytes()
    path.unlink()  # the old file stays mapped
    path.write_bytes(data.replace(ids, bytes(len(ids))))
    assert everything(EncodedCorpus(path)) != expected
    assert everything(encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)) == expected
    assert path.read_bytes() == data


@pytest.mark.parametrize("digest", [None, "", "0" * 64, b"\xff"])
def test_a_cache_without_its_digest_is_made_anew(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, digest: str | bytes | None
) -> None:
    encoded = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
    path = encoded.path.with_suffix(".sha256")
    line, written = path.read_text(), encoded.path.stat().st_ino
    assert line == f"{hashlib.sha256(encoded.path.read_bytes()).hexdigest()}  {encoded.path.name}\n"
    if digest is None:
        path.unlink()
    else:
        path.write_bytes(digest if isinstance(digest, bytes) else digest.encode())
    again = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
    assert again.path.stat().st_ino != written  # `encoded` still maps the old file
    assert path.read_text() == line


def test_faults_leave_nothing_behind(tmp_path: Path, word_codecs: Codecs) -> None:
    write_pairs(tmp_path, [("a", "b")])
    (tmp_path / "a.en").write_bytes(b"b\nc\n")
    with pytest.raises(UserError, match=r"a\.en:2: has no counterpart"):
        encode_corpus(
            TextCorpus(tmp_path / "a.de", tmp_path / "a.en"), word_codecs, max_length=9, cache_folder=tmp_path / "cache"
        )
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a b c", "1 have an empty side, 1 have more than 2 tokens; raise data.max_length"),
        ("", "2 have an empty side, 0 have more than 2 tokens; check that the right files"),
    ],
)
def test_a_corpus_without_a_usable_pair_is_refused(line: str, says: str, tmp_path: Path, word_codecs: Codecs) -> None:
    corpus = write_pairs(tmp_path, [(line, "d"), ("", "x")])
    for _ in range(2):  # from the cache too
        with pytest.raises(UserError, match=f"no pair is left: {says}"):
            encode_corpus(corpus, word_codecs, max_length=2, cache_folder=tmp_path / "cache")


def test_the_cache_folder(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder() -> Path:
        return encode_corpus(corpus, word_codecs, max_length=30).path.parent

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TFM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folder() == tmp_path / "home/.cache/tfm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folder() == tmp_path / "xdg/tfm"
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "own"))
    assert folder() == tmp_path / "own"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TFM_CACHE", str(tmp_path / "file" / "below"))
    assert folder().name.startswith("tfm-cache-")  # nothing can be written there; a temporary folder serves


def test_leftovers_of_killed_processes_go(tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs) -> None:
    """Not what is still written, nor what is somebody else's, however old."""
    mine, dead = tmp_path / "mine.tmp", tmp_path / ".tmp-x-0123abcd"
    mine.write_text("")
    os.utime(mine, (0, 0))
    dead.mkdir()
    (dead / MARK).write_text(MARKED)
    with temporary(tmp_path / "y") as alive:
        encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path)
        assert alive.parent.exists()
    assert not dead.exists()
    assert mine.exists()


def test_large_vocabularies_get_wider_ids(
    tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path / "narrow")
    monkeypatch.setattr(type(word_codecs.source.vocabulary), "__len__", lambda self: 70_000)
    wide = encode_corpus(corpus, word_codecs, max_length=30, cache_folder=tmp_path / "wide")
    assert narrow.ids(0)[0].dtype == np.dtype(np.uint16)
    assert wide.ids(0)[0].dtype == np.dtype(np.int32)
    assert everything(wide) == everything(narrow)
