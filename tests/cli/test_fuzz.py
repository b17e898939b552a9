"""Damaged files by the hundred: model folders, vocabularies and configs, each refused with one short line, soon.

A mutant is a number: the seed of its random choices. Most get a manifest that fits them, so that what reads the files
is reached, and not only what compares hashes.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.environment import unmeasured
from transformer_cli.storage.run_folder import find_model

MUTANTS = 500
EVERY_TIME = 25  # mutants of the default run
THROUGH_ENTRY = range(0, MUTANTS, 12)  # 42 mutants
LONGEST = 300  # characters of a message
SECONDS = 5.0
MEGABYTES = 500
# A mutant may be as good as the file it was made of: a config with another dropout, an index with one step less, a
# weight with another last bit. So many of a hundred, at most, and four more, since small samples vary:
HARMLESS, MORE = 8, 4

Mutator = Callable[[bytes, random.Random], bytes]

# --- bytes --------------------------------------------------------------------------------------------------------


def flip_bits(content: bytes, choose: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(choose.choice([1, 1, 2, 8, 64])):
        changed[_place(changed, choose)] ^= 1 << choose.randrange(8)
    return bytes(changed)


def truncate(content: bytes, choose: random.Random) -> bytes:
    return content[: choose.choice([0, 1, 7, 8, 9, len(content) - 1, len(content) // 2, _place(content, choose)])]


def overwrite(content: bytes, choose: random.Random) -> bytes:
    start, length = _place(content, choose), choose.choice([1, 4, 16, 256])
    fill = choose.choice([bytes(length), b"\xff" * length, choose.randbytes(length)])
    return content[:start] + fill + content[start + length :]


def insert(content: bytes, choose: random.Random) -> bytes:
    start = _place(content, choose)
    length = choose.choice([1, 8, 1000])
    return content[:start] + choose.choice([choose.randbytes(length), b"[" * length, b"\0" * length]) + content[start:]


def cut_out(content: bytes, choose: random.Random) -> bytes:
    start = _place(content, choose)
    return content[:start] + content[start + choose.choice([1, 3, 50, 1000]) :]


def huge_length(content: bytes, choose: random.Random) -> bytes:
    """A length that no file has: in a safetensors file that of its header, in a protobuf of a field."""
    number = choose.choice([len(content), len(content) - 7, 1 << 20, 1 << 31, 1 << 33, (1 << 62) + 5, (1 << 64) - 1])
    if content[8:9] == b"{":
        return number.to_bytes(8, "little") + content[8:]
    start = _place(content, choose)
    return content[:start] + b"\x0a" + _varint(number) + content[start:]


def _place(content: bytes | bytearray, choose: random.Random) -> int:
    """Half of all damage is near the beginning, where headers are."""
    return choose.randrange(choose.choice([min(64, len(content)), min(4000, len(content)), len(content), len(content)]))


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(parts) + bytes([number])


BYTES: list[Mutator] = [flip_bits, flip_bits, truncate, overwrite, insert, cut_out, huge_length]

# --- trees --------------------------------------------------------------------------------------------------------

# fmt: off
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 7, 513, 65_536, 1_000_000, 1 << 31, 1 << 63, -(1 << 63), 10**30, 0.5, 1e-300, 1e300,
    float("inf"), float("nan"), "", "x", "de", "\0", "\ud800", "../../etc/passwd", "/", "/dev/zero", "a" * 5000,
    "\x1b[2J", "\u2028", [], [1], ["a", "b"], {}, {"a": 1}, [[[[[]]]]],
]
# fmt: on


def change_tree(tree: Any, choose: random.Random) -> Any:
    """Another value, a missing key, an unknown key, a key or entry twice, somewhere in the tree."""
    places = list(_places(tree))
    for _ in range(choose.choice([1, 1, 1, 3])):
        parent, key = choose.choice(places)
        if (isinstance(parent, list) and not -len(parent) <= key < len(parent)) or not parent:
            continue
        kind = choose.choice(["value", "value", "value", "missing", "unknown", "other"])
        if kind == "value":
            parent[key] = choose.choice(ODD_VALUES)
        elif kind == "missing":
            parent.pop(key, None) if isinstance(parent, dict) else parent.pop(key)
        elif kind == "unknown" and isinstance(parent, dict):
            parent[choose.choice(["unknown", "", "sha256", "__class__", "a" * 3000, "\x1b[2J"])] = 1
        elif kind == "other" and isinstance(parent, dict):
            parent[key] = parent.get(choose.choice(list(parent)))
        elif isinstance(parent, list):
            parent.insert(key, choose.choice(parent))
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


def json_tree(content: bytes, choose: random.Random) -> bytes:
    tree = change_tree(json.loads(content), choose)
    return json.dumps(choose.choice([tree, tree, tree, tree, choose.choice(ODD_VALUES)])).encode()


def yaml_tree(content: bytes, choose: random.Random) -> bytes:
    tree = change_tree(yaml.safe_load(content), choose)
    return yaml.dump(tree, allow_unicode=choose.random() < 0.5, Dumper=yaml.SafeDumper).encode(errors="replace")


def yaml_bomb(content: bytes, choose: random.Random) -> bytes:
    """Aliases of aliases, tags that ask for code, deep nesting, in the place of a value."""
    lists = ["&a0 [x,x,x,x,x,x,x,x,x]", *(f"&a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
    bomb = choose.choice(
        [
            f"[{', '.join(lists)}]",
            "!!python/object/apply:os.system ['touch /tmp/never']",
            "!!python/name:os.system",
            "[" * choose.choice([50, 5000, 100_000]),
            "{a: " * 2000,
            "&a [*a]",
            "!!binary '%%'",
            "9" * 5000,
            "? [a]\n: b",
        ]
    )
    lines = content.decode().split("\n")
    number = choose.randrange(len(lines))
    lines[number] = lines[number].split(":")[0] + ": " + bomb
    return "\n".join(lines).encode()


def safetensors_header(content: bytes, choose: random.Random) -> bytes:
    """A well-formed header that says something else: shapes, types, offsets, names."""
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(change_tree(json.loads(content[8 : 8 + length]), choose)).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def proto_field(content: bytes, choose: random.Random) -> bytes:
    """Another field of a sentencepiece model's protobuf: twice, missing, last of all, or with other content."""
    fields = list(_fields(content))
    place = choose.randrange(choose.choice([5, len(fields)]))
    kind = choose.choice(["twice", "missing", "appended", "content", "normaliser", "unknown"])
    if kind == "twice":
        fields.insert(place, fields[place])
    elif kind == "missing":
        del fields[place]
    elif kind == "appended":
        fields.append(fields.pop(place))
    elif kind == "content":
        number, inner = choose.choice([fields[place], fields[-1], fields[-2]])
        fields[place] = (number, choose.choice(BYTES)(inner or b"\0", choose))
    elif kind == "normaliser":  # a character map that points anywhere
        charsmap = choose.choice([b"\0", choose.randbytes(4000), (1 << 10).to_bytes(4, "little") + b"\xff" * 5000])
        fields.append((3, b"\x12" + _varint(len(charsmap)) + charsmap))
    else:
        fields.append((choose.choice([1, 2, 3, 4, 5, 900]), choose.randbytes(40)))
    return b"".join(_varint(number << 3 | 2) + _varint(len(inner)) + inner for number, inner in fields)


