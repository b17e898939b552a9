"""Protected text comes through once and unchanged, whatever the engine does; other lines are translated as ever."""

from collections.abc import Callable, Sequence
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.echo import Echo
from transformer_cli.build import build_model
from transformer_cli.config import Config
from transformer_cli.decoding import chunks
from transformer_cli.decoding.constraints import Constraints, Line
from transformer_cli.decoding.engines.protocol import Hypothesis, SearchBatch, TokenConstraints
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.decoding.translation import Confidence
from transformer_cli.decoding.translator import Translator
from transformer_cli.protected.protector import Protector, translate_protected
from transformer_cli.protected.spans import Glossary, find_spans, is_kept
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs

TEXT = ["A b c d e f . , ( ) ! Hund dog x y", "{{made}} up ￭, ￭. ￭! ￭( ￭)"]
GLOSSARY = Glossary({"Hund": "hound", "e f": "g"})
Link = tuple[int, int]  # a target id and the place of its source token
Write = Callable[[Sequence[int]], list[Link]]


class Scripted(Echo):
    """An engine that writes what it is told, aligned as it is told, and remembers what it read."""

    def __init__(self, write: Write) -> None:
        super().__init__()
        self.write = write

    @property
    def read(self) -> list[list[int]]:
        return [source for batch in self.batches for source in batch]

    def answer(self, source: list[int], options: SearchOptions, constraints: TokenConstraints) -> list[Hypothesis]:
        return [Hypothesis([token for token, _ in self.write(source)], -1.0, -1.0, True)] * options.n_best

    def links(self, source: Sequence[int], target: Sequence[int]) -> list[int]:
        return [place for _, place in self.write(source)]


def echo(source: Sequence[int]) -> list[Link]:
    return [(token, place) for place, token in enumerate(source)]


def make_config(
    tokenizer: str = "whitespace", target_language: str = "en", max_length: int = 60, symbols: str = ""
) -> Config:
    files = {"source": "a", "target": "b"}
    return Config.model_validate(
        {
            "data": {
                "source_language": "de",
                "target_language": target_language,
                "train": files,
                "valid": files,
                "max_length": max_length,
            },
            "vocabulary": {"tokenizer": tokenizer, "size": 300, "symbols": symbols.split()},
            "model": {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "heads": 2, "d_ff": 8, "dropout": 0.0},
            "decoding": {"beam_size": 2, "max_length_ratio": 0.5, "max_length_extra": 0},
        }
    )


CODECS: dict[str, Codecs] = {}


def scripted(write: Write = echo, **options: str | int) -> tuple[Translator, Scripted]:
    config = make_config(**options)  # type: ignore[arg-type]
    codecs = CODECS.setdefault(str(options), build_codecs(config, lambda: [(text, text) for text in TEXT])[0])
    engine = Scripted(write)
    return Translator(engine, codecs, config), engine


def texts(translator: Translator, lines: Sequence[str], glossary: Glossary | None = None) -> list[str]:
    return [one.text for one in translate_protected(translator, lines, glossary=glossary)]


@pytest.mark.parametrize(
    "line",
    [
        "A b {{x}} c",
        "{{x}} A b",
        "A b {{x}}",
        "A b {{x}}{{y}} c",
        "A {{x}} {{x}} b",
        "<b>A b</b> c <i>d</i>",
        "<b><i>A</i> b</b>",
        "A <br/> b",
        "A (siehe https://a.de/b), b",
        "A a.b@c.de. b",
        "A „{{x}}“ b!",
        "A %s, b %(y)s.",
        "שלום {{x}} עולם",
        "😀 {{x}} 😀",
        "A  {{x}}  b",
        "A{{x}} b",
        "A {{x}}b",
        "{{x}}: A b",
    ],
)
def test_an_engine_that_copies_gives_the_line_back(line: str) -> None:
    translator, _ = scripted()
    protector = Protector(translator)
    assert [one.text for one in protector.translate_lines([line])] == [line]
    assert (protector.tally["protected_lines"], protector.tally["split_lines"], protector.notes) == (1, 0, [])


@pytest.mark.parametrize("line", ["https://a.de", "{{x}} <br/> %s!", "  <b></b> ", "({{x}})", "{{x}}{{y}}"])
def test_a_line_without_words_needs_no_model(line: str) -> None:
    translator, engine = scripted()
    found = list(translate_protected(translator, [line], alignments=True))
    assert [one.text for one in found] == [line]
    assert found[0].tokens == found[0].source_tokens
    assert not engine.read


