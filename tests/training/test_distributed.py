"""Two processes train as one would: real ones, over the loopback interface."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from torch._C._distributed_c10d import HashStore

from transformer_cli.config import Config
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.errors import UserError
from transformer_cli.training import distributed as module
from transformer_cli.training.distributed import Ranks
from transformer_cli.training.validation import Validator

ROOT = Path(__file__).parents[2]

Ask = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Call it with a case of `two_ranks` and its arguments: the answers of both processes, by rank."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.training.two_ranks", str(folder)]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]

    def call(case: str, **arguments: Any) -> list[Any]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps([case, arguments]) + "\n")
            process.stdin.flush()
        lines = [process.stdout.readline() for process in processes if process.stdout is not None]
        assert all(lines), f"{case} ended a process; stderr shows why"
        return [json.loads(line) for line in lines]

    try:
        yield call
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # all of them: who leaves waits for the others
            process.stdin = None
        for process in processes:
            process.communicate(timeout=30)
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def together_and_alone(ask: Ask, case: str = "train", **arguments: Any) -> tuple[list[Any], Any]:
    """Both ranks' answers, and rank 0's for the same work done by itself."""
    both = ask(case, **arguments)
    return both, ask(case, alone=True, **arguments)[0]


def assert_trained_alike(both: list[Any], alone: Any) -> None:
    for answer in both:
        np.testing.assert_allclose(answer["weights"], alone["weights"], rtol=0, atol=1e-10)
        for ours, theirs in zip(answer["updates"], alone["updates"], strict=True):
            exact = ("step", "next_position", "target_tokens", "applied")
            assert [ours[key] for key in exact] == [theirs[key] for key in exact]
            np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-10)
            np.testing.assert_allclose(ours["gradient_norm"], theirs["gradient_norm"], rtol=1e-9)
    assert both[0]["weights"] == both[1]["weights"], "bit for bit"


@pytest.mark.medium
@pytest.mark.parametrize("accumulation", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_two_processes_are_one_with_twice_the_accumulation(ask: Ask, accumulation: int) -> None:
    """Over 20 updates of unequal token counts, through ends of epochs where a rank gets less than the other."""
    both, alone = together_and_alone(ask, accumulation=accumulation, batch_tokens=82)
    assert len(both[0]["updates"]) == 20
    assert_trained_alike(both, alone)
    first, second = both
    assert first["tokens"] != second["tokens"]
    assert [sum(pair) for pair in zip(first["tokens"], second["tokens"], strict=True)] == alone["tokens"]
    assert first["batches"] != second["batches"], "every update is whole: no end of an epoch was tried"
    if accumulation < 4:
        assert 0 in second["batches"], "no update left a rank without a batch"
    assert first["calls"] == second["calls"]
    assert first["calls"]["all_reduce"] == 20, "one sum of gradients an update"
    assert alone["calls"] == {}, "a process on its own tells nobody"


@pytest.mark.medium
def test_gradients_sent_in_bfloat16_are_those_of_one_process_to_its_digits(ask: Ask) -> None:
    """The first update's: afterwards the weights differ. Neither the loss nor the count of tokens is rounded."""
    both = ask("train", exchange_precision="bf16", batch_tokens=82)
    alone = ask("train", batch_tokens=82, alone=True)[0]
    assert both[0]["weights"] == both[1]["weights"], "bit for bit"
    assert both[0]["weights"] != alone["weights"], "nothing was rounded"
    ours, theirs = both[0]["updates"][0], alone["updates"][0]
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=1e-10)
    np.testing.assert_allclose(ours["gradient_norm"], theirs["gradient_norm"], rtol=2**-8)
    first, second = ([update["loss"] for update in answer["updates"]] for answer in (both[0], alone))
    np.testing.assert_allclose(first, second, rtol=0.02)
    assert both[0]["calls"]["all_reduce"] == 40, "gradients and loss, apart"


@pytest.mark.medium
@pytest.mark.parametrize(("precision", "messages"), [("fp32", 1), ("bf16", 2)])
def test_memory_that_runs_out_on_one_rank_makes_all_begin_again(ask: Ask, precision: str, messages: int) -> None:
    """They train as one process does; where what they send is rounded, as two with enough memory do."""
    values = {"updates": 8, "batch_tokens": 82, "exchange_precision": precision}
    both = ask("train", memory=3, **values)
    assert_trained_alike(both, ask("train", alone=precision == "fp32", **values)[0])
    assert both[0]["calls"] == both[1]["calls"]
    assert both[0]["calls"]["all_reduce"] == 8 * messages, "gradients are summed once, when all ranks have theirs"
    halvings = [update["halvings"] for update in both[0]["updates"]]
    assert halvings == [update["halvings"] for update in both[1]["updates"]]
    assert max(halvings) > 1


@pytest.mark.medium
def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(ask: Ask) -> None:
    both = ask("train", poisoned=3, updates=5)
    assert both[0]["weights"] == both[1]["weights"]
    assert np.isfinite(both[0]["weights"]).all()
    for answer in both:
        assert [update["applied"] for update in answer["updates"]] == [True, True, False, True, True]
        assert answer["updates"][-1]["step"] == 4


