"""Which codecs a config's model has, and how a checkpoint folder's are read. No torch, nor does decoding need it.

`build`, training and decoding call it. What makes and reads the files is `text`, which knows no variant.
"""

from pathlib import Path

from transformer_cli.config import Config, load_config
from transformer_cli.storage.publishing import verify
from transformer_cli.storage.run_folder import CONFIG
from transformer_cli.text.codec import Codecs, vocabulary_files
from transformer_cli.variants.pointer.text import CopyingCodecs


def model_codecs(codecs: Codecs, config: Config) -> Codecs:
    """Return codecs as `text` makes and reads them in the way that the config's model takes them."""
    return CopyingCodecs(codecs.source, codecs.target, config) if config.model.generator == "pointer" else codecs


def load_codecs(folder: Path, config: Config) -> Codecs:
    """Read the codecs of a checkpoint folder, each file held against its hash before. Raises `UserError`."""
    verify(folder, vocabulary_files(config.vocabulary))
    return model_codecs(Codecs.load(folder, config), config)


def load_text_side(folder: Path, config: Config | None = None) -> tuple[Config, Codecs]:
    """Read config (unless it was read already) and codecs of a checkpoint folder; as `load_codecs`."""
    if config is None:
        verify(folder, [CONFIG])
        config = load_config(folder / CONFIG)
    return config, load_codecs(folder, config)