def test_the_model_reads_nothing_that_is_protected() -> None:
    translator, engine = scripted()
    texts(translator, ["A {{x}} b", "<b>c</b> d"])
    assert sorted(map(translator.codecs.source.decode, engine.read)) == ["A b", "c d"]


def crossed(source: Sequence[int]) -> list[Link]:
    """The last word first, then the others in their order."""
    return [(source[-1], len(source) - 1), *((token, place) for place, token in enumerate(source[:-1]))]


def test_tags_go_where_the_words_within_them_go() -> None:
    translator, _ = scripted(crossed)
    lines = ["A b <b>c</b>", "<b>A b</b> c", "A <i>b <b>c</b></i>", "<b>A</b> b <i>c</i>"]
    assert texts(translator, lines) == [
        "<b>c</b> A b",
        "c <b>A b</b>",
        "<i><b>c</b> A b</i>",
        "<i>c</i> <b>A</b> b",
    ]


def test_other_spans_go_between_the_words_they_stood_between() -> None:
    translator, _ = scripted(crossed)
    assert texts(translator, ["A {{x}} b c d", "A b {{x}} c d", "A b c {{x}}"]) == [
        "d A {{x}} b c",
        "d A b {{x}} c",
        "c A b {{x}}",
    ]


def test_tags_around_words_that_nothing_is_aligned_to_stay_a_pair() -> None:
    translator, _ = scripted(lambda source: [(source[0], 0), (source[-1], len(source) - 1)])
    protector = Protector(translator)
    (found,) = protector.translate_lines(["A b <b>c</b> d e"])
    assert is_kept(found.text, find_spans("<b>c</b>"))
    assert not protector.tally["split_lines"]


def test_a_term_becomes_what_the_glossary_says() -> None:
    translator, _ = scripted(crossed)
    lines = ["A Hund b", "Hund und Hund!", "A e f b", "Hunde", "A hound b"]
    expected = ["b A hound", "hound und hound!", "b A g", "Hunde", "b A hound"]
    assert texts(translator, lines, GLOSSARY) == expected


def test_a_term_that_the_model_knows_is_left_to_it() -> None:
    translator, _ = scripted(lambda source: [(token, 0) for token in source])
    glossary = Glossary({"dog": "dog", "x": "X"})
    assert texts(translator, ["A dog b"], glossary) == ["A dog b"]


def test_a_term_that_nothing_is_aligned_to_is_left_out_and_put_back() -> None:
    """The model sees the line a second time, without it."""
    translator, engine = scripted(lambda source: [(token, 0) for token in source])
    protector = Protector(translator, GLOSSARY)
    (found,) = protector.translate_lines(["A Hund b"])
    assert sorted(found.text.split()) == ["A", "b", "hound"]
    assert [translator.codecs.source.decode(ids) for ids in engine.read] == ["A Hund b", "A b"]
    assert not protector.tally["split_lines"]


def test_a_capital_at_the_beginning_goes_with_the_place() -> None:
    translator, _ = scripted(lambda source: [(translator.codecs.target.vocabulary["A"], 2), (source[1], 1)])
    assert texts(translator, ["x y Hund"], GLOSSARY) == ["Hound y"]


def test_what_the_model_makes_up_sends_the_line_to_segments() -> None:
    translator, engine = scripted(
        lambda source: [*echo(source), (translator.codecs.target.vocabulary["{{made}}"], len(source) - 1)]
    )
    protector = Protector(translator)
    assert [one.text for one in protector.translate_lines(["A b {{x}}, c <br/> d", "A b"])] == [
        "A b {{x}}, c <br/> d",
        "A b {{made}}",
    ]
    assert (protector.tally["protected_lines"], protector.tally["split_lines"]) == (1, 1)
    assert any("1 of 1 lines with protected text" in note for note in protector.notes)
    assert sorted(map(translator.codecs.source.decode, engine.read[2:])) == ["A b", "c", "d"]


def test_tokens_and_alignments_hold_protected_text_as_one_token() -> None:
    translator, _ = scripted(crossed)
    lines = ["A {{x}} Hund <b>c</b>"]
    (found,) = translate_protected(translator, lines, glossary=GLOSSARY, alignments=True)
    assert found.text == "<b>c</b> A {{x}} hound"
    assert found.source_tokens == ["A", "{{x}}", "Hund", "<b>", "c", "</b>"]
    assert found.tokens == ["<b>", "c", "</b>", "A", "{{x}}", "hound"]
    assert found.alignment == [3, 4, 5, 0, 1, 2]


