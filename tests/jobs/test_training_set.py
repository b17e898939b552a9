"""A training set is there whole or not at all; what it was made of is known by name."""

import gzip
import json
import shlex
from collections import Counter
from pathlib import Path

import pytest

from transformer_cli.config import parse_config
from transformer_cli.data.corpora import TextCorpus
from transformer_cli.decoding.constraints import Line
from transformer_cli.errors import UserError
from transformer_cli.jobs.shards import Parts, Shard, check_recipe, kept
from transformer_cli.jobs.training_set import TrainingSet, setting
from transformer_cli.storage.holding import MARK, MARKED

DATA = "data: {{source_language: {0}, target_language: {1}, train: {{file: t.tsv}}, valid: {{file: t.tsv}}}}"
LANGUAGES = ("de", "en")


def test_files_are_named_after_the_languages(tmp_path: Path) -> None:
    assert TrainingSet.of(tmp_path, LANGUAGES) == TrainingSet(tmp_path, "train.de", "train.en")
    assert TrainingSet.of(tmp_path, LANGUAGES, compressed=True) == TrainingSet(tmp_path, "train.de.gz", "train.en.gz")
    assert TrainingSet.of(tmp_path, ("xx", "XX")) == TrainingSet(tmp_path, "train.source", "train.target")


@pytest.mark.parametrize("folder", ["a/b-c.d", "has space", "it's", "a, b: {c}", 'say "x"', "Ä", "#x", "- x"])
def test_the_option_names_the_files_whatever_they_are_called(folder: str) -> None:
    option, value = shlex.split(setting(TrainingSet(Path(folder), "train.de", "train.en").files))
    assert option == "--set"
    train = parse_config(DATA.format("de", "en"), "config.yaml", [value]).data.sources["data.train"]
    assert train.model_dump(exclude_unset=True) == {"source": f"{folder}/train.de", "target": f"{folder}/train.en"}


PAIRS = [("eins", "ONE"), ("", ""), ("drei", "THREE\r"), ("v\u2028ier", "")]


@pytest.mark.parametrize("compressed", [False, True])
def test_pairs_stay_in_their_places(compressed: bool, tmp_path: Path) -> None:
    """In lines of their own, whatever other programs take for a line end."""
    made = TrainingSet.of(tmp_path / "out", LANGUAGES, compressed=compressed)
    assert made.write({"teacher": "x"}, iter(PAIRS)) == 2
    read = TextCorpus(made.folder / made.source, made.folder / made.target)
    assert list(read.pairs()) == [("eins", "ONE"), ("", ""), ("drei", "THREE "), ("v ier", "")]
    assert read.notes == []
    assert made.is_finished({"teacher": "x"})
    if compressed:
        assert gzip.decompress((made.folder / made.source).read_bytes()).startswith(b"eins\n")


def test_what_fails_half_way_is_not_published(tmp_path: Path) -> None:
    pairs = (pair for pair in [*PAIRS, None])
    with pytest.raises(TypeError):
        TrainingSet.of(tmp_path / "out", LANGUAGES).write({}, pairs)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared(tmp_path: Path) -> None:
    """Not what somebody else has called so."""
    for name in (".tmp-out-0123abcd", ".tmp-out-4567abcd"):
        (tmp_path / name / "content").mkdir(parents=True)
    (tmp_path / ".tmp-out-0123abcd" / MARK).write_text(MARKED)
    TrainingSet.of(tmp_path / "out", LANGUAGES).write({}, PAIRS)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-out-4567abcd", "out"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    made = TrainingSet.of(tmp_path / "out", LANGUAGES)
    assert not made.is_finished({})
    made.folder.mkdir()
    assert not made.is_finished({})  # an empty one may be filled
    (made.folder / "mine").write_text("")
    with pytest.raises(UserError, match="does not hold a training set"):
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


def test_the_recipe_lies_beside_the_files(tmp_path: Path) -> None:
    made = TrainingSet.of(tmp_path / "out", LANGUAGES)
    made.write({"beam_size": 5}, PAIRS)
    assert json.loads((made.folder / "recipe.json").read_text()) == {"beam_size": 5}
    manifest = json.loads((made.folder / "manifest.json").read_text())
    assert sorted(manifest["sha256"]) == ["recipe.json", "train.de", "train.en"]
