"""A MarianMTModel folder is the same function as our own model, and reads and writes text as we do."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.decoding.searching import search_batch
from transformer_cli import Translator
from transformer_cli.build import load_model
from transformer_cli.errors import UserError
from transformer_cli.export import huggingface as huggingface_export
from transformer_cli.export.huggingface import CLASSES, export_huggingface, their_weights
from transformer_cli.export.verify import ExportDiffers, silent
from transformer_cli.model.masks import padding_mask
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.vocabulary import BOS, EOS, PAD

Checkpoint = Callable[..., Path]
SOURCE = [[5, 6, 7, 8, 9, 10, 4, 4, EOS], [12, EOS, *[PAD] * 7], [7, 7, 5, EOS, *[PAD] * 5]]
TARGET = [[BOS, 4, 9, 8], [BOS, 5, 6, 7], [BOS, 4, 4, 4]]
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "no biases but the generator's": {
        "attention_bias": False,
        "feed_forward_bias": False,
        "generator_bias": True,
        "activation": "gelu",
        "decoding": {"stopping": "exact", "max_length_ratio": 2.0},
    },
    "two vocabularies": {
        "tie_embeddings": "decoder",
        "vocabulary": {"shared": False, "algorithm": "bpe", "size": 64},
        "heads": 4,
    },
    "one vocabulary, two tables, symbols": {
        "tie_embeddings": "decoder",
        "vocabulary": {"symbols": ["<2en>", "@"], "byte_fallback": True, "size": 325},
        "decoding": {"tag": "<2en>"},
        "generator_bias": True,
    },
    "nothing tied": {
        "tie_embeddings": "none",
        "vocabulary": {"shared": False, "algorithm": "bpe", "size": 64},
        "generator_bias": True,
    },
    "pre-norm": {"norm": "pre"},
    "pre-norm, learned positions, no biases": {
        "norm": "pre",
        "positions": "learned",
        "max_positions": 50,  # one more than the longest source, with its </s>
        "attention_bias": False,
        "feed_forward_bias": False,
        "activation": "gelu",
        "data": {"max_length": 49},
        "decoding": {"max_length_ratio": 3.0},  # beyond the table
    },
    "pre-norm, two vocabularies": {
        "norm": "pre",
        "tie_embeddings": "decoder",
        "vocabulary": {"shared": False, "algorithm": "bpe", "size": 64},
        "generator_bias": True,
    },
    "pre-norm, one vocabulary, three tables": {"norm": "pre", "tie_embeddings": "none", "seed": 4},
}
TEXTS = [
    "ein kleiner Hund, groß!",
    "  zwei  Katzen ",
    "</s> ein <pad> Hund<s>",
    "<2en> Haus@baum <2en>@ x",
    "Ωmega 😀 \u00a0\tnie gesehen\u2028e\u0301",
    "",
]


def load(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer, as transformers loads them."""
    with silent():
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianTokenizer

        model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, MarianTokenizer)
    return model, tokenizer


