"""Checkpoints of small random models that speak clearly, for tests that hold one engine against another."""

import tempfile
from pathlib import Path
from typing import Any

import torch

from transformer_cli.build import LoadedModel, build_model, set_target_ids
from transformer_cli.codecs import model_codecs
from transformer_cli.config import Config
from transformer_cli.decoding.engines.ctranslate2_model import build_spec, write_model
from transformer_cli.storage.checkpoint import save_model
from transformer_cli.storage.publishing import publish
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs
from transformer_cli.text.vocabulary import BOS, EOS, PAD

WORDS = [f"{a}{b}" for a in "bdfgk" for b in ("a", "e", "ö", "漢", '"', "\\", "\x00")]
SHAPE = {"encoder_layers": 1, "decoder_layers": 2, "d_model": 24, "heads": 3, "d_ff": 32, "max_positions": 40}


def make_config(
    *,
    shared: bool = True,
    decoding: dict[str, Any] | None = None,
    vocabulary: dict[str, Any] | None = None,
    **model: Any,
) -> Config:
    """A whitespace model of at most 20 tokens a piece, with learned positions up to 40."""
    files = {"source": "a", "target": "b"}
    languages = {"source_language": "de", "target_language": "en"}
    return Config.model_validate(
        {
            "data": {**languages, "train": files, "valid": files, "max_length": 20},
            "vocabulary": {"tokenizer": "whitespace", "shared": shared, **(vocabulary or {})},
            "model": {**SHAPE, **model},
            "decoding": {"max_length_ratio": 1.2, "max_length_extra": 2, **(decoding or {})},
        }
    )


def make_model(config: Config, codecs: Codecs, seed: int = 1) -> Any:
    """Random all over, sure of its tokens; it ends now and then, and would love to say <pad> and <s>."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(config.model, len(codecs.source.vocabulary), len(codecs.target.vocabulary)).eval()
        set_target_ids(model, codecs)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.2)
            model.generator.projection.weight.mul_(3.0)
            if model.generator.projection.bias is not None:
                model.generator.projection.bias.normal_()
                model.generator.projection.bias[EOS] = 2.0
                model.generator.projection.bias[[PAD, BOS]] = 3.0
    return model


def make_loaded(seed: int = 1, **options: Any) -> LoadedModel:
    """A model that lies nowhere; `options` are those of `make_config`."""
    config = make_config(**options)
    # Both sides know other words, where they have vocabularies of their own.
    plain, _ = build_codecs(config, lambda: [(" ".join(WORDS), " ".join([*WORDS[3:], "more", "words"]))])
    codecs = model_codecs(plain, config)
    return LoadedModel(config, codecs, make_model(config, codecs, seed), Path("nowhere"))


def write_ctranslate2(out: Path, loaded: LoadedModel, quantization: str | None = None) -> None:
    """Write a model, by way of a checkpoint, into a folder that is there."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        publish(folder, lambda new: save_model(new, loaded.model, loaded.config, loaded.codecs))
        write_model(out, build_spec(folder, loaded.config, loaded.codecs), loaded.config, quantization)


def make_checkpoint(folder: Path, seed: int = 1, **options: Any) -> Path:
    """A checkpoint folder of that name with such a model."""
    loaded = make_loaded(seed, **options)
    return publish(folder, lambda temporary: save_model(temporary, loaded.model, loaded.config, loaded.codecs))
