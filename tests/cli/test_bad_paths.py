"""Folders for files, files for folders, no permission, full disks, gzip that is none or a bomb: for every command."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.environment import unmeasured
from tests.sampling import one_of_each, quick
from transformer_cli.data import corpora
from transformer_cli.storage.run_folder import find_model
from transformer_cli.text import lines

TFM = [sys.executable, "-m", "transformer_cli"]


def tree(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """A file, a folder, nothing, a name below a file, a name that no file system takes, a circle of links."""
    (tmp_path / "file").write_text("text\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    names = {name: tmp_path / name for name in ("file", "folder", "none", "circle")}
    return {**names, "below": tmp_path / "file" / "below", "long": tmp_path / ("n" * 300)}


# What each command takes in the place of {place}; T: the trial's files, {out}: where nothing may appear.
FILES = {  # a file is meant
    "init": ["{place}", "{reference}", "--from", "de", "--to", "en", "--out", "{out}"],
    "doctor": ["{place}"],
    "doctor: source": ["--source", "{place}", "--target", "{reference}"],
    "build-vocab": ["{place}", "--out", "{out}"],
    "train": ["{place}", "--out", "{out}"],
    "train: data": ["{config}", "--out", "{out}", "--set", "data.train.source={place}"],
    "train: table": ["{config}", "--out", "{out}", "--set", "data.valid={{file: {place}.tsv}}"],
    "translate: input": ["{run}", "-i", "{place}"],
    "evaluate: source": ["{run}", "--source", "{place}", "--reference", "{reference}"],
    "evaluate: reference": ["{run}", "--source", "{source}", "--reference", "{place}"],
    "compare: system": ["{place}", "{source}", "--reference", "{reference}"],
    "compare: reference": ["{source}", "{reference}", "--reference", "{place}"],
    "compare: scores": ["{source}", "{reference}", "--scores", "COMET={place},{place}"],
    "score: source": ["{run}", "--source", "{place}", "--target", "{reference}"],
    "score: target": ["{run}", "--source", "{source}", "--target", "{place}"],
    "align: source": ["{run}", "--source", "{place}", "--target", "{reference}"],
    "align: target": ["{run}", "--source", "{source}", "--target", "{place}"],
    "distill: config": ["{run}", "{place}", "--out", "{out}"],
    "backtranslate: input": ["{run}", "-i", "{place}", "--out", "{out}"],
    "backtranslate: exclude": ["{run}", "-i", "{reference}", "--out", "{out}", "--exclude", "{place}"],
    "backtranslate: config": ["{run}", "-i", "{reference}", "--out", "{out}", "--config", "{place}"],
    "tune": ["{place}", "--out", "{out}", "--vary", "model.dropout=0.1,0.2", "--budget", "9steps"],
    "plot schedule": ["{place}", "-o", "{out}.png"],
    "serve: keys": ["{run}", "--api-keys", "{place}"],
    "serve: glossary": ["{run}", "--glossary", "{place}"],
}
MODELS = {  # a run folder or a checkpoint is meant
    "translate": ["{place}", "ein hund"],
    "evaluate": ["{place}", "--source", "{source}", "--reference", "{reference}"],
    "compare": ["{place}", "{run}", "--source", "{source}", "--reference", "{reference}"],
    "score": ["{place}", "--source", "{source}", "--target", "{reference}"],
    "import": ["{place}", "--out", "{out}"],
    "average": ["{place}", "{place}", "--out", "{out}"],
    "align": ["{place}", "--source", "{source}", "--target", "{reference}"],
    "distill": ["{place}", "{config}", "--out", "{out}"],
    "backtranslate": ["{place}", "-i", "{config}", "--out", "{out}"],
    "inspect": ["{place}"],
    "report": ["{place}"],
    "report: page": ["{place}", "-o", "{out}.html"],
    "average: last": ["{place}", "--last", "2", "--out", "{out}"],
    "plot attention": ["{place}", "ein hund", "-o", "{out}.png"],
    "plot mask": ["{place}", "ein hund", "-o", "{out}.png"],
    "plot training": ["{place}", "-o", "{out}.png"],
    "serve": ["{place}", "--port", "0"],
}
RESULTS = {  # a new file is meant
    "translate": ["{run}", "ein hund", "-o", "{place}"],
    "doctor": ["{config}", "-o", "{place}"],
    "evaluate": ["{run}", "--source", "{source}", "--reference", "{reference}", "-o", "{place}"],
    "compare": ["{source}", "{reference}", "--reference", "{reference}", "-o", "{place}"],
    "report": ["{run}", "-o", "{place}"],
    "score": ["{run}", "--source", "{source}", "--target", "{reference}", "-o", "{place}"],
    "align": ["{run}", "--source", "{source}", "--target", "{reference}", "-o", "{place}"],
    "serve": ["{run}", "--suggestions", "{place}", "--port", "0"],
}
RUNS = {  # a new folder, or an old run, is meant
    "build-vocab": ["{config}", "--out", "{place}"],
    "train": ["{config}", "--out", "{place}", "--device", "cpu"],
    "import": ["{run}", "--out", "{place}"],
    "average": ["{run}/step-00000002", "{run}/step-00000004", "--out", "{place}"],
    "tune": ["{config}", "--out", "{place}", "--vary", "model.dropout=0.1,0.2", "--budget", "9steps"],
}


def command(case: str, words: list[str], trial: Any, place: Path, out: Path) -> list[str]:
    given = {"run": trial.run, "config": trial.config, "source": trial.source, "reference": trial.reference}
    return [*case.split(":")[0].split(), *(word.format(place=place, out=out, **given) for word in words)]


WRONG = [
    (FILES, ["folder", "none", "below", "long", "circle"]),
    (MODELS, ["file", "folder", "none", "below", "long", "circle"]),
    (RESULTS, ["folder", "below", "long", "circle"]),
    (RUNS, ["file", "below", "long", "circle"]),
]
PLACES = one_of_each(
    [pytest.param(case, words, place, id=f"{case}-{place}") for place in wrong]
    for table, wrong in WRONG
    for case, words in table.items()
)


def test_every_kind_of_place_is_sampled() -> None:
    for table, wrong in WRONG:
        sample = [(case, place) for case, words, place in quick(PLACES) if table.get(case) == words]
        assert {case for case, _ in sample} == set(table)
        assert {place for _, place in sample} >= set(wrong) or len(table) < len(wrong)


@pytest.mark.parametrize(("case", "words", "place"), PLACES)
def test_the_wrong_kind_of_place_is_refused(
    case: str, words: list[str], place: str, trial: Any, tfm: Any, places: dict[str, Path], tmp_path: Path
) -> None:
    before = tree(tmp_path)
    said = tfm(*command(case, words, trial, places[place], tmp_path / "out")).refused()
    assert str(places[place]) in said
    assert "internal" not in said
    assert tree(tmp_path) == before


READ = {  # a file that is read, and written too by mistake (`translate` may: lines in, lines out)
    "evaluate: source": ["{run}", "--source", "{place}", "--reference", "{reference}", "-o", "{place}"],
    "evaluate: reference": ["{run}", "--source", "{source}", "--reference", "{place}", "-o", "{place}"],
    "compare": ["{source}", "{place}", "--reference", "{reference}", "-o", "{place}"],
    "score": ["{run}", "--source", "{source}", "--target", "{place}", "-o", "{place}"],
    "align": ["{run}", "--source", "{place}", "--target", "{reference}", "-o", "{place}"],
}


@pytest.mark.parametrize(("case", "words"), READ.items(), ids=READ)
def test_results_never_take_the_place_of_what_is_read(
    case: str, words: list[str], trial: Any, tfm: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    shutil.copy(trial.source, own)
    (tmp_path / "link").symlink_to(own)
    read, written = words[:-1], words[-1:]
    for place in (own, tmp_path / "link"):
        arguments = [*command(case, read, trial, own, own), *(word.format(place=place) for word in written)]
        assert "is read, and the results" in tfm(*arguments).refused()
        assert own.read_bytes() == trial.source.read_bytes()


# --- no permission ------------------------------------------------------------------------------------------------

# Runs commands, one after the other, and tells what each did.
DRIVER = """
import contextlib, io, json, sys
from transformer_cli.cli.app import main
outcomes = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    outcomes.append((code, out.buffer.getvalue().decode(), err.getvalue()))
print(json.dumps(outcomes))
"""
# Root may read and write everything; without these two rights it is as any owner of the files.
AS_OWNER = ["setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search"]


@pytest.fixture(scope="module")
def as_owner() -> list[str]:
    """What makes a command obey the permissions of files."""
    if os.getuid() != 0:
        return []
    if not shutil.which("setpriv") or subprocess.run([*AS_OWNER, "true"], capture_output=True).returncode:
        pytest.skip("root may read everything, and there is no setpriv here that takes this right away")
    return AS_OWNER


@pytest.fixture
def closed(tmp_path: Path, trial: Any) -> Iterator[dict[str, Path]]:
    """Files and folders that may not be read, or not be written."""
    (tmp_path / "secret").write_text("text\n")
    (tmp_path / "secret.tsv").write_text("de\ten\na\tb\n")
    (tmp_path / "kept").write_text("old\n")
    for name in ("shut", "full"):
        (tmp_path / name).mkdir()
    for name in ("run", "unread"):
        shutil.copytree(trial.run, tmp_path / name)
    parts = [*find_model(tmp_path / "unread").rglob("*.safetensors")]
    modes = {"secret": 0o000, "secret.tsv": 0o000, "kept": 0o444, "shut": 0o000, "full": 0o555, "run": 0o000}
    for name, mode in modes.items():
        (tmp_path / name).chmod(mode)
    for path in parts:
        path.chmod(0o000)
    yield {name: tmp_path / name for name in (*modes, "unread")}
    for name in modes:
        (tmp_path / name).chmod(0o700)


@pytest.mark.medium
@pytest.mark.parametrize("each", [pytest.param(True, marks=pytest.mark.slow), False])
def test_what_may_not_be_read_or_written_is_refused(
    each: bool, as_owner: list[str], closed: dict[str, Path], trial: Any, tmp_path: Path
) -> None:
    inside, new = closed["shut"] / "inside", closed["full"] / "new"
    tables = [
        (FILES, [closed["secret"], inside]),
        (MODELS, [closed["run"], closed["unread"], inside]),
        (RESULTS, [closed["kept"], closed["shut"], inside, new]),
        (RUNS, [closed["shut"], inside, new]),
    ]
    asked = [
        (place, command(case, words, trial, place, tmp_path / "out"))
        for table, wrong in tables
        for number, (case, words) in enumerate(table.items())
        for place in (wrong if each else [wrong[number % len(wrong)]])
        # These two read no weights.
        if not (place == closed["unread"] and case in ("plot mask", "plot training"))
    ]
    driver = [*as_owner, sys.executable, "-c", DRIVER, json.dumps([arguments for _, arguments in asked])]
    # Where a CTranslate2 model of the same weights is kept, nobody needs to read them.
    apart = unmeasured(TFM_CACHE=str(tmp_path / "cache"))
    done = subprocess.run(driver, capture_output=True, text=True, check=True, env=apart)
    for (place, arguments), (code, out, err) in zip(asked, json.loads(done.stdout), strict=True):
        assert (code, out, err.count("\n")) == (2, "", 1), (arguments, err)
        assert str(place) in err, (arguments, err)
        assert err.startswith("error: ")
    assert not (tmp_path / "out").exists()
    assert closed["kept"].read_text() == "old\n"


# --- a full disk --------------------------------------------------------------------------------------------------


def translate_to(output: str, trial: Any, before: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    texts = folder / "texts"
    texts.write_text("ein hund sieht zwei katze\n" * 600)
    translate = [*TFM, "translate", str(trial.run), "-i", str(texts), "-o", output, "--sample", "--scores", "-q"]
    return subprocess.run([*before, *translate], capture_output=True, text=True, cwd=folder, env=unmeasured())


def check_full(result: subprocess.CompletedProcess[str], output: str, says: str) -> None:
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    assert result.stderr == f"error: {output}: {says}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["translate", "score", "evaluate"])
def test_a_full_device_is_named(command: str, trial: Any, tfm: Any) -> None:
    words = [
        word.format(run=trial.run, source=trial.source, reference=trial.reference, place="/dev/full")
        for word in RESULTS[command]
    ]
    outcome = tfm(command, *words, "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "error: /dev/full: No space left on device\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_stdout_is_named(trial: Any) -> None:
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [*TFM, "translate", str(trial.run), "ein", "-q"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (result.returncode, result.stderr) == (1, "error: stdout: No space left on device\n")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["out", pytest.param("out.gz", marks=pytest.mark.slow)])
def test_a_full_disk_keeps_the_old_file_and_leaves_nothing(name: str, trial: Any, tmp_path: Path) -> None:
    """Not the disk, but the size of files is bounded here: any user may do that."""
    (tmp_path / name).write_text("old")
    before = ["bash", "-c", 'ulimit -f 1 && exec "$@"', "-"]
    check_full(translate_to(name, trial, before, tmp_path), name, "File too large")
    assert (tmp_path / name).read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "texts"]


@pytest.mark.slow
def test_a_disk_that_is_really_full(trial: Any, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    script = 'mount -t tmpfs -o size=4k none disk && : > disk/filler && { "$@"; code=$?; ls -A disk >&2; exit $code; }'
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    result = translate_to("disk/out", trial, ["unshare", "--mount", "sh", "-c", script, "-"], tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == "error: disk/out: No space left on device\nfiller\n"


# --- gzip ---------------------------------------------------------------------------------------------------------

READERS = {
    case: words
    for case, words in FILES.items()
    if case.partition(":")[2] in (" data", " input", " source", " reference", " target")
}


@pytest.fixture
def packed(tmp_path: Path) -> dict[str, Path]:
    """Files that are named .gz: no gzip data, half of it, damaged, and bombs of one line and of many."""
    good = gzip.compress(b"ein hund\n" * 1000, mtime=0)
    contents = {
        "text": b"ein hund\n",
        "empty": b"",
        "half": good[: len(good) // 2],
        "damaged": good[:20] + bytes([good[20] ^ 0xFF]) + good[21:],
        "checksum": good[:-5] + bytes([good[-5] ^ 0xFF]) + good[-4:],
        "bomb": gzip.compress(bytes(40_000_000), 9),
        "lines": gzip.compress(b"\n" * 400_000, 9),
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.gz").write_bytes(content)
    return {name: tmp_path / f"{name}.gz" for name in contents}


@pytest.mark.medium
@pytest.mark.parametrize("case", one_of_each([[*map(pytest.param, READERS)][start::4] for start in range(4)]))
def test_bad_gzip_is_refused_in_little_memory(
    case: str, trial: Any, tfm: Any, packed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpora, "COUNTED", 100_000)
    before = tree(tmp_path)
    for kind, path in packed.items():
        if kind == "lines" and case == "translate: input":
            continue  # so many empty lines, translated to as many: nothing is wrong with them
        outcome = tfm(*command(case, READERS[case], trial, path, tmp_path / "out"), "--quiet")
        said = outcome.refused() if outcome.err else ""
        if kind != "empty":  # no bytes at all are an empty text to gzip
            assert str(path) in said, (kind, outcome)
    assert tree(tmp_path) == before


@pytest.mark.medium
def test_a_bomb_takes_no_memory(trial: Any, packed: dict[str, Path]) -> None:
    """An endless line is given up after `LONGEST_LINE`, and a file of empty lines is never held."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from transformer_cli.errors import UserError\n"
        "from transformer_cli.data import corpora\n"
        "from transformer_cli.evaluation import evaluate\n"
        "corpora.COUNTED = 100_000\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for source, reference in ((1, 3), (3, 1), (2, 3), (3, 2)):\n"
        "    try:\n"
        "        evaluate.read_test_set(Path(sys.argv[source]), [Path(sys.argv[reference])])\n"
        "    except UserError as error:\n"
        "        print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    words = [str(packed["bomb"]), str(packed["lines"]), str(trial.source)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    *refused, megabytes = done.stdout.splitlines()
    assert len(refused) == 4
    assert all(f"{lines.LONGEST_LINE:,} bytes" in line for line in refused[:2])
    assert all("over 100,00" in line for line in refused[2:])  # counted no further
    assert int(megabytes) < 100


@pytest.mark.medium
@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="this system has no /dev/zero")
def test_an_endless_line_of_a_stream_is_refused(trial: Any) -> None:
    with open("/dev/zero", "rb") as zeros:
        result = subprocess.run([*TFM, "translate", str(trial.run), "-q"], stdin=zeros, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: stdin:1: the line has more than {lines.LONGEST_LINE:,} bytes")
