"""From text to text: lines stay lines, in order, whatever is in them; long ones are cut; unknown words are copied."""

import random
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.echo import TEXT, Echo, MakeCodecs, make_config
from transformer_cli import Translator as ExportedTranslator
from transformer_cli.build import build_model
from transformer_cli.config import Config
from transformer_cli.decoding import chunks as windows
from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch, TokenConstraints
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translation import Scored, Translation
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.protected.protector import Protector
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage import checkpoint
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.text.vocabulary import UNK


def echo(make_codecs: MakeCodecs, config: Config, max_source_length: int | None = None) -> tuple[Translator, Echo]:
    engine = Echo(max_source_length)
    return Translator(engine, make_codecs(config), config), engine


def real(make_codecs: MakeCodecs, config: Config) -> Translator:
    torch.manual_seed(6)
    codecs = make_codecs(config)
    model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return Translator(TorchEngine(model), codecs, config)


# --- lines --------------------------------------------------------------------------------------------------------

arbitrary_lines = st.lists(
    st.text(st.characters(codec="utf-8"), max_size=40)
    | st.sampled_from(["", " ", "\t\u2028", "</s>", "<pad> a", "\x00", "a\r", "\x85", "\ufeff", "<unk>", *TEXT]),
    max_size=12,
)


@pytest.mark.parametrize("tokenizer", ["whitespace", "character", "sentencepiece"])
@settings(max_examples=30)
@given(lines=arbitrary_lines, window=st.integers(1, 5))
def test_as_many_lines_out_as_in(make_codecs: MakeCodecs, tokenizer: str, lines: list[str], window: int) -> None:
    translator, _ = echo(make_codecs, make_config(tokenizer, max_length=400, decoding={"copy_unknown": False}))
    texts = translator.translate(lines)
    assert len(texts) == len(lines)
    assert [one.text for one in translator.translate_lines(iter(lines), window=window)] == texts
    codec = translator.codecs.source
    for line, text in zip(lines, texts, strict=True):
        assert text.splitlines() in ([text], []), "what goes out is one line"
        if UNK not in codec.encode(line):
            assert text.split() == line.split()


@pytest.mark.parametrize("tokenizer", ["whitespace", "sentencepiece"])
@settings(max_examples=5)
@given(lines=arbitrary_lines)
def test_a_real_model_keeps_lines_too(make_codecs: MakeCodecs, tokenizer: str, lines: list[str]) -> None:
    translator = real(make_codecs, make_config(tokenizer))
    found = translator.translate_batch(lines)
    assert len(found) == len(lines)
    for line, one in zip(lines, found, strict=True):
        assert len(one.text.splitlines()) <= 1
        assert len(one.tokens) == len(one.alignment or [])
        assert all(0 <= place < len(one.source_tokens) for place in one.alignment or [])
        if tokenizer == "whitespace":
            assert "<unk>" not in one.text or "<unk>" in line
        if not line.strip():
            assert (one.text, one.tokens, one.alignment, one.source_tokens) == ("", [], [], [])


@pytest.mark.medium
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(beam_size=3, n_best=2),
        SearchOptions(method="sample", n_best=2, seed=5),
        SearchOptions(method="greedy"),
    ],
)
def test_windows_and_batches_change_nothing(make_codecs: MakeCodecs, options: SearchOptions) -> None:
    lines = ["a b", "one two three", "", "c", "four five one two three a b c a b c", "c", "b a", "  ", "c a b five"]
    config = make_config()
    expected = real(make_codecs, config).translate_batch(lines, options)
    assert [one.text for one in expected if one.tokens] != [], "the test wants text"
    for window, batch_tokens in ((1, 1000), (4, 9), (100, 1)):
        changed = make_config(decoding={"batch_tokens": batch_tokens})
        found = list(real(make_codecs, changed).translate_lines(lines, options, window, alignments=True))
        for one, other in zip(found, expected, strict=True):
            assert [h.text for h in one.hypotheses] == [h.text for h in other.hypotheses]
            assert [h.alignment for h in one.hypotheses] == [h.alignment for h in other.hypotheses]
            assert [h.score for h in one.hypotheses] == pytest.approx([h.score for h in other.hypotheses], abs=1e-10)


