"""How the decoder learns from its own predictions: the config section `training.scheduled_sampling`."""

from typing import Annotated, Literal

from pydantic import Field

from transformer_cli.config.section import Positive, Section


class ScheduledSampling(Section):
    """Scheduled sampling (Bengio et al. 2015) in two passes (Mihaylova & Martins 2019), such as
    `{schedule: linear, steps: 10000}`: some true target tokens give way to what the model predicts there."""

    # How the probability of the true token falls from 1 to `floor`.
    schedule: Literal["linear", "exponential", "inverse_sigmoid"] = "inverse_sigmoid"
    steps: Positive = 10_000  # how fast: linear: steps until `floor`; the others: steps until halfway to it
    floor: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5  # the least probability of the true token
    start_step: Annotated[int, Field(ge=0)] = 0  # steps with true tokens alone, before
    # What stands for a true token: the likeliest one, one drawn, or the mean embedding by probability.
    prediction: Literal["argmax", "sample", "mixture"] = "argmax"
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0  # sample and mixture: divides the log-probabilities
