"""Codecs: encode, decode, save, load; what was done in training is done again."""

import copy
import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import Config, VocabularyConfig
from transformer_cli.errors import UserError
from transformer_cli.text import codec as codec_module
from transformer_cli.text.codec import Codecs, Preparation, vocabulary_files
from transformer_cli.text.lines import with_tag
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK

PATIENT = settings(max_examples=60)
KINDS = ["unigram", "bpe", "whitespace", "character", "spacy"]

Pair = tuple[str, str]
Configure = Callable[..., Config]


def configured(configure: Configure, kind: str, **options: Any) -> Config:
    if kind in ("unigram", "bpe"):
        return configure(algorithm=kind, size=420, **options)
    return configure(kind, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_training_text_comes_back(codecs: Callable[..., Codecs], pairs: list[Pair], kind: str) -> None:
    both = codecs(kind)
    for codec, texts in zip((both.source, both.target), zip(*pairs, strict=True), strict=True):
        batch = codec.encode_batch(texts)
        assert batch == [codec.encode(text) for text in texts] == [codec.lookup(codec.tokenize(t)) for t in texts]
        assert [codec.decode(ids) for ids in batch] == list(texts)
        assert UNK not in itertools.chain(*batch)
        assert codec.tokens(batch[0]) == codec.tokenize(texts[0])
        assert codec.is_subword == (kind in ("unigram", "bpe"))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_no_ids(codecs: Callable[..., Codecs], kind: str) -> None:
    codec = codecs(kind).source
    assert codec.encode("") == []
    assert codec.decode([]) == ""
    assert codec.encode_batch([]) == []


@pytest.mark.medium
@pytest.mark.parametrize("changes", [{}, {"lowercase": True, "normalization": "nfkc"}], ids=["as it is", "changed"])
@pytest.mark.parametrize("kind", KINDS)
@PATIENT
@given(text=st.text() | st.sampled_from(["<2De>", " x", "\u0301", "\ufed1 x", "\u03a3\u0301\u03a3"]))
def test_a_tag_changes_nothing_of_what_follows_it(
    codecs: Callable[..., Codecs], kind: str, changes: dict[str, Any], text: str
) -> None:
    codec = codecs(kind, symbols=["<2De>", "<2De>x", "2D"], **changes).source
    before, ids = codec.encode_tag("<2De>"), codec.encode(text)
    assert codec.encode_tag("") == []
    assert 0 < len(before) <= 2
    assert codec.vocabulary["<2De>"] in before
    assert with_tag(text, "") == with_tag(text, None) == text
    if not text.strip():
        assert with_tag(text, "<2De>") == text
    elif ids:  # normalization may leave nothing of a text
        assert codec.encode(with_tag(text, "<2De>")) == [*before, *ids]


@pytest.mark.parametrize("kind", KINDS)
def test_specials_are_left_out_of_text(codecs: Callable[..., Codecs], pairs: list[Pair], kind: str) -> None:
    codec = codecs(kind).source
    text = pairs[0][0]
    ids = codec.encode(text)
    mixed = [BOS, *(index for each in ids for index in (each, PAD, EOS))]
    assert codec.decode(mixed) == text


@pytest.mark.parametrize("kind", ["whitespace", "spacy"])
def test_unknown_words_are_replaced_in_turn(codecs: Callable[..., Codecs], pairs: list[Pair], kind: str) -> None:
    codec = codecs(kind).source
    known = pairs[0][0].split()[0]
    text = f"Zyx {known} </s> q\\r￭s"
    ids = codec.encode(text)
    unknown = [token for token, index in zip(codec.tokenize(text), ids, strict=True) if index == UNK]
    assert codec.decode(ids, unknown) == text
    assert codec.decode(ids, unknown[:1]).count("<unk>") == len(unknown) - 1
    assert codec.decode(ids).startswith(f"<unk> {known} <unk>")


def test_full_caches_change_nothing(
    codecs: Callable[..., Codecs], pairs: list[Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [source for source, _ in pairs]
    codec = copy.copy(codecs("unigram").source)  # its cache is empty
    expected = [codec.lookup(codec.tokenize(text)) for text in texts]
    monkeypatch.setattr(codec_module, "CACHED_WORDS", 5)
    monkeypatch.setattr(codec_module, "LONGEST_CACHED", 8)
    assert codec.encode_batch(texts) == expected
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(codec.encode, texts)] == expected
    cut: list[str] = []
    tokens = codec.tokenizer.tokens

    def counted(word: str) -> list[str]:
        cut.append(word)
        return tokens(word)

    monkeypatch.setattr(codec.tokenizer, "tokens", counted)
    codec.encode("vier1 vier1 neuneuneu neuneuneu neuneuneu")
    assert cut == ["vier1", *["neuneuneu"] * 3], "what is too long is cut each time"
    cut.clear()
    codec.encode("a1 a2 a3 a4 a5 a6 a1")
    assert cut.count("a1") == 2, "six words ago is forgotten"


def test_only_subwords_are_sampled(codecs: Callable[..., Codecs]) -> None:
    codec = codecs("whitespace").source
    assert codec.sample("ba", 0.0, 1) == codec.encode("ba")
    with pytest.raises(AssertionError, match="only subwords"):
        codec.sample("ba", 0.1, 1)
    subwords = codecs("bpe").source
    assert subwords.sample("ba du", 0.0, 1) == subwords.encode("ba du")


# --- options ------------------------------------------------------------------------------------------------------


@PATIENT
@given(text=st.text(max_size=8) | st.text("AÄß<2de>XΣİﬁ", max_size=12), nfkc=st.booleans(), lowercase=st.booleans())
def test_preparation_leaves_symbols_alone(text: str, nfkc: bool, lowercase: bool) -> None:
    options = VocabularyConfig(
        lowercase=lowercase, normalization="nfkc" if nfkc else "none", symbols=["<2DE>", "ﬁX", "Σ"]
    )
    prepare = Preparation(options)
    for symbol in options.symbols:
        assert prepare(f"{text} {symbol} {text}").count(symbol) >= 1
    plain = VocabularyConfig(lowercase=lowercase, normalization=options.normalization)
    if not any(symbol in text for symbol in options.symbols):
        assert prepare(text) == Preparation(plain)(text)


def test_text_is_prepared_as_configured() -> None:
    decomposed = "A\u0308 ﬁ"
    assert Preparation(VocabularyConfig())(decomposed) == decomposed
    assert Preparation(VocabularyConfig(normalization="nfc"))(decomposed) == "Ä ﬁ"
    assert Preparation(VocabularyConfig(normalization="nfkc"))(decomposed) == "Ä fi"
    assert Preparation(VocabularyConfig(normalization="nfkc", lowercase=True))(decomposed) == "ä fi"


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_done_in_training_is_done_again(
    codecs: Callable[..., Codecs], configure: Configure, pairs: list[Pair], kind: str, tmp_path: Path
) -> None:
    options = {"lowercase": True, "normalization": "nfkc", "symbols": ["<2DE>"]}
    codecs(kind, **options).save(tmp_path)
    codec = Codecs.load(tmp_path, configured(configure, kind, **options)).source
    text = pairs[0][0]
    ids = codec.encode("<2DE> " + text.upper())
    assert codec.decode(ids) == "<2DE> " + text.lower()
    assert codec.encode("<2DE> " + text) == ids
    assert UNK not in ids


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_loaded(
    codecs: Callable[..., Codecs], configure: Configure, pairs: list[Pair], kind: str, shared: bool, tmp_path: Path
) -> None:
    options = {"shared": shared, "symbols": ["<2de>"]}
    saved, config = codecs(kind, **options), configured(configure, kind, **options)
    saved.save(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")) == sorted(saved.files)
    assert saved.files == vocabulary_files(config.vocabulary)
    assert len(saved.files) == (1 if shared else 2) * (2 if saved.source.is_subword else 1)
    loaded = Codecs.load(tmp_path, config)
    assert loaded.fingerprint == saved.fingerprint
    assert loaded.source.vocabulary == saved.source.vocabulary
    assert loaded.target.vocabulary == saved.target.vocabulary
    assert (loaded.source.vocabulary == loaded.target.vocabulary) == shared
    sources, targets = zip(*pairs, strict=True)
    assert loaded.source.encode_batch(sources) == saved.source.encode_batch(sources)
    assert loaded.target.encode_batch(targets) == saved.target.encode_batch(targets)
    again = tmp_path / "again"
    loaded.save(again)
    assert all((again / name).read_bytes() == (tmp_path / name).read_bytes() for name in saved.files)


def test_whatever_changes_ids_changes_the_fingerprint(codecs: Callable[..., Codecs], configure: Configure) -> None:
    fingerprints = [codecs(kind).fingerprint for kind in KINDS]
    fingerprints += [codecs("unigram", **options).fingerprint for options in ({"lowercase": True}, {"size": 400})]
    fingerprints += [codecs("unigram", **options).fingerprint for options in ({"shared": False}, {"symbols": ["ba"]})]
    fingerprints += [codecs("spacy", source_language="en").fingerprint]
    words = codecs("whitespace")
    fingerprints += [Codecs(words.source, words.target, configure("whitespace", normalization="nfc")).fingerprint]
    assert len(set(fingerprints)) == len(fingerprints)
    assert Codecs(words.source, words.target, configure("whitespace")).fingerprint == words.fingerprint


def damage(folder: Path, what: str) -> None:
    model, vocabulary = folder / "vocab/shared.model", folder / "vocab/shared.json"
    rows = json.loads(vocabulary.read_text())
    if what == "no model":
        model.unlink()
    elif what == "no vocabulary":
        vocabulary.unlink()
    elif what == "truncated model":
        model.write_bytes(model.read_bytes()[:1000])
    elif what == "other vocabulary":
        rows["tokens"][-1][0] += "x"
        vocabulary.write_text(json.dumps(rows))
    elif what == "shorter vocabulary":
        vocabulary.write_text(json.dumps({**rows, "tokens": rows["tokens"][:-1]}))
    else:
        vocabulary.write_bytes(b"\0")


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        ("no model", r"shared\.model: cannot read the subword model: No such file"),
        ("no vocabulary", r"shared\.json: cannot read the vocabulary: No such file"),
        ("truncated model", r"shared\.model: (is damaged|does not belong)"),
        ("other vocabulary", r"shared\.model: does not belong to shared\.json"),
        ("shorter vocabulary", r"shared\.model: does not belong to shared\.json"),
        ("garbage", r"shared\.json: is not a vocabulary"),
    ],
)
def test_damaged_files_are_refused(
    codecs: Callable[..., Codecs], configure: Configure, tmp_path: Path, what: str, fault: str
) -> None:
    codecs("unigram").save(tmp_path)
    damage(tmp_path, what)
    with pytest.raises(UserError, match=fault) as caught:
        Codecs.load(tmp_path, configured(configure, "unigram"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["unigram", "whitespace"])
def test_a_config_with_other_symbols_is_refused(
    codecs: Callable[..., Codecs], configure: Configure, tmp_path: Path, kind: str
) -> None:
    codecs(kind).save(tmp_path)
    with pytest.raises(UserError, match=r"shared.json: lacks '<2de>', which the config asks for"):
        Codecs.load(tmp_path, configured(configure, kind, symbols=["<2de>"]))


def test_specials_have_their_ids(codecs: Callable[..., Codecs]) -> None:
    for kind in KINDS:
        vocabulary = codecs(kind).source.vocabulary
        assert tuple(vocabulary.lookup_tokens([PAD, UNK, BOS, EOS])) == SPECIALS
