"""An imported MarianMTModel is the same function, and reads and writes text as MarianTokenizer does."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.importing.conftest import Made, Make, sentences
from transformer_cli import Translator
from transformer_cli.build import load_model
from transformer_cli.config import Config
from transformer_cli.data.batch import Batch
from transformer_cli.export.huggingface import export_huggingface, sines_first
from transformer_cli.export.verify import silent
from transformer_cli.importing.convert import convert
from transformer_cli.importing.find import original
from transformer_cli.search_options import SearchOptions
from transformer_cli.storage.run_folder import find_model
from transformer_cli.text.vocabulary import BOS, PAD

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


def read(folder: Path, name: str) -> dict[str, int]:
    content: dict[str, int] = json.loads((folder / name).read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_encoder_decoder_and_logits_are_theirs(
    marian: Make, tmp_path: Path, variant: str, dtype: torch.dtype, most: float
) -> None:
    made = marian(**VARIANTS[variant])
    import_model(made.folder, tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    ours, theirs = loaded.model.to(dtype), made.model.to(dtype)
    sources, targets = sentences("de", 40, 5000), sentences("en", 40, 5000)
    with silent():
        inputs = made.tokenizer(sources, return_tensors="pt", padding=True)
        labels = made.tokenizer(text_target=targets, return_tensors="pt", padding=True)["input_ids"]
    start = torch.full((len(labels), 1), made.model.config.pad_token_id)
    batch = Batch.from_ids(list(zip(*loaded.codecs.encode_pairs(sources, targets), strict=True)))
    try:
        with torch.inference_mode():
            expected = theirs(
                **inputs, decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1), output_hidden_states=True
            )
            memory = ours.encode(batch.source, batch.source_mask)
            output = ours.decode(batch.target_input, memory, batch.source_mask)
            logits = ours.generator.projection(output.hidden)
    finally:
        theirs.float()
    order = sines_first(memory.size(2))
    seen, written = batch.source != PAD, batch.target_output != PAD
    target = rows(
        read(made.folder, "target_vocab.json" if made.tokenizer.separate_vocabs else "vocab.json"), loaded.codecs.target
    )
    assert (memory[..., order] - expected.encoder_last_hidden_state)[seen].abs().max() < most
    assert (output.hidden[..., order] - expected.decoder_hidden_states[-1])[written].abs().max() < most
    assert (logits[..., target] - expected.logits)[written].abs().max() < most * expected.logits.abs().max().clamp(
        min=1
    )
    assert logits[..., BOS].max() < -50  # the row that they lack
    assert logits.std(dim=1).mean() > 0.1  # positions differ


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["as opus-mt's", "a vocabulary for each side"])
@pytest.mark.parametrize("beams", [1, 4])
def test_200_translations_are_those_of_generate(marian: Make, tmp_path: Path, variant: str, beams: int) -> None:
    """Where length does not count: transformers divides by the length with `</s>`, tfm by that without."""
    made = marian(**VARIANTS[variant], steps=80)
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
    assert len(set(expected)) > 50
