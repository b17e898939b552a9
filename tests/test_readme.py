"""Every shell block of the README and of docs/ runs as it stands, in bash, page by page, and does what the page says.

Each run of the tests takes the README, and only the names of commands and options of all other pages; the slow ones run
every page.

`tfm` is the real command line, but for shorter training (`forked_tfm.py`); what needs the hub or a GPU runs until its
config is validated, `pip` and `git` are held against the files they name, `make` of this repository is not run.
"""

import csv
import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.data.test_tmx import memory, unit
from tests.environment import unmeasured
from transformer_cli.cli.app import PANELS, app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TRANSLATED = {"the-transformer.zh.md"}  # its blocks are those of the page that it translates: test_transformer_page.py
PAGES = [README, *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in TRANSLATED)]
SERVER = Path(__file__).parent / "forked_tfm.py"
MULTI30K = {"train": "train", "val": "valid", "test_2016_flickr": "test"}  # its names and ours
DATA = """data:
  source_language: de
  target_language: en
  train: {source: train.de, target: train.en}
  valid: {source: valid.de, target: valid.en}
"""
WITH_MODEL = {  # pages that begin with a model in checkpoints/my
    "alignments.md",
    "api.md",
    "confidence.md",
    "distillation.md",
    "export.md",
    "fine-tuning.md",
    "install.md",
    "protected-text.md",
    "report.md",
    "run-folder.md",
    "seeing-inside.md",
    "serving.md",
    "translating.md",
}
STAND_INS = {  # what `tfm`, and what changes more than its own folder, is in these tests
    "tfm": 'exec "{python}" -IS "{server}" {how} "$@"',
    "make": '[ -e Makefile ] && exec {make} "$@"; exec {make} --dry-run -C "{root}" "$@" >&2',
    "python3": 'case "$*" in "-m venv "*) mkdir -p "$3/bin"; : > "$3/bin/activate";; *) exec "{python}" "$@";; esac',
    "pip": 'echo "pip $*" >> calls.txt',
    "git": 'echo "git $*" >> calls.txt',
    "scontrol": 'echo "scontrol $* beside $(ps -o args= --ppid $PPID | grep -c [f]orked_tfm) tfm" >> calls.txt',
    # The first time, time is up as soon as there is a checkpoint.
    "timeout": 'shift 2; [ -e checkpoints/limited ] && exec "$@"; "$@" & '
    "until [ -e checkpoints/limited/checkpoints.json ]; do sleep 0.05; done; kill -TERM $!; wait $!",
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def scripts(page: Path) -> Iterator[str]:
    """The page's shell blocks, and what puts its Makefile and runs its crontab, in order."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(sh|make|crontab)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if language == "sh":
            yield block
        elif language == "make":
            yield f"cat > Makefile << 'END OF FILE'\n{block}END OF FILE\n"
        else:
            for line in block.splitlines():
                yield f'env -i HOME="$HOME" /bin/sh -c {shlex.quote(line.split(maxsplit=5)[5])}\n'


@pytest.fixture(scope="module")
def socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the server of `tfm` listens."""
    path = tmp_path_factory.mktemp("server") / "socket"
    with subprocess.Popen(
        [sys.executable, SERVER, "serve", path], stdout=subprocess.PIPE, text=True, env=unmeasured()
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        yield path
        server.terminate()


@pytest.fixture(scope="module")
def stand_ins(socket: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of programs that come before all others."""
    return write_stand_ins(tmp_path_factory.mktemp("bin"), f'run "{socket}"')


def write_stand_ins(folder: Path, how: str) -> Path:
    names = {"python": sys.executable, "server": SERVER, "how": how, "make": shutil.which("make"), "root": ROOT}
    for name, command in STAND_INS.items():
        (folder / name).write_text("#!/bin/sh\n" + command.format_map(names) + "\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def trained(stand_ins: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name, and one small model."""
    folder = tmp_path_factory.mktemp("trained")
    for split in MULTI30K.values():
        for language in ("de", "en"):
            text = (ROOT / "data" / "sample" / f"{split}.{language}").read_bytes()
            few = b"".join(text.splitlines(keepends=True)[: {"train": 400, "valid": 24, "test": 8}[split]])
            (folder / f"{split}.{language}").write_bytes(few)
    sides = [(folder / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("de", "en")]
    units = "".join(unit(*pair) for pair in zip(*sides, strict=True))
    (folder / "memory.tmx").write_text(memory(units).replace('srclang="en"', 'srclang="de"'), encoding="utf-8")
    with open(folder / "sentences.csv", "w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows([("de", "en"), *zip(*sides, strict=True)])
    (folder / "multi30k").mkdir()
    for name, split in MULTI30K.items():
        for language in ("de", "en"):
            content = gzip.compress((folder / f"{split}.{language}").read_bytes())
            (folder / "multi30k" / f"{name}.{language}.gz").write_bytes(content)
    for programs in ("configs", "data/sample/make"):  # pages run from the repository's folder
        shutil.copytree(ROOT / programs, folder / programs)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "tfm").symlink_to(stand_ins / "tfm")
    (folder / "my.yaml").write_text(DATA + "  test: {source: test.de, target: test.en}\n", encoding="utf-8")
    run_script("SAVE_EVERY=1 tfm train my.yaml --quiet", folder, stand_ins)  # some helps ask for five checkpoints
    swapped = re.sub(r"\{source: (\S+), target: (\S+)\}", r"{source: \2, target: \1}", DATA)
    swapped = swapped.replace(
        "source_language: de\n  target_language: en", "source_language: en\n  target_language: de"
    )
    (folder / "reverse.yaml").write_text(swapped, encoding="utf-8")
    run_script("tfm train reverse.yaml --quiet", folder, stand_ins)  # what text in one language is translated by
    more = (ROOT / "data" / "sample" / "train.en").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "news.en").write_text("".join(more[400:430]), encoding="utf-8")
    for split, name in (("train", "domain"), ("valid", "domain-valid")):
        for language in ("de", "en"):
            shutil.copy(folder / f"{split}.{language}", folder / f"{name}.{language}")
    return folder


def prepare(page: Path, trained: Path, folder: Path, script: str = "") -> Path:
    """A copy of `trained` as the page expects it, with the models that are there before it begins.

    script: an example of a help, which has to itself every model and config that it names and does not make.
    """
    shutil.copytree(trained, folder, symlinks=True)
    (folder / "translator").symlink_to(folder)
    model, reverse = ((folder / "checkpoints" / name).rename(folder / f"a-{name}") for name in ("my", "reverse"))
    names = {"shell.md": {"my", "back"}}.get(page.name, {"my"} if page.name in WITH_MODEL else set())
    named, made = (set(re.findall(f"{before}checkpoints/([A-Za-z0-9_]+)", script)) for before in ("", "--out "))
    names |= named - made
    for name in names:
        shutil.copytree(reverse if name == "reverse" else model, folder / "checkpoints" / name)
        if name == "run":
            rename_steps(folder / "checkpoints" / name, {5: 9000, 6: 10000})
    for name in re.findall(r" ([a-z]+\.yaml)", script):
        (folder / name).write_bytes((folder / "my.yaml").read_bytes())
    for name in set(re.findall(r"\brun\d\b", script)):
        shutil.copytree(model, folder / name)
    for name in {"one.en", "other.en"} & set(script.split()):  # translations
        (folder / name).write_bytes((folder / "test.en").read_bytes())
    if "tfm import" in page.read_text(encoding="utf-8") and page != README:
        from transformer_cli.export.huggingface import export_huggingface
        from transformer_cli.storage.run_folder import find_model

        export_huggingface(find_model(model), folder / "opus-mt-de-en", verify=False)
    if page == README:
        (folder / "my.yaml").write_text(blocks(page, "yaml")[0], encoding="utf-8")
    return folder


def rename_steps(run: Path, names: dict[int, int]) -> None:
    index = run / "checkpoints.json"
    text = index.read_text(encoding="utf-8")
    for old, new in names.items():
        (run / f"step-{old:08d}").rename(run / f"step-{new:08d}")
        text = re.sub(rf"\b{old}\b(?!\.)", str(new), text)
    index.write_text(text, encoding="utf-8")


def run_script(script: str, folder: Path, stand_ins: Path) -> str:
    """Run a script in bash, any failing line of it a failure; returns its stdout. /tmp is a folder of the place."""
    script = script.replace("/tmp/", f"{folder}/tmp/")
    path = os.pathsep.join([str(stand_ins), str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{script}\nleft with {done.returncode}: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.slow
def test_the_recipes_run_with_a_process_of_its_own_for_each_command(trained: Path, tmp_path: Path) -> None:
    """As below, but nothing is forked: each `tfm` starts and ends as the user's does."""
    (tmp_path / "bin").mkdir()
    programs = write_stand_ins(tmp_path / "bin", "start")
    place = prepare(ROOT / "docs" / "shell.md", trained, tmp_path / "place")
    (place / ".venv" / "bin" / "tfm").unlink()
    (place / ".venv" / "bin" / "tfm").symlink_to(programs / "tfm")
    check_shell(place, [run_script(script, place, programs) for script in scripts(ROOT / "docs" / "shell.md")])


@pytest.mark.medium
@pytest.mark.filterwarnings(
    "ignore:Recommended. pip install sacremoses"
)  # of no use to tfm's models: transformers' own
@pytest.mark.parametrize(
    "page",
    [page if page == README else pytest.param(page, marks=pytest.mark.slow) for page in PAGES],
    ids=lambda page: page.name,
)
def test_every_block_of_a_page_runs(
    page: Path,
    trained: Path,
    stand_ins: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In the page's order, each on what those before it made."""
    needed = {
        word for word in ("curl", "jq", "flock", "xz") if re.search(rf"\b{word} ", page.read_text(encoding="utf-8"))
    }
    missing = [word for word in needed if shutil.which(word) is None]
    if missing:
        pytest.skip(f"{page.name} uses {', '.join(missing)}, which this machine lacks")
    if page.name == "cli.md":
        for number, script in enumerate(scripts(page)):
            ended = r"\1 --port 0 & sleep 5; kill $!; wait $! || [ $? = 143 ]"  # a server does not end by itself
            script = re.sub(r"^(tfm serve .*)$", ended, script, flags=re.MULTILINE)
            run_script(script, prepare(page, trained, tmp_path / str(number), script), stand_ins)
        return
    place = prepare(page, trained, tmp_path / "place")
    said = [run_script(script, place, stand_ins) for script in scripts(page)]
    monkeypatch.chdir(place)
    names: dict[str, object] = {}  # a page's programs go on where the one before ended
    for program in blocks(page, "python"):
        capfd.readouterr()
        exec(compile(program, page.name, "exec"), names)
        assert capfd.readouterr().out.count("\n") >= program.count("print(")
    check_calls(place / "calls.txt")
    if page.name in CHECKS:
        CHECKS[page.name](place, said)


@pytest.fixture(scope="module")
def whole() -> Any:
    return get_command(app)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_of_a_page_is_there(page: Path, whole: Any) -> None:
    text = re.sub(r"(^|\s)#.*", "", "\n".join(scripts(page)).replace("\\\n", " "), flags=re.MULTILINE)
    for call in re.findall(r"\btfm ([a-z][^|;&()\n]*)", text):
        command = whole
        words = call.split()
        while hasattr(command, "commands"):
            assert words[0] in command.commands, call
            command = command.commands[words.pop(0)]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        named = {word.partition("=")[0] for word in words if re.match(r"-[a-z]$|--[a-z]", word)}
        assert named <= known | {"--help"}, call


def check_calls(path: Path) -> None:
    """The constraints and the extras that `pip` is given are there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for call in path.read_text("utf-8").splitlines() if path.exists() else []:
        if call.startswith("pip "):
            assert (ROOT / re.findall(r"-c (\S+)", call)[0]).is_file()
            extras = {extra for found in re.findall(r"\[(.*?)\]", call) for extra in found.split(",")}
            assert extras <= set(project["optional-dependencies"])


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def check_readme(place: Path, said: list[str]) -> None:
    assert len(lines(place / "translated.en")) == 8
    assert (place / "demo" / "model" / "checkpoints.json").is_file()


def check_first_afternoon(place: Path, said: list[str]) -> None:
    """One key is changed, and nothing else; both models are compared on the same sentences."""
    one, other = (lines(place / "demo" / run / "config.yaml") for run in ("model", "one-head"))
    changed = [(before.split(), after.split()) for before, after in zip(one, other, strict=True) if before != after]
    assert changed == [(["heads:", "4"], ["heads:", "1"])]
    assert all(
        (place / name).is_file() for name in ("training.png", "attention.png", "heads.png", "mask.png", "both.png")
    )
    assert sum("BLEU" in text for text in said) == 2


def check_run_folder(place: Path, said: list[str]) -> None:
    """What is said of copies and of --fresh."""
    assert not list((place / "de-en").glob("training.*"))
    assert (place / "checkpoints" / "my.1" / "checkpoints.json").is_file()
    assert json.loads(said[0].split("\n", 2)[2])["last"] == 6


def check_shell(place: Path, said: list[str]) -> None:
    """What the recipes promise of their results."""
    sources = lines(place / "test.de")
    assert [row.split("\t")[0] for row in lines(place / "side-by-side.tsv")] == sources
    assert all(len(row.split("\t")) == 3 for row in lines(place / "translated.tsv"))
    assert len(lines(place / "translated.jsonl")) == len(lines(place / "reranked.en")) == len(sources)
    assert len(lines(place / "n-best.tsv")) == 5 * len(sources)
    assert len(lines(place / "answers.en")) == 2
    assert "no translation today: checkpoints/no-such-model: no such folder" in "".join(said)
    assert len(lines(place / "clean.de")) == len(lines(place / "clean.en")) == 360
    assert sorted(
        lines(place / "clean.de") + [row.split("\t")[1] for row in lines(place / "by-score.tsv")[:40]]
    ) == sorted(lines(place / "train.de"))
    assert "out of time; continuing\n" in said
    assert any(text.endswith("exited with code 143\n") for text in said)


CHECKS = {
    "README.md": check_readme,
    "first-afternoon.md": check_first_afternoon,
    "run-folder.md": check_run_folder,
    "shell.md": check_shell,
}


@pytest.mark.slow
def test_a_queued_job_is_put_back_where_its_time_ends(trained: Path, stand_ins: Path, tmp_path: Path) -> None:
    """The batch script of docs/shell.md: SIGTERM to the script saves, leaves with 143 and asks for another turn."""
    place = prepare(ROOT / "docs" / "shell.md", trained, tmp_path / "place")
    block = next(block for block in blocks(ROOT / "docs" / "shell.md", "sh") if "#SBATCH" in block)
    script = block.replace("checkpoints/queued", "checkpoints/stopped").replace("bash train.sbatch\n", "")
    run_script(script, place, stand_ins)
    environment = {**os.environ, "PATH": f"{stand_ins}{os.pathsep}{os.environ['PATH']}", "SLURM_JOB_ID": "17"}
    for expected in (128 + signal.SIGTERM, 0):
        with subprocess.Popen(["bash", "train.sbatch"], cwd=place, env=environment) as job:
            while not (place / "checkpoints" / "stopped" / "checkpoints.json").exists():
                time.sleep(0.05)
            if expected:
                job.send_signal(signal.SIGTERM)
            assert job.wait(60) == expected
    assert lines(place / "calls.txt") == ["scontrol requeue 17 beside 0 tfm"]


# --- the README ---------------------------------------------------------------------------------------------------


def commands() -> list[str]:
    """The README's shell commands, in order, without comments."""
    found = "\n".join(blocks(README, "sh")).replace("\\\n", " ").splitlines()
    return [" ".join(line.partition(" #")[0].split()) for line in found if line and not line.startswith("#")]


def test_every_command_of_tfm_is_in_the_table_and_shown_on_some_page() -> None:
    table = re.findall(r"^\|[^|]*\| `tfm ([a-z-]+)[ `]", README.read_text(encoding="utf-8"), re.MULTILINE)
    shown = "\n".join(block for page in PAGES if page.name != "cli.md" for block in blocks(page, "sh"))
    assert sorted(table) == sorted(get_command(app).commands)  # type: ignore[attr-defined]
    assert set(table) <= set(re.findall(r"\btfm ([a-z-]+)", shown))


def test_the_table_has_the_groups_of_the_help() -> None:
    groups = re.findall(r"^\| ([a-z ]+) \| `tfm ", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert groups == [panel.lower() for panel in PANELS]


def test_the_config_shown_is_the_data_and_a_preset() -> None:
    """No validation data: it is taken from the training data."""
    assert "five lines, `my.yaml`" in " ".join(README.read_text(encoding="utf-8").split())
    data = "".join(line for line in DATA.splitlines(keepends=True) if "valid" not in line)
    assert blocks(README, "yaml")[0] == data + "model: {preset: auto}\n"


def test_the_folders_shown_are_there() -> None:
    tree = re.findall(r"^([a-z_]+)/ {2,}", "\n".join(blocks(ROOT / "CONTRIBUTING.md", "text")), re.MULTILINE)
    assert len(tree) >= 7
    assert all((ROOT / folder).is_dir() for folder in tree)


def test_the_first_translation_is_on_the_first_screen() -> None:
    """Install, demo, translation: nothing else comes before."""
    names = [shlex.split(command)[:2] for command in commands()]
    assert [name[0] for name in names[:4]] == ["python3", "source", "pip", "pip"]
    assert names[4:6] == [["tfm", "demo"], ["tfm", "translate"]]
    text = README.read_text(encoding="utf-8")
    assert text[: text.index("tfm translate demo/model")].count("\n") < 50
    assert text.count("\n") < 140


@pytest.mark.slow  # in each run of CI the README's page does so
def test_the_demo_runs(trained: Path, stand_ins: Path, tmp_path: Path) -> None:
    """What `make demo` runs, in its words, but for a shorter training."""
    place = prepare(README, trained, tmp_path / "place")
    recipe = subprocess.run(["make", "-n", "-C", str(ROOT), "demo"], capture_output=True, text=True, check=True).stdout
    steps = [line.split("/bin/", 1)[1] for line in recipe.splitlines() if "/tfm " in line or " transformer_cli" in line]
    assert steps
    run_script("\n".join(steps), place, stand_ins)
