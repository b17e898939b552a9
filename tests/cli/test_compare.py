"""`tfm compare` as a user calls it: models and files, what is printed, and mistakes before anything is translated."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_evaluate import copy_model
from tests.evaluation.test_comparing import damaged, sentences
from transformer_cli.config import load_config
from transformer_cli.decoding.translator import Translator
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import find_model

REFERENCES = sentences(60)


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """References, a good and a bad output, more runs of both, and numbers."""
    monkeypatch.chdir(tmp_path)
    outputs = {"reference": REFERENCES}
    outputs |= {f"bad{run}": damaged(REFERENCES, 0.5, run) for run in (1, 2, 3)}
    outputs |= {f"good{run}": damaged(REFERENCES, 0.1, 3 + run) for run in (1, 2, 3)}
    for name, lines in outputs.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines))
        Path(f"{name}.numbers").write_text("".join(f"{len(line) % 7}\n" for line in lines))
    Path("short").write_text("a\n")
    return tmp_path


def test_files_are_compared_by_each_metric(texts: Path, tfm: Any) -> None:
    done = tfm("compare", "bad1", "good1", "--reference", "reference")
    assert (done.code, done.err) == (0, "")
    for name in ("BLEU ", "chrF2", "TER  "):
        assert re.search(
            rf"^  {name}  good1 is better by [\d.]+ {name.strip()} \(95 %: [\d.]+ to [\d.]+, p < 0.001\)$",
            done.out,
            re.M,
        )
    assert "One run per system" in done.out


@pytest.mark.medium
def test_a_page_and_json_with_seeds_and_numbers(texts: Path, tfm: Any) -> None:
    sides = ["A=bad1,bad2,bad3", "B=good1,good2,good3", "good1.numbers", "--reference", "reference"]
    numbers = ",".join(f"{name}.numbers" for name in ("bad1", "bad2", "bad3", "good1", "good2", "good3", "reference"))
    chosen = ["--metric", "chrf,bleu", "--metric", "bleu", "--scores", f"COMET={numbers}"]
    found = json.loads(tfm("compare", *sides, *chosen, "--format", "json").out)
    assert [one["metric"] for one in found["comparisons"][::2]] == ["chrf", "bleu", "COMET"]
    assert {"metric", "a", "b", "difference", "interval", "p"} <= {*found["comparisons"][0]}
    assert found["comparisons"][0]["better"] == "B"
    assert found["comparisons"][0]["degrees_of_freedom"] >= 4
    done = tfm("compare", *sides, *chosen, "--format", "html", "-o", "page.html")
    assert (done.code, done.out) == (0, "")
    assert Path("page.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("systems", "code"),
    [(["bad1", "good1"], 0), (["good1", "bad1"], 1), (["bad1", "bad2"], 1), (["bad1", "bad2", "good1"], 0)],
)
def test_strict_says_by_its_code_whether_something_is_better(
    texts: Path, tfm: Any, systems: list[str], code: int
) -> None:
    done = tfm("compare", *systems, "--reference", "reference", "--metric", "ter,bleu", "--strict")
    assert (done.code, done.err) == (code, "")
    assert "TER" in done.out


@pytest.mark.medium
def test_what_else_ends_lines_ends_none_of_the_report(texts: Path, tfm: Any) -> None:
    """U+2028 and the like are characters of a translation: a string of JSON may not be broken there."""
    Path("good1").write_text(Path("good1").read_text().replace(" ", "\u2028").replace("e", "\x85"), encoding="utf-8")
    files = ["compare", "bad1", "good1", "--reference", "reference"]
    found = json.loads(tfm(*files, "--format", "json").out)
    assert any("\u2028" in sentence["b"] for sentence in found["where"][0]["sentences"])
    said = tfm(*files).out
    assert said.splitlines() == said.removesuffix("\n").split("\n")
    assert r"\x2028" in said


def test_numbers_need_no_reference(texts: Path, tfm: Any) -> None:
    done = tfm("compare", "bad1", "good1", "--scores", "COMET=bad1.numbers,good1.numbers")
    assert done.code == 0
    assert done.out.splitlines()[0].split() == ["COMET"]


@pytest.mark.medium
def test_files_need_neither_a_model_nor_torch(texts: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['iso639'] = None\nfrom transformer_cli.cli.app import main\n"
        "code = main(['compare', 'bad1', 'good1', '--reference', 'reference', '--language', 'en'])\n"
        "assert 'ctranslate2' not in sys.modules and 'matplotlib' not in sys.modules\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "good1 is better by" in done.stdout


def test_the_tokenizer_follows_the_language(texts: Path, tfm: Any) -> None:
    for name in ("reference", "bad1", "good1"):
        Path(name).write_text("犬が雪の中を走っている。\n二人の男がベンチに座る。\n" * 5)
    files = ["compare", "bad1", "good1", "--reference", "reference", "--metric", "bleu"]
    assert "give --language" in tfm(*files).err
    done = tfm(*files, "--language", "zh")
    assert done.err == ""
    assert "tok:zh" in done.out
    assert "the same for every sentence" in done.out


# --- models ---------------------------------------------------------------------------------------------------------


def test_models_translate_in_their_own_way(trial: Any, tfm: Any, tmp_path: Path) -> None:
    """A model and the file of its translations are the same; the groups by rarest word need the run's training data."""
    output = tmp_path / "output"
    output.write_text(tfm("translate", trial.run, "-i", trial.source).out)
    test_set = ["--source", trial.source, "--reference", trial.reference]
    done = tfm("compare", f"model={trial.run}", f"file={output}", *test_set)
    assert done.code == 0
    assert done.out.count("the same for every sentence") == 3
    assert f"{trial.run}: translated: 6 lines" in done.err
    done = tfm("compare", trial.run, trial.words, *test_set, "--greedy", "-q", "--format", "json")
    assert done.code == 0
    assert "translated:" not in done.err
    assert all(line.startswith(f"warning: {trial.folder}/") for line in done.err.splitlines())
    assert json.loads(done.out)["sentences"] == 6


