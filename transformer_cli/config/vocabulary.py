"""How text becomes tokens: the config section `vocabulary`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transformer_cli.config.section import Positive, Section


class VocabularyConfig(Section):
    """How text becomes tokens, and which tokens have an id. The real size is that of the vocabulary that is built."""

    # Subwords, words by spaCy's rules, words by white space, or characters.
    tokenizer: Literal["sentencepiece", "spacy", "whitespace", "character"] = "sentencepiece"
    algorithm: Literal["unigram", "bpe"] = "unigram"  # sentencepiece only: which kind of subwords
    # Tokens, specials included; sentencepiece: the size of the vocabulary; other tokenizers: the largest allowed.
    size: Annotated[int, Field(ge=8, le=10_000_000)] = 8000
    shared: bool = True  # one vocabulary for both languages
    min_freq: Positive = 1  # other tokenizers than sentencepiece: tokens that occur less often become `<unk>`
    lowercase: bool = False  # lowercase all text, in training and in translating; translations are lowercase too
    # Unicode normalisation form of all text, in training and in translating.
    normalization: Literal["none", "nfc", "nfkc"] = "none"
    symbols: list[str] = []  # tokens that are never split, such as `<2de>`
    # sentencepiece only: share of all characters in the training text that get a piece of their own.
    character_coverage: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9995
    # sentencepiece only: an unseen character becomes its UTF-8 bytes, not `<unk>`; takes 256 pieces of the vocabulary.
    byte_fallback: bool = True
    sample_lines: Positive = 2_000_000  # sentencepiece only: train on at most so many lines, drawn by `training.seed`

    @model_validator(mode="after")
    def _symbols_are_usable(self) -> "VocabularyConfig":
        """`symbols` names each symbol once, without white space, and none of the specials `<pad>`, `<unk>`, `<s>` and
        `</s>`."""
        for symbol in self.symbols:
            if not symbol or symbol.split() != [symbol]:
                raise ValueError(f"symbols: {symbol!r} is empty or holds white space")
            if symbol in ("<pad>", "<unk>", "<s>", "</s>"):
                raise ValueError(f"symbols: {symbol!r} is a special of every vocabulary already; leave it out")
        if len(set(self.symbols)) < len(self.symbols):
            raise ValueError("symbols: a symbol is named twice")
        return self
