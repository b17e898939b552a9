"""`tfm backtranslate`: text becomes targets, what a model of the other direction writes of it sources, in order."""

import gzip
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from transformer_cli.config import load_config
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.jobs import shards as sharding

TFM = [sys.executable, "-m", "transformer_cli"]
KEEP = ["--keep", "too_long", "--keep", "length_ratio", "--keep", "repetition"]  # the trial's model is not trained
LINES = 13


@pytest.fixture
def place(tmp_path: Path, trial: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the text of some pairs, a config of the other direction, and shards of five lines."""
    monkeypatch.setattr(sharding, "SHARD_LINES", 5)
    monkeypatch.chdir(tmp_path)
    lines = dict.fromkeys((trial.folder / "train.de").read_text(encoding="utf-8").splitlines())
    held_out = trial.source.read_text(encoding="utf-8").splitlines()
    few = [line for line in lines if line not in held_out and len(line.split()) > 3][:LINES]
    assert len(few) == LINES
    (tmp_path / "few.de").write_text("".join(f"{line}\n" for line in few), encoding="utf-8")
    text = trial.config.read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    for split in ("train", "valid"):
        files = tree["data"][split]
        files["source"], files["target"] = files["target"], files["source"]
    tree["data"] |= {"source_language": "en", "target_language": "de"}
    (tmp_path / "forward.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    return tmp_path


def pairs(folder: Path, ending: str = "") -> list[tuple[str, str]]:
    return list(TextCorpus(folder / f"train.en{ending}", folder / f"train.de{ending}").pairs())


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def sources(printed: str) -> Any:
    """The list of sources that a printed option sets."""
    option, value = shlex.split(printed)
    assert option == "--set"
    return yaml.safe_load(value.removeprefix("data.train="))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_sources_are_what_the_model_writes_and_targets_the_text(trial: Any, tfm: Any, place: Path) -> None:
    before = sorted(place.iterdir())
    done = tfm("backtranslate", trial.run, "--input", "few.de", "--out", "made/here", "--beam", 2, *KEEP)
    assert (done.code, done.out) == (0, "{source: made/here/train.en, target: made/here/train.de, tag: <bt>}\n"), done
    for said in (
        f"warning: {trial.run}: its run has nothing that tells its languages apart",
        f"few.de: {LINES} lines; left out: none\n",
        f"translated: {LINES} lines in",
        f"{LINES} translations; left out: none; scores: ",
        f"made/here: {LINES} pairs\n",
        "with --config CONFIG, all of the list is printed",
    ):
        assert said in done.err
    written = tfm("translate", trial.run, "-i", "few.de", "--beam", 2, "--quiet").out.splitlines()
    assert pairs(place / "made" / "here") == list(zip(written, lines(place / "few.de"), strict=True))
    assert sorted(files(place / "made" / "here")) == ["manifest.json", "recipe.json", "train.de", "train.en"]
    assert sorted(place.iterdir()) == sorted([*before, place / "made"])
    assert [path.name for path in (place / "made").iterdir()] == ["here"]


def test_a_config_gives_the_whole_list_and_its_valid_is_left_out(trial: Any, tfm: Any, place: Path) -> None:
    text = lines(place / "few.de")
    (place / "own.de").write_text("".join(f"{line}\n" for line in text[:6]))
    (place / "own.en").write_text("a\n" * 6)
    shutil.copy(place / "few.de", place / "more.de")
    (place / "more.de").write_text("\n".join([text[6].upper(), "", "hund haus .", *text, text[7]]))
    (place / "mine").write_text(f"{text[8]}\n")
    valid = ["--exclude", "mine", "--config", "forward.yaml"]
    tree = yaml.safe_load((place / "forward.yaml").read_text())
    tree["data"]["valid"] = tree["data"]["test"] = {"source": "own.en", "target": "own.de"}
    (place / "forward.yaml").write_text(yaml.safe_dump(tree))
    inputs = ["-i", "more.de", "-i", trial.source]
    done = tfm("backtranslate", trial.run, *inputs, "--out", "made", "--greedy", *KEEP, *valid)
    assert done.code == 0, done.err
    assert f"more.de and {trial.source}: 23 lines; left out: 1 empty, 13 in valid or test, or nearly, 2 repeated" in (
        done.err
    )
    assert [target for _, target in pairs(place / "made")] == [text[6].upper(), "hund haus .", text[7], *text[9:]]
    assert sources(done.out) == [
        {"source": f"{trial.folder}/train.en", "target": f"{trial.folder}/train.de"},
        {"source": "made/train.en", "target": "made/train.de", "tag": "<bt>"},
    ]


def test_a_model_trains_on_the_setting_that_is_printed(trial: Any, tfm: Any, place: Path) -> None:
    """Whose tag becomes a symbol of its vocabulary; the same command again prints the same."""
    run = ["backtranslate", trial.run, "-i", "few.de", "--out", "it's made", *KEEP, "--greedy", "--config"]
    printed = tfm(*run, "forward.yaml").out
    done = tfm("train", "forward.yaml", "--out", "run", *shlex.split(printed), "--device", "cpu")
    assert done.code == 0, done.err
    config = load_config(place / "run" / "config.yaml")
    assert [source.tag for source in config.data.sources.values()] == [None, "<bt>"]
    assert config.vocabulary.symbols == ["<bt>"]
    assert sources(tfm(*run, "run/config.yaml").out) == sources(printed)


def test_what_is_filtered_leaves_whole_pairs_out_and_is_counted(trial: Any, tfm: Any, place: Path) -> None:
    run = ["backtranslate", trial.run, "-i", "few.de", "--greedy", *KEEP]
    assert tfm(*run, "--out", "all").code == 0
    rows = tfm("translate", trial.run, "-i", "few.de", "--greedy", "--scores", "-q").out.splitlines()
    scores = [float(row.split("\t")[1]) for row in rows]
    bound = sorted(scores)[4] + 1e-4
    done = tfm(*run, "--out", "some", "--min-score", bound)
    assert done.code == 0, done.err
    assert f"{LINES} translations; left out: 5 low_score; scores: " in done.err
    expected = [pair for pair, score in zip(pairs(place / "all"), scores, strict=True) if score >= bound]
    assert pairs(place / "some") == expected
    assert len(expected) == LINES - 5
    none = tfm(*run, "--out", "none", "--min-score", 0)
    assert none.code == 2
    assert (
        "none: no pair is left (13 translations; left out: 13 low_score); delete none.parts"
        in none.err.splitlines()[-1]
    )
    assert not (place / "none").exists()


def test_interrupted_and_resumed_is_uninterrupted_and_sampling_draws_the_same(
    trial: Any, tfm: Any, place: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With filters that leave out pairs of parts that were there before."""
    drawn = ["-i", "few.de", "--sample", "--seed", 3]
    scores = [float(row.split("\t")[1]) for row in tfm("translate", trial.run, *drawn, "--scores").out.splitlines()]
    score = f"--min-score={sorted(scores)[LINES // 2]}"
    run = ["backtranslate", trial.run, *drawn, "--gzip", *KEEP, score, "--out"]
    assert tfm(*run, "whole").code == 0
    assert 0 < len(pairs(place / "whole", ".gz")) < LINES
    keep = sharding.Parts.keep

    def interrupted(self: sharding.Parts, name: str, *content: Any) -> None:
        if name.startswith("000002"):
            raise KeyboardInterrupt
        keep(self, name, *content)

    with monkeypatch.context() as patch:
        patch.setattr(sharding.Parts, "keep", interrupted)
        assert tfm(*run, "out").code == 130
    assert not (place / "out").exists()
    for change, said in (
        (["--keep", "wrong_language"], "another keep;"),
        (["--max-ratio", 3], "max_ratio 2.0 (now 3.0);"),
        (["--seed", 4], "seed 3 (now 4);"),
        (["--exclude", "few.de"], "another input;"),
    ):
        refused = tfm(*run, "out", *change)
        assert refused.code == 2
        assert f"out.parts: was made with {said}" in refused.err or "no line is left" in refused.err
    translated.clear()
    done = tfm(*run, "out")
    assert done.code == 0, done.err
    assert translated == lines(place / "few.de")[10:]
    assert files(place / "out") == files(place / "whole")
    assert not (place / "out.parts").exists()
    assert tfm(*run, "other", "--seed", 4).code == 0
    assert pairs(place / "other", ".gz") != pairs(place / "whole", ".gz")
    again = tfm(*run, "out")
    assert (again.code, again.out) == (0, done.out)
    assert "out: is finished; nothing is left to do\n" in again.err
    assert "lines; left out" not in again.err


def test_shares_of_several_machines_joined_are_the_whole(
    trial: Any, tfm: Any, place: Path, translated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["backtranslate", trial.run, "-i", "few.de", "--sample", *KEEP, "--out"]
    assert tfm(*run, "whole").code == 0
    for number in (1, 2):
        translated.clear()
        done = tfm(*run, "out", "--shard", f"{number}/2")
        assert (done.code, done.out) == (0, ""), done.err
        assert len(translated) == {1: 8, 2: 5}[number]
    translated.clear()
    assert tfm(*run, "out").code == 0
    assert translated == []
    assert files(place / "out") == files(place / "whole")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        done = tfm(*run, "ranks")
        assert done.code == 0, done.err
        assert bool(done.out) is bool(done.err) is (rank == "0")
    assert files(place / "ranks") == files(place / "whole")
    assert "--shard and torchrun exclude each other" in tfm(*run, "other", "--shard", "1/2").refused()


def test_what_the_model_was_judged_by_may_be_gone(trial: Any, tfm: Any, place: Path) -> None:
    """Then others have to be named."""
    shutil.copytree(trial.run, "moved")
    for config in Path("moved").rglob("config.yaml"):
        config.write_text(config.read_text().replace(f"{trial.folder}/valid", "gone/valid"))
    for manifest in Path("moved").rglob("manifest.json"):
        manifest.unlink()
    from transformer_cli.storage.publishing import _write_manifest

    for folder in Path("moved").glob("step-*"):
        _write_manifest(folder)
    run = ["backtranslate", "moved", "-i", "few.de", "--out", "made", "--greedy", *KEEP]
    said = (
        "moved: what it was judged by cannot be left out (gone/valid.de: no such file); name its files with --exclude"
    )
    assert said in tfm(*run).refused()
    for other in (["--exclude", trial.source], ["--config", "forward.yaml"]):
        assert tfm(*run, *other, "--out", f"made{other[0]}").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "3/2"], "--shard 3/2: write it as I/N"),
        (["--beam", 2, "--sample"], "--beam and --sample exclude each other"),
        (["--out", "few.de"], "few.de: is not a folder"),
        (["--out", "taken"], "taken: does not hold a training set that tfm made"),
        (["--keep", "empty_side"], "--keep empty_side: there is no such fault; choose too_long, length_ratio"),
        (["--exclude", "none"], "none: no such file"),
        (["--config", "trial"], "translates de into en, but the config de into en; give a model of the other dir"),
        (["-i", "none"], "none: no such file"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_trace(
    arguments: list[object], message: str, trial: Any, tfm: Any, place: Path
) -> None:
    (place / "taken").mkdir()
    (place / "taken" / "mine").write_text("")
    before = sorted(place.rglob("*"))
    given = [trial.config if argument == "trial" else argument for argument in arguments]
    out = [] if "--out" in arguments else ["--out", "out"]
    done = tfm("backtranslate", trial.run, "-i", "few.de", *out, *given)
    assert (done.code, done.out) == (2, ""), done
    assert message in done.err.splitlines()[-1]
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has no lines"), (b"\n \n", "no line is left"), (b"ein\n\xff\n", ":2: is not valid UTF-8")],
)
def test_text_that_gives_nothing_is_refused_and_leaves_no_trace(
    content: bytes, message: str, trial: Any, tfm: Any, place: Path
) -> None:
    (place / "bad").write_bytes(content)
    before = sorted(place.rglob("*"))
    done = tfm("backtranslate", trial.run, "-i", "bad", "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert message in done.err.splitlines()[-1]
    assert sorted(place.rglob("*")) == before


def test_a_model_of_one_language_is_refused(tfm: Any, trial: Any, place: Path) -> None:
    text = trial.config.read_text().replace("target_language: en", "target_language: DE")
    (place / "same.yaml").write_text(text.replace("max_steps: 4", "max_steps: 2"))
    assert tfm("train", "same.yaml", "--out", "same", "--device", "cpu").code == 0
    before = sorted(place.rglob("*"))
    said = tfm("backtranslate", "same", "-i", "few.de", "--out", "out").refused()
    assert "same: translates DE into de; give a model of two languages" in said
    assert sorted(place.rglob("*")) == before


@pytest.mark.slow
def test_a_kill_loses_nothing(trial: Any, place: Path) -> None:
    """True processes, two jobs of them, through the real entry."""
    run = [*TFM, "backtranslate", str(trial.run), "-i", "few.de", "--greedy", "--jobs", "2", *KEEP, "--out"]
    subprocess.run([*run, "whole"], check=True, capture_output=True)
    environment = {**os.environ, "TFM_FAILPOINT": "after-fsync"}
    killed = subprocess.run([*run, "out"], env=environment, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*run, "out"], capture_output=True, check=True)
    assert files(place / "out") == files(place / "whole")
    assert not [path for path in place.iterdir() if path.name.startswith((".", "out."))]


def test_gzip_is_read_and_written(trial: Any, tfm: Any, place: Path) -> None:
    (place / "few.de.gz").write_bytes(gzip.compress((place / "few.de").read_bytes()))
    run = ["backtranslate", trial.run, "--greedy", "-q", *KEEP]
    assert tfm(*run, "-i", "few.de", "--out", "plain").code == 0
    done = tfm(*run, "-i", "few.de.gz", "--out", "packed", "--gzip")
    assert done.out == "{source: packed/train.en.gz, target: packed/train.de.gz, tag: <bt>}\n"
    assert pairs(place / "packed", ".gz") == pairs(place / "plain")
