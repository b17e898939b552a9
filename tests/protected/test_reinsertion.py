"""Where gaps and terms go: between whole words, with the spaces that they had."""

import pytest

from transformer_cli.config import VocabularyConfig
from transformer_cli.protected.reinsertion import (
    Output,
    cuts,
    placeholder_edits,
    term_edit,
    token_places,
    written,
)
from transformer_cli.protected.spans import Placeholder, find_spans, leave_out
from transformer_cli.text.codec import Tokenizer
from transformer_cli.text.subword import SubwordTokenizer, train_subwords
from transformer_cli.text.tokenizers import CharacterTokenizer, WordTokenizer


def word_output(text: str, alignment: list[int]) -> Output:
    """Tokens are what stands between spaces."""
    places = token_places(text.split(), text, WordTokenizer())
    assert places is not None
    return Output(text, places, alignment)


def placeholders(line: str, before: list[int] | None = None) -> list[Placeholder]:
    """What is left out of a line; `before` it so many tokens, else so many words."""
    text, found = leave_out(line, find_spans(line))
    counts = [len(text[: one.place].split()) for one in found] if before is None else before
    return [one._replace(tokens=count) for one, count in zip(found, counts, strict=True)]


@pytest.fixture(scope="module")
def subwords() -> SubwordTokenizer:
    options = VocabularyConfig(tokenizer="sentencepiece", algorithm="bpe", size=280)
    return SubwordTokenizer(train_subwords([("abc", 9), ("bcd", 9), ("hello.", 5)], options, "text"), "bpe")


@pytest.mark.parametrize("text", ["abc bcd", "abc  x", "hello. 漢字 é😀", " abc", "a", "x\u2028y"])
def test_each_subword_stands_where_it_was_read(subwords: SubwordTokenizer, text: str) -> None:
    tokens = [token for word in subwords.words(text) for token in subwords.tokens(word)]
    text = subwords.join(tokens).replace("\u2028", " ")
    places = token_places(tokens, text, subwords)
    assert places is not None
    assert places == sorted(places)
    for token, (start, end) in zip(tokens, places, strict=True):
        surface = token.removeprefix("\u2581")
        assert text[start:end] == surface or token in subwords.byte_tokens or "\u2581" in token
    covered = {index for start, end in places for index in range(start, end)}
    assert all(index in covered for index, character in enumerate(text) if not character.isspace())


@pytest.mark.parametrize(
    ("tokens", "text", "places"),
    [
        (["a", "￭,", "b"], "a, b", [(0, 1), (1, 2), (3, 4)]),
        (["<unk>", "b", "<unk>"], "foo b bar", [(0, 3), (4, 5), (6, 9)]),
        (["<unk>", "<unk>"], "foo bar", [(0, 3), (4, 7)]),
        (["a", "<unk>"], "a", None),
        (["a"], "a b", None),
        (["a", "b"], "b a", None),
        (["￭a"], "x", None),
        ([], "", []),
    ],
)
def test_words_and_copied_words_are_found(tokens: list[str], text: str, places: list[tuple[int, int]] | None) -> None:
    assert token_places(tokens, text, WordTokenizer()) == places


def test_copied_characters_are_found() -> None:
    tokenizer: Tokenizer = CharacterTokenizer()
    assert token_places(["<unk>", "a", "\u2581", "<unk>"], "漢a 字", tokenizer) == [(0, 1), (1, 2), (2, 2), (3, 4)]


def test_placeholders_may_go_between_words_and_before_punctuation() -> None:
    assert cuts(word_output("one two, three.", [0, 1, 2]), spaces=True) == [
        (0, 0),
        (1, 4),
        (2, 7),
        (2, 9),
        (3, 14),
        (3, 15),
    ]
    pieces = Output("one twofold.", [(0, 3), (4, 7), (7, 11), (11, 12)], [0, 1, 2, 3])
    assert [place for _, place in cuts(pieces, spaces=True)] == [0, 4, 11, 12]
    assert [place for _, place in cuts(pieces, spaces=False)] == [0, 4, 7, 11, 12]


