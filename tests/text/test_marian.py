"""Marian's tokenizer: sentencepiece's own normalisation, a vocabulary beside it; a damaged map is never followed."""

import io
import pickle
import random
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from transformer_cli.config import VocabularyConfig
from transformer_cli.text.codec import MarianCodec, Preparation
from transformer_cli.text.marian import MarianTokenizer, check_character_map
from transformer_cli.text.subword import CHARACTER_MAP, NORMALIZER, fields
from transformer_cli.text.vocabulary import EOS, SPECIALS, UNK, Vocabulary

RULES = ["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"]


def train(rule: str = "nmt_nfkc", **options: Any) -> bytes:
    model = io.BytesIO()
    lines = ["ein haus am see", "zwei hunde und ein haus", "das haus der hunde"] * 20
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=40, hard_vocab_limit=False,
        normalization_rule_name=rule, minloglevel=2, num_threads=1, **options,
    )  # fmt: skip
    return model.getvalue()


def character_map(model: bytes) -> bytes:
    for field, value in fields(model):
        for number, content in fields(value) if field == NORMALIZER else ():
            if number == CHARACTER_MAP and isinstance(content, bytes):
                return content
    raise AssertionError("the model has no map")


@pytest.fixture(scope="module")
def tokenizer() -> MarianTokenizer:
    return MarianTokenizer(train())


@pytest.mark.parametrize("rule", RULES)
def test_maps_of_sentencepiece_are_let_through(rule: str) -> None:
    assert MarianTokenizer(train(rule)).join(["▁ein", "▁haus"]) == "ein haus"


@given(st.text())
def test_pieces_are_sentencepieces(tokenizer: MarianTokenizer, text: str) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    if not text.startswith(">>"):
        pieces = processor.EncodeAsPieces(text)
        assert [token for token in tokenizer.tokens(text) if not token.startswith("\\")] == [
            piece for piece in pieces if piece not in SPECIALS and not piece.startswith("\\")
        ]


@given(st.text())
def test_no_text_makes_a_special(tokenizer: MarianTokenizer, text: str) -> None:
    """Also where sentencepiece gives a run of unknown characters as one piece: `<pad>` is one."""
    codec = MarianCodec(tokenizer, Vocabulary([*SPECIALS, "▁haus"]), Preparation(VocabularyConfig(tokenizer="marian")))
    for line in (text, "<pad>", "</s>", "漢<s>漢", f"{text}</s>"):
        assert EOS not in codec.encode(line)
        assert not {SPECIALS[0], *SPECIALS[2:]} & {*codec.tokenize(line)}


def test_what_the_vocabulary_lacks_is_unknown_and_left_out(tokenizer: MarianTokenizer) -> None:
    codec = MarianCodec(tokenizer, Vocabulary([*SPECIALS, "▁haus"]), Preparation(VocabularyConfig(tokenizer="marian")))
    assert codec.encode("haus zwei haus") == [4, *[UNK] * (len(codec.encode("haus zwei haus")) - 2), 4]
    assert codec.decode([4, UNK, 4]) == "haus haus"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (">>fra<< ein haus", ">>fra<<"),
        (">>fra<<ein haus", ">>fra<<"),
        ("ein >>fra<< haus", None),
        (">>fra ein haus", None),
    ],
)
def test_a_language_stands_before_the_text(tokenizer: MarianTokenizer, text: str, language: str | None) -> None:
    tokens = tokenizer.tokens(text)
    assert (tokens[0] == language) == (language is not None)
    if language is not None:
        assert tokens[1:] == tokenizer.tokens("ein haus")


def test_it_travels_to_other_processes(tokenizer: MarianTokenizer) -> None:
    again = pickle.loads(pickle.dumps(tokenizer))  # noqa: S301
    assert again.tokens("zwei hunde") == tokenizer.tokens("zwei hunde")


def test_a_map_that_leads_out_of_itself_is_refused() -> None:
    whole = character_map(train())
    check_character_map(whole)
    draw = random.Random(1)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(4, 4 + int.from_bytes(whole[:4], "little")) | 3] ^= 0x40  # the high bits of a unit
        try:
            check_character_map(bytes(damaged))
        except ValueError:
            refused += 1
    assert refused > 250
    for short in (whole[:-1], whole[:1000], whole[:3], b"\0\0\0\0", whole[:2] + b"\xff" + whole[3:]):
        with pytest.raises(ValueError, match="damaged map of characters"):
            check_character_map(short)


@pytest.mark.parametrize("model", [b"", b"text", train()[:-200]])
def test_what_is_no_model_is_refused(model: bytes) -> None:
    with pytest.raises(ValueError, match="sentencepiece model"):
        MarianTokenizer(model)


def test_words_or_characters_are_not_subwords() -> None:
    with pytest.raises(ValueError, match="not a sentencepiece model"):
        MarianTokenizer(train(model_type="word"))
