"""What a model makes of its sets: which sentences are best and worst, and where it fails."""

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.making import make_run
from transformer_cli.config import HubDataset
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation import differences
from transformer_cli.evaluation.differences import TrainingWords, count_in_training, count_words, groups_of
from transformer_cli.evaluation.evaluate import evaluate
from transformer_cli.report import outputs as of_outputs
from transformer_cli.report.outputs import Outputs, examine_run, failures
from transformer_cli.report.runs import read_run
from transformer_cli.text.codec import Codecs

HUB = "the training data is on the Hugging Face hub; its words are not counted"
LINES = [  # source, translation, reference
    ("der Hund läuft", "the dog runs", "the dog runs"),
    ("die Katze schläft im Garten", "the cat sleeps", "the cat sleeps in the garden of the house"),
    ("ein Känguru", "one känguru", "a kangaroo"),
    ("ein Hotel", "one hotel", "an inn"),
    ("zwei rote Häuser", "", "two red houses"),
    ("die Maus", "a mouse and a mouse and one more mouse", "a mouse"),
    (" ", "", "nothing"),
    ("ein " * 12, "a " * 12, "a " * 12),
]


@pytest.fixture
def some() -> Outputs:
    sources, translations, references = map(list, zip(*LINES, strict=True))
    return Outputs("test", sources, references, translations, [], 0, 1.0, "en")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("outputs") / "run")


@pytest.fixture(scope="module")
def codecs(run: Path) -> Codecs:
    return Translator.load(run, "cpu").codecs


def silent(*_: Any) -> Any:
    return contextlib.nullcontext(lambda done: None)


def test_the_best_and_the_worst(some: Outputs) -> None:
    ranked = some.ranked()
    assert ranked[:2] == [7, 0], "of two that are exact, the longer one"
    assert set(ranked[-2:]) == {4, 6}
    assert sorted(ranked) == list(range(len(LINES)))
    assert some.chrf([0, 7]) == pytest.approx(100.0)


def test_every_sentence_is_in_one_group(some: Outputs) -> None:
    found = groups_of(some.sources, some.references, {"hund": 5, "läuft": 50, "der": 900})
    sizes = {(by, name): int(chosen.sum()) for by, name, chosen in found}
    for kind in ("length", "rarest"):
        assert sum(size for (by, _), size in sizes.items() if by.startswith(kind)) == len(LINES)
    assert {name: size for (by, name), size in sizes.items() if by.startswith("rarest") and size} == {
        "not in it": 7,
        "1 to 9 times": 1,
    }


def test_what_looks_wrong(some: Outputs, codecs: Codecs) -> None:
    training = TrainingWords(9, {}, {"hotel": 3, "känguru": 2})
    found = failures(some, codecs, training)
    assert found.pop("repeats itself", []) in ([], [5]), "a source that repeats itself may be followed"
    assert found == {
        "less than half as long as the reference": [1],
        "copies a word of the source that the reference does not have": [2],
        "empty": [4],
        "more than twice as long as the reference": [5],
    }
    assert failures(some, codecs, None)["copies a word of the source that the reference does not have"] == [2, 3]


def test_repetition_is_seen(codecs: Codecs) -> None:
    one = Outputs("test", ["ein hund läuft"], ["one dog runs"], ["dog dog dog dog dog dog dog dog"], [], 0, 1.0, "en")
    assert "repeats itself" in failures(one, codecs, None)


def test_words_are_counted_in_the_training_data(run: Path) -> None:
    found = FoundModel.at(run)
    lines = (run.parent / "train.de").read_text(encoding="utf-8").splitlines()
    training = count_words(found, ["hund maus", "Giraffe"])
    assert training.pairs == len(lines) == 60
    assert training.counts == {word: sum(line.split().count(word) for line in lines) for word in ("hund", "maus")}
    assert training.target_counts == {}


