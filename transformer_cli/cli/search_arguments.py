"""The options of `tfm translate` that say how to search: wording, bounds, defaults."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_cli.cli.layout import Below

Sample = Annotated[bool, typer.Option("--sample", help="Draw each token from the model's distribution.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0.0,
        max=1000.0,
        metavar="T",
        help="Of --sample: above 1 more varied, below 1 safer.  [default: 1.0]",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option("--top-k", min=1, metavar="K", help="--sample from the K most probable tokens.  [default: all]"),
]
TopP = Annotated[
    float | None,
    typer.Option(
        "--top-p",
        min=0.0,
        max=1.0,
        metavar="P",
        help="--sample from the most probable tokens that make up P.  [default: 1.0]",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", min=0, metavar="N", help="Of --sample: the same seed draws the same.  [default: 1]"),
]
NBest = Annotated[
    int, typer.Option("--n-best", min=1, max=1000, metavar="N", help="Print the N best translations of each line.")
]
DiverseGroups = Annotated[
    int | None,
    typer.Option(
        "--diverse-groups",
        min=1,
        metavar="G",
        help="Diverse beam search: G groups of beams, each unlike those before it.  [default: 1]",
    ),
]
Diversity = Annotated[
    float | None,
    typer.Option(
        "--diversity",
        min=0.0,
        max=100.0,
        metavar="D",
        help="Of --diverse-groups: log-probability that repeating another group's token costs.  [default: 0.5]",
    ),
]
MinLength = Annotated[
    int | None, typer.Option("--min-length", min=0, metavar="N", help="Fewest tokens of a translation.  [default: 1]")
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        "--max-length",
        min=1,
        metavar="N",
        help="Most tokens of a translation.  [default: by the length of the source, as the model's config says]",
    ),
]
NoRepeatNgram = Annotated[
    int | None,
    typer.Option(
        "--no-repeat-ngram",
        min=1,
        metavar="N",
        help="No N tokens in a row come twice in a translation.  [default: off]",
    ),
]
CoveragePenalty = Annotated[
    float | None,
    typer.Option(
        "--coverage-penalty",
        min=0.0,
        max=100.0,
        metavar="B",
        help="Weight of the penalty for source tokens that get little attention (Wu et al. 2016).  [default: 0]",
    ),
]
Iterations = Annotated[
    int | None,
    typer.Option(
        "--iterations",
        min=1,
        max=1000,
        metavar="N",
        help="Of models with generation: mask_predict: passes over a translation.  [default: the model's]",
    ),
]
LengthCandidates = Annotated[
    int | None,
    typer.Option(
        "--length-candidates",
        min=1,
        max=100,
        metavar="N",
        help="Of the same: how many likely lengths are tried.  [default: the model's]",
    ),
]
Prefix = Annotated[
    str | None, typer.Option("--prefix", metavar="TEXT", help="Every translation begins with this text.")
]
Require = Annotated[
    list[str] | None,
    typer.Option("--require", metavar="WORDS", help="Every translation holds these words. Repeatable."),
]
Forbid = Annotated[
    list[str] | None,
    typer.Option("--forbid", metavar="WORDS", help="No translation holds these words. Repeatable."),
]
Constraints = Annotated[
    Path | None,
    typer.Option(
        "--constraints",
        metavar="FILE",
        help='Constraints of each line: JSON lines such as {"prefix": "…", "require": ["…"], "forbid": ["…"]}.',
    ),
]
Mbr = Annotated[
    int | None,
    typer.Option(
        "--mbr",
        min=2,
        max=1000,
        metavar="N",
        help="Minimum Bayes risk: of N candidates (beams, or draws of --sample) those most like all others, by chrF.",
    ),
]
Guard = Annotated[
    bool,
    typer.Option("--guard/--no-guard", help="Search again, without repetition, where a translation runs in circles."),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        "--min-confidence",
        min=0.0,
        max=1.0,
        metavar="X",
        help="Mark translations whose expected chrF (0 to 1) is below X; tfm calibrate tells the model.",
    ),
]
BelowConfidence = Annotated[
    Below | None,
    typer.Option(
        "--below",
        metavar="WHAT",
        help="Of --min-confidence: mark ([?] before it) or drop (an empty line).  [default: mark]",
    ),
]
AlignmentLayer = Annotated[
    int | None,
    typer.Option(
        "--alignment-layer",
        min=1,
        metavar="N",
        help="Decoder layer whose attention --alignments reads, from 1.  [default: the last, or what learned to align]",
    ),
]
AlignmentHeads = Annotated[
    str | None,
    typer.Option(
        "--alignment-heads",
        metavar="NUMBERS",
        help="Its heads, such as 1,3 or 2-4, from 1.  [default: all, or what learned to align]",
    ),
]
With = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        metavar="MODEL2",
        help="Decide on each token together with this model, of the same vocabulary (ensemble). Repeatable.",
    ),
]
Protect = Annotated[
    bool,
    typer.Option("--protect/--no-protect", help="Leave URLs, e-mail addresses, placeholders and tags as they are."),
]
GlossaryFile = Annotated[
    Path | None,
    typer.Option("--glossary", metavar="FILE", help="Terms and what each becomes: a line each, a tab between."),
]
