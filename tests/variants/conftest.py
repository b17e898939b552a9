"""What tests of variants share with those of the rooms that a variant reaches into."""

from tests.data.conftest import corpus, subword_codecs, word_codecs
from tests.model.conftest import build, small_config
from tests.text.conftest import codecs, configure_fixture, pairs
from tests.training.conftest import tiny_config, tiny_tree

__all__ = [
    "build",
    "codecs",
    "configure_fixture",
    "corpus",
    "pairs",
    "small_config",
    "subword_codecs",
    "tiny_config",
    "tiny_tree",
    "word_codecs",
]
