"""`Vocabulary`: order, counts, lookup, files, and what it takes over from torchtext."""

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.errors import UserError
from transformer_cli.text.vocabulary import BOS, EOS, PAD, SPECIALS, UNK, Vocabulary

# The machine may have much else to do.
PATIENT = settings(max_examples=50)
COUNTERS = st.dictionaries(st.text(min_size=1).filter(lambda s: s not in SPECIALS), st.integers(1, 5), max_size=12)


@PATIENT
@given(counter=COUNTERS, min_freq=st.integers(1, 3), size=st.none() | st.integers(4, 12))
def test_order_is_specials_then_count_then_code_point(counter: dict[str, int], min_freq: int, size: int | None) -> None:
    vocabulary = Vocabulary.build(counter, min_freq=min_freq, max_size=size)
    tokens = vocabulary.get_itos()
    assert tuple(tokens[:4]) == SPECIALS
    assert (tokens[PAD], tokens[UNK], tokens[BOS], tokens[EOS]) == SPECIALS
    kept = list(zip(tokens, vocabulary.counts, strict=True))[4:]
    assert all(counter[token] == count >= min_freq for token, count in kept)
    for (token, count), (after, count_after) in itertools.pairwise(kept):
        assert (-count, token) < (-count_after, after)
    enough = {token for token, count in counter.items() if count >= min_freq}
    assert len(kept) == min(len(enough), (size or 1000) - 4)
    left_out = enough - set(tokens)
    assert all((-counter[token], token) > (-kept[-1][1], kept[-1][0]) for token in left_out if kept)
    assert Vocabulary.build(iter(counter.items()), min_freq=min_freq, max_size=size) == vocabulary


def test_symbols_come_after_the_specials_whatever_their_count() -> None:
    vocabulary = Vocabulary.build({"a": 9, "<2de>": 2, "b": 1}, min_freq=3, max_size=7, symbols=["<2de>", "<2fr>"])
    assert vocabulary.get_itos() == [*SPECIALS, "<2de>", "<2fr>", "a"]
    assert vocabulary.counts == [0, 0, 0, 0, 2, 0, 9]
    full = Vocabulary.build({"a": 9, "<2de>": 2}, max_size=5, symbols=["<2de>"])
    assert full.get_itos() == [*SPECIALS, "<2de>"]
    assert full.counts[-1] == 2
    with pytest.raises(UserError, match=r"^vocabulary.size: 5 .* at least 6$"):
        Vocabulary.build({}, max_size=5, symbols=["<2de>", "<2fr>"])


@PATIENT
@given(COUNTERS)
def test_strings_and_ids_are_one_to_one(counter: dict[str, int]) -> None:
    vocabulary = Vocabulary.build(counter)
    tokens = vocabulary.get_itos()
    assert len(vocabulary) == len(tokens) == len(set(tokens))
    assert vocabulary.lookup_indices(tokens) == list(range(len(tokens)))
    assert vocabulary.lookup_tokens(range(len(tokens))) == tokens
    assert vocabulary.get_stoi() == {token: vocabulary[token] for token in tokens}
    assert all(token in vocabulary for token in tokens)


def test_strings_outside_have_the_default_index() -> None:
    vocabulary = Vocabulary.build(Counter("abc"))
    assert vocabulary.get_default_index() == UNK
    assert vocabulary["z"] == UNK
    assert "z" not in vocabulary
    vocabulary.set_default_index(5)
    assert vocabulary.lookup_indices(["a", "z"]) == [4, 5]
    vocabulary.set_default_index(None)
    with pytest.raises(KeyError, match="z"):
        vocabulary.lookup_indices(["a", "z"])
    for wrong in (-1, 7):
        with pytest.raises(IndexError):
            vocabulary.lookup_token(wrong)
        with pytest.raises(AssertionError):
            vocabulary.set_default_index(wrong)


def test_what_is_handed_out_is_a_copy() -> None:
    vocabulary = Vocabulary.build(Counter("abc"))
    vocabulary.get_itos().clear()
    vocabulary.get_stoi().clear()
    assert vocabulary == Vocabulary.build(Counter("abc"))
    assert vocabulary != Vocabulary.build(Counter("abca"))
    assert vocabulary != ["a"]


@PATIENT
@given(COUNTERS)
def test_a_file_gives_the_same_vocabulary(tmp_path_factory: pytest.TempPathFactory, counter: dict[str, int]) -> None:
    path = tmp_path_factory.getbasetemp() / "vocabulary.json"
    counter['\n\r\u2028"\\\0￭'] = 3
    vocabulary = Vocabulary.build(counter, min_freq=2)
    vocabulary.save(path)
    assert Vocabulary.load(path) == vocabulary
    assert json.loads(path.read_text(encoding="utf-8"))["tokens"][0] == ["<pad>", 0]


def rows(*more: Any, fixed: list[Any] | None = None) -> bytes:
    first = [[token, 0] for token in SPECIALS] if fixed is None else fixed
    return json.dumps({"format": 1, "tokens": [*first, *more]}).encode()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no list of tokens"),
        (b'{"format": 1, "tokens": {}}', "no list of tokens"),
        (b'{"format": 2, "tokens": []}', "format 2"),
        (b'{"tokens": []}', "format None"),
        (rows()[:-10], "not JSON"),
        (rows(["a", 1], ["a", 1]), "'a' is there twice"),
        (rows(["<s>", 1]), "'<s>' is there twice"),
        (rows(["a", -1]), "entry 4 has a negative count"),
        (rows(["a", True]), "entry 4 is not"),
        (rows(["a", 1.0]), "entry 4 is not"),
        (rows([1, 1]), "entry 4 is not"),
        (rows(["a"]), "entry 4 is not"),
        (rows("a"), "entry 4 is not"),
        (rows(fixed=[]), "begin with <pad>"),
        (rows(fixed=[["<unk>", 0], ["<pad>", 0], ["<s>", 0], ["</s>", 0]]), "begin with <pad>"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "vocabulary.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=fault) as caught:
        Vocabulary.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the vocabulary: No such file"):
        Vocabulary.load(tmp_path / "none.json")


# --- torchtext ----------------------------------------------------------------------------------------------------


class StandIn:
    """The methods of `torchtext.vocab.Vocab` that are used, as its 0.18 documentation has them."""

    def __init__(self, tokens: list[str], default_index: int | None = None):
        self.tokens = tokens
        self.default_index = default_index

    def get_itos(self) -> list[str]:
        return self.tokens

    def get_default_index(self) -> int | None:
        return self.default_index


def test_a_torchtext_vocabulary_is_taken_over() -> None:
    theirs = StandIn(["<unk>", "<pad>", "<bos>", "<eos>", "the", "a"], default_index=0)
    ours = Vocabulary.from_torchtext(theirs)
    assert ours.get_itos() == [*SPECIALS, "the", "a"]
    assert ours["never seen"] == UNK
    ours = Vocabulary.from_torchtext(StandIn(["x", "<unk>", "y"], default_index=2))
    assert ours.get_itos() == [*SPECIALS, "x", "y"]
    assert ours["never seen"] == ours["y"]
    assert Vocabulary.from_torchtext(StandIn(["x"])).get_default_index() is None
    with pytest.raises(UserError, match="twice"):
        Vocabulary.from_torchtext(StandIn(["x", "x"]))
    with pytest.raises(UserError, match="twice"):
        Vocabulary.from_torchtext(StandIn(["<bos>", "<s>"]))
