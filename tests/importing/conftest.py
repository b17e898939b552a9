"""Marian models with random weights, as transformers saves them, and as Marian and OPUS-MT do; made once each."""

import functools
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from transformer_cli.export.verify import silent

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
LANGUAGES = {"source": "de", "target": "en"}
SMALL: dict[str, Any] = {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 32,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "activation_function": "swish",
    "scale_embedding": True,
    "max_position_embeddings": 512,
}
MARIAN = {  # of layers' names, transformers' and Marian's
    "self_attn.q_proj": "self_Wq self_bq",
    "self_attn.k_proj": "self_Wk self_bk",
    "self_attn.v_proj": "self_Wv self_bv",
    "self_attn.out_proj": "self_Wo self_bo",
    "encoder_attn.q_proj": "context_Wq context_bq",
    "encoder_attn.k_proj": "context_Wk context_bk",
    "encoder_attn.v_proj": "context_Wv context_bv",
    "encoder_attn.out_proj": "context_Wo context_bo",
    "self_attn_layer_norm": "self_Wo_ln_scale self_Wo_ln_bias",
    "encoder_attn_layer_norm": "context_Wo_ln_scale context_Wo_ln_bias",
    "fc1": "ffn_W1 ffn_b1",
    "fc2": "ffn_W2 ffn_b2",
    "final_layer_norm": "ffn_ffn_ln_scale ffn_ffn_ln_bias",
}


class Made(NamedTuple):
    """A MarianMTModel, its tokenizer, and the folder that holds both."""

    folder: Path
    model: Any
    tokenizer: Any


Make = Callable[..., Made]


def sentences(language: str, count: int, first: int = 0) -> list[str]:
    """Return lines of the sample corpus."""
    with open(SAMPLE / f"train.{language}", encoding="utf-8") as file:
        return file.read().split("\n")[first : first + count]


@functools.cache
def subwords(side: str, size: int, kind: str = "unigram") -> bytes:
    """Return a sentencepiece model as OPUS-MT's are: sentencepiece's own normalisation, no byte fallback."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(sentences(LANGUAGES[side], 3000)),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    """Return what of a sentencepiece model stands in Marian's vocabulary."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    numbers = range(processor.GetPieceSize())
    return [
        processor.IdToPiece(one) for one in numbers if not processor.IsControl(one) and not processor.IsUnknown(one)
    ]


def write_tokenizer(folder: Path, size: int, kind: str, tags: list[str], separate: bool, rows: int) -> dict[str, int]:
    """Write the files of a MarianTokenizer, and return the target's vocabulary, which has rows that no text uses."""
    sides = {side: subwords(side, size, kind) for side in LANGUAGES}
    for side, model in sides.items():
        (folder / f"{side}.spm").write_bytes(model)
    source, target = (pieces(model) for model in sides.values())
    parts = [(source, "vocab"), (target, "target_vocab")] if separate else [([*source, *target], "vocab")]
    vocabulary: dict[str, int] = {}
    for own, name in parts:
        unused = [f"▁nie{number}" for number in range(max(1, rows - len({*own, *tags}) - 5))]
        tokens = dict.fromkeys(["</s>", "<unk>", *tags, *own, *unused, "Ω", "<s>", "<pad>"])
        vocabulary = {token: row for row, token in enumerate(tokens)}
        (folder / f"{name}.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return vocabulary


def clear_padding(model: Any) -> None:
    """Leave the rows of `<pad>` at zero, as transformers' conversion of Marian's models does."""
    for part in (model.get_encoder(), model.get_decoder()):
        part.embed_tokens.weight[model.config.pad_token_id] = 0.0


def make_model(vocabulary_sizes: tuple[int, int], pad: int, seed: int, shape: dict[str, Any]) -> Any:
    """Return a MarianMTModel with random weights, none of which is at the value that it begins with."""
    from transformers import MarianConfig, MarianMTModel

    ids: dict[str, Any] = {"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": 0}
    source, target = vocabulary_sizes
    config = MarianConfig(vocab_size=source, decoder_vocab_size=target, forced_eos_token_id=0, **ids, **shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model: Any = MarianMTModel(config)
        model.eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)  # no gain is 1 and no bias 0
            elif "embed_positions" in name:
                continue
            elif "embed_tokens" not in name and "shared" not in name and "lm_head" not in name:
                parameter.copy_(torch.randn_like(parameter) / parameter.size(1) ** 0.5)
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.size(1) ** 0.5)
        model.final_logits_bias.normal_(std=0.3)
        if config.tie_word_embeddings:  # else a target starts from a row that is not zero
            clear_padding(model)
        model.final_logits_bias[0, pad] = 0.0
    return model


def learn(model: Any, tokenizer: Any, steps: int) -> None:
    """Train for some steps as transformers does, so that what is read and written counts."""
    sources, targets = sentences("de", 3000), sentences("en", 3000)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with torch.random.fork_rng(devices=[]), silent():
        torch.manual_seed(1)
        for step in range(steps):
            place = slice(32 * step % 2900, 32 * step % 2900 + 32)
            batch = tokenizer(sources[place], text_target=targets[place], return_tensors="pt", padding=True)
            batch["labels"][batch["labels"] == model.config.pad_token_id] = -100
            optimizer.zero_grad()
            model.train()(**batch).loss.backward()
            optimizer.step()
            with torch.no_grad():
                clear_padding(model)
    model.eval()


