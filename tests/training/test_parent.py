"""A run that starts from a model with a vocabulary of its own: which rows its tables begin with."""

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import WORDS
from transformer_cli.build import LoadedModel, build_model, load_model, set_target_ids
from transformer_cli.codecs import model_codecs
from transformer_cli.config import Config, config_of_tree
from transformer_cli.errors import UserError
from transformer_cli.storage.run_folder import WEIGHTS, RunFolder
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codec, Codecs
from transformer_cli.text.vocabulary import SPECIALS, Vocabulary
from transformer_cli.training.parent import TABLES, begin_as_parent, find_beginnings
from transformer_cli.training.run import train
from transformer_cli.training.start import build_vocabulary

MakeTree = Callable[..., dict[str, Any]]

SENTENCES = [" ".join(random.Random(seed).choices(sorted(WORDS), k=5)) for seed in range(60)]
SUBWORDS = {"tokenizer": "sentencepiece", "algorithm": "bpe", "size": 320}
SMALL = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "heads": 2, "d_ff": 32}


def made(model: dict[str, Any], vocabulary: dict[str, Any], texts: list[str] = SENTENCES) -> LoadedModel:
    """A model with random weights, and codecs of these texts on both sides; the target's are longer by a word."""
    data = {"source_language": "de", "target_language": "en", "train": {"source": "a", "target": "b"}}
    tree = {"data": data, "vocabulary": vocabulary, "model": {**SMALL, **model}}
    config = config_of_tree(tree, "my.yaml")
    plain, _ = build_codecs(config, lambda: [(text, f"{text} ende") for text in texts])
    return with_codecs(config, model_codecs(plain, config))


def with_codecs(config: Config, codecs: Codecs) -> LoadedModel:
    built = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary)).eval()
    set_target_ids(built, codecs)
    return LoadedModel(config, codecs, built, Path("parent"))


def permuted(codec: Codec) -> Codec:
    """The same codec with its tokens in another order, specials first."""
    tokens = codec.vocabulary.get_itos()[len(SPECIALS) :]
    random.Random(1).shuffle(tokens)
    return Codec(codec.tokenizer, Vocabulary([*SPECIALS, *tokens]), codec.preparation)


def log_probs(one: LoadedModel, source: str, target: str) -> tuple[torch.Tensor, list[str]]:
    """What a model gives to each next token (T, V), and the names of the columns."""
    source_ids, target_ids = one.codecs.encode_pairs([source], [target])
    ids = torch.tensor([[*source_ids[0], 3]])
    mask = torch.ones(1, 1, 1, ids.size(1), dtype=torch.bool)
    shown = [index for index in target_ids[0] if index < len(one.codecs.target.vocabulary)]
    with torch.no_grad():
        found = one.model.generator(one.model(ids, mask, torch.tensor([[2, *shown]])), ids)
    return found[0], one.codecs.target.vocabulary.get_itos()


@pytest.mark.parametrize(
    "model",
    [
        {"tie_embeddings": "all"},
        {"tie_embeddings": "decoder", "generator_bias": True, "positions": "learned", "max_positions": 300},
        {"tie_embeddings": "none", "generator_bias": True},
        {"generator": "pointer"},
        {"embedding": "one_hot", "tie_embeddings": "none"},
    ],
)
def test_with_its_tokens_in_another_order_it_is_the_same_model(model: dict[str, Any]) -> None:
    """Whatever is tied, copied or learned beside; each probability is that of the parent for the same token."""
    parent = made(model, {"tokenizer": "whitespace", "shared": True})
    for tensor in parent.model.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.1 * torch.randn_like(tensor)
    codec = permuted(parent.codecs.source)
    child = with_codecs(parent.config, model_codecs(Codecs(codec, codec, parent.config), parent.config))
    (_, counted) = begin_as_parent(child.model, child.codecs, child.config, parent)
    assert ", 0 as the mean of all" in counted
    (theirs, names), (ours, columns) = log_probs(parent, *SENTENCES[:2]), log_probs(child, *SENTENCES[:2])
    assert names != columns
    torch.testing.assert_close(
        ours[:, : len(names)], theirs[:, [names.index(name) for name in columns]], atol=1e-6, rtol=0
    )


def rows(codec: Codec, table: torch.Tensor) -> dict[str, torch.Tensor]:
    return dict(zip(codec.vocabulary.get_itos(), table, strict=True))


