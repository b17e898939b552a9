"""A run that is killed wherever it may be, or finds the disk full, goes on to the very same end. True processes."""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import yaml

from tests.environment import unmeasured
from transformer_cli.build import load_model
from transformer_cli.storage.checkpoint import load_training_state
from transformer_cli.storage.holding import TEMPORARY
from transformer_cli.storage.publishing import REPLACED
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder

STEPS, SAVE_EVERY, VALIDATE_EVERY = 16, 2, 5
SPOTS = ["writing", "before-fsync", "after-fsync", "after-rename", "after-index", "pruning"]
# Root may write everywhere; without these two rights it is as any owner of the files.
AS_OWNER = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"]
if (
    os.getuid() != 0
    or not shutil.which("setpriv")
    or subprocess.run([*AS_OWNER, "true"], capture_output=True).returncode
):
    AS_OWNER = []
MakeTree = Callable[..., dict[str, Any]]


class Server:
    """`serving_tfm.py`: one command at a time, in a process that is forked for it."""

    def __init__(self, program: subprocess.Popen[bytes], folder: Path) -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        self._calls, self._answers, self._folder = program.stdin, program.stdout, folder

    def start(self, *arguments: str, failpoint: str | None = None, largest_file: int | None = None) -> "Running":
        environment = {} if failpoint is None else {"TFM_FAILPOINT": failpoint}
        call = {"arguments": arguments, "folder": str(self._folder), "environment": environment}
        self._calls.write(json.dumps(call | {"largest_file": largest_file}).encode() + b"\n")
        return Running(int(self._answers.readline()), self._answers)

    def run(self, *arguments: str, **how: Any) -> tuple[int, str]:
        """Exit code (negative: the signal that killed it) and what it said."""
        return self.start(*arguments, **how).end()


@dataclass
class Running:
    """A command in its process."""

    process: int
    answers: IO[bytes]

    def end(self) -> tuple[int, str]:
        code, said = json.loads(self.answers.readline())
        return code, said

    def has_ended(self) -> bool:
        return bool(select.select([self.answers], [], [], 0)[0])

    def signal(self, number: int) -> None:
        if not self.has_ended():
            os.kill(self.process, number)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Server]:
    yield from serve(place)


def serve(place: Path) -> Iterator[Server]:
    command = [*AS_OWNER, sys.executable, str(Path(__file__).with_name("serving_tfm.py"))]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # so that `select` sees each answer
        env=unmeasured(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"),
    ) as program:
        yield Server(program, place)
        assert program.stdin is not None
        program.stdin.close()


@pytest.fixture
def obeys_permissions() -> None:
    if os.getuid() == 0 and not AS_OWNER:
        pytest.skip("root may write everywhere, and there is no setpriv here that takes this right away")


@pytest.fixture
def config(place: Path, tiny_tree: MakeTree) -> str:
    """All that is random: dropout, subword sampling, noise, shuffling; updates of two batches, about 4 an epoch."""
    path = place / "config.yaml"
    if not path.exists():
        tree = tiny_tree(
            place,
            max_steps=STEPS,
            save_every=SAVE_EVERY,
            validate_every=VALIDATE_EVERY,
            batch_tokens=60,
            accumulation=2,
            subword_sampling=0.2,
            noise={"capitals": 0.2, "typos": 0.2},
            keep_last=2,
            best_metric="loss",
        )
        tree["vocabulary"] = {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 300}
        tree["model"]["dropout"] = 0.3
        path.write_text(yaml.safe_dump(tree))
    return "config.yaml"


@pytest.fixture
def whole(place: Path, server: Server, config: str) -> RunFolder:
    """The run that nobody interrupts."""
    run = RunFolder(place / "whole")
    if not run.path.exists():
        code, said = server.run("train", config, "--out", "whole", "--quiet")
        assert (code, said) == (0, "")
    return run


@pytest.fixture
def run(place: Path, server: Server, config: str, whole: RunFolder) -> Iterator[RunFolder]:
    """A run that has its vocabulary, and nothing else."""
    if not (place / "begun").exists():
        assert server.run("build-vocab", config, "--out", "begun", "--quiet") == (0, "")
    shutil.copytree(place / "begun", place / "run")
    yield RunFolder(place / "run")
    shutil.rmtree(place / "run")


