"""Counting is exact, samples are fair and reported, symbols and specials keep their places, processes end."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_cli.config import Config, VocabularyConfig
from transformer_cli.errors import UserError
from transformer_cli.text import build
from transformer_cli.text.build import (
    SideCounter,
    StringCounter,
    _sample,
    build_codecs,
    count_tokens,
    describe,
    in_chunks,
    map_in_order,
    map_in_processes,
    vocabulary_warnings,
)
from transformer_cli.text.codec import Codecs, Preparation
from transformer_cli.text.tokenizers import CharacterTokenizer
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


def test_a_script_that_crowds_the_vocabulary_is_told(configure: Configure, pairs: list[Pair]) -> None:
    """1,938 characters and 256 bytes take most of 4,000 pieces."""
    signs = [chr(0x4E00 + number) for number in range(1938)]
    text = [("".join(signs[start : start + 6]), pairs[start % 300][1]) for start in range(1938 - 6)]

    def warnings(**options: Any) -> list[str]:
        config = configure(**{"algorithm": "bpe", "character_coverage": 1.0, **options})
        return vocabulary_warnings(build_codecs(config, lambda: text)[0], config.vocabulary)

    (warning,) = warnings(size=4000)
    counts = re.search(r"crowded +([\d,]+) characters and 256 bytes take (\d+)% of 4,000 pieces", warning)
    assert counts is not None
    characters = int(counts[1].replace(",", ""))
    assert 1938 <= characters < 1938 + 100
    assert int(counts[2]) == round((characters + 256) / 40)
    assert "raise vocabulary.size, lower vocabulary.character_coverage, or set vocabulary.byte_fallback" in warning
    assert warnings(size=4600) == []
    assert "byte_fallback" not in warnings(size=2500, byte_fallback=False)[0]
    assert warnings(tokenizer="character", size=4000) == []  # it has nothing else
    text = pairs[:2]
    fewer, crowded = warnings(size=9999)
    assert re.fullmatch(r"fewer +the text has [\d,]+ subwords, not the 9,999 of vocabulary.size", fewer)
    assert "longer subwords; lower vocabulary.character_coverage" in crowded  # a larger size would change nothing


# --- samples ------------------------------------------------------------------------------------------------------


def test_a_sample_is_told_and_depends_on_the_seed(configure: Configure, pairs: list[Pair]) -> None:
    def make(**options: int) -> tuple[Codecs, list[str]]:
        return build_codecs(configure(algorithm="bpe", size=320, **options), lambda: pairs)

    everything, notes = make(sample_lines=2 * len(pairs))
    assert notes == []
    first, notes = make(sample_lines=100)
    assert len(notes) == 1
    assert re.search(r"100 lines \(50 pairs\) of 300 pairs, .*seed 1$", notes[0])
    again, _ = make(sample_lines=100)
    other, notes = make(sample_lines=100, seed=2)
    assert "seed 2" in notes[0]
    assert again.fingerprint == first.fingerprint
    assert len({first.fingerprint, other.fingerprint, everything.fingerprint}) == 3
    separate, notes = make(sample_lines=100, shared=False)
    assert "sample of 100 lines per side of 300 pairs" in notes[0]
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
    assert heading == ["", "vocabulary", "tokens per line", "words covered", "unknown tokens"]
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


# --- counting -----------------------------------------------------------------------------------------------------

PATIENT = settings(max_examples=60)


@PATIENT
@given(chunks=st.lists(st.lists(st.text(max_size=2)), max_size=6), in_memory=st.integers(0, 5))
def test_counts_are_exact_however_few_fit_in_memory(chunks: list[list[str]], in_memory: int) -> None:
    expected: Counter[str] = Counter()
    with StringCounter(in_memory) as counter:
        for chunk in chunks:
            expected.update(chunk)
            counter.update(chunk)
        for _ in range(2):  # it can be read again
            assert list(counter.items()) == sorted(expected.items())


def test_what_does_not_fit_in_memory_lies_in_files_that_go(
    pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[IO[str]] = []
    make = tempfile.TemporaryFile

    def make_file(*arguments: Any, **options: Any) -> IO[str]:
        files.append(make(*arguments, **options))
        return files[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", make_file)
    words = [word for pair in pairs for line in pair for word in line.split()]
    in_memory = 5
    with StringCounter(in_memory) as counter:
        for word in words:
            counter.update([word])
        list(counter.items())
        lying = set()
        for file in files:
            file.seek(0)
            lying |= {json.loads(line)[0] for line in file}
        assert len(set(words) - lying) <= in_memory < len(lying)
    assert all(file.closed for file in files)


def test_separators_are_counted_between_words() -> None:
    texts = ["ab c  d", "", " x "]
    expected = Counter("".join(texts).replace(" ", "")) + Counter({"▁": 2})
    count = SideCounter(CharacterTokenizer(), Preparation(VocabularyConfig()))
    assert count(texts) == expected
    assert count(texts) == expected
    assert "▁" not in count(["a", "b"])


def test_a_full_cache_changes_nothing(pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []

    def counted(self: CharacterTokenizer, word: str) -> list[str]:
        cut.append(word)
        return list(word)

    monkeypatch.setattr(CharacterTokenizer, "tokens", counted)
    words = sorted({word for source, _ in pairs for word in source.split()})
    texts = [" ".join(words)]
    count = SideCounter(CharacterTokenizer(), Preparation(VocabularyConfig()))
    expected = count(texts)
    assert count(texts) == expected
    assert sorted(cut) == words, "each word once"
    cut.clear()
    monkeypatch.setattr(build, "CACHED_WORDS", 3)
    count = SideCounter(CharacterTokenizer(), Preparation(VocabularyConfig()))
    assert count(texts) == count(texts) == expected
    assert sorted(cut) == sorted(words * 2), "three words ago is forgotten"


def counted(config: Config, pairs: list[tuple[str, str]]) -> list[list[tuple[str, int]]]:
    with StringCounter() as source, StringCounter() as target:
        count_tokens(pairs, config, source, target)
        return [list(source.items()), list(target.items())]


def test_processes_count_what_one_process_counts(
    pairs: list[tuple[str, str]], word_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = counted(word_config.model_copy(update={"data": word_config.data.model_copy(update={"workers": 0})}), pairs)
    started = []

    def watched(*arguments: Any) -> Any:
        started.append(1)
        return map_in_processes(*arguments)

    monkeypatch.setattr(build, "map_in_processes", watched)
    monkeypatch.setattr(build, "CHUNK", 20)
    assert word_config.data.workers == 1
    assert counted(word_config, pairs) == alone
    assert not started, "processes were started for what takes less time than they"
    monkeypatch.setattr(build, "INLINE_SECONDS", 0.0)
    assert counted(word_config, pairs) == alone
    assert started


def test_chunks_are_bounded_in_pairs_and_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CHUNK_CHARACTERS", 10)
    pairs = [("a", "b")] * 7 + [("a" * 30, "b")] * 2 + [("", "")]
    chunks = list(in_chunks(pairs, 3))
    assert [pair for chunk in chunks for pair in chunk] == pairs
    assert [len(chunk) for chunk in chunks] == [3, 3, 2, 1, 1]


# --- processes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("inline_seconds", [0.0, 60.0])
def test_results_are_the_same_wherever_they_are_made(
    workers: int, inline_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "INLINE_SECONDS", inline_seconds)
    assert list(map_in_order(partial(pow, 2), range(9), workers)) == [2**number for number in range(9)]
    assert list(map_in_order(partial(pow, 2), [], workers)) == []


def test_results_come_in_order_and_few_items_are_taken_ahead() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    results = map_in_processes(partial(pow, 2), items(), workers=2)
    assert [next(results), next(results)] == [1, 2]
    assert len(taken) <= 7, "an endless stream would fill the memory"
    assert list(results) == [2**number for number in range(2, 40)]


def test_a_process_that_dies_is_explained() -> None:
    with pytest.raises(UserError, match=r"^data\.workers: one of 1 processes died"):
        list(map_in_processes(os._exit, [3, 4], workers=1))


@pytest.mark.medium
@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL to a process group")
@pytest.mark.parametrize("seconds", [0, 60], ids=["idle", "busy"])
def test_processes_end_when_their_parent_is_killed(seconds: int) -> None:
    """All of them, the resource tracker too, hold the parent's standard output: it ends when the last one has."""
    script = f"""
import time
from transformer_cli.text.build import map_in_processes
results = map_in_processes(time.sleep, [0] + 4 * [{seconds}], workers=2)
next(results)
print("at work", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "at work\n"
            parent.kill()
            parent.communicate(timeout=10)
        except BaseException:
            os.killpg(parent.pid, signal.SIGKILL)
            raise
    assert parent.returncode == -signal.SIGKILL
