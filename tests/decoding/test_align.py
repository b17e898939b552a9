"""The links that an engine finds between tokens become links between words."""

from collections.abc import Sequence

import pytest

from transformer_cli.config import Config
from transformer_cli.decoding.translator import Translator
from transformer_cli.text.alignments import token_words
from transformer_cli.text.build import build_codecs


class Reversing:
    """Aligns the last token to the first, and so on."""

    name = "reversing"
    max_source_length = max_target_length = None

    def align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        layer: int = -1,
        heads: Sequence[int] | None = None,
        skip: Sequence[int] | None = None,
    ) -> list[list[int]]:
        self.asked = layer, heads
        return [
            [max(0, len(source) - 1 - place) for place in range(len(target))]
            for source, target in zip(sources, targets, strict=True)
        ]


@pytest.mark.parametrize("tokenizer", ["whitespace", "character", "sentencepiece"])
def test_links_of_tokens_become_links_of_words(tokenizer: str) -> None:
    files = {"source": "a", "target": "b"}
    config = Config.model_validate(
        {
            "data": {"source_language": "de", "target_language": "en", "train": files, "valid": files},
            "vocabulary": {"tokenizer": tokenizer, "size": 270, "algorithm": "bpe"},
        }
    )
    codecs, _ = build_codecs(config, lambda: [("abc de f", "abc de f")])
    for text in ("abc de f", "f", "abcdef, 😀 x"):
        words = token_words(codecs.source, text)
        assert len(words) == len(codecs.source.encode(text))
        assert sorted(set(words)) == list(range(len(text.split())))
        assert words == sorted(words)
    engine = Reversing()
    translator = Translator(engine, codecs, config)  # type: ignore[arg-type]
    (links,) = translator.align(["abc de"], ["abc de"], attention=(1, [0]))
    assert {(0, 1), (1, 0)} <= links
    assert engine.asked == (1, [0])
