"""Back-translation (Sennrich et al. 2016): a training set whose sources a model of the other direction wrote.

`tfm backtranslate` calls `backtranslate`, and so can any program. The real text is the target, so that a model learns
to write what people wrote; whatever is wrong with a synthetic source leaves out the pair. No torch.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from transformer_cli.config import Config
from transformer_cli.data.corpora import open_split
from transformer_cli.data.held_out import open_saved
from transformer_cli.data.monolingual import Monolingual
from transformer_cli.data.quality.languages import LanguageIdentifier
from transformer_cli.data.quality.words import words_of
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.pipeline import repeated
from transformer_cli.decoding.translation import Translation
from transformer_cli.errors import UserError, one_of
from transformer_cli.jobs.shards import UNHEARD, Shard
from transformer_cli.jobs.training_set import How, Making, Pair, TrainingSet, make, recipe_of
from transformer_cli.jobs.translating import TranslationOptions
from transformer_cli.text.lines import read_lines

KEPT = ("too_long", "length_ratio", "repetition", "identical_sides", "wrong_language")  # where the user wants that
FAULTS = ("empty_side", *KEPT, "low_score")  # most of them kinds that `tfm doctor` finds too
TAG = "<bt>"
SHORT = 4  # tokens that are added to both lengths: a short text may well be twice as long as its translation
LEAST_COPIED = 3  # words of a copy
SPLITS: tuple[Literal["valid"], Literal["test"]] = ("valid", "test")


@dataclass(frozen=True, eq=False)
class PairFilters:
    """Which synthetic pairs are left out."""

    max_length: int  # tokens of the synthetic side
    languages: LanguageIdentifier | None = None  # None: the wrong language cannot be found
    max_ratio: float = 2.0  # how many times as long as the other a side may be
    min_score: float | None = None
    keep: frozenset[str] = frozenset()  # faults that leave no pair out

    def __post_init__(self) -> None:
        if unknown := sorted(self.keep - {*KEPT}):
            raise UserError(f"--keep {unknown[0]}: there is no such fault; choose {one_of(list(KEPT))}")

    def rows(self, shard: Shard, translations: Iterable[Translation]) -> Iterator[str]:
        """Yield for each line of a shard what is wrong with its translation (or nothing), its score, and itself."""
        found = list(translations)
        foreign = self._foreign([translation.text for translation in found])
        for translation, wrong_language in zip(found, foreign, strict=True):
            faults = (fault for fault in self._faults(translation, wrong_language) if fault not in self.keep)
            yield f"{next(faults, '')}\t{translation.score:.4f}\t{translation.text}"

    def _faults(self, translation: Translation, wrong_language: bool) -> Iterator[str]:
        """Yield what is wrong with a translation, of which the first counts."""
        best = translation.hypotheses[0]
        lengths = len(best.tokens), len(translation.source_tokens)
        if not best.text.strip():
            yield "empty_side"
        if lengths[0] > self.max_length or not best.ended:
            yield "too_long"
        if max(lengths) + SHORT > self.max_ratio * (min(lengths) + SHORT):
            yield "length_ratio"
        if repeated(best.tokens, translation.source_tokens):
            yield "repetition"
        words = words_of(best.text)
        if len(words) >= LEAST_COPIED and words == words_of(translation.line.text):
            yield "identical_sides"
        if wrong_language:
            yield "wrong_language"
        if self.min_score is not None and best.score < self.min_score:
            yield "low_score"

    def _foreign(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        if self.languages is None:
            return np.zeros(len(texts), dtype=bool)
        scores = self.languages.score(texts, 1)
        return self.languages.is_other(scores, 1) | self.languages.is_foreign(scores, 1)


def backtranslate(
    options: TranslationOptions,
    corpus: Monolingual,
    training_set: TrainingSet,
    filters: PairFilters,
    **how: Unpack[How],
) -> list[str] | None:
    """Translate text and publish the training set, its pairs in the text's order, as far as that is not done.

    Says through `note` what is left out before and after. how: as `training_set.make`, which says what is returned and
    raised; `UserError` too where the filters leave no pair.
    """
    note = how.get("note", UNHEARD)
    content = corpus.content_hash()
    recipe = {
        "model": options.fingerprint()["model"],
        "input": content,
        "max_ratio": filters.max_ratio,
        "min_score": filters.min_score,
        "keep": sorted(filters.keep),
        **recipe_of(options, training_set),
    }
    counts: Counter[str] = Counter()
    scores = array("d")

    def pairs(rows: Iterable[str]) -> Iterator[Pair]:
        for (target, _), row in zip(corpus.pairs(), rows, strict=True):
            fault, score, source = row.split("\t", 2)
            counts[fault] += 1
            scores.append(float(score))
            if not fault:
                yield source, target
        if not counts[""]:
            raise UserError(
                f"{training_set.folder}: no pair is left ({_left_out(counts)}); delete {training_set.folder}.parts,"
                " and give other filters or another model"
            )

    waiting = [] if training_set.is_finished(recipe) else [f"{corpus.describe()}: {corpus.left_out}"]

    def report(text: str) -> None:
        """Say it, after what waits until the model is loaded: a fault in its options stands alone."""
        for one in (*waiting, text):
            note(one)
        waiting.clear()

    how["note"] = report
    notes = make(training_set, Making(options, corpus, content, recipe, pairs, filters.rows), **how)
    if counts:
        low, usual = np.quantile(np.array(scores), [0.1, 0.5]).tolist()
        report(f"{_left_out(counts)}; scores: {usual:.2f} at the median, a tenth below {low:.2f}")
        report(f"{training_set.folder}: {counts['']:,} pairs")
    return notes


def _left_out(counts: Counter[str]) -> str:
    found = ", ".join(f"{counts[fault]:,} {fault}" for fault in FAULTS if counts[fault])
    return f"{counts.total():,} translations; left out: {found or 'none'}"


def final_languages(model: FoundModel, config: Config | None) -> Pair:
    """Return source and target language of what is to be trained. Raises `UserError` where the config has others.

    So it does where the model translates a language into itself.
    """
    data = model.config.data
    languages = data.target_language, data.source_language
    if languages[0].lower() == languages[1].lower():
        raise UserError(f"{model.name}: translates {languages[0]} into {languages[1]}; give a model of two languages")
    if config is not None and (theirs := (config.data.source_language, config.data.target_language)) != languages:
        raise UserError(
            f"{model.name}: translates {languages[1]} into {languages[0]}, but the config {theirs[0]} into {theirs[1]};"
            " give a model of the other direction"
        )
    return languages


def held_out_texts(model: FoundModel, config: Config | None, files: Sequence[Path]) -> list[str]:
    """Return the texts of valid and test that a model's run and a config name, and those of files.

    Raises `UserError` where any cannot be read, but for those of the model's run beside others: they may be gone.
    """
    texts = [line for path in files for line in read_lines(path)]
    for split in SPLITS:
        if config is not None and getattr(config.data, split) is not None:
            texts += (text for pair in open_split(config.data, split).pairs() for text in pair)
        if split == "test" and model.config.data.test is None:
            continue
        try:
            texts += [text for pair in open_saved(model.config.data, split, model.folder).pairs() for text in pair]
        except UserError as error:
            if config is None and not files:
                raise UserError(
                    f"{model.name}: what it was judged by cannot be left out ({error}); name its files with --exclude,"
                    " or give --config"
                ) from None
    return texts


def beside(config: Config, made: Mapping[str, Any]) -> list[Any]:
    """Return the `data.train` of a config with one more source, unless it has that already."""
    own = [source.model_dump(mode="json", exclude_defaults=True) for source in config.data.sources.values()]
    return own + [made] * all(source.get("source") != made["source"] for source in own)