def train(*more: str) -> list[str]:
    return ["train", "config.yaml", "--out", "run", "--quiet", *more]


def names(run: RunFolder) -> list[str]:
    return sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*"))


def rubbish(run: RunFolder) -> list[str]:
    return [name for name in names(run) if Path(name).name.startswith((TEMPORARY, REPLACED))]


def recorded(run: RunFolder) -> list[dict[str, Any]]:
    """The metrics, but for the speed."""
    events = [json.loads(line) for line in run.metrics.path.read_text().splitlines()]
    return [{key: value for key, value in event.items() if "per_second" not in key} for event in events]


def check_sound(run: RunFolder) -> int:
    """What the index names is complete, and its last checkpoint loads, for use and for going on; returns its step."""
    index = run.index()
    if index.last is None:
        assert not list(run.path.glob("step-*")), "a complete checkpoint that nobody finds"
        return 0
    folder = run.step_folder(index.last)
    load_model(folder)
    load_model(run.path)
    assert load_training_state(folder).values["progress"]["step"] == index.last
    return index.last


def check_equal(run: RunFolder, whole: RunFolder) -> None:
    """Weights, moments, random state, progress, scores, index: the same bits; and no other files."""
    folder, expected = run.step_folder(STEPS), whole.step_folder(STEPS)
    for name in (WEIGHTS, "training.safetensors"):
        assert (folder / name).read_bytes() == (expected / name).read_bytes(), name
    values, others = load_training_state(folder).values, load_training_state(expected).values
    for state in (values, others):
        del state["progress"]["seconds"], state["progress"]["validation_seconds"]
    assert values == others
    assert run.index() == whole.index()
    assert recorded(run) == recorded(whole)
    assert names(run) == names(whole)


def last_step(run: RunFolder) -> int:
    """The last step in the metrics, 0 where there is none."""
    lines = run.metrics.path.read_bytes().splitlines(keepends=True) if run.metrics.path.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.endswith(b"\n")), default=0)


def wait_until(come: Callable[[], bool], running: Running) -> None:
    """Return when it has come, or the process has ended."""
    deadline = time.monotonic() + 60
    while not come() and not running.has_ended():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# --- kills --------------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_killed_at_every_spot_of_saving_it_continues_bit_for_bit(
    server: Server, run: RunFolder, whole: RunFolder
) -> None:
    """At one spot after the other, all in one run."""
    saved = 0
    for spot in SPOTS:
        assert server.run(*train(), failpoint=spot) == (-signal.SIGKILL, ""), spot
        assert check_sound(run) >= saved, spot
        saved = check_sound(run)
    assert 0 < saved < STEPS, "killed too late to show anything"
    assert rubbish(run)
    assert server.run(*train()) == (0, "")
    check_equal(run, whole)


@pytest.mark.slow  # in each run of CI test_averaging interrupts one in its own process
def test_a_killed_run_with_a_moving_average_continues_bit_for_bit(place: Path, server: Server, run: RunFolder) -> None:
    averaged = ["--set", "training.ema_decay=0.9"]
    assert server.run("train", "config.yaml", "--out", "averaged", "--quiet", *averaged) == (0, "")
    assert server.run(*train(*averaged), failpoint="after-fsync@3") == (-signal.SIGKILL, "")
    assert 0 < check_sound(run) < STEPS
    assert server.run(*train(*averaged)) == (0, "")
    check_equal(run, RunFolder(place / "averaged"))
    assert any(name.startswith("weights.") for name in load_training_state(run.step_folder(STEPS)).tensors)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("spot", SPOTS)
def test_killed_once_at_a_spot(spot: str, number: int, server: Server, run: RunFolder, whole: RunFolder) -> None:
    assert server.run(*train(), failpoint=f"{spot}@{number}") == (-signal.SIGKILL, "")
    saves = [0, 2, 4, VALIDATE_EVERY, 6]  # the first validation is the best so far
    found = number if spot in ("after-index", "pruning") or (spot, number) == ("after-rename", 1) else number - 1
    assert check_sound(run) >= saves[found] if spot == "pruning" else check_sound(run) == saves[found]
    assert server.run(*train()) == (0, "")
    check_equal(run, whole)


