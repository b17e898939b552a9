"""Embeddings that begin with the word vectors of a file: their scale, their place, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transformer_cli.build import load_model
from transformer_cli.config import Config
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import RunFolder
from transformer_cli.training.run import train

MakeTree = Callable[..., dict[str, Any]]
SIZE = 16


def write_vectors(path: Path, words: list[str], size: int = SIZE) -> Tensor:
    """A file with vectors far from what a model draws; returns them. (N, D)"""
    vectors = torch.randn(len(words), size, generator=torch.Generator().manual_seed(5)) * 7.0 + 3.0
    rows = zip(words, vectors.tolist(), strict=True)
    path.write_text("".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows))
    return vectors


def trained(tmp_path: Path, tree: dict[str, Any], name: str) -> dict[str, Tensor]:
    """A run's tables after its steps, by side, and its tokens."""
    train(Config.model_validate(tree), tmp_path / name, quiet=True)
    loaded = load_model(RunFolder(tmp_path / name).step_folder(tree["training"]["max_steps"]))
    model = loaded.model
    return {
        "source": model.source_embedding.tokens.table.weight.detach(),
        "target": model.target_embedding.tokens.table.weight.detach(),
        "ids": torch.tensor(loaded.codecs.source.vocabulary.lookup_indices(["balan", "demer", "finis"])),
    }


@pytest.mark.parametrize("tie", ["none", "all"])
def test_rows_of_known_words_are_the_files_rescaled_and_the_others_as_drawn(
    tmp_path: Path, tiny_tree: MakeTree, tie: str
) -> None:
    tree = tiny_tree(tmp_path, max_steps=1, factor=1e-30)  # nothing learned
    tree["model"]["tie_embeddings"] = tie
    plain = trained(tmp_path, tree, "plain")
    vectors = write_vectors(tmp_path / "vectors.txt", ["balan", "demer", "finis", "elsewhere"])[:3]
    tree["training"]["source_vectors"] = str(tmp_path / "vectors.txt")
    ours = trained(tmp_path, tree, "ours")
    rows = ours["source"][ours["ids"]]
    assert float(rows.square().mean().sqrt()) == pytest.approx(SIZE**-0.5, rel=1e-4), "as rows that were drawn"
    factors = rows / vectors
    torch.testing.assert_close(factors, factors[0, 0].expand_as(factors), rtol=1e-4, atol=0)
    others = torch.ones(len(plain["source"]), dtype=torch.bool)
    others[ours["ids"]] = False
    torch.testing.assert_close(ours["source"][others], plain["source"][others], rtol=0, atol=1e-6)
    expected = ours["source"] if tie == "all" else plain["target"]
    torch.testing.assert_close(ours["target"], expected, rtol=0, atol=1e-6)


def test_the_run_says_how_much_the_file_covers_and_reads_it_once(
    tmp_path: Path, tiny_tree: MakeTree, capsys: Any
) -> None:
    path = tmp_path / "vectors.txt"
    write_vectors(path, ["balan", "demer", "elsewhere"])
    tree = tiny_tree(tmp_path, max_steps=1, target_vectors=str(path))
    tree["vocabulary"]["shared"] = False
    tree["model"]["tie_embeddings"] = "decoder"
    with pytest.raises(
        UserError, match=r"^training\.target_vectors: .*vectors\.txt: none of its 3 words is in the voc"
    ):
        train(Config.model_validate(tree), tmp_path / "run")  # they are words of the source
    tree["training"] |= {"source_vectors": str(path), "target_vectors": None}
    capsys.readouterr()
    train(Config.model_validate(tree), tmp_path / "run", fresh=True)
    said = capsys.readouterr().err
    lines = (tmp_path / "train.de").read_text().split()
    running = sum(word in ("balan", "demer") for word in lines) / len(lines)
    assert f"vectors      source: 2 of 15 types (13.3%), {running:.1%} of running tokens have one of the 3 in" in said
    path.unlink()  # a run that goes on has them already
    tree["training"]["max_steps"] = 2
    assert train(Config.model_validate(tree), tmp_path / "run", quiet=True).step == 2


def test_frozen_vectors_stay(tmp_path: Path, tiny_tree: MakeTree) -> None:
    write_vectors(tmp_path / "vectors.txt", ["balan", "demer", "finis"])
    tree = tiny_tree(tmp_path, max_steps=1, factor=1e-30, source_vectors=str(tmp_path / "vectors.txt"))
    tree["model"]["tie_embeddings"] = "none"
    tree["training"]["freeze"] = ("source_embedding",)
    first = trained(tmp_path, tree, "first")
    tree["training"] |= {"factor": 10.0, "max_steps": 3}
    second = trained(tmp_path, tree, "second")
    assert torch.equal(first["source"], second["source"])
    assert not torch.equal(first["target"], second["target"])


def test_a_file_that_will_not_do_is_reported_before_anything_is_built(tmp_path: Path, tiny_tree: MakeTree) -> None:
    write_vectors(tmp_path / "vectors.txt", ["balan"], size=5)
    for path, message in ((tmp_path / "vectors.txt", ":1: has 5 numbers"), (tmp_path / "no.txt", ": no such file")):
        tree = tiny_tree(tmp_path, source_vectors=str(path))
        with pytest.raises(UserError, match=rf"^training\.source_vectors: .*\.txt{message}"):
            train(Config.model_validate(tree), tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()


def test_numbers_that_are_all_zero_have_no_scale(tmp_path: Path, tiny_tree: MakeTree) -> None:
    (tmp_path / "zeros.txt").write_text("balan" + " 0.0" * SIZE + "\n")
    tree = tiny_tree(tmp_path, source_vectors=str(tmp_path / "zeros.txt"))
    with pytest.raises(UserError, match="all of their numbers are 0"):
        train(Config.model_validate(tree), tmp_path / "run", quiet=True)