def test_tokens_stand_in_the_order_of_the_text() -> None:
    translator, _ = scripted()
    (found,) = translate_protected(translator, ["A {{x}} {{y}} <b>b</b>"], alignments=True)
    assert found.text == " ".join(found.tokens).replace("> ", ">").replace(" </", "</") == "A {{x}} {{y}} <b>b</b>"
    assert found.alignment == [0, 1, 2, 3, 4, 5]


def test_symbols_that_the_model_was_trained_with_are_left_to_it() -> None:
    translator, engine = scripted(crossed, symbols="{{x}}")
    protector = Protector(translator)
    lines = ["A b {{x}}", "A <b>{{x}}</b>", "A {{y}} b c"]
    assert [one.text for one in protector.translate_lines(lines)] == ["{{x}} A b", "<b>{{x}}</b> A", "c A {{y}} b"]
    assert sorted(map(translator.codecs.source.decode, engine.read)) == ["A b c", "A b {{x}}", "A {{x}}"]


def test_symbols_that_the_model_loses_are_put_back() -> None:
    translator, engine = scripted(lambda source: echo(source[:1]), symbols="{{x}}")
    protector = Protector(translator)
    assert [one.text for one in protector.translate_lines(["A {{x}}"])] == ["A {{x}}"]
    assert [translator.codecs.source.decode(ids) for ids in engine.read] == ["A {{x}}", "A"]
    assert not protector.tally["split_lines"]


def test_languages_without_spaces_may_have_it_between_any_tokens() -> None:
    translator, _ = scripted(tokenizer="character", target_language="zh")
    assert texts(translator, ["Ab {{x}} cd", "漢字{{x}}漢字"]) == ["Ab {{x}} cd", "漢字{{x}}漢字"]


def test_a_line_too_long_for_one_chunk_keeps_its_text() -> None:
    translator, _ = scripted(max_length=4)
    protector = Protector(translator)
    (found,) = protector.translate_lines(["A b c d e {{x}} f A b c d e."])
    assert found.text == "A b c d e {{x}} f A b c d e."
    assert protector.tally["split_lines"] == 1


def test_alignments_change_no_text_of_a_line_too_long_for_one_chunk() -> None:
    protector = Protector(scripted(max_length=4)[0])
    lines = ["A b c d e <b>f A b c</b> d e."]
    (one,), (other,) = (list(protector.translate_lines(lines, alignments=wanted)) for wanted in (False, True))
    assert other.text == one.text
    assert protector.tally["split_lines"] == 2
    assert other.alignment is not None


def test_what_is_translated_again_obeys_too() -> None:
    def made_up(source: Sequence[int]) -> list[Link]:  # but for what is searched for again
        return [(CODECS["{}"].target.lookup(["{{made}}"])[0], 0)] if len(source) > 2 else echo(source)

    translator, engine = scripted(made_up)
    protector = Protector(translator)
    (found,) = protector.translate_lines([Line("A b {{x}} c d", Constraints("A", ("b", "d"), ("x",)))])
    assert (found.text, protector.tally["split_lines"]) == ("A b {{x}} c d", 1)
    prefix, b, d, x = ([tuple(ids)] for ids in map(translator.codecs.target.encode, "Abdx"))
    given = [one for batch in engine.constraints for one in batch or []]
    assert [(one.prefix, list(one.required)) for one in given] == [
        (*prefix, b + d), (*prefix, b), ((), d)
    ]  # fmt: skip
    assert all(set(x) <= set(one.forbidden) for one in given)


def test_a_line_in_segments_is_as_sure_as_its_segments() -> None:
    translator, _ = scripted(max_length=4)
    translator.confidence = Confidence([-1.0, 0.0], [0.0, 1.0], 10, 10, 0.0)
    segments, alone = Protector(translator).translate_lines(["A b c d e {{x}} f A b c d e.", "{{x}} {{y}}"])
    assert segments.confidence is not None
    assert 0 < segments.confidence < 1
    assert alone.confidence == 1.0


def test_draws_of_lines_in_segments_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[str, tuple[int, ...]]] = []
    translator, engine = scripted(max_length=4)
    search = engine.search_one

    def kept(batch: SearchBatch, options: SearchOptions) -> list[list[Hypothesis]]:
        keys.extend(zip(map(translator.codecs.source.decode, batch.sources), batch.keys or (), strict=True))
        return search(batch, options)

    monkeypatch.setattr(engine, "search_one", kept)
    lines = ["A b c d e {{x}} f.", "A b", "c d e f A {{x}} b."]
    found = []
    for window in (1, 3):
        keys.clear()
        list(Protector(translator).translate_lines(lines, SearchOptions(method="sample"), window))
        found.append(sorted(keys))
    assert found[0] == found[1]