def test_sampling_draws_anew_for_each_line_and_each_seed(make_codecs: MakeCodecs) -> None:
    translator = real(make_codecs, make_config())
    lines = ["one two three four"] * 6
    first, again, other = (
        [one.text for one in translator.translate_batch(lines, SearchOptions(method="sample", seed=seed))]
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other
    assert len(set(first)) > 1


def test_a_stream_is_answered_line_by_line(make_codecs: MakeCodecs) -> None:
    translator, _ = echo(make_codecs, make_config())
    read: list[str] = []

    def lines() -> Iterator[str]:
        for line in ("a b", "", "c", "b"):
            read.append(line)
            yield line

    for number, one in enumerate(translator.translate_lines(lines(), window=1), start=1):
        assert len(read) == number
        assert one.text == read[-1]
    assert number == 4


def test_a_window_of_very_long_lines_is_smaller(make_codecs: MakeCodecs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW_CHARACTERS", 10)
    translator, engine = echo(make_codecs, make_config())
    lines = ["a a a a a a", "b", "c", "b b b b b b", "c"]
    assert [one.text for one in translator.translate_lines(lines)] == lines
    assert len(engine.batches) == 3


def test_batches_hold_lines_of_like_length_within_the_budget(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, make_config(max_length=30))
    translator.translate(["a " * length for length in (3, 29, 1, 12, 7, 30, 30, 2, 2, 2, 11)])
    flat = [len(source) for batch in engine.batches for source in batch]
    assert flat == sorted(flat, reverse=True)
    for batch in engine.batches:
        assert len(batch) * (max(map(len, batch)) + 1) <= 64
    assert len(engine.batches) < 6


# --- an engine that works ahead -----------------------------------------------------------------------------------


class Ahead(Echo):
    """Takes batches until it holds four before it gives the first one back."""

    def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
        held: deque[SearchBatch] = deque()
        for batch in batches:
            held.append(batch)
            if len(held) == 4:
                first = held.popleft()
                yield self.search_one(first, options)
        for batch in held:
            yield self.search_one(batch, options)


def ahead(make_codecs: MakeCodecs, batch_tokens: int = 8) -> Translator:
    config = make_config(decoding={"batch_tokens": batch_tokens})
    return Translator(Ahead(), make_codecs(config), config)


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(["", " ", "a b", "one two three", "c", "four five a b c a b c a b c"])), st.integers(1, 6)
)
def test_lines_keep_their_order_however_far_an_engine_works_ahead(
    make_codecs: MakeCodecs, lines: list[str], window: int
) -> None:
    for batch_tokens in (4, 30):
        found = ahead(make_codecs, batch_tokens).translate_lines(lines, window=window)
        assert [one.text for one in found] == [line.strip() for line in lines]


@pytest.mark.parametrize("line", ["a b", "", "a b c one two three four five a b c"])
def test_lines_without_end_are_read_a_few_windows_ahead(make_codecs: MakeCodecs, line: str) -> None:
    read = 0

    def lines() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield line

    found = ahead(make_codecs).translate_lines(lines(), window=5)
    for number in range(1, 40):
        assert next(found).text == line
        assert read <= number + 25


def test_a_stream_is_answered_at_once_though_the_engine_would_work_ahead(make_codecs: MakeCodecs) -> None:
    read: list[str] = []
    lines = ["a b", "", "one two three four five a b c a b c", "c"]

    def noted() -> Iterator[str]:
        for line in lines:
            read.append(line)
            yield line

    found = ahead(make_codecs).translate_lines(noted(), window=1)
    for number, one in enumerate(found, start=1):
        assert (one.text, len(read)) == (lines[number - 1], number)