def _fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = content[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(content):
        field = number() >> 3
        length = number()
        yield field, content[place : place + length]
        place += length


# --- mutants ------------------------------------------------------------------------------------------------------

MODEL_FILES: dict[str, list[Mutator]] = {
    "model.safetensors": [*BYTES, safetensors_header, safetensors_header],
    "config.yaml": [*BYTES, yaml_tree, yaml_tree, yaml_tree, yaml_tree, yaml_bomb],
    "manifest.json": [*BYTES, json_tree, json_tree],
    "vocab/shared.json": [*BYTES, json_tree, json_tree, json_tree],
    "vocab/shared.model": [*BYTES, proto_field, proto_field, proto_field],
}


def spoil(path: Path, mutators: list[Mutator], choose: random.Random) -> str:
    """Change a file; returns what was done."""
    content = path.read_bytes()
    mutate = choose.choice(mutators)
    try:
        changed = mutate(content, choose)
    except UnicodeEncodeError:  # half a surrogate has no place in a file
        changed = content[:-1]
    path.write_bytes(changed if changed != content else content + b"\0")
    return f"{path.name}: {mutate.__name__}"


def fit_manifest(folder: Path) -> None:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "manifest.json"]
    hashes = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / "manifest.json").write_text(json.dumps({"sha256": hashes}))