@pytest.mark.parametrize(("before", "now"), [(True, False), (False, True)])
@pytest.mark.parametrize("tied", ["none", "decoder"])
def test_each_side_has_the_rows_of_the_same_side(before: bool, now: bool, tied: str) -> None:
    """A vocabulary for both sides gives way to two, or the reverse; a word that only one side knew has no row there."""
    options = {"tie_embeddings": tied, "generator_bias": True}
    parent = made(options, {"tokenizer": "whitespace", "shared": before})
    child = made(options, {"tokenizer": "whitespace", "shared": now})
    parent.model.generator.projection.bias.data.normal_()
    begin_as_parent(child.model, child.codecs, child.config, parent)
    for name, side in TABLES.items():
        assert name.startswith("source") is (side == "source")
        theirs = parent.model.state_dict()[name]
        old, new = rows(getattr(parent.codecs, side), theirs), child.model.state_dict()[name]
        for token, row in rows(getattr(child.codecs, side), new).items():
            assert token in old or token == "ende"
            torch.testing.assert_close(row, old.get(token, theirs.mean(0)), rtol=0, atol=1e-7)
    lines = begin_as_parent(child.model, child.codecs, child.config, parent)
    assert [line.split(":")[0].strip() for line in lines[1:]] == (["source"] if now else ["source", "target"])


def test_the_parent_may_tie_what_the_child_has_apart() -> None:
    """Its one table is what each of theirs begins as."""
    parent = made({"tie_embeddings": "all"}, {"tokenizer": "whitespace"})
    child = made({"tie_embeddings": "none"}, {"tokenizer": "whitespace", "shared": False})
    begin_as_parent(child.model, child.codecs, child.config, parent)
    old = rows(parent.codecs.target, parent.model.source_embedding.tokens.table.weight)
    for token, row in rows(child.codecs.target, child.model.generator.projection.weight).items():
        assert torch.equal(row, old[token])


def beginnings(child: dict[str, Any], parent: dict[str, Any], *words: str) -> dict[str, list[str]]:
    """For each token that a child would have of these words what its row is made of; with `=` what is the same."""
    theirs = made({"tie_embeddings": "decoder"}, {**parent, "shared": False}).codecs.source
    options = {"shared": False, **child}
    ours = made({"tie_embeddings": "decoder"}, options, [*words, *SENTENCES]).codecs.source
    found = find_beginnings(ours, theirs, ours.tokenizer.symbol_tokens(options.get("symbols", [])))
    assert not {*found.same} & {*found.parts}
    names = {index: ["=", theirs.vocabulary.lookup_token(same)] for index, same in found.same.items()}
    names |= {index: theirs.vocabulary.lookup_tokens(parts) for index, parts in found.parts.items()}
    return {token: names.get(index, []) for index, token in enumerate(ours.vocabulary.get_itos())}


def test_a_new_token_begins_as_the_mean_of_its_parts() -> None:
    parent = made({}, SUBWORDS)
    child = made({}, {"tokenizer": "whitespace"}, [*SENTENCES, "balandemer"])
    begin_as_parent(child.model, child.codecs, child.config, parent)
    table = parent.model.target_embedding.tokens.table.weight
    parts = parent.codecs.target.encode("balandemer")
    assert len(parts) > 1
    row = child.model.target_embedding.tokens.table.weight[child.codecs.target.vocabulary["balandemer"]]
    torch.testing.assert_close(row, table[parts].mean(0), rtol=0, atol=1e-7)


def test_words_and_subwords_meet_at_the_same_place_of_a_word() -> None:
    """`▁balan` is the word `balan`; what stands within a word is segmented as it stands there."""
    whole = beginnings({"tokenizer": "whitespace"}, SUBWORDS, "balan", "mer", "ŷ", "balanmer")
    assert whole["balan"] == ["=", "▁balan"]
    assert whole["mer"][0].startswith("▁")
    assert "".join(whole["balanmer"]) == "▁balanmer"
    assert whole["ŷ"] == ["▁", "<0xC5>", "<0xB7>"]
    for special in SPECIALS:
        assert whole[special] == ["=", special]
    pieces = beginnings(SUBWORDS, {"tokenizer": "whitespace"})
    assert pieces["▁balan"] == ["=", "balan"]
    assert pieces["<0x41>"] == pieces["lan"] == []
    letters = beginnings({**SUBWORDS, "size": 312}, {**SUBWORDS, "size": 330})
    assert letters["<0x41>"] == ["=", "<0x41>"]
    longer = beginnings({**SUBWORDS, "size": 330}, {**SUBWORDS, "size": 280})
    inside = {piece: parts for piece, parts in longer.items() if parts[0] != "=" and not piece.startswith("▁")}
    assert inside
    for piece, parts in inside.items():
        assert "".join(parts) == piece, "without the mark of a word's beginning"


def test_within_a_word_what_only_begins_one_is_better_than_nothing() -> None:
    found = beginnings({"tokenizer": "spacy"}, {"tokenizer": "whitespace"}, "balan/demer", "balan/nobody")
    assert found["￭demer"] == ["demer"]
    assert found["￭nobody"] == []


