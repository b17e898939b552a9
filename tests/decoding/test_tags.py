"""A tag is read before every chunk of a line, as if it had been typed there, and nobody sees it afterwards."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.decoding.checkpoints import WORDS, make_loaded, write_ctranslate2
from tests.decoding.echo import Echo, MakeCodecs, make_config
from transformer_cli.build import build_engine
from transformer_cli.codecs import model_codecs
from transformer_cli.data.batch import Batch
from transformer_cli.decoding.constraints import Constraints, Line
from transformer_cli.decoding.engines.protocol import Hypothesis, TokenConstraints, own_sources
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.protected.protector import Protector
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.alignments import token_words
from transformer_cli.text.build import build_codecs
from transformer_cli.text.vocabulary import UNK

TAG, OTHER = "<2de>", "<bt>"
SYMBOLS = {"symbols": [TAG, OTHER]}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "whitespace": {},
    "character": {"tokenizer": "character"},
    "spacy": {"tokenizer": "spacy"},
    "bpe": {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 310, "normalization": "nfkc"},
    "unigram": {"tokenizer": "sentencepiece", "algorithm": "unigram", "size": 282, "lowercase": True},
}
TEXTS = [" ".join(WORDS[start : start + size]) for start, size in ((0, 3), (9, 1), (4, 2), (1, 2))]

TEXT_TO_CUT = "one two three four five six. one two three Yes. No! One two. ( three ) four…"


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Translator]:
    """A model that knows two tags, with one of the engines; each is made once."""
    made: dict[str, Translator] = {}

    def get(tokenizer: str = "whitespace", engine: str = "torch", **options: Any) -> Translator:
        key = repr((tokenizer, engine, options))
        if key not in made:
            loaded = make_loaded(3, vocabulary={**SYMBOLS, **TOKENIZERS[tokenizer]}, **options)
            found: Any = build_engine(loaded.model)
            if engine == "ctranslate2":
                pytest.importorskip("ctranslate2", reason="the ctranslate2 engine needs CTranslate2")
                from transformer_cli.decoding.engines.ctranslate2_engine import CTranslate2Engine

                folder = tmp_path_factory.mktemp("ctranslate2")
                write_ctranslate2(folder, loaded)
                torch_engine = found
                found = CTranslate2Engine(folder, loaded.codecs, lambda: torch_engine)
            made[key] = Translator(found, loaded.codecs, loaded.config)
        return made[key]

    return get


def typed(texts: Sequence[str], tag: str = TAG) -> list[str]:
    return [f"{tag} {text}" if text.strip() else text for text in texts]


@pytest.mark.medium
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_tag_is_what_a_user_would_have_typed_before_the_text(
    make: Callable[..., Translator], tokenizer: str, engine: str
) -> None:
    translator = make(tokenizer, engine)
    options = SearchOptions(beam_size=3, n_best=2, max_length_extra=4)
    plain = translator.translate_batch(TEXTS, options)
    differs = 0
    for one, expected, without in zip(
        translator.translate_batch(TEXTS, options, tag=TAG),
        translator.translate_batch(typed(TEXTS), options),
        plain,
        strict=True,
    ):
        length = len(expected.source_tokens) - len(one.source_tokens)
        assert expected.source_tokens[length:] == one.source_tokens == without.source_tokens
        assert 0 < length <= 2
        assert TAG in expected.source_tokens[:length]
        assert one.line.text == without.line.text
        for own, other in zip(one.hypotheses, expected.hypotheses, strict=True):
            assert (own.text, own.tokens, own.ended) == (other.text, other.tokens, other.ended)
            assert own.score == pytest.approx(other.score, abs=1e-5)
            assert own.alignment is not None
            assert other.alignment is not None
            for place, with_tag in zip(own.alignment, other.alignment, strict=True):
                assert place == with_tag - length or with_tag < length
                assert 0 <= place < len(one.source_tokens)
        differs += one.text != without.text
    assert differs, "the model reads the tag"


def test_what_attends_to_the_tag_most_belongs_to_the_best_of_the_others(make: Callable[..., Translator]) -> None:
    for engine in ("torch", "ctranslate2"):
        translator = make("whitespace", engine, tie_embeddings="none")
        torch_engine = make("whitespace", "torch", tie_embeddings="none").engine
        assert isinstance(torch_engine, TorchEngine)
        source = translator.codecs.source.encode(f"{TAG} {TEXTS[0]}")
        target = translator.codecs.target.encode(" ".join([*WORDS[5:12], *WORDS[20:30]]))
        batch = Batch.from_ids([(source, target[:-1])])
        with torch.inference_mode():
            memory = torch_engine.model.encode(batch.source, batch.source_mask)
            output = torch_engine.model.decode(batch.target_input, memory, batch.source_mask, need_weights=True)
        weights = output.cross_attention[-1][0].mean(dim=0).numpy()[:, : len(source)]  # (T, S)
        assert 0 in own_sources(weights), "some point at the tag"
        (found,) = translator.engine.align([source], [target], skip=[1])
        shares = weights / (weights.sum(axis=0) + 0.05)
        assert found == np.argmax(shares[:, 1:], axis=1).tolist()
        assert translator.engine.align([source], [target], skip=[0]) == translator.engine.align([source], [target])


def echo(make_codecs: MakeCodecs, tag: str | None = TAG, max_length: int = 8) -> tuple[Translator, Echo]:
    config = make_config(vocabulary=SYMBOLS, decoding={"tag": tag, "max_length_ratio": 2.0}, max_length=max_length)
    engine = Echo()
    return Translator(engine, make_codecs(config), config), engine


def read(translator: Translator, engine: Echo) -> list[str]:
    """What the engine was given to translate."""
    return sorted(translator.codecs.source.decode(source) for batch in engine.batches for source in batch)


def test_the_callers_tag_comes_first_then_the_lines_then_the_models(make_codecs: MakeCodecs) -> None:
    lines: list[str | Line] = [Line("one"), Line("two", tag=OTHER), Line("three", tag=""), "four"]
    for own, asked, expected in (
        (TAG, None, ["<2de> one", "<bt> two", "three", "<2de> four"]),
        (TAG, "", ["one", "<bt> two", "three", "four"]),
        (None, None, ["one", "<bt> two", "three", "four"]),
        (None, TAG, ["<2de> one", "<bt> two", "three", "<2de> four"]),
        (TAG, OTHER, ["<bt> one", "<bt> two", "three", "<bt> four"]),
    ):
        translator, engine = echo(make_codecs, own)
        found = list(translator.translate_lines(lines, tag=asked))
        assert [one.line.text for one in found] == ["one", "two", "three", "four"]
        assert read(translator, engine) == sorted(expected)


def test_each_sentence_of_a_line_has_its_tag(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs)
    (found,) = translator.translate_batch(["Yes. No! One two."], SearchOptions(split="always"))
    assert read(translator, engine) == ["<2de> No!", "<2de> One two.", "<2de> Yes."]
    assert found.source_tokens == ["Yes.", "No!", "One", "two."]


def test_each_chunk_of_a_long_line_has_its_tag_and_its_length_counts_it(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, max_length=4)
    words = TEXT_TO_CUT.split()
    (found,) = translator.translate_batch([" ".join(words)])
    chunks = [source for batch in engine.batches for source in batch]
    tag = translator.codecs.source.vocabulary[TAG]
    assert all(len(ids) <= 4 and ids[0] == tag and tag not in ids[1:] for ids in chunks)
    assert max(map(len, chunks)) == 4
    assert found.source_tokens == words
    assert [token for chunk in found.chunks for token in chunk.ids[1:]] == translator.codecs.source.encode(
        " ".join(words)
    )
    assert found.alignment is not None
    # The echo aligns a token of a chunk to itself, and the tag that it writes to the first.
    assert [found.source_tokens[place] for place in found.alignment if found.tokens[place] != TAG]
    starts = [0, *np.cumsum([chunk.length for chunk in found.chunks]).tolist()]
    expected = [
        start + max(0, place)
        for start, chunk in zip(starts, found.chunks, strict=False)
        for place in range(-1, chunk.length)
    ]
    assert found.alignment == expected
    tiny, engine = echo(make_codecs, max_length=1)
    assert tiny.translate(["one two"]) == ["<2de> one <2de> two"]


@pytest.mark.parametrize("window", [1, 100])
def test_a_line_without_text_stays_empty(make_codecs: MakeCodecs, window: int) -> None:
    translator, engine = echo(make_codecs)
    found = list(translator.translate_lines(["", "one", "  ", "\u3000"], window=window))
    assert [(one.text, one.source_tokens) for one in found] == [
        ("", []),
        ("<2de> one", ["one"]),  # the echo writes what it reads
        ("", []),
        ("", []),
    ]
    assert read(translator, engine) == ["<2de> one"]


def test_a_tag_that_the_model_does_not_know_is_refused(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs)
    for call in (
        lambda: translator.translate_batch(["one"], tag="<2fr>"),
        lambda: translator.translate_batch([], tag="<2fr>"),
        lambda: list(translator.translate_lines([Line("one", tag="<2fr>")])),
        lambda: translator.translate_lines([], tag="<2fr>"),
        lambda: translator.score(["one"], ["two"], tag="<2fr>"),
        lambda: translator.align(["one"], ["two"], tag="<2fr>"),
    ):
        with pytest.raises(UserError, match=r"tag '<2fr>': is none of the model's; it knows <2de> and <bt>$"):
            call()
    assert not engine.batches
    config = make_config()
    with pytest.raises(UserError, match=r"it was trained without any; leave it out$"):
        Translator(Echo(), make_codecs(config), config).translate_batch(["one"], tag="<2fr>")


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_scores_are_those_of_the_typed_tag(make: Callable[..., Translator], tokenizer: str) -> None:
    translator = make(tokenizer)
    targets = TEXTS[::-1]
    found = translator.score(TEXTS, targets, tag=TAG)
    for one, other, plain in zip(
        found, translator.score(typed(TEXTS), targets), translator.score(TEXTS, targets), strict=True
    ):
        assert one == other
        assert one.log_probability != plain.log_probability
    with_default = Translator(translator.engine, translator.codecs, with_tag(translator, TAG).config)
    assert with_default.score(TEXTS, targets) == found
    assert with_default.score(TEXTS, targets, tag="") == translator.score(TEXTS, targets)


def with_tag(translator: Translator, tag: str | None) -> Translator:
    config = translator.config
    config = config.model_copy(update={"decoding": config.decoding.model_copy(update={"tag": tag})})
    return Translator(translator.engine, translator.codecs, config)


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_links_stay_within_the_words_and_are_not_shifted(
    make: Callable[..., Translator], tokenizer: str, engine: str
) -> None:
    translator = make(tokenizer, engine)
    codecs = translator.codecs
    for words in (True, False):
        found = translator.align(TEXTS, TEXTS, words=words, tag=TAG)
        for text, links in zip(TEXTS, found, strict=True):
            before, ids = translator.tag_ids(TAG), codecs.source.encode(text)
            target = codecs.target.encode(text)
            (row,) = translator.engine.align([[*before, *ids]], [target], skip=[len(before)])
            expected = {(place, token) for token, place in enumerate(row)}
            if words:
                own = [token_words(codec, text) for codec in (codecs.source, codecs.target)]
                expected = {(own[0][place], own[1][token]) for place, token in expected}
                assert all(max(link) < len(text.split()) for link in links)
            assert links == expected
    assert translator.align(["", "ba"], ["ba", ""], tag=TAG) == [set(), set()]


class Diagonal(Echo):
    """Aligns each target token to the source token of the same number, not counting what is skipped."""

    def align(self, sources: Any, targets: Any, layer: int = -1, heads: Any = None, skip: Any = None) -> Any:
        assert skip is not None
        assert all(first > 0 for first in skip)
        return [
            [min(place, len(source) - first - 1) for place in range(len(target))]
            for source, target, first in zip(sources, targets, skip, strict=True)
        ]


@pytest.mark.parametrize("tokenizer", ["whitespace", "character"])
def test_what_is_aligned_word_by_word_is_so_with_a_tag(make_codecs: MakeCodecs, tokenizer: str) -> None:
    config = make_config(tokenizer, 40, vocabulary=SYMBOLS)
    translator = Translator(Diagonal(), make_codecs(config), config)
    (links,) = translator.align(["one two three"], ["one two three"], tag=TAG)
    assert links == {(0, 0), (1, 1), (2, 2)}


# --- models that copy -------------------------------------------------------------------------------------------------


class Copying(Echo):
    """Copies the source token at each of some places of what it reads, as a pointer model would."""

    def __init__(self, places: Sequence[int], first_copied: int) -> None:
        super().__init__()
        self.places, self.first = places, first_copied

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis([self.first + place for place in self.places], -1.0, -1.0, True)]


def test_a_copied_word_is_the_one_that_the_model_read_there(make_codecs: MakeCodecs) -> None:
    config = make_config(
        vocabulary={**SYMBOLS, "shared": False}, model={"generator": "pointer", "tie_embeddings": "decoder"}
    )
    codecs = model_codecs(build_codecs(config, lambda: [("one two", "three four")])[0], config)
    engine = Copying([3, 1], len(codecs.target.vocabulary))
    translator = Translator(engine, codecs, config)
    for text, tag in (("Zorg one Bim", TAG), ("<2de> Zorg one Bim", "")):
        (found,) = translator.translate_batch([text], tag=tag, alignments=False)
        assert (found.text, found.tokens) == ("Bim Zorg", ["Bim", "Zorg"])
        assert found.source_tokens[-3:] == codecs.source.tokens(codecs.source.encode("Zorg one Bim"))
    assert engine.batches[0] == engine.batches[1]


def test_a_pointer_model_reads_the_typed_tag(make: Callable[..., Translator]) -> None:
    translator = make("whitespace", "torch", generator="pointer", shared=False, tie_embeddings="decoder")
    texts = ["ba Zorg da", "Bim Zorg Bim ke", *TEXTS]
    options = SearchOptions(beam_size=3, n_best=3)
    found = translator.translate_batch(texts, options, tag=TAG)
    for one, other in zip(found, translator.translate_batch(typed(texts), options), strict=True):
        assert [own.text for own in one.hypotheses] == [its.text for its in other.hypotheses]
        assert [own.tokens for own in one.hypotheses] == [its.tokens for its in other.hypotheses]
    assert any("Zorg" in one.text or "Bim" in one.text for own in found for one in own.hypotheses)
    targets = ["Zorg more", "Bim", *TEXTS]
    assert translator.score(texts, targets, tag=TAG) == translator.score(typed(texts), targets)
    constraints = [Constraints(required=("Zorg",))] * 2
    for one in translator.translate_batch(texts[:2], options, constraints, tag=TAG):
        assert "Zorg" in one.text


class Unknowing(Echo):
    """Writes <unk> for every word, and aligns each to its word."""

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis([UNK] * (len(source) - 1), -1.0, -1.0, True)]

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        return list(range(1, len(source)))


def test_an_unknown_word_is_taken_from_its_own_place(make_codecs: MakeCodecs) -> None:
    config = make_config(vocabulary=SYMBOLS)
    translator = Translator(Unknowing(), make_codecs(config), config)
    assert translator.translate_batch(["Zorg two Bim"], tag=TAG)[0].text == "Zorg two Bim"


# --- protected text ---------------------------------------------------------------------------------------------------


class Without(Echo):
    """Writes what it reads but for the tag before it, each token aligned to itself."""

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis(source[1:], -1.0, -1.0, True)]

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        return list(range(1, len(source)))


@pytest.mark.parametrize("alignments", [True, False])
def test_protected_text_goes_back_to_its_place(make_codecs: MakeCodecs, alignments: bool) -> None:
    config = make_config(max_length=40, vocabulary=SYMBOLS, decoding={"tag": TAG, "split": "always"})
    engine = Without()
    protector = Protector(Translator(engine, make_codecs(config), config))
    lines: list[str | Line] = [
        "one {{x}} two https://a.de three",
        "{{x}}",
        "Yes. No! <b>four</b> five",
        "",
        Line("one %s", tag=OTHER),
    ]
    found = list(protector.translate_lines(lines, alignments=alignments))
    texts = [line if isinstance(line, str) else line.text for line in lines]
    assert [one.text for one in found] == texts
    assert found[0].source_tokens == texts[0].split()
    assert found[0].alignment == ([0, 1, 2, 3, 4] if alignments else None)
    assert sorted(
        map(protector.translator.codecs.source.decode, (ids for batch in engine.batches for ids in batch))
    ) == [*["<2de> No! four five", "<2de> Yes.", "<2de> one two three", "<bt> one"]]
    assert protector.tally["split_lines"] == 0


def test_segments_of_a_line_have_its_tag(make_codecs: MakeCodecs, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config(max_length=40, vocabulary=SYMBOLS, decoding={"tag": TAG})
    engine = Without()
    protector = Protector(Translator(engine, make_codecs(config), config))
    monkeypatch.setattr("transformer_cli.protected.protector.token_places", lambda *_: [])
    (found,) = protector.translate_lines([Line("one {{x}} two", tag=OTHER)])
    assert found.text == "one {{x}} two"
    assert protector.tally["split_lines"] == 1
    assert read(protector.translator, engine) == ["<bt> one", "<bt> one two", "<bt> two"]


def test_a_typed_tag_is_no_protected_text(make_codecs: MakeCodecs) -> None:
    config = make_config(max_length=40, vocabulary=SYMBOLS)
    assert config.data.train is not None
    assert not isinstance(config.data.train, list)
    data = config.data.model_copy(update={"train": config.data.train.model_copy(update={"tag": OTHER})})
    translator = Translator(Without(), make_codecs(config), config.model_copy(update={"data": data}))
    found = [
        one.text for one in Protector(translator).translate_lines([f"{OTHER} one two", f"{OTHER} one {{{{x}}}} two"])
    ]
    assert found == ["one two", "one {{x}} two"]
