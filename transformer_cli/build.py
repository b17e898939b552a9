"""The one place where a config becomes a model, an objective and an engine, and a checkpoint folder a model.

It alone knows every variant (`codecs` chooses their text side). Loading, training and validation call it.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from transformer_cli.codecs import load_text_side
from transformer_cli.config import Config, ModelConfig
from transformer_cli.decoding.engines.protocol import Engine
from transformer_cli.decoding.engines.torch_engine import TorchEngine
from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.embedding import Embedding, LearnedPositions, SinusoidalPositions
from transformer_cli.model.masks import PAD
from transformer_cli.model.torch_private import without_drawing
from transformer_cli.model.transformer import Decoder, Encoder, Generator, Transformer
from transformer_cli.storage.checkpoint import check_size, fill
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import WEIGHTS, find_model
from transformer_cli.text.codec import Codecs
from transformer_cli.training.objective import TranslationObjective
from transformer_cli.variants.embeddings import OneHotEmbedding
from transformer_cli.variants.guided_attention import GuidedObjective
from transformer_cli.variants.lexicon import Lexicon
from transformer_cli.variants.mask_predict.engine import NonAutoregressiveEngine
from transformer_cli.variants.mask_predict.model import (
    LengthPredictor,
    MaskedObjective,
    NonAutoregressiveTransformer,
    OneShotObjective,
)
from transformer_cli.variants.pointer.model import OutOfVocabularyEmbedding, PointerGenerator
from transformer_cli.variants.pointer.text import CopiedSource
from transformer_cli.variants.scheduled_sampling import ScheduledSamplingObjective


def build_model(config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int) -> Transformer:
    """Return a freshly initialised Transformer, drawn from torch's global generator; float32, on the CPU."""
    parts = (
        _build_embedding(config, source_vocabulary_size),
        _build_embedding(config, target_vocabulary_size),
        Encoder(config),
        _build_decoder(config),
        _build_generator(config, source_vocabulary_size, target_vocabulary_size),
    )
    if config.generation == "autoregressive":
        model = Transformer(*parts)
    else:
        lengths = LengthPredictor(config.d_model) if config.generation == "mask_predict" else None
        model = NonAutoregressiveTransformer(*parts, lengths)
    _tie(model, config)
    _initialise(model, config)
    return model


def count_parameters(model: nn.Module) -> int:
    """Count the weights, frozen ones too, tied ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _build_embedding(config: ModelConfig, vocabulary_size: int) -> Embedding:
    positions: SinusoidalPositions | LearnedPositions | None = None  # rotary ones belong to encoder and decoder
    if config.positions == "learned":
        positions = LearnedPositions(config.max_positions, config.d_model)
    elif config.positions == "sinusoidal":
        positions = SinusoidalPositions(config.d_model)
    dropout = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    embedding = Embedding(vocabulary_size, config.d_model, positions, dropout)
    if config.embedding == "one_hot":
        embedding.tokens = OneHotEmbedding(vocabulary_size, config.d_model)
    if config.generator == "pointer":
        embedding.tokens = OutOfVocabularyEmbedding(vocabulary_size, config.d_model)
    return embedding


def _build_decoder(config: ModelConfig) -> Decoder:
    if config.generation != "autoregressive":
        Decoder(config)  # drawn and left: so a seed gives the weights that it has always given
    return Decoder(config, last_weights=config.generator == "pointer")


def _build_generator(config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int) -> Generator:
    if config.generator == "pointer":
        return PointerGenerator(config.d_model, source_vocabulary_size, target_vocabulary_size, config.generator_bias)
    return Generator(config.d_model, target_vocabulary_size, config.generator_bias)


def _tie(model: Transformer, config: ModelConfig) -> None:
    """Share one matrix (Press and Wolf 2017; §3.4) between the decoder's two ends, or with the encoder too."""
    target = model.target_embedding.tokens.table
    if config.tie_embeddings in ("decoder", "all"):
        model.generator.projection.weight = target.weight
    if config.tie_embeddings == "all":
        source = model.source_embedding.tokens.table
        assert source.num_embeddings == target.num_embeddings, "tying all embeddings needs one shared vocabulary"
        source.weight = target.weight


