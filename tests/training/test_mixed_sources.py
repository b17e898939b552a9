"""Training on a list of sources: the same run as on one source where it says the same, exact resume, tags obeyed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import WORDS, write_corpus
from transformer_cli.config import Config, config_of_tree
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.training.run import train

MakeTree = Callable[..., dict[str, Any]]
MakeMixed = Callable[..., Config]


def weights(run: Path, step: int) -> bytes:
    return (run / f"step-{step:08}" / "model.safetensors").read_bytes()


@pytest.fixture
def mixed(tmp_path: Path, tiny_tree: MakeTree) -> MakeMixed:
    """Call it with training values: two sources, the second with a tag and half of it in an epoch."""
    tree = tiny_tree(tmp_path, pairs=400)
    other = write_corpus(tmp_path, "other", 100, seed=3)

    def make(weight: float = 0.5, tag: str | None = "<bt>", **training: Any) -> Config:
        sources = [tree["data"]["train"], {**other, "weight": weight, "tag": tag}]
        return config_of_tree(
            {**tree, "data": {**tree["data"], "train": sources}, "training": tree["training"] | training}, "tree"
        )

    return make


@pytest.mark.medium
def test_a_mixture_continues_as_if_never_interrupted(tmp_path: Path, mixed: MakeMixed, capsys: Any) -> None:
    """Over three epochs, in each of which another half of a source is drawn."""
    training = {"batch_tokens": 400, "save_every": 5}
    train(mixed(max_steps=30, **training), tmp_path / "whole")
    shown = capsys.readouterr().err
    assert "data         500 pairs" in shown
    assert "data.train.1: 100 pairs, each 0.5 times in an epoch, with <bt> before them" in shown
    last = json.loads((tmp_path / "whole" / "step-00000030" / "training.json").read_text())
    assert last["progress"]["position"][0] >= 2
    for steps in (7, 30):
        train(mixed(max_steps=steps, **training), tmp_path / "parts", quiet=True)
    assert weights(tmp_path / "whole", 30) == weights(tmp_path / "parts", 30)


def test_a_list_of_one_source_is_that_source(tmp_path: Path, tiny_tree: MakeTree) -> None:
    tree = tiny_tree(tmp_path, max_steps=3)
    train(config_of_tree(tree, "one"), tmp_path / "one", quiet=True)
    tree["data"]["train"] = [{**tree["data"]["train"], "weight": 1.0}]
    train(config_of_tree(tree, "list"), tmp_path / "list", quiet=True)
    assert weights(tmp_path / "one", 3) == weights(tmp_path / "list", 3)


def test_weight_and_tag_cannot_change_once_there_is_a_checkpoint(tmp_path: Path, mixed: MakeMixed) -> None:
    train(mixed(max_steps=2), tmp_path / "run", quiet=True)
    for other in ({"weight": 0.4}, {"tag": "<x>"}, {"tag": None}):
        with pytest.raises(UserError, match=r"(data\.train|vocabulary\.symbols) = .*--fresh"):
            train(mixed(max_steps=3, **other), tmp_path / "run", quiet=True)


def test_a_fault_in_any_source_is_found_before_anything_is_written(tmp_path: Path, mixed: MakeMixed) -> None:
    (tmp_path / "other.en").unlink()
    with pytest.raises(UserError, match=r"data\.train\.1\.target: .*other\.en: no such file"):
        train(mixed(), tmp_path / "run", quiet=True)
    (tmp_path / "other.en").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match=r"other\.en:1: .*UTF-8"):
        train(mixed(), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_validation_pairs_come_from_sources_without_a_tag(tmp_path: Path, mixed: MakeMixed) -> None:
    def without_valid(config: Config) -> Config:
        return config_of_tree(
            {**(tree := config.model_dump(mode="json")), "data": {**tree["data"], "valid": None}}, "x"
        )

    train(without_valid(mixed(max_steps=2)), tmp_path / "run", quiet=True)
    held_out = (tmp_path / "run" / "held-out" / "source.de").read_text().splitlines()
    assert {*held_out} <= {*(tmp_path / "train.de").read_text().splitlines()}
    config = without_valid(mixed(max_steps=2))
    sources = [
        source.model_copy(update={"tag": tag})
        for source, tag in zip(config.data.sources.values(), ("<a>", "<b>"), strict=True)
    ]
    both = config.model_copy(update={"data": config.data.model_copy(update={"train": sources})})
    with pytest.raises(UserError, match=r"data\.valid: is not set, and .* different tags \(<a>, <b>\)"):
        train(both, tmp_path / "both", quiet=True)
    assert not (tmp_path / "both").exists()


@pytest.mark.medium
def test_a_tag_says_which_of_two_languages_is_meant(tmp_path: Path, tiny_tree: MakeTree) -> None:
    """The same source sentences, translated word by word after one tag and copied after another."""
    tree = tiny_tree(tmp_path, pairs=800, longest=4, max_steps=200, validate_every=200, save_every=200)
    tree["training"] |= {"schedule": "cosine", "peak_learning_rate": 0.004, "warmup_steps": 50, "batch_tokens": 400}
    tree["model"] |= {"d_model": 64, "heads": 4, "d_ff": 128, "dropout": 0.0}
    text = tree["data"]["train"]
    (tmp_path / "copied.en").write_bytes(Path(text["source"]).read_bytes())
    copied = {"source": text["source"], "target": str(tmp_path / "copied.en")}
    tree["data"]["train"] = [{**text, "tag": "<translate>"}, {**copied, "tag": "<copy>"}]
    tree["data"]["valid"]["tag"] = "<translate>"
    train(config_of_tree(tree, "tree"), tmp_path / "run", quiet=True)
    translator = Translator.load(tmp_path / "run")
    words = [*WORDS][:3]
    line = " ".join(words)
    assert translator.translate(f"<translate> {line}") == " ".join(WORDS[word] for word in words)
    assert translator.translate(f"<copy> {line}") == line
    found = [translator.translate_batch([line], tag=tag)[0] for tag in ("<translate>", "<copy>")]
    assert [one.text for one in found] == [" ".join(WORDS[word] for word in words), line]
    assert [one.source_tokens for one in found] == [translator.codecs.source.tokenize(line)] * 2


@pytest.mark.parametrize("own", ["<bt>", None])
def test_validation_reads_each_tag_once(
    tmp_path: Path, mixed: MakeMixed, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    """`data.valid` has it of its own, or from `decoding.tag`."""
    tree = mixed(max_steps=2, validate_every=2).model_dump(mode="json")
    tree["decoding"]["tag"] = "<bt>"
    tree["data"]["valid"]["tag"] = own
    real = Translator.translate_batch
    chunks: list[tuple[list[int], int]] = []

    def noting(self: Translator, *given: Any, **options: Any) -> Any:
        found = real(self, *given, **options)
        chunks.extend((chunk.ids, self.codecs.source.vocabulary["<bt>"]) for one in found for chunk in one.chunks)
        return found

    monkeypatch.setattr(Translator, "translate_batch", noting)
    train(config_of_tree(tree, "tree"), tmp_path / "run", quiet=True)
    assert chunks
    assert {ids.count(tag) for ids, tag in chunks} == {1}
