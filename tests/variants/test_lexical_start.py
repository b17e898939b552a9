"""Embeddings that begin near those of their translations: where they point, how long they are, what stays, and when."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from tests.variants.test_lexicon import Pairs, made_up
from transformer_cli.build import build_model, load_model
from transformer_cli.config import Config, ModelConfig
from transformer_cli.model.transformer import Transformer
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import SPECIALS, Vocabulary
from transformer_cli.training import run
from transformer_cli.training.run import train
from transformer_cli.variants.embeddings import OWN, begin_near_translations
from transformer_cli.variants.lexicon import SPAN, Direction, Lexicon, learn_lexicon

MakeTree = Callable[..., dict[str, Any]]
SIZES = 200, 150  # of the source's and the target's vocabulary, where tables are apart
TAG = "w0"


def model_of(tie: str) -> Transformer:
    torch.manual_seed(3)
    shape: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 64, "heads": 2, "d_ff": 8}
    return build_model(ModelConfig(**shape | {"tie_embeddings": tie}), SIZES[0], SIZES[tie != "all"])


def tables(model: Transformer) -> tuple[Tensor, Tensor]:
    source, target = (side.tokens.table.weight for side in (model.source_embedding, model.target_embedding))
    return source.detach().clone(), target.detach().clone()


def lexicon_of(links: Sequence[tuple[int, int, float, float]]) -> Lexicon:
    """Links of a source and a target id, with the probabilities in both directions."""
    ours, theirs, ahead, back = zip(*sorted(links), strict=True) if links else ((),) * 4
    directions = (Direction(torch.tensor(some), torch.zeros(max(SIZES))) for some in (ahead, back))
    ids = (torch.tensor(side, dtype=torch.long) for side in (ours, theirs))
    return Lexicon(next(ids) * SPAN + next(ids), *directions)


def begin(model: Transformer, lexicon: Lexicon) -> list[str]:
    """The first word of both vocabularies, the id 4, is a symbol."""
    tokenizer = SimpleNamespace(separator=None, symbol_tokens=list)
    codecs = [
        SimpleNamespace(
            vocabulary=Vocabulary([*SPECIALS, *(f"w{n}" for n in range(len(table) - len(SPECIALS)))]),
            tokenizer=tokenizer,
        )
        for table in tables(model)
    ]
    config = SimpleNamespace(vocabulary=SimpleNamespace(symbols=[TAG]))
    sides = cast(Codecs, SimpleNamespace(source=codecs[0], target=codecs[1]))
    return begin_near_translations(cast(Config, config), model, sides, lexicon)


@pytest.mark.parametrize("tie", ["none", "all"])
def test_tokens_point_to_the_mean_of_their_translations_and_keep_their_length(tie: str) -> None:
    model = model_of(tie)
    source, target = tables(model)
    links = [(5, 20, 0.5, 0.32), (5, 21, 0.1, 0.1), (6, 20, 0.9, 0.9), (6, 6, 0.2, 0.8), (180, 140, 1.0, 1.0)]
    marks = [(1, 20, 1.0, 1.0), (7, 3, 1.0, 1.0), (4, 20, 1.0, 1.0), (7, 4, 1.0, 1.0)]
    copied = [(300, 20, 1.0, 1.0), (7, 300, 1.0, 1.0)]  # ids that a pointer has beyond both vocabularies
    said = begin(model, lexicon_of([*links, *marks, *copied]))
    types = len(target) - len(SPECIALS)
    assert said == [
        f"embeddings   3 of 196 source tokens and 4 of {types} target tokens begin near those that translate them"
    ]

    def unit(vector: Tensor) -> Tensor:
        return normalize(vector, dim=0)

    ours = source.clone()
    for token, mean in {
        5: 0.4 * unit(target[20]) + 0.1 * unit(target[21]),
        6: 0.9 * unit(target[20]) + 0.4 * unit(target[6]),
        180: target[140],
    }.items():
        ours[token] = unit(unit(mean) + OWN * unit(source[token])) * source[token].norm()
    theirs = ours.clone() if tie == "all" else target.clone()
    before = theirs.clone()
    means = {20: 0.4 * unit(ours[5]) + 0.9 * unit(ours[6]), 21: ours[5], 6: ours[6], 140: ours[180]}
    for token, mean in means.items():
        theirs[token] = unit(unit(mean) + unit(before[token])) * before[token].norm()
    for found, expected in zip(tables(model), (theirs if tie == "all" else ours, theirs), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("links", [[], [(1, 20, 1.0, 1.0)]])
def test_where_nothing_is_known_nothing_changes(links: list[tuple[int, int, float, float]]) -> None:
    model = model_of("none")
    before = tables(model)
    assert begin(model, lexicon_of(links))[0].startswith("embeddings   0 of 196 source tokens and 0 of ")
    assert all(map(torch.equal, before, tables(model)))


def nearest(table: Tensor) -> Tensor:
    """Which of 39 target words each of 39 source words points to."""
    return cosine_similarity(table[5:44, None], table[None, 105:144], dim=2).argmax(dim=1)


def test_what_translates_a_token_is_nearest_to_it() -> None:
    model = model_of("all")
    pairs, _ = made_up(400)  # word n is translated by n + 100
    before, _ = tables(model)
    begin(model, learn_lexicon(Pairs(pairs)))
    after, _ = tables(model)
    shares = [float((nearest(table) == torch.arange(39)).float().mean()) for table in (before, after)]
    assert shares[0] < 0.2
    assert shares[1] == 1.0


@pytest.mark.medium
@pytest.mark.parametrize("guide", [None, {"prior": "alignments", "weight": 0.05}])
def test_a_new_run_begins_near_translations_and_learns_the_lexicon_once(
    guide: dict[str, Any] | None,
    tmp_path: Path,
    tiny_tree: MakeTree,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learned = []

    def learn(corpus: Any) -> Lexicon:
        learned.append(learn_lexicon(corpus))
        return learned[-1]

    monkeypatch.setattr(run, "learn_lexicon", learn)
    every = {"max_steps": 4, "save_every": 2, "validate_every": 2, "guided_attention": guide}
    config = Config.model_validate(tiny_tree(tmp_path, **every, init_embeddings="lexicon"))
    train(config, tmp_path / "whole")
    assert len(learned) == 1
    assert "begin near those that translate them" in capsys.readouterr().err
    train(config, tmp_path / "parts", until=2)
    capsys.readouterr()
    train(config, tmp_path / "parts")
    assert len(learned) == 2 + (guide is not None), "to guide attention it is needed again, to begin it is not"
    assert "begin near" not in capsys.readouterr().err
    whole, parts = ((RunFolder(tmp_path / name).step_folder(4) / WEIGHTS).read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def test_only_directions_of_embeddings_differ_from_a_random_start_and_a_parent_keeps_its_own(
    tmp_path: Path, tiny_tree: MakeTree
) -> None:
    def weights(name: str, **training: Any) -> dict[str, Tensor]:
        tree = tiny_tree(tmp_path, max_steps=1, factor=1e-30, **training)  # nothing learned
        train(Config.model_validate(tree), tmp_path / name, quiet=True)
        return dict(load_model(RunFolder(tmp_path / name).step_folder(1)).model.named_parameters())

    drawn = weights("random")
    near = weights("near", init_embeddings="lexicon")
    child = weights("child", init_embeddings="lexicon", init_from=str(tmp_path / "random"))
    differ = {name for name in drawn if not torch.allclose(near[name], drawn[name], rtol=0, atol=1e-6)}
    assert differ
    assert all("embedding" in name or "generator" in name for name in differ)
    for name in drawn:
        torch.testing.assert_close(child[name], drawn[name], rtol=0, atol=1e-6)
        if name in differ:
            torch.testing.assert_close(near[name].norm(dim=1), drawn[name].norm(dim=1), rtol=1e-4, atol=1e-6)


def test_without_it_no_lexicon_is_learned(tmp_path: Path, tiny_tree: MakeTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "learn_lexicon", lambda _: pytest.fail("learned"))
    train(Config.model_validate(tiny_tree(tmp_path, max_steps=1)), tmp_path / "plain", quiet=True)
    tree = tiny_tree(tmp_path, max_steps=1, guided_attention={"prior": "diagonal"})
    train(Config.model_validate(tree), tmp_path / "diagonal", quiet=True)