def _initialise(model: Transformer, config: ModelConfig) -> None:
    """Draw every projection Xavier-uniformly and embeddings from normal(0, d_model^-0.5).

    The row of <pad> and biases are zero; learned positions begin as the sinusoids.
    """
    modules = list(model.modules())
    for linear in (module for module in modules if isinstance(module, nn.Linear)):
        nn.init.xavier_uniform_(linear.weight)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)
    for attention in (module for module in modules if isinstance(module, MultiHeadAttention)):
        if attention.value_dim == attention.head_dim:
            # Keys and values share one matrix, yet each is a projection of its own and gets its own bounds.
            for half in attention.key_value.weight.chunk(2):
                nn.init.xavier_uniform_(half)
    embeddings = [module for module in modules if isinstance(module, nn.Embedding)]
    for embedding in embeddings:  # after the linear layers: a tied matrix is an embedding first
        nn.init.normal_(embedding.weight, std=config.d_model**-0.5)
    for embedding in embeddings:
        if embedding.padding_idx == PAD:
            nn.init.zeros_(embedding.weight.data[PAD])
    for positions in (module for module in modules if isinstance(module, LearnedPositions)):
        positions.reset_parameters()


def set_target_ids(model: Transformer, codecs: Codecs) -> None:
    """Give a generator that copies the target id of each source token; the plain one needs none."""
    if isinstance(model.generator, PointerGenerator):
        assert isinstance(codecs.source, CopiedSource)
        model.generator.set_target_ids(codecs.source.target_ids())


def build_engine(model: Transformer, device: torch.device | str = "cpu", *, constant: bool = False) -> Engine:
    """Return the engine for a model. constant: its parameters will never change again."""
    if isinstance(model, NonAutoregressiveTransformer):
        return NonAutoregressiveEngine(model, device)
    return TorchEngine(model, device, constant=constant)


def build_objective(model: Transformer, config: Config, lexicon: Lexicon | None = None) -> TranslationObjective:
    """Return what this config trains for; attention that is guided by statistics needs the lexicon."""
    generation, training, smoothing = config.model.generation, config.training, config.training.label_smoothing
    if generation == "one_shot":
        return OneShotObjective(model, smoothing)
    if generation == "mask_predict":
        return MaskedObjective(model, smoothing)
    if training.guided_attention is not None:
        return GuidedObjective(model, smoothing, training.guided_attention, training.r_drop, lexicon)
    if training.scheduled_sampling is not None:
        return ScheduledSamplingObjective(model, smoothing, training.scheduled_sampling)
    return TranslationObjective(model, smoothing, training.r_drop)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready for use, with the checkpoint folder that it came from."""

    config: Config
    codecs: Codecs
    model: Transformer
    folder: Path


def load_model(path: str | Path, device: str | torch.device = "cpu", config: Config | None = None) -> LoadedModel:
    """Return the model of a run folder (its best checkpoint) or a checkpoint folder, in evaluation mode on the device.

    Every file is held against its hash before it is read. config: where that was read already.
    Leaves torch's random generator alone. Raises `UserError`.
    """
    folder = find_model(path)
    config, codecs = load_text_side(folder, config)
    verify(folder, [WEIGHTS])
    sizes = len(codecs.source.vocabulary), len(codecs.target.vocabulary)
    check_size(folder / WEIGHTS, config.model, sizes[1])
    with torch.random.fork_rng(devices=[]), without_drawing():
        model = build_model(config.model, *sizes)
    fill(model, folder / WEIGHTS)
    return LoadedModel(config, codecs, model.to(device).eval(), folder)
