"""What options ask of a model that writes all tokens at once, or of one that does not: refused by the option's name.

`loading` and `settings` call it before any weights are loaded.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.config import Config

TOKEN_BY_TOKEN = {  # of `SearchOptions`
    "beam_size": "--beam (and --mbr and --best-of, which need beams)",
    "coverage_penalty": "--coverage-penalty",
    "diversity_groups": "--diverse-groups",
}
REFINING = {"iterations": "--iterations", "length_candidates": "--length-candidates"}


def fit_to_generation(model: Path, config: "Config", changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes of the model's `SearchOptions`, as it takes them. Raises `UserError` for what it has no place for."""
    generation = config.model.generation
    if generation != "mask_predict":
        for name, option in REFINING.items():
            if name in changes:
                raise UserError(
                    f"{option}: is of models with generation: mask_predict, but {model} has {generation}; leave it out"
                )
    if generation == "autoregressive":
        return dict(changes)
    asked = [option for name, option in TOKEN_BY_TOKEN.items() if name in changes]
    asked += ["--sample"] if changes.get("method") == "sample" else []
    if asked:
        raise _at_once(asked[0], model, generation)
    wanted = changes.get("n_best", 1)
    most = changes.get("length_candidates", config.decoding.length_candidates) if generation == "mask_predict" else 1
    if wanted > most:
        rest = f"--length-candidates {most} finds" if generation == "mask_predict" else f"generation {generation} finds"
        raise UserError(f"--n-best {wanted}: {rest} no more than {most}; raise that, or lower this")
    return {**changes, "beam_size": max(wanted, config.decoding.beam_size)}  # which is not looked at


def check_token_by_token(option: str, model: Path, config: "Config") -> None:
    """Raise `UserError` where the model does not write token after token, as the option needs it."""
    if config.model.generation != "autoregressive":
        raise _at_once(option, model, config.model.generation)


def _at_once(option: str, model: Path, generation: str) -> UserError:
    return UserError(f"{option}: {model} has generation: {generation} and writes all tokens at once; leave it out")