def test_what_reading_raises_is_raised(make_codecs: MakeCodecs) -> None:
    def lines() -> Iterator[str]:
        yield from ["a b", "c"] * 10
        raise UserError("line 21 is gone")

    found = ahead(make_codecs).translate_lines(lines(), window=2)
    got = []
    with pytest.raises(UserError, match="line 21"):
        got += [one.text for one in found]
    assert got == ["a b", "c"] * (len(got) // 2)


def test_a_reader_that_stops_early_ends_the_search(make_codecs: MakeCodecs) -> None:
    closed = []

    class Watched(Ahead):
        def search(self, batches: Iterable[SearchBatch], options: SearchOptions) -> Iterator[list[list[Hypothesis]]]:
            try:
                yield from super().search(batches, options)
            finally:
                closed.append(True)

    translator = ahead(make_codecs)
    translator.engine = Watched()
    found = translator.translate_lines(["a b"] * 100, window=10)
    assert next(found).text == "a b"
    assert isinstance(found, Generator)
    found.close()
    assert closed == [True]


# --- several threads ----------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize("tokenizer", [pytest.param("sentencepiece", marks=pytest.mark.slow), "whitespace"])
def test_four_threads_find_what_one_finds(make_codecs: MakeCodecs, tokenizer: str) -> None:
    config = make_config(tokenizer, max_length=6, decoding={"max_length_ratio": 1.0})
    choose = random.Random(7)
    words = "a b c one two three four five zz".split()  # noqa: SIM905
    texts = [[" ".join(choose.choices(words, k=choose.randint(0, 12))) for _ in range(10)] for _ in range(4)]
    alone = real(make_codecs, config)
    expected = [alone.translate_batch(lines) for lines in texts]
    scored = [alone.score(lines, lines) for lines in texts]

    shared = real(make_codecs, config)
    started = threading.Barrier(4)

    def work(number: int) -> tuple[list[Translation], list[Translation], list[Scored]]:
        started.wait()
        return (
            shared.translate_batch(texts[number]),
            list(shared.translate_lines(texts[number], window=4, alignments=True)),
            shared.score(texts[number], texts[number]),
        )

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for number, (batch, lines, scores) in enumerate(found):
        assert texts_of(batch) == texts_of(lines) == texts_of(expected[number])
        for one, other in zip(batch, expected[number], strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-10)
            assert one.alignment == other.alignment
        for one_scored, other_scored in zip(scores, scored[number], strict=True):
            assert one_scored.log_probability == pytest.approx(other_scored.log_probability, abs=1e-10)
    assert alone.tally["cut_lines"] > 0
    assert alone.tally["flagged"] > 0
    assert (shared.tally["cut_lines"], shared.tally["flagged"], shared.tally["repaired"]) == (
        2 * alone.tally["cut_lines"], 2 * alone.tally["flagged"], 2 * alone.tally["repaired"]
    )  # fmt: skip


def texts_of(translations: Sequence[Translation]) -> list[str]:
    return [one.text for one in translations]


# --- long lines ---------------------------------------------------------------------------------------------------


def test_long_lines_are_cut_at_sentence_ends_and_joined(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, make_config(max_length=5, decoding={"batch_tokens": 6}))
    line = 'Yes. One two. No! Three four five… One "two." Three four a.b c. Why?'
    assert translator.translate(["a b", line, "c"]) == ["a b", line, "c"]
    chunks = ["Yes. One two. No!", 'Three four five… One "two."', "Three four a.b c. Why?"]
    expected = [translator.codecs.source.encode(text) for text in ["a b", *chunks, "c"]]
    found = [source for batch in engine.batches for source in batch]
    assert sorted(found) == sorted(expected)
    assert translator.tally["cut_lines"] == 1
    translator.translate([line])
    assert translator.tally["cut_lines"] == 2
    assert len(translator.notes) == 1


def test_a_sentence_that_is_too_long_is_cut_at_tokens(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, make_config(max_length=5))
    line = "a b c one two three four five a b c"
    found = translator.translate_batch([line], SearchOptions(n_best=3))[0]
    assert [len(source) for batch in engine.batches for source in batch] == [4, 4, 3]
    assert found.text == line
    assert found.source_tokens == found.tokens == line.split()
    assert found.alignment == list(range(11))
    assert [one.log_probability for one in found.hypotheses] == [-11.0] * 3
    assert found.score == pytest.approx(-1.0), "the joined translation's own, by its own length"


def test_the_models_positions_bound_chunks_too(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, make_config(max_length=5), max_source_length=3)
    assert translator.translate(["a b c one two"]) == ["a b c one two"]
    assert max(len(source) for batch in engine.batches for source in batch) == 3


def test_lines_within_the_limit_give_no_note(make_codecs: MakeCodecs) -> None:
    translator, _ = echo(make_codecs, make_config(max_length=5))
    translator.translate(["a b c one two", ""])
    assert translator.notes == []


@pytest.mark.medium
@pytest.mark.parametrize("tokenizer", ["whitespace", "sentencepiece"])
@pytest.mark.parametrize(
    "unit",
    ["x", "one two. ", *(pytest.param(u, marks=pytest.mark.slow) for u in ("漢。", ".", ". ", "a ", '!)"', " \u2028"))],
)
def test_a_line_of_100_000_characters(make_codecs: MakeCodecs, tokenizer: str, unit: str) -> None:
    translator, engine = echo(make_codecs, make_config(tokenizer, max_length=50, decoding={"batch_tokens": 4096}))
    line = unit * (100_000 // len(unit))
    text = translator.translate([line])[0]
    assert max((len(source) for batch in engine.batches for source in batch), default=0) <= 50
    assert text.replace(" ", "") == "".join(line.split())


def test_chunks_of_a_language_without_spaces_are_joined_without() -> None:
    from transformer_cli.decoding.chunks import join

    assert join(["一。", "", "二"], "zh") == join(["一。", "二"], "zh-TW") == "一。二"
    assert join(["one.", "", "two"], "en") == "one. two"


# --- what callers give --------------------------------------------------------------------------------------------


def test_a_text_gives_a_text(make_codecs: MakeCodecs) -> None:
    translator, _ = echo(make_codecs, make_config())
    assert translator.translate("one two") == "one two"
    assert translator.translate("") == ""
    assert translator.translate(["one two"]) == ["one two"]
    assert translator.translate(("one", "")) == ["one", ""]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([None], r"texts\[0\] should be a text, not None"),
        (["a", b"b"], r"texts\[1\] should be a text, not one of type bytes"),
        (["a", ["b"]], r"texts\[1\] should be a text, not one of type list"),
        (None, "texts should be a list of texts, not None"),
        (5, "texts should be a list of texts, not one of type int"),
    ],
)
def test_what_is_no_text_is_named_with_its_place(make_codecs: MakeCodecs, given: Any, message: str) -> None:
    translator, engine = echo(make_codecs, make_config())
    for call in (translator.translate, translator.translate_batch):
        with pytest.raises(TypeError, match=f"^{message}$"):
            call(given)
    with pytest.raises(TypeError, match=message.replace("texts", "sources", 1)):
        translator.score(given, ["a"])
    with pytest.raises(TypeError, match=message.replace("texts", "targets", 1)):
        translator.align(["a"], given)
    if isinstance(given, list):
        for each in (translator.translate_lines, Protector(translator).translate_lines):
            with pytest.raises(
                TypeError, match=message.replace("texts", "lines").replace("a text", "a text or a Line")
            ):
                list(each(given))
    assert not engine.batches


