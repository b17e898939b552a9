"""`tfm evaluate`: sacreBLEU's numbers of the model's translations; every file is checked before one is translated."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from transformer_cli.config import Config, dump_config, load_config
from transformer_cli.decoding.translator import Translator
from transformer_cli.evaluation.evaluate import corpus_scores
from transformer_cli.storage.publishing import publish
from transformer_cli.storage.run_folder import find_model


def test_scores_are_those_of_the_translations_it_keeps(trial: Any, tfm: Any, tmp_path: Path) -> None:
    output = tmp_path / "output"
    evaluate = ["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference]
    table = tfm(*evaluate, "-o", output)
    assert table.code == 0
    assert table.err.startswith("translated: 6 lines in ")
    assert output.read_text() == tfm("translate", trial.run, "-i", trial.source).out
    translations, references = output.read_text().splitlines(), trial.reference.read_text().splitlines()
    expected = corpus_scores(translations, [references], "en", intervals=True)
    assert [row.split() for row in table.out.splitlines()[:6]] == [
        row
        for score in expected
        for row in (
            [score.name, f"{score.score:.2f}", "(mean", f"{score.mean:.2f}", "±", f"{score.interval:.2f})"],
            [score.short_signature],
        )
    ]
    assert max(map(len, table.out.splitlines())) <= 80
    result = tfm(*evaluate, "--json", "--quiet")
    assert "translated:" not in result.err
    found = json.loads(result.out)
    assert found["sentences"] == 6
    assert found["scores"] == [asdict(score) for score in expected]


def test_without_files_the_configs_test_set_is_used(trial: Any, tfm: Any, tmp_path: Path) -> None:
    named = tfm("evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "--json", "--quiet")
    missing = tfm("evaluate", trial.run)
    assert (missing.code, missing.out) == (2, "")
    assert "no data.test; give --source and --reference" in missing.err

    model = shutil.copytree(find_model(trial.run), tmp_path / "model")
    config = load_config(model / "config.yaml", [f"data.test={{source: {trial.source}, target: {trial.reference}}}"])
    publish(tmp_path / "other", lambda folder: copy_model(model, folder, config))
    configured = tfm("evaluate", tmp_path / "other", "--json", "--quiet")
    assert json.loads(configured.out)["scores"] == json.loads(named.out)["scores"]


def copy_model(model: Path, folder: Path, config: Config) -> None:
    """The model, with another config, into a folder that is being published."""
    shutil.copytree(model, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    (folder / "config.yaml").write_text(dump_config(config))


@pytest.mark.parametrize("half", [["--source", "x"], ["--reference", "x"]])
def test_half_a_test_set_is_refused(trial: Any, tfm: Any, half: list[str]) -> None:
    result = tfm("evaluate", trial.run, *half)
    assert (result.code, result.out) == (2, "")
    assert "--source and --reference belong together" in result.err


def test_perfect_references_and_the_choice_of_metrics(trial: Any, tfm: Any, tmp_path: Path) -> None:
    perfect = tmp_path / "perfect"
    perfect.write_text(tfm("translate", trial.run, "-i", trial.source, "--greedy").out)
    result = tfm(
        *["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "--reference", perfect],
        *["--greedy", "--metric", "ter", "--metric", "chrf++", "--metric", "ter", "--json", "--quiet"],
    )
    ter, chrf = json.loads(result.out)["scores"]
    assert (ter["name"], ter["score"]) == ("TER", 0.0)
    assert (chrf["name"], chrf["score"]) == ("chrF2++", pytest.approx(100.0))
    assert "nrefs:2" in chrf["signature"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "source", "--reference", "short"], "short: has 5 lines, but source has 6"),
        (["--source", "source", "--reference", "source", "--reference", "short"], "short: has 5 lines"),
        (["--source", "none", "--reference", "source"], "none: no such file"),
        (["--source", "source", "--reference", "none"], "none: no such file"),
        (["--source", "empty", "--reference", "empty"], "empty: is empty"),
        (["--source", "source", "--reference", "latin"], "latin:2: is not valid UTF-8"),
        (["--source", "source", "--reference", "source", "--metric", "meteor"], "there is no metric 'meteor'"),
        (["--source", "source", "--reference", "source", "-o", "no/output"], "no/output: cannot be written"),
        (["--source", "source", "--reference", "source", "--beam", "2", "--greedy"], "exclude each other"),
    ],
)
def test_faults_are_found_before_anything_is_translated(
    arguments: list[str],
    message: str,
    trial: Any,
    tfm: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("source").write_bytes(trial.source.read_bytes())
    Path("short").write_text("a\n" * 5)
    Path("empty").write_bytes(b"")
    Path("latin").write_bytes(b"a\nfa\xe7ade\n" + b"a\n" * 4)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(Translator, "load", lambda *_, **__: pytest.fail("no model is needed to find that"))
    assert message in tfm("evaluate", trial.run, *arguments).refused()
    assert sorted(tmp_path.iterdir()) == before


def test_the_engine_is_the_one_asked_for(trial: Any, tfm: Any) -> None:
    run = ["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "--quiet"]
    assert tfm(*run, "--engine", "torch").code == 0
    assert tfm(*run, "--compute-type", "int8").code == 0
    assert "exclude each other" in tfm(*run, "--engine", "torch", "--compute-type", "int8").refused()


# --- lines that the training data has too ---------------------------------------------------------------------------


@pytest.fixture
def overlapping(trial: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A test set of ten lines, the second and the fifth of which are of the training data."""
    monkeypatch.chdir(tmp_path)
    for language in ("de", "en"):
        train = (trial.folder / f"train.{language}").read_text().splitlines()
        longest = sorted(range(len(train)), key=lambda line: len(train[line]))[-2:]
        others = [f"{language}{number} unseen {language}{number * 7} !" for number in range(8)]
        lines = [others[0], train[longest[0]], *others[1:3], train[longest[1]].upper(), *others[3:]]
        Path(f"test.{language}").write_text("".join(f"{line}\n" for line in lines))
    return ["evaluate", trial.run, "--source", "test.de", "--reference", "test.en", "--greedy"]


