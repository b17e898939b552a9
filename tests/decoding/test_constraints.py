"""What is required as text becomes ids that say the same, and the translation obeys, however a word may be spelled."""

from collections.abc import Sequence

import pytest
import torch

from tests.decoding.echo import Echo, MakeCodecs, make_config
from transformer_cli.build import build_model
from transformer_cli.decoding.chunks import Chunk
from transformer_cli.decoding.constraints import Constraints, Line, spellings, token_constraints
from transformer_cli.decoding.engines.protocol import UNCONSTRAINED, Hypothesis, TokenConstraints, occurs
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.search_options import SearchOptions

TOKENIZERS = ["whitespace", "spacy", "character", "sentencepiece"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_every_spelling_writes_the_text(make_codecs: MakeCodecs, tokenizer: str) -> None:
    codec = make_codecs(make_config(tokenizer)).target
    before = codec.encode("one")
    for text in ("two", "three four", "b"):
        found = spellings(text, codec)
        assert len(found) == len(set(found)) > 0
        assert codec.decode(found[0]) == text
        assert {codec.decode([*before, *ids]).replace(" ", "") for ids in found} == {f"one{text}".replace(" ", "")}
    assert spellings("", codec) == []


@pytest.mark.parametrize("tokenizer", ["spacy", "sentencepiece"])
def test_words_of_their_own_and_glued_ones_are_distinguished(make_codecs: MakeCodecs, tokenizer: str) -> None:
    codec = make_codecs(make_config(tokenizer)).target
    for text, written in (("!", "one!"), ("two", "one two")):
        (constraints,) = token_constraints(Constraints(required=(text, " ")), [Chunk([5], "x")], codec)
        assert [codec.decode([*codec.encode("one"), *ids]) for ids in constraints.required] == [written]


def test_each_chunk_of_a_line_gets_what_is_its(make_codecs: MakeCodecs) -> None:
    codec = make_codecs(make_config("whitespace")).target
    wanted = Constraints(prefix="a b", required=("two", "five", "c"), forbidden=("one",))
    chunks = [Chunk([4, 5], "a c"), Chunk([6, 7], "one five")]
    first, second = token_constraints(wanted, chunks, codec)
    ids = {word: tuple(codec.encode(word)) for word in ("one", "two", "five", "c")}
    assert (first.prefix, second.prefix) == (tuple(codec.encode("a b")), ())
    assert (first.required, second.required) == ((ids["two"], ids["c"]), (ids["five"],))
    assert ids["one"] in first.forbidden
    assert first.forbidden == second.forbidden
    assert token_constraints(Constraints(), chunks, codec) == [UNCONSTRAINED, UNCONSTRAINED]
    assert token_constraints(wanted, [], codec) == []


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (Constraints(prefix="a zz"), "'a zz': cannot be required"),
        (Constraints(required=("zz",)), "'zz': cannot be required"),
        (Constraints(required=("a b",), forbidden=("b",)), "'b' is forbidden, but required too"),
        (Constraints(prefix="b a", forbidden=("b",)), "'b' is forbidden, but required too"),
    ],
)
def test_what_cannot_be_is_refused(make_codecs: MakeCodecs, wanted: Constraints, message: str) -> None:
    codec = make_codecs(make_config("whitespace")).target
    with pytest.raises(UserError, match=message):
        token_constraints(wanted, [Chunk([5], "x")], codec)


def test_a_word_that_the_vocabulary_lacks_is_easily_avoided(make_codecs: MakeCodecs) -> None:
    codec = make_codecs(make_config("whitespace")).target
    assert token_constraints(Constraints(forbidden=("zz", "")), [Chunk([5], "x")], codec) == [UNCONSTRAINED]


def _is_allowed(way: Sequence[int], constraints: TokenConstraints) -> bool:
    return not any(occurs(ids, way) for ids in constraints.forbidden)


class Spelling(Echo):
    """Writes a word in one of several ways, the first that is not forbidden."""

    def __init__(self, ways: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.ways = ways

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis(list(next(way for way in self.ways if _is_allowed(way, constraints))), -1.0, -1.0, True)]


