"""An imported MarianMTModel is the same function, and reads and writes text as MarianTokenizer does."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.importing.conftest import Made, Make, learn, sentences
from tests.sampling import one_of_each
from transformer_cli import Translator
from transformer_cli.build import load_model
from transformer_cli.config import Config
from transformer_cli.data.batch import Batch
from transformer_cli.errors import UserError
from transformer_cli.export.ctranslate2 import export_ctranslate2
from transformer_cli.export.huggingface import export_huggingface, sines_first
from transformer_cli.export.verify import silent
from transformer_cli.importing.convert import convert
from transformer_cli.importing.find import original
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.run_folder import find_model
from transformer_cli.text.vocabulary import BOS, EOS, PAD

VARIANTS: dict[str, dict[str, Any]] = {
    "as opus-mt's": {},
    "relu, one head": {"activation_function": "relu", "encoder_attention_heads": 1, "decoder_attention_heads": 1},
    "gelu, another depth on each side": {"activation_function": "gelu", "encoder_layers": 1, "decoder_layers": 3},
    "byte pairs, languages to choose from": {"kind": "bpe", "tags": [">>fra<<", ">>eng<<"]},
    "a vocabulary for each side": {"separate": True},
    "nothing tied": {"separate": True, "tie_word_embeddings": False},
}


def import_model(source: Path | str, out: Path, languages: tuple[str | None, str | None] = (None, None)) -> Config:
    with original(str(source)) as found:
        return convert(found, languages, out)


def rows(vocabulary: dict[str, int], codec: Any) -> torch.Tensor:
    """Return the id here of each of their rows."""
    ids = [codec.vocabulary[token] if token != "<s>" else codec.vocabulary["\\<s>"] for token in vocabulary]
    assert len(set(ids)) == len(ids)
    return torch.tensor(ids)


def target_file(made: Made) -> str:
    return "target_vocab.json" if made.tokenizer.separate_vocabs else "vocab.json"


def read(folder: Path, name: str) -> dict[str, int]:
    content: dict[str, int] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


@pytest.mark.medium
@pytest.mark.parametrize("variant", VARIANTS)
def test_encoder_decoder_and_logits_are_theirs(marian: Make, tmp_path: Path, variant: str) -> None:
    compare_numbers(marian(**VARIANTS[variant]), tmp_path / "run", 40)


@pytest.mark.slow
def test_those_of_a_model_of_the_size_of_opus_mt_too(marian: Make, tmp_path: Path) -> None:
    """6 + 6 layers, d_model 512, 8 heads, and 58,101 rows, most of which no text uses."""
    heads = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
    widths = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    compare_numbers(marian(rows=58_101, encoder_layers=6, decoder_layers=6, **heads, **widths), tmp_path / "run", 8)


def compare_numbers(made: Made, run: Path, count: int) -> None:
    """Hold ours within 1e-5 of theirs in float32, and within 1e-9 in float64."""
    import_model(made.folder, run)
    loaded = load_model(run)
    sources, targets = sentences("de", count, 5000), sentences("en", count, 5000)
    with silent():
        inputs = made.tokenizer(sources, return_tensors="pt", padding=True)
        labels = made.tokenizer(text_target=targets, return_tensors="pt", padding=True)["input_ids"]
    start = torch.full((len(labels), 1), made.model.config.pad_token_id)
    begun = torch.cat([start, labels[:, :-1]], dim=1)
    batch = Batch.from_ids(list(zip(*loaded.codecs.encode_pairs(sources, targets), strict=True)))
    seen, written = batch.source != PAD, batch.target_output != PAD
    target = rows(read(made.folder, target_file(made)), loaded.codecs.target)
    for dtype, most in (
        (torch.float64, 1e-9),
        (torch.float32, 1e-5),
    ):  # the fixture's model is float32 again at the end
        ours, theirs = loaded.model.to(dtype), made.model.to(dtype)
        with torch.inference_mode():
            expected = theirs(**inputs, decoder_input_ids=begun, output_hidden_states=True)
            memory = ours.encode(batch.source, batch.source_mask)
            output = ours.decode(batch.target_input, memory, batch.source_mask)
            logits = ours.generator.projection(output.hidden)
        order = sines_first(memory.size(2))
        assert (memory[..., order] - expected.encoder_last_hidden_state)[seen].abs().max() < most
        assert (output.hidden[..., order] - expected.decoder_hidden_states[-1])[written].abs().max() < most
        assert (logits[..., target] - expected.logits)[written].abs().max() < most
        assert logits[..., BOS].max() < -50  # the row that they lack
        assert logits.std(dim=1).mean() > 1e-3  # positions differ


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["as opus-mt's", "a vocabulary for each side"])
@pytest.mark.parametrize("beams", [1, 4])
def test_200_translations_are_those_of_generate(marian: Make, tmp_path: Path, variant: str, beams: int) -> None:
    """Where length does not count: transformers divides by the length with `</s>`, tfm by that without."""
    made = marian(**VARIANTS[variant], steps=100)
    import_model(made.folder, tmp_path / "run")
    texts = sentences("de", 200, 5000)
    search: dict[str, Any] = {"length_penalty": 0.0, "early_stopping": True} if beams > 1 else {}
    expected = []
    for first in range(0, len(texts), 50):
        with silent():
            inputs = made.tokenizer(texts[first : first + 50], return_tensors="pt", padding=True)
            never = {"bad_words_ids": [[made.model.config.pad_token_id]], "min_new_tokens": 1}
            found = made.model.generate(
                **inputs, num_beams=beams, max_new_tokens=100, forced_eos_token_id=None, **never, **search
            )
            expected += made.tokenizer.batch_decode(found, skip_special_tokens=True)
    translator = Translator.load(tmp_path / "run", engine="torch", guard=False)
    options = SearchOptions(
        method="beam" if beams > 1 else "greedy", beam_size=beams, length_penalty=0.0, max_length=100
    )
    assert [found.text for found in translator.translate_batch(texts, options)] == expected
    assert len(set(expected)) > 10


def arbitrary_lines(count: int) -> list[str]:
    """Sentences, some of them spoilt: other scripts, spaces of every kind, capitals, marks of Marian's, rubbish."""
    draw = random.Random(1)
    lines = [*sentences("de", count // 2), *sentences("en", count // 4)]
    odd = ["\u2581", " ", "  ", "\u00a0", "\u2028", "\u200b", "\t", "ﬁ", "Ｅ", "①", "é", "e\u0301", "漢字", "Ω", "😀"]
    odd += [">>fra<<", ">>", "<<", "İ", "´", "...", "…", "\u0000", "\x7f", "\ufeff", "½", "ﷺ", "\u0344", "x" * 300]
    while len(lines) < count:
        line = list(draw.choice(lines[: count // 2]))
        for _ in range(draw.randint(1, 12)):
            line.insert(draw.randint(0, len(line)), draw.choice([*odd, chr(draw.randrange(0x20, 0xD800))]))
        lines.append("".join(draw.sample(line, len(line)) if draw.random() < 0.2 else line))
    draw.shuffle(lines)
    return ["", " ", *lines[2:]]


VOCABULARIES = ["as opus-mt's", "byte pairs, languages to choose from", "a vocabulary for each side"]


@pytest.mark.medium
@pytest.mark.parametrize(
    "variant",
    one_of_each([[*map(pytest.param, VOCABULARIES)]]),
)
def test_ids_of_5000_arbitrary_lines_are_those_of_their_tokenizer(marian: Make, tmp_path: Path, variant: str) -> None:
    made = marian(**VARIANTS[variant])
    import_model(made.folder, tmp_path / "run")
    codecs = load_model(tmp_path / "run").codecs
    lines = arbitrary_lines(5000)
    for codec, name, how in (
        (codecs.source, "vocab.json", "text"),
        (codecs.target, target_file(made), "text_target"),
    ):
        with silent():
            expected = made.tokenizer(**{how: lines})["input_ids"]
        ids = rows(read(made.folder, name), codec)
        assert [[*codec.encode(line), EOS] for line in lines] == [ids[torch.tensor(row)].tolist() for row in expected]


def test_texts_of_arbitrary_ids_are_theirs(marian: Make, tmp_path: Path) -> None:
    """What is unknown is left out, as theirs does with `skip_special_tokens`."""
    made = marian(kind="bpe", tags=[">>fra<<", ">>eng<<"])
    import_model(made.folder, tmp_path / "run")
    codec = load_model(tmp_path / "run").codecs.target
    vocabulary = read(made.folder, "vocab.json")
    draw, ids = random.Random(1), rows(vocabulary, codec)
    theirs = [draw.choices([row for row in range(len(ids)) if row != vocabulary["<s>"]], k=12) for _ in range(500)]
    expected = made.tokenizer.batch_decode(theirs, skip_special_tokens=True)
    assert [codec.decode(ids[torch.tensor(row)].tolist()) for row in theirs] == expected


@pytest.mark.medium
def test_a_line_is_one_line_and_an_empty_one_is_empty(marian: Make, tmp_path: Path) -> None:
    import_model(marian().folder, tmp_path / "run")
    translator = Translator.load(tmp_path / "run", engine="torch")
    found = translator.translate([*arbitrary_lines(8), "\u2581", "\u200b", "a " * 600])
    assert len(found) == 11
    assert found[0] == found[1] == ""
    assert not any("\n" in text for text in found)


# --- files ------------------------------------------------------------------------------------------------------------


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(find_model(run) / "model.safetensors")


@pytest.mark.medium
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_become_float32(marian: Make, tmp_path: Path, dtype: torch.dtype) -> None:
    folder = shutil.copytree(marian().folder, tmp_path / "model")
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    import_model(folder, tmp_path / "run")
    import_model(marian().folder, tmp_path / "whole")
    for name, tensor in weights(tmp_path / "whole").items():
        found = weights(tmp_path / "run")[name]
        assert found.dtype == torch.float32
        assert torch.equal(found, tensor.to(dtype).float())


@pytest.mark.parametrize("new", [True, False])
def test_a_bin_file_gives_the_same_model(marian: Make, tmp_path: Path, new: bool) -> None:
    """Also with all names of tied tables and the computed positions in it, as older ones have."""
    made = marian()
    folder = shutil.copytree(made.folder, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save(made.model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=new)
    import_model(folder, tmp_path / "run")
    import_model(made.folder, tmp_path / "other")
    names = ["model.safetensors", "vocab/shared.json", "vocab/source.model", "vocab/target.model"]
    for name in names:
        assert (find_model(tmp_path / "run") / name).read_bytes() == (
            find_model(tmp_path / "other") / name
        ).read_bytes()


def test_a_name_of_the_hub_is_read_from_its_cache(
    marian: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `huggingface_hub` lays it out, without a network; the card's licence is the model's."""
    import huggingface_hub.constants

    revision = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "models--Helsinki-NLP--opus-mt-de-en"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    snapshot = Path(shutil.copytree(marian().folder, repository / "snapshots" / revision))
    (snapshot / "README.md").write_text("---\nlanguage: \n- de\nlicense: apache-2.0\ntags: []\n---\n\n### deu-eng\n")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    config = import_model("Helsinki-NLP/opus-mt-de-en", tmp_path / "run")
    assert (config.data.imported_from, config.data.license) == ("Helsinki-NLP/opus-mt-de-en", "apache-2.0")
    assert config.data.train is None
    with pytest.raises(UserError, match=r"^Helsinki-NLP/opus-mt-xx-yy: cannot be downloaded"):
        import_model("Helsinki-NLP/opus-mt-xx-yy", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_languages_are_given_stated_or_in_the_name(marian: Make, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(marian().folder, tmp_path / "opus-mt-fi-sv"))
    assert import_model(folder, tmp_path / "1", ("da", None)).data.source_language == "da"
    assert import_model(folder, tmp_path / "2").data.source_language == "de"
    (folder / "tokenizer_config.json").unlink()
    config = import_model(folder, tmp_path / "3")
    assert (config.data.source_language, config.data.target_language) == ("fi", "sv")
    with pytest.raises(UserError, match="does not state its source language; give --source-language"):
        import_model(folder.rename(tmp_path / "opus"), tmp_path / "4")


# --- to transformers and back -----------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize(
    "variant", ["as opus-mt's", pytest.param("a vocabulary for each side", marks=pytest.mark.slow), "nothing tied"]
)
def test_exported_again_it_is_the_first_model(marian: Make, tmp_path: Path, variant: str) -> None:
    """With its rows in another order: of the padding, from which a target starts, there is a copy."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    made = marian(**VARIANTS[variant])
    import_model(made.folder, tmp_path / "run")
    (tmp_path / "valid.de").write_text("\n".join(sentences("de", 20, 5000)))
    export_huggingface(find_model(tmp_path / "run"), tmp_path / "again", sentences=tmp_path / "valid.de")
    texts = sentences("de", 30, 6000)
    loaded = load_model(tmp_path / "run")
    ids = rows(read(made.folder, target_file(made)), loaded.codecs.target)
    with silent(), torch.inference_mode():
        again, tokenizer = (kind.from_pretrained(tmp_path / "again") for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
        batch = made.tokenizer(texts, text_target=sentences("en", 30, 6000), return_tensors="pt", padding=True)
        logits = made.model(**batch).logits
        labels = ids[batch.pop("labels")]
        start = torch.full((len(labels), 1), again.config.decoder_start_token_id)
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        found = again(**inputs, decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1)).logits
    written = labels != PAD
    assert (found[..., ids] - logits)[written].abs().max() < 1e-5 * logits.abs().max()


@pytest.mark.slow
def test_a_model_of_ours_trained_on_by_transformers_and_imported_again(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from tests.export.conftest import _write_checkpoint, write_text

    write_text(tmp_path)
    ours = _write_checkpoint(tmp_path, "ours", 1, {"vocabulary": {"size": 325, "byte_fallback": True}, "d_model": 32})
    export_huggingface(ours, tmp_path / "theirs", verify=False)
    with silent():
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "theirs")
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "theirs")
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        learn(model, tokenizer, steps=50)
        model.save_pretrained(tmp_path / "trained")
        tokenizer.save_pretrained(tmp_path / "trained")
    assert not torch.equal(model.state_dict()["model.shared.weight"], before["model.shared.weight"])
    import_model(tmp_path / "trained", tmp_path / "run")
    texts = sentences("de", 100, 5000)
    with silent():
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        found = model.generate(**inputs, num_beams=1, max_length=81)
        expected = tokenizer.batch_decode(found, skip_special_tokens=True)
    translator = Translator.load(tmp_path / "run", engine="torch", guard=False)
    options = SearchOptions(method="greedy", max_length=80)
    assert [one.text for one in translator.translate_batch(texts, options)] == expected
    assert len(set(expected)) > 20


@pytest.mark.slow
def test_ctranslate2_translates_the_original_and_our_export_alike(marian: Make, tmp_path: Path) -> None:
    """CTranslate2's own converter leaves out the row of `<pad>`, which we keep: no text may depend on it."""
    import ctranslate2

    made = marian(steps=100)
    import_model(made.folder, tmp_path / "run")
    with silent():
        ctranslate2.converters.TransformersConverter(str(made.folder)).convert(str(tmp_path / "theirs"))
    export_ctranslate2(find_model(tmp_path / "run"), tmp_path / "ours", verify=False)
    codecs = load_model(tmp_path / "run").codecs
    sources = [[*codecs.source.tokenize(text), "</s>"] for text in sentences("de", 200, 5000)]
    for beams in (1, 4):
        texts = []
        for name in ("theirs", "ours"):
            translator = ctranslate2.Translator(str(tmp_path / name), "cpu")
            given = sources if name == "theirs" else [source[:-1] for source in sources]
            never = [["<pad>"], ["<s>"]] if name == "ours" else None  # as our engine asks for
            found = translator.translate_batch(
                given, beam_size=beams, length_penalty=0.0, suppress_sequences=never, max_decoding_length=40
            )
            texts.append([codecs.target.tokenizer.join(one.hypotheses[0]) for one in found])
        same = sum(one == other for one, other in zip(*texts, strict=True))
        assert same == 200 if beams == 1 else same >= 196, same  # the row has a share in what beams are compared by
        assert len(set(texts[0])) > 10
