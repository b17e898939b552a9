"""`--jobs` and torchrun give what one process gives; a kill loses the shards under way and nothing else."""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.environment import unmeasured
from transformer_cli.decoding import devices
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.jobs import shards as sharding
from transformer_cli.jobs.translating import TranslationOptions

TFM = [sys.executable, "-m", "transformer_cli"]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """23 lines, in 5 shards."""
    monkeypatch.setattr(sharding, "SHARD_LINES", 5)
    path = tmp_path / "source"
    path.write_text("".join(f"{'ein hund sieht ' * (number % 4)}{'zwei ' * number}\n" for number in range(23)))
    return path


@pytest.mark.parametrize(
    "options",
    [
        ["--greedy"],
        ["--n-best", 2, "--scores"],
        ["--format", "json", "--alignments"],
        ["--format", "tsv", "--n-best", 3],
        ["--sample", "--seed", 3],
    ],
)
def test_shards_joined_are_the_whole(options: list[object], trial: Any, tfm: Any, source: Path, tmp_path: Path) -> None:
    whole, joined = tmp_path / "whole", tmp_path / "joined.gz"
    one = tfm("translate", trial.run, "-i", source, "-o", whole, *options)
    other = tfm("translate", trial.run, "-i", source, "-o", joined, "--jobs", 1, *options)
    assert (one.code, other.code) == (0, 0), other.err
    assert rounded(gzip.decompress(joined.read_bytes()).decode()) == rounded(whole.read_text())
    assert whole.read_text().count("\n") >= 23
    assert warnings(one.err) == warnings(other.err)
    assert sorted(tmp_path.iterdir()) == [joined, source, whole]


def rounded(text: str) -> str:
    """Scores depend on what else is in a batch, in the last of their digits."""
    return re.sub(r"[0-9]+[.][0-9]+", lambda number: f"{float(number[0]):.3f}", text)


def warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith("warning: ")]


def test_an_interrupted_translation_continues_where_it_was(
    trial: Any, tfm: Any, source: Path, tmp_path: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = source.read_text().splitlines()
    output = tmp_path / "output"
    run = ["translate", trial.run, "-i", source, "-o", output, "--greedy", "--jobs", 1]
    expected = tfm("translate", trial.run, "-i", source, "--greedy", "--quiet").out
    translated.clear()

    keep = sharding.Parts.keep

    def interrupted(self: sharding.Parts, name: str, *content: Any) -> None:
        if name.startswith("000003"):
            raise KeyboardInterrupt
        keep(self, name, *content)

    with monkeypatch.context() as patch:
        patch.setattr(sharding.Parts, "keep", interrupted)
        assert tfm(*run).code == 130
    assert translated == lines[:20]
    assert not output.exists()
    assert sorted(path.name[:6] for path in (tmp_path / "output.parts").iterdir()) == [
        "000000",
        "000001",
        "000002",
        "recipe",
    ]

    translated.clear()
    done = tfm(*run)
    assert done.code == 0, done.err
    assert translated == lines[15:]
    assert "translated: 23 lines (15 of them before) in" in done.err
    assert output.read_text() == expected
    assert not (tmp_path / "output.parts").exists()


@pytest.fixture
def left_behind(
    trial: Any, tfm: Any, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[object], Path]:
    """A translation whose parts are still there, as after a kill at its very end: the command, and their folder."""
    parts = tmp_path / "output.parts"
    run = ["translate", trial.run, "-i", source, "-o", tmp_path / "output", "--greedy", "--jobs", 1]
    parts.mkdir()
    (parts / "not-a-part").write_text("")  # so that the folder stays
    with monkeypatch.context() as patch:
        patch.setattr(sharding.Parts, "remove", lambda self: None)
        assert tfm(*run).code == 0
    assert len(list(parts.iterdir())) == 7
    return run, parts


@pytest.mark.parametrize(("change", "again"), [("input", 5), ("nothing", 0)])
def test_parts_of_lines_that_changed_are_not_taken(
    change: str, again: int, tfm: Any, source: Path, translated: list[str], left_behind: tuple[list[object], Path]
) -> None:
    run, parts = left_behind
    if change == "input":
        lines = source.read_text().splitlines()
        source.write_text("\n".join([*lines[:7], "katze", *lines[8:]]))
    translated.clear()
    assert tfm(*run).code == 0
    assert len(translated) == again
    assert [path.name for path in parts.iterdir()] == ["not-a-part"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model", "was made with another model; give the same command as then, name another output, or delete"),
        ("options", "was made with beam_size default (now 2), method greedy (now default)"),
        ("format", "was made with another output format"),
    ],
)
def test_parts_of_another_translation_are_refused_and_kept(
    change: str, message: str, trial: Any, tfm: Any, left_behind: tuple[list[object], Path]
) -> None:
    run, parts = left_behind
    if change == "model":
        run[1] = trial.run / "step-00000002"
    if change == "options":
        run[run.index("--greedy")] = "--beam=2"
    if change == "format":
        run += ["--format", "json"]
    before = {path.name: path.read_bytes() for path in parts.iterdir()}
    assert message in tfm(*run).refused()
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == before


