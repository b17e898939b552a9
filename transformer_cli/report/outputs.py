"""What the model of a run makes of its validation and test sets: scores, its best and worst sentences, where it fails.

`tfm report` shows it on its page and in its card. torch is imported for attention alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from transformer_cli.data.quality.words import words_of
from transformer_cli.decoding.devices import processor, usable_cores
from transformer_cli.decoding.loading import FoundModel
from transformer_cli.decoding.pipeline import repeated
from transformer_cli.decoding.translator import Translator
from transformer_cli.errors import UserError
from transformer_cli.evaluation.differences import TrainingWords, count_words
from transformer_cli.evaluation.evaluate import Score, corpus_metric, evaluate, find_test_set, load_scorers
from transformer_cli.report.runs import Run
from transformer_cli.text.codec import Codecs

if TYPE_CHECKING:
    from transformer_cli.inside.attention import Attention

SHORT = 12  # words of a sentence whose attention is shown
READ = 1_000_000  # pairs of training data that words are counted in
LEAST_LETTERS = 4  # of a word that was copied: shorter ones are the same in many languages
OWN = 3  # times that a word of the source is in targets of the training data, from which on it is also one of theirs

# Called with what is translated and how many sentences it has; it gives what shows how many are done.
Report = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class Outputs:
    """Sentences of a set, and what the model makes of them."""

    split: Literal["test", "valid"]
    sources: Sequence[str]
    references: Sequence[str]
    translations: Sequence[str]
    scores: Sequence[Score]
    left_out: int  # sentences of the set that were not translated
    seconds: float
    language: str
    tag: str | None = None  # before each source

    @cached_property
    def sentence_scores(self) -> list[float]:
        """The chrF of each sentence."""
        (scorer,) = load_scorers(["chrf"], self.language)
        pairs = zip(self.translations, self.references, strict=True)
        return [float(scorer.sentence_score(translation, [reference]).score) for translation, reference in pairs]

    def ranked(self) -> list[int]:
        """Return the sentences, the best first; of equals, which are mostly exact, the longer first."""
        return sorted(range(len(self.sources)), key=lambda at: (-self.sentence_scores[at], -len(self.references[at])))

    def chrf(self, places: Sequence[int]) -> float:
        """Return the chrF of some sentences together."""
        texts = [[lines[place] for place in places] for lines in (self.translations, self.references)]
        return corpus_metric("chrf", texts[0], [texts[1]], self.language).score


def translate_set(
    translator: Translator,
    found: FoundModel,
    split: Literal["test", "valid"],
    most: int | None,
    report: Report,
) -> Outputs:
    """Translate the first `most` sentences of a set, None all, and score them. Raises `UserError` where it is gone."""
    whole = find_test_set(found, None, None, split)
    sources, references = whole.sources[:most], whole.references[0][:most]
    with report(f"{found.name}, {split}", len(sources)) as count:
        done = evaluate(translator, sources, [references], tag=whole.tag, report=count)
    left_out = len(whole.sources) - len(sources)
    language = found.config.data.target_language
    return Outputs(
        split, sources, references, done.translations, done.scores, left_out, done.seconds, language, whole.tag
    )


# --- where it fails ---------------------------------------------------------------------------------------------------


def failures(outputs: Outputs, codecs: Codecs, training: TrainingWords | None) -> dict[str, list[int]]:
    """Return what looks wrong with translations: kind → sentences. Without training data, cognates may count as copies.

    A word is a copy where it is none of the reference, and not of the target language as the training data has it.
    """
    target_words = {} if training is None else training.target_counts
    own = {word for word, count in target_words.items() if count >= OWN}
    found: dict[str, list[int]] = {}
    for place, one in enumerate(zip(outputs.sources, outputs.references, outputs.translations, strict=True)):
        for kind in _faults(*one, codecs, own):
            found.setdefault(kind, []).append(place)
    return found


def _faults(source: str, reference: str, translation: str, codecs: Codecs, own: set[str]) -> Iterator[str]:
    known, words = set(words_of(reference)), words_of(translation)
    if not translation.strip():
        if source.strip():
            yield "empty"
        return
    if repeated(codecs.target.encode(translation), codecs.source.encode(source)):
        yield "repeats itself"
    copied = {word for word in words_of(source) if len(word) >= LEAST_LETTERS and word.isalpha()}
    if (copied & set(words)) - known - own:
        yield "copies a word of the source that the reference does not have"
    if 2 * len(words) < len(known):
        yield "less than half as long as the reference"
    if len(words) > 2 * max(1, len(words_of(reference))):
        yield "more than twice as long as the reference"


# --- a run's model ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examined:
    """A run, and what its model does."""

    run: Run
    outputs: Sequence[Outputs] = ()  # the set that matters more first
    failures: Mapping[str, list[int]] = field(default_factory=dict)  # of the first of them
    engine: str = ""  # what translated, in words
    training: TrainingWords | None = None  # for the first set's sources; None: the data is gone
    attentions: Sequence["Attention"] = ()
    notes: Sequence[str] = ()  # what could not be looked at, and why


def examine_run(run: Run, device: str, most: int | None, report: Report) -> Examined:
    """Translate the test and the validation set of a run's model, and look at what comes out.

    most: sentences of each set; None: all of the test set, and of the validation set as many as in training. What is
    gone is noted.
    """
    if run.model is None:
        return Examined(run, notes=[f"{run.path}: has no checkpoint yet, so nothing is translated"])
    found = FoundModel.at(run.path)
    translator = Translator.load(found, device)
    outputs: list[Outputs] = []
    notes: list[str] = []
    limits = {"test": most, "valid": most or found.config.training.validation_sentences}
    splits: tuple[Literal["test", "valid"], ...] = ("test", "valid")
    for split in splits:
        if split == "test" and found.config.data.test is None:
            continue
        try:
            outputs.append(translate_set(translator, found, split, limits[split], report))
        except UserError as error:
            notes.append(f"{run.path}: {str(error).removesuffix('; give --source and --reference')}")
    if not outputs:
        return Examined(run, notes=notes)
    training = None
    try:
        training = count_words(found, outputs[0].sources, READ)
    except UserError as error:
        notes.append(f"{run.path}: {error}")
    failed = failures(outputs[0], translator.codecs, training)
    seen = attentions(found, outputs[0], device)
    return Examined(run, outputs, failed, engine_of(translator), training, seen, notes)


def engine_of(translator: Translator) -> str:
    """Return what translates: engine, type and device."""
    words = translator.engine_choice.removeprefix("engine: ").split(";")[0]
    device = str(getattr(translator.engine, "device", "cuda" if "cuda" in words else "cpu"))
    if device != "cpu":
        return f"{words} on {device}"
    cores = usable_cores()
    return f"{words} on {processor() or 'a CPU'}, {cores} core{'s' * (cores > 1)}"


def attentions(found: FoundModel, outputs: Outputs, device: str) -> "list[Attention]":
    """Return the attention of the best, a middling and the worst sentence, of short ones; none without torch."""
    places = [place for place in outputs.ranked() if 0 < len(outputs.sources[place].split()) <= SHORT]
    places = [place for place in places if outputs.translations[place].strip()]
    if not find_spec("torch") or not places:
        return []
    from transformer_cli.inside.attention import attend

    translator = Translator.load(found, device, engine="torch")
    chosen = dict.fromkeys(places[at] for at in (0, len(places) // 2, -1))
    return [
        attend(translator, outputs.sources[place], outputs.translations[place], tag=outputs.tag) for place in chosen
    ]
