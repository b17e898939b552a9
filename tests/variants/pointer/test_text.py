"""Ids beyond the vocabularies: what a line's unknown tokens become, and what they are again."""

from collections.abc import Callable

import pytest

from transformer_cli.codecs import model_codecs
from transformer_cli.config import Config
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import UNK

TRAINED = [("der Hund Rex läuft", "the dog runs with Ada"), ("der Hund läuft", "the dog runs")]
Configure = Callable[..., Config]


def pointer(config: Config) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update={"generator": "pointer"})})


def made(config: Config, times: int = 1) -> Codecs:
    return model_codecs(build_codecs(config, lambda: TRAINED * times)[0], config)


@pytest.fixture
def codecs(configure: Configure) -> Codecs:
    """Source: der Hund läuft Rex; target: dog runs the Ada with."""
    return made(pointer(configure("whitespace", shared=False)))


def test_each_unknown_source_token_has_an_id_of_its_own(codecs: Codecs) -> None:
    source, target = codecs.source.vocabulary, codecs.target.vocabulary
    new = len(source) + len(target)
    ids = codecs.source.encode("der Zorg Rex Zorg Bim Ada läuft Zorg")
    assert ids == [source["der"], new, source["Rex"], new, new + 1, len(source) + target["Ada"], source["läuft"], new]
    assert ids == codecs.source.lookup(["der", "Zorg", "Rex", "Zorg", "Bim", "Ada", "läuft", "Zorg"])
    assert codecs.source.encode("Bim") == [new], "numbered from the beginning of each line"
    assert codecs.source.tokens(ids) == ["der", "<unk>", "Rex", "<unk>", "<unk>", "<unk>", "läuft", "<unk>"]
    assert codecs.source.decode(ids).count("<unk>") == 5


def test_a_target_token_is_copied_only_where_the_vocabulary_lacks_it(codecs: Codecs) -> None:
    target = codecs.target.vocabulary
    source, reference = "Zorg der Rex Zorg Ada", "Ada the Zorg Rex Bim"
    _, (ids,) = codecs.encode_pairs([source], [reference])
    copied = len(target)
    assert ids == [target["Ada"], target["the"], copied + 0, copied + 2, UNK]
    beside = codecs.target_beside(source.split())
    assert beside.decode(ids, ["Bim"]) == reference
    assert beside.tokens(ids) == ["Ada", "the", "Zorg", "Rex", "<unk>"]
    assert beside.encode(reference) == codecs.lookup_target(reference.split(), source) == ids
    assert codecs.target.tokens(ids) == ["Ada", "the", "<unk>", "<unk>", "<unk>"]
    assert codecs.target.encode(reference) == [target["Ada"], target["the"], UNK, UNK, UNK]
    assert codecs.encode_pairs([source], ["the dog runs"])[1] == [codecs.target.encode("the dog runs")]


def test_what_the_model_learns_of_the_vocabularies(codecs: Codecs) -> None:
    from transformer_cli.variants.pointer.text import CopiedSource

    assert isinstance(codecs.source, CopiedSource)
    found = codecs.source.target_ids()
    both = {token for token, index in codecs.source.vocabulary.get_stoi().items() if found[index] >= 0}
    assert both == {"<pad>", "<unk>", "<s>", "</s>"}


@pytest.mark.parametrize("tokenizer", ["whitespace", "character", "spacy", "sentencepiece"])
@pytest.mark.parametrize("shared", [False, True])
def test_with_every_tokenizer_what_is_copied_comes_back(configure: Configure, tokenizer: str, shared: bool) -> None:
    options = (
        {"size": 25 if shared else 22, "algorithm": "bpe", "byte_fallback": False}
        if tokenizer == "sentencepiece"
        else {"size": 20}
    )
    config = pointer(configure(tokenizer, shared=shared, **options))
    codecs = made(config, times=5)
    source, reference = "der Ωmega läuft , „Žižka“ und <unk> Ω", "Ωmega runs , „Žižka“ und Ω <unk>"
    (source_ids,), (ids,) = codecs.encode_pairs([source], [reference])
    words, known = codecs.source.tokenize(source), len(codecs.target.vocabulary)
    assert UNK not in source_ids
    assert len(source_ids) == len(words)
    assert any(index >= known for index in ids)
    tokens = codecs.target.tokenize(reference)
    assert all(words[index - known] == token for index, token in zip(ids, tokens, strict=True) if index >= known)
    unknowns = [token for token, index in zip(tokens, ids, strict=True) if index == UNK]
    assert codecs.target_beside(words).decode(ids, unknowns) == codecs.target.tokenizer.join(tokens)
    assert max(*source_ids, *ids) < codecs.most_ids(len(source_ids))


def test_ids_of_plain_codecs_are_as_ever_and_of_another_fingerprint(configure: Configure) -> None:
    config = configure("whitespace", shared=False)
    plain, other = (made(one) for one in (config, pointer(config)))
    assert plain.source.encode("der Zorg") == [plain.source.vocabulary["der"], UNK]
    assert plain.encode_pairs(["der Zorg"], ["the Zorg"]) == (
        [plain.source.encode("der Zorg")],
        [plain.target.encode("the Zorg")],
    )
    assert plain.fingerprint != other.fingerprint
    assert plain.most_ids(100) == max(len(plain.source.vocabulary), len(plain.target.vocabulary))