def test_the_scores_without_lines_that_were_trained_on_follow_those_of_all(overlapping: list[Any], tfm: Any) -> None:
    shown = tfm(*overlapping)
    assert (shown.code, "overlap" in shown.err) == (0, False)
    whole, _, section = shown.out.partition("\n\n")
    assert f"{whole}\n" == tfm(*overlapping, "--no-overlap").out
    heading, *rows, verdict = section.splitlines()
    assert heading == "without the 2 test lines (20.0 %) that also occur in the training data:"
    assert verdict.startswith("The difference ")
    assert max(map(len, shown.out.splitlines())) <= 80
    for name in ("de", "en"):
        lines = Path(f"test.{name}").read_text().splitlines()
        Path(f"test.{name}").write_text("".join(f"{line}\n" for n, line in enumerate(lines, 1) if n not in (2, 5)))
    clean = tfm(*overlapping)
    assert [row.split() for row in clean.out.splitlines()[:6:2]] == [row.split() for row in rows]
    assert clean.out.splitlines()[6:] == ["no test line also occurs in the training data"]


def test_programs_get_the_lines_and_the_scores_beside_what_they_had(overlapping: list[Any], tfm: Any) -> None:
    found, plain = (json.loads(tfm(*overlapping, "--json", *more).out) for more in ([], ["--no-overlap"]))
    overlap = found.pop("overlap")
    assert {**found, "seconds": 0} == {**plain, "seconds": 0}
    assert (overlap["checked"], overlap["lines"], overlap["sentences"]) == (True, [2, 5], 8)
    for score, whole in zip(overlap["scores"], found["scores"], strict=True):
        assert set(score) == {*whole, "by_chance", "differs"}
        assert score["signature"] == whole["signature"]


def test_one_line_and_all_lines_have_words_of_their_own(overlapping: list[Any], trial: Any, tfm: Any) -> None:
    train = ["--source", trial.folder / "train.de", "--reference", trial.folder / "train.en"]
    said = tfm("evaluate", trial.run, *train, "--greedy").out.splitlines()[6:]
    assert said == ["every test line also occurs in the training data: nothing is left to score without them"]
    for name in ("de", "en"):
        lines = Path(f"test.{name}").read_text().splitlines()
        Path(f"test.{name}").write_text("\n".join(lines[:4]))
    assert "without the test line (25.0 %) that also occurs in the training data:" in tfm(*overlapping).out