@pytest.fixture(scope="session")
def exported(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported(variant)`: that variant's folder, written and verified once."""
    made: dict[str, Path] = {}

    def get(variant: str) -> Path:
        if variant not in made:
            out = tmp_path_factory.mktemp("huggingface") / "below" / "folder"
            told = export_huggingface(checkpoint(**VARIANTS[variant]), out)
            assert told is not None
            assert re.fullmatch(r"verified with 1\d\d sentences: .*, logits within \d\.\de-0[5-9]", told)
            made[variant] = out
        return made[variant]

    return get


@pytest.mark.medium
@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_the_same_function(checkpoint: Checkpoint, exported: Callable[[str], Path], variant: str) -> None:
    ours = load_model(checkpoint(**VARIANTS[variant])).model.double()
    theirs = load(exported(variant))[0].double()
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    with torch.inference_mode():
        expected = ours.generator.projection(ours(source, padding_mask(source), target).hidden)
        found = theirs(input_ids=source, attention_mask=source != PAD, decoder_input_ids=target).logits
    assert type(theirs).__name__ == CLASSES[VARIANTS[variant].get("norm", "post")]
    found, beyond = found.split([expected.size(2), found.size(2) - expected.size(2)], dim=2)
    assert (beyond < -1e8).all(), "a row that only the source has is never written"
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)  # positions are float32


@pytest.mark.medium
@pytest.mark.parametrize("variant", VARIANTS)
def test_text_becomes_the_same_tokens_and_back(
    checkpoint: Checkpoint, exported: Callable[[str], Path], variant: str
) -> None:
    codecs = load_model(checkpoint(**VARIANTS[variant])).codecs
    tokenizer = load(exported(variant))[1]
    for text in TEXTS:
        assert tokenizer(text)["input_ids"] == [*codecs.source.encode(text), EOS]
        target = codecs.target.encode(text)
        assert tokenizer(text_target=text)["input_ids"] == [*target, EOS]
        known = codecs.target.decode([index for index in target if index > EOS])
        assert tokenizer.decode([BOS, *target, EOS, PAD], skip_special_tokens=True) == known.strip()


@pytest.mark.medium
@pytest.mark.parametrize("variant", VARIANTS)
def test_its_own_way_to_generate_is_a_beam_search_that_ends(exported: Callable[[str], Path], variant: str) -> None:
    """Greedily it gives our texts, or the export would not be there; unasked it takes the model's beam size."""
    model, tokenizer = load(exported(variant))
    inputs = tokenizer(TEXTS[:2], return_tensors="pt", padding=True)
    with silent():
        found = model.generate(**inputs)
    assert model.generation_config.num_beams == 5
    assert model.generation_config.forced_eos_token_id is None
    assert found.size(1) <= model.generation_config.max_length <= model.config.max_position_embeddings
    assert (found[:, 0] == BOS).all()
    for row in found[:, 1:].tolist():
        assert not {PAD, BOS} & set(row[: row.index(EOS)] if EOS in row else row)


@pytest.mark.medium
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_transformers_saves_again_is_the_same(
    exported: Callable[[str], Path], variant: str, tmp_path: Path
) -> None:
    model, tokenizer = load(exported(variant))
    with silent():
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
    again = load(tmp_path)[0]
    source, target = torch.tensor(SOURCE), torch.tensor(TARGET)
    with torch.inference_mode():
        assert torch.equal(
            again(input_ids=source, decoder_input_ids=target).logits,
            model(input_ids=source, decoder_input_ids=target).logits,
        )


@pytest.mark.medium
def test_every_weight_is_there_and_only_those(exported: Callable[[str], Path]) -> None:
    with silent():
        from transformers import AutoModelForSeq2SeqLM

        for variant, options in VARIANTS.items():
            model, report = AutoModelForSeq2SeqLM.from_pretrained(exported(variant), output_loading_info=True)
            assert not report["unexpected_keys"]
            assert not report["mismatched_keys"]
            computed = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
            assert not set(report["missing_keys"]) - (computed if "norm" not in options else set())
            tied = options.get("tie_embeddings", "all") == "all"
            assert (model.lm_head.weight is model.model.encoder.embed_tokens.weight) == tied


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("model.activation: swiglu", {"activation": "swiglu"}),
        ("model.positions: learned", {"positions": "learned"}),
        ("model.positions: rotary", {"positions": "rotary"}),
        ("model.positions: rotary", {"positions": "rotary", "norm": "pre"}),
        ("model.qk_norm: True", {"qk_norm": True}),
        ("model.norm_epsilon: 0.001", {"norm_epsilon": 1e-3}),
        ("model.norm_epsilon: 0.001", {"norm_epsilon": 1e-3, "norm": "pre"}),
        ("model.activation: geglu", {"activation": "geglu", "norm": "pre"}),
        ("model.head_dim: 5", {"head_dim": 5}),
        ("vocabulary.tokenizer: whitespace", {"vocabulary": {"tokenizer": "whitespace"}}),
        ("vocabulary.tokenizer: character", {"vocabulary": {"tokenizer": "character"}}),
        ("vocabulary.lowercase: True", {"vocabulary": {"lowercase": True}}),
        ("vocabulary.normalization: nfc", {"vocabulary": {"normalization": "nfc"}}),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_what_their_class_lacks_is_refused(
    checkpoint: Checkpoint, key: str, options: dict[str, Any], check: bool, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^{key}: (MarianMT|Pegasus|its tokenizer )[^\n]*$"):
        export_huggingface(checkpoint(**options), tmp_path / "out", verify=check)
    assert list(tmp_path.iterdir()) == []


def test_a_head_dim_that_changes_nothing_is_no_hindrance(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert export_huggingface(checkpoint(head_dim=8), tmp_path / "out", verify=False) is None


@pytest.mark.parametrize("mistake", ["channels", "text"])
def test_a_folder_that_differs_is_not_kept(
    checkpoint: Checkpoint, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unordered(*arguments: Any) -> dict[str, torch.Tensor]:
        weights = their_weights(*arguments)
        name = "model.decoder.layers.1.fc1.weight"
        return {**weights, name: weights[name].flip(1)}

    if mistake == "channels":
        monkeypatch.setattr(huggingface_export, "their_weights", unordered)
        sentences = None
    else:
        monkeypatch.setattr(huggingface_export, "SPACE", "\0")  # what Marian reads otherwise is not left out
        sentences = tmp_path / "sentences"
        sentences.write_text("ein ▁ Haus\n", encoding="utf-8")
    with pytest.raises(ExportDiffers):
        export_huggingface(checkpoint(), tmp_path / "below" / "out", sentences=sentences)
    assert list((tmp_path / "below").iterdir()) == []


def test_transformers_is_asked_for_only_to_verify(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_export, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="needs transformers"):
        export_huggingface(checkpoint(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    export_huggingface(checkpoint(), tmp_path / "out", verify=False)
    assert (tmp_path / "out" / "vocab.json").exists()


def test_greedy_texts_are_the_translators(checkpoint: Checkpoint, exported: Callable[[str], Path]) -> None:
    """The check that is built in, done from outside."""
    translator = Translator.load(checkpoint(**VARIANTS["the paper's"]), "cpu")
    model, tokenizer = load(exported("the paper's"))
    for text in ["ein kleiner Hund", "zwei Katzen, drei Frauen und ein Haus!"]:
        options = SearchOptions.from_config(translator.config.decoding, method="greedy")
        source = translator.codecs.source.encode(text)
        ids = search_batch(translator.engine, [source], options)[0][0].ids
        with silent():
            found = model.generate(
                **tokenizer(text, return_tensors="pt"), num_beams=1, max_length=options.length_limit(len(source)) + 1
            )
        expected = translator.codecs.target.decode(ids).strip()
        assert tokenizer.decode(found[0], skip_special_tokens=True) == expected


@pytest.mark.medium
@pytest.mark.parametrize(
    "variant", ["the paper's", pytest.param("pre-norm", marks=pytest.mark.slow), "pre-norm, two vocabularies"]
)
def test_beams_find_the_same_texts(checkpoint: Checkpoint, exported: Callable[[str], Path], variant: str) -> None:
    """Where no length divides a score: `generate` counts </s> in it."""
    translator = Translator.load(checkpoint(**VARIANTS[variant]), "cpu", engine="torch")
    options = SearchOptions.from_config(translator.config.decoding, length_penalty=0.0)
    model, tokenizer = load(exported(variant))
    lines = Path(translator.config.data.valid.source).read_text("utf-8").split("\n")[:20]  # type: ignore[union-attr]
    for line in lines:
        source = translator.codecs.source.encode(line)
        inputs = tokenizer(line, return_tensors="pt")
        limit = options.length_limit(len(source))
        with silent():
            found = model.generate(**inputs, length_penalty=0.0, max_length=limit + 1)
        expected = translator.codecs.target.decode(search_batch(translator.engine, [source], options)[0][0].ids)
        assert tokenizer.decode(found[0], skip_special_tokens=True) == expected.strip()


def test_the_example_in_the_docs_translates(
    exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "export.md").read_text("utf-8")
    code = re.findall(r"```python\n(from transformers.*?)```", page, re.DOTALL)
    assert len(code) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.huggingface").symlink_to(exported("the paper's"))
    with silent():
        exec(code[0], {})
    assert re.fullmatch(r"\[['\"].+['\"]\]\n", capsys.readouterr().out)


def test_without_a_sentence_that_fits_there_is_no_check(checkpoint: Checkpoint, tmp_path: Path) -> None:
    sentences = tmp_path / "long"
    sentences.write_text("ja " * 200 + "\n")
    with pytest.raises(UserError, match="no sentence to verify with"):
        export_huggingface(checkpoint(), tmp_path / "out", sentences=sentences)
    assert [path.name for path in tmp_path.iterdir()] == ["long"]
