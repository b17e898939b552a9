"""Subwords: exact for any text, trained alike each time, refused where the size does not suit the text."""

import io
import itertools
import pickle
import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import VocabularyConfig
from transformer_cli.errors import UserError
from transformer_cli.text.codec import Codecs
from transformer_cli.text.subword import (
    AS_ESCAPE,
    AS_SPACE,
    ESCAPE,
    SPACE,
    SubwordTokenizer,
    check_symbols,
    train_subwords,
)
from transformer_cli.text.vocabulary import SPECIALS, UNK

PATIENT = settings(max_examples=80)
SYMBOLS = ["<2de>", "<X>", "a▁", "<s", "\ufdd0"]
NASTY = [
    *SPECIALS, *SYMBOLS, "<0x41>", "<0xE2>", SPACE, SPACE * 2, ESCAPE, AS_SPACE, AS_ESCAPE, "\\</s>", " ", "  ", "\0",
    "\t", "\r", "\n", "\v", "\x85", "\u2028", "\u00a0", "\u3000", "\u2585", "￭", "ba", "😀", "👩\u200d👧", "\ufeff",
    "\uffff", "\U0010ffff", "e\u0301", "ẞ",
]  # fmt: skip
VALID = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TEXTS = VALID | st.lists(st.sampled_from(NASTY) | VALID, max_size=8).map("".join)

Pair = tuple[str, str]


def count(pairs: list[Pair]) -> list[tuple[str, int]]:
    return sorted(Counter(word for pair in pairs for text in pair for word in text.split(" ")).items())


def train(counts: list[tuple[str, int]], **options: object) -> SubwordTokenizer:
    config = VocabularyConfig.model_validate({"size": 420, **options})
    return SubwordTokenizer(train_subwords(counts, config, "the text"), config.algorithm, config.symbols)


@pytest.mark.medium
@pytest.mark.parametrize("symbols", [[], SYMBOLS])
@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@PATIENT
@given(text=TEXTS, strength=st.sampled_from([0.1, 0.7]), seed=st.integers(0, 99))
def test_ids_are_the_exact_text(
    codecs: Callable[..., Codecs], algorithm: str, symbols: list[str], text: str, strength: float, seed: int
) -> None:
    codec = codecs(algorithm, symbols=symbols).source
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert min([*ids, 4]) >= 4, "text became a special, or unknown"
    assert codec.lookup(codec.tokenize(text)) == ids
    sampled = codec.sample(text, strength, seed)
    assert codec.decode(sampled) == text
    assert min([*sampled, 4]) >= 4
    assert codec.sample(text, strength, seed) == sampled


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_pieces_are_those_of_sentencepiece(codecs: Callable[..., Codecs], pairs: list[Pair], algorithm: str) -> None:
    """Of the whole line, though we segment word by word; and a sampler that leaves nothing to chance finds them."""
    codec = codecs(algorithm).source
    tokenizer = codec.tokenizer
    assert isinstance(tokenizer, SubwordTokenizer)
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    lines = [line for pair in pairs for line in pair] + ["", " ", "  a  b ", "Straße 日本"]
    assert [codec.tokenize(line) for line in lines] == processor.encode(lines, out_type=str)
    assert codec.encode_batch(lines) == processor.encode(lines)
    for word in {word for line in lines[:-1] for word in line.split()}:
        assert tokenizer.sample(word, 1000.0 if algorithm == "unigram" else 0.0, random.Random(1)) == tokenizer.tokens(
            word
        )


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
@PATIENT
@given(before=st.text("ab. <2", max_size=3), after=st.text("ab. de>", max_size=3))
def test_a_symbol_is_one_piece_wherever_it_stands(
    codecs: Callable[..., Codecs], algorithm: str, before: str, after: str
) -> None:
    codec = codecs(algorithm, symbols=["<2de>"]).source
    text = f"{before}<2de>{after}"
    for ids in (codec.encode(text), codec.sample(text, 0.5, 1)):
        assert codec.tokens(ids).count("<2de>") == text.count("<2de>")
        assert codec.decode(ids) == text


def test_training_depends_on_the_counts_alone(pairs: list[Pair], capfd: pytest.CaptureFixture[str]) -> None:
    counts = count(pairs)
    for algorithm in ("unigram", "bpe"):
        first = train(counts, algorithm=algorithm)
        assert train(counts, algorithm=algorithm).model == first.model
        assert tuple(first.pieces[:4]) == SPECIALS
    assert capfd.readouterr() == ("", "")  # sentencepiece is told to keep quiet


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_a_size_too_large_leads_to_all_that_the_text_has(pairs: list[Pair], algorithm: str) -> None:
    counts = count(pairs[:60])
    most = train(counts, algorithm=algorithm, size=9999)
    size = len(most.pieces)
    assert size < 9999
    assert train(counts, algorithm=algorithm, size=size).pieces == most.pieces
    assert len(train(counts, algorithm=algorithm, size=size - 1).pieces) == size - 1


def test_a_size_too_small_is_refused_with_the_smallest_possible(pairs: list[Pair]) -> None:
    with pytest.raises(UserError, match=r"^vocabulary.size: 270 is too small for .*character_coverage$") as caught:
        train(count(pairs), size=270)
    match = re.search(r"at least (\d+)", str(caught.value))
    assert match
    train(count(pairs), size=int(match[1]), algorithm="bpe")
    with pytest.raises(UserError, match="too small"):
        train(count(pairs), size=int(match[1]) - 1, algorithm="bpe")


