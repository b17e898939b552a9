"""Building: every line counts, samples are fair and told, symbols and specials keep their places."""

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.text.build import _sample, build_codecs, describe
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import SPECIALS, UNK

Pair = tuple[str, str]
Configure = Callable[..., Config]


def test_word_vocabularies_count_every_line(configure: Configure, pairs: list[Pair]) -> None:
    shared, notes = build_codecs(configure("whitespace", size=60), lambda: pairs)
    assert notes == []
    counts = Counter(word for pair in pairs for text in pair for word in text.split())
    vocabulary = shared.source.vocabulary
    assert shared.target.vocabulary is vocabulary
    assert len(vocabulary) == 60
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:56]
    assert list(zip(vocabulary.get_itos(), vocabulary.counts, strict=True))[4:] == expected
    separate, _ = build_codecs(configure("whitespace", shared=False, min_freq=2), lambda: pairs)
    for side, codec in enumerate((separate.source, separate.target)):
        counts = Counter(word for pair in pairs for word in pair[side].split())
        frequent = {word for word, count in counts.items() if count >= 2}
        assert set(codec.vocabulary.get_itos()) == {*SPECIALS, *frequent}


@pytest.mark.parametrize("kind", ["unigram", "bpe", "character"])
def test_counts_are_those_of_the_encoded_text(codecs: Callable[..., Codecs], pairs: list[Pair], kind: str) -> None:
    codec = codecs(kind).source
    encoded = Counter(index for pair in pairs for ids in codec.encode_batch(pair) for index in ids)
    assert {i: count for i, count in enumerate(codec.vocabulary.counts) if count} == dict(encoded)


@pytest.mark.parametrize("kind", ["whitespace", "spacy", "character", "unigram", "bpe"])
def test_specials_and_symbols_in_the_text(codecs: Callable[..., Codecs], kind: str) -> None:
    codec = codecs(kind, symbols=["<2de>"]).source
    assert "<2de>" in codec.vocabulary
    for text in ("<2de> ba", "ba<2de>", "</s> <unk> <s>", "<2de></s>"):
        ids = codec.encode(text)
        assert not {0, 2, 3} & {*ids}
        assert codec.decode(ids, codec_unknowns(codec.tokenize(text), ids)) == text
        assert sum(token.endswith("<2de>") for token in codec.tokens(ids)) == text.count("<2de>")


def codec_unknowns(tokens: list[str], ids: list[int]) -> list[str]:
    return [token for token, index in zip(tokens, ids, strict=True) if index == UNK]


# --- samples ------------------------------------------------------------------------------------------------------


def test_a_sample_is_told_and_depends_on_the_seed(configure: Configure, pairs: list[Pair]) -> None:
    def build(**options: int) -> tuple[Codecs, list[str]]:
        return build_codecs(configure(algorithm="bpe", size=320, **options), lambda: pairs)

    everything, notes = build(sample_lines=2 * len(pairs))
    assert notes == []
    first, notes = build(sample_lines=100)
    assert notes == ["sentencepiece trains on a sample of 100 lines (50 pairs) of 300 pairs, drawn with seed 1"]
    again, _ = build(sample_lines=100)
    other, notes = build(sample_lines=100, seed=2)
    assert "seed 2" in notes[0]
    assert again.fingerprint == first.fingerprint
    assert len({first.fingerprint, other.fingerprint, everything.fingerprint}) == 3
    separate, notes = build(sample_lines=100, shared=False)
    assert "sample of 100 lines a side of 300 pairs" in notes[0]
    assert sum(separate.source.vocabulary.counts) > sum(first.source.vocabulary.counts) / 3


def test_a_sample_has_its_size_and_every_pair_an_equal_chance() -> None:
    numbers = [(str(number), "") for number in range(10)]
    drawn: Counter[str] = Counter()
    rounds = 2000
    for seed in range(rounds):
        sample = list(_sample(numbers, 10, 3, seed))
        assert len(set(sample)) == 3
        assert sample == sorted(sample)
        drawn.update(number for number, _ in sample)
    deviation = (rounds * 0.3 * 0.7) ** 0.5
    assert all(abs(count - 0.3 * rounds) < 4.5 * deviation for count in drawn.values())
    assert len(drawn) == 10
    assert list(_sample(numbers, 10, 10, 1)) == numbers


def test_passes_are_streamed(configure: Configure, pairs: list[Pair]) -> None:
    passes = []

    def stream() -> Iterator[Pair]:
        passes.append(1)
        yield from pairs

    for tokenizer in ("whitespace", "sentencepiece"):
        build_codecs(configure(tokenizer, size=420), stream)
    assert len(passes) == 3


# --- refusals -----------------------------------------------------------------------------------------------------


def never() -> Iterable[Pair]:
    raise AssertionError("the text was read")


def test_what_options_rule_out_is_refused_before_the_text_is_read(configure: Configure) -> None:
    for config, fault in [
        (configure("spacy", target_language="qq"), "no language 'qq'"),
        (configure("whitespace", size=8, symbols=["<a>", "<b>", "<c>"]), "at least 10"),
        (configure(symbols=["<0x0A>"]), "<0x0A>"),
    ]:
        with pytest.raises(UserError, match=fault):
            build_codecs(config, never)


@pytest.mark.parametrize("tokenizer", ["whitespace", "character", "sentencepiece"])
@pytest.mark.parametrize("shared", [True, False])
def test_text_without_words_is_refused(configure: Configure, tokenizer: str, shared: bool) -> None:
    where = "the training text" if shared else "the source text"
    for blank in ([], [("", ""), (" ", " ")]):
        if tokenizer == "sentencepiece" and blank:
            continue  # spaces are text there
        with pytest.raises(UserError, match=f"^{where}: holds no text"):
            build_codecs(configure(tokenizer, shared=shared), partial(list[tuple[str, str]], blank))


# --- what the user sees -------------------------------------------------------------------------------------------


def test_the_table_says_what_the_vocabulary_covers(configure: Configure, codecs: Callable[..., Codecs]) -> None:
    words, _ = build_codecs(configure("whitespace", shared=False), lambda: [("a b c", "x"), ("d e", "y y")])
    heading, source, target = describe(words, [("a b z", "x"), ("z", "y x x")])
    assert heading == ["", "vocabulary", "tokens a line", "words covered", "unknown tokens"]
    assert source == ["source", "9", "2.0", "66.7%", "50.00%"]
    assert target == ["target", "6", "2.0", "100.0%", "0.00%"]
    characters, _ = build_codecs(configure("character"), lambda: [("ab", "ab")])
    assert describe(characters, [("ab a", "bz")])[1:] == [
        ["source", "7", "4.0", "100.0%", "0.00%"],
        ["target", "7", "2.0", "0.0%", "50.00%"],
    ]
    assert describe(codecs("unigram"), [("日", "ba")])[1][3:] == ["0.0%", "0.00%"]  # in bytes
    assert describe(words, [])[1] == ["source", "9", "0.0", "0.0%", "0.00%"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("tokenizer", ["whitespace", "sentencepiece"])
def test_a_bar_is_drawn_on_a_terminal_only(
    configure: Configure, pairs: list[Pair], tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream, progress, drawn in [(Terminal(), True, True), (Terminal(), False, False), (io.StringIO(), True, False)]:
        monkeypatch.setattr(sys, "stderr", stream)
        build_codecs(configure(tokenizer, size=420), lambda: pairs, progress=progress)
        assert ("counting" in stream.getvalue()) == drawn
        assert ("training sentencepiece on the training text" in stream.getvalue()) == (
            drawn and tokenizer == "sentencepiece"
        )
