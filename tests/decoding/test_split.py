"""A line of several sentences is translated sentence by sentence where that is asked for, and stays one line."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.echo import TEXT, Echo, MakeCodecs, make_config
from transformer_cli.build import build_model
from transformer_cli.config import Config
from transformer_cli.decoding.constraints import Constraints, Line
from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translation import Confidence
from transformer_cli.decoding.translator import Translator
from transformer_cli.protected.protector import Protector
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs

ALWAYS = SearchOptions(split="always")
LINE = "One two. Three four five!  Yes."
SENTENCES = ["One two.", "Three four five!", "Yes."]
WORDS = [*TEXT, LINE, "Three. One. two ... “No!” five. four! Five six. five! No! Three: 一。 二！ 三 一。二！三"]


@pytest.fixture(scope="module")
def make_codecs() -> MakeCodecs:
    def make(config: Config) -> Codecs:
        return build_codecs(config, lambda: [(text, text) for text in WORDS])[0]

    return make


def echo(make_codecs: MakeCodecs, **data: Any) -> tuple[Translator, Echo]:
    config = make_config(data={"source_language": "de", **data}, decoding={"max_length_ratio": 2.0})
    engine = Echo()
    return Translator(engine, make_codecs(config), config), engine


def real(make_codecs: MakeCodecs, config: Config) -> Translator:
    torch.manual_seed(6)
    codecs = make_codecs(config)
    model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return Translator(TorchEngine(model), codecs, config)


def read(translator: Translator, engine: Echo) -> list[str]:
    """What the engine was given to translate."""
    return sorted(translator.codecs.source.decode(source) for batch in engine.batches for source in batch)


def decided(translator: Translator, split: str) -> None:
    decoding = translator.config.decoding.model_copy(update={"split": split})
    translator.config = translator.config.model_copy(update={"decoding": decoding})


@pytest.mark.parametrize(
    ("asked", "own", "splits"),
    [
        ("always", "never", True),
        ("never", "always", False),
        ("auto", "always", True),
        ("auto", "never", False),
        ("auto", "auto", False),  # a model from before training decided it
    ],
)
def test_the_caller_decides_else_the_model(make_codecs: MakeCodecs, asked: Any, own: str, splits: bool) -> None:
    translator, engine = echo(make_codecs)
    decided(translator, own)
    line = "One two. Three."
    (found,) = translator.translate_batch([line], replace(ALWAYS, split=asked))
    assert found.text == line
    assert read(translator, engine) == (["One two.", "Three."] if splits else [line])
    assert translator.notes == ["1 line held several sentences: translated one by one and joined"] * splits


def test_the_model_decides_for_those_who_ask_nothing(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs)
    decided(translator, "always")
    assert translator.translate(["One two. Three."]) == ["One two. Three."]
    assert len(read(translator, engine)) == 2


@pytest.mark.parametrize("window", [1, 3, 100])
def test_as_many_lines_out_as_in_and_in_order(make_codecs: MakeCodecs, window: int) -> None:
    translator, engine = echo(make_codecs)
    lines = [LINE, "", "two", "... Yes. “No!” ( )", "  ", LINE, "One"]
    found = [one.text for one in translator.translate_lines(lines, ALWAYS, window)]
    assert found == [" ".join(line.split()) for line in lines]
    assert read(translator, engine) == sorted([*SENTENCES, "two", "... Yes.", "“No!” ( )", *SENTENCES, "One"])
    assert translator.notes == ["3 lines held several sentences: translated one by one and joined"]


@pytest.mark.parametrize(
    ("language", "joined"), [("en", "一。 二！ 三"), ("ja", "一。二！三"), ("zh-TW", "一。二！三")]
)
def test_they_are_joined_as_the_target_language_is_written(make_codecs: MakeCodecs, language: str, joined: str) -> None:
    translator, _ = echo(make_codecs, source_language="ja", target_language=language)
    (found,) = translator.translate_batch(["一。二！三"], ALWAYS)
    assert found.text == joined


CODECS: dict[str, Codecs] = {}
arbitrary_lines = st.lists(
    st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(["", " ", "a. B.\r", "A.\x85B", LINE, *TEXT]),
    max_size=8,
)


@pytest.mark.parametrize("tokenizer", ["character", "sentencepiece"])
@settings(max_examples=30)
@given(lines=arbitrary_lines)
def test_any_line_stays_one_line(make_codecs: MakeCodecs, tokenizer: str, lines: list[str]) -> None:
    config = make_config(tokenizer, max_length=400, decoding={"copy_unknown": False}, vocabulary={"size": 310})
    translator = Translator(Echo(), CODECS.get(tokenizer) or CODECS.setdefault(tokenizer, make_codecs(config)), config)
    whole = translator.translate_batch(lines, replace(ALWAYS, split="never"))
    for one, split in zip(whole, translator.translate_batch(lines, ALWAYS), strict=True):
        assert "".join(split.text.split()) == "".join(one.text.split())
        assert len(split.text.splitlines()) <= 1


@pytest.mark.parametrize("method", ["beam", "greedy"])
def test_a_line_is_the_translations_of_its_sentences(make_codecs: MakeCodecs, method: Any) -> None:
    translator = real(make_codecs, make_config(max_length=30))
    options = replace(ALWAYS, method=method, n_best=2 if method == "beam" else 1)
    (found,) = translator.translate_batch([LINE], options)
    parts = translator.translate_batch(SENTENCES, options)
    for rank, one in enumerate(found.hypotheses):
        own = [part.hypotheses[rank] for part in parts]
        assert one.text == " ".join(candidate.text for candidate in own)
        assert one.tokens == [token for candidate in own for token in candidate.tokens]
        assert one.log_probability == pytest.approx(sum(candidate.log_probability for candidate in own), abs=1e-10)
        assert one.score == pytest.approx(one.log_probability / len(one.tokens), abs=1e-10)
    assert found.source_tokens == LINE.split()
    starts = [0, 2, 5]
    links = [start + place for start, part in zip(starts, parts, strict=True) for place in part.alignment or ()]
    assert found.alignment == links


def test_minimum_bayes_risk_chooses_in_each_sentence(make_codecs: MakeCodecs) -> None:
    translator = real(make_codecs, make_config(max_length=30))
    options = replace(ALWAYS, n_best=4)
    (found,) = translator.translate_batch([LINE], options, mbr=True)
    parts = translator.translate_batch(SENTENCES, options, mbr=True)
    assert found.text == " ".join(part.text for part in parts)
    assert found.hypotheses[0].utility is not None


def test_each_sentence_draws_for_itself_whatever_the_window(make_codecs: MakeCodecs) -> None:
    options = replace(ALWAYS, method="sample", seed=3)
    lines = ["One two three. One two three. One two three.", "One two three."] * 2
    translator = real(make_codecs, make_config(max_length=30))
    found = [[one.text for one in translator.translate_lines(lines, options, window)] for window in (1, 2, 9)]
    assert found[0] == found[1] == found[2]
    keys: list[tuple[int, ...]] = []
    other, engine = echo(make_codecs)
    search = engine.search_one

    def kept(batch: SearchBatch, options: SearchOptions) -> list[list[Hypothesis]]:
        keys.extend(batch.keys or ())
        return search(batch, options)

    engine.search_one = kept  # type: ignore[method-assign]
    other.translate_batch(lines, options)
    assert sorted(keys) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 2), (3, 0)]


def test_what_is_asked_of_a_line_is_met_once_in_it(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs)
    wanted = Constraints("Why?", required=("five!", "six."), forbidden=("No!",))
    translator.translate_batch([LINE], ALWAYS, [wanted])
    sources = [source for batch in engine.batches for source in batch]
    given = [one for batch in engine.constraints for one in batch or []]
    by_text = dict(zip(map(translator.codecs.source.decode, sources), given, strict=True))
    ids = {word: tuple(translator.codecs.target.encode(word)) for word in ("Why?", "five!", "six.", "No!")}
    assert [by_text[text].prefix for text in SENTENCES] == [ids["Why?"], (), ()]
    assert [by_text[text].required for text in SENTENCES] == [(ids["six."],), (ids["five!"],), ()]
    assert all(ids["No!"] in by_text[text].forbidden for text in SENTENCES)


def test_a_sentence_over_the_limit_is_cut_too(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, max_length=3)
    line = "One two three four five. Yes."
    assert [one.text for one in translator.translate_batch([line, "One."], ALWAYS)] == [line, "One."]
    assert read(translator, engine) == ["One two three", "One.", "Yes.", "four five."]
    assert (translator.tally["several_sentences"], translator.tally["cut_lines"]) == (1, 1)
    translator.translate_batch([LINE], ALWAYS)
    assert translator.tally["cut_lines"] == 1, "sentences of a line are no cut"


def test_a_line_is_as_sure_as_all_of_it(make_codecs: MakeCodecs) -> None:
    translator, _ = echo(make_codecs)
    translator.confidence = Confidence([-1.0, 0.0], [0.0, 1.0], 10, 10, 0.0)
    (found,) = translator.translate_batch([LINE], ALWAYS)
    best = found.hypotheses[0]
    assert best.confidence == translator.confidence.expect(best.text, best.log_probability)


# --- beside protected text ----------------------------------------------------------------------------------------


class Backwards(Echo):
    """Writes the words of a source from its end to its start."""

    def answer(self, source: list[int], options: SearchOptions, constraints: Any) -> list[Hypothesis]:
        return [Hypothesis(source[::-1], -1.0, -1.0, True)]

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        return list(range(len(target)))[::-1]


@pytest.mark.parametrize("alignments", [True, False])
def test_protected_text_stays_in_its_sentence(make_codecs: MakeCodecs, alignments: bool) -> None:
    config = make_config(max_length=30)
    protector = Protector(Translator(Backwards(), make_codecs(config), config))
    line = "One <b>two.</b> {{x}} Three four! <i>Five</i> six."
    (found,) = protector.translate_lines([line], ALWAYS, alignments=alignments)
    (whole,) = protector.translate_lines([line], replace(ALWAYS, split="never"), alignments=alignments)
    assert found.text == "<b>two.</b> One {{x}} four! Three six. <i>Five</i>"
    assert whole.text != found.text
    assert protector.tally["split_lines"] == 0, "its place was found"
    assert protector.translator.tally["several_sentences"] == 1
    if alignments:
        assert sorted(found.alignment or ()) == list(range(len(found.source_tokens)))


def test_a_line_that_is_translated_again_counts_once(make_codecs: MakeCodecs) -> None:
    class Loses(Echo):
        def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
            return []

        def answer(self, source: list[int], options: SearchOptions, constraints: Any) -> list[Hypothesis]:
            return [Hypothesis([], -1.0, -1.0, True)]

    config = make_config(max_length=30)
    protector = Protector(Translator(Loses(), make_codecs(config), config))
    list(protector.translate_lines([Line("One two. Three {{x}} four. Five. Six.")], ALWAYS))
    assert protector.tally["split_lines"] == 1
    assert protector.translator.tally["several_sentences"] == 1
