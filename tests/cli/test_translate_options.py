"""Every option of search and of what surrounds it reaches what it names; contradictions are one line."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.environment import unmeasured

LINES = ["ein hund schläft", "", "zwei katze sieht rot"]


def texts(done: Any) -> list[str]:
    assert done.code == 0, done.err
    lines: list[str] = done.out.split("\n")[:-1]
    return lines


def scores(done: Any) -> list[float]:
    return [float(row.split("\t")[1]) for row in texts(done)]


def test_a_model_beside_itself_is_itself_and_beside_another_is_not(trial: Any, tfm: Any) -> None:
    run = ["translate", trial.run, *LINES, "--scores", "--no-guard", "--engine", "torch"]
    alone, twice = tfm(*run), tfm(*run, "--with", trial.run)
    assert scores(twice) == pytest.approx(scores(alone), abs=1e-4)
    assert "engine: torch (2 models)" in twice.err
    other = tfm(*run, "--with", trial.run / "step-00000002")
    assert scores(other) != pytest.approx(scores(alone), abs=1e-4)


def test_the_engine_is_the_one_asked_for_and_is_told(trial: Any, tfm: Any) -> None:
    run = ["translate", trial.run, *LINES, "--scores", "--no-guard"]
    torch, fast = tfm(*run, "--engine", "torch"), tfm(*run, "--engine", "ctranslate2")
    assert torch.err == "engine: torch\n"
    assert fast.err.startswith("engine: ctranslate2 (float32)")
    assert scores(torch) == pytest.approx(scores(fast), abs=1e-2)  # which leaves <pad> and <s> no probability
    assert tfm(*run, "--engine", "torch", "--quiet").err == ""
    assert tfm(*run, "--compute-type", "int8").err.startswith("engine: ctranslate2 (int8)")
    assert tfm(*run, "--sample").err.startswith("engine: torch (sampling)")


@pytest.mark.parametrize(
    "options",
    [
        ["--beam", 4, "--diverse-groups", 2, "--diversity", 5],
        ["--beam", 20, "--coverage-penalty", 100],
        ["--no-repeat-ngram", 1],
        ["--max-length", 2],
        ["--min-length", 20],
        ["--length-penalty", 0, "--mbr", 5],
        ["--sample", "--mbr", 8, "--seed", 3],
    ],
    ids=lambda options: options[-2],
)
def test_an_option_changes_what_is_found(options: list[object], trial: Any, tfm: Any) -> None:
    run = [
        "translate",
        trial.run,
        *LINES,
        "--quiet",
        "--no-guard",
        "--engine",
        "torch",
        "--format",
        "json",
        "--n-best",
        2,
    ]
    plain, changed = texts(tfm(*run)), texts(tfm(*run, *options))
    assert len(plain) == len(changed) == 3
    assert plain[1].replace("null", "") == changed[1].replace("null", "") or "--mbr" in options
    assert (plain[0], plain[2]) != (changed[0], changed[2])


def test_minimum_bayes_risk_orders_by_utility(trial: Any, tfm: Any) -> None:
    run = ["translate", trial.run, *LINES, "--quiet", "--sample", "--mbr", 8, "--n-best", 3, "--format", "json"]
    for one in map(json.loads, texts(tfm(*run))):
        utilities = [candidate["utility"] for candidate in one["n_best"]]
        assert utilities == sorted(utilities, reverse=True)
        assert one["utility"] == utilities[0]
        assert len(utilities) == (3 if one["source"] else 1)


def test_protected_text_stays_and_a_glossary_rules(trial: Any, tfm: Any, tmp_path: Path) -> None:
    glossary = tmp_path / "glossary"
    glossary.write_text("hund\tHOUND\n")
    line = "ein hund sieht https://example.org/x und {{name}} rot"
    run = ["translate", trial.run, line, "--quiet"]
    (protected,) = texts(tfm(*run))
    assert (protected.count("https://example.org/x"), protected.count("{{name}}")) == (1, 1)
    (ruled,) = texts(tfm(*run, "--glossary", glossary))
    assert ruled.count("HOUND") == 1
    (bare,) = texts(tfm(*run, "--no-protect"))
    assert "https://example.org/x" not in bare


def test_confidence_marks_and_drops(trial: Any, tfm: Any, tmp_path: Path) -> None:
    from transformer_cli.decoding.translation import FILE, Confidence
    from transformer_cli.storage.publishing import MANIFEST

    model = tmp_path / "model"
    shutil.copytree(trial.run / "step-00000004", model)
    (model / FILE).write_text(Confidence([-100.0, 0.0], [0.0, 1.0], 1, 1, 0.1).dumps())
    manifest = json.loads((model / MANIFEST).read_text())
    import hashlib

    manifest["sha256"][FILE] = hashlib.sha256((model / FILE).read_bytes()).hexdigest()
    (model / MANIFEST).write_text(json.dumps(manifest))

    run = ["translate", model, *LINES, "--quiet"]
    plain = texts(tfm(*run))
    objects = [json.loads(row) for row in texts(tfm(*run, "--format", "json"))]
    values = [one["confidence"] for one in objects]
    assert all(0 <= values[line] <= 1 for line in (0, 2))
    assert [one["below"] for one in objects] == [None] * 3
    limit = (values[0] + values[2]) / 2
    low = [bool(text) and value < limit for text, value in zip(plain, values, strict=True)]
    assert sum(low) == 1, "the two are alike: the test shows nothing"
    run += ["--min-confidence", f"{limit:.6f}"]
    marked = ["[?] " * bad + text for bad, text in zip(low, plain, strict=True)]
    assert texts(tfm(*run)) == texts(tfm(*run, "--below", "mark")) == marked
    assert texts(tfm(*run, "--below", "drop")) == [text * (not bad) for bad, text in zip(low, plain, strict=True)]
    objects = [json.loads(row) for row in texts(tfm(*run, "--format", "json"))]
    assert [one["below"] for one in objects] == low
    assert [one["translation"] for one in objects] == plain
    assert "1 mark" not in tfm(*run).err


def test_alignments_are_of_the_layer_and_heads_asked_for(trial: Any, tfm: Any) -> None:
    run = ["translate", trial.run, *LINES, "--quiet", "--alignments"]
    whole = texts(tfm(*run, "--alignment-layer", 1, "--alignment-heads", "1-2"))
    assert whole == texts(tfm(*run, "--engine", "torch"))
    assert len({tuple(texts(tfm(*run, "--alignment-heads", head))) for head in (1, 2)}) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diversity", 1], "--diversity: belongs to --diverse-groups"),
        (["--diverse-groups", 2, "--greedy"], "--diverse-groups and --greedy exclude each other"),
        (["--diverse-groups", 2], "beam size 3"),
        (["--coverage-penalty", 1, "--sample"], "--coverage-penalty and --sample exclude each other"),
        (["--min-length", 5, "--max-length", 4], "min length 5 is more than max length 4"),
        (["--mbr", 4, "--greedy"], "--greedy and --mbr exclude each other"),
        (["--mbr", 4, "--n-best", 5], "more than the 4 candidates of --mbr"),
        (["--mbr", 4, "--beam", 3], "--beam 3 finds fewer candidates"),
        (["--alignment-layer", 1], "--alignment-layer: belongs to --alignments"),
        (["--alignments", "--alignment-layer", 2], "--alignment-layer: the decoder of"),
        (["--alignments", "--alignment-heads", "3"], "--alignment-heads: the decoder of"),
        (["--alignments", "--alignment-heads", "x"], "--alignment-heads 'x': give numbers"),
        (["--below", "drop"], "--below: belongs to --min-confidence"),
        (["--min-confidence", 0.5], "is not calibrated; run tfm calibrate"),
        (["--min-confidence", 0.5, "--with", "{run}"], "--min-confidence and --with exclude each other"),
        (["--min-confidence", 1.5], "allowed: 0.0 to 1.0"),
        (["--engine", "marian"], "there is no engine 'marian'"),
        (["--compute-type", "int7"], "there is no compute type 'int7'"),
        (["--engine", "torch", "--compute-type", "int8"], "exclude each other"),
        (["--engine", "ctranslate2", "--sample"], "engine ctranslate2 and sampling exclude each other"),
        (["--engine", "ctranslate2", "--prefix", "a"], "engine ctranslate2 and words that must or must not appear"),
        (["--with", "no/such"], "no/such: no such folder"),
        (["--with", "{words}"], "vocabulary is not that of"),
        (["--with", "{run}", "--engine", "ctranslate2"], "--with: several models need the torch engine"),
        (["--glossary", "no/such"], "no/such: no such file"),
        (["--glossary", "{source}", "--no-protect"], "--glossary and --no-protect exclude each other"),
        (["--glossary", "{source}"], ":1: is not a glossary entry"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_contradictions_are_refused(
    arguments: list[object], message: str, trial: Any, tfm: Any, tmp_path: Path
) -> None:
    places = {"run": trial.run, "words": trial.words, "source": trial.source}
    given = [argument.format_map(places) if isinstance(argument, str) else argument for argument in arguments]
    output = tmp_path / "output"
    assert message in tfm("translate", trial.run, "ein hund", "-o", output, *given).refused()
    assert list(tmp_path.iterdir()) == []


def test_ctranslate2_needs_no_torch_and_no_process_pool(trial: Any, tfm: Any) -> None:
    """A cold start: what takes long to import is not imported, once the model is in the cache."""
    expected = tfm("translate", trial.run, *LINES, "--quiet", "--no-guard").out
    program = f"""
import sys
sys.modules["torch"] = None  # importing it raises ImportError
from transformer_cli.cli.app import main
code = main({["translate", str(trial.run), *LINES, "--quiet", "--no-guard"]!r})
print(*sorted({{"multiprocessing", "sacrebleu", "pyarrow", "tqdm", "spacy"}} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=unmeasured())
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "\n")