def test_any_other_complaint_of_sentencepiece_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def complain(**options: object) -> None:
        raise RuntimeError("INTERNAL: something\nelse")

    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "Train", complain)
    with pytest.raises(UserError, match="sentencepiece cannot train on the text: INTERNAL: something else"):
        train([("a", 1)])


def test_text_without_words_is_refused() -> None:
    for counts in ([], [("", 5)], [("\0\t", 1)]):
        with pytest.raises(UserError, match=r"^the text: holds no text"):
            train(counts)


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_odd_words_do_not_disturb_training(pairs: list[Pair], algorithm: str) -> None:
    odd = [(word, 3) for word in NASTY if " " not in word] + [("ba\tba\0ba", 2), ("x" * 5000, 1)]
    tokenizer = train(count(pairs) + odd, algorithm=algorithm, character_coverage=1.0, size=520)
    assert "xx" not in "".join(tokenizer.pieces)  # the long word took no part
    assert sum("\t" in piece or "\0" in piece for piece in tokenizer.pieces) == 0


def test_the_space_has_a_piece_even_where_it_is_rare() -> None:
    rng = random.Random(1)
    signs = [chr(code) for code in range(0x4E00, 0x4E40)]
    lines = [("".join(rng.choices(signs, k=60)), 1) for _ in range(60)]
    tokenizer = train(lines, character_coverage=0.98, size=330)
    assert SPACE in tokenizer.pieces
    assert tokenizer.join(tokenizer.tokens(lines[0][0])) == lines[0][0]


def test_without_bytes_what_was_not_seen_is_unknown(codecs: Callable[..., Codecs], pairs: list[Pair]) -> None:
    for algorithm in ("unigram", "bpe"):
        codec = codecs(algorithm, byte_fallback=False, size=150, symbols=["<2de>"]).source
        text = pairs[0][0]
        assert codec.decode(codec.encode(text)) == text
        assert UNK not in codec.encode(text)
        unseen = "日本ba</s>Ω<2de>日x日"
        ids = codec.encode(unseen)
        assert ids == codec.lookup(codec.tokenize(unseen))
        assert UNK in ids
        assert max(ids.count(special) for special in (0, 2, 3)) == 0
        # the tokens of a text stand in for its unknown ids: this is how unknown words are copied
        unknown = [token for token, index in zip(codec.tokenize(unseen), ids, strict=True) if index == UNK]
        assert codec.decode(ids, unknown) == unseen
        assert "<unk>" in codec.decode(ids)
        sampled = codec.sample(unseen, 0.3, 1)
        assert codec.sample(unseen, 0.3, 1) == sampled
        assert (UNK, UNK) not in itertools.pairwise(sampled)


def test_unknown_text_that_looks_like_a_special_stays_text(codecs: Callable[..., Codecs]) -> None:
    codec = codecs("bpe", byte_fallback=False, size=150, character_coverage=0.98).source
    tokens = codec.tokenize("</s>")
    assert "</s>" not in tokens
    assert codec.tokenizer.join(tokens) == "</s>"


def test_bytes_that_are_no_text_become_replacement_characters(codecs: Callable[..., Codecs]) -> None:
    codec = codecs("unigram").source
    ids = codec.lookup(["▁", "<0xE6>", "<0x97>", "<0xA5>", "<0xE6>", "<0x97>", "▁", "a", "<0xFF>"])
    assert codec.decode(ids) == "日\ufffd a\ufffd"


def test_lone_surrogates_become_the_replacement_character(codecs: Callable[..., Codecs]) -> None:
    codec = codecs("unigram", symbols=["<2de>"]).source
    assert codec.decode(codec.encode("a\ud800<2de>\udc80 b")) == "a\ufffd<2de>\ufffd b"


def test_a_symbol_must_not_be_a_byte() -> None:
    with pytest.raises(UserError, match=r"^vocabulary.symbols: '<0x41>'"):
        check_symbols(VocabularyConfig(symbols=["<2de>", "<0x41>"]))
    check_symbols(VocabularyConfig(symbols=["<0x41>"], byte_fallback=False))


def test_only_a_model_whose_pieces_keep_to_words_is_taken(pairs: list[Pair]) -> None:
    for garbage in (b"", b"abc", b"\0" * 100):
        with pytest.raises(ValueError, match="not a sentencepiece model"):
            SubwordTokenizer(garbage, "unigram")

    def train(rule: str, **more: Any) -> bytes:
        model = io.BytesIO()
        lines = iter(source for source, _ in pairs)
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=lines,
            model_writer=model,
            normalization_rule_name=rule,
            vocab_size=200,
            minloglevel=2,
            **more,
        )
        return model.getvalue()

    with pytest.raises(ValueError, match="reach over spaces"):
        SubwordTokenizer(train("identity", split_by_whitespace=False), "unigram")
    with pytest.raises(ValueError, match="changes the text"):
        SubwordTokenizer(train("nmt_nfkc"), "unigram")
    model = train("identity")
    with pytest.raises(ValueError, match="no bpe model"):
        SubwordTokenizer(model, "bpe")
    for length in range(0, len(model), 7):
        with pytest.raises(ValueError, match="sentencepiece model"):
            SubwordTokenizer(model[:length], "unigram")


def test_a_copy_is_the_same(codecs: Callable[..., Codecs], pairs: list[Pair]) -> None:
    codec = codecs("bpe", symbols=SYMBOLS).source
    copied = pickle.loads(pickle.dumps(codec))  # noqa: S301  (as processes are sent it)
    texts = [source for source, _ in pairs] + NASTY
    assert copied.encode_batch(texts) == codec.encode_batch(texts)
    assert copied.sample("".join(texts), 0.3, 5) == codec.sample("".join(texts), 0.3, 5)
