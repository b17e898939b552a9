"""What the exchange of gradients costs over slow links, and a model of its time that is held against what was measured.

    python experiments/exchange.py KEPT [--processes 2 4] [--rates 10 1 0.1] [--delays 0.1 1 10] [--rounds 3] [--write]

As root, on Linux: processes in network namespaces of this machine (`tests/training/machines.py`), joined by `links.py`.
Each calls tfm's own `Ranks.sum_gradients`, with gradients of as many bytes as the paper's base and big have, or of
fewer where a link would need more than `--seconds` for them; with `--updates`, it makes whole updates of base on 16
pairs of 31 tokens. What was measured is added to the file KEPT, and not measured again; the tables show all that is
there. The model has four coefficients (`Point.terms`), fitted for each point on all other exchanges in float32: the
errors are those of points that the fit has not seen. An update takes what a process computes alone, and the exchange.
"""

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
from links import Links, slow_links
from page import describe_run, report

from tests.training.machines import Machine, machines
from transformer_cli.build import build_model, build_objective
from transformer_cli.config import load_config
from transformer_cli.data.batch import Batch
from transformer_cli.data.loader import START, UpdateBatches
from transformer_cli.training.distributed import Ranks, join_ranks
from transformer_cli.training.hardware import PRECISIONS, Precision
from transformer_cli.training.loop import build_optimizer, train_steps

SCALING = ROOT / "docs" / "scaling.md"
MODELS = {"base": 63_000_000, "big": 214_200_000}  # parameters, with 37,000 shared subwords
WORDS = 37_000
SEGMENT = 2**20  # bytes: gloo's largest
MATRIX = 1_000_000  # parameters of one tensor

WORKER = "--worker"

Ask = Callable[..., list[list[float]]]


@dataclass(frozen=True)
class Point:
    """One place where the time of an exchange was measured."""

    model: str
    processes: int
    rate: float  # bits per second, in each direction of each machine's link
    delay: float  # seconds, one way
    precision: str = "fp32"  # of what is sent
    update: bool = False  # a whole update, not its exchange alone
    bytes: int = 0  # of the message
    seconds: float = 0.0  # the median over the rounds, each that of its slowest process
    alone: float = 0.0  # of an update: the same where no process waits for another

    def terms(self) -> list[list[float]]:
        """What the coefficients are multiplied by where the wire takes longer, and where passing on does, (2, 4).

        The bytes of a process, which it copies; those that all of this machine's processes pass on; seconds on the wire
        at this rate; and seconds of delay. In a ring of n each process sends 1 / n of the message 2 (n - 1) times, in
        segments that wait for each other; a busy wire hides all but one message's worth of these waits.
        """
        rounds = 2 * (self.processes - 1) / self.processes
        passed, waits = rounds * self.bytes, self.bytes / SEGMENT * self.delay  # by each process
        on_the_wire = [self.bytes, 0.0, 8 * passed / self.rate, waits]
        return [on_the_wire, [self.bytes, self.processes * passed, 0.0, rounds * waits]]


def main() -> None:
    """Measure every point and print the table and the model; or be one of the processes that exchange."""
    if sys.argv[1:] == [WORKER]:
        work()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path, metavar="KEPT")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 1, 0.1], metavar="GBIT_PER_SECOND")
    parser.add_argument("--delays", type=float, nargs="+", default=[0.1, 1, 10], metavar="MILLISECONDS", help="one way")
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of what is sent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", action="store_true", help="whole updates of base")
    parser.add_argument("--seconds", type=float, default=8.0, help="that a message is on the wire, at most")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    given = parser.parse_args()
    known = {replace(point, bytes=0, seconds=0.0, alone=0.0) for point in kept_points(given.kept)}
    models = ["base"] if given.updates else given.models
    for count in given.processes:
        every = itertools.product(given.rates, given.delays, models)
        same = given.precision, given.updates
        places = [Point(model, count, rate * 1e9, delay / 1e3, *same) for rate, delay, model in every]
        if known.issuperset(places):
            continue
        with ExitStack() as stack:
            found = stack.enter_context(machines(count))
            links = stack.enter_context(slow_links([machine.shell for machine in found]))
            ask = stack.enter_context(workers(found))
            for place in places:
                if place not in known:
                    with given.kept.open("a", encoding="utf-8") as file:
                        print(json.dumps(asdict(measure(place, ask, links, given))), file=file)
    report([*describe(kept_points(given.kept)), "", describe_run(1)], given.write, SCALING)


