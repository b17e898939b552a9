"""Links of words, line by line beside a corpus: read strictly, and kept with the pairs as links of tokens."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_cli.data import encoded as module
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.data.encoded import PairEncoder, encode_corpus
from transformer_cli.data.loader import CorpusBatches, load_updates
from transformer_cli.errors import UserError
from transformer_cli.text import build
from transformer_cli.text.alignments import AlignedPair, Links, token_words
from transformer_cli.text.codec import Codecs
from transformer_cli.variants.guided_attention import AlignedCorpus


class Rows:
    """A corpus that is no file."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self._pairs = pairs
        self.notes = ["a note"]

    def pairs(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def content_hash(self) -> str:
        return str(self._pairs)

    def describe(self) -> str:
        return "some rows"


def linked(source: str, target: str, links: Links) -> AlignedPair:
    return AlignedPair(source, target, links, links)


def aligned(folder: Path, text: str, *pairs: tuple[str, str]) -> AlignedCorpus:
    path = folder / "links"
    path.write_text(text, encoding="utf-8")
    return AlignedCorpus(Rows(*pairs), path)


# --- reading ------------------------------------------------------------------------------------------------------


def test_each_pair_gets_its_line(tmp_path: Path) -> None:
    corpus = aligned(tmp_path, "1-0 0-0\r\n\n 0-1", ("a b", "c"), ("a", "b"), ("a", "b c"))
    assert list(corpus.pairs()) == [
        linked("a b", "c", {(1, 0), (0, 0)}),
        linked("a", "b", set()),
        linked("a", "b c", {(0, 1)}),
    ]
    assert corpus.notes == ["a note", f"{tmp_path / 'links'}: dropped the carriage return at the end of 1 line"]
    packed = tmp_path / "links.gz"
    packed.write_bytes(gzip.compress(b"0-0\n"))
    assert list(AlignedCorpus(Rows(("a", "b")), packed).pairs()) == [linked("a", "b", {(0, 0)})]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0-0\n", "2: is missing: the file has 1 lines, and some rows more pairs"),
        ("0-0\n0-0\n\n0-0\n", "3: has no counterpart: the file has 4 lines, and some rows 2 pairs"),
        ("0-0\n0-0 0?1\n", r"2: '0\?1' is not a link; write 0-1"),
        ("0-0\n0--1\n", "2: '0--1' is not a link"),
        ("0-0\n٠-0\n", "2: '٠-0' is not a link"),
        ("0-0\n0-0,1-1\n", "2: '0-0,1-1' is not a link"),
        ("0-0\n99999999999-0\n", "2: '99999999999-0' is not a link"),
        ("0-0\n2-0\n", "2: '2-0' links a word that is not there: the pair has 2 source and 1 target words"),
        ("0-0\n0-1\n", "2: '0-1' links a word that is not there"),
        ("1-1\n0-0\n", "1: '1-1' links"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=f"links:{says}"):
        list(aligned(tmp_path, text, ("a", "b"), ("a  b", "c")).pairs())


def test_the_hash_is_of_both(tmp_path: Path) -> None:
    hashes = {
        aligned(tmp_path, text, pair).content_hash() for text in ("0-0\n", "\n") for pair in (("a", "b"), ("b", "a"))
    }
    assert len(hashes) == 4
    with pytest.raises(UserError, match="no such file"):
        AlignedCorpus(Rows(), tmp_path / "nowhere")


# --- beside the pairs ---------------------------------------------------------------------------------------------


def diagonal_of(corpus: TextCorpus, path: Path) -> AlignedCorpus:
    """Each source word with the target word of its place, where there is one."""
    lines = [range(min(len(source.split()), len(target.split()))) for source, target in corpus.pairs()]
    path.write_text("".join(" ".join(f"{place}-{place}" for place in places) + "\n" for places in lines))
    return AlignedCorpus(corpus, path)


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "workers"), [("word", 0), ("subword", 2)])
def test_links_stay_with_their_pairs(
    tmp_path: Path,
    corpus: TextCorpus,
    word_codecs: Codecs,
    subword_codecs: Codecs,
    kind: str,
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pairs are left out before, between and after; several chunks, several processes."""
    monkeypatch.setattr(module, "CHUNK_PAIRS", 50)
    monkeypatch.setattr(build, "INLINE_SECONDS", 0.0)
    codecs = word_codecs if kind == "word" else subword_codecs
    beside = diagonal_of(corpus, tmp_path / "links")
    options: dict[str, Any] = {"max_length": 30, "keep_text": True}
    encoded = encode_corpus(beside, codecs, linked=True, cache_folder=tmp_path / "2", workers=workers, **options)
    assert (
        encoded.path.read_bytes()
        == encode_corpus(beside, codecs, linked=True, cache_folder=tmp_path / "0", **options).path.read_bytes()
    )
    plain = encode_corpus(corpus, codecs, cache_folder=tmp_path / "0", **options)
    assert encoded.key != plain.key
    assert len(encoded) == len(plain) < 200
    assert encoded.linked_pairs == len(encoded)
    for pair in range(len(plain)):
        assert encoded.texts(pair) == plain.texts(pair)
        sources, targets = (
            token_words(codec, text)
            for codec, text in zip((codecs.source, codecs.target), plain.texts(pair), strict=True)
        )
        expected = [[t, s] for t, word in enumerate(targets) for s, other in enumerate(sources) if word == other]
        assert encoded.links(pair).tolist() == expected
    assert not plain.has_links


def test_batches_bring_their_links(tmp_path: Path, corpus: TextCorpus, word_codecs: Codecs) -> None:
    beside = diagonal_of(corpus, tmp_path / "links")
    encoded = encode_corpus(beside, word_codecs, max_length=30, linked=True, cache_folder=tmp_path)
    for workers in (0, 1):
        updates = load_updates(CorpusBatches(encoded, batch_tokens=120, seed=1), workers=workers, accumulation=2)
        for batch in (batch for _ in range(3) for batch in next(updates).batches):
            assert batch.links is not None
            assert len(batch.links)
            rows, targets, sources = batch.links.unbind(1)
            assert (batch.target_output[rows, targets] > 3).all()
            assert (batch.source[rows, sources] > 3).all()
            assert targets.equal(sources)  # words are tokens here
        updates.close()  # type: ignore[attr-defined]
    links = CorpusBatches(encoded, batch_tokens=120, seed=1).read(np.array([3, 0])).links
    assert links is not None
    assert links[links[:, 0] == 1][:, 1:].tolist() == encoded.links(0).tolist()


def test_without_links_nothing_is_kept(word_codecs: Codecs) -> None:
    """The file of a plain corpus is what it was: its columns are ids, and texts on request."""
    assert PairEncoder(word_codecs, 30, keep_text=False).schema.names == ["source_ids", "target_ids"]
    texts = ["source_text", "target_text"]
    assert PairEncoder(word_codecs, 30, keep_text=True).schema.names == ["source_ids", "target_ids", *texts]
