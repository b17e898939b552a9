"""A distilled training set is the corpus with other targets; what it was made of is known by name."""

import gzip
import json
import shlex
from collections import Counter
from pathlib import Path

import pytest
from sacrebleu.metrics.chrf import CHRF

from transformer_cli.config import Config, parse_config
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.decoding.constraints import Line
from transformer_cli.decoding.translation import Candidate, Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.distilling import TrainingSet, check_recipe, closest, kept, write_training_set
from transformer_cli.jobs.shards import Parts, Shard
from transformer_cli.storage.holding import MARK, MARKED

DATA = "data: {{source_language: {0}, target_language: {1}, train: {{file: t.tsv}}, valid: {{file: t.tsv}}}}"


def candidate(text: str) -> Candidate:
    return Candidate(text, -1.0, -1.0, text.split(), None, ended=True)


def config(source: str = "de", target: str = "en") -> Config:
    return parse_config(DATA.format(source, target), "config.yaml")


@pytest.fixture
def corpus(tmp_path: Path) -> TextCorpus:
    """Four pairs: one without a source, one without a target, one with what other programs take for a line end."""
    (tmp_path / "a").write_text("eins\n\ndrei\nv\u2028ier\n", encoding="utf-8")
    (tmp_path / "b").write_text("one\ntwo\n\nfour\n", encoding="utf-8")
    return TextCorpus(tmp_path / "a", tmp_path / "b")


def test_files_are_named_after_the_languages(tmp_path: Path) -> None:
    assert TrainingSet.of(tmp_path, config()) == TrainingSet(tmp_path, "train.de", "train.en")
    assert TrainingSet.of(tmp_path, config(), compressed=True) == TrainingSet(tmp_path, "train.de.gz", "train.en.gz")
    assert TrainingSet.of(tmp_path, config("xx", "XX")) == TrainingSet(tmp_path, "train.source", "train.target")


@pytest.mark.parametrize("folder", ["a/b-c.d", "has space", "it's", "a, b: {c}", 'say "x"', "Ä", "#x", "- x"])
def test_the_option_names_the_files_whatever_they_are_called(folder: str) -> None:
    option, value = shlex.split(TrainingSet(Path(folder), "train.de", "train.en").setting)
    assert option == "--set"
    train = parse_config(DATA.format("de", "en"), "config.yaml", [value]).data.sources["data.train"]
    assert train.model_dump(exclude_unset=True) == {"source": f"{folder}/train.de", "target": f"{folder}/train.en"}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("with_original", [False, True])
def test_pairs_stay_in_their_places(compressed: bool, with_original: bool, corpus: TextCorpus, tmp_path: Path) -> None:
    made = TrainingSet.of(tmp_path / "out", config(), compressed=compressed)
    targets = ["ONE", "", "THREE\r", ""]
    notes = write_training_set(made, {"teacher": "x"}, corpus, iter(targets), with_original=with_original)
    expected = [("eins", "ONE"), ("", ""), ("drei", "THREE "), ("v ier", "")]
    if with_original:
        expected += [("eins", "one"), ("", "two"), ("drei", ""), ("v ier", "four")]
    read = TextCorpus(made.folder / made.source, made.folder / made.target)
    assert list(read.pairs()) == expected
    assert read.notes == []
    empty = sum(not (source and target) for source, target in expected)
    assert notes == [f"{empty} pairs have an empty side; they stay in their places, and training leaves them out"]
    assert made.is_finished({"teacher": "x"})
    if compressed:
        assert gzip.decompress((made.folder / made.source).read_bytes()).startswith(b"eins\n")


@pytest.mark.parametrize("targets", [["a"] * 3, ["a"] * 5])
def test_what_does_not_fit_the_corpus_is_not_published(targets: list[str], corpus: TextCorpus, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="zip"):
        write_training_set(TrainingSet.of(tmp_path / "out", config()), {}, corpus, targets, with_original=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_a_killed_process_left_is_cleared(corpus: TextCorpus, tmp_path: Path) -> None:
    """Not what somebody else has called so."""
    for name in (".tmp-out-0123abcd", ".tmp-out-4567abcd"):
        (tmp_path / name / "content").mkdir(parents=True)
    (tmp_path / ".tmp-out-0123abcd" / MARK).write_text(MARKED)
    write_training_set(TrainingSet.of(tmp_path / "out", config()), {}, corpus, ["a"] * 4, with_original=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-out-4567abcd", "a", "b", "out"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    made = TrainingSet.of(tmp_path / "out", config())
    assert not made.is_finished({})
    made.folder.mkdir()
    assert not made.is_finished({})  # an empty one may be filled
    (made.folder / "mine").write_text("")
    with pytest.raises(UserError, match="does not hold a distilled"):
        made.is_finished({})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"teacher": ["b" * 64]}, "another teacher;"),
        ({"beam_size": 4}, r"beam_size 5 \(now 4\);"),
        ({"beam_size": None}, r"beam_size 5 \(now default\);"),
        ({"seed": 3}, r"seed default \(now 3\);"),
        ({"guard": False}, r"guard True \(now False\);"),
        ({"guard": False, "teacher": ["c" * 64]}, r"another teacher, guard True \(now False\);"),
    ],
)
def test_another_recipe_is_refused_by_name(change: dict[str, object], said: str, tmp_path: Path) -> None:
    recipe = {"teacher": ["a" * 64], "beam_size": 5, "guard": True}
    parts = Parts(tmp_path / "out")
    with parts.held(), kept(recipe, parts):
        parts.keep(Shard(0, 0, [Line("x")]).name("r"), ["y"], Counter())
    with (
        parts.held(),
        pytest.raises(UserError, match=f"out.parts: was made with {said}"),
        kept({**recipe, **change}, parts),
    ):
        pass
    with parts.held(), kept(recipe, parts):
        check_recipe(parts.folder, recipe)
        parts.remove()
    assert not parts.folder.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
def test_a_damaged_recipe_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        check_recipe(tmp_path, {})


def test_the_closest_is_the_one_of_the_highest_chrf() -> None:
    """By sacreBLEU's sentence chrF; of equals the first, and where the reference is empty."""
    hypotheses = [
        ["a dog runs", "the dog is running", "a dog sleeps here"],
        ["one", "two", "three"],
        ["same", "same", "other"],
    ]
    references = ["the dog was running fast", "", "else"]
    shard = Shard(0, 7, [Line("x")] * 3, references)
    chosen = list(
        closest(shard, [Translation(Line("x"), [], [candidate(text) for text in texts]) for texts in hypotheses])
    )
    for texts, reference, text in zip(hypotheses, references, chosen, strict=True):
        scores = [CHRF().sentence_score(one, [reference]).score if reference else 0.0 for one in texts]
        assert text == texts[scores.index(max(scores))]
    assert chosen[0] == "the dog is running"


def test_a_shards_name_tells_its_references() -> None:
    lines = [Line("x")]
    assert len({Shard(0, 0, lines, references).name("r") for references in ([], ["a"], ["b"])}) == 3


def test_the_recipe_lies_beside_the_files(corpus: TextCorpus, tmp_path: Path) -> None:
    made = TrainingSet.of(tmp_path / "out", config())
    write_training_set(made, {"beam_size": 5}, corpus, ["a"] * 4, with_original=False)
    assert json.loads((made.folder / "recipe.json").read_text()) == {"beam_size": 5}
    manifest = json.loads((made.folder / "manifest.json").read_text())
    assert sorted(manifest["sha256"]) == ["recipe.json", "train.de", "train.en"]
