"""What only a GPU can show of decoding: low precision, memory, several threads. Marked `gpu`."""

import threading
from collections.abc import Iterator

import pytest
import torch

from tests.decoding.searching import search_batch
from transformer_cli.build import build_model
from transformer_cli.config import ModelConfig, TrainingConfig
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import Position, UpdateBatches
from transformer_cli.decoding.devices import choose_type
from transformer_cli.decoding.engines.protocol import Hypothesis
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.model.transformer import Transformer
from transformer_cli.search_options import SearchOptions
from transformer_cli.training.hardware import Precision
from transformer_cli.training.loop import build_optimizer, train_steps
from transformer_cli.training.objective import TranslationObjective

pytestmark = pytest.mark.gpu

SEARCHES = {
    "greedy": SearchOptions(method="greedy"),
    "beam": SearchOptions(beam_size=4, n_best=2),
    "diverse": SearchOptions(beam_size=6, n_best=2, diversity_groups=3),
    "fresh": SearchOptions(beam_size=3, no_repeat_ngram=2, min_length=4),
    "sample": SearchOptions(method="sample", n_best=2, top_k=5),
}
VOCABULARY = 24


def draw(count: int, seed: int) -> list[list[int]]:
    """Sentences of 1 to 20 tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 21, (count,), generator=generator).tolist()
    return [torch.randint(4, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


SOURCES = draw(50, seed=2)


@pytest.fixture(scope="module")
def model() -> Transformer:
    """One that has learned to copy, on the GPU, in float32."""
    torch.manual_seed(1)
    shape = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=128, heads=4, d_ff=256, dropout=0.0)
    objective = TranslationObjective(build_model(shape, VOCABULARY, VOCABULARY).cuda(), 0.1)
    config = TrainingConfig(schedule="constant", warmup_steps=0, peak_learning_rate=1e-3)

    def batches() -> Iterator[UpdateBatches]:
        for number in range(600):
            sentences = draw(64, seed=100 + number)
            yield UpdateBatches(Position(0, number + 1), [Batch.from_ids([(one, one) for one in sentences])])

    place = Precision("bf16", torch.device("cuda"))
    for _ in train_steps(objective, build_optimizer(objective, config), place, config, batches()):
        pass
    return objective.model.eval()


def copy_of(model: Transformer, dtype: torch.dtype) -> Transformer:
    torch.manual_seed(1)
    shape = ModelConfig(encoder_layers=2, decoder_layers=2, d_model=128, heads=4, d_ff=256, dropout=0.0)
    other = build_model(shape, VOCABULARY, VOCABULARY).cuda().eval()
    other.load_state_dict(model.state_dict())
    return other.to(dtype)


def ids(found: list[list[Hypothesis]]) -> list[list[int]]:
    return [group[0].ids for group in found]


def share_equal(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> float:
    pairs = list(zip(ids(found), ids(expected), strict=True))
    return sum(one == other for one, other in pairs) / len(pairs)


@pytest.mark.parametrize("method", SEARCHES)
def test_the_gpu_finds_what_the_cpu_finds(model: Transformer, method: str) -> None:
    exact = copy_of(model, torch.float64)
    found = search_batch(TorchEngine(exact, "cuda", constant=True), SOURCES, SEARCHES[method])
    expected = search_batch(TorchEngine(exact.cpu(), "cpu"), SOURCES, SEARCHES[method])
    assert ids(found) == ids(expected)
    for group, other in zip(found, expected, strict=True):
        assert [one.score for one in group] == pytest.approx([one.score for one in other], abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_low_precision_says_mostly_the_same(model: Transformer, method: str, dtype: torch.dtype) -> None:
    exact = search_batch(TorchEngine(copy_of(model, torch.float32), "cuda", constant=True), SOURCES, SEARCHES[method])
    assert sum(one == other for one, other in zip(ids(exact), SOURCES, strict=True)) > 40, "it has learned to copy"
    found = search_batch(TorchEngine(copy_of(model, dtype), "cuda", constant=True), SOURCES, SEARCHES[method])
    assert share_equal(found, exact) >= 0.9


def test_searches_at_once_do_not_disturb_each_other(model: Transformer) -> None:
    engine = TorchEngine(copy_of(model, torch.float64), "cuda", constant=True)
    batches = [SOURCES[:20], SOURCES[20:]]
    expected = [search_batch(TorchEngine(engine.model, "cuda"), batch, SEARCHES["beam"]) for batch in batches]
    found: dict[int, list[list[Hypothesis]]] = {}

    def work(number: int) -> None:
        found[number] = search_batch(engine, batches[number], SEARCHES["beam"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in enumerate(expected):
        assert ids(found[number]) == ids(one)


def test_memory_does_not_grow_with_the_number_of_searches(model: Transformer) -> None:
    engine = TorchEngine(model, "cuda", constant=True)
    for _ in range(2):
        search_batch(engine, SOURCES, SEARCHES["beam"])
    before = torch.cuda.memory_allocated()
    for _ in range(5):
        search_batch(engine, SOURCES, SEARCHES["beam"])
    assert torch.cuda.memory_allocated() <= before


def test_what_is_trained_is_not_cast(model: Transformer) -> None:
    """Validation searches with the live model: in the weights' own type."""
    engine = TorchEngine(model, "cuda")
    search_batch(engine, SOURCES, SEARCHES["greedy"])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert choose_type("float32", torch.device("cuda")) == torch.float32
    assert choose_type(None, torch.device("cuda")) in (torch.bfloat16, None)
