"""How translations are searched for: the config section `decoding`."""

from transformer_cli.config.sections import Positive, Section
from transformer_cli.search_options import ConfiguredSearch


class DecodingConfig(Section, ConfiguredSearch):  # type: ignore[misc]  # mypy does not see that a section is frozen
    """How translations are found. Options of `tfm translate` override these."""

    batch_tokens: Positive = 4096  # size of a batch in translating: sentences × longest source, padding included
    # Other tokenizers than sentencepiece: `<unk>` becomes the source word that attention points at.
    copy_unknown: bool = True