@pytest.mark.parametrize("window", [1, 2, 9])
def test_each_translation_knows_the_line_it_is_of(window: int) -> None:
    """The very one that was given: what a caller keeps in it comes back with its translation."""
    translator, _ = scripted(max_length=4)
    lines = [Line(text, Constraints()) for text in ("A {{x}}", "b", "{{x}}", "c <br/> d", "", "A b c d {{x}} e")]
    for asked in (lines, [line.text for line in lines]):
        found = [one.line for one in Protector(translator).translate_lines(asked, window=window)]
        assert found == lines
        assert asked is not lines or all(one is other for one, other in zip(found, lines, strict=True))


def test_a_window_of_one_answers_each_line_before_the_next_is_read() -> None:
    translator, _ = scripted()
    numbers = count()
    lines = (f"A {{{{x{number}}}}}" for number in numbers)
    found = Protector(translator).translate_lines(lines, window=1)
    assert [next(found).text, next(found).text] == ["A {{x0}}", "A {{x1}}"]
    assert next(numbers) == 2


def test_very_long_lines_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WINDOW_CHARACTERS", 10)
    translator, _ = scripted()
    numbers = count()
    lines = ("A {{x}} 00000" for _ in numbers)
    assert next(Protector(translator).translate_lines(lines, window=1000)).text == "A {{x}} 00000"
    assert next(numbers) < 5


# --- whatever the model says --------------------------------------------------------------------------------------

parts = ["{{x}}", "{{x}}", "<b>", "</b>", "<br/>", "%s", "https://a.de/b", "a@b.de", "Hund", "e f", "A", "dog", "c"]
glued = st.lists(st.sampled_from([*parts, " ", " ", " ", ".", ",", "(", ")", "😀", "א", "\t"]), max_size=14).map(
    "".join
)
lines_with_spans = st.lists(glued | st.sampled_from(["A b c", "", "Hund", "x <b>y</b>"]), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=["whitespace", "character", "sentencepiece"])
def model(request: pytest.FixtureRequest) -> Translator:
    """A random model, which talks nonsense."""
    config = make_config(request.param)
    codecs, _ = build_codecs(config, lambda: [(text, text) for text in [*TEXT, *parts]])
    torch.manual_seed(3)
    transformer = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary)).double()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return Translator(TorchEngine(transformer), codecs, config)


@pytest.mark.medium
@settings(max_examples=15)
@given(lines=lines_with_spans, window=st.integers(1, 4), n_best=st.integers(1, 2))
def test_everything_is_kept_whatever_the_model_says(
    model: Translator, lines: list[str], window: int, n_best: int
) -> None:
    options = SearchOptions(beam_size=2, n_best=n_best, max_length_ratio=1.0, max_length_extra=1)
    found = list(Protector(model, GLOSSARY).translate_lines(lines, options, window, alignments=True))
    plain = list(model.translate_lines(lines, options, alignments=True))
    assert len(found) == len(lines)
    for line, one, other in zip(lines, found, plain, strict=True):
        spans = find_spans(line.replace("\t", " "), GLOSSARY)
        if not spans:
            assert [h.text for h in one.hypotheses] == [h.text for h in other.hypotheses]
            assert [h.alignment for h in one.hypotheses] == [h.alignment for h in other.hypotheses]
            continue
        for candidate in one.hypotheses:
            assert is_kept(candidate.text, spans)
            assert candidate.alignment is not None
            assert len(candidate.alignment) == len(candidate.tokens)
            assert all(0 <= place < len(one.source_tokens) for place in candidate.alignment)
            sources = [one.source_tokens[place] for place in candidate.alignment]
            links = set(zip(sources, candidate.tokens, strict=True))
            assert all((span.text, span.text) in links for span in spans if f" {span.text} " in f" {line} ")


def test_draws_of_other_lines_do_not_change(model: Translator) -> None:
    options = SearchOptions(method="sample", seed=4, max_length_ratio=1.0, max_length_extra=1)
    plain = [one.text for one in model.translate_lines(["A b", "c", "d e"], options)]
    mixed = [one.text for one in Protector(model).translate_lines(["A b", "{{x}} b", "d e"], options)]
    assert [mixed[0], mixed[2]] == [plain[0], plain[2]]
