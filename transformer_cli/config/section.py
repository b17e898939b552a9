"""What all config sections share: strictness, and types with bounds."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Dropout = Annotated[float, Field(ge=0.0, le=0.9)]  # what is kept is divided by 1 - p, which must not come near 0
Positive = Annotated[int, Field(ge=1)]
Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]

AWAITS_PRESET = "awaits preset"  # in the context of validation: values will come of which others may depend


class Section(BaseModel):
    """What all sections share: unknown keys are refused, values never change, infinities are no numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def awaits_preset(info: ValidationInfo) -> bool:
    """Whether values are to come from a preset: what must fit together is looked at when they are there."""
    return bool(info.context and info.context.get(AWAITS_PRESET))
