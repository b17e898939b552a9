"""What `tfm translate` and `tfm distill` make of the options that both have: one value, checked before all else.

Both pass on their options by name, as they stand in the command's context.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from transformer_cli.cli.options import check_apart, check_needs, check_search, flag, search_changes
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.jobs.translating import TranslationOptions

SAMPLING = ("temperature", "top_k", "top_p", "seed")
OF_BEAM = ("coverage_penalty", "diverse_groups")
FIELDS = {"beam": "beam_size", "diverse_groups": "diversity_groups", "diversity": "diversity_strength"}
SEARCH = (
    *(*SAMPLING, *OF_BEAM, "diversity", "length_penalty", "no_repeat_ngram", "min_length", "max_length"),
    *("iterations", "length_candidates"),
)


def translation_options(model: Path, given: Mapping[str, Any], **others: Any) -> "TranslationOptions":
    """Return how `model` translates, by the options `given` on the command line and `others` that need no check.

    Raises `UserError` where options exclude each other, or there is no such model, or it cannot do what is asked for.
    """
    check_options(given)
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.jobs.translating import TranslationOptions

    candidates = given["mbr"] or given.get("best_of")
    changes = {FIELDS.get(name, name): given.get(name) for name in SEARCH}
    return TranslationOptions(
        model=FoundModel.at(model),
        beside=tuple(map(FoundModel.at, given["with_"] or ())),
        search=search_changes(
            beam=candidates if given["beam"] is None and not given["sample"] else given["beam"],
            greedy=given["greedy"],
            sample=given["sample"],
            n_best=candidates or given.get("n_best", 1),
            **changes,
        ),
        mbr=given["mbr"] is not None,
        **{name: given[name] for name in ("device", "engine", "compute_type", "guard", "batch_tokens", "protect")},
        glossary=given["glossary"],
        **others,
    )


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UserError` where options exclude each other, or one lacks what it belongs to."""
    of_beam = {name: given.get(name) for name in OF_BEAM}
    check_search(beam=given["beam"], greedy=given["greedy"], sample=given["sample"])
    check_needs("--sample", given["sample"], **{name: given[name] for name in SAMPLING})
    check_apart("--greedy", given["greedy"], **of_beam, best_of=given.get("best_of"))
    check_apart("--sample", given["sample"], **of_beam)
    check_needs("--diverse-groups", given.get("diverse_groups"), diversity=given.get("diversity"))
    check_apart("--mbr", given["mbr"], greedy=given["greedy"] or None, best_of=given.get("best_of"))
    check_apart("--no-protect", not given["protect"], glossary=given["glossary"])
    for name in ("mbr", "best_of"):
        wanted, beam = given.get(name), given["beam"]
        if wanted and beam is not None and wanted > beam:
            raise UserError(f"{flag(name)} {wanted}: --beam {beam} finds fewer candidates; raise that, or lower this")


def options_given(context: typer.Context, names: Collection[str]) -> dict[str, object]:
    """Return those of some options, by what they are called, that have another value than their default."""
    found = {}
    for option in context.command.params:
        value = context.params[option.name or ""]
        if option.name in names and value not in (None, [], (), option.default):
            found[option.opts[0].removeprefix("--")] = value
    return found
