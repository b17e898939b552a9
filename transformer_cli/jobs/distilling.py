"""Sequence-level knowledge distillation (Kim and Rush 2016): a training set whose targets a teacher wrote.

`tfm distill` calls `distill`, and so can any program. No torch.
"""

from collections.abc import Iterable, Iterator
from typing import Unpack

from transformer_cli.config import Config
from transformer_cli.data.corpora import Corpus
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.translation import Translation
from transformer_cli.errors import UserError
from transformer_cli.jobs.shards import Shard, best
from transformer_cli.jobs.training_set import How, Making, Pair, TrainingSet, make, recipe_of
from transformer_cli.jobs.translating import TranslationOptions


def distill(
    options: TranslationOptions,
    corpus: Corpus,
    training_set: TrainingSet,
    *,
    best_of: bool = False,
    with_original: bool = False,
    **how: Unpack[How],
) -> list[str] | None:
    """Translate a corpus by a teacher and publish the training set, pair by pair, as far as that is not done.

    best_of: of the n-best translations that `options` ask for, take the one most like the target. with_original: all
    pairs of the corpus follow. how: as `training_set.make`, which says what is returned and raised.
    """
    content = corpus.content_hash()
    recipe = {
        "teacher": options.fingerprint()["model"],
        "data.train": content,
        "best_of": best_of,
        "with_original": with_original,
        **recipe_of(options, training_set),
    }

    def pairs(translations: Iterable[str]) -> Iterator[Pair]:
        for (source, _), target in zip(corpus.pairs(), translations, strict=True):
            yield source, target
        if with_original:
            yield from corpus.pairs()

    making = Making(options, corpus, content, recipe, pairs, closest if best_of else best, references=best_of)
    return make(training_set, making, **how)


def check_languages(teacher: FoundModel, student: Config) -> None:
    """Raise `UserError` where the teacher translates between other languages than the student shall."""
    theirs, ours = [(data.source_language, data.target_language) for data in (teacher.config.data, student.data)]
    if theirs != ours:
        raise UserError(
            f"{teacher.name}: translates {theirs[0]} into {theirs[1]}, but the config {ours[0]} into {ours[1]};"
            " choose another teacher, or set data.source_language and data.target_language"
        )


def closest(shard: Shard, translations: Iterable[Translation]) -> Iterator[str]:
    """Yield, of the n-best translations of each line, the one with the highest sentence chrF, tabs made spaces.

    Sequence-level interpolation (Kim and Rush 2016, section 3.3); of equals the one that the teacher ranks first.
    """
    from transformer_cli.decoding.mbr import chrf_table  # not at the top: numpy takes a while

    for reference, translation in zip(shard.references, translations, strict=True):
        found = [candidate.text.replace("\t", " ") for candidate in translation.hypotheses]
        likeness = chrf_table([*found, reference])[:-1, -1]  # (n-best,)
        yield found[int(likeness.argmax())]
