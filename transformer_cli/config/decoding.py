"""How translations are searched for: the config section `decoding`."""

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.sections import Positive, Section


class DecodingConfig(Section):
    """How translations are searched for. Options of `tfm translate` override these."""

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 5  # hypotheses followed at once; 1: greedy
    length_penalty: Annotated[float, Field(ge=0.0, le=10.0)] = 1.0  # exponent α: larger favours longer output; 0: none
    # What the log-probability is divided by: length^α, or the paper's ((5 + length) / 6)^α.
    length_penalty_kind: Literal["average", "gnmt"] = "average"
    # A sentence's search ends after `beam_size` endings, or when no open hypothesis can still win.
    stopping: Literal["first", "exact"] = "first"
    # A translation has at most this × source length + `max_length_extra` tokens, rounded up to a multiple of 16.
    max_length_ratio: Annotated[float, Field(gt=0.0, le=100.0)] = 2.0
    max_length_extra: Annotated[int, Field(ge=0, le=10_000)] = 10  # tokens; see `max_length_ratio`
    batch_tokens: Positive = 4096  # size of a batch in translating: sentences × longest source, padding included
    iterations: Annotated[int, Field(ge=1, le=1000)] = 10  # `generation: mask_predict` only: passes over a translation
    # `generation: mask_predict` only: how many likely lengths are tried; the likeliest result is taken.
    length_candidates: Annotated[int, Field(ge=1, le=100)] = 5
    # Other tokenizers than sentencepiece: `<unk>` becomes the source word that attention points at.
    copy_unknown: bool = True