def test_parts_of_a_training_set_are_refused_and_kept_and_the_other_way_round(
    trial: Any, tfm: Any, source: Path, tmp_path: Path, left_behind: tuple[list[object], Path]
) -> None:
    run, parts = left_behind
    before = {path.name: path.read_bytes() for path in parts.iterdir()}
    elsewhere = parts.rename(tmp_path / "synthetic.parts")
    made = ["backtranslate", trial.run, "--input", source, "--out", tmp_path / "synthetic"]
    assert "was made by another command of tfm" in tfm(*made).refused()
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before
    (elsewhere / "recipe.json").write_text('{"beam_size": 5}')
    elsewhere.rename(parts)
    assert "was made by another command of tfm" in tfm(*run).refused()
    assert {path.name for path in parts.iterdir()} == {*before}


def test_ranks_share_the_shards_and_the_first_joins_them(
    trial: Any, tfm: Any, source: Path, tmp_path: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    expected = tfm("translate", trial.run, "-i", source, "--quiet").out
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):  # the first waits for the others
        translated.clear()
        monkeypatch.setenv("RANK", rank)
        done = tfm("translate", trial.run, "-i", source, "-o", output)
        assert done.code == 0, done.err
        assert len(translated) == {"0": 13, "1": 10}[rank]
        assert output.exists() is (rank == "0")
    assert output.read_text() == expected
    assert not (tmp_path / "output.parts").exists()


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (["--jobs", 2], {}, "--jobs: needs --output FILE"),
        (["--jobs", 2, "-o", "-"], {}, "--jobs: needs --output FILE"),
        (["--jobs", 2, "-o", "/dev/null"], {}, "--jobs: needs --output FILE"),
        (["--jobs", 2, "--stream", "-o", "out"], {}, "--stream and --jobs exclude each other"),
        (["--jobs", 0, "-o", "out"], {}, "allowed: 1 to 1000"),
        (["-o", "out"], {"RANK": "0", "WORLD_SIZE": "2"}, "torchrun: needs --input FILE"),
        (["ein", "-o", "out"], {"RANK": "0", "WORLD_SIZE": "2"}, "torchrun: needs --input FILE"),
        ([], {"RANK": "7", "WORLD_SIZE": "2"}, "RANK=7 WORLD_SIZE=2"),
        (["--jobs", 2, "-o", "taken"], {}, "taken.parts: cannot be made"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(
    arguments: list[object],
    variables: dict[str, str],
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.parts").write_text("")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert message in tfm("translate", trial.run, *arguments).refused()
    assert [path.name for path in tmp_path.iterdir()] == ["taken.parts"]


@pytest.mark.slow
def test_killed_processes_and_what_is_left(trial: Any, tmp_path: Path) -> None:
    """True processes: the first command is killed without warning, its jobs end with it, the second one goes on."""
    source, output, parts = tmp_path / "source", tmp_path / "output", tmp_path / "output.parts"
    source.write_text("ein hund sieht zwei katzen\n" * 9_999 + "drei\n")
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "-o", str(output), "--greedy", "--jobs", "2"]
    with subprocess.Popen(run, stderr=subprocess.PIPE) as process:
        while not parts.exists() or not any(path.name[0] == "0" for path in parts.iterdir()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert not output.exists()
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert " of them before) in " in done.stderr
    assert output.read_text().count("\n") == 10_000
    assert not parts.exists()
    one = subprocess.run([*TFM, "translate", str(trial.run), "drei", "--greedy"], capture_output=True, text=True)
    assert output.read_text().splitlines()[-1] == one.stdout.rstrip("\n")


@pytest.mark.slow
def test_a_job_that_is_killed_is_told(trial: Any, tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("ein hund sieht zwei katzen\n" * 100_000)
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "-o", str(output), "--beam", "5", "--jobs", "2"]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True) as process:
        children: list[int] = []
        while len(children) < 2:
            time.sleep(0.1)
            listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            children = [int(child) for child in listed if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        os.kill(children[1], signal.SIGKILL)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert "was killed by signal 9" in said.splitlines()[-1]
    assert not output.exists()


def test_json_of_parts_is_json(trial: Any, tfm: Any, source: Path, tmp_path: Path) -> None:
    """Line numbers go on over the shards."""
    output = tmp_path / "output"
    assert tfm("translate", trial.run, "-i", source, "-o", output, "--jobs", 1, "--format", "json").code == 0
    assert [json.loads(row)["line"] for row in output.read_text().splitlines()] == list(range(1, 24))


def test_an_engine_that_is_refused_leaves_no_trace(trial: Any, tfm: Any, tmp_path: Path) -> None:
    run = ["translate", trial.run, "ein", "-o", tmp_path / "output", "--jobs", 1]
    assert "no engine 'marian'" in tfm(*run, "--engine", "marian").refused()
    assert list(tmp_path.iterdir()) == []


def test_parts_made_on_another_kind_of_device_are_not_taken(trial: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(device: str) -> dict[str, Any]:
        return TranslationOptions(FoundModel.at(trial.run), device=device).fingerprint()

    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    without = recipe("auto")
    assert recipe("cpu") != recipe("cuda") == recipe("cuda:1")
    monkeypatch.setattr(devices, "has_gpu", lambda: True)
    assert without != recipe("auto") == recipe("cuda")
    monkeypatch.setenv("WORLD_SIZE", "2")  # all processes agree, on whatever machines they are
    assert recipe("auto") == without


@pytest.mark.slow  # in each run of CI the next test holds the same lock, without translating
@pytest.mark.parametrize("pairs", [1, 20])
def test_two_at_once_lose_nothing_of_each_other(pairs: int, trial: Any, tfm: Any, tmp_path: Path) -> None:
    """True processes, the second after a random delay: one has the output, the other says so, or has it afterwards."""
    source, output = tmp_path / "source", tmp_path / "output"
    source.write_text("ein hund sieht zwei katzen\n" * 5_000 + "drei\n")
    run = [*TFM, "translate", str(trial.run), "-i", str(source), "-o", str(output), "--jobs", "1", "-q"]
    run += ["--engine", "torch", "--no-guard"]
    ways = {"--greedy": b"", "--beam=2": b""}
    for way in ways:
        assert tfm(*run[len(TFM) :], way).code == 0
        ways[way] = output.read_bytes()
    refused, choose = 0, random.Random(pairs)
    for number in range(pairs):
        output.unlink()
        chosen = ["--greedy", choose.choice([*ways])]
        started = []
        for way in chosen:
            started.append(subprocess.Popen([*run, way], stderr=subprocess.PIPE, text=True, env=unmeasured()))
            while not number and len(started) == 1 and not (tmp_path / "output.parts" / ".lock").exists():
                time.sleep(0.01)
            time.sleep(choose.random() * 2 if number else 0)
        said = [process.communicate()[1] for process in started]
        codes = [process.returncode for process in started]
        assert sorted(codes) in ([0, 0], [0, 2]), said
        processes = {str(process.pid) for process in started}
        for line in (line for code, line in zip(codes, said, strict=True) if code):
            named = re.fullmatch(
                r"error: .*output.parts: another tfm is translating here \(process (\d+) on [^ ]+; .*\n", line
            )
            assert named is not None, line
            assert named[1] in processes
        refused += 2 in codes
        last = chosen[codes.index(0)] if 2 in codes else None
        assert output.read_bytes() in ([ways[last]] if last else [ways[way] for way in chosen])
        assert sorted(path.name for path in tmp_path.iterdir()) == ["output", "source"]
    assert refused


@pytest.mark.medium
def test_shares_exclude_themselves_and_whom_they_are_joined_by(tmp_path: Path) -> None:
    """True processes: a process's own locks never keep it out."""
    script = """
import sys
from pathlib import Path
from transformer_cli.jobs.shards import Parts
share = tuple(map(int, sys.argv[2:4]))
try:
    with Parts(Path(sys.argv[1])).held(share):
        print("held", flush=True)
        sys.stdin.read()
except Exception as error:
    print(error)
"""

    def start(*share: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script, str(tmp_path / "out"), *map(str, share)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=unmeasured())

    def says(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    with start(0, 2) as first, start(1, 2) as second:
        assert [says(first), says(second)] == ["held\n", "held\n"]
        with start(0, 2) as again, start(0, 1) as whole:
            assert f"(process {first.pid} on " in (said := says(again))
            assert "share 1/2" in said
            assert "another tfm is translating here (process " in says(whole)
            again.communicate()
            whole.communicate()
        first.communicate()
        with start(0, 2) as again:
            assert says(again) == "held\n"
            again.communicate()
        second.communicate()
    assert list(tmp_path.iterdir()) == []