# --- measuring --------------------------------------------------------------------------------------------------------


def kept_points(file: Path) -> list[Point]:
    """Return what was measured before, in the order of the table."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    points = [Point(**json.loads(line)) for line in lines]
    return sorted(
        points, key=lambda point: (point.model, point.precision != "fp32", point.processes, -point.rate, point.delay)
    )


def measure(place: Point, ask: Ask, links: Links, given: argparse.Namespace) -> Point:
    """Return the place with what was measured there, without two rounds in which TCP finds out about the link."""
    links.shape(place.rate, place.delay)
    passed = 2 * (place.processes - 1) / place.processes
    width = 4 if given.precision == "fp32" else 2  # bytes of a number

    def slowest(*wanted: int | str | bool) -> float:
        return float(statistics.median([max(times) for times in zip(*ask(*wanted), strict=True)][2:]))

    if place.update:
        alone, seconds = (slowest("update", given.rounds + 2, together) for together in (False, True))
        return replace(place, bytes=4 * MODELS[place.model], seconds=seconds, alone=alone)
    longest = given.seconds * place.rate / (8 * width * passed) if passed else math.inf
    numbers = int(min(MODELS[place.model], longest))
    return replace(
        place, bytes=width * numbers, seconds=slowest("exchange", numbers, given.rounds + 2, given.precision)
    )


@contextmanager
def workers(found: Sequence[Machine]) -> Iterator[Ask]:
    """Give a function: call it with the name of a step and its arguments: each process's seconds of each round."""
    address = {
        "MASTER_ADDR": "10.78.0.1",
        "MASTER_PORT": "29500",
        "GLOO_SOCKET_IFNAME": "slow0",
        "OMP_NUM_THREADS": "1",
    }
    processes = []
    for rank, machine in enumerate(found):
        own = {**address, "RANK": str(rank), "WORLD_SIZE": str(len(found))}
        command = [*machine.enter(ROOT), *(f"{key}={value}" for key, value in own.items())]
        command += [sys.executable, str(Path(__file__).resolve()), WORKER]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def ask(*wanted: int | str | bool) -> list[list[float]]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(wanted) + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in processes if process.stdout is not None]

    try:
        yield ask
    finally:
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # all of them: they wait for each other
        for process in processes:
            process.wait()


def work() -> None:
    """Answer each line of stdin: the seconds of each round."""
    steps: dict[str, Callable[..., Iterator[float]]] = {"exchange": exchange, "update": update}
    with join_ranks("cpu") as (ranks, _):
        for line in sys.stdin:
            name, *wanted = json.loads(line)
            print(json.dumps([*steps[name](ranks, *wanted)]), flush=True)


def exchange(ranks: Ranks, numbers: int, rounds: int, precision: str) -> Iterator[float]:
    """Yield how long `sum_gradients` took, in each round, from when all ranks were there."""
    sizes = [min(MATRIX, numbers - start) for start in range(0, numbers, MATRIX)]
    parameters = [nn.Parameter(torch.empty(size)) for size in sizes]
    for _ in range(rounds):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        yield timed(ranks, lambda: ranks.sum_gradients(parameters, torch.zeros(()), 1.0, PRECISIONS[precision]))