def test_a_forbidden_word_is_found_however_it_is_spelled(make_codecs: MakeCodecs) -> None:
    config = make_config("sentencepiece")
    codecs = make_codecs(config)
    codec = codecs.target
    letters = [codec.vocabulary[token] for token in ("▁", "t", "w", "o")]
    bytes_ = [codec.vocabulary["▁"], *(codec.vocabulary[f"<0x{byte:02X}>"] for byte in b"two")]
    ways = [codec.encode("two"), letters, bytes_, codec.encode("three")]
    assert [codec.decode(way) for way in ways] == ["two", "two", "two", "three"]
    engine = Spelling(ways)
    translator = Translator(engine, codecs, config)
    found = translator.translate_batch(["a", "b"], constraints=[Constraints(forbidden=("two",)), Constraints()])
    assert [one.text for one in found] == ["three", "two"]
    lines = translator.translate_lines([Line("a", Constraints(forbidden=("two", "a")))])
    assert [one.text for one in lines] == ["three"]
    assert len(engine.batches) == 6, "one more for each spelling"


def test_the_old_name_of_constraints_is_taken_too(make_codecs: MakeCodecs) -> None:
    config = make_config()
    codec = make_codecs(config).target
    translator = Translator(Spelling([codec.encode("two"), codec.encode("three")]), make_codecs(config), config)
    assert translator.translate_batch(["a"], demands=[Constraints(forbidden=("two",))])[0].text == "three"


def test_constraints_reach_the_engine_only_where_a_line_of_the_window_has_some(make_codecs: MakeCodecs) -> None:
    """An engine that was given none may choose a faster way to search."""
    config = make_config()
    engine = Echo()
    codecs = make_codecs(config)
    lines: list[str | Line] = ["a", Line("b"), Line("c", Constraints(prefix="one")), "a", Line("b", Constraints()), "c"]
    assert len(list(Translator(engine, codecs, config).translate_lines(lines, window=2))) == 6
    assert engine.constraints == [
        None,
        [TokenConstraints(prefix=tuple(codecs.target.encode("one"))), UNCONSTRAINED],
        None,
    ]


def test_a_longer_word_that_holds_it_is_left_alone(make_codecs: MakeCodecs) -> None:
    config = make_config("sentencepiece")
    codec = make_codecs(config).target
    engine = Spelling([[*codec.encode("x"), *(codec.vocabulary[f"<0x{byte:02X}>"] for byte in b"two")]])
    translator = Translator(engine, make_codecs(config), config)
    assert translator.translate_batch(["a"], constraints=[Constraints(forbidden=("two",))])[0].text == "xtwo"
    assert len(engine.batches) == 1


@pytest.mark.parametrize("tokenizer", ["whitespace", "sentencepiece"])
def test_a_real_search_obeys(make_codecs: MakeCodecs, tokenizer: str) -> None:
    torch.manual_seed(5)
    config = make_config(tokenizer, max_length=6, decoding={"max_length_ratio": 2.0})
    codecs = make_codecs(config)
    model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary))
    translator = Translator(TorchEngine(model), codecs, config)
    lines = ["a b c", "one two", "", "five four three two one a b c"]
    free = translator.translate_batch(lines, alignments=False)
    words = [one.text.split()[-1] if one.text else "" for one in free]
    wanted = [
        Constraints(prefix="one" if word != "one" else "two", required=("three four",), forbidden=(word,))
        if word not in ("three", "four") and word.isalpha() and word.isascii()
        else Constraints(prefix="one", required=("three four",))
        for word in words
    ]
    found = translator.translate_batch(lines, constraints=wanted, alignments=False)
    for line, one, own in zip(lines, found, wanted, strict=True):
        assert one.text.startswith(own.prefix) == bool(line)
        assert ("three four" in one.text) == bool(line)
        assert not set(one.text.split()) & set(own.forbidden)