@pytest.mark.medium
@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_anywhere_it_continues_bit_for_bit(
    kills: int, place: Path, server: Server, run: RunFolder, whole: RunFolder
) -> None:
    """Each fifth kill comes in a write."""
    choose, killed = random.Random(kills), 0
    while killed < kills:
        saved = check_sound(run)
        spot = choose.choice(SPOTS) if killed % 5 == 4 else None
        running = server.start(*train("--set", f"data.workers={2 * (killed % 2)}"), failpoint=spot)
        last = min(saved + choose.randint(0, 4), STEPS)
        if spot is None:
            wait_until(lambda last=last: last_step(run) >= last, running)  # type: ignore[misc]
            time.sleep(choose.random() * 0.03)
            running.signal(signal.SIGKILL)
        code, said = running.end()
        assert said == ""
        assert code in (0, -signal.SIGKILL)
        assert check_sound(run) >= saved
        killed += code != 0
        if code == 0:  # it was finished before; the rest comes to another run
            check_equal(run, whole)
            shutil.rmtree(run.path)
            shutil.copytree(place / "begun", run.path)
    assert server.run(*train()) == (0, "")
    check_equal(run, whole)


# --- one folder, two processes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(place: Path) -> Iterator[Server]:
    yield from serve(place)


@pytest.mark.slow  # in each run of CI test_run has a second trainer refused
@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_of_two_started_at_once_one_trains_and_one_is_refused(
    fresh: list[str], server: Server, second: Server, run: RunFolder
) -> None:
    running = [one.start(*train("--set", "training.max_steps=1000000", *fresh)) for one in (server, second)]
    wait_until(running[0].has_ended, running[1])
    refused, trains = running if running[0].has_ended() else reversed(running)
    code, said = refused.end()
    assert (code, said.count("\n")) == (2, 1), said
    assert "run: another tfm is training here (process " in said or "meanwhile" in said
    wait_until(run.index_path.exists, trains)
    trains.signal(signal.SIGTERM)
    assert trains.end() == (128 + signal.SIGTERM, "")
    assert check_sound(run) > 0
    for aside in run.path.parent.glob("run.*"):
        shutil.rmtree(aside)


@pytest.mark.medium
def test_a_folder_that_is_renamed_while_training_is_said_to_be(
    server: Server, run: RunFolder, whole: RunFolder
) -> None:
    """It is nobody's input that is at fault; put back, the run continues. Nothing comes into the folder's successor."""
    aside = run.path.with_name("aside")
    running = server.start(*train())
    wait_until(lambda: run.index_path.exists(), running)
    os.rename(run.path, aside)
    run.path.mkdir()
    code, said = running.end()
    assert (code, said.count("\n")) == (1, 1), said
    assert "was renamed, moved or deleted while tfm was training there; put it back" in said
    assert list(run.path.iterdir()) == []
    run.path.rmdir()
    os.rename(aside, run.path)
    check_sound(run)
    assert server.run(*train()) == (0, "")
    check_equal(run, whole)


# --- signals ------------------------------------------------------------------------------------------------------


def is_training(run: RunFolder, step: int) -> bool:
    return last_step(run) >= step


def is_saving(run: RunFolder, step: int) -> bool:
    return last_step(run) >= step and any(name.startswith(f"{TEMPORARY}step-") for name in os.listdir(run.path))