def make(seed: int, trial: Any, folder: Path) -> tuple[list[str], str]:
    """The mutant of this number: the command that reads it, and what was done."""
    choose = random.Random(seed)
    kind = choose.choice(["model", "model", "model", "model", "words", "run", "config", "config"])
    if kind == "config":
        config = folder / "c.yaml"
        shutil.copyfile(trial.config, config)
        done = spoil(config, MODEL_FILES["config.yaml"], choose)
        return ["build-vocab", str(config), "--out", str(folder / "out"), "-q"], done
    if kind == "run":
        shutil.copytree(trial.run, folder / "r")
        done = spoil(folder / "r" / "checkpoints.json", [*BYTES, json_tree, json_tree], choose)
        return ["translate", str(folder / "r"), "ein hund", "-q"], done
    shutil.copytree(find_model(trial.run if kind == "model" else trial.words), folder / "m")
    name = choose.choice(list(MODEL_FILES)) if kind == "model" else "vocab/shared.json"
    done = spoil(folder / "m" / name, MODEL_FILES[name], choose)
    if name != "manifest.json" and choose.random() < 0.8:
        fit_manifest(folder / "m")
        done += ", fitting manifest"
    # Once CTranslate2 has a copy of the model, with hashes of its own, only torch reads the weights.
    engine = ["--engine", "torch"] if name == "model.safetensors" else []
    return ["translate", str(folder / "m"), "ein hund sieht xylophon", "-q", *engine], done


# --- what holds for each ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """What a command made of a mutant."""

    seed: int
    done: str  # to which file, and what
    code: int
    out: str
    err: str
    seconds: float
    megabytes: float  # above what the process held before, or a process holds that imports torch

    def check(self) -> bool:
        """Hold everything but the exit code 0 of the harmless; whether it is one of these."""
        assert self.code in (0, 2), self
        assert self.seconds < SECONDS, self
        assert self.megabytes < MEGABYTES, self
        if self.code == 0:
            # Nothing is harmless that a hash was made of.
            assert "fitting" in self.done or self.done.startswith(("c.yaml", "checkpoints.json", "manifest.json")), self
            return True
        assert (self.out, self.err.count("\n")) == ("", 1), self
        assert self.err.startswith("error: "), self
        assert len(self.err) <= LONGEST + 1, self
        assert self.err.rstrip("\n").isprintable(), self
        return False


def _status(field: str) -> float:
    """A line of this process's status, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def _names(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize(
    "mutants", [range(EVERY_TIME), pytest.param(range(EVERY_TIME, MUTANTS), marks=pytest.mark.slow)], ids=str
)
def test_damaged_files_are_refused(mutants: range, trial: Any, tfm: Any, tmp_path: Path) -> None:
    import torch  # not a part of what a mutant takes

    assert torch
    tfm("translate", trial.run, "ein hund")  # nor what the first model of a process takes
    harmless = []
    for seed in mutants:
        folder = tmp_path / str(seed)
        folder.mkdir()
        command, done = make(seed, trial, folder)
        before, names = _status("VmRSS"), _names(folder)
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
        began = time.process_time()  # other processes of the machine do not count
        outcome = tfm(*command)
        seconds, megabytes = time.process_time() - began, _status("VmHWM") - before
        answer = Answer(seed, done, outcome.code, outcome.out, outcome.err, seconds, megabytes)
        if answer.check():
            harmless.append(answer)
        else:
            assert _names(folder) == names, answer
        shutil.rmtree(folder)
    assert len(harmless) <= len(mutants) * HARMLESS / 100 + MORE, harmless


@pytest.fixture(scope="module")
def import_of_torch() -> float:
    return _run([sys.executable, "-c", "import torch"])[-1]


def _run(command: list[str]) -> tuple[int, str, str, float, float]:
    """Exit code, stdout, stderr, seconds of CPU time, megabytes of memory at most."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env=unmeasured(OMP_NUM_THREADS="1"))
        killer = threading.Timer(60, process.kill)
        killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        texts = out.read().decode(), err.read().decode()
    return process.returncode, *texts, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


@pytest.mark.medium
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed > 12)) for seed in THROUGH_ENTRY])
def test_the_same_through_the_real_entry_point(seed: int, trial: Any, tmp_path: Path, import_of_torch: float) -> None:
    command, done = make(seed, trial, tmp_path)
    code, out, err, seconds, megabytes = _run([sys.executable, "-m", "transformer_cli", *command])
    Answer(seed, done, code, out, err, seconds, megabytes - import_of_torch).check()


def test_a_mutant_is_the_same_every_time(trial: Any, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for seed in range(10):
        _, first = make(seed, trial, tmp_path / "a")
        _, second = make(seed, trial, tmp_path / "b")
        contents = [
            {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            for folder in (tmp_path / "a", tmp_path / "b")
        ]
        assert first == second
        assert contents[0] == contents[1]
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / name)
            (tmp_path / name).mkdir()