@pytest.mark.parametrize(
    ("line", "translation", "alignment", "expected"),
    [
        ("a {{x}} b", "A B", [0, 1], "A {{x}} B"),
        ("a {{x}} b c", "C A B", [2, 0, 1], "C A {{x}} B"),
        ("a {{x}}.", "A.", [0], "A {{x}}."),
        ("a {{x}}, b", "A, B", [0, 1], "A {{x}}, B"),
        ("a, {{x}} b", "A, B", [0, 1], "A, {{x}} B"),
        ("a {{x}}", "A", [0], "A {{x}}"),
        ("{{x}} a", "A", [0], "{{x}} A"),
        ("{{x}}, a", "A B", [0, 0], "{{x}} A B"),
        ("a {{x}} {{y}} b", "A B", [0, 1], "A {{x}} {{y}} B"),
        ("a{{x}} b", "A B", [0, 1], "A{{x}} B"),
        ("a {{x}}b", "A B", [0, 1], "A {{x}}B"),
        ("a  {{x}}   b", "A B", [0, 1], "A  {{x}}   B"),
        ("<b>a</b> <i>b</i>", "B A", [1, 0], "<i>B</i> <b>A</b>"),
        ("<b>a</b><i>b</i>", "A B", [0, 1], "<b>A</b><i>B</i>"),
        ("x <b><i>a</i></b>.", "A X.", [1, 0], "<b><i>A</i></b> X."),
        ("a <b>b</b> c d", "A C D", [0, 2, 3], "<b>A C</b> D"),
        ("<b>a!</b> b", "A! B", [0, 1], "<b>A!</b> B"),
        ("b <p><i>a.</i></p>", "B A.", [0, 1], "B <p><i>A.</i></p>"),
        ("b <p><i>a</i></p>.", "B A.", [0, 1], "B <p><i>A</i></p>."),
        ("b <p><i> a </i></p> c", "B A C", [0, 1, 2], "B <p><i> A </i></p> C"),
        ("<b>a</b>! b", "A! B", [0, 1], "<b>A</b>! B"),
        ("<b>(a)</b>. b", "B (A).", [1, 0], "B <b>(A).</b>"),
        ("<b>a b</b> c", "A C B", [0, 2, 1], "<b>A C B</b>"),
        ("<b>a</b> ({{x}}) b", "A B", [0, 1], "<b>A</b> ({{x}}) B"),
    ],
)
def test_placeholders_are_put_back(line: str, translation: str, alignment: list[int], expected: str) -> None:
    edits = placeholder_edits(word_output(translation, alignment), placeholders(line), [], spaces=True)
    assert written(translation, edits) == expected


@pytest.mark.parametrize(
    ("line", "before", "expected"),
    [
        ("(<b>a</b>) b", [1, 2], "B (<b>A</b>)"),
        ("<b>(a)</b> b", [0, 3], "B <b>(A)</b>"),
        ("(<p><i>a</i></p>) b", [1, 1, 2, 2], "B (<p><i>A</i></p>)"),
        ("<p><i>(a)</i></p> b", [0, 0, 3, 3], "B <p><i>(A)</i></p>"),
        ("(<p>a<i>)</i></p> b", [1, 2, 3, 3], "B (<p>A<i>)</i></p>"),
    ],
)
def test_brackets_stay_on_their_side_of_a_tag(line: str, before: list[int], expected: str) -> None:
    output = Output("B (A)", [(0, 1), (2, 3), (3, 4), (4, 5)], [3, 0, 1, 2])
    assert written(output.text, placeholder_edits(output, placeholders(line, before), [], spaces=True)) == expected


def test_nearer_words_weigh_more() -> None:
    """Of the words before the placeholder a far one has gone to the end; the near one decides."""
    (edit,) = placeholder_edits(word_output("C D A", [2, 3, 0]), placeholders("a b c {{x}} d"), [], spaces=True)
    assert (edit.start, edit.end) == (2, 2)


@pytest.mark.parametrize(
    ("text", "alignment", "expected"),
    [
        ("one two three", [0, 1, 2], (4, 7, "term")),
        ("one two, three", [0, 1, 2], (4, 7, "term")),
        ("two one", [1, 0], (0, 3, "term")),
        ("Two one", [1, 0], (0, 3, "Term")),
        ("one Two", [0, 1], (4, 7, "term")),
        ("one two more three", [0, 1, 1, 2], (4, 12, "term")),
        ("two one more two", [1, 0, 1, 1], (8, 16, "term")),
        ("one three", [0, 2], None),
        ("one .", [0, 1], None),
    ],
)
def test_a_terms_translation_takes_the_place_of_the_words_aligned_to_it(
    text: str, alignment: list[int], expected: tuple[int, int, str] | None
) -> None:
    edit = term_edit(word_output(text, alignment), "term", 1, 2, spaces=True)
    assert (edit and (edit.start, edit.end, edit.text)) == expected


def test_whole_words_are_replaced_where_only_a_piece_is_aligned() -> None:
    output = Output("a dogs b", [(0, 1), (2, 5), (5, 6), (7, 8)], [0, 1, 3, 2])
    edit = term_edit(output, "hounds", 1, 2, spaces=True)
    assert edit is not None
    assert written(output.text, [edit]) == "a hounds b"
