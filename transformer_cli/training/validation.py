"""How good the model is now: the loss over the validation set, BLEU and chrF of greedy translations of its start.

`session` asks for it every `validate_every` steps.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import torch

from transformer_cli.build import build_engine
from transformer_cli.config import Config
from transformer_cli.data.encoded import EncodedCorpus
from transformer_cli.data.loader import CorpusBatches
from transformer_cli.decoding.translator import Translator
from transformer_cli.evaluation.evaluate import corpus_metric
from transformer_cli.model.torch_private import uncompiled
from transformer_cli.search_options import SearchOptions
from transformer_cli.text.codec import Codecs
from transformer_cli.training.distributed import SINGLE_PROCESS, Ranks
from transformer_cli.training.hardware import Precision
from transformer_cli.training.objective import TranslationObjective

SAMPLES = 3  # translations shown

Part = TypeVar("Part")


@dataclass(frozen=True)
class Sample:
    """One validation sentence with its translation, to look at."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Validation:
    """What one validation found."""

    loss: float  # label-smoothed, nats a target token
    perplexity: float  # exp(-log p a target token), without smoothing
    source_gain: float  # nats a target token by which a sentence's own source predicts it better than another's
    bleu: float  # without n-grams that are longer than every translation
    chrf: float
    samples: list[Sample]

    def value(self, metric: str) -> float:
        """Return the figure that `training.best_metric` names, turned so that higher is better."""
        return {"bleu": self.bleu, "chrf": self.chrf, "loss": -self.loss}[metric]

    def other_source(self) -> str:
        """Return, to show behind the perplexity, what it is where the source is that of another sentence."""
        with_other = self.perplexity * math.exp(min(self.source_gain, 700.0))
        return "" if math.isnan(with_other) else f" ({with_other:,.1f} with another source)"


class Validator:
    """Validates one model again and again on the same sentences."""

    def __init__(
        self,
        objective: TranslationObjective,
        codecs: Codecs,
        config: Config,
        corpus: EncodedCorpus,
        precision: Precision,
        ranks: Ranks = SINGLE_PROCESS,
    ) -> None:
        self.objective, self.config, self.corpus = objective, config, corpus
        self.precision, self.ranks, self.words = precision, ranks, len(codecs.target.vocabulary)
        count = min(len(corpus), config.training.validation_sentences)
        texts = [corpus.texts(pair) for pair in range(count)]
        self.sources = [source for source, _ in texts]
        self.references = [target for _, target in texts]
        engine = build_engine(objective.model, precision.device)
        self.translator = Translator(engine, codecs, config, guard=False)  # loops are what an early model is judged by

    def validate(self) -> Validation | None:
        """Validate now, each rank a part of it; None where a signal came meanwhile, on this or another rank.

        Leaves the random state alone, and the model in evaluation mode.
        """
        self.objective.eval()
        with uncompiled(self.config.training.compile):
            losses = self._losses()
            translations = self._translations() if losses else None
        if losses is None or translations is None:
            return None
        loss, likelihood, source_gain = losses
        language = self.config.data.target_language
        return Validation(
            loss=loss,
            perplexity=math.exp(min(likelihood, 700.0)),
            source_gain=source_gain,
            bleu=corpus_metric("bleu", translations, [self.references], language, effective_order=True).score,
            chrf=corpus_metric("chrf", translations, [self.references], language).score,
            samples=self._samples(translations),
        )

    def _own(self, parts: Sequence[Part]) -> Iterator[Part | None]:
        """Yield the parts of this rank, in as many rounds on each (None: nothing to do); end early after a signal."""
        for first in range(0, len(parts), self.ranks.count):
            if any(self.ranks.gather(self.ranks.stop.signal_number is not None)):
                return
            mine = first + self.ranks.rank
            yield parts[mine] if mine < len(parts) else None

    @torch.inference_mode()
    def _losses(self) -> tuple[float, float, float] | None:
        """Return smoothed loss, -log p and `source_gain`, per target token of the whole set; None after a signal."""
        batches = CorpusBatches(self.corpus, self.config.training.batch_tokens, seed=0)
        plan = batches.plan(epoch=0)
        sums = [0.0] * 5
        for pairs in self._own([plan[number] for number in range(len(plan))]):
            if pairs is None:
                continue
            batch = batches.read(pairs).to(self.precision.device)
            with self.precision.autocast():
                loss = self.objective(batch)
                own, other = batch.beside_other_sources(self.words)
                compared = own.target_tokens
                own_loss = loss if compared == batch.target_tokens else self.objective(own) if compared else None
                gain = self.objective(other).likelihood - own_loss.likelihood if own_loss else 0.0
            parts = float(loss.smoothed), float(loss.likelihood), batch.target_tokens, float(gain), compared
            sums = [total + part for total, part in zip(sums, parts, strict=True)]
        everywhere = self.ranks.gather((sums, self.ranks.stop.signal_number))
        if any(signal is not None for _, signal in everywhere):
            return None
        smoothed, likelihood, tokens, gain, compared = map(sum, zip(*(part for part, _ in everywhere), strict=True))
        return smoothed / tokens, likelihood / tokens, gain / compared if compared else math.nan

    def _translations(self) -> list[str] | None:
        """Return greedy translations of the sentences, in their order; None after a signal."""
        options = SearchOptions.from_config(self.config.decoding, method="greedy")
        mine: dict[int, str] = {}
        for sentences in self._own(self._parts()):
            if sentences:
                sources = [self.sources[sentence] for sentence in sentences]
                results = self.translator.translate_batch(sources, options, alignments=False, tag="")  # they have it
                mine |= {sentence: result.text for sentence, result in zip(sentences, results, strict=True)}
        everywhere = {number: text for texts in self.ranks.gather(mine) for number, text in texts.items()}
        if len(everywhere) < len(self.sources):
            return None
        return [everywhere[number] for number in range(len(self.sources))]

    def _parts(self) -> list[list[int]]:
        """Return the sentences in batches of similar length, dealt out for `_own` so that every rank translates as many
        sentences, and as long ones, as the others. The last batch of some ranks may be empty."""
        lengths, count = self.corpus.source_lengths, self.ranks.count
        by_length = sorted(range(len(self.sources)), key=lambda number: (int(lengths[number]), number))
        of_ranks = [self._batches(by_length[rank::count]) for rank in range(count)]
        return [part for together in zip_longest(*of_ranks, fillvalue=[]) for part in together]

    def _batches(self, sentences: Sequence[int]) -> list[list[int]]:
        """Return the sentences, of rising lengths, in batches of `decoding.batch_tokens` at most."""
        batches: list[list[int]] = []
        for sentence in sentences:
            budget = self.config.decoding.batch_tokens // (int(self.corpus.source_lengths[sentence]) + 1)
            if not batches or len(batches[-1]) >= budget:
                batches.append([])
            batches[-1].append(sentence)
        return batches

    def _samples(self, translations: Sequence[str]) -> list[Sample]:
        chosen = [(2 * number + 1) * len(self.sources) // (2 * SAMPLES) for number in range(SAMPLES)]
        return [Sample(self.sources[i], self.references[i], translations[i]) for i in dict.fromkeys(chosen)]
