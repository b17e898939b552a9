"""What `tfm translate` and `tfm distill` make of the options that both have: one value, checked before all else.

Both pass on their options by name, as they stand in the command's context.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_cli.cli.options import check_apart, check_needs, check_search, parse_numbers, search_changes
from transformer_cli.errors import UserError

if TYPE_CHECKING:
    from transformer_cli.jobs.translating import TranslationOptions

SAMPLING = ("temperature", "top_k", "top_p", "seed")
OF_BEAM = ("coverage_penalty", "diverse_groups")
# Search options, by their parameters, beside those that choose the method or the number of hypotheses.
SEARCH = {
    **{name: name for name in (*SAMPLING, "coverage_penalty", "length_penalty", "no_repeat_ngram", "min_length")},
    **{name: name for name in ("max_length", "iterations", "length_candidates")},
    "diverse_groups": "diversity_groups",
    "diversity": "diversity_strength",
}
SAME = ("device", "engine", "compute_type", "guard", "batch_tokens", "protect", "glossary")  # in `TranslationOptions`
OF_TRANSLATE = ("alignments", "alignment_layer", "keep_unknown")


def translation_options(model: Path, given: Mapping[str, Any], *, constrained: bool = False) -> "TranslationOptions":
    """Return how `model` translates, by the options `given` on the command line, those of `tfm translate` alone too.

    constrained: whether lines come with constraints. Raises `UserError` where options exclude each other, there is no
    such model, or it cannot do what is asked for.
    """
    check_options(given)
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.decoding.translation import load_confidence
    from transformer_cli.jobs.translating import TranslationOptions

    candidates = given["mbr"] or given.get("best_of")
    options = TranslationOptions(
        model=FoundModel.at(model),
        beside=tuple(map(FoundModel.at, given["with_"] or ())),
        search=search_changes(
            beam=candidates if given["beam"] is None and not given["sample"] else given["beam"],
            greedy=given["greedy"],
            sample=given["sample"],
            n_best=candidates or given.get("n_best", 1),
            **{field: given.get(name) for name, field in SEARCH.items()},
        ),
        mbr=given["mbr"] is not None,
        alignment_heads=tuple(parse_numbers(given.get("alignment_heads"), "--alignment-heads") or ()) or None,
        constrained=constrained,
        **{name: given[name] for name in (*SAME, *OF_TRANSLATE) if name in given},
    )
    if given.get("min_confidence") is not None and load_confidence(options.model.folder) is None:
        raise UserError(f"--min-confidence: {model} is not calibrated; run tfm calibrate {model} first")
    return options


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UserError` where options exclude each other, or one lacks what it belongs to."""
    of_beam = {name: given.get(name) for name in OF_BEAM}
    mbr, best_of, n_best, beam = given["mbr"], given.get("best_of"), given.get("n_best", 1), given["beam"]
    check_search(beam=beam, greedy=given["greedy"], sample=given["sample"])
    check_needs("--sample", given["sample"], **{name: given[name] for name in SAMPLING})
    check_apart("--greedy", given["greedy"], **of_beam, best_of=best_of)
    check_apart("--sample", given["sample"], **of_beam)
    check_needs("--diverse-groups", given.get("diverse_groups"), diversity=given.get("diversity"))
    check_apart("--mbr", mbr, greedy=given["greedy"] or None, best_of=best_of)
    check_apart("--no-protect", not given["protect"], glossary=given["glossary"])
    if mbr is not None and n_best > mbr:
        raise UserError(f"--n-best {n_best} is more than the {mbr} candidates of --mbr: raise that, or lower this")
    for option, wanted in (("--mbr", mbr), ("--best-of", best_of)):
        if wanted and beam is not None and wanted > beam:
            raise UserError(f"{option} {wanted}: --beam {beam} finds fewer candidates; raise that, or lower this")
    if "alignments" in given:
        check_columns(given)


def check_columns(given: Mapping[str, Any]) -> None:
    """Raise `UserError` where options of what is printed exclude each other, or one lacks what it belongs to."""
    alignments, text = given["alignments"], given["format_"] == "text"
    of_alignments = {name: given[name] for name in ("alignment_layer", "alignment_heads")}
    check_needs("--alignments", alignments, **of_alignments)
    check_needs("--min-confidence", given["min_confidence"] is not None, below=given["below"])
    if alignments and given["n_best"] > 1 and text:
        raise UserError("--alignments: goes with the best translation only; leave out --n-best, or add --format json")
    check_apart("--format json or tsv", not text, scores=given["scores"] or None)
    if given["min_confidence"] is not None and given["with_"]:
        raise UserError("--min-confidence and --with exclude each other: it is known of one model alone; leave one out")