@pytest.mark.parametrize(("differs", "said"), [(True, "matters (BLEU, TER)"), (False, "does not matter")])
def test_the_difference_is_judged_in_words(
    differs: bool, said: str, overlapping: list[Any], tfm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = property(lambda score: differs and score.metric != "chrf")
    monkeypatch.setattr("transformer_cli.evaluation.evaluate.SubsetScore.differs", judge)
    assert tfm(*overlapping).out.splitlines()[-1].startswith(f"The difference {said}: ")


def test_training_data_that_is_gone_is_a_note_and_no_error(
    overlapping: list[Any], trial: Any, tfm: Any, tmp_path: Path
) -> None:
    model = find_model(trial.run)
    config = load_config(model / "config.yaml", ["data.train={source: gone.de, target: gone.en}"])
    publish(tmp_path / "other", lambda folder: copy_model(model, folder, config))
    evaluate = ["evaluate", tmp_path / "other", *overlapping[2:]]
    result = tfm(*evaluate)
    assert (result.code, len(result.out.splitlines())) == (0, 6)
    assert result.err.splitlines()[-1] == "overlap with the training data was not checked: gone.de: no such file"
    quiet = tfm(*evaluate, "--quiet")
    assert quiet.out == result.out
    assert "overlap" not in quiet.err
    nothing = {"lines": None, "sentences": None, "scores": None}
    found = json.loads(tfm(*evaluate, "--json").out)["overlap"]
    assert found == {"checked": False, "reason": "gone.de: no such file", **nothing}


def test_translations_never_take_the_place_of_training_data(trial: Any, tfm: Any, tmp_path: Path) -> None:
    place = tmp_path / "translations"
    place.symlink_to(trial.folder / "train.en")
    before = place.read_bytes()
    arguments = ["evaluate", trial.run, "--source", trial.source, "--reference", trial.reference, "-o", place]
    assert "is read, and the results would take its place" in tfm(*arguments).refused()
    assert place.read_bytes() == before


# --- a file of translations, without a model ------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40 sentences and translations that differ in some places, one of them empty; and Japanese ones."""
    monkeypatch.chdir(tmp_path)
    parts = ["a dog", "runs", "through the snow", "while", "two men", "in red", "sit", "on the old bench"]
    references = [" ".join(parts[number % 4 : 4 + number % 5]) + "." for number in range(40)]
    hypotheses = [line.replace("dog", "Dog").replace("the snow", "snow") for line in references[:-1]]
    Path("reference").write_text("\n".join(references) + "\n")
    Path("hypothesis").write_text("\n".join([*hypotheses, ""]) + "\n")
    Path("blank").write_text("\n" * 40)
    Path("reference.ja").write_text("犬が雪の中を走っている。\n二人の男がベンチに座る。\n" * 5)
    Path("hypothesis.ja").write_text("犬は雪の中を走る。\n二人の男がベンチに座る。\n" * 5)
    return tmp_path


@pytest.mark.medium
@pytest.mark.parametrize(("suffix", "more"), [("", []), (".ja", ["--language", "ja"])])
def test_a_file_gets_the_numbers_of_the_sacrebleu_command(suffix: str, more: list[str], texts: Path, tfm: Any) -> None:
    if suffix:
        pytest.importorskip("MeCab", reason="sacreBLEU's Japanese tokenizer is not installed")
    files = f"hypothesis{suffix}", f"reference{suffix}"
    metrics = ["bleu", "chrf", *([] if suffix else ["ter"])]  # TER of Japanese is ours: by characters
    result = tfm(
        *["evaluate", "--hypothesis", files[0], "--reference", files[1], "--json", *more],
        *[word for metric in metrics for word in ("--metric", metric)],
    )
    assert (result.code, result.err) == (0, "")
    command = [sys.executable, "-m", "sacrebleu", files[1], "-i", files[0], "-m", *metrics, "--confidence", "-w", "4"]
    said = subprocess.run(
        [*command, *(["--tokenize", "ja-mecab"] if suffix else [])], capture_output=True, text=True, check=True
    ).stdout
    for found, expected in zip(json.loads(result.out)["scores"], json.loads(said), strict=True):
        assert (found["name"], found["signature"]) == (expected["name"], expected["signature"])
        for own, theirs in (("score", "score"), ("mean", "confidence_mean"), ("interval", "confidence_var")):
            assert found[own] == pytest.approx(expected[theirs], abs=6e-5), own


def test_a_file_needs_neither_a_model_nor_torch(texts: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = sys.modules['iso639'] = None\nfrom transformer_cli.cli.app import main\n"
        "files = ['--hypothesis', 'hypothesis', '--reference', 'reference']\n"
        "sys.exit(main(['evaluate', *files, '--metric', 'bleu', '--language', 'en']))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"BLEU  \d\d\.\d\d  \(mean \d\d\.\d\d ± \d\.\d\d\)\n      #:1\|bs:1000\|.*tok:13a.*\n", result.stdout
    )


def test_the_tokenizer_is_hinted_at_where_it_matters(texts: Path, tfm: Any) -> None:
    files = ["evaluate", "--hypothesis", "hypothesis.ja", "--reference", "reference.ja"]
    assert "give --language" in tfm(*files).err
    assert tfm(*files, "--metric", "chrf").err == ""
    assert tfm(*files, "--language", "zh").err == ""


def test_a_bleu_of_zero_is_explained_where_no_line_is_long_enough(texts: Path, tfm: Any) -> None:
    Path("names").write_text("a good day\nyes\n")
    Path("lines").write_text("a good day again\nyes\n")
    for files, said in (("names", "names"), True), (("lines", "lines"), False), (("names", "lines"), True):
        result = tfm("evaluate", "--hypothesis", files[0], "--reference", files[1])
        assert ("no translation has four words; go by chrF" in result.err) == said
    assert "four words" not in tfm("evaluate", "--hypothesis", "names", "--reference", "names", "--metric", "ter").err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing argument 'MODEL': give a model, or translations with --hypothesis"),
        (["model", "--hypothesis", "hypothesis", "--reference", "reference"], "--hypothesis and MODEL exclude"),
        (["--hypothesis", "hypothesis"], "--hypothesis: needs --reference FILE"),
        (["--hypothesis", "hypothesis", "--reference", "reference", "--source", "x"], "--hypothesis and --source"),
        (["--hypothesis", "hypothesis", "--reference", "reference", "-o", "x"], "--hypothesis and --output"),
        (["--hypothesis", "hypothesis", "--reference", "reference", "--no-overlap"], "--hypothesis and --no-overlap"),
        (["--hypothesis", "hypothesis", "--reference", "reference", "--beam", "2"], "--hypothesis and --beam"),
        (["--hypothesis", "hypothesis", "--reference", "reference", "--engine", "torch"], "--hypothesis and --engine"),
        (["--hypothesis", "hypothesis", "--reference", "reference.ja"], "reference.ja: has 10 lines, but hypothesis"),
        (["--hypothesis", "hypothesis", "--reference", "none"], "none: no such file"),
        (["--hypothesis", "hypothesis", "--reference", "blank"], "blank: all lines are empty"),
        (
            ["--hypothesis", "hypothesis", "--reference", "reference", "--language", "Japanese"],
            "language 'Japanese': is not a .*ja",
        ),
        (["--hypothesis", "hypothesis", "--reference", "reference", "--metric", "meteor"], "no metric 'meteor'"),
        (["model", "--language", "ja"], "--language: belongs to --hypothesis"),
    ],
)
def test_wrong_mixtures_are_one_clear_line(arguments: list[str], message: str, texts: Path, tfm: Any) -> None:
    before = sorted(texts.iterdir())
    assert re.search(message, tfm("evaluate", *arguments).refused())
    assert sorted(texts.iterdir()) == before


def test_metrics_are_named_with_commas_or_one_by_one(texts: Path, tfm: Any) -> None:
    files = ["evaluate", "--hypothesis", "hypothesis", "--reference", "reference"]
    done = tfm(*files, "--metric", "ter,bleu", "--metric", "bleu")
    assert [line.split()[0] for line in done.out.splitlines()[::2]] == ["TER", "BLEU"]
    assert done.out == tfm(*files, "--metric", "ter", "--metric", "bleu").out


def test_case_is_told_as_it_is(texts: Path, tfm: Any) -> None:
    """What the help says of case is what the metrics do: TER does not see it, BLEU and chrF do."""
    assert "BLEU and chrF are cased, TER is not" in " ".join(tfm("evaluate", "--help").out.split())
    Path("shouted").write_text(Path("reference").read_text().upper())
    scores = json.loads(tfm("evaluate", "--hypothesis", "shouted", "--reference", "reference", "--json").out)["scores"]
    bleu, chrf, ter = (score["score"] for score in scores)
    assert ter == 0
    assert max(bleu, chrf) < 50
    assert [re.findall("case:([a-z]+)", score["signature"]) for score in scores] == [["mixed"], ["mixed"], ["lc"]]
