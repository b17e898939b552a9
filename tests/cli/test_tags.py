"""`--tag`: what the model reads before each text; commands agree on it, and none shows it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CONFIG, write_corpus, write_run

TEXTS = ["ein hund läuft .", "zwei katze", "drei maus schläft . ein baum"]


@pytest.fixture(scope="session")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose sources have tags: `<bt>` before all text, but `<2de>` before validation and test data."""
    folder = tmp_path_factory.mktemp("tagged")
    write_corpus(folder)
    text = CONFIG.format(folder=folder, tokenizer="sentencepiece", positions="sinusoidal")
    train, files = f"{{source: {folder}/train.de, target: {folder}/train.en", f"source: {folder}/train.de"
    text = text.replace(f"  train: {train}}}", f"  train: [{train}, tag: <bt>}}, {train}, tag: <2de>}}]")
    text = re.sub("  valid: .*", f"  valid: {train}, tag: <2de>}}\n  test: {train}, tag: <2de>}}", text)
    assert text.count(files) == 4
    (folder / "config.yaml").write_text(text.replace("decoding: {", "decoding: {tag: <bt>, "), encoding="utf-8")
    write_run(folder / "config.yaml", folder / "run", [2])
    return folder / "run"


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_a_tag_is_as_good_as_typed(tagged: Path, tfm: Any, engine: str) -> None:
    options = ["--engine", engine, "--device", "cpu", "-q"]
    given = tfm("translate", tagged, *options, "--tag", "<2de>", *TEXTS, "")
    typed = tfm("translate", tagged, *options, "--tag", "", *[f"<2de> {text}" for text in TEXTS], "")
    assert given.code == typed.code == 0
    assert given.out == typed.out
    assert given.out.count("\n") == 4
    assert given.out.endswith("\n\n")
    own = tfm("translate", tagged, *options, *TEXTS, "")
    assert own.out == tfm("translate", tagged, *options, "--tag", "<bt>", *TEXTS, "").out
    assert len({given.out, own.out, tfm("translate", tagged, *options, "--tag", "", *TEXTS, "").out}) == 3


def test_nobody_sees_the_tag(tagged: Path, tfm: Any) -> None:
    found = tfm("translate", tagged, "--format", "json", "--alignments", "-q", *TEXTS)
    assert found.code == 0
    for row, text in zip(found.out.splitlines(), TEXTS, strict=True):
        translation = json.loads(row)
        assert translation["source"] == text
        assert "<bt>" not in row
    aligned = tfm("translate", tagged, "--alignments", "-q", "ein")
    sources = {int(link.split("-")[0]) for link in aligned.out.rstrip("\n").split("\t")[1].split()}
    assert sources <= set(range(4)), "of a word of at most three letters"


def scores(tfm: Any, *command: object) -> Any:
    result = tfm("evaluate", *command, "--json", "-q", "--metric", "chrf")
    assert result.code == 0, result
    return json.loads(result.out)["scores"][0]["score"]


@pytest.mark.medium
def test_a_test_set_has_its_own_tag_unless_another_is_given(tagged: Path, tfm: Any, tmp_path: Path) -> None:
    files = ["--source", tagged.parent / "train.de", "--reference", tagged.parent / "train.en"]
    outputs = {}
    ways: dict[str, list[Any]] = {
        "own": [],
        "2de": ["--tag", "<2de>"],
        "none": ["--tag", ""],
        "files": files,
        "bt": ["--tag", "<bt>"],
        "files none": [*files, "--tag", ""],
    }
    for name, options in ways.items():
        scores(tfm, tagged, *options, "-o", tmp_path / name)
        outputs[name] = (tmp_path / name).read_text()
    assert outputs["own"] == outputs["2de"]
    assert outputs["files"] == outputs["bt"]
    assert outputs["none"] == outputs["files none"]
    assert len(set(outputs.values())) == 3
    translated = tfm("translate", tagged, "-i", tagged.parent / "train.de", "--tag", "<2de>", "-q")
    assert translated.out == outputs["own"]


def test_models_are_compared_with_the_tag_of_their_test_set(tagged: Path, tfm: Any, tmp_path: Path) -> None:
    """As `tfm evaluate` translates it, so that both say the same of a model."""
    files = ["--source", tagged.parent / "train.de", "--reference", tagged.parent / "train.en"]
    scores(tfm, tagged, "-o", tmp_path / "own")
    scores(tfm, tagged, *files, "-o", tmp_path / "files")
    assert (tmp_path / "own").read_text() != (tmp_path / "files").read_text(), "the tag makes a difference"
    for name, options in {"own": [], "files": files}.items():
        done = tfm("compare", tagged, tmp_path / name, *options, "-q")
        assert done.code == 0
        assert done.out.count("the same for every sentence") == 3


def test_confidence_is_calibrated_with_the_tag_of_the_data(tagged: Path, tfm: Any, tmp_path: Path) -> None:
    found = []
    ways: list[list[str]] = [[], ["--tag", "<2de>"], ["--tag", ""]]
    for number, options in enumerate(ways):
        run = shutil.copytree(tagged, tmp_path / str(number))
        assert tfm("calibrate", run, *options, "-q").code == 0
        found.append((run / "step-00000002" / "confidence.json").read_text())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("command", ["score", "align"])
def test_given_translations_are_read_beside_the_tag(tagged: Path, tfm: Any, tmp_path: Path, command: str) -> None:
    files = {"plain": TEXTS, "typed": [f"<2de> {text}" for text in TEXTS], "target": TEXTS}
    for name, lines in files.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))

    def run(source: str, *options: str) -> str:
        result = tfm(command, tagged, "--source", tmp_path / source, "--target", tmp_path / "target", "-q", *options)
        assert result.code == 0, result
        return str(result.out)

    given, own, none = run("plain", "--tag", "<2de>"), run("plain"), run("plain", "--tag", "")
    if command == "score":
        assert given == run("typed", "--tag", "")
        assert len({given, own, none}) == 3
        assert own == run("plain", "--tag", "<bt>")
    else:
        assert given.count("\n") == 3
        words = [len(text.split()) for text in TEXTS]
        for row, count in zip(given.splitlines(), words, strict=True):
            assert all(int(place) < count for link in row.split() for place in link.split("-"))