def update(ranks: Ranks, rounds: int, together: bool) -> Iterator[float]:
    """Yield how long an update of base took, in each round, from when all ranks were there; or each its own."""
    changes = ["training.precision=fp32", "training.accumulation=1"]
    config = load_config(ROOT / "configs" / "wmt14_en_de_base.yaml", changes)
    draw = np.random.default_rng(ranks.rank)
    pairs = [(draw.integers(4, WORDS, 31), draw.integers(4, WORDS, 31)) for _ in range(16)]
    objective = build_objective(build_model(config.model, WORDS, WORDS), config)
    steps = train_steps(
        objective,
        build_optimizer(objective, config.training),
        Precision("fp32", torch.device("cpu")),
        config.training,
        itertools.repeat(UpdateBatches(START, [Batch.from_ids(pairs)])),
        ranks=ranks if together else Ranks(),
    )
    for _ in range(rounds):
        yield timed(ranks, lambda: next(steps))


def timed(ranks: Ranks, step: Callable[[], Any]) -> float:
    """Return the seconds of a step that all ranks begin together."""
    if ranks.count > 1:
        distributed.barrier()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


# --- the model --------------------------------------------------------------------------------------------------------


def predict(point: Point, coefficients: np.ndarray) -> float:
    """Return seconds: what takes longer, the wire or passing on; with the copies and the delays."""
    return float((np.array(point.terms()) @ coefficients).max())


def fit(points: Sequence[Point]) -> np.ndarray:
    """Return the coefficients, (4,), with the least squares of relative errors."""
    seconds = np.array([point.seconds for point in points])
    terms = np.array([point.terms() for point in points])  # (points, 2, 4)
    coefficients = np.array([4e-10, 1e-9, 1.0, 1.0])
    for _ in range(20):  # what takes longer follows from the coefficients, and they from that
        longer = (terms @ coefficients).argmax(axis=1)
        used = terms[np.arange(len(points)), longer]
        coefficients = np.linalg.lstsq(used / seconds[:, None], np.ones(len(points)), rcond=None)[0]
    return coefficients


def describe(points: Sequence[Point]) -> Iterator[str]:
    """Yield the table of exchanges, the model, and the table of whole updates, if there are any."""
    exchanges = [point for point in points if not point.update]
    seen = [point for point in exchanges if point.precision == "fp32"]
    yield "| model | processes | Gbit/s | delay | message | measured | predicted | error |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    errors = []
    for point in exchanges:
        predicted = predict(point, fit([other for other in seen if other is not point]))
        errors.append(predicted / point.seconds - 1)
        name = point.model if point.precision == "fp32" else f"{point.model}, {point.precision}"
        yield f"| {name} | {cells(point)} | {point.bytes / 1e6:,.0f} MB | {result(point, predicted)} |"
    copies, passed, wire, delay = fit(seen)
    within = sum(abs(error) <= 0.15 for error in errors)
    yield ""
    yield (
        f"Seconds = {copies * 1e9:.1f} × GB of the message + the longer of two: {wire:.2f} × seconds on the wire + "
        f"{delay:.2f} × delay × MiB of the message; {passed * 1e9:.1f} × GB that all processes pass on + {delay:.2f} × "
        f"delay × MiB that each passes on. {within} of {len(exchanges)} points are predicted within 15 %."
    )
    if updates := [point for point in points if point.update]:
        yield from ("", "| processes | Gbit/s | delay | computing alone | an update | predicted | error |")
        yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for point in updates:
        sent = predict(point, fit(seen)) if point.processes > 1 else 0.0
        yield f"| {cells(point)} | {point.alone:.3f} s | {result(point, point.alone + sent)} |"


def cells(point: Point) -> str:
    """Return where it was measured."""
    return f"{point.processes} | {point.rate / 1e9:g} | {point.delay * 1e3:g} ms"


def result(point: Point, predicted: float) -> str:
    """Return what was measured, what was predicted, and by how much that is wrong."""
    return f"{point.seconds:.3f} s | {predicted:.3f} s | {predicted / point.seconds - 1:+.0%}"


if __name__ == "__main__":
    main()
