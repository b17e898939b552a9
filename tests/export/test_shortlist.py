"""Shortlists: what each source token may become, learned from the training data, and what they leave as it was."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.export.conftest import left_in
from transformer_cli.build import LoadedModel, load_model
from transformer_cli.config import TextFiles
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.decoding.engines.protocol import SearchBatch
from transformer_cli.decoding.translation import Confidence
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.calibration import keep_confidence
from transformer_cli.export import shortlist as module
from transformer_cli.export.ctranslate2 import export_ctranslate2
from transformer_cli.export.shortlist import FILE, learn_shortlist, translations
from transformer_cli.search_options import SearchOptions
from transformer_cli.variants.lexicon import SPAN, Direction, Lexicon, learn_lexicon

pytest.importorskip("ctranslate2", reason="this export needs CTranslate2")

Checkpoint = Callable[..., Path]
WORDS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn"]


def exported(model: Path, out: Path, shortlist: int | None) -> Path:
    export_ctranslate2(model, out, shortlist=shortlist, verify=False)
    return out


def read(text: str) -> dict[str, list[str]]:
    """The lists of a file, as CTranslate2's documentation says."""
    rows = (line.split("\t") for line in text.splitlines())
    return {source: targets.split(" ") for source, targets in rows}


def test_the_likeliest_translations_of_each_token_in_order() -> None:
    keys = torch.tensor([4 * SPAN + 7, 4 * SPAN + 8, 4 * SPAN + 9, 6 * SPAN + 5])
    direction = Direction(torch.tensor([0.2, 0.5, 0.3, 1.0]), torch.zeros(10))
    lexicon = Lexicon(keys, direction, direction)
    assert translations(lexicon, 2) == {4: [8, 9], 6: [5]}
    assert translations(lexicon, 9) == {4: [8, 9, 7], 6: [5]}


@pytest.fixture
def worded(checkpoint: Checkpoint, tmp_path: Path) -> LoadedModel:
    """A model whose training data translates each word by itself in capitals, and leaves a number as it is."""
    draw = random.Random(1)
    lines = [draw.sample(WORDS, 4) for _ in range(400)]
    (tmp_path / "train.de").write_text("".join(f"{' '.join(line)} 2026\n" for line in lines))
    (tmp_path / "train.en").write_text("".join(f"the {' '.join(line).upper()} 2026\n" for line in lines))
    train = {"source": str(tmp_path / "train.de"), "target": str(tmp_path / "train.en")}
    vocabulary = {"tokenizer": "whitespace", "shared": False, "size": 60}
    return load_model(checkpoint(data={"train": train}, vocabulary=vocabulary, tie_embeddings="decoder"))


