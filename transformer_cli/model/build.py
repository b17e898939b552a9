"""From a config to a model: the one place where parts are chosen, tied and initialised."""

from torch import nn

from transformer_cli.config import ModelConfig
from transformer_cli.model.attention import MultiHeadAttention
from transformer_cli.model.decoder import Decoder
from transformer_cli.model.embedding import Embedding
from transformer_cli.model.encoder import Encoder
from transformer_cli.model.generator import Generator
from transformer_cli.model.masks import PAD
from transformer_cli.model.nonautoregressive import LengthPredictor, NonAutoregressiveTransformer, UnmaskedDecoder
from transformer_cli.model.one_hot import OneHotEmbedding
from transformer_cli.model.pointer import KnownTokens, PointerGenerator, PointingDecoder
from transformer_cli.model.positions import LearnedPositions, SinusoidalPositions
from transformer_cli.model.transformer import Transformer


def build_model(config: ModelConfig, source_vocabulary_size: int, target_vocabulary_size: int) -> Transformer:
    """A freshly initialised Transformer, drawn from torch's global generator; float32, on the CPU."""
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
    """Weights, frozen ones too, tied ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def _build_embedding(config: ModelConfig, vocabulary_size: int) -> Embedding:
    positions: SinusoidalPositions | LearnedPositions
    if config.positions == "learned":
        positions = LearnedPositions(config.max_positions, config.d_model)
    else:
        positions = SinusoidalPositions(config.d_model)
    dropout = config.dropout if config.embedding_dropout is None else config.embedding_dropout
    embedding = Embedding(vocabulary_size, config.d_model, positions, dropout)
    if config.embedding == "one_hot":
        embedding.tokens = OneHotEmbedding(vocabulary_size, config.d_model)
    if config.generator == "pointer":
        embedding.tokens = KnownTokens(vocabulary_size, config.d_model)
    return embedding


def _build_decoder(config: ModelConfig) -> Decoder:
    if config.generation != "autoregressive":
        return UnmaskedDecoder(config)
    return PointingDecoder(config) if config.generator == "pointer" else Decoder(config)


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
    """Xavier-uniform for every projection, embeddings normal(0, d_model^-0.5), the row of <pad> and biases zero;
    learned positions begin as the sinusoids."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            # Keys and values share one matrix, yet each is a projection of its own and gets its own bounds.
            for half in module.key_value.weight.chunk(2):
                nn.init.xavier_uniform_(half)
    embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    for embedding in embeddings:  # after the linear layers: a tied matrix is an embedding first
        nn.init.normal_(embedding.weight, std=config.d_model**-0.5)
    for embedding in embeddings:
        if embedding.padding_idx == PAD:
            nn.init.zeros_(embedding.weight.data[PAD])
    for module in model.modules():
        if isinstance(module, LearnedPositions):
            module.reset_parameters()
