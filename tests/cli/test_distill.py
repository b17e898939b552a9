"""`tfm distill`: N pairs in, N pairs out, in order; whole, in pieces or interrupted, the same files."""

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.chrf import CHRF

from transformer_cli.data.corpora import TextCorpus
from transformer_cli.decoding import devices
from transformer_cli.jobs import shards as sharding

TFM = [sys.executable, "-m", "transformer_cli"]
PAIRS = 13


@pytest.fixture
def place(tmp_path: Path, trial: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the trial's first pairs, a config of them, and shards of five pairs."""
    monkeypatch.setattr(sharding, "SHARD_LINES", 5)
    monkeypatch.chdir(tmp_path)
    for language in ("de", "en"):
        lines = (trial.folder / f"train.{language}").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"few.{language}").write_text("".join(lines[:PAIRS]), encoding="utf-8")
    text = trial.config.read_text(encoding="utf-8")
    for language in ("de", "en"):
        text = text.replace(f"{trial.folder}/train.{language}", f"few.{language}")
    (tmp_path / "my.yaml").write_text(text, encoding="utf-8")
    return tmp_path


def pairs(folder: Path, ending: str = "") -> list[tuple[str, str]]:
    return list(TextCorpus(folder / f"train.de{ending}", folder / f"train.en{ending}").pairs())


def few(place: Path) -> list[tuple[str, str]]:
    return list(TextCorpus(place / "few.de", place / "few.en").pairs())


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_targets_are_what_the_teacher_writes(trial: Any, tfm: Any, place: Path) -> None:
    before = sorted(place.iterdir())
    done = tfm("distill", trial.run, "my.yaml", "--out", "made/here", "--beam", 2)
    assert (done.code, done.out) == (0, "--set 'data.train={source: made/here/train.de, target: made/here/train.en}'\n")
    assert f"translated: {PAIRS} lines in" in done.err
    expected = tfm("translate", trial.run, "-i", "few.de", "--beam", 2, "--quiet").out.splitlines()
    assert pairs(place / "made" / "here") == [
        (source, target) for (source, _), target in zip(few(place), expected, strict=True)
    ]
    assert sorted(files(place / "made" / "here")) == ["manifest.json", "recipe.json", "train.de", "train.en"]
    assert sorted(place.iterdir()) == [*before[:2], place / "made", *before[2:]]
    assert [path.name for path in (place / "made").iterdir()] == ["here"]


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("few.csv", "few.parquet", "folder")]


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["few.tsv", "few.jsonl", *SLOW])
def test_every_kind_of_source_gives_the_same_files(kind: str, trial: Any, tfm: Any, place: Path) -> None:
    columns = {"de": [source for source, _ in few(place)], "en": [target for _, target in few(place)]}
    source = f"{{file: {kind}}}"
    if kind in ("few.parquet", "folder"):
        datasets = pytest.importorskip("datasets")
        path = place / ("folder/train.parquet" if kind == "folder" else kind)
        path.parent.mkdir(exist_ok=True)
        datasets.Dataset.from_dict(columns).to_parquet(path)
        source = "{dataset: folder, split: train}" if kind == "folder" else source
    else:
        with open(kind, "w", newline="", encoding="utf-8") as file:
            if kind.endswith("jsonl"):
                file.writelines(json.dumps({"de": de, "en": en}) + "\n" for de, en in few(place))
            else:
                rows = csv.writer(file, delimiter="," if kind.endswith("csv") else "\t", lineterminator="\n")
                rows.writerows([("de", "en"), *few(place)])
    for name, change in (("of-text", []), ("of-kind", ["--set", f"data.train={source}"])):
        done = tfm("distill", trial.run, "my.yaml", "--out", name, "--greedy", *change)
        assert done.code == 0, done.err
    of_text, of_kind = files(place / "of-text"), files(place / "of-kind")
    assert [of_text[name] for name in ("train.de", "train.en")] == [of_kind[name] for name in ("train.de", "train.en")]