def test_one_text_is_no_list_of_texts(make_codecs: MakeCodecs) -> None:
    """Its letters are not what anybody wants translated, or scored."""
    translator, engine = echo(make_codecs, make_config())
    calls: list[Callable[[], Any]] = [
        lambda: translator.translate_batch("one"),
        lambda: list(translator.translate_lines("one")),
        lambda: translator.score("one", "two"),
        lambda: translator.align(["one"], "two"),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="not one of type str"):
            call()
    with pytest.raises(ValueError, match="2 targets for 1 texts: give one for each"):
        translator.score(["one"], ["two", "three"])
    with pytest.raises(ValueError, match="0 constraints for 1 texts"):
        translator.translate_batch(["one"], constraints=[])
    assert not engine.batches


# --- unknown words ------------------------------------------------------------------------------------------------


class Unknown(Echo):
    """Says nothing but `<unk>`, as many as the source has tokens, and attends to the last one first."""

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis([UNK] * len(source), -1.0, -1.0, True)]

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        return list(reversed(range(len(target))))


@pytest.mark.parametrize("alignments", [True, False])
def test_an_unknown_word_copies_the_source_word_that_attention_points_at(
    make_codecs: MakeCodecs, alignments: bool
) -> None:
    config = make_config("spacy", max_length=3)
    translator = Translator(Unknown(), make_codecs(config), config)
    # Joiners go with the words, escapes are undone, and chunks know their own words.
    found = translator.translate_batch(["x", "quux a!", "u v w x y z"], alignments=alignments)
    assert [one.text for one in found] == ["x", "! a quux", "w v u z y x"]
    assert [one.alignment for one in found] == ([[0], [2, 1, 0], [2, 1, 0, 5, 4, 3]] if alignments else [None] * 3)
    assert found[0].tokens == ["<unk>"], "tokens are what the model said"