def test_symbols_and_lowercase() -> None:
    """A new symbol is not the mean of its letters; of a parent that lowercases all text the small letters count."""
    found = beginnings({"tokenizer": "whitespace", "symbols": ["<2fr>"]}, {**SUBWORDS, "lowercase": True}, "Balan")
    assert found["<2fr>"] == []
    assert found["Balan"] == ["▁balan"]
    both = {**SUBWORDS, "symbols": ["<2fr>"]}
    assert beginnings(both, both)["<2fr>"] == ["=", "<2fr>"]
    assert beginnings({"tokenizer": "whitespace", "symbols": ["<2fr>"]}, both)["<2fr>"] == ["<2fr>"]


# --- in a run ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path, tiny_tree: MakeTree) -> dict[str, Any]:
    """The tree of a run in tmp_path / "old", set to start from it with a vocabulary of its own."""
    tree = tiny_tree(tmp_path, max_steps=3)
    train(config_of_tree(tree, "my.yaml"), tmp_path / "old", quiet=True)
    return changed(tree, "training", init_from=str(tmp_path / "old"), init_vocabulary="own")


def changed(tree: dict[str, Any], section: str, **values: Any) -> dict[str, Any]:
    return {**tree, section: {**tree.get(section, {}), **values}}


def trained(tree: dict[str, Any], path: Path, **options: Any) -> bytes:
    config = config_of_tree(tree, "my.yaml")
    step = train(config, path, quiet=True, **options).step
    return (RunFolder(path).step_folder(step) / WEIGHTS).read_bytes()


def test_of_the_same_text_it_is_the_run_that_takes_the_vocabulary_over(tmp_path: Path, old: dict[str, Any]) -> None:
    """Bit for bit, after updates too."""
    taken = trained(changed(old, "training", init_vocabulary="parent"), tmp_path / "taken")
    assert trained(old, tmp_path / "own") == taken


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path, old: dict[str, Any]) -> None:
    """From its vocabulary alone, and from a checkpoint, when the parent is gone."""
    child = changed(changed(old, "vocabulary", **SUBWORDS), "data", source_language="fr")
    whole = trained(child, tmp_path / "whole")
    build_vocabulary(config_of_tree(child, "my.yaml"), tmp_path / "parts")
    trained(changed(child, "training", max_steps=1), tmp_path / "parts")
    shutil.rmtree(tmp_path / "old")
    assert trained(child, tmp_path / "parts") == whole
    config = load_model(tmp_path / "parts").config
    assert (config.training.init_from, config.training.init_vocabulary) == (str(tmp_path / "old"), "own")


@pytest.mark.medium
def test_it_says_how_many_rows_begin_as_what(tmp_path: Path, old: dict[str, Any], capsys: Any) -> None:
    trained(changed(old, "vocabulary", **SUBWORDS), tmp_path / "new")
    capsys.readouterr()
    train(config_of_tree(changed(old, "vocabulary", **SUBWORDS), "my.yaml"), tmp_path / "again")
    said = capsys.readouterr().err
    assert f"start        weights of {tmp_path / 'old'}" in said
    counts = re.search(
        r"of (\d+) types (\d+) take over .* of running tokens\); (\d+) begin .*, (\d+) as the mean", said
    )
    assert counts is not None
    every, *each = map(int, counts.groups())
    assert every == sum(each) == 316


@pytest.mark.medium
@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("model", {"d_model": 32}, r"has model\.d_model = 16, the config says 32; .* copy the section model from"),
        ("model", {"norm": "post"}, r"set model\.norm: \"pre\""),
        ("training", {"init_from": "nowhere"}, "nowhere: no such folder"),
    ],
)
@pytest.mark.parametrize("begin", [train, build_vocabulary])
def test_another_shape_is_refused(
    tmp_path: Path, old: dict[str, Any], section: str, values: dict[str, Any], said: str, begin: Any
) -> None:
    with pytest.raises(UserError, match=rf"^training\.init_from: .*{said}"):
        begin(config_of_tree(changed(old, section, **values), "my.yaml"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_parent_has_apart_is_not_tied(tmp_path: Path, old: dict[str, Any]) -> None:
    apart = changed(old, "model", tie_embeddings="decoder")
    trained(apart, tmp_path / "apart")
    tied = changed(old, "training", init_from=str(tmp_path / "apart"))
    with pytest.raises(UserError, match=r'has model\.tie_embeddings = "decoder", the config says "all"'):
        trained(tied, tmp_path / "run")


def test_who_takes_the_vocabulary_over_hears_of_the_other_way(tmp_path: Path, old: dict[str, Any]) -> None:
    child = changed(old, "training", init_vocabulary="parent")
    for section, values in (("data", {"source_language": "fr"}), ("vocabulary", {"lowercase": True})):
        with pytest.raises(UserError, match=r"training\.init_vocabulary: own builds a new vocabulary$"):
            trained(changed(child, section, **values), tmp_path / "run")