def test_a_signal_to_one_rank_stops_all_at_the_same_update(ask: Ask) -> None:
    for answer in ask("train", signalled=3, updates=4):
        assert [update["signal"] for update in answer["updates"]] == [None, None, None, 15]


@pytest.mark.medium
@pytest.mark.parametrize(("pairs", "sentences"), [(20, 20), (21, 7), (2, 2), (1, 1)])
def test_a_validation_shared_out_finds_what_one_process_finds(ask: Ask, pairs: int, sentences: int) -> None:
    both, alone = together_and_alone(ask, "validate", pairs=pairs, sentences=sentences)
    for answer in both:
        assert answer["validation"].pop("samples") == alone["validation"]["samples"]
    assert both[0] == both[1]
    assert both[0]["weights"] == alone["weights"], "rank 0's weights, on all"
    for key, value in both[0]["validation"].items():
        np.testing.assert_allclose(value, alone["validation"][key], rtol=0, atol=1e-10)
    if pairs > 2:
        assert both[0]["validation"]["bleu"] > 1.0, "a model that has learnt nothing shows nothing"


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("batch_tokens", [1, 200, 4096])
def test_ranks_translate_equal_shares_of_a_validation(count: int, batch_tokens: int) -> None:
    """Every sentence once, in batches of like lengths within the limit; as many and as long ones on each rank."""
    lengths = np.random.default_rng(1).integers(1, 40, 203).astype(np.int32)
    validator = Validator.__new__(Validator)  # what it translates with takes no part
    validator.corpus = cast(EncodedCorpus, SimpleNamespace(source_lengths=lengths))
    validator.config = cast(Config, SimpleNamespace(decoding=SimpleNamespace(batch_tokens=batch_tokens)))
    validator.sources, validator.ranks = ["a sentence"] * len(lengths), Ranks(0, count)
    parts = validator._parts()
    assert sorted(sentence for part in parts for sentence in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) <= 1 or len(part) * (lengths[part].max() + 1) <= batch_tokens
    shares = [[sentence for part in parts[rank::count] for sentence in part] for rank in range(count)]
    tokens = [lengths[share].sum() for share in shares]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert max(tokens) - min(tokens) <= lengths.max()
    assert all(all(parts[rank::count][:-1]) for rank in range(count)), "only the last part may be empty"


def test_a_signal_to_one_rank_ends_the_validation_of_all(ask: Ask) -> None:
    for answer in ask("validate", pairs=20, sentences=20, signalled=True):
        assert answer["validation"] is None


def test_each_rank_drops_out_for_itself(ask: Ask) -> None:
    first, second = ask("dropout", rate=0.5)
    assert first["weights"] == second["weights"]
    assert first["loss"] != second["loss"]
    same, as_well = ask("dropout", rate=0.0)
    assert same == as_well


def test_the_first_goes_first(ask: Ask) -> None:
    assert ask("main_process_first", fails=False) == [True, True]
    assert ask("main_process_first", fails=True) == ["ValueError", "ConnectionAbortedError"]


@pytest.mark.parametrize("worlds", [(2, 3, 3), (3, 2)])
def test_ranks_of_different_numbers_do_not_meet(worlds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    store.set_timeout(timedelta(seconds=20))
    monkeypatch.setattr(module, "rendezvous", lambda *_, **__: iter([(store,)]))
    monkeypatch.setattr(module, "TO_HEAR", timedelta(seconds=60 if len(worlds) == max(worlds) else 1))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: None)  # who met would wait here

    def meet(rank: int) -> str:
        with pytest.raises(UserError) as refusal:
            module._meet(rank, worlds[rank], "gloo")
        return str(refusal.value)

    with ThreadPoolExecutor(len(worlds)) as ranks:
        said = list(ranks.map(meet, range(len(worlds))))
    for count, refusal in zip(worlds, said, strict=True):
        assert f"this process was started as one of {count}, another one as one of {5 - count}" in refusal


@pytest.mark.slow  # processes that each import torch; in each run of CI the test above takes threads
@pytest.mark.parametrize("worlds", [(2, 3, 3), (3, 2)])
def test_different_numbers_of_processes_are_refused_by_all(tmp_path: Path, worlds: tuple[int, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    seconds = 60 if len(worlds) == max(worlds) else 1  # some of (3, 2) never come
    program = (
        "from datetime import timedelta\nfrom transformer_cli.training import distributed\n"
        f"distributed.TO_HEAR = timedelta(seconds={seconds})\nwith distributed.join_ranks('cpu'): pass"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | shared | {"RANK": str(rank), "WORLD_SIZE": str(count)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, count in enumerate(worlds)
    ]
    for process, count in zip(processes, worlds, strict=True):
        said = process.communicate(timeout=120)[1]
        assert f"UserError: this process was started as one of {count}, another one as one of {5 - count}" in said