def test_training_data_on_the_hub_is_left_alone(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it may mean a long download."""
    found = FoundModel.at(run)
    train = HubDataset(dataset="someone/news", split="train")
    data = found.config.data.model_copy(update={"train": train})
    hub = replace(found, config=found.config.model_copy(update={"data": data}))
    monkeypatch.setattr(differences, "open_split", lambda *_: pytest.fail("the network"))
    with pytest.raises(UserError, match=HUB):
        count_words(hub, ["hund"])
    assert count_in_training([hub], ["hund"]) == (None, f"no groups by the rarest word: {HUB}")


def test_a_run_is_examined(run: Path) -> None:
    one = examine_run(read_run(run), "cpu", None, silent)
    assert [outputs.split for outputs in one.outputs] == ["test", "valid"]
    test, valid = one.outputs
    assert (len(test.sources), len(valid.sources), valid.left_out) == (6, 4, 2), "of validation as many as in training"
    direct = evaluate(Translator.load(run, "cpu"), test.sources, [test.references])
    assert test.translations == direct.translations
    assert test.scores == direct.scores
    assert all(score.interval is not None for score in test.scores)
    assert one.engine.startswith("ctranslate2 (float32) on ")
    assert "/" not in one.engine.split(" on ")[0], "no place on this machine"
    assert one.notes == []
    assert one.training is not None
    assert 1 <= len(one.attentions) <= 3
    assert {attention.sentence for attention in one.attentions} <= {*test.sources}
    few = examine_run(read_run(run), "cpu", 2, silent)
    assert [(len(outputs.sources), outputs.left_out) for outputs in few.outputs] == [(2, 4), (2, 4)]


def test_what_is_gone_is_noted(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = make_run(tmp_path / "other" / "run")
    (other.parent / "train.de").unlink()
    one = examine_run(read_run(other), "cpu", None, silent)
    assert [outputs.split for outputs in one.outputs] == ["test", "valid"]
    assert one.training is None
    (note,) = one.notes
    assert "train.de: no such file" in note
    (other.parent / "valid.de").unlink()
    one = examine_run(read_run(other), "cpu", None, silent)
    assert (len(one.outputs), len(one.notes)) == (0, 2)
    assert not any("--source" in note for note in one.notes), "an option that the command does not have"
    lone = make_run(tmp_path / "lone" / "run", "data.test=null")
    assert [outputs.split for outputs in examine_run(read_run(lone), "cpu", None, silent).outputs] == ["valid"]
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copy(run / "config.yaml", begun)
    one = examine_run(read_run(begun), "cpu", None, silent)
    assert "has no checkpoint yet" in one.notes[0]
    monkeypatch.setattr(of_outputs, "find_spec", lambda name: None)
    assert examine_run(read_run(run), "cpu", 2, silent).attentions == []


def test_the_device_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = Translator.load(run, "cpu", engine="torch")
    translator.engine_choice = "engine: torch (a reason); converted, cached in /home"
    monkeypatch.setattr(of_outputs, "usable_cores", lambda: 1)
    monkeypatch.setattr(of_outputs, "processor", lambda: "")
    assert of_outputs.engine_of(translator) == "torch (a reason) on a CPU, 1 core"
    translator.engine_choice = "engine: ctranslate2 (float32, cuda)"
    translator.engine = object()  # type: ignore[assignment]
    assert of_outputs.engine_of(translator) == "ctranslate2 (float32, cuda) on cuda"


def test_a_tag_stands_before_the_sources_of_its_set(run: Path, tmp_path: Path) -> None:
    tagged = make_run(tmp_path / "tagged" / "run", "data.test.tag=<2en>", "data.train.tag=<2en>")
    one = examine_run(read_run(tagged), "cpu", None, silent)
    test = one.outputs[0]
    assert test.tag == "<2en>"
    translator = Translator.load(tagged, "cpu")
    direct = translator.translate_batch(test.sources, alignments=False, tag="<2en>")
    assert test.translations == [translation.text for translation in direct]
    assert all("<2en>" in attention.source[:2] for attention in one.attentions), "which the model attends to"
    assert not any("<2en>" in source for source in test.sources)