@pytest.mark.medium
def test_interrupted_and_resumed_is_uninterrupted(
    trial: Any, tfm: Any, place: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["distill", trial.run, "my.yaml", "--beam", 2, "--best-of", 2, "--out"]
    assert tfm(*run, "whole").code == 0
    keep = sharding.Parts.keep

    def interrupted(self: sharding.Parts, name: str, *content: Any) -> None:
        if name.startswith("000002"):
            raise KeyboardInterrupt
        keep(self, name, *content)

    with monkeypatch.context() as patch:
        patch.setattr(sharding.Parts, "keep", interrupted)
        assert tfm(*run, "out").code == 130
    assert not (place / "out").exists()
    assert len(list((place / "out.parts").iterdir())) == 3  # two parts and the recipe
    for change, said in ((["--gzip"], "another files;"), (["--no-guard"], "guard True (now False);")):
        assert f"out.parts: was made with {said}" in tfm(*run, "out", *change).refused()
    translated.clear()
    done = tfm(*run, "out")
    assert done.code == 0, done.err
    assert translated == [source for source, _ in few(place)[10:]]
    assert f"translated: {PAIRS} lines (10 of them before) in" in done.err
    assert files(place / "out") == files(place / "whole")
    assert not (place / "out.parts").exists()


def test_a_finished_one_says_so_and_another_is_refused(
    trial: Any, tfm: Any, place: Path, translated: list[str]
) -> None:
    run = ["distill", trial.run, "my.yaml", "--out", "out", "--greedy"]
    first = tfm(*run)
    translated.clear()
    shutil.copytree("out", "out.parts", ignore=lambda *_: ["train.de"])  # as if a kill had come in between
    sharding.Parts(place / "out").keep("000000-" + "0" * 32, ["x"], Counter())
    for name in ("train.en", "manifest.json"):
        (place / "out.parts" / name).unlink()
    again = tfm(*run)
    assert (again.code, again.out) == (0, first.out)
    assert again.err == "out: is finished; nothing is left to do\n"
    assert not (place / "out.parts").exists()
    before = files(place / "out")
    for changed, said in (
        (["distill", trial.run / "step-00000002", *run[2:]], "another teacher"),
        ([*run, "--no-protect"], "protect True (now False)"),
        ([*run, "--with-original"], "with_original False (now True)"),
        ([*run[:-1], "--beam", 2], "beam_size default (now 2), method greedy (now default)"),
        ([*run, "--set", "data.train={source: few.en, target: few.de}"], "another data.train"),
    ):
        assert f"out: was made with {said}; give the same command as then" in tfm(*changed).refused()
    lines = (place / "few.en").read_text()
    (place / "few.en").write_text(lines.replace("one", "two", 1))
    assert "another data.train" in tfm(*run).refused()
    assert files(place / "out") == before
    assert translated == []


def test_shares_of_several_machines_joined_are_the_whole(
    trial: Any, tfm: Any, place: Path, translated: list[str]
) -> None:
    """Each has a disk of its own; their parts are copied together."""
    run = ["distill", trial.run, "my.yaml", "--greedy", "--out"]
    assert tfm(*run, "whole").code == 0
    for number in (1, 2):
        translated.clear()
        done = tfm(*run, f"machine-{number}/out", "--shard", f"{number}/2")
        assert (done.code, done.out) == (0, ""), done.err
        assert len(translated) == {1: 8, 2: 5}[number]
        assert f"{3 - len(translated) // 4} of 3 parts are still missing" in done.err
        shutil.copytree(f"machine-{number}/out.parts", "out.parts", dirs_exist_ok=True)
    translated.clear()
    done = tfm(*run, "out")
    assert done.code == 0, done.err
    assert translated == []
    assert files(place / "out") == files(place / "whole")


def test_ranks_share_the_data_and_the_first_joins_them(
    trial: Any, tfm: Any, place: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["distill", trial.run, "my.yaml", "--greedy", "--out"]
    assert tfm(*run, "whole").code == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        translated.clear()
        monkeypatch.setenv("RANK", rank)
        done = tfm(*run, "out")
        assert done.code == 0, done.err
        assert len(translated) == {"0": 8, "1": 5}[rank]
        assert (place / "out").exists() is (rank == "0")
        assert bool(done.out) is (rank == "0")
    assert files(place / "out") == files(place / "whole")
    assert "--shard and torchrun exclude each other" in tfm(*run, "other", "--shard", "1/2").refused()


def test_empty_sides_stay_in_their_places(trial: Any, tfm: Any, place: Path) -> None:
    (place / "few.de").write_text("ein hund\n\nzwei\n \n", encoding="utf-8")
    (place / "few.en").write_text("one dog\none\n\ntwo\n", encoding="utf-8")
    done = tfm("distill", trial.run, "my.yaml", "--out", "out", "--best-of", 2, "--with-original", "--gzip")
    assert done.code == 0, done.err
    made = pairs(place / "out", ".gz")
    assert [source for source, _ in made] == ["ein hund", "", "zwei", " "] * 2
    assert [bool(target) for _, target in made] == [True, False, True, False, True, True, False, True]
    assert made[4:] == few(place)
    assert "warning: 5 pairs have an empty side" in done.err
    assert "train.de.gz, target: out/train.en.gz}'" in done.out


def test_best_of_takes_what_is_most_like_the_reference(trial: Any, tfm: Any, place: Path) -> None:
    """Of the n-best of `tfm translate`."""
    assert tfm("distill", trial.run, "my.yaml", "--out", "out", "--best-of", 3).code == 0
    rows = tfm("translate", trial.run, "-i", "few.de", "--n-best", 3, "--quiet").out.splitlines()
    found = [row.split("\t")[1] for row in rows]
    others = 0
    for place_, ((_, reference), (_, target)) in enumerate(zip(few(place), pairs(place / "out"), strict=True)):
        texts = found[3 * place_ : 3 * place_ + 3]
        scores = [round(CHRF().sentence_score(text, [reference]).score, 6) for text in texts]
        assert scores[texts.index(target)] == max(scores)
        others += target != texts[0]
    assert others, "in no line anything but the best was chosen"


@pytest.mark.slow  # by default docs/distillation.md shows it
def test_a_student_trains_on_it(trial: Any, tfm: Any, place: Path) -> None:
    printed = tfm("distill", trial.run, "my.yaml", "--out", "it's made", "--greedy", "--jobs", 1).out
    smaller = ["--set", "training.max_steps=2", "--set", "vocabulary={tokenizer: whitespace}"]
    done = tfm("train", "my.yaml", "--out", "run", *smaller, *shlex.split(printed), "--device", "cpu")
    assert done.code == 0, done.err
    assert "it's made/train.de" in (place / "run" / "config.yaml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "3/2"], "--shard 3/2: write it as I/N"),
        (["--shard", "0/2"], "--shard 0/2: write it as I/N"),
        (["--shard", "x"], "--shard x: write it as I/N"),
        (["--beam", 2, "--greedy"], "--beam and --greedy exclude each other"),
        (["--greedy", "--best-of", 2], "--best-of and --greedy exclude each other"),
        (["--mbr", 2, "--best-of", 2], "--best-of and --mbr exclude each other"),
        (["--beam", 2, "--best-of", 3], "--best-of 3: --beam 2 finds fewer"),
        (["--top-k", 3], "--top-k: belongs to --sample"),
        (["--engine", "marian"], "no engine 'marian'"),
        (["--out", "few.de"], "few.de: is not a folder"),
        (["--out", "taken"], "taken: does not hold"),
        (["--set", "data.target_language=fr"], "translates de into en, but the config de into fr"),
        (["--set", "data.train={source: few.de, target: long.en}"], "long.en:14: has no counterpart"),
        (["--set", "data.train={source: none.de, target: few.en}"], "none.de: no such file"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_trace(
    arguments: list[object], message: str, trial: Any, tfm: Any, place: Path
) -> None:
    (place / "taken").mkdir()
    (place / "taken" / "mine").write_text("")
    (place / "long.en").write_text("x\n" * (PAIRS + 1))
    before = sorted(place.rglob("*"))
    out = [] if "--out" in arguments else ["--out", "out"]
    assert message in tfm("distill", trial.run, "my.yaml", *out, *arguments).refused()
    assert sorted(place.rglob("*")) == before


def test_the_folder_is_named_after_the_config(trial: Any, tfm: Any, place: Path) -> None:
    assert "data/my-distilled/train.de" in tfm("distill", trial.run, "my.yaml", "--greedy").out
    assert pairs(place / "data" / "my-distilled")


def test_data_that_changes_meanwhile_is_refused(
    trial: Any, tfm: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = sharding.Parts.keep

    def changing(self: sharding.Parts, name: str, *content: Any) -> None:
        (place / "few.en").write_text("x\n" * PAIRS)
        keep(self, name, *content)

    monkeypatch.setattr(sharding.Parts, "keep", changing)
    done = tfm("distill", trial.run, "my.yaml", "--greedy", "--out", "out")
    assert done.code == 2
    assert "changed while it was translated" in done.err.splitlines()[-1]
    assert not (place / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("spot", ["before-fsync", "after-fsync", "after-rename"])
def test_a_kill_while_it_is_published_loses_nothing(spot: str, trial: Any, place: Path) -> None:
    """True processes, two jobs of them, through the real entry."""
    run = [*TFM, "distill", str(trial.run), "my.yaml", "--greedy", "--jobs", "2", "--out"]
    subprocess.run([*run, "whole"], check=True, capture_output=True)
    killed = subprocess.run([*run, "out"], env={**os.environ, "TFM_FAILPOINT": spot}, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    done = subprocess.run([*run, "out"], capture_output=True, text=True, check=True)
    assert done.stdout == "--set 'data.train={source: out/train.de, target: out/train.en}'\n"
    assert files(place / "out") == files(place / "whole")
    assert not [path for path in place.iterdir() if path.name.startswith((".", "out."))]


def test_a_teacher_on_another_kind_of_device_is_another_recipe(
    trial: Any, tfm: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_gpu", lambda: False)
    run = ["distill", trial.run, "my.yaml", "--out", "out", "--greedy"]
    assert tfm(*run).code == 0
    assert "device auto (now cpu)" in tfm(*run, "--device", "cpu").refused()