def test_rarest_words_are_counted_in_the_training_data(trial: Any, tfm: Any, tmp_path: Path) -> None:
    for name in ("source", "reference"):
        Path(tmp_path / name).write_text(getattr(trial, name).read_text() * 3)
    test_set = ["--source", tmp_path / "source", "--reference", tmp_path / "reference"]
    done = tfm("compare", trial.run, trial.words, *test_set, "-q")
    assert "by rarest word of the source in the training data\n      10 to 99 times" in done.out
    moved = shutil.copytree(trial.run, tmp_path / "moved")
    for path in moved.rglob("config.yaml"):
        path.chmod(0o644)
    done = tfm("compare", trial.run, trial.words, *test_set, "--format", "json", "-q")
    groups = json.loads(done.out)["where"][0]["groups"]
    assert groups["rarest word of the source in the training data"][0]["sentences"] == 18


def with_test_set(model: Path, folder: Path, test: str) -> Path:
    config = load_config(model / "config.yaml", [f"data.test={test}"] if "{" in test else [test])
    publish(folder, lambda place: copy_model(model, place, config))
    return folder


def test_the_test_set_is_that_which_all_models_name(trial: Any, tfm: Any, tmp_path: Path) -> None:
    same = f"{{source: {trial.source}, target: {trial.reference}}}"
    one = with_test_set(find_model(trial.run), tmp_path / "one", same)
    other = with_test_set(find_model(trial.words), tmp_path / "other", same)
    third = with_test_set(find_model(trial.words), tmp_path / "third", same.replace("valid", "train"))
    assert tfm("compare", one, other, "-q").code == 0
    assert "third: its config names another test set than that of" in tfm("compare", one, third).refused()
    assert "no data.test; give --source and --reference" in tfm("compare", one, trial.words).refused()
    (tmp_path / "short").write_text("a\n")
    assert "short: has 1 lines, but the test set of" in tfm("compare", one, tmp_path / "short").refused()
    assert "is read" in tfm("compare", one, other, "-o", trial.source).refused()
    french = with_test_set(find_model(trial.words), tmp_path / "french", "data.target_language=fr")
    assert "french: translates de–fr, but" in tfm("compare", one, french).refused()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bad1", "--reference", "reference"], "bad1: is only one system"),
        (["bad1", "bad1", "--reference", "reference"], "bad1: is given twice"),
        (["bad1", "short", "--reference", "reference"], "short: has 1 lines, but reference has 60"),
        (["bad1", "good1"], "files of translations need --reference"),
        (["bad1", "good1", "--source", "reference"], "files of translations need --reference"),
        (["bad1", "good1", "--reference", "reference", "--metric", "bleu,meteor"], "there is no metric 'meteor'"),
        (["bad1", "good1", "--metric", "bleu", "--scores", "C=a,b"], "need --reference"),
        (["bad1", "good1", "--reference", "reference", "--beam", "3"], "--beam: needs a model"),
        (["bad1", "good1", "--reference", "reference", "--language", "English"], "is not a language code"),
        (["bad1", "good1", "--scores", "C=bad1.numbers,good1"], "good1:1: .* is not a finite number"),
        (["bad1", "good1", "--scores", "C=bad1.numbers,short", "-o", "short"], "short: is read"),
        (["{run}", "good1", "--language", "en"], "--language: is for files alone"),
        (["{run}", "good1", "--source", "{source}"], "--source and --reference belong together"),
        (["{run}", "{run}/step-00000004", "--source", "{source}", "--reference", "{reference}"], "is the same model"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_translated(
    arguments: list[str], message: str, texts: Path, trial: Any, tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "load", lambda *_, **__: pytest.fail("no model is needed to find that"))
    before = {path: path.read_bytes() for path in texts.iterdir()}
    words = [word.format(run=trial.run, source=trial.source, reference=trial.reference) for word in arguments]
    assert re.search(message, tfm("compare", *words).refused())
    assert {path: path.read_bytes() for path in texts.iterdir()} == before
