"""How good a model is: translate a test set, and score the result by BLEU, chrF and TER through sacreBLEU.

Behind `tfm evaluate`; validation during training and other programs call it. Inputs are checked before the first
sentence is translated. sacreBLEU is imported on first use; no torch.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_cli.data.corpora import count_lines, dropped
from transformer_cli.data.held_out import open_saved, split_tag
from transformer_cli.errors import UserError, one_of
from transformer_cli.text.lines import TextLines, read_lines

if TYPE_CHECKING:
    from transformer_cli.decoding.loading import FoundModel
    from transformer_cli.decoding.translator import Translation, Translator
    from transformer_cli.search_options import SearchOptions

WINDOW = 2048  # sentences between two reports of progress

# --- metrics --------------------------------------------------------------------------------------------------------

METRICS = ("bleu", "chrf", "chrf++", "ter")
RESAMPLES, SEED = 1000, 12345  # of the bootstrap, as `sacrebleu --confidence` takes them

# ISO 639 codes, two and three letters, of the languages that 13a cannot split into words.
_TOKENIZERS = {
    **dict.fromkeys(["zh", "zho", "chi", "cmn", "yue"], "zh"),
    **dict.fromkeys(["ja", "jpn"], "ja-mecab"),
    **dict.fromkeys(["ko", "kor"], "ko-mecab"),
}
_EAST_ASIAN = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True)
class Score:
    """One metric over a corpus. BLEU and chrF: 0 to 100, more is better; TER: from 0, less is better."""

    metric: str  # one of METRICS
    name: str  # as papers write it: BLEU, chrF2, chrF2++, TER
    score: float
    signature: str
    short_signature: str  # the same in sacreBLEU's short names
    mean: float | None = None  # of the bootstrap's resamples; None: not asked for
    interval: float | None = None  # 95 % of the resamples are in mean ± interval


@dataclass(frozen=True)
class SubsetScore(Score):
    """One metric over some sentences of a corpus."""

    by_chance: tuple[float, float] = (0.0, 0.0)  # between these score 95 % of random choices of as many sentences

    @property
    def differs(self) -> bool:
        """Whether these sentences score otherwise than as many others do, in the two decimals that are printed."""
        low, high = self.by_chance
        return not low - 0.005 <= self.score <= high + 0.005


def bleu_tokenizer(target_language: str) -> str:
    """Return sacreBLEU's tokenizer for a language code such as `de`, `zh_CN` or `jpn`; 13a if it has none."""
    return _TOKENIZERS.get(re.split(r"[-_]", target_language.lower())[0], "13a")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: str,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    *,
    intervals: bool = False,
) -> list[Score]:
    """Return the `corpus_metric` of each metric."""
    return [corpus_metric(metric, hypotheses, references, target_language, intervals=intervals) for metric in metrics]


def corpus_metric(
    metric: str,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: str,
    *,
    intervals: bool = False,
    effective_order: bool = False,
) -> Score:
    """Score detokenized translations against one or more sets of detokenized references.

    references: one sequence a reference set, each as long as `hypotheses` (not empty). intervals: estimate the interval
    too, by `_bootstrap`. effective_order: let BLEU leave out n-grams that are longer than every translation, where it
    is 0 otherwise, even if all translations equal their references.
    Raises `UserError` for an unknown metric, or where a tokenizer needs a package that is missing.
    """
    assert hypotheses, "nothing to score"
    assert references, "nothing to score against"
    assert all(len(lines) == len(hypotheses) for lines in references), "references of another length"
    (scorer,) = load_scorers([metric], target_language)
    if metric == "bleu":
        scorer.effective_order = effective_order
    return _score(metric, scorer, scorer._extract_corpus_statistics(hypotheses, references), intervals)


def subset_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: str,
    metrics: Sequence[str],
    lines: Sequence[int],
) -> list[SubsetScore]:
    """Return the scores of some lines, from 1, with their intervals and those of random choices of as many lines.

    The other arguments are those of `corpus_scores`, and so is what is raised.
    """
    scores = []
    for metric, scorer in zip(metrics, load_scorers(metrics, target_language), strict=True):
        statistics = scorer._extract_corpus_statistics(hypotheses, references)
        by_chance = _by_chance(scorer, statistics, len(lines))
        score = _score(metric, scorer, [statistics[line - 1] for line in lines], intervals=True)
        scores.append(SubsetScore(**vars(score), by_chance=by_chance))
    return scores


