"""What is wrong with the corpora of a config, where, what it costs and what to do: what `tfm doctor` says. No torch.

The checks are `data.quality`'s; here they become findings, the worst first.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_cli.data.corpora import Corpus
from transformer_cli.data.quality.judge import OVERLAPS, RARE, Bounds, Judgement, either_side, judge_corpus
from transformer_cli.doctor.repairs import repairs

if TYPE_CHECKING:
    from transformer_cli.cluster import Cluster

EXAMPLES = 3
LEAST_PAIRS = 10_000  # fewer are few, whatever the language
SERIOUS_SHARE = 0.002  # of the pairs, from which on a fault of them is serious; an overlap: of the other's pairs
CHARACTERS_SHOWN = 20


@dataclass(frozen=True)
class Advice:
    """What is known of a kind of fault."""

    what: str
    cost: str
    do: str
    weight: float  # how much a pair with it spoils, to rank by; under 0.5: nothing serious


KINDS = {
    "empty_side": Advice(
        "one side is empty",
        "nothing: training leaves these out anyway",
        "correct or remove the lines",
        0.3,
    ),
    "duplicate_pair": Advice(
        "repeats another, apart from case, spaces and punctuation",
        "the model gives these pairs more weight than others",
        "filter duplicate_pair",
        0.2,
    ),
    "duplicate_source": Advice(
        "one side also stands in another pair, with another translation",
        "little where both translations are good; where one is not, the model learns translations that have nothing to "
        "do with their sources",
        "filter duplicate_source, which leaves out those whose sides are not translations of each other, and no others",
        0.8,
    ),
    "identical_sides": Advice(
        "the translation is a copy of the source",
        "the model learns to copy, not to translate: the most harmful noise of those that Khayrallah and Koehn "
        "(2018) tried",
        "filter identical_sides",
        1.0,
    ),
    "swapped_sides": Advice(
        "source and target are exchanged",
        "the model learns to translate into the wrong language",
        "exchange the sides, or filter swapped_sides",
        1.0,
    ),
    "wrong_language": Advice(
        "one side is in the other language, or in a third one",
        "the model sometimes answers in that language",
        "filter wrong_language",
        1.0,
    ),
    "misaligned": Advice(
        "translations stand some lines away from their sources",
        "the model learns translations that have nothing to do with their sources",
        "restore or remove the line that is missing where the region begins; otherwise filter misaligned",
        1.0,
    ),
    "length_ratio": Advice(
        "one side is much longer than the other",
        "the model learns to leave out text, or to invent some",
        "filter length_ratio",
        0.8,
    ),
    "too_long": Advice(
        "a side is surely longer than data.max_length",
        "nothing is learned from these: training leaves them out",
        "split them into sentences, or raise data.max_length",
        0.2,
    ),
    "encoding_damage": Advice(
        "characters were read in the wrong encoding (Ã¼ for ü)",
        "the model learns to write the damage, and the vocabulary holds it",
        "convert the original file again; otherwise filter encoding_damage",
        0.8,
    ),
    "control_characters": Advice(
        "there are control characters",
        "they take up vocabulary and split words",
        "filter control_characters",
        0.5,
    ),
    "markup": Advice(
        "there are tags or entities on one side only",
        "the model learns to add or drop them",
        "remove the markup, or filter markup",
        0.6,
    ),
    "number_mismatch": Advice(
        "the numbers of the two sides differ",
        "the model learns to change numbers",
        "filter number_mismatch",
        0.6,
    ),
    "url_mismatch": Advice(
        "the addresses of the two sides differ",
        "the model learns to change addresses",
        "filter url_mismatch",
        0.5,
    ),
    "mixed_scripts": Advice(
        "letters of two scripts stand in one word",
        "words that look the same are spelled in two ways",
        "replace the letters of the other script, or filter mixed_scripts",
        0.5,
    ),
    "template": Advice(
        "the same line comes many times with other numbers",
        "the model sees it far more often than other sentences",
        "keep a few, or filter template",
        0.2,
    ),
    "overlap_valid": Advice(
        "these pairs share a text, or nearly, with the validation data",
        "the best checkpoint is chosen partly by what was memorised",
        "filter overlap_valid",
        0.9,
    ),
    "overlap_test": Advice(
        "these pairs share a text, or nearly, with the test data",
        "the score is partly that of memorised sentences",
        "filter overlap_test",
        0.9,
    ),
    "vocabulary": Advice(
        "some characters are too rare for the model to learn them",
        "words with these characters are hardly ever translated correctly",
        "nothing while they are few; if they are damage, clean the text",
        0.05,
    ),
    "too_small": Advice(
        "there are few pairs",
        "the model will know few words",
        "add text; a small vocabulary and more dropout (model.preset: auto chooses both) help",
        0.4,
    ),
}


@dataclass(frozen=True)
class Finding:
    """A fault of a corpus."""

    kind: str
    corpus: str  # train, valid or test; train.0, train.1, … where it is a list of sources
    count: int
    share: float  # of the corpus' pairs
    lines: list[int]  # all of them, from 1
    left_out: list[int]  # those of them that the filter of this kind leaves out
    examples: list[dict[str, Any]]  # line, source and target of some, and a repair where one is known
    is_serious: bool = False  # whether the model will be the worse for it
    is_filtered: bool = False  # whether the config's filters leave out what they can of it
    details: str = ""  # regions of what is misaligned, characters that are rare

    @property
    def harm(self) -> float:
        """How much it spoils, to rank by."""
        share = self.share * len(self.left_out) / len(self.lines) if self.lines else self.share
        return KINDS[self.kind].weight * share

    @property
    def cost(self) -> str:
        """What it does to the model."""
        return "nothing: the config's filters leave these out" if self.is_filtered else KINDS[self.kind].cost

    @property
    def advice(self) -> str:
        """What to do; what is evaluated on is never filtered."""
        if self.is_filtered:
            return "nothing, or correct the lines"
        if is_training(self.corpus):
            return KINDS[self.kind].do
        return "correct these lines in the file, or remove them; filters do not apply here"

    def as_json(self) -> dict[str, Any]:
        """Return what `--format json` shows."""
        shown = {name: value for name, value in vars(self).items() if name != "left_out" or value != self.lines}
        return {**shown, "what": KINDS[self.kind].what, "cost": self.cost, "advice": self.advice}


@dataclass(frozen=True)
class Report:
    """What was found in all corpora, the worst first."""

    findings: list[Finding]
    pairs: dict[str, int]  # of each corpus
    judgements: dict[str, Judgement] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # of each corpus, where train is a list of sources

    @property
    def sources(self) -> list[str]:
        """Return the corpora that are trained on."""
        return [name for name in self.pairs if is_training(name)]

    @property
    def is_serious(self) -> bool:
        """Whether something should be done before training."""
        return any(finding.is_serious for finding in self.findings)


def is_training(corpus: str) -> bool:
    """Return whether a corpus is trained on, by its name."""
    return corpus not in OVERLAPS


def examine(
    corpora: Mapping[str, Corpus],
    bounds: Bounds,
    *,
    filters: Mapping[str, Mapping[str, float | None]] = MappingProxyType({}),
    tagged: Collection[str] = (),
    workers: "int | Cluster" = 0,
    progress: bool = False,
) -> Report:
    """Judge train, or each of its sources by itself, and what it is evaluated on. Raises `UserError` as reading does.

    corpora: by name, train or train.0, train.1, …, then valid and test. filters: the kinds that
    training leaves out of a source, with their bounds. tagged: sources that may be of the other
    direction, whose sides are both compared with both sides of valid and test.
    """
    others = {name: corpus for name, corpus in corpora.items() if not is_training(name)}
    judgements = {}
    for name, corpus in corpora.items():
        known = {} if not is_training(name) else either_side(others) if name in tagged else others
        own = replace(bounds, length_ratio=filters.get(name, {}).get("length_ratio"))
        judgements[name] = judge_corpus(corpus, own, others=known, workers=workers, progress=progress)
    findings = [one for name in corpora for one in _findings(name, judgements, corpora[name], filters.get(name, ()))]
    pairs = {name: found.pairs for name, found in judgements.items()}
    trained = sum(count for name, count in pairs.items() if is_training(name))
    if trained < LEAST_PAIRS:
        findings.append(Finding("too_small", "train", trained, 1.0, [], [], []))
    findings.sort(key=lambda one: (-one.is_serious, one.is_filtered, -one.harm, one.kind))
    files = {} if "train" in corpora else {name: corpus.describe() for name, corpus in corpora.items()}
    return Report(findings, pairs, judgements, files)


def _findings(
    name: str, judgements: Mapping[str, Judgement], corpus: Corpus, filtered: Collection[str]
) -> Iterator[Finding]:
    found = judgements[name]
    lines = {kind: some.tolist() for kind, some in found.lines.items()}
    details = {}
    if found.regions:
        details["misaligned"] = "; ".join(
            f"lines {region.first:,} to {region.last:,}: translations {abs(region.shift)} "
            f"{'later' if region.shift > 0 else 'earlier'}"
            for region in found.regions
        )
    if rare := _rare(name, judgements):
        lines["vocabulary"] = sorted({line for one in rare for line in found.rare[one]})
        shown = " ".join(one if one.isprintable() else f"U+{ord(one):04X}" for one in rare[:CHARACTERS_SHOWN])
        details["vocabulary"] = (
            f"{len(rare):,} character{'s' * (len(rare) > 1)}: {shown}{' …' if len(rare) > CHARACTERS_SHOWN else ''}"
        )
    left_out = {kind: found.left_out(kind).tolist() if kind in found.lines else some for kind, some in lines.items()}
    if bad := len(left_out.get("duplicate_source", [])):
        details["duplicate_source"] = f"in {bad:,} of them the sides are not translations of each other"
    some_of = {kind: _shown(left_out[kind] or some) for kind, some in lines.items()}
    texts = dict(_texts(corpus, {line for some in some_of.values() for line in some}))
    for kind, some in lines.items():
        examples = [_example(kind, line, *texts[line]) for line in some_of[kind]]
        whole = next((judgements[other].pairs for other, overlap in OVERLAPS.items() if overlap == kind), found.pairs)
        is_serious = KINDS[kind].weight >= 0.5 and len(left_out[kind]) >= SERIOUS_SHARE * whole and kind not in filtered
        known = kind, name, len(some), len(some) / found.pairs, some, left_out[kind], examples
        yield Finding(*known, is_serious, kind in filtered, details.get(kind, ""))


def _rare(name: str, judgements: Mapping[str, Judgement]) -> list[str]:
    """Return the characters that are rare in all that is trained on, and stand in this corpus; the rarest first."""
    if not is_training(name):
        return []
    sources = [found.characters for other, found in judgements.items() if is_training(other)]
    counts = {one: sum(characters[one] for characters in sources) for one in judgements[name].rare}
    return sorted((one for one, count in counts.items() if count <= RARE), key=lambda one: (counts[one], one))


def _example(kind: str, line: int, source: str, target: str) -> dict[str, Any]:
    example: dict[str, Any] = {"line": line, "source": source, "target": target}
    repaired = repairs(source, target) if kind == "encoding_damage" else {}
    return {**example, "repair": repaired} if repaired else example


def _shown(lines: list[int]) -> list[int]:
    """Return some lines, from all over the corpus."""
    return [lines[place] for place in sorted({int(place) for place in np.linspace(0, len(lines) - 1, EXAMPLES)})]


def _texts(corpus: Corpus, lines: set[int]) -> Iterator[tuple[int, tuple[str, str]]]:
    left = len(lines)
    if left:
        for number, pair in enumerate(corpus.pairs(), start=1):
            if number in lines:
                yield number, pair
                left -= 1
                if not left:
                    return
