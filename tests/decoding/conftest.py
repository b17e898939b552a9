"""Codecs for the tests of what is around engines."""

import pytest

from tests.decoding.echo import TEXT, MakeCodecs
from transformer_cli.config import Config
from transformer_cli.text.build import build_codecs
from transformer_cli.text.codec import Codecs


@pytest.fixture(scope="session")
def make_codecs() -> MakeCodecs:
    """Codecs trained on a few lines; those of a config are made once."""
    made: dict[str, Codecs] = {}

    def make(config: Config) -> Codecs:
        key = config.vocabulary.model_dump_json()
        if key not in made:
            made[key], _ = build_codecs(config, lambda: [(text, text) for text in TEXT])
        return made[key]

    return make
