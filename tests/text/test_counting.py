"""Counting: exact with little memory and with several processes."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_cli.config import Config, VocabularyConfig
from transformer_cli.text import build as counting
from transformer_cli.text.build import SideCounter, StringCounter, count_tokens, map_in_processes
from transformer_cli.text.codec import Preparation
from transformer_cli.text.tokenizers import CharacterTokenizer

PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PATIENT
@given(chunks=st.lists(st.lists(st.text(max_size=2)), max_size=6), in_memory=st.integers(0, 5))
def test_counts_are_exact_however_few_fit_in_memory(chunks: list[list[str]], in_memory: int) -> None:
    expected: Counter[str] = Counter()
    with StringCounter(in_memory) as counter:
        for chunk in chunks:
            expected.update(chunk)
            counter.update(chunk)
            assert len(counter._counts) <= in_memory
        for _ in range(2):  # it can be read again
            assert list(counter.items()) == sorted(expected.items())


def test_the_temporary_files_go(pairs: list[tuple[str, str]]) -> None:
    with StringCounter(10) as counter:
        counter.update(word for source, _ in pairs for word in source.split())
        runs = list(counter._runs)
        assert runs
    assert all(run.closed for run in runs)


def test_separators_are_counted_between_words() -> None:
    texts = ["ab c  d", "", " x "]
    expected = Counter("".join(texts).replace(" ", "")) + Counter({"▁": 2})
    count = SideCounter(CharacterTokenizer(), Preparation(VocabularyConfig()))
    assert count(texts) == expected
    assert count(texts) == expected
    assert "▁" not in count(["a", "b"])


def test_a_full_cache_changes_nothing(pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [source for source, _ in pairs]
    expected = SideCounter(CharacterTokenizer(), Preparation(VocabularyConfig()))(texts)
    monkeypatch.setattr(counting, "CACHED_WORDS", 3)
    count = SideCounter(CharacterTokenizer(), Preparation(VocabularyConfig()))
    assert count(texts) == expected
    assert len(count._cut) <= 3


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

    monkeypatch.setattr(counting, "map_in_processes", watched)
    monkeypatch.setattr(counting, "CHUNK", 20)
    assert word_config.data.workers == 1
    assert counted(word_config, pairs) == alone
    assert started
    assert counted(word_config, pairs[:20]) == counted(word_config, pairs[:20])
    assert len(started) == 1, "processes were started for a single chunk"