def test_lists_hold_the_translation_what_stays_as_it_is_and_what_is_common(
    worded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COMMON", 1)
    found = learn_shortlist(worded, 1)
    lists = read(found.text)
    assert found.common == 1
    assert lists.pop("") == ["the"], "what no source token becomes"
    assert lists == {**{word: [word.upper()] for word in WORDS}, "2026": ["2026"]}


def test_a_source_with_a_tag_is_learned_from_in_its_own_direction(
    worded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with its sides exchanged too, as a search for what the data has of a test set reads it."""
    pairs = []

    def learn(corpus: EncodedCorpus) -> Lexicon:
        pairs.append(len(corpus))
        return learn_lexicon(corpus)

    monkeypatch.setattr(module, "learn_lexicon", learn)
    data: Any = worded.config.data
    tagged = data.model_copy(update={"train": data.train.model_copy(update={"tag": "<2en>"})})
    learn_shortlist(replace(worded, config=worded.config.model_copy(update={"data": tagged})), 1)
    assert pairs == [400]


def test_common_tokens_are_no_more_than_there_are(worded: LoadedModel) -> None:
    assert learn_shortlist(worded, 1).common == len(worded.codecs.target.vocabulary) - 4


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_a_sentence_is_translated_with_the_tokens_of_its_lists_alone(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    monkeypatch.setattr(module, "COMMON", 12)
    out = exported(checkpoint(norm="pre"), tmp_path / "out", 2)
    translator = Translator.load(out, "cpu", guard=False)
    lists = read((out / FILE).read_text())
    options = SearchOptions(method=method, beam_size=3, max_length=12)
    others = 0
    for text in ("hund katze", "ein Mann am Strand", "Straße; zwei"):
        ids = translator.codecs.source.encode(text)
        ((chosen,),) = next(iter(translator.engine.search([SearchBatch([ids])], options)))
        allowed = set().union(lists[""], *(lists[token] for token in translator.codecs.source.tokens(ids)), ["<unk>"])
        assert {*translator.codecs.target.tokens(chosen.ids)} <= allowed
        engine: Any = translator.engine
        with monkeypatch.context() as patch:
            patch.setattr(engine, "description", replace(engine.description, shortlist=0))
            ((free,),) = next(iter(engine.search([SearchBatch([ids])], options)))
        others += chosen.ids != free.ids
    assert others, "all tokens lead elsewhere"


@pytest.mark.parametrize("options", [{"no_repeat_ngram": 2, "beam_size": 2}, {"beam_size": 7}], ids=str)
def test_what_needs_more_than_the_likeliest_searches_all_tokens(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(module, "COMMON", 12)
    model = checkpoint(norm="pre")
    texts = ["hund katze", "ein Mann am Strand"]
    found = []
    for shortlist in (None, 1):
        translator = Translator.load(exported(model, tmp_path / f"{shortlist}", shortlist), "cpu")
        search = SearchOptions(max_length=12, **options)
        translator.translate(texts)  # with lists, which must not stay
        found.append([one.hypotheses[0].tokens for one in translator.translate_batch(texts, search, alignments=False)])
    assert found[0] == found[1]


def test_scores_and_alignments_of_given_texts_are_those_of_all_tokens(checkpoint: Checkpoint, tmp_path: Path) -> None:
    model = checkpoint(norm="pre")
    plain, listed = (
        Translator.load(exported(model, tmp_path / f"{shortlist}", shortlist), "cpu") for shortlist in (None, 1)
    )
    texts = ["hund katze", "ein Mann am Strand"]
    listed.translate(texts)  # with lists, which must not stay
    assert plain.score(texts, texts[::-1]) == listed.score(texts, texts[::-1])
    assert plain.align(texts, texts[::-1]) == listed.align(texts, texts[::-1])


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_lists_are_verified_beside_the_weights(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str | None
) -> None:
    monkeypatch.setattr("transformer_cli.export.verify.SENTENCES", 10)
    monkeypatch.setattr("transformer_cli.export.ctranslate2.LEAST_CHRF", 0.0)
    report = export_ctranslate2(checkpoint(norm="pre"), tmp_path / "out", quantization=quantization, shortlist=60)
    assert report is not None
    assert f"greedy{' in float32' if quantization else ''} 100.0% the same" in report
    assert ("greedy in int8 chrF " in report) == (quantization == "int8")
    for search in ("greedy", "beam 5"):
        assert f"{search} with shortlists chrF " in report
    assert json.loads((tmp_path / "out" / "tfm.json").read_text())["shortlist"] > 0
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"vocab"}


def test_confidence_that_other_scores_taught_stays_behind(checkpoint: Checkpoint, tmp_path: Path) -> None:
    import shutil

    model = shutil.copytree(checkpoint(norm="pre"), tmp_path / "model")
    keep_confidence(model, Confidence([-2.0, 0.0], [0.1, 0.9], 10, 10, 0.1))
    for shortlist in (None, 5):
        out = exported(model, tmp_path / f"{shortlist}", shortlist)
        assert (Translator.load(out, "cpu").confidence is None) == (shortlist is not None)


def test_what_cannot_be_listed_is_refused_before_anything_is_written(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(checkpoint())
    data = loaded.config.data.model_copy(update={"train": TextFiles(source="gone.de", target="gone.en")})
    with pytest.raises(UserError, match=r"--shortlist: is learned from the model's training data, but .*gone\.de"):
        learn_shortlist(replace(loaded, config=loaded.config.model_copy(update={"data": data})), 5)
    assert left_in(tmp_path) == []