def is_validating(run: RunFolder, step: int) -> bool:
    return last_step(run) == VALIDATE_EVERY and "valid_loss" not in recorded(run)[-1]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (is_saving, signal.SIGTERM),
        pytest.param(is_saving, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(is_training, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(is_training, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(is_validating, signal.SIGTERM, marks=pytest.mark.slow),
        (is_validating, signal.SIGINT),
    ],
)
def test_a_signal_saves_and_the_same_command_continues_bit_for_bit(
    moment: Callable[[RunFolder, int], bool], number: signal.Signals, server: Server, run: RunFolder, whole: RunFolder
) -> None:
    step = random.randint(1, STEPS // 2)
    running = server.start(*train())
    wait_until(lambda: moment(run, step), running)
    before, began = last_step(run), time.monotonic()
    running.signal(number)
    assert running.end() == (128 + number, "")
    assert time.monotonic() - began < 20
    assert before <= check_sound(run) == last_step(run), "it saves where it is"
    assert check_sound(run) < STEPS
    assert rubbish(run) == []
    assert server.run(*train()) == (0, "")
    check_equal(run, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_does_not_wait_for_a_long_validation(
    number: signal.Signals, place: Path, server: Server, run: RunFolder
) -> None:
    for language in ("de", "en"):
        (place / f"long.{language}").write_text((place / f"valid.{language}").read_text() * 5000)
    changes = ["data.valid={source: long.de, target: long.en}", "training.validation_sentences=100000"]
    running = server.start(*train(*(word for change in changes for word in ("--set", change))))
    wait_until(lambda: is_validating(run, 0), running)
    time.sleep(1)
    began = time.monotonic()
    running.signal(number)
    assert running.end() == (128 + number, "")
    assert time.monotonic() - began < 5, "torchrun kills after 30 s, and the machine may be slower"
    assert is_validating(run, 0), "it was over too soon to show anything"
    assert check_sound(run) == VALIDATE_EVERY


# --- full disks ---------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(server: Server, run: RunFolder) -> RunFolder:
    """The run, killed once it had checkpoints."""
    assert server.run(*train(), failpoint="after-index@3") == (-signal.SIGKILL, "")
    return run


def largest_files(whole: RunFolder) -> dict[str, int]:
    """For each file that cannot be written, the size at which those before it can."""
    sizes = {path.name: path.stat().st_size for path in whole.step_folder(STEPS).rglob("*") if path.is_file()}
    assert sizes["config.yaml"] < sizes[WEIGHTS] < sizes["training.safetensors"]
    return {
        "nothing": 0,
        "config.yaml": 100,
        WEIGHTS: sizes[WEIGHTS] - 1,
        "training": sizes["training.safetensors"] - 1,
    }


@pytest.mark.medium
@pytest.mark.parametrize(
    "what",
    [WEIGHTS, *(pytest.param(what, marks=pytest.mark.slow) for what in ("nothing", "config.yaml", "training"))],
)
def test_a_full_disk_is_reported_and_keeps_what_there_is(
    what: str, server: Server, saved: RunFolder, whole: RunFolder
) -> None:
    """Not the disk, but the size of files is bounded here."""
    index, kept = saved.index(), RunFolder(saved.path).step_folder(saved.index().last or 0)
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    code, said = server.run(*train(), largest_file=largest_files(whole)[what])
    assert (code, said.count("\n")) == (1, 1), said
    assert said.startswith(f"error: {saved.path.name}/")
    assert "File too large" in said
    assert TEMPORARY not in said
    if what in (WEIGHTS, "training"):
        assert f"this step is not saved, step {index.last} is" in said
    assert rubbish(saved) == []
    assert saved.index() == index
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()} == before
    check_sound(saved)
    assert server.run(*train()) == (0, "")
    check_equal(saved, whole)


def test_a_full_disk_at_the_very_beginning(server: Server, whole: RunFolder, config: str, place: Path) -> None:
    code, said = server.run("train", config, "--out", "new", "--quiet", largest_file=0)
    assert (code, said) == (1, "error: new/config.yaml: File too large\n")
    assert list((place / "new").iterdir()) == []


@pytest.mark.slow
def test_a_folder_that_closes_while_training(
    server: Server, obeys_permissions: None, run: RunFolder, whole: RunFolder
) -> None:
    """Training finds it at its next save; the same command is refused at once, until the folder is open again."""
    running = server.start(*train())
    wait_until(lambda: run.index_path.exists(), running)
    run.path.chmod(0o555)
    code, said = running.end()
    run.path.chmod(0o755)
    assert (code, said.count("\n")) == (1, 1)
    assert "Permission denied; this step is not saved, step " in said
    assert 0 < check_sound(run) < STEPS
    run.path.chmod(0o555)
    code, said = server.run(*train())
    run.path.chmod(0o755)
    assert (code, said.count("\n")) == (2, 1)
    assert "not writable" in said or "cannot write here" in said
    assert server.run(*train()) == (0, "")
    check_equal(run, whole)
