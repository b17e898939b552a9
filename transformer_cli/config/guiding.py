"""What guides attention in training: the config section `training.guided_attention`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from transformer_cli.config.section import Positive, Section


class GuidedAttention(Section):
    """A loss on the decoder's attention to the source, such as `{prior: diagonal}` (Tachibana et al. 2017, eq. 6-7), or
    `{prior: alignments, alignments: train.align}` (Garg et al. 2019, eq. 5)."""

    prior: Literal["diagonal", "alignments"] = "diagonal"  # towards the diagonal, or towards alignments of a file
    # The alignments of `data.train`: a Pharaoh file (`0-0 1-2 …`, words between spaces counted from 0), line by line.
    alignments: Annotated[str, Field(min_length=1)] | None = None
    weight: Annotated[float, Field(gt=0.0, le=1000.0)] = 1.0  # of this loss, a target token, beside the translation's
    width: Annotated[float, Field(gt=0.0, le=10.0)] = 0.2  # diagonal only: how far from it is free, g of the paper
    layer: Annotated[int, Field(ge=-1000, le=999)] = -1  # which decoder layer, from 0; -1: the last
    heads: tuple[Annotated[int, Field(ge=0)], ...] | None = None  # which heads; null: all (diagonal), 0 (alignments)
    max_steps: Positive | None = None  # steps after which it ends; null: it stays

    @property
    def supervised_heads(self) -> tuple[int, ...] | None:
        """The heads that learn alignments, so that these can be read from them; None with a diagonal prior."""
        return (self.heads or (0,)) if self.prior == "alignments" else None

    @model_validator(mode="after")
    def _file_fits(self) -> "GuidedAttention":
        """`prior: alignments` needs the file `alignments`; `diagonal` has none. `heads` names heads, each once."""
        if (self.prior == "alignments") != (self.alignments is not None):
            raise ValueError(
                "alignments: prior alignments needs this file"
                if self.prior == "alignments"
                else "alignments: prior diagonal has no such file; leave it out, or set prior: alignments"
            )
        if self.heads is not None and (not self.heads or len(set(self.heads)) < len(self.heads)):
            raise ValueError("heads: name one head or more, each once; or null")
        return self