def test_copying_can_be_turned_off(make_codecs: MakeCodecs) -> None:
    config = make_config(decoding={"copy_unknown": False})
    translator = Translator(Unknown(), make_codecs(config), config)
    assert translator.translate(["x y"]) == ["<unk> <unk>"]


def test_only_hypotheses_with_unknown_words_are_aligned(make_codecs: MakeCodecs) -> None:
    translator, engine = echo(make_codecs, make_config())
    aligned: list[int] = []
    align = engine.align
    engine.align = lambda sources, *rest: aligned.append(len(sources)) or align(sources, *rest)  # type: ignore
    assert translator.translate(["a b", "zz", "c", "one two"]) == ["a b", "zz", "c", "one two"]
    assert aligned == [1]
    translator.translate(["a b", "c"])
    assert aligned == [1]


# --- scores and loading -------------------------------------------------------------------------------------------


def test_scores_of_search_are_found_again(make_codecs: MakeCodecs) -> None:
    translator = real(make_codecs, make_config(max_length=30))
    sources = ["one two three", "a b", "c a b five six seven eight", "a"]
    for found, source in zip(translator.translate_batch(sources), sources, strict=True):
        best = found.hypotheses[0]
        if "<unk>" in best.tokens:
            continue
        scored = translator.score([source], [best.text])[0]
        assert scored.tokens == [*best.tokens, "</s>"]
        assert scored.log_probability == pytest.approx(sum(scored.log_probabilities))
        if best.ended:
            assert scored.score == pytest.approx(best.score, abs=1e-10)


def test_pairs_are_scored_in_order_whatever_the_batches(make_codecs: MakeCodecs) -> None:
    sources = ["one two three", "a", "", "c a b five six seven eight", "two"]
    targets = ["one", "", "a b c", "five two", "three four five one two three"]
    expected = real(make_codecs, make_config()).score(sources, targets)
    assert [len(one.tokens) for one in expected] == [len(target.split()) + 1 for target in targets]
    for batch_tokens in (1, 10):
        found = real(make_codecs, make_config(decoding={"batch_tokens": batch_tokens})).score(sources, targets)
        for one, other in zip(found, expected, strict=True):
            assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-10)
    for one, target in zip(expected, targets, strict=True):
        assert one.score == pytest.approx(one.log_probability / max(1, len(target.split())))


def test_pairs_beyond_the_position_table_are_refused_by_number(make_codecs: MakeCodecs) -> None:
    model = {"positions": "learned", "max_positions": 9}
    translator = real(make_codecs, make_config(model=model))
    with pytest.raises(UserError, match="target 2: 9 tokens"):
        translator.score(["a", "a"], ["a", "a " * 9])
    with pytest.raises(UserError, match="source 1: 10 tokens"):
        translator.score(["a " * 10], ["a"])
    assert len(translator.translate(["a " * 40])[0].split()) > 0


def test_a_saved_model_translates_alike(make_codecs: MakeCodecs, tmp_path: Path) -> None:
    config = make_config()
    translator = real(make_codecs, config)
    run = RunFolder(tmp_path / "run")
    run.create()
    assert isinstance(translator.engine, TorchEngine)
    model = translator.engine.model
    folder = run.publish("step-00000001", lambda path: checkpoint.save_model(path, model, config, translator.codecs))
    loaded = ExportedTranslator.load(folder, device="cpu", engine="torch")
    lines = ["one two", "a b zz"]
    assert loaded.translate(lines) == translator.translate(lines)


def test_no_model_is_refused_without_waiting_for_torch(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        Translator.load(tmp_path / "nowhere")