def _score(metric: str, scorer: Any, statistics: Sequence[Sequence[float]], intervals: bool) -> Score:
    result = scorer._aggregate_and_compute(statistics)
    estimate = _bootstrap(scorer, statistics) if intervals else (None, None)
    signature = scorer.get_signature()
    return Score(metric, str(result.name), float(result.score), str(signature), signature.format(short=True), *estimate)


def _bootstrap(scorer: Any, statistics: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return mean and half the width of the interval that holds 95 % of the scores of 1,000 resampled test sets.

    The numbers are those of `sacrebleu --confidence` (Koehn 2004).
    """
    scores = _scores_of_draws(scorer, statistics, lambda random, size: random.choice(size, size=size))
    low, high = _middle(scores)
    scorer.n_bootstrap, scorer.seed = RESAMPLES, str(SEED)  # for the signature
    return sum(scores) / RESAMPLES, (high - low) / 2


def _by_chance(scorer: Any, statistics: Sequence[Sequence[float]], count: int) -> tuple[float, float]:
    """Return between what 95 % of the scores of `count` sentences are that are drawn from these, each once at most."""
    return _middle(_scores_of_draws(scorer, statistics, lambda random, size: random.permutation(size)[:count]))


def _scores_of_draws(
    scorer: Any, statistics: Sequence[Sequence[float]], draw: Callable[[Any, int], Any]
) -> list[float]:
    """Return the scores, the lowest first, of sentences that `draw` chooses, given a generator and their number.

    One draw at a time: sacreBLEU's own function holds all of them at once, which are 72 MB for chrF of every 1,000
    sentences.
    """
    import numpy as np

    sentences = np.array(statistics, dtype=np.float32)
    random = np.random.default_rng(SEED)
    draws = (sentences[draw(random, len(sentences))].sum(0) for _ in range(RESAMPLES))
    return sorted(float(scorer._compute_score_from_stats(drawn).score) for drawn in draws)


def _middle(scores: Sequence[float]) -> tuple[float, float]:
    outside = RESAMPLES // 40  # at each end
    return scores[outside], scores[-1 - outside]


def suggests_language(lines: Sequence[str]) -> bool:
    """Return whether there is Chinese, Japanese or Korean text, whose words BLEU's tokenizer 13a does not separate."""
    return any(_EAST_ASIAN.search(line) for line in lines)


def parse_metrics(given: Sequence[str] | None) -> list[str]:
    """Return the metrics that are named, several with commas, each once; by default BLEU, chrF and TER.

    Raises `UserError` for a metric that there is not.
    """
    metrics = [name.strip() for one in given or ["bleu,chrf,ter"] for name in one.split(",")]
    for metric in metrics:
        if metric not in METRICS:
            raise UserError(f"there is no metric {metric!r}; choose {one_of(list(METRICS))}")
    return list(dict.fromkeys(metrics))


def load_scorers(metrics: Sequence[str], target_language: str) -> list[Any]:
    """Return sacreBLEU's scorer of each metric; raises as `corpus_metric` does, so ask for it before long work."""
    parse_metrics(metrics)
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    tokenizer = bleu_tokenizer(target_language)
    # TER counts words; where a line has no spaces it counts characters instead, which the signature says
    characters = tokenizer in ("zh", "ja-mecab")
    build: dict[str, Callable[[], Any]] = {
        "bleu": lambda: _load_bleu(tokenizer),
        "chrf": CHRF,
        "chrf++": lambda: CHRF(word_order=2),
        "ter": lambda: TER(normalized=characters, asian_support=characters),
    }
    return [build[metric]() for metric in metrics]


def _load_bleu(tokenizer: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(tokenize=tokenizer, force=True)  # force: no advice about tokenized-looking lines on stderr
    except (ImportError, RuntimeError):
        language = tokenizer[:2]
        raise UserError(
            f"BLEU in {language!r} needs sacreBLEU's MeCab tokenizer; install it: pip install 'sacrebleu[{language}]'"
        ) from None


# --- test sets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluationSet:
    """Sentences with one or more sets of translations, aligned line by line."""

    sources: list[str]
    references: list[list[str]]
    notes: list[str]  # what was dropped while reading
    tag: str | None = None  # what stands before each source where models read it; "": nothing; None: nothing is said


def read_test_set(source: Path, references: Sequence[Path]) -> EvaluationSet:
    """Read a source file and its reference files (plain or .gz).

    Raises `UserError` where a file is empty, is not UTF-8, or a reference has another number of lines than the source.
    """
    files = [read_lines(path) for path in (source, *references)]
    lines: list[list[str]] = [[] for _ in files]
    for row in zip_longest(*files):  # side by side: a file that is much longer is never held
        if None in row:
            _refuse_unequal([source, *references], files, row, len(lines[0]))
        for held, line in zip(lines, row, strict=True):
            held.append(line)
    if not lines[0]:
        raise UserError(f"{source}: is empty; name a file with at least one line")
    return EvaluationSet(lines[0], lines[1:], [note for file in files for note in dropped(file)])


def _refuse_unequal(paths: Sequence[Path], files: Sequence[TextLines], row: Sequence[str | None], before: int) -> None:
    """Raise `UserError` for the first reference of another length; `row` is the first that lacks a line."""
    counts = [
        f"{before:,}" if line is None else count_lines(before + 1, rest) for line, rest in zip(row, files, strict=True)
    ]
    if counts[0] == "0":
        raise UserError(f"{paths[0]}: is empty; name a file with at least one line")
    wrong = next(place for place, count in enumerate(counts) if count != counts[0])
    raise UserError(
        f"{paths[wrong]}: has {counts[wrong]} lines, but {paths[0]} has {counts[0]}; give files aligned line by line"
    )


def check_references(references: Sequence[Sequence[str]], paths: Sequence[Path]) -> None:
    """Raise `UserError` for references that are empty in every line. paths: of the files; none where they are not."""
    for number, lines in enumerate(references):
        if not any(map(str.strip, lines)):
            where = paths[number] if paths else "the references"
            raise UserError(f"{where}: all lines are empty; give the translations to compare with")


def find_test_set(
    model: "FoundModel", source: Path | None, references: Sequence[Path] | None, split: Literal["test", "valid"]
) -> EvaluationSet:
    """Read the files that were given, else what `data.test` or `data.valid` in a model's config means.

    Raises `UserError` where there is none, or its data is faulty or gone.
    """
    if (source is None) != (not references):
        raise UserError(
            f"--source and --reference belong together: give both, or neither for the config's data.{split}"
        )
    if source is not None and references:
        found = read_test_set(source, references)
        check_references(found.references, references)
        return found
    data, folder = model.config.data, model.folder
    tag = split_tag(model.config, split) or ""
    if split == "test" and data.test is None:
        raise UserError("the model's config names no data.test; give --source and --reference")
    try:
        corpus = open_saved(data, split, folder)
    except UserError as error:
        raise UserError(f"{error}; give --source and --reference") from None
    pairs = list(corpus.pairs())
    return EvaluationSet([source for source, _ in pairs], [[target for _, target in pairs]], list(corpus.notes), tag)


# --- evaluating -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluation:
    """The translations of a test set, their scores in the order of the metrics asked for, and the time it took."""

    translations: list[str]
    scores: list[Score]
    seconds: float  # translating alone


def evaluate(
    translator: "Translator",
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
    options: "SearchOptions | None" = None,
    tag: str | None = None,
    report: Callable[[int], None] | None = None,
) -> Evaluation:
    """Translate `sources` and score them against one or more sets of references.

    options: how to search; None takes the model's own way. tag: before each source, as in `translate_batch`. report:
    called with the number of sentences done.
    Raises `UserError` for an unknown metric, or a tokenizer that is not installed, before anything is translated.
    """
    language = translator.config.data.target_language
    load_scorers(metrics, language)
    began = time.monotonic()
    translations = [translation.text for translation in translate_all(translator, sources, options, report, tag)]
    seconds = time.monotonic() - began
    scores = corpus_scores(translations, references, language, metrics, intervals=True)
    return Evaluation(translations, scores, seconds)


def translate_all(
    translator: "Translator",
    sources: Sequence[str],
    options: "SearchOptions | None",
    report: Callable[[int], None] | None,
    tag: str | None = None,
) -> "Iterator[Translation]":
    """Yield the translation of each source; arguments as of `evaluate`."""
    for start in range(0, len(sources), WINDOW):
        window = sources[start : start + WINDOW]
        yield from translator.translate_batch(window, options, alignments=False, tag=tag)
        if report is not None:
            report(start + len(window))
