"""BLEU, chrF and TER of a corpus through sacreBLEU, each with the signature that makes the number comparable.

Called by `evaluation.evaluate` and by validation during training. sacreBLEU is imported on first use; no torch.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformer_cli.errors import UserError, one_of

METRICS = ("bleu", "chrf", "chrf++", "ter")

# ISO 639 codes, two and three letters, of the languages that 13a cannot split into words.
_TOKENIZERS = {
    **dict.fromkeys(["zh", "zho", "chi", "cmn", "yue"], "zh"),
    **dict.fromkeys(["ja", "jpn"], "ja-mecab"),
    **dict.fromkeys(["ko", "kor"], "ko-mecab"),
}


@dataclass(frozen=True)
class Score:
    """One metric over a corpus. BLEU and chrF: 0 to 100, more is better; TER: from 0, less is better."""

    metric: str  # one of METRICS
    name: str  # as papers write it: BLEU, chrF2, chrF2++, TER
    score: float
    signature: str


def bleu_tokenizer(target_language: str) -> str:
    """sacreBLEU's tokenizer for a language code such as `de`, `zh_CN` or `jpn`: its own where it has one, else 13a."""
    return _TOKENIZERS.get(re.split(r"[-_]", target_language.lower())[0], "13a")


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    target_language: str,
    metrics: Sequence[str] = ("bleu", "chrf", "ter"),
) -> list[Score]:
    """`corpus_metric` for each metric."""
    return [corpus_metric(metric, hypotheses, references, target_language) for metric in metrics]


def corpus_metric(
    metric: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], target_language: str
) -> Score:
    """Score detokenized translations against one or more sets of detokenized references.

    references: one sequence a reference set, each as long as `hypotheses` (not empty).
    Raises `UserError` for an unknown metric, or where a tokenizer needs a package that is missing.
    """
    assert hypotheses, "nothing to score"
    assert references, "nothing to score against"
    assert all(len(lines) == len(hypotheses) for lines in references), "references of another length"
    (scorer,) = load_scorers([metric], target_language)
    result = scorer.corpus_score(hypotheses, references)
    return Score(metric, str(result.name), float(result.score), str(scorer.get_signature()))


def check_metrics(metrics: Sequence[str]) -> None:
    """Raise `UserError` for a metric that there is not."""
    for metric in metrics:
        if metric not in METRICS:
            raise UserError(f"there is no metric {metric!r}; choose {one_of(list(METRICS))}")


def load_scorers(metrics: Sequence[str], target_language: str) -> list[Any]:
    """sacreBLEU's scorer of each metric; raises as `corpus_metric` does, so that it can be asked before long work."""
    check_metrics(metrics)
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