@pytest.fixture(scope="session")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`marian(size=150, kind="unigram", tags=[], separate=False, seed=1, steps=0, rows=0, **shape)`: saved by
    transformers, after `steps` of training; `rows` is the least size of its vocabulary.
    """
    from transformers import MarianTokenizer

    made: dict[str, Made] = {}

    def get(
        size: int = 150,
        kind: str = "unigram",
        tags: list[str] | None = None,
        separate: bool = False,
        seed: int = 1,
        steps: int = 0,
        rows: int = 0,
        **shape: Any,
    ) -> Made:
        key = repr((size, kind, tags, separate, seed, steps, rows, sorted(shape.items())))
        if key in made:
            return made[key]
        folder = tmp_path_factory.mktemp("marian")
        target = write_tokenizer(folder, size, kind, tags or [], separate, rows)
        source = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        if separate:  # one id of `<pad>` for both, as transformers' own conversion makes them
            assert len(source) == len(target)
        with silent():
            named = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
            named |= {"target_vocab_file": "target_vocab.json"} if separate else {}
            files: dict[str, Any] = {key: str(folder / name) for key, name in named.items()}
            languages: dict[str, Any] = {"source_lang": "de", "target_lang": "en"}
            tokenizer = MarianTokenizer(**files, **languages, separate_vocabs=separate, split_special_tokens=True)
            shape = {**SMALL, "share_encoder_decoder_embeddings": not separate, **shape}
            model = make_model((len(source), len(target)), target["<pad>"], seed, shape)
            learn(model, tokenizer, steps)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        made[key] = Made(folder, model, tokenizer)
        return made[key]

    return get


# --- Marian's own files -----------------------------------------------------------------------------------------------


def write_release(made: Made, out: Path, **settings: Any) -> Path:
    """Write a model as OPUS-MT releases it: .npz in Marian's layout, vocabularies, decoder.yml, README, LICENSE."""
    import yaml

    out.mkdir()
    model, shape = made.model, made.model.config
    shared = shape.share_encoder_decoder_embeddings
    arrays = marian_arrays(model, shared)
    said = {
        "type": "transformer",
        "dim-emb": shape.d_model,
        "enc-depth": shape.encoder_layers,
        "dec-depth": shape.decoder_layers,
        "transformer-heads": shape.encoder_attention_heads,
        "transformer-dim-ffn": shape.encoder_ffn_dim,
        "transformer-ffn-activation": shape.activation_function,
        "transformer-ffn-depth": 2,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-preprocess": "",
        "transformer-postprocess": "dan",
        "transformer-postprocess-emb": "d",
        "transformer-tied-layers": [],
        "transformer-no-projection": False,
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings": not shared,
        "tied-embeddings-all": shared,
        "tied-embeddings-src": False,
        **settings,
    }
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(said).encode() + b"\0", np.uint8)
    np.savez(out / "opus.npz", **arrays)
    names = ["opus.vocab.yml"] * 2
    if not shared:
        names = ["opus.src.vocab.yml", "opus.trg.vocab.yml"]
    for name, json_name in zip(names, ("vocab.json", "vocab.json" if shared else "target_vocab.json"), strict=True):
        tokens = json.loads((made.folder / json_name).read_text(encoding="utf-8"))
        rows = [
            f"{json.dumps(token, ensure_ascii=False)}: {row}\n" for token, row in tokens.items() if token != "<pad>"
        ]
        (out / name).write_text("".join(rows), encoding="utf-8")
    for side in LANGUAGES:
        shutil.copyfile(made.folder / f"{side}.spm", out / f"{side}.spm")
    decoder = {"models": ["opus.npz"], "vocabs": names, "beam-size": 6, "normalize": 1, "relative-paths": True}
    (out / "decoder.yml").write_text(yaml.safe_dump(decoder), encoding="utf-8")
    (out / "README.md").write_text(
        "# opus.zip\n\n* source language(s): de\n* target language(s): en\n", encoding="utf-8"
    )
    (out / "LICENSE").write_text("Attribution 4.0 International\n", encoding="utf-8")
    return out


def marian_arrays(model: Any, shared: bool) -> dict[str, Any]:
    """Return the weights in Marian's layout, which has no row for `<pad>`."""
    arrays = {}
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if name == "final_logits_bias":
            arrays["decoder_ff_logit_out_b"] = array[:, :-1]
        elif name == "model.shared.weight":
            arrays["Wemb"] = array[:-1]
        elif "embed_tokens" in name and not shared:
            arrays[f"{name.split('.')[1]}_Wemb"] = array[:-1]
        elif ".layers." in name:
            _, side, _, number, *part, kind = name.split(".")
            own = MARIAN[".".join(part)].split()[kind == "bias"]
            arrays[f"{side}_l{int(number) + 1}_{own}"] = array.T if array.ndim == 2 else array[None]
    return arrays


def zipped(folder: Path, out: Path) -> Path:
    """Write a folder's files into a zip, as OPUS-MT does."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, path.name)
    return out