@pytest.mark.medium
def test_what_is_inside_is_shown_with_the_tag(tagged: Path, tfm: Any, tmp_path: Path) -> None:
    traced = tfm("translate", tagged, "--trace", "--tag", "<2de>", "-q", TEXTS[0])
    assert traced.code == 0
    assert "<2de> | ein" in traced.out
    assert f"\n   {TEXTS[0]}\n" in traced.out, "the text itself is the user's"
    typed = tfm("translate", tagged, "--trace", "--tag", "", "--no-protect", "-q", f"<2de> {TEXTS[0]}")
    assert typed.out.split("2. words")[1] == traced.out.split("2. words")[1]
    for name, options in {"a": ["--tag", "<2de>"], "b": [], "c": ["--tag", ""]}.items():
        for picture in ("attention", "mask"):
            path = tmp_path / f"{picture}-{name}.svg"
            side = ["--side", "source"] if picture == "mask" else []
            assert tfm("plot", picture, tagged, TEXTS[0], *side, *options, "-o", path).code == 0
    for picture in ("attention", "mask"):
        drawn = [(tmp_path / f"{picture}-{name}.svg").read_text() for name in "abc"]
        assert ["&lt;2de&gt;" in text for text in drawn] == [True, False, False]
        assert ["&lt;bt&gt;" in text for text in drawn] == [False, True, False]
    assert tfm("plot", "mask", tagged, "--side", "source", "-n", "1", "-o", tmp_path / "valid.svg").code == 0
    assert "&lt;2de&gt;" in (tmp_path / "valid.svg").read_text()
    said = tfm("plot", "mask", tagged, "--tag", "<bt>", "-o", tmp_path / "target.svg").refused()
    assert "--tag: stands before source sentences" in said
    assert tfm("plot", "mask", tagged, "-n", "1", "-o", tmp_path / "target.svg").code == 0
    assert "&lt;2de&gt;" not in (tmp_path / "target.svg").read_text()


def test_a_teacher_reads_its_tag(tagged: Path, trial: Any, tfm: Any, tmp_path: Path) -> None:
    for name, options in {"a": ["--tag", "<2de>"], "b": []}.items():
        result = tfm("distill", tagged, trial.config, "--out", tmp_path / name, *options, "-q")
        assert result.code == 0, result
    sources, targets = ([(tmp_path / name / f"train.{side}").read_text() for name in "ab"] for side in ("de", "en"))
    assert sources[0] == sources[1] == (trial.folder / "train.de").read_text()
    assert targets[0] == tfm("translate", tagged, "-i", trial.folder / "train.de", "--tag", "<2de>", "-q").out
    assert targets[0] != targets[1]
    again = tfm("distill", tagged, trial.config, "--out", tmp_path / "a", "-q")
    assert "was made with tag <2de> (now default)" in again.refused()


COMMANDS: dict[str, list[str]] = {
    "translate": ["TEXT"],
    "evaluate": [],
    "calibrate": [],
    "score": ["--source", "FILE", "--target", "FILE"],
    "align": ["--source", "FILE", "--target", "FILE"],
    "distill": ["CONFIG", "--out", "OUT"],
    "plot attention": ["TEXT", "-o", "OUT.svg"],
    "plot mask": ["TEXT", "--side", "source", "-o", "OUT.svg"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_tag_that_the_model_does_not_know_is_refused(
    tagged: Path, trial: Any, tfm: Any, tmp_path: Path, command: str
) -> None:
    files = {"FILE": str(trial.source), "CONFIG": str(trial.config), "OUT": str(tmp_path / "out")}
    options = [
        str(tmp_path / "out.svg") if option == "OUT.svg" else files.get(option, option) for option in COMMANDS[command]
    ]
    said = tfm(*command.split(), tagged, *options, "--tag", "<2fr>").refused()
    assert said == "error: tag '<2fr>': is none of the model's; it knows <bt> and <2de>\n"
    if command not in ("evaluate", "calibrate"):
        said = tfm(*command.split(), trial.run, *options, "--tag", "<2fr>").refused()
        assert said == "error: tag '<2fr>': is none of the model's; it was trained without any; leave it out\n"
        assert "tag" not in tfm(*command.split(), trial.run, *options, "--tag", "").err
    assert command == "distill" or not [*tmp_path.iterdir()] or (tmp_path / "out.svg").exists()


def test_exports_keep_the_tag_or_say_that_it_is_lost(tagged: Path, tfm: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = tfm("export", tagged, "--format", "safetensors", "--out", out)
    assert (result.code, "<bt>" in result.err) == (0, False)
    expected = tfm("translate", tagged, "-q", *TEXTS).out
    assert tfm("translate", out, "-q", *TEXTS).out == expected
    pytest.importorskip("ctranslate2", reason="the export needs CTranslate2")
    result = tfm("export", tagged, "--format", "ctranslate2", "--out", tmp_path / "ct2")
    assert result.code == 0
    assert result.err.splitlines()[-1] == (
        "note: the model reads <bt> before each text; tfm puts it there, other programs have to: '<bt> …'"
    )
    assert tfm("translate", tmp_path / "ct2", "-q", *TEXTS).out == expected
    assert tfm("export", tagged, "--format", "ctranslate2", "--out", tmp_path / "quiet", "-q").err == ""
